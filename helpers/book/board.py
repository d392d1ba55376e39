"""The scoreboard: claims by paper and models, as an HTML table that is whole without a script.

A cell has the verdict on a model and the value that decided it. Trainings that differ in their seed
alone share a column. `_static/board.js` filters and sorts.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from helpers.book.book import KINDS, Book, standing
from helpers.book.finding import Decision, Finding
from helpers.book.render import distinct, render
from helpers.claims.claim import STATUSES, Claim
from helpers.claims.criteria import CONTROL, NO, NO_YES, NOT_TESTED
from helpers.claims.project import CONTROLS
from helpers.names import short_names

SEED = re.compile(r"-seed\d+$")
OUTCOME = {"supported": True, "inconclusive": None}  # of the tests that give a verdict; else False
# The verdict of several models together is the first of these that one of them has.
FIRST = {
    "all": (*NO, "inconclusive", "supported", NOT_TESTED, "not applicable"),
    "any": ("supported", "inconclusive", *NO, NOT_TESTED, "not applicable"),
}
# The sign of a verdict that says little, and what it means.
LITTLE = {
    "1": "The model is at a ceiling or a floor: it is right so often, or so seldom, that what the "
    "claim asks for could not show.",
    "2": "Only synthetic reference models were measured, which this project constructs.",
    "3": "Never seen to say yes on a synthetic model: the test found the claim to hold on none of "
    "them, so a no may be the test's own.",
}


def column_of(model: str) -> str:
    """The model in whose column it stands: of trainings that differ in their seed the first, of all
    controls one.
    """
    return CONTROLS if model.startswith(CONTROL) else SEED.sub("", model)


def columns(found: Finding) -> dict[str, dict[str, str]]:
    """Column -> model -> its verdict."""
    columns: dict[str, dict[str, str]] = {}
    for model in found.stored.models:
        columns.setdefault(column_of(model), {})[model] = found.stored.shown[model]
    return columns


def folded(found: Finding, column: str) -> tuple[str, list[str]]:
    """The verdict of a column as the claim's quantifier folds its models', and who has it.

    Models to which no test is put stay aside where there are others.
    """
    criterion, verdicts = found.claim.criterion, columns(found)[column]
    tested = [m for m in verdicts if any(test.concerns(m) for test in criterion.tests)]
    own = {model: verdicts[model] for model in tested or verdicts}
    verdict = min(own.values(), key=FIRST[criterion.quantifier].index)
    return verdict, [model for model in own if own[model] == verdict]


def deciding(found: Finding, models: Collection[str], verdict: str) -> Decision | None:
    """The test that gave these models their verdict: of a refuted one the clearest, else that
    nearest to its margin.
    """
    rows = [row for row in found.rows if row.model in models and row.verdict == verdict]
    rows = [row for row in rows if row.role != "needs"]
    rows = [row for row in rows if row.outcome is OUTCOME.get(verdict, False)] or rows
    choose = max if verdict in NO else min
    return choose(rows, key=lambda row: row.clearness, default=None)


def little(found: Finding, verdict: str, models: Collection[str], doubtful: bool) -> list[str]:
    """Why a verdict on these models says little, by the signs of LITTLE."""
    reasons = (
        any(row.unseen for row in found.rows if row.model in models),
        {column_of(model) for model in models} == {CONTROLS},
        verdict in NO_YES and doubtful,
    )
    return [sign for sign, is_so in zip(LITTLE, reasons, strict=True) if is_so]


def entries(book: Book) -> dict[str, list[Finding]]:
    """Claim -> its results that count; of a claim about controls and nothing else, its
    calibration.
    """
    found = {id: book.of(id) for id in book.registry.claims}
    for id, control in book.controls.items():
        if not found[id] and all(test.model for test in control.claim.criterion.tests):
            found[id] = [control]
    return found


def line(claim: Claim, own: Sequence[Finding]) -> dict[str, Any]:
    """A claim on the scoreboard: where it stands, the least distance of a deciding value from its
    margin, and the paper's checkpoints that profiles name and nobody ran, with the reason.
    """
    far = [found.rows[0].distance for found in own if found.deciders]
    measured = {model for found in own for model in found.result.by_model}
    reasons = {model: why for found in own for model, why in found.result.not_run.items()}
    lists = [x for own in claim.profiles.values() for x in own.values() if isinstance(x, list)]
    return {
        "claim": claim,
        "entries": own,
        "standing": standing(claim, [found.stored for found in own]),
        "distance": min((one for one in far if one is not None), default=None),
        "missing": {
            model: (name, reasons.get(model, "no published run asked for it"))
            for name, model in claim.source.models.items()
            if model not in measured and any(model in models for models in lists)
        },
    }


def board(book: Book, run: Sequence[Finding] | None = None, up: str = "") -> str:
    """The table of all claims, or of the results of a `run` alone, as a raw block of Markdown.

    `up` leads from the page to the folder `book/`.
    """
    found = entries(book) if run is None else {one.claim.id: [one] for one in run}
    lines = [line(book.registry[id], own) for id, own in found.items()]
    there = {one["claim"].paper for one in lines}
    papers = [paper for paper in book.registry.papers.values() if paper.id in there]
    counts = Counter[str]()
    for own in found.values():
        counts.update(distinct(column for one in own for column in columns(one)))
    models = sorted(counts, key=lambda column: (column == CONTROLS, -counts[column]))
    names = dict(zip(models, short_names(models), strict=True))
    if CONTROLS in names:
        names[CONTROLS] = "Controls"
    choices = {
        "paper": {paper.id: paper.title for paper in papers},
        "model": names,
        "run": {one.run: one.run for own in found.values() for one in own},
        "status": {status: status for status in STATUSES},
        "verdict": {kind: kind for kind in KINDS},
    }
    return render(
        "board.html.j2", papers=papers, lines=lines, names=names, choices=choices, up=up,
        whole=run is None, book=book, columns=columns, folded=folded,
        deciding=deciding, little=little, LITTLE=LITTLE,
        again={id: book.repeated(id) if run is None else [] for id in found},
    )  # fmt: skip
