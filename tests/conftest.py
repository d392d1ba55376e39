"""A small project in a temporary folder: two claims with a notebook that takes a second, and one that waits for its own."""

import json
import os
from pathlib import Path

import nbformat
import pytest
import torch
import yaml
from hypothesis import settings
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from helpers.interventions import neurons as registers
from helpers.interventions import tokens as interventions
from helpers.publish.runs import Project

# Every run tries the same examples, and none may fail for a slow machine. HYPOTHESIS_PROFILE=many tries 20 times as many, others
# each time; what it finds comes with a line that reproduces it.
TIMES = {"same": 1, "many": 20}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "same")
for profile in TIMES:
    settings.register_profile(profile, derandomize=profile == "same", deadline=None, print_blob=True, database=None)
settings.load_profile(PROFILE)

PARAMETERS = {
    "models": ["control-clean"],
    "dataset": "scenes",
    "n": 2,
    "rate": 0.5,
    "strict": False,
    "mode": "measure",
    "seed": 0,
}
CLAIM = {
    "paper": "beyond",
    "title": "Two is more than one",
    "statement": "The score exceeds one.",
    "where": "this test",
    "measure": "score",
    "headline": "two",
    "reported": [],
    "criterion": {"quantifier": "all", "tests": [{"value": "score", "op": ">", "margin": 1}]},
    "expected": {f"control-{name}": "supported" for name in ("content", "position", "registers", "clean")},
    "parameters": PARAMETERS,
    "profiles": {"large": {"n": 5}},
}
PAPER = {"title": "t", "authors": "a", "year": None, "venue": None, "bib": None, "folder": "beyond", "models": {}, "errors": []}
WORK = """import os, sys, time
from pathlib import Path
Path(f"{mode}.pid").write_text(str(os.getpid()))
if mode == "fail":
    raise ValueError("the score of nothing is not defined\\nand more lines")
if mode == "sleep":
    time.sleep(600)
Path("python").write_text(sys.executable)
print(os.environ["OMP_NUM_THREADS"], Path.cwd() / "here")"""
JUDGE = """from helpers.publish import Value, load_registry
values = [Value.of("score", float(n), model=model, dataset=dataset) for model in models]
load_registry("notebooks/claims.yml")["{id}"].judge(values, sources=[{{"name": dataset}}])"""


def write_notebook(path: Path, id: str) -> None:
    """The source notebook of one claim of the small project."""
    lines = "\n".join(f"{name} = {value!r}" for name, value in PARAMETERS.items())
    cells = [
        new_markdown_cell("# A claim"),
        new_code_cell(lines, metadata={"tags": ["parameters"]}),
        new_code_cell(WORK),
        new_code_cell(JUDGE.format(id=id), metadata={"tags": ["nbval-check-output"]}),
    ]
    metadata = {"kernelspec": {"name": "somebody", "display_name": "Somebody's", "language": "python"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata=metadata), path)


def edit_registry(root: Path, change) -> None:
    """Apply `change` to the registry's data and write it back."""
    path = root / "notebooks" / "claims.yml"
    data = yaml.safe_load(path.read_text())
    change(data)
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def make_project(root: Path) -> Project:
    """The small project; its claims are aa1-first, aa2-second (with notebooks) and aa3-later (without)."""
    claims = {}
    for id in ("aa1-first", "aa2-second"):
        claims[id] = {**CLAIM, "notebook": f"notebooks/beyond/{id}.ipynb"}
        write_notebook(root / claims[id]["notebook"], id)
    claims["aa3-later"] = {**CLAIM, "notebook": None, "waiting": "needs probes"}
    registry = {"papers": {"beyond": PAPER}, "claims": claims}
    # Copied through JSON, since YAML would write what two claims share as one anchored node.
    (root / "notebooks" / "claims.yml").write_text(yaml.safe_dump(json.loads(json.dumps(registry)), sort_keys=False))
    chapters = [{"file": f"notebooks/beyond/{id}"} for id in ("aa1-first", "aa2-second")]
    (root / "_toc.yml").write_text(yaml.safe_dump({"root": "book/index", "parts": [{"chapters": chapters}]}))
    return Project(root)


# An example of every intervention, at 16 patches; tests/capture/test_capture.py fails where one is missing.
NEURONS = [(0, 1), (0, 5), (1, 2)]
INTERVENTIONS = {
    interventions.appended_registers: [{"count": 2, "init": init} for init in interventions.INITS],
    interventions.dropped_patches: [{"rate": 0.5, "mode": mode} for mode in interventions.MODES],
    interventions.moved_positions: [{"sources": list(range(15, -1, -1))}],
    registers.test_time_registers: [{"neurons": NEURONS, "count": 2, "init": init} for init in interventions.INITS],
    registers.ablated_neurons: [{"neurons": NEURONS}],
}


def examples(count: int) -> settings:
    """So many examples of a property, or more by the profile."""
    return settings(max_examples=count * TIMES[PROFILE])


@pytest.fixture
def project(tmp_path):
    """A small project of one's own."""
    return make_project(tmp_path / "project")


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Where `datasets` puts the tables that it reads: a folder of the test's own."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def entering(backbone, x):
    """The tokens (image, token, width) that block 0 gets."""
    seen = []
    with backbone.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])), torch.inference_mode():
        backbone(x)
    return seen[0].clone()
