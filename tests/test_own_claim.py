"""A claim made from notebooks/README.md, as it stands there, runs and is judged as it says."""

import re
import shutil
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Result, read_result
from helpers.cli import main

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
BLOCKS = re.findall(
    r"^```(\w+)\n(.*?)^```$", (NOTEBOOKS / "README.md").read_text("utf-8"), flags=re.M | re.S
)
TAGS = {"models = ": "parameters", "result = ": "nbval-check-output"}


def cell(source: str) -> nbformat.NotebookNode:
    """A cell with the tag that the page says."""
    tags = [tag for start, tag in TAGS.items() if source.startswith(start)]
    return new_code_cell(source.strip(), metadata={"tags": tags})


def test_the_claim_of_the_page_runs(tmp_path):
    entry, term = (text for kind, text in BLOCKS if kind == "yaml")
    shutil.copytree(NOTEBOOKS / "claims", tmp_path / "notebooks" / "claims")
    (tmp_path / "notebooks" / "claims" / "own.yml").write_text(entry, encoding="utf-8")
    shutil.copy(NOTEBOOKS / "profiles.yml", tmp_path / "notebooks")
    terms = (NOTEBOOKS / "terms.yml").read_text(encoding="utf-8")
    (tmp_path / "notebooks" / "terms.yml").write_text(terms + term, encoding="utf-8")
    (tmp_path / "notebooks" / "own").mkdir()
    notebook = new_notebook(cells=[cell(text) for kind, text in BLOCKS if kind == "python"])
    nbformat.write(notebook, tmp_path / "notebooks" / "own" / "ab1-borders.ipynb")

    project = Project(tmp_path)
    assert main(["run", "ab1-borders"], project.root) == 0

    claim = project.registry["ab1-borders"]
    data = read_result(project.runs / CONTROLS / "ab1-borders.json")
    calibration = Result.from_json(claim, data).calibration()
    assert {model: want for model, (_, want) in calibration.items()} == claim.expected
    assert all(verdict == want for verdict, want in calibration.values())
