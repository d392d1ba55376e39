"""The book's pages on how verdicts came about and how far they can be trusted together: the log of
criteria, and the statistics.

`runs` is always run -> claim -> result as `<id>.json` holds it, without the controls. Links lead
from the folder `book/`.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from helpers.book.render import Runs, raw, render
from helpers.claims import history, statistics
from helpers.claims.history import Entry
from helpers.claims.markdown import inert
from helpers.claims.registry import Registry
from helpers.claims.statistics import Judgement

Log = Mapping[str, Sequence[Entry]]
_WORDS = {"applies": "applies when", "needs": "needs a model with", "quantifier": "models"}


def criteria_summary(log: Log) -> str:
    """How many criteria changed, with what in sight, and each change in a table, without its
    reason.
    """
    changes = [(id, *both) for id, own in log.items() for both in pairwise(own)]
    return render(
        "criteria_summary.md.j2",
        seen=history.SEEN,
        first=[own[0] for own in log.values()],
        changes=sorted(changes, key=lambda one: one[2].date),
        difference=_difference,
    )


def criteria_log(registry: Registry, log: Log) -> str:
    """Every state of every criterion, claim by claim."""
    claims = {
        paper.title: [
            claim
            for claim in registry.claims.values()
            if claim.paper == paper.id and claim.id in log
        ]
        for paper in registry.papers.values()
    }
    return render("criteria_log.md.j2", claims=claims, log=log, difference=_difference)


def tests(registry: Registry, runs: Runs) -> dict[str, str]:
    """The fragments of the page on statistics that show tests: `statistics-verdicts`, `-tests` and
    `-resolution`.
    """
    rows = statistics.judgements(registry, runs)
    known = [row for row in rows if row.p is not None]
    if not known:
        names = ("statistics-verdicts", "statistics-tests", "statistics-resolution")
        return dict.fromkeys(names, "No test has been published yet.")
    p_values = [row.p for row in known]
    levels = statistics.levels(p_values)
    alphas = {"": statistics.ALPHA, **levels}
    verdicts = {
        (run, id): {
            name: statistics.judged(registry[id], data, alpha) for name, alpha in alphas.items()
        }
        for run, results in runs.items()
        for id, data in results.items()
    }
    on_models: dict[tuple, dict[str, str]] = {}
    for key, own in verdicts.items():
        for name, result in own.items():
            for one in result.verdicts:
                on_models.setdefault((*key, one["model"]), {})[name] = one["verdict"]
    changed = {
        name: sum(own[name].verdict != own[""].verdict for own in verdicts.values())
        for name in levels
    }
    corrected = zip(*statistics.corrected(p_values), strict=True)
    judged = {
        "rows": rows,
        "corrected": dict(zip(known, corrected, strict=True)),
        "levels": levels,
        "on_models": on_models,
    }
    return {
        "statistics-verdicts": render(
            "statistics_verdicts.md.j2",
            **judged,
            known=known,
            alpha=statistics.ALPHA,
            verdicts=verdicts,
            changed=changed,
        ),
        "statistics-tests": raw(render("statistics_tests.html.j2", **judged)),
        "statistics-resolution": raw(
            render("statistics_resolution.html.j2", known=known, rounded=_rounded)
        ),
    }


def sharing(runs: Runs) -> dict[str, str]:
    """What published verdicts have in common: `statistics-shared`, and in one line for the
    scoreboard `dependence`.
    """
    found = statistics.shared(runs)
    if not found.decided:
        return {"dependence": "", "statistics-shared": "No verdict has been decided yet."}

    def counts(one: tuple[str, tuple[list, list]]) -> list[int]:
        return [len(verdicts) for verdicts in one[1]]

    checkpoints = sorted(found.checkpoints.items(), key=counts, reverse=True)
    runs_of_first = {run for run, _ in checkpoints[0][1][0]}
    about = {
        "checkpoints": checkpoints,
        "total": sum(run in runs_of_first for run, _ in found.decided),
        "images": sorted(found.images.items(), key=lambda one: len(one[1]), reverse=True),
        "lists": list(found.lists.values()),
        "largest": max(found.lists.values(), key=lambda one: len(one[2]), default=None),
    }
    return {
        "dependence": render("dependence.md.j2", **about),
        "statistics-shared": render("statistics_shared.md.j2", **about),
    }


def _difference(before: Entry | None, after: Entry) -> list[str]:
    """What an entry says that the one before did not, a line for each kind.

    All of it where there is none before.
    """
    lines = []
    for kind, (gone, new) in history.changes(before, after).items():
        word = _WORDS.get(kind, kind)
        if kind == "expected":
            lines.append(f"{word}: {_expected(before.expected if before else {}, after.expected)}")
            continue
        for how, criteria in ((", gone", gone), (", new" if before else "", new)):
            if criteria:
                lines.append(f"{word}{how}: {', '.join(f'`{inert(one)}`' for one in criteria)}")
    return lines or ["the same criterion, measured otherwise"]


def _expected(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The expected verdicts that differ, with the controls that have them: `supported, before
    refuted, on control-clean`.
    """
    groups: dict[str, list[str]] = {}
    for control, verdict in after.items():
        if (old := before.get(control)) != verdict:
            groups.setdefault(f"{verdict}, before {old}," if old else verdict, []).append(control)
    return "; ".join(f"{verdict} on {', '.join(controls)}" for verdict, controls in groups.items())


def _rounded(row: Judgement) -> tuple[str, str]:
    """The thresholds of a test, to two digits of how far they lie from its margin."""
    margin = row.test.margin
    distances = [abs(end - margin) for end in row.thresholds if end != margin]
    reach = min(distances, default=0.0)
    places = 2 if not reach else max(0, 1 - math.floor(math.log10(reach)))
    return tuple(
        "never" if math.isinf(x) else f"{x + 0.0:,.{min(places, 9)}f}" for x in row.thresholds
    )
