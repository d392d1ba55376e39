"""A notebook's file: its parameters, and what binds a result to the code: numbers, not hashes.

A result is fresh while its parameters, its criterion and its claim's numbers on the controls are
those of its run.
"""

import ast
import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.files import digest_of_json, read_content

if TYPE_CHECKING:
    import nbformat

    from helpers.claims.project import Project

SUFFIX = ".numbers.json"
SAME = "same_code"  # in such a file: `of_numbers` under earlier defaults, by the code of today's


def read_notebook(file: Path | BytesIO) -> "nbformat.NotebookNode":
    """The notebook at a path, compressed or not, or of a file's content.

    Raises ValueError where it is none.
    """
    import nbformat  # here, since most commands need not wait for it

    try:
        return nbformat.read(BytesIO(read_content(file)) if isinstance(file, Path) else file, 4)
    except Exception as error:  # what nbformat raises of broken files has no end of kinds
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ValueError(
            f"not a readable notebook ({reason[:100]}); restore it or run the claim again"
        ) from None


def notebook_parameters(path: Path) -> dict:
    """Names and values in the notebook's cell tagged `parameters`.

    Raises ValueError unless each line is `name = literal`.
    """
    sources = [cell.source for cell in read_notebook(path).cells if _holds_parameters(cell)]
    if len(sources) != 1:
        raise ValueError(
            f"{path.name}: {len(sources)} cells are tagged 'parameters'; tag exactly one"
        )
    try:
        lines = ast.parse(sources[0]).body
        return {line.targets[0].id: ast.literal_eval(line.value) for line in lines}
    except (AttributeError, ValueError, SyntaxError):
        raise ValueError(
            f"{path.name}: its parameters cell may hold only lines of the form `name = literal`"
        ) from None


def inputs(project: "Project", id: str, parameters: Mapping) -> dict[str, str]:
    """The digests of what binds a run of the claim `id` with these parameters to today's code."""
    digests = {
        "parameters": digest_of_json(parameters),
        "criterion": project.registry[id].criterion.digest,
        "numbers": of_numbers(_stored(project.source(id))),
    }
    return {part: digest[:16] for part, digest in digests.items()}


def other_inputs(project: "Project", data: Mapping) -> list[str]:
    """The inputs of a published result that are not today's."""
    claim, parameters = project.registry[data["id"]], data["parameters"]
    if (profile := claim.profiles.get(data["run"])) is not None:
        # What a run is called it has to be; only on which device it was made is free.
        device = {key: value for key, value in parameters.items() if key == "device"}
        parameters = {**claim.parameters, **profile, **device}
    today = inputs(project, claim.id, parameters)
    return differing(project, claim.id, data["provenance"].get("inputs"), today)


def differing(project: "Project", id: str, made: object, today: Mapping[str, str]) -> list[str]:
    """Which of the inputs that a result was `made` with are not those of `today`.

    Numbers of the same code under earlier defaults (`SAME`) are no others.
    """
    if not isinstance(made, Mapping):  # of a time when it was one digest of all code
        return ["inputs"]
    others = [part for part in today if made.get(part) != today[part]]
    if made.get("numbers") in _stored(project.source(id)).get(SAME, ()):
        others = [part for part in others if part != "numbers"]
    return others


def of_numbers(stored: Mapping) -> str:
    """The digest of the values on the controls among the numbers stored beside a notebook."""
    return digest_of_json(stored["values"])


def _stored(notebook: Path) -> dict:
    """The numbers stored beside it, without values where there are none."""
    beside = notebook.with_suffix(SUFFIX)
    return json.loads(beside.read_text("utf-8")) if beside.is_file() else {"values": {}}


def _holds_parameters(cell: "nbformat.NotebookNode") -> bool:
    return "parameters" in cell.metadata.get("tags", ())
