"""From a run of one's own to a published one: its results move from `_build/runs` to `book/runs`,
whatever they say.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import IMAGES_SUFFIX, check_run, publish, read_published, read_result
from helpers.run import check
from helpers.run.parameters import names_in
from helpers.run.progress import readable

LOCAL_SETS = ("folder:", "parquet:")  # data sets that another machine cannot find by their name


def publish_run(project: Project, run: str, *, force: bool = False) -> list[str]:
    """Move every result of the own run `run`, with its notebook and its commentary, to the
    published ones; return their claims.

    All of them move or none, and what moves is deleted only once its copy is there and intact.

    Raises ValueError, before anything moves, where there is no such run or it is a link, a result
    is not intact or not what its values give, or names a path of this machine, and, unless `force`,
    where a published result with other parameters would be replaced.
    """
    check_run(run)
    if run == CONTROLS:
        raise ValueError(
            f"the run {CONTROLS!r} is no finding and is not published; give the name of another"
        )
    paths = sorted((project.own / run).glob("*.json"))
    if not paths:
        named = ", ".join(sorted({path.parent.name for path in project.own_results()}))
        remedy = f"choose one of {named}" if named else f"make it with `run ID --run {run}`"
        raise ValueError(f"there is no run {run!r} in _build/runs; {remedy}")
    for path in (project.own / run, project.runs / run, *paths):
        if path.resolve() != path.parent.resolve() / path.name:
            place = path.relative_to(project.root).as_posix()
            raise ValueError(f"{place} is a link; put the files themselves there")
    if (project.own / run).resolve() == (project.runs / run).resolve():
        raise ValueError("_build/runs and book/runs are one place; undo the link between them")
    for path in paths:
        try:
            check.check_result(path, project)
            _check_publishable(project.runs / run, path, force)
        except ValueError as error:
            place = path.relative_to(project.root).as_posix()
            raise ValueError(f"{place}: {error}; nothing was published") from None
    whole = {path.stem: read_published(path) for path in paths}
    target = project.runs / run
    publish(target, whole, small=True)
    for path in paths:
        if read_published(target / path.name) != whole[path.stem]:
            raise OSError(f"{path.name} did not arrive in book/runs/{run}; publish it again")
        reading = path.with_suffix(".reading.md")
        if reading.is_file():
            os.replace(reading, target / reading.name)
        for suffix in (".json", ".ipynb", IMAGES_SUFFIX):
            path.with_suffix(suffix).unlink(missing_ok=True)
    return [path.stem for path in paths]


def other_parameters(old: dict, new: dict) -> str:
    """What differs between the parameters of two results, for people: `n: 5, now 3`."""
    texts = []
    for name in dict.fromkeys([*old, *new]):
        before, now = (json.dumps(one.get(name), ensure_ascii=False) for one in (old, new))
        if before != now:
            texts.append(f"{name}: {before:.80}, now {now:.80}")
    return ", ".join(texts)


def _check_publishable(folder: Path, path: Path, force: bool) -> None:
    """Raise ValueError where a result names a place of this machine, or unless `force` would
    replace one in `folder` with other parameters.
    """
    result = read_result(path)
    for name, value in names_in(result["parameters"]):
        if value.startswith(LOCAL_SETS):
            raise ValueError(
                f"parameter {name} names {value!r}, which no other machine has; run it with data "
                "of the hub (hf:OWNER/NAME), or with data:NAME/SPLIT, which the folder in "
                "REGISTERS_DATA holds"
            )
    if check.names_a_folder(_texts(result)) or check.absolute_path(path.with_suffix(".ipynb")):
        raise ValueError(
            "it holds an absolute path of this machine; leave it out of what the notebook prints, "
            "and run it again"
        )
    there = readable(folder / path.name) or result
    if not force and (differ := other_parameters(there["parameters"], result["parameters"])):
        raise ValueError(
            f"the published result has other parameters ({differ}); give --force to replace it, or "
            "run it under another name"
        )


def _texts(node: object) -> Iterator[str]:
    """Every text in JSON data."""
    if isinstance(node, str):
        yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _texts(child)
