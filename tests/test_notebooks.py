"""What every source notebook keeps to. Its text is compared with fresh one by nbval, its numbers by
nbval_controls.py."""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import cache

import nbformat
import pytest

from helpers.claims.notebook import bundle, read_notebook
from helpers.claims.project import Project
from helpers.claims.result import Result
from helpers.figures.data import FIGURE
from helpers.run.check import absolute_path

PROJECT = Project()
SOURCES = sorted(PROJECT.root.glob("notebooks/*/*.ipynb"))
EXECUTED = sorted({path.with_suffix(".ipynb") for path in PROJECT.results()})
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


@cache
def code(path):
    return [cell for cell in read_notebook(path).cells if cell.cell_type == "code"]


def outputs(path):
    return [output for cell in code(path) for output in cell.outputs]


def is_picture(output):
    return not {"image/svg+xml", "image/png"}.isdisjoint(output.get("data", ()))


def tagged(path, tag):
    return [cell for cell in code(path) if tag in cell.metadata.get("tags", ())]


@every_source
def test_is_a_valid_notebook_of_at_most_21_cells_and_of_no_one_machine(path):
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert len(notebook.cells) <= 21
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    assert not absolute_path(path)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert not [cell for cell in notebook.cells if {"papermill", "execution"} & set(cell.metadata)]


@every_source
def test_stored_outputs_are_complete(path):
    """nbval skips the comparison of a cell whose execution count is null, so a stripped notebook
    would always pass."""
    assert [cell.execution_count for cell in code(path)] == list(range(1, len(code(path)) + 1))
    assert not [output for output in outputs(path) if output.output_type == "error"]
    # Warnings and progress bars must be silent.
    assert not [output for output in outputs(path) if output.get("name") == "stderr"]
    for tag in ("nbval-ignore-output", "nbval-skip", "nbval-raises-exception"):
        assert not tagged(path, tag)


@pytest.mark.parametrize("path", [*SOURCES, *EXECUTED], ids=lambda path: path.stem)
def test_every_drawing_can_be_drawn(path):
    for output in outputs(path):
        if drawing := output.get("data", {}).get("image/svg+xml"):
            assert ET.fromstring(drawing).tag.endswith("svg")


@every_source
def test_every_figure_carries_its_numbers_and_no_axis_is_named_as_the_code_names_a_value(path):
    """What a criterion tests has a label in notebooks/terms.yml; `iou_top` tells a reader
    nothing."""
    criterion = PROJECT.registry[path.stem].criterion
    raw = {test.value.replace("_", " ") for test in criterion.all_tests if "_" in test.value}
    drawn = [output.data[FIGURE] for output in outputs(path) if is_picture(output)]
    axes = [one["axis"] for data in drawn for one in json.loads(data)]
    texts = [text.split(" (")[0].replace("_", " ") for axis in axes for text in axis.values()]
    assert texts and not raw.intersection(texts)


@every_source
def test_what_the_code_may_do(path):
    """It imports the package alone, and all images are among the sources: the laboratory loads
    them and names them; what is loaded by hand is given to `lab.use`."""
    (parameters,) = tagged(path, "parameters")
    assert "models" in parameters.source
    source = "\n".join(cell.source for cell in code(path))
    assert "sys.path" not in source and not re.search(r"^\s*[!%]", source, flags=re.M)
    assert "lab.use(" in source or not re.search(r"\bload_(images|train_test|segments)\(", source)


@every_source
def test_figures_say_what_they_show(path):
    figures = [cell for cell in code(path) if any(map(is_picture, cell.outputs))]
    assert figures
    for cell in figures:
        assert len(cell.outputs) == 1, "end it with ; or what it returns is a second figure"
        about = cell.metadata.mystnb
        caption = about.figure.caption
        assert len(about.image.alt) > 20 and len(caption) > 20, cell.source
        if re.search(r"\bnorms?\b", caption):
            assert "LayerNorm" in caption, "say where the norm is taken"
        for interval in re.findall(r"\bintervals?\b.{0,40}", caption):
            over = re.search(r"over (?:images|classes|trainings)", interval)
            assert over or interval.startswith("intervals are those"), "say what it is over"


@every_source
def test_the_printed_verdict_follows_from_the_values_and_the_controls_behave(path):
    checked = tagged(path, "nbval-check-output")
    (printed,) = [cell for cell in checked if cell.source.endswith("print(result)")]
    claim, stored = PROJECT.registry[path.stem], bundle(nbformat.read(path, 4))
    result = Result.from_json(claim, stored)
    assert printed.outputs[0].text == f"{result}\n"
    assert result.rejudged().to_json() == stored
    given = {control: verdict for control, (verdict, _) in result.calibration().items()}
    assert given == claim.expected


def test_a_broken_helper_fails_a_notebook(tmp_path):
    """The same comparison as in `make test`, on a copy of the package with one sign changed."""
    for folder in ("helpers", "notebooks"):
        shutil.copytree(PROJECT.root / folder, tmp_path / folder)
    for file in ("pyproject.toml", "requirements.lock", "tests/nbval_controls.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT.root / file, tmp_path / file)
    (notebook,) = (tmp_path / "notebooks").glob("*/so2-layer-norms.ipynb")

    helper = tmp_path / "helpers" / "measures" / "stats.py"
    line = "value = float(values.mean())"
    assert helper.read_text().count(line) == 1
    # A factor that leaves every verdict as it is.
    helper.write_text(helper.read_text().replace(line, line.replace("float", "1.002 * float")))
    plugins = ["-o", "addopts=", "-p", "nbval_controls", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, str(notebook)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    nbval = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    # All cells print what is stored: only the numbers differ.
    assert nbval.returncode == 1 and "1 failed" in nbval.stdout, nbval.stdout
    assert "numbers that differ from so2-layer-norms.numbers.json" in nbval.stdout
    assert "so2-layer-norms.ipynb::numbers" in nbval.stdout
