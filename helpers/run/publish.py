"""From a run of one's own to a published one: its results move from `_build/runs` to `book/runs`,
whatever they say.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import publish, read_published
from helpers.run import check
from helpers.run.parameters import names_in

LOCAL_SETS = ("folder:", "parquet:")  # data sets that another machine cannot find by their name


def publish_run(project: Project, run: str, *, force: bool = False) -> list[str]:
    """Move every result of the own run `run`, with its notebook and its commentary, to the
    published ones; return their claims.

    Raises ValueError, before anything moves, where there is no such run, a result is not intact or
    not what its values give, or names a path of this machine, and, unless `force`, where a
    published result with other parameters would be replaced.
    """
    if run == CONTROLS:
        raise ValueError(
            f"the run {CONTROLS!r} is no finding and is not published; give the name of another"
        )
    paths = sorted((project.own / run).glob("*.json"))
    if not paths:
        named = sorted({path.parent.name for path in project.own_results()})
        remedy = (
            f"choose one of {', '.join(named)}" if named else f"make it with `run ID --run {run}`"
        )
        raise ValueError(f"there is no run {run!r} in _build/runs; {remedy}")
    for path in paths:
        place = path.relative_to(project.root).as_posix()
        for problem in (*check.of_result(project, path), *_local(project, path)):
            raise ValueError(f"{place}: {problem}; nothing was published")
        if not force and (differ := _replaced(project, path)):
            raise ValueError(
                f"{place}: the published result has other parameters ({differ}); give --force to "
                "replace it, or run it under "
                "another name; nothing was published"
            )
    for path in paths:
        result, notebook = read_published(path)
        publish(project.runs / run, path.stem, notebook.decode("utf-8"), result)
        reading = path.with_suffix(".reading.md")
        if reading.is_file():
            os.replace(reading, project.runs / run / reading.name)
        for moved in (path, path.with_suffix(".ipynb")):
            moved.unlink()
    return [path.stem for path in paths]


def other_parameters(old: dict, new: dict) -> str:
    """What differs between the parameters of two results, for people: `n: 5, now 3`."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(
        f"{name}: {_short(old.get(name))}, now {_short(new.get(name))}" for name in names
    )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 80 else f"{text[:76]} ..."


def _replaced(project: Project, path: Path) -> str:
    """The parameters in which the published result of the same run and claim differs.

    '' where there is none, or none.
    """
    try:
        there = read_published(project.runs / path.parent.name / path.name)[0]["parameters"]
    except (OSError, ValueError, KeyError):
        return ""
    return other_parameters(there, read_published(path)[0]["parameters"])


def _local(project: Project, path: Path) -> Iterator[str]:
    """What names a place of this machine in a result or its notebook."""
    result, _ = read_published(path)
    for name, value in names_in(result["parameters"]):
        if value.startswith(LOCAL_SETS):
            yield (
                f"parameter {name} names {value!r}, which no other machine has; run it with data "
                "of the hub (hf:OWNER/NAME), or "
                "with data:NAME/SPLIT, which the folder in REGISTERS_DATA holds"
            )
    if check.names_a_folder(_texts(result)) or check.absolute_path(path.with_suffix(".ipynb")):
        yield "it holds an absolute path of this machine; leave it out of what the notebook prints, and run it again"  # noqa: E501


def _texts(node: object) -> Sequence[str]:
    """Every text in JSON data."""
    if isinstance(node, str):
        return [node]
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [text for child in children for text in _texts(child)]
