"""The page of a claim in a run: what decided it, what it means, its figures, limits and method.

It is made of the stored result, the executed notebook and two templates. Nothing is computed again.
"""

import base64
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import nbformat
import yaml
from nbformat import NotebookNode

from helpers.book import downloads
from helpers.book.decisions import Decisions, axes
from helpers.book.render import render
from helpers.claims.history import Entry
from helpers.claims.result import MIME, Claim, Result

UP = "../../../"  # from `book/runs/<run>/` to the root of the book
KEY = "key"  # tags the cell that draws the picture of the first screen
# Kind of a picture -> how its file ends, and how a notebook holds it.
PICTURES = {"image/svg+xml": ("svg", str.encode), "image/png": ("png", base64.b64decode)}
CODE_TAGS = {"hide-input", "hide-output", "hide-cell", "remove-input"}
HOW_TO_READ = "## How to read this"


def page(
    claim: Claim,
    run: str,
    data: Mapping,
    notebook: NotebookNode,
    reading: str = "",
    calibration: Mapping | None = None,
    place: str = "",
    changes: Sequence[Entry] = (),
) -> tuple[NotebookNode, dict | None]:
    """The page of the stored result `data`; lies in `book/runs/<run>/`.

    Args:
        notebook: executed in this run.
        reading: the commentary, as Markdown with its numbers filled in.
        calibration: the claim's result on the controls.
        place: where its downloads lie, below `data/`; in the folder of the run unless given.
        changes: the entries of the log that changed its criterion.

    Returns:
        The page as a notebook, and its `key_picture`, which lies beside it.
    """
    found, parameters = Decisions(claim, data), data.get("parameters", {})
    picture = key_picture(notebook, claim.id)
    figures = [_without_code(cell) for cell in notebook.cells if _is_shown(cell)]
    about = {
        "claim": claim,
        "run": run,
        "found": found,
        "stored": found.stored,
        "result": found.result,
        "changes": changes,
        "axes": axes(found.rows, shares=True),
        "picture": picture,
        "images": downloads.images_of(data),
        "data": f"{UP}{downloads.FOLDER}/{place or run}/{claim.id}",
        "command": rerun(claim, run, parameters),
        "reading": reading,
        "has_figures": bool(figures),
        "controls": Result.from_json(claim, calibration).calibration() if calibration else {},
        "how_to_read": next((x.source for x in notebook.cells if _says_how_to_read(x)), ""),
        "parameters": parameters,
        "code": code(notebook),
    }
    top, rest = (
        nbformat.v4.new_markdown_cell(render(f"claim_page_{part}.md.j2", **about))
        for part in ("top", "rest")
    )
    whole = nbformat.v4.new_notebook(cells=[top, *figures, rest], metadata=notebook.metadata)
    return whole, picture


def rerun(claim: Claim, run: str, parameters: Mapping) -> str:
    """The command that runs this again with the same parameters.

    What the notebook's defaults and the profile called `run` give is left out, and so is what the
    notebook has no more or has as another kind of value.
    """
    known = {**claim.parameters, **claim.profiles.get(run, {})}
    words = ["python", "-m", "helpers", "run", claim.id, "--run", run]
    for name, value in parameters.items():
        is_known = name in known and isinstance(value, list) == isinstance(known[name], list)
        if is_known and value != known[name]:
            words += ["-p", f"{name}={_argument(value)}"]
    return shlex.join(words)


def _argument(value: object) -> str:
    """A parameter's value on one line, as `-p NAME=VALUE` takes it."""
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return ",".join(str(item) or "''" for item in value)
    if isinstance(value, bool | list):
        value = yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n")
    return " ".join(str(value).split())


def code(notebook: NotebookNode) -> str:
    """The notebook's text and code, without what the page shows elsewhere, as Markdown."""
    parts = []
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown" and not _says_how_to_read(cell):
            # A fold may hold no headings.
            parts.append(re.sub(r"^#+ +(.*)$", r"**\1**", cell.source, flags=re.MULTILINE))
        elif cell.cell_type == "code" and not {"parameters", "injected-parameters"} & _tags(cell):
            parts.append(f"````python\n{cell.source}\n````")
            printed = "".join(_printed(cell)).rstrip()
            parts += [f"````text\n{printed}\n````"] if printed else []
    return "\n\n".join(parts)


def key_picture(notebook: NotebookNode, id: str) -> dict | None:
    """The picture of the cell that is tagged so, else the first there is.

    Returns:
        name and content of its file, and alt and caption, what is said of it.
    """
    for cell in sorted(notebook.cells, key=lambda cell: KEY not in _tags(cell)):
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            for kind in (kind for kind in PICTURES if kind in data):
                about, read = cell.metadata.get("mystnb", {}), PICTURES[kind][1]
                return {
                    "name": f"{id}.key.{PICTURES[kind][0]}",
                    "content": read(data[kind]),
                    "alt": about.get("image", {}).get("alt", ""),
                    "caption": about.get("figure", {}).get("caption", ""),
                }
    return None


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def _says_how_to_read(cell: NotebookNode) -> bool:
    return cell.source.startswith(HOW_TO_READ)


def _printed(cell: NotebookNode) -> Iterable[str]:
    """The text that a cell printed, unless it shows something better."""
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            yield output.text
        elif set(output.get("data", ())) == {"text/plain"}:
            yield output.data["text/plain"] + "\n"


def _is_shown(cell: NotebookNode) -> bool:
    """Whether a cell shows a figure or a table, but neither the claim's card nor the result."""
    kinds = {kind for output in cell.get("outputs", ()) for kind in output.get("data", ())}
    if kinds & {*PICTURES, "text/html"}:
        return True
    return "text/markdown" in kinds and MIME not in kinds and "load_registry()[" not in cell.source


def _without_code(cell: NotebookNode) -> NotebookNode:
    """A cell of which only the outputs are seen."""
    tags = sorted(_tags(cell) - CODE_TAGS | {"remove-input"})
    return nbformat.from_dict({**cell, "metadata": {**cell.metadata, "tags": tags}})
