"""What hand-written pages include, from what is stored: claims and where they stand, criteria and
their history, statistics.

Each fragment is a template in `templates/fragments/`, and all are filled in from the same `values`.
Links lead from the folder `book/`.
"""

import math
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import PurePath
from typing import Any, NamedTuple

from helpers.book import checkpoints
from helpers.book.board import deciding, models_of
from helpers.book.book import KINDS, Book, together
from helpers.book.finding import TRAINED, Decision, Finding, group
from helpers.book.render import environment, render
from helpers.claims import history, statistics
from helpers.claims.claim import ANSWERS, Claim
from helpers.claims.criteria import CONTROL
from helpers.claims.history import Entry
from helpers.claims.markdown import code
from helpers.claims.statistics import Judgement

NEAR = 1.5  # half-widths from its margin within which a test is listed
_KINDS = {"applies": "applies when", "needs": "needs a model with", "quantifier": "models"}

WIDTH, EDGE = 300, 8  # of a row's drawing in pixels, and what is left free at its ends
LAST = 300  # the distance at the ends of the axis; what is beyond is drawn there
TICKS = (-100, -10, -1, 0, 1, 10, 100)


def fragments(known: Mapping) -> dict[str, str]:
    """Every fragment by its name, as Markdown; `known` are the `values` of its book."""
    templates = environment().list_templates(filter_func=lambda name: name.startswith("fragments/"))
    return {PurePath(name).name.partition(".")[0]: render(name, **known) for name in templates}


def values(book: Book) -> dict[str, Any]:
    """What the templates of fragments are filled in from."""
    moved = [
        (found, next(iter(book.repeated(id)), None))
        for own in book.counted.values()
        for id, found in own.items()
        if found.first != found.stored.verdict
    ]
    return {
        "registry": book.registry,
        "runs": book.runs,
        "counts": book.counts,
        "doubtful": book.doubtful,
        "calibration": book.calibration,
        "found": {
            id: {run: own[id] for run, own in book.counted.items() if id in own}
            for id in book.registry.claims
        },
        "log": book.log,
        "changes": [(id, *both) for id, own in book.log.items() for both in pairwise(own)],
        "moved_verdicts": moved,
        "strip": strip(book),
        "forest": forest(book),
        "forest_ticks": TICKS,
        "forest_at": place,
        "ANSWERS": ANSWERS,
        "KINDS": KINDS,
        "SEEN": history.SEEN,
        "TRAINED": TRAINED,
        "difference": difference,
        "rewritten": history.rewritten,
        "rounded": rounded,
        **checkpoints.values(book.project.root),
        **_shared(book),
        **_tests(book),
    }


# ---- Where claims stand


def _judged(book: Book) -> list[tuple[str, str, str, str]]:
    """Run, claim, model and what is shown of it, for each verdict on a model that is no control;
    those on models that were trained here last.
    """
    found = [
        (run, id, model, one.stored.shown[model])
        for run, own in book.counted.items()
        for id, one in own.items()
        for model in one.stored.models
        if not model.startswith(CONTROL)
    ]
    return sorted(found, key=lambda row: group(row[2]) in TRAINED)


def strip(book: Book) -> dict[str, list[tuple[Claim, str, str, Decision | None]]]:
    """Model, or kind of models that were trained here -> each claim that it was judged on, the
    verdict, the first run with it, and the test that gave it to the first such model.
    """
    # Group -> claim -> verdict -> first run and model.
    groups: dict[str, dict[str, dict[str, tuple[str, str]]]] = {}
    for run, id, model, verdict in _judged(book):
        groups.setdefault(group(model), {}).setdefault(id, {}).setdefault(verdict, (run, model))
    rows = {}
    for name, claims in groups.items():
        rows[name] = []
        for id in (id for id in book.registry.claims if id in claims):
            verdict = together(claims[id])
            run, model = claims[id].get(verdict) or next(iter(claims[id].values()))
            test = deciding(book.runs[run][id], [model], verdict)
            rows[name].append((book.registry[id], verdict, run, test))
    return rows


# ---- All claims in one figure: how far the value that decided each one lies from its margin
#
# The unit is half of the value's own 95 % interval: beyond 1, the interval excludes the margin. The
# axis is linear up to 1 and logarithmic beyond. To the right the test holds.


class Row(NamedTuple):
    """A claim in the figure."""

    found: Finding
    test: Decision | None  # that decided it
    distance: tuple[float, float, float] | None = None  # of value and interval from the margin
    reported: tuple[float, ...] = ()  # the same of the paper's figures

    @property
    def says(self) -> str:
        """Where the mark is, in words."""
        if self.distance is None:
            return "the deciding value has no interval"
        value = self.distance[0]
        side = "where the test holds" if value > 0 else "where it fails"
        beyond = "more than " if abs(value) > LAST else ""
        return f"{beyond}{min(abs(value), LAST):.3g} half-intervals from the margin, {side}"


def forest(book: Book) -> list[Row]:
    """One row for each claim that was measured, the furthest on the passing side first.

    Of its runs, the one with most claims in which a value with an interval decided it on a model
    that is no control.
    """
    rows = []
    runs = sorted(book.counted.values(), key=len, reverse=True)
    for id in book.registry.claims:
        found = [_row(own[id]) for own in runs if id in own]
        rows += sorted(found, key=lambda row: row.distance is None)[:1]
    return sorted(rows, key=lambda row: -row.distance[0] if row.distance else math.inf)


