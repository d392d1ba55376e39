"""What every source notebook keeps to. Its stored outputs are compared with fresh ones by nbval (see pyproject.toml)."""

import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

from helpers import check
from helpers.claims import Result, rejudge
from helpers.runs import Project, bundle

PROJECT = Project()
SOURCES = sorted(PROJECT.root.glob("notebooks/*/*.ipynb"))
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def code(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def tagged(path, tag):
    return [cell for cell in code(path) if tag in cell.metadata.get("tags", ())]


@every_source
def test_is_a_valid_notebook_of_at_most_20_cells(path):
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 20
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")


@every_source
def test_stored_outputs_are_complete(path):
    """nbval skips the comparison of a cell whose execution count is null, so a stripped notebook would always pass."""
    assert [cell.execution_count for cell in code(path)] == list(range(1, len(code(path)) + 1))
    outputs = [output for cell in code(path) for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"], "warnings and progress bars must be silent"
    assert not [tag for tag in ("nbval-ignore-output", "nbval-skip", "nbval-raises-exception") if tagged(path, tag)]


@every_source
def test_something_is_compared(path):
    checked = tagged(path, "nbval-check-output")
    assert checked and all(cell.outputs for cell in checked)


@every_source
def test_one_parameters_cell(path):
    (parameters,) = tagged(path, "parameters")
    assert "models" in parameters.source


@every_source
def test_only_imports_the_package(path):
    source = "\n".join(cell.source for cell in code(path))
    assert "sys.path" not in source and "%load_ext" not in source and not re.search(r"^\s*[!%]", source, flags=re.M)
    assert "helpers" in source


@every_source
def test_nothing_of_one_machine(path):
    assert not check.absolute_path(path)
    notebook = nbformat.read(path, 4)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert not [cell for cell in notebook.cells if {"papermill", "execution"} & set(cell.metadata)]


@every_source
def test_figures_say_what_they_show(path):
    figures = [cell for cell in code(path) if any("image/png" in output.get("data", ()) for output in cell.outputs)]
    assert figures
    for cell in figures:
        assert len(cell.metadata.mystnb.image.alt) > 20, cell.source
        assert len(cell.metadata.mystnb.figure.caption) > 20, cell.source
        if re.search(r"\bnorms?\b", cell.metadata.mystnb.figure.caption):
            assert "LayerNorm" in cell.metadata.mystnb.figure.caption, "say where the norm is taken"


@every_source
def test_stored_verdict_follows_from_the_values_and_the_controls_behave(path):
    claim, stored = PROJECT.registry[path.stem], bundle(nbformat.read(path, 4))
    assert rejudge(claim, stored).to_json() == stored
    found = Result.from_json(claim, stored).calibration()
    assert {control: verdict for control, (verdict, _) in found.items()} == claim.expected


@pytest.mark.skipif(not SOURCES, reason="no source notebooks")
def test_a_broken_helper_fails_a_notebook(tmp_path):
    """The same comparison as in `make test`, on a copy of the package with one sign changed."""
    for folder in ("helpers", "notebooks"):
        shutil.copytree(PROJECT.root / folder, tmp_path / folder)
    (notebook,) = (tmp_path / "notebooks").glob("*/so2-layer-norms.ipynb")

    def nbval():
        command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider", str(notebook)]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    right = nbval()
    assert right.returncode == 0, right.stdout
    helper = tmp_path / "helpers" / "measures" / "stats.py"
    line = "values = to_numpy(per_image).astype(np.float64)"
    assert helper.read_text().count(line) == 1
    helper.write_text(helper.read_text().replace(line, line.replace("= to", "= -to")))
    wrong = nbval()
    assert wrong.returncode == 1 and "reference_output == test_output" in wrong.stdout, wrong.stdout
