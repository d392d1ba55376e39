"""Packages, pins and versions: pyproject.toml, requirements.lock, environment.yml, CI, citation."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement

from helpers.measures import norms

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKED = ("book", "data", "clip", "test")  # the extras that `make lock` resolves
DIRECT = [*PROJECT["dependencies"], *(text for extra in LOCKED for text in EXTRAS[extra])]
LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line[0] != "#"]


def name(requirement):
    """The normalised name at the start of a requirement (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_lock_pins_every_direct_dependency_within_its_bounds():
    pins = [re.fullmatch(r"([a-z0-9-]+)==([\w.!+]+)( ; .+)?", line).groups() for line in LINES]
    bounds = {name(text): Requirement(text).specifier for text in DIRECT}
    assert bounds.keys() <= {package for package, *_ in pins}
    for package, version, _ in pins:
        assert package not in bounds or bounds[package].contains(version), package


def test_environment_yml_has_the_pins_of_the_lock():
    *others, last = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert f"python {PROJECT['requires-python']}" in others
    first, *pins, end = last["pip"]
    assert (first, end) == ("-c requirements.lock", "-e .")
    direct = {name(text) for text in DIRECT}
    # A failure shows the lines to add and to remove.
    assert set(pins) == {line for line in LINES if name(line) in direct}


def test_this_environment_is_the_locked_one():
    for pin in map(Requirement, LINES):
        if pin.marker is None or pin.marker.evaluate():
            assert pin.specifier.contains(metadata.version(pin.name), prereleases=True), pin


def test_wheel_has_every_package():
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "helpers").rglob("*.py")}
    packages = {".".join(folder.parts) for folder in folders}
    assert set(SETTINGS["tool"]["setuptools"]["packages"]) == packages


def test_the_core_imports_its_own_dependencies_alone():
    """Without an extra, models are loaded, captured, measured, changed, drawn and diagnosed."""
    core = {name(text) for text in PROJECT["dependencies"]} | {"matplotlib-inline", PROJECT["name"]}
    distributions = metadata.packages_distributions()
    for path in (ROOT / "helpers").rglob("*.py"):
        if path.relative_to(ROOT).parts[1] in ("book", "run"):
            continue
        for node in ast.parse(path.read_text()).body:
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [x.name for x in node.names] if isinstance(node, ast.Import) else []
            for found in (distributions.get(x.partition(".")[0], []) for x in modules):
                assert not found or core & {*map(name, found)}, f"{path}: {found}"


def test_workflow_does_what_the_makefile_does():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = {step["run"] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert {".ci/run", "make release"} < commands
    script = (ROOT / ".ci" / "run").read_text()
    assert "\nmake test\n" in script
    notebooks = re.findall(r"notebooks/\S+", script.partition("\nATEN_CPU_CAPABILITY=default ")[2])
    assert len(notebooks) == 3 and all((ROOT / path).is_file() for path in notebooks)


def test_citation_and_change_log_have_the_version():
    """Above the versions, which are newest first, is what is to come."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    first, *heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [re.fullmatch(r"\[([\d.]+)\] - (\d{4}-\d\d-\d\d)", head).groups() for head in heads]
    assert first == "[Unreleased]"
    assert versions[0] == (PROJECT["version"], str(citation["date-released"]))
    assert [date for _, date in versions] == sorted((date for _, date in versions), reverse=True)


def test_shapes_in_signatures_are_checked_here(request):
    """Under pytest alone, so a notebook pays nothing for it."""
    checked = request.config.getoption("jaxtyping_packages").replace(".", "/").split(",")[:-1]
    for path in [*ROOT.glob("helpers/**/*.py"), *ROOT.glob("training/*.py")]:
        if re.search(r"^from (jaxtyping|\S*_arrays) import ", path.read_text(), re.M):
            place = path.relative_to(ROOT).with_suffix("").as_posix()
            assert any(f"{place}/".startswith(f"{one}/") for one in checked), place
    with pytest.raises(Exception, match="[Tt]ype-check error"):
        norms.outliers(torch.zeros(3), "fixed:1")
    code = "import sys, helpers.measures.norms; sys.exit('beartype' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
