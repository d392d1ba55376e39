"""A notebook's file, the parameters in it, and what it displays when it was executed."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path

import nbformat

from helpers.files import read_content

MIME = "application/vnd.registers.result+json"  # of the result that a notebook displays


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook at a path, compressed or not."""
    return nbformat.reads(read_content(path).decode(), 4)


def notebook_parameters(path: Path) -> dict:
    """Names and values in the one cell tagged `parameters`, whose lines are `name = literal`."""
    cells = read_notebook(path).cells
    (cell,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", ())]
    lines = ast.parse(cell.source).body
    return {line.targets[0].id: ast.literal_eval(line.value) for line in lines}


def displayed(notebook: Mapping, mime: str) -> list:
    """What an executed notebook displays of one MIME type, in its order."""
    shown = [data[mime] for data in _displays(notebook) if mime in data]
    return json.loads(json.dumps(shown))


def bundle(notebook: Mapping) -> dict:
    """The result that an executed notebook displays; ValueError unless it is exactly one."""
    results = displayed(notebook, MIME)
    if len(results) != 1:
        raise ValueError(f"the notebook displays {len(results)} results; it must end with one")
    return results[0]


def refer_to_file(notebook: Mapping) -> None:
    """Leave of the displayed result what is for people; its numbers stand in `<id>.json`."""
    for data in _displays(notebook):
        if MIME in data:
            data[MIME] = {"id": data[MIME]["id"]}


def _displays(notebook: Mapping) -> list[dict]:
    """MIME type -> content of each output that displays something."""
    outputs = (output for cell in notebook["cells"] for output in cell.get("outputs", ()))
    return [output["data"] for output in outputs if "data" in output]
