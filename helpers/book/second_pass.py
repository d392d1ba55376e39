"""Verdicts of a published run once more, under the instructions of another processor: are they the
same on the real models, too?

A result that is of today's code is compared with what is published; another one, or a pass with
parameters of its own such as fewer images, with a run on this machine's instructions. `python -m
helpers portable ID --run RUN --json book/second-pass.json` adds to what the book shows.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from helpers.book.render import badge
from helpers.claims import numbers
from helpers.claims.markdown import inert, table_of
from helpers.claims.notebook import read_notebook
from helpers.claims.project import Project
from helpers.names import short_names
from helpers.run import check
from helpers.run.parameters import resolve_all
from helpers.run.portable import MACHINES, MOST, PROCESSORS, Setting, missing, outcomes_of

PUBLISHED = "published"


def setting_of(name: str) -> Setting:
    """The processor's setting that is called so.

    Raises ValueError where there is none, or this machine cannot compute so.
    """
    known = {setting.name: setting for setting in PROCESSORS}
    if name not in known:
        raise ValueError(f"unknown setting {name!r}; choose one of {', '.join(known)}")
    if why := missing(known[name]):
        raise ValueError(f"setting {name!r} cannot be had: {why}")
    return known[name]


def second_pass(
    project: Project, run: str, ids: Sequence[str], given: Mapping[str, str], setting: Setting
) -> Iterator[dict]:
    """A row for each claim, those of `ids` or all of the run: run, claim, setting, given (the
    parameters that are other than the run's), n, against (what it is compared with), verdicts (''
    for all models together, or a model -> the two verdicts), worst (the largest
    `numbers.Deviation`, as a dict), seconds (of each setting); or failed, in place of the last
    three.

    Raises ValueError, before anything runs, for what is unknown, and for a claim without a result
    in the run.
    """
    published = [path.stem for path in check.published(project) if path.parent.name == run]
    if not published:
        runs = sorted({path.parent.name for path in check.published(project)})
        raise ValueError(
            f"nothing of run {run!r} is published; choose one of {', '.join(runs) or '(none yet)'}"
        )
    ids = list(ids or published)
    parameters, _ = resolve_all(project, ids, run, given, again=True)
    stale = check.changed(project).get(run, [])
    for id in ids:
        if id not in published:
            raise ValueError(f"claim {id!r} has no result in run {run!r}; publish one first")
    for id in ids:
        first = MACHINES[0] if given or id in stale else None
        about = {
            "run": run,
            "claim": id,
            "setting": setting.name,
            "given": dict(given),
            "n": parameters[id].get("n"),
        }
        about["against"] = first.name if first else PUBLISHED
        yield about | _compared(project, run, id, parameters[id], first, setting)


def read(path: Path) -> list[dict]:
    """The rows that are stored at `path`, none where there is no file.

    Raises ValueError for a file of something else.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} holds something else; name another file, or delete it") from None


def merged(stored: Sequence[Mapping], rows: Sequence[Mapping]) -> dict:
    """What is stored and what was measured now, which takes the place of older rows of the same
    run, claim and setting.
    """
    found = {(row["run"], row["claim"], row["setting"]): row for row in (*stored, *rows)}
    return {"rows": [found[key] for key in sorted(found)]}


def moved(row: Mapping) -> dict[str, list[str]]:
    """The verdicts of a row that are not the same in both passes."""
    return {model: both for model, both in row.get("verdicts", {}).items() if both[0] != both[1]}


def line(row: Mapping) -> str:
    """A row for a terminal."""
    head = f"{row['run']}/{row['claim']}: {row['setting']} beside {row['against']}"
    if "failed" in row:
        return f"{head}: failed, {row['failed']}"
    told = "; ".join(
        f"{model or 'all together'} {before} -> {now}"
        for model, (before, now) in moved(row).items()
    )
    seconds = ", ".join(f"{name} {taken:.0f} s" for name, taken in row["seconds"].items())
    verdicts = f"{len(row['verdicts'])} verdicts, {f'MOVED: {told}' if told else 'none moved'}"
    worst = (
        f"largest deviation {row['worst']['ratio']:.2g} of its tolerance "
        f"({row['worst']['path'] or 'none'})"
    )
    return f"{head}: {verdicts}; {worst}; {seconds}"


def fragment(root: Path) -> str:
    """The tables of the page on other machines, from book/second-pass.json: each result, then the
    verdicts that moved.
    """
    rows = [row for row in read(root / "book" / "second-pass.json") if "failed" not in row]
    if not rows:
        return "No published run has been repeated on other instructions yet."
    lines = [
        {
            "claim": _page(row),
            "n": "" if row["n"] is None else f"{row['n']:,}",
            "first": f"{badge(row['verdicts'][''][0])} {inert(row['against'])}",
            "second": f"{badge(row['verdicts'][''][1])} {inert(row['setting'])}",
            "same verdicts": f"{len(row['verdicts']) - len(moved(row))} of {len(row['verdicts'])}",
            "largest deviation": f"{row['worst']['ratio']:.2g}",
        }
        for row in rows
    ]
    others = [line for row in rows for line in _moved_lines(row)]
    count = sum(len(row["verdicts"]) for row in rows)
    said = f"{count - len(others)} of {count} verdicts are the same."
    return "\n\n".join(
        [
            said,
            table_of(lines, str),
            *(["Those that are not:", table_of(others, str)] if others else []),
        ]
    )


def _page(row: Mapping) -> str:
    """A link to a row's result, from a page in `book/`."""
    return f"[{row['claim']}](runs/{row['run']}/{row['claim']}.ipynb) ({inert(row['run'])})"


def _moved_lines(row: Mapping) -> list[dict[str, str]]:
    """A line for each verdict of a row that is not the same in both passes."""
    models = [model for model in row["verdicts"] if model]
    names = {"": "all together", **dict(zip(models, short_names(models), strict=True))}
    return [
        {
            "claim": _page(row),
            "model": inert(names[model]),
            "first": badge(before),
            "second": badge(now),
        }
        for model, (before, now) in moved(row).items()
    ]


def _compared(
    project: Project, run: str, id: str, parameters: Mapping, first: Setting | None, second: Setting
) -> dict:
    """The part of a row that is measured."""
    sides, seconds = [], {}
    if first is None:
        sides.append(
            numbers.of_notebook(
                read_notebook(project.runs / run / f"{id}.ipynb"), project.registry[id]
            )
        )
    for setting in filter(None, (first, second)):
        start = time.monotonic()
        (outcome,) = outcomes_of(project, replace(setting, parameters=dict(parameters)), [id])
        seconds[setting.name] = round(time.monotonic() - start, 1)
        if "failed" in outcome:
            return {"failed": f"{setting.name}: {outcome['failed']}"}
        sides.append(outcome["numbers"])
    deviations = numbers.compare(*sides)
    worst = deviations[0]._asdict() if deviations else {"path": "", "ratio": 0.0}
    return {
        "verdicts": _verdicts(*sides),
        "worst": worst | {"ratio": min(worst["ratio"], MOST)},
        "seconds": seconds,
    }


def _verdicts(a: Mapping, b: Mapping) -> dict[str, list[str]]:
    """'' or a model -> its two verdicts, for those that were judged in either."""
    own, other = (
        {model: one["verdict"] for model, one in side["models"].items() if one["verdict"]}
        for side in (a, b)
    )
    models = {
        model: [own.get(model, "not judged"), other.get(model, "not judged")]
        for model in dict.fromkeys([*own, *other])
    }
    return {"": [a["verdict"], b["verdict"]], **models}
