# Two commands: `make book` builds the book from the offline controls, `make test` checks everything.
# A Python of your choice: make book PYTHON=python3.12
.PHONY: help env book test quick slow release lock baselines intervals clean

SUPPORTED := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  if $$p -c '$(SUPPORTED)' 2>/dev/null; then command -v $$p; break; fi; done)
UV ?= uv
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check
# Without a GPU: make env CPU_INDEX=URL, of PyTorch's index of CPU builds, leaves 4 GB of CUDA out.
LOCK = $(if $(CPU_INDEX),/dev/stdin --extra-index-url $(CPU_INDEX),requirements.lock)
# The stamp carries the lock's checksum in its name, so a changed lock makes a new environment whatever the files' dates.
STAMP := $(VENV)/installed-$(firstword $(shell cksum requirements.lock))

help:
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):[^#]*## /\1	/' | expand -t 12

env: $(STAMP)  ## make .venv from requirements.lock, or reuse it while the lock is unchanged

# The stamp is written last: an environment without it is half-made, and made anew.
$(STAMP):
	@$(PYTHON) -c '$(SUPPORTED)' 2>/dev/null || \
	  { echo "error: no Python 3.11 to 3.13 with venv was found; name one with PYTHON=..." >&2; exit 2; }
	@echo "Installing requirements.lock into $(VENV) with $$($(PYTHON) --version); this takes a few minutes, once."
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(if $(CPU_INDEX),grep -vE '^(cuda|nvidia|triton)' requirements.lock |) $(PIP) --no-compile --requirement $(LOCK)
	@$(RUN) -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores, where pip takes one; a few packages ship files that are no Python
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

book: env  ## run every notebook on the offline controls and build _build/html
	@$(RUN) -m helpers book

# One thread a worker: two workers on two cores, and sums in the same order on every machine.
test: export OMP_NUM_THREADS = 1
# Whatever the environment says: hundreds of processes would each compile the package.
test: export PYTHONDONTWRITEBYTECODE =
test: env  ## lint, unit tests, notebooks against their stored outputs, figures against their baselines
	@$(RUN) -m ruff check helpers training scripts tests notebooks
	@$(RUN) -m ruff format --check helpers training scripts tests notebooks
	@$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 25

quick: export OMP_NUM_THREADS = 1
# Of a module the tests of its name, or else of its package.
quick: env  ## the tests of what was changed since the last commit
	@git diff --name-only --diff-filter=d HEAD | sed -nE -e 's@^helpers/(.*/)?([a-z_]+)\.py$$@tests/\1test_\2.py@p' \
	  -e 's@^training/([a-z_]+)\.py$$@tests/training/test_\1.py@p' -e 's@^notebooks/.*\.yml$$@tests/claims@p' \
	  -e '/^(notebooks|tests).*(ipynb|test_.*py)$$/p' | \
	  while read -r test; do if [ -e "$$test" ]; then echo "$$test"; else dirname "$$test"; fi; done | \
	  sort -u | xargs -r $(RUN) -m pytest -q -n 2 --dist loadfile

slow: export OMP_NUM_THREADS = 1
slow: env  ## what `make test` leaves out: every page in a browser, profile `paper` on stand-ins, speed
	@$(RUN) -m pytest -n 2 --dist loadfile -m slow

release: book  ## pack the book, the lock, licence, citation and changes with their checksums into _build/release
	@rm -rf _build/release && mkdir -p _build/release
	@tar -czf _build/release/registers-reproduced-html.tar.gz -C _build html
	@cp requirements.lock LICENSE CITATION.cff CHANGELOG.md _build/release
	@cd _build/release && sha256sum -- * > SHA256SUMS
	@cat _build/release/SHA256SUMS

lock:  ## resolve requirements.lock from pyproject.toml, keeping the versions that still fit (needs uv)
	@$(UV) pip compile pyproject.toml --quiet --universal --fork-strategy fewest --python-version 3.11 \
	  --extra book --extra data --extra clip --extra test \
	  --no-header --no-annotate -o requirements.lock
	@{ echo "# Written by \`make lock\` from pyproject.toml; exact versions for Python 3.11 to 3.13."; \
	  cat requirements.lock; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock
	@echo "Carry changed pins over to environment.yml; tests/test_environment.py names them."

baselines: export OMP_NUM_THREADS = 1
baselines: env  ## regenerate what the tests compare with: the notebooks' outputs and numbers, and the figures' images
	@$(RUN) -m helpers baselines
	@$(RUN) -m pytest tests/figures/test_figures.py --mpl-generate-path=tests/figures/baseline

intervals: export OMP_NUM_THREADS = 1
intervals: env  ## simulate how often the intervals cover the truth, for the book
	@$(RUN) scripts/intervals.py book

clean:  ## remove everything that can be made again
	rm -rf $(VENV) _build book/runs/controls .pytest_cache .ruff_cache *.egg-info
	find helpers training scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
