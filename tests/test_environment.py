import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, SETUPTOOLS = SETTINGS["project"], SETTINGS["tool"]["setuptools"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKED = ("book", "data", "clip", "test")  # the extras that `make lock` resolves
DIRECT = [
    *PROJECT["dependencies"],
    *(requirement for extra in LOCKED for requirement in EXTRAS[extra]),
]


def name(requirement):
    """The normalised name at the start of a requirement (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def locked():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def conda():
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def test_lock_pins_everything_exactly():
    for line in locked():
        assert re.fullmatch(r"[a-z0-9-]+==[\w.!+]+( ; .+)?", line), line


def test_lock_names_every_direct_dependency():
    assert {name(requirement) for requirement in DIRECT} <= {name(line) for line in locked()}


def test_optional_parts_are_tested():
    assert set(EXTRAS["ray"]) <= set(EXTRAS["test"])


def test_lock_is_made_with_the_extras_that_are_tested():
    recipe = (ROOT / "Makefile").read_text().partition("\nlock:")[2].partition("\n\n")[0]
    assert re.findall(r"--extra (\w+)", recipe) == list(LOCKED)
    # The others are no part of it: the cluster is among the tests, peers and mutants have
    # environments of their own.
    assert EXTRAS.keys() - set(LOCKED) == {"ray", "peers", "mutants"}


def test_wheel_has_every_package():
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "helpers").rglob("*.py")
    }
    assert set(SETUPTOOLS["packages"]) == folders


def test_lock_keeps_the_bounds_of_pyproject():
    packaging = pytest.importorskip("packaging.requirements")
    bounds = {name(text): packaging.Requirement(text).specifier for text in DIRECT}
    for line in locked():
        version = line.split(" ;")[0].split("==")[1]
        assert name(line) not in bounds or bounds[name(line)].contains(version), line


def test_environment_yml_has_the_pins_of_the_lock():
    pip = next(entry["pip"] for entry in conda() if isinstance(entry, dict))
    assert pip[0] == "-c requirements.lock" and pip[-1] == "-e ."
    direct = {name(requirement) for requirement in DIRECT}
    # A failure shows the lines to add and to remove.
    assert set(pip[1:-1]) == {line for line in locked() if name(line) in direct}


def test_environment_yml_has_the_python_of_pyproject():
    python = next(
        entry for entry in conda() if isinstance(entry, str) and entry.startswith("python")
    )
    assert python.removeprefix("python ") == PROJECT["requires-python"]


def test_this_environment_is_the_locked_one():
    packaging = pytest.importorskip("packaging.requirements")
    for line in locked():
        requirement = packaging.Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier.contains(
                metadata.version(requirement.name), prereleases=True
            ), line


def test_workflow_does_what_the_makefile_does():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]
    commands = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert commands == {".ci/run", "make book"}
    script = (ROOT / ".ci" / "run").read_text()
    assert "\nmake test\n" in script
    notebooks = re.findall(r"notebooks/\S+", script.partition("\nATEN_CPU_CAPABILITY=default ")[2])
    assert len(notebooks) == 3 and all((ROOT / path).is_file() for path in notebooks)
    versions = [f"3.{minor}" for minor in (11, 12, 13)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions


def test_citation_has_the_version_and_licence_of_pyproject():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_change_log_begins_with_the_version_and_its_date():
    """Each version has a date that is no later than that of the next, as Keep a Changelog asks;
    above them is what is to come."""
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [
        re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", head).groups()
        for head in heads[1:]
    ]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert heads[0] == "[Unreleased]" and versions[0] == (
        PROJECT["version"],
        str(citation["date-released"]),
    )
    assert [date for _, date in versions] == sorted((date for _, date in versions), reverse=True)


def test_licence_is_the_text_that_it_is_called():
    text = (ROOT / "LICENSE").read_text().split()
    assert (
        " ".join(text[:4]) == "Apache License Version 2.0,"
        and text[-3:] == ["under", "the", "License."]
        and len(text) > 1400
    )


@pytest.fixture
def clone(tmp_path):
    """The Makefile with a Python that only notes how it was called, so that an environment takes no
    time."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / "requirements.lock").write_text("one==1\n")
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/bash
        cd {tmp_path}
        case "$*" in
          "-m venv .venv") mkdir -p .venv/bin && cp python .venv/bin/python && echo made >> log ;;
          *requirement*) echo installed >> log; test ! -e broken ;;
        esac
        """
    )
    python.chmod(0o755)

    def make_env():
        done = subprocess.run(
            ["make", "env", f"PYTHON={python}"], cwd=tmp_path, capture_output=True, text=True
        )
        log = (tmp_path / "log").read_text().split() if (tmp_path / "log").exists() else []
        (tmp_path / "log").unlink(missing_ok=True)
        return done.returncode, log

    return tmp_path, make_env


def test_environment_is_reused_while_the_lock_is_unchanged(clone):
    folder, make_env = clone
    assert make_env() == (0, ["made", "installed"])
    assert make_env() == (0, [])
    (folder / "requirements.lock").touch()  # as a checkout does
    assert make_env() == (0, [])
    (folder / "requirements.lock").write_text("one==2\n")
    (folder / ".venv" / "old").touch()
    assert make_env() == (0, ["made", "installed"])
    assert not (folder / ".venv" / "old").exists()


def test_half_made_environment_is_made_anew(clone):
    folder, make_env = clone
    (folder / "broken").touch()
    assert make_env() == (2, ["made", "installed"])
    (folder / "broken").unlink()
    assert make_env() == (0, ["made", "installed"])


def test_cuda_is_left_out_where_an_index_of_cpu_builds_is_named(clone):
    folder, _ = clone
    (folder / "requirements.lock").write_text((ROOT / "requirements.lock").read_text())
    command = ["make", "-n", "env", f"PYTHON={folder / 'python'}"]
    told = [subprocess.run(
        [*command, *more], cwd=folder, capture_output=True, text=True
    ).stdout for more in ([], ["CPU_INDEX=URL"])]  # fmt: skip
    assert "--requirement requirements.lock" in told[0] and "grep" not in told[0]
    (line,) = [line for line in told[1].splitlines() if "--extra-index-url URL" in line]
    chosen, _, pip = line.partition(" | ")
    assert "--requirement /dev/stdin" in pip
    left = subprocess.run(chosen, shell=True, cwd=folder, capture_output=True, text=True).stdout
    gone = {one.partition("==")[0] for one in {*locked()} - {*left.splitlines()}}
    assert "torch==" in left and "nvidia-cublas" in gone
    assert all(one.startswith(("cuda-", "nvidia-", "triton")) for one in gone)


@pytest.mark.parametrize("python", ["no-such-python", "/bin/false"])
def test_no_supported_python(clone, python):
    folder, _ = clone
    done = subprocess.run(
        ["make", "env", f"PYTHON={python}"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 2 and not (folder / ".venv").exists()
    assert done.stderr.startswith("error: no Python 3.11 to 3.13 with venv was found")


def test_shapes_in_signatures_are_checked_here(request):
    """Under pytest alone, so a notebook pays nothing for it; also in the workers of
    pytest-xdist."""
    checked = request.config.getoption("jaxtyping_packages").replace(".", "/").split(",")[:-1]
    for path in ROOT.glob("helpers/**/*.py"):
        if re.search(r"^from (jaxtyping|\S*_arrays) import ", path.read_text(), re.M):
            place = path.relative_to(ROOT).with_suffix("").as_posix()
            assert any(f"{place}/".startswith(f"{one}/") for one in checked), place
    torch = pytest.importorskip("torch")
    from helpers.measures import norms

    with pytest.raises(Exception, match="[Tt]ype-check error"):
        norms.outliers(torch.zeros(3), "fixed:1")
    code = "import sys, helpers.measures.norms; sys.exit('beartype' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
