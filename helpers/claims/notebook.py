"""A notebook's file and the cell with its parameters."""

import ast
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import nbformat


def read_notebook(file: Path | BytesIO) -> "nbformat.NotebookNode":
    """The notebook at a path, or of a file's content. Raises ValueError where it is none."""
    import nbformat  # here, since `list` need not wait for it

    try:
        return nbformat.read(file, 4)
    except Exception as error:  # what nbformat raises of broken files has no end of kinds
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(
            f"not a readable notebook ({reason[:100]}); restore it or run the claim again"
        ) from None


def notebook_parameters(path: Path) -> dict:
    """Names and values in the notebook's cell tagged `parameters`.

    Raises ValueError unless each line is `name = literal`.
    """
    cells = [
        cell for cell in read_notebook(path).cells if "parameters" in cell.metadata.get("tags", ())
    ]
    if len(cells) != 1:
        raise ValueError(
            f"{path.name}: {len(cells)} cells are tagged 'parameters'; tag exactly one"
        )
    try:
        return {
            line.targets[0].id: ast.literal_eval(line.value)
            for line in ast.parse(cells[0].source).body
        }
    except (AttributeError, ValueError, SyntaxError):
        raise ValueError(
            f"{path.name}: its parameters cell may hold only lines of the form `name = literal`"
        ) from None
