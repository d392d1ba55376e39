"""The scoreboard: claims by paper and models, as an HTML table that is whole without a script.

A cell says how a claim was judged on a model, in colour, shape and word, with the value that
decided it. Trainings that differ in their seed alone share a column. A row opens to its tests, a
bar each. `_static/board.js` adds what filters and sorts.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from helpers.book.counts import KINDS, standing
from helpers.book.decisions import Decision, Decisions, axes
from helpers.book.render import Results, Runs, distinct, render
from helpers.claims.criteria import CONTROL, NO_YES, NOT_TESTED
from helpers.claims.project import CONTROLS
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Result
from helpers.names import short_names

SEED = re.compile(r"-seed\d+$")
OUTCOME = {"supported": True, "inconclusive": None}  # of the tests that give a verdict; else False
# The verdict of several models together is the first of these that one of them has.
FIRST = {
    "all": ("refuted", "inconclusive", "supported", NOT_TESTED, "not applicable"),
    "any": ("supported", "inconclusive", "refuted", NOT_TESTED, "not applicable"),
}
# Why a verdict says little: the sign in its corner, and what it means.
LITTLE = {
    "ceiling": (
        "1",
        "The model is at a ceiling or a floor: it is right so often, or so seldom, that what the "
        "claim asks for could not show.",
    ),
    "controls only": (
        "2",
        "Only synthetic reference models were measured, which this project constructs.",
    ),
    "control never positive": (
        "3",
        "Never seen to say yes on a synthetic model: the test found the claim to hold on none of "
        "them, so a no may be the test's own.",
    ),
}


def column_of(model: str) -> str:
    """The model in whose column it stands.

    Trainings that differ in their seed share that of the first, all controls one.
    """
    return CONTROLS if model.startswith(CONTROL) else SEED.sub("", model)


def models_of(names: Iterable[str]) -> list[str]:
    """The models behind these names, as every page counts them: without controls, and trainings
    that differ in their seed alone as one.
    """
    return distinct(column_of(name) for name in names if not name.startswith(CONTROL))


class Entry(Decisions):
    """What decided a claim in one run, column by column.

    Attributes:
        positive: whether the claim was found to hold on a control that was judged alone.
        columns: column -> model -> its verdict.
    """

    def __init__(self, claim: Claim, data: Mapping, positive: bool = True):
        super().__init__(claim, data)
        self.positive = positive
        self.columns: dict[str, dict[str, str]] = {}
        for model in self.stored.models:
            self.columns.setdefault(column_of(model), {})[model] = self.stored.shown[model]

    def folded(self, column: str) -> tuple[str, list[str]]:
        """The verdict of a column as the claim's quantifier folds its models', and who has it.

        Models to which no test is put stay aside where there are others.
        """
        criterion, verdicts = self.claim.criterion, self.columns[column]
        tested = [m for m in verdicts if any(test.concerns(m) for test in criterion.tests)]
        own = {model: verdicts[model] for model in tested or verdicts}
        folded = min(own.values(), key=FIRST[criterion.quantifier].index)
        return folded, [model for model, verdict in own.items() if verdict == folded]

    def deciding(self, models: Collection[str], verdict: str) -> Decision | None:
        """The test that gave these models their verdict.

        Of a refuted one the clearest, else that nearest to its margin.
        """
        rows = [row for row in self.rows if row.model in models and row.verdict == verdict]
        rows = [row for row in rows if row.role != "needs"]
        rows = [row for row in rows if row.outcome is OUTCOME.get(verdict, False)] or rows
        choose = max if verdict == "refuted" else min
        return choose(rows, key=lambda row: row.clearness, default=None)

    def little(self, verdict: str, models: Collection[str]) -> list[str]:
        """Why a verdict on these models says little, by the keys of LITTLE."""
        ceiling = any(row.unseen for row in self.rows if row.model in models)
        found = {
            "ceiling": ceiling,
            "controls only": {column_of(model) for model in models} == {CONTROLS},
            "control never positive": verdict in NO_YES and not self.positive,
        }
        return [key for key, is_so in found.items() if is_so]


def entries(registry: Registry, runs: Runs, calibration: Results) -> dict[str, list[Entry]]:
    """Claim -> what was published of it, a run each, without the runs that repeat another one here.

    Of a claim about controls and nothing else, its calibration.
    """
    found: dict[str, list[Entry]] = {}
    repeated, doubtful = repeats(registry, runs), never_positive(registry, calibration)
    for id, claim in registry.claims.items():
        own = [x[id] for run, x in runs.items() if id in x and run not in repeated]
        if id in calibration and not own and all(test.model for test in claim.criterion.tests):
            own = [calibration[id] | {"run": CONTROLS}]
        found[id] = [Entry(claim, data, id not in doubtful) for data in own]
    return found


def never_positive(registry: Registry, calibration: Results) -> set[str]:
    """The claims that were found to hold on none of their controls, each judged alone."""
    return {
        id
        for id, data in calibration.items()
        for controls in [Result.from_json(registry[id], data).calibration()]
        if all(got != "supported" for got, _ in controls.values())
    }


def repeats(registry: Registry, runs: Runs) -> Runs:
    """Those of the runs that repeat another one of them."""
    return {run: own for run, own in runs.items() if registry.replicates.get(run) in runs}


def line(claim: Claim, own: Sequence[Entry]) -> dict[str, Any]:
    """A claim on the scoreboard, with what was published of it.

    Returns:
        claim and entries; standing, as every page counts it; tests, all their rows, and the axes of
        their bars; distance, the least of the entries' from their margins in half-widths of the
        interval of what decided them, None where none has one; missing, the checkpoints of the
        paper on which it was not run: model -> name and reason.
    """
    tests = [row for entry in own for row in entry.rows]
    far = [entry.rows[0].distance for entry in own if entry.deciders]
    measured = [model for entry in own for model in entry.values]
    reasons = {model: why for entry in own for model, why in entry.result.not_run.items()}
    lists = [value for profile in claim.profiles.values() for value in profile.values()]
    return {
        "claim": claim,
        "entries": own,
        "tests": tests,
        "axes": axes(tests),
        "standing": standing(claim, [entry.stored for entry in own]).verdict,
        "distance": min((one for one in far if one is not None), default=None),
        "missing": {
            model: (name, reasons.get(model, "no published run asked for it"))
            for name, model in claim.source.models.items()
            if model not in measured
            and any(isinstance(models, list) and model in models for models in lists)
        },
    }


def board(
    registry: Registry,
    runs: Runs,
    calibration: Results,
    up: str = "",
    whole: bool = True,
    folder: str = "runs",
    legend: bool = True,
) -> str:
    """The table, as a raw block of Markdown.

    Args:
        runs: run -> claim -> result.
        calibration: claim -> result on the controls.
        up: from the page to the folder `book/`.
        whole: with the claims without a result, and the checkpoints of the papers that were not
            run.
        folder: of the runs' pages, below `book/`.
        legend: say above it what the badges and signs mean.
    """
    found = entries(registry, runs, calibration)
    lines = [line(registry[id], own) for id, own in found.items() if own or whole]
    papers = [
        paper
        for paper in registry.papers.values()
        if paper.id in {one["claim"].paper for one in lines}
    ]
    claims = Counter[str]()
    for one in lines:
        claims.update(distinct(column for own in one["entries"] for column in own.columns))
    columns = sorted(claims, key=lambda column: (column == CONTROLS, -claims[column]))
    names = dict(zip(columns, short_names(columns), strict=True))
    if CONTROLS in names:
        names[CONTROLS] = "Controls"
    choices = {
        "paper": {paper.id: paper.title for paper in papers},
        "model": names,
        "run": {entry.run: entry.run for own in found.values() for entry in own},
        "verdict": {kind: kind for kind in KINDS},
        "first": {"other": "another verdict", "same": "the same verdict"},
    }
    return render(
        "board.html.j2",
        papers=papers,
        lines=lines,
        names=names,
        choices=choices,
        up=up,
        whole=whole,
        folder=folder,
        legend=legend,
        again={
            one["claim"].id: [
                Entry(one["claim"], own[one["claim"].id])
                for own in repeats(registry, runs).values()
                if one["claim"].id in own
            ]
            for one in lines
        },
        column_of=column_of,
        LITTLE=LITTLE,
    )
