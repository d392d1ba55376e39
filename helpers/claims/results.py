"""Results of runs, as notebooks display them and as they lie on disk.

`<id>.json` has a digest of itself and of its notebook.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from helpers.claims import digests
from helpers.claims.criteria import Value
from helpers.claims.result import MIME, Claim, Result, sources_of
from helpers.files import digest_of, locked, write_together
from helpers.names import STUB


def displayed(notebook: Mapping, mime: str) -> list:
    """What an executed notebook displays of one MIME type, in its order."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return [
        json.loads(json.dumps(output["data"][mime]))
        for output in outputs
        if mime in output.get("data", ())
    ]


def bundle(notebook: Mapping) -> dict:
    """The claim's result that an executed notebook displays.

    Raises ValueError unless there is exactly one.
    """
    results = displayed(notebook, MIME)
    if len(results) != 1:
        raise ValueError(
            f"the notebook displays {len(results)} results; it must end with exactly one "
            "claim.judge(...)"
        )
    return results[0]


def rejudge(claim: Claim, data: Mapping) -> Result:
    """The verdict recomputed by today's criterion from the values of a stored result."""
    return claim.judge(
        (Value(**value) for value in data["values"]),
        sources=sources_of(data),
        not_run=data["not_run"],
    )


def read_result(path: Path) -> dict:
    """A run's `<id>.json`, whole and as it was written, with the errors of `read_published`."""
    return read_published(path)[0]


def read_alone(path: Path) -> dict:
    """A result file wherever it lies, without its notebook.

    Raises ValueError where it is no result or was edited by hand.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        intact = result.pop("sha256") == digests.of_json(result)
        if missing := {"id", "run", "verdict", "verdicts", "values", "provenance"} - result.keys():
            raise KeyError(min(missing))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IsADirectoryError):
        raise ValueError("not a readable result; give the file as a run wrote it") from None
    if not intact:
        raise ValueError(
            "was changed after it was written (its sha256 does not fit); give the file as a run "
            "wrote it"
        )
    return result


def read_published(path: Path) -> tuple[dict, bytes]:
    """A run's `<id>.json`, as it was written, and the executed notebook that belongs to it.

    Where they are being published just now, that is waited for.

    Raises ValueError where it is not JSON, was edited by hand, lies in another place than its own,
    or where the executed notebook beside it is missing or not the one it was written with.
    """
    try:
        return _intact(path)
    except ValueError:
        pass
    with locked(path.parent):  # between the two renames of `publish` notebook and result differ
        return _intact(path)


def _intact(path: Path) -> tuple[dict, bytes]:
    """The result at `path` and its notebook, with the errors of `read_published`."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        intact = result.pop("sha256") == digests.of_json(result)
        place, digest = (result["run"], result["id"]), result["provenance"]["notebook"]
        belongs = "/".join(place)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IsADirectoryError):
        raise ValueError("not a readable result; run the claim again with --force") from None
    if not intact:
        raise ValueError(
            "was changed after it was written (its sha256 does not fit); run the claim again with "
            "--force"
        )
    if place != (path.parent.name, path.stem):
        raise ValueError(f"is the result of {belongs}; move it back to its place")
    check_run(path.parent.name)
    notebook = path.with_suffix(".ipynb")
    if not notebook.is_file():
        raise ValueError(f"{notebook.name} is missing beside it; run the claim again")
    content = notebook.read_bytes()
    if digest_of(content) != digest:
        raise ValueError(
            f"{notebook.name} beside it is not the one it was written with; run the claim again "
            "with --force"
        )
    return result, content


def publish(folder: Path, id: str, notebook: str, result: Mapping) -> None:
    """Put the executed notebook and its result into `folder`.

    The result carries its own digest and that of its notebook.

    Raises ValueError for a result of stubs, the models and images of a dry run.
    """
    for source in result["provenance"]["sources"]:
        if source["name"].startswith(STUB):
            raise ValueError(
                f"the result of {id!r} is of a {source['name']!r}, in a dry run; it is no result"
            )
    result = {**result, "sha256": digests.of_json(result)}
    text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_together({folder / f"{id}.ipynb": notebook, folder / f"{id}.json": text})


def check_run(name: str) -> None:
    """Raise ValueError where a run cannot be called so.

    Its name is that of a folder, and stands on pages.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            f"run name {name!r} is not a plain folder name; use letters, digits, '.', '-' and '_', "
            "at most 100"
        )
