"""Two runs side by side: verdicts that moved and values that differ in print."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from helpers.claims.project import Project
from helpers.claims.result import Result, read_result
from helpers.settings import nearest

VERDICT = "verdict"  # the name of a verdict among those of values


def compare(project: Project, a: str, b: str) -> pd.DataFrame:
    """What the runs called `a` and `b` both have and say otherwise, in columns of these names.

    A row is a verdict or a value of a claim and a model, '' for the verdict on all of them.
    ValueError where no claim is in both.
    """
    columns = {run: pd.Series(dict(_said(project, run)), dtype=object) for run in (a, b)}
    both = pd.concat(columns, axis=1, join="inner").rename_axis(["claim", "model", "name"])
    if both.empty:
        raise ValueError(f"no claim is in both {a} and {b}")
    return both[both[a] != both[b]].reset_index()


def _said(project: Project, run: str) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Claim, model and name of each verdict and value of a run, with what is printed of it."""
    runs: dict[str, dict[str, Path]] = {}
    for path in (*project.own_results(), *project.results()):  # of the same name: the published
        runs.setdefault(path.parent.name, {})[path.stem] = path
    if run not in runs:
        raise ValueError(f"there is no run {run!r}; {nearest(run, runs)}")
    for id, path in runs[run].items():
        result = Result.from_json(project.registry[id], read_result(path))
        for model, verdict in result.shown.items():
            yield (id, model, VERDICT), verdict
        for value in result.values:
            count = "" if value.n is None else f" (n = {value.n:,})"
            yield (id, value.model, value.name), f"{value}{count}"
