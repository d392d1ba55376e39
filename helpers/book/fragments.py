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
from typing import Any

from helpers.book import checkpoints
from helpers.book.board import column_of, deciding
from helpers.book.book import DIFFERS, KINDS, Book, together
from helpers.book.finding import TRAINED, Decision, Finding, group
from helpers.book.render import environment, render
from helpers.claims import history, statistics
from helpers.claims.claim import STATUSES
from helpers.claims.criteria import CONTROL
from helpers.claims.history import Entry
from helpers.claims.markdown import code
from helpers.claims.statistics import Judgement

_KINDS = {"applies": "applies when", "needs": "needs a model with", "quantifier": "models"}

WIDTH, EDGE = 300, 8  # of a row's drawing in pixels, and what is left free at its ends
LAST = 300  # the distance at the ends of the axis; what is beyond is drawn there


def fragments(known: Mapping) -> dict[str, str]:
    """Every fragment by its name, as Markdown; `known` are the `values` of its book."""
    templates = environment().list_templates(filter_func=lambda name: name.startswith("fragments/"))
    return {PurePath(name).name.partition(".")[0]: render(name, **known) for name in templates}


def values(book: Book) -> dict[str, Any]:
    """What the templates of fragments are filled in from."""
    return {
        "book": book,
        "changes": [(id, *both) for id, own in book.log.items() for both in pairwise(own)],
        "moved_verdicts": [one for one in book.counted if one.first != one.stored.verdict],
        "strip": strip(book),
        "forest": forest(book),
        "forest_at": place,
        "KINDS": KINDS,
        "SEEN": history.SEEN,
        "STATUSES": STATUSES,
        "TRAINED": TRAINED,
        "difference": difference,
        "rewritten": history.rewritten,
        "rounded": rounded,
        **checkpoints.values(book.project.root),
        **_statistics(book),
    }


# ---- Where claims stand


def strip(book: Book) -> dict[str, list[tuple[Finding, str, Decision | None]]]:
    """Model, or kind of models that were trained here -> of each claim that it was judged on, the
    first result with the verdict, the verdict, and the test that gave it to the first such model.
    """
    groups: dict[str, dict[str, list[tuple[str, Finding, str]]]] = {}
    for found, model in _judged(book):
        claims = groups.setdefault(group(model), {})
        claims.setdefault(found.claim.id, []).append((found.stored.shown[model], found, model))
    rows = {name: [] for name in groups}
    for name, claims in groups.items():
        for id in sorted(claims, key=[*book.registry.claims].index):
            verdict = together(said for said, *_ in claims[id])
            found, model = next(one for said, *one in claims[id] if verdict in (said, DIFFERS))
            test = deciding(found, [model], verdict)
            rows[name].append((found, verdict, test))
    return rows


def _judged(book: Book) -> list[tuple[Finding, str]]:
    """Each result and model, of those that are no controls; models that were trained here last."""
    every = [(found, model) for found in book.counted for model in found.stored.models]
    every = [one for one in every if not one[1].startswith(CONTROL)]
    return sorted(every, key=lambda one: group(one[1]) in TRAINED)


# ---- All claims in one figure: how far the value that decided each one lies from its margin
#
# The unit is half of the value's own 95 % interval: beyond 1, the interval excludes the margin. The
# axis is linear up to 1 and logarithmic beyond. To the right the test holds.


def forest(book: Book) -> list[dict[str, Any]]:
    """One row for each claim that was measured, the furthest on the passing side first.

    Of its runs, the one with most claims in which a value with an interval decided it on a model
    that is no control.
    """
    rows = []
    for id in book.registry.claims:
        counted = book.of(id)
        found = [_row(one) for one in book.findings(id) if one in counted]
        rows += sorted(found, key=lambda row: not row["distance"])[:1]
    return sorted(rows, key=lambda row: -row["distance"][0] if row["distance"] else math.inf)


def _row(found: Finding) -> dict[str, Any]:
    """A result, the test that decided it, and how far from the margin value and interval, and the
    figures that the paper reports, lie: none without an interval.
    """
    row = next((row for row in found.rows if row.decides and row.role != "needs"), None)
    drawn = {"found": found, "test": row, "distance": (), "reported": ()}
    if row and row.value and row.value.is_bounded and not row.model.startswith(CONTROL):
        value, margin = row.value, row.test.margin
        towards = value.low if value.value > margin else value.high
        if unit := abs(value.value - towards):
            unit *= 1 if row.test.op.startswith(">") else -1
            ends = sorted((end - margin) / unit for end in value.ends)
            drawn["distance"] = ((value.value - margin) / unit, *ends)
            drawn["reported"] = [(number - margin) / unit for number in row.numbers]
    return drawn


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


def _statistics(book: Book) -> dict[str, Any]:
    """Every test with its p-value, what corrections for their number change, which models were
    measured, and which checkpoints and images verdicts share.
    """
    rows = statistics.judgements((found.run, found.result) for found in book.counted)
    shared = statistics.shared([found.stored for found in book.counted])
    known = [row for row in rows if row.p is not None]
    p_values = [row.p for row in known]
    levels = statistics.levels(p_values)
    judged = {
        (found.run, found.claim.id): {"": found.result}
        | {name: statistics.rejudged(found.result, level) for name, level in levels.items()}
        for found in book.counted
    }
    models = list(dict.fromkeys(model for _, model in _judged(book)))
    papers = {name for paper in book.registry.papers.values() for name in paper.models.values()}
    trained = Counter(map(group, dict.fromkeys(map(column_of, models))))
    sizes = {x["name"]: x.get("parameters") for one in book.counted for x in one.stored.sources}
    return {
        "rows": rows,
        "known": known,
        "corrected": dict(
            zip(known, zip(*statistics.corrected(p_values), strict=True), strict=True)
        ),
        "alpha": statistics.ALPHA,
        "levels": levels,
        "judged": judged,
        "changed": {
            name: sum(own[name].verdict != own[""].verdict for own in judged.values())
            for name in levels
        },
        "models": models,
        "parameters": max(filter(None, map(sizes.get, models)), default=None),
        "of_papers": len(papers.intersection(models)),
        "others": [model for model in models if group(model) not in TRAINED],
        "trained": [
            f"{trained[kind]} {words}" for kind, (_, words) in TRAINED.items() if trained[kind]
        ],
        "decided": len(shared.decided),
        "checkpoints": sorted(
            shared.checkpoints.items(), key=lambda one: [*map(len, one[1])], reverse=True
        ),
        "images": sorted(shared.images.items(), key=lambda one: len(one[1]), reverse=True),
        "lists": shared.lists,
        "largest": max(shared.lists, key=lambda one: len(one[2]), default=None),
    }


def rounded(row: Judgement) -> tuple[str, ...]:
    """The thresholds of a test, to two digits of how far they lie from its margin."""
    margin = row.test.margin
    reach = min((abs(end - margin) for end in row.thresholds if end != margin), default=0.0)
    places = 2 if not reach else max(0, 1 - math.floor(math.log10(reach)))
    return tuple(
        "never" if math.isinf(x) else f"{x + 0.0:,.{min(places, 9)}f}" for x in row.thresholds
    )
