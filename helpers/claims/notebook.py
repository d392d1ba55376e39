"""A notebook's file and the parameters in it."""

import ast
from io import BytesIO
from pathlib import Path

import nbformat

from helpers.files import read_content


def read_notebook(file: Path | BytesIO) -> nbformat.NotebookNode:
    """The notebook at a path, compressed or not, or of a file's content."""
    return nbformat.read(BytesIO(read_content(file)) if isinstance(file, Path) else file, 4)


def notebook_parameters(path: Path) -> dict:
    """Names and values in the notebook's cell tagged `parameters`.

    Raises ValueError unless each line is `name = literal`.
    """
    cells = [x for x in read_notebook(path).cells if "parameters" in x.metadata.get("tags", ())]
    if len(cells) != 1:
        raise ValueError(f"{path.name}: {len(cells)} cells are tagged 'parameters'; tag one")
    try:
        lines = ast.parse(cells[0].source).body
        return {line.targets[0].id: ast.literal_eval(line.value) for line in lines}
    except (AttributeError, ValueError, SyntaxError):
        raise ValueError(
            f"{path.name}: its parameters cell may hold only lines of the form `name = literal`"
        ) from None
