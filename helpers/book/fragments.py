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

from helpers.book import checkpoints, overview
from helpers.book.board import models_of
from helpers.book.book import Book, data
from helpers.book.counts import KINDS, together
from helpers.book.finding import TRAINED, Decision, group
from helpers.book.render import environment, render
from helpers.claims import history, statistics
from helpers.claims.claim import ANSWERS, Claim
from helpers.claims.criteria import CONTROL, NOT_TESTED
from helpers.claims.history import Entry
from helpers.claims.markdown import code
from helpers.claims.statistics import Judgement

OUTCOMES = {"supported": True, "refuted": False, "not applicable": False}  # of deciding tests
NEAR = 1.5  # half-widths from its margin within which a test is listed
_KINDS = {"applies": "applies when", "needs": "needs a model with", "quantifier": "models"}


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
        "forest": overview.claims(book),
        "forest_ticks": overview.TICKS,
        "forest_at": overview.place,
        "ANSWERS": ANSWERS,
        "KINDS": KINDS,
        "NEAR": NEAR,
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
    verdict, the first run with it, and a test with that outcome on the first such model.
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
            run, model = claims[id].get(verdict, next(iter(claims[id].values())))
            tests = book.runs[run][id].rows
            own = [row for row in tests if (row.model, row.verdict) == (model, verdict)]
            own = [row for row in own if row.role != "needs"]
            if verdict != NOT_TESTED:  # of a half, whatever came of it
                own = [row for row in own if row.outcome is OUTCOMES.get(verdict)]
            rows[name].append((book.registry[id], verdict, run, next(iter(own), None)))
    return rows


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
    runs = data(book.counted)
    rows = statistics.judgements(book.registry, runs)
    known = [row for row in rows if row.p is not None]
    p_values = [row.p for row in known]
    levels = statistics.levels(p_values)
    judged = {
        (run, id): {
            name: statistics.judged(book.registry[id], result, alpha)
            for name, alpha in {"": statistics.ALPHA, **levels}.items()
        }
        for run, results in runs.items()
        for id, result in results.items()
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
    found = statistics.shared(data(book.counted))
    models = list(dict.fromkeys(model for _, _, model, _ in _judged(book)))
    papers = {name for paper in book.registry.papers.values() for name in paper.models.values()}
    trained = Counter(map(group, models_of(models)))
    every = (one for own in book.counted.values() for one in own.values())
    sizes = {x["name"]: x.get("parameters") for one in every for x in one.stored.sources}
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
        "lists": list(found.lists.values()),
        "largest": max(found.lists.values(), key=lambda one: len(one[2]), default=None),
    }


def rounded(row: Judgement) -> tuple[str, ...]:
    """The thresholds of a test, to two digits of how far they lie from its margin."""
    margin = row.test.margin
    reach = min((abs(end - margin) for end in row.thresholds if end != margin), default=0.0)
    places = 2 if not reach else max(0, 1 - math.floor(math.log10(reach)))
    return tuple(
        "never" if math.isinf(x) else f"{x + 0.0:,.{min(places, 9)}f}" for x in row.thresholds
    )
