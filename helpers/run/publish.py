"""From a run of one's own to a published one: its results move from `_build/runs` to `book/runs`,
whatever they say.
"""

import json
import lzma
import re
from pathlib import Path

from helpers.claims.notebook import read_notebook
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import IMAGES_SUFFIX, read_result
from helpers.files import compressed, write_bytes
from helpers.run import check
from helpers.run.parameters import check_replaced, check_run, texts_in

LOCAL_SETS = ("folder:", "parquet:")  # data sets that another machine cannot find by their name
# A folder in a folder below the root; not after a word or a slash, where it is part of a name or of
# a web address, nor where a Markdown link starts at the root of the book.
_ABSOLUTE = re.compile(r"(?<![\w./~<>-])(?<!]\()/(?:[A-Za-z][\w.-]*/)+\w")


def publish_run(project: Project, run: str, *, force: bool = False) -> list[str]:
    """Move every result of the own run `run`, with its notebook and its commentary, to the
    published ones; return their claims.

    Raises ValueError, before anything moves, where there is no such run, a result is not what its
    values give or names a path of this machine, or, unless `force`, a published result with other
    parameters would be replaced.
    """
    check_run(run)
    paths = sorted((project.own / run).glob("*.json"))
    if run == CONTROLS or not paths:
        raise ValueError(f"there is no run {run!r} in _build/runs to publish")
    target = project.runs / run
    for path in paths:
        try:
            check.check_result(path, project)
            parameters = _check_publishable(path)
            if not force:
                check_replaced(target / path.name, parameters)
        except ValueError as error:
            raise ValueError(f"{run}/{path.name}: {error}; nothing was published") from None
    target.mkdir(parents=True, exist_ok=True)
    for path in paths:
        notebook = path.with_suffix(".ipynb")
        content = lzma.compress(notebook.read_bytes(), preset=9)
        write_bytes(compressed(target / notebook.name), content)
        for suffix in (IMAGES_SUFFIX, ".reading.md", ".json"):  # the result last
            if path.with_suffix(suffix).is_file():
                path.with_suffix(suffix).replace(target / f"{path.stem}{suffix}")
        notebook.unlink()
    return [path.stem for path in paths]


def absolute_path(path: Path) -> bool:
    """Whether the code or a text output of a notebook names a folder of one machine."""
    texts = []
    for cell in read_notebook(path).cells:
        texts.append(cell.source)
        for output in cell.get("outputs", ()):
            shown = {**output, **output.get("data", {})}
            texts += [shown.get(kind, "") for kind in ("text", "text/plain", "text/markdown")]
            texts += output.get("traceback", ())
    return any(map(_ABSOLUTE.search, texts))


def _check_publishable(path: Path) -> dict:
    """The parameters of a result; ValueError where it names a place of this machine."""
    result = read_result(path)
    named = texts_in([*result["parameters"].values()])
    if local := [x for x in named if x.startswith(LOCAL_SETS)]:
        raise ValueError(
            f"{local[0]!r} is on no other machine; name data as hf:OWNER/NAME, or as "
            "data:NAME/SPLIT, which the folder in REGISTERS_DATA holds"
        )
    if _ABSOLUTE.search(json.dumps(result)) or absolute_path(path.with_suffix(".ipynb")):
        raise ValueError("it holds an absolute path of this machine")
    return result["parameters"]