def _row(found: Finding) -> Row:
    test = next((row for row in found.rows if row.decides and row.role != "needs"), None)
    if test is None or test.model.startswith(CONTROL) or not (unit := _half(test)):
        return Row(found, test)
    sign = 1 if test.test.op.startswith(">") else -1
    value, margin = test.value, test.test.margin
    ends = sorted(sign * (end - margin) / unit for end in value.ends)
    reported = tuple(sign * (number - margin) / unit for number in test.numbers)
    return Row(found, test, (sign * (value.value - margin) / unit, *ends), reported)


def _half(test: Decision) -> float | None:
    """The half of the interval that points to the margin; None without an interval."""
    value = test.value
    if value is None or not value.is_bounded:
        return None
    return value.value - value.low if value.value > test.test.margin else value.high - value.value


def place(distance: float) -> float:
    """Where a distance lies in the drawing, in pixels from the left."""
    reach = min(abs(distance), LAST)
    along = reach if reach <= 1 else 1 + math.log10(reach)
    most = 1 + math.log10(LAST)
    half = (WIDTH - 2 * EDGE) / 2
    return round(EDGE + half + math.copysign(half * along / most, distance), 1)


# ---- Criteria and their history


def difference(before: Entry | None, after: Entry) -> list[str]:
    """What an entry says that the one before did not, a line for each kind; all where none is."""
    lines = []
    for kind, (gone, new) in history.changes(before, after).items():
        word = _KINDS.get(kind, kind)
        if kind == "expected":
            lines.append(f"{word}: {_expected(before.expected if before else {}, after.expected)}")
            continue
        for how, criteria in ((", gone", gone), (", new" if before else "", new)):
            if criteria:
                lines.append(f"{word}{how}: {', '.join(map(code, criteria))}")
    return lines or ["the same criterion, measured otherwise"]


def _expected(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The expected verdicts that differ: `supported, before refuted, on control-clean`."""
    groups: dict[str, list[str]] = {}
    for control, verdict in after.items():
        if (old := before.get(control)) != verdict:
            groups.setdefault(f"{verdict}, before {old}," if old else verdict, []).append(control)
    return "; ".join(f"{verdict} on {', '.join(controls)}" for verdict, controls in groups.items())


# ---- Statistics


def _tests(book: Book) -> dict[str, Any]:
    """Every test with its p-value, and what corrections for their number change."""
    results = {
        run: {id: found.result for id, found in own.items()} for run, own in book.counted.items()
    }
    rows = statistics.judgements(results)
    known = [row for row in rows if row.p is not None]
    p_values = [row.p for row in known]
    levels = statistics.levels(p_values)
    judged = {
        (run, id): {"": result}
        | {name: statistics.rejudged(result, level) for name, level in levels.items()}
        for run, own in results.items()
        for id, result in own.items()
    }
    corrected = zip(*statistics.corrected(p_values), strict=True)
    return {
        "rows": rows,
        "known": known,
        # What one more look at the numbers might change, and what they did not decide.
        "near": [row for row in known if row.distance < NEAR],
        "undecided": [row for row in known if row.outcome is None],
        "outcomes": Counter(row.outcome for row in rows),
        "corrected": dict(zip(known, corrected, strict=True)),
        "alpha": statistics.ALPHA,
        "levels": levels,
        "judged": judged,
        "changed": {
            name: sum(own[name].verdict != own[""].verdict for own in judged.values())
            for name in levels
        },
    }


def _shared(book: Book) -> dict[str, Any]:
    """Which models were measured, and which checkpoints and images verdicts share."""
    every = [one.stored for own in book.counted.values() for one in own.values()]
    found = statistics.shared(every)
    models = list(dict.fromkeys(model for _, _, model, _ in _judged(book)))
    papers = {name for paper in book.registry.papers.values() for name in paper.models.values()}
    trained = Counter(map(group, models_of(models)))
    sizes = {x["name"]: x.get("parameters") for one in every for x in one.sources}
    alone = sorted(found.checkpoints.items(), key=lambda one: [*map(len, one[1])], reverse=True)
    return {
        "models": models,
        "parameters": max(filter(None, map(sizes.get, models)), default=None),
        "of_papers": len(papers.intersection(models)),
        "others": [model for model in models if group(model) not in TRAINED],
        "trained": [
            f"{trained[kind]} {words}" for kind, (_, words) in TRAINED.items() if trained[kind]
        ],
        "decided": len(found.decided),
        "checkpoints": alone,
        "images": sorted(found.images.items(), key=lambda one: len(one[1]), reverse=True),
        "lists": found.lists,
        "largest": max(found.lists, key=lambda one: len(one[2]), default=None),
    }


def rounded(row: Judgement) -> tuple[str, ...]:
    """The thresholds of a test, to two digits of how far they lie from its margin."""
    margin = row.test.margin
    reach = min((abs(end - margin) for end in row.thresholds if end != margin), default=0.0)
    places = 2 if not reach else max(0, 1 - math.floor(math.log10(reach)))
    return tuple(
        "never" if math.isinf(x) else f"{x + 0.0:,.{min(places, 9)}f}" for x in row.thresholds
    )
