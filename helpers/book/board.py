"""The scoreboard: claims by paper and models, as an HTML table that is whole without a script.

A cell says how a claim was judged on a model, in colour, shape and word, with the value that
decided it. Trainings that differ in their seed alone share a column. A row opens to its tests, a
bar each. `_static/board.js` adds what filters and sorts.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from helpers.book.amounts import drawn_numbers, span_of
from helpers.book.decisions import Decision, Decisions, decisions
from helpers.book.render import raw, render
from helpers.claims.criteria import CONTROL, VERDICTS
from helpers.claims.project import CONTROLS
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Result
from helpers.claims.statistics import DECIDED
from helpers.names import short_names

SEED = re.compile(r"-seed\d+$")
FORCED = {"supported": True, "refuted": False, "inconclusive": None, "not applicable": False}
# Why a verdict says little: the sign in its corner, and what it means.
LITTLE = {
    "ceiling": (
        "1",
        (
            "The model is at a ceiling: what it does is so nearly perfect that what the claim asks "
            "for could not show."
        ),
    ),
    "controls only": ("2", "Only controls were measured, which are constructed for this project."),
    "control never positive": (
        "3",
        "On no control was the claim found to hold: the measurement was never seen to say yes.",
    ),
}
# An `applies` test that asks for room above a model: one of these, below its margin.
ROOM = ("accuracy", "top1")


def column_of(model: str) -> str:
    """The model in whose column it stands.

    Trainings that differ in their seed share that of the first, all controls one.
    """
    return CONTROLS if model.startswith(CONTROL) else SEED.sub("", model)


def column_names(columns: Iterable[str]) -> dict[str, str]:
    """Column -> what it is called."""
    columns = list(columns)
    return {
        column: "Controls" if column == CONTROLS else name
        for column, name in zip(columns, short_names(columns), strict=True)
    }


@dataclass(frozen=True)
class Entry:
    """A claim in one run: its page, the stored result, and what decided it."""

    claim: Claim
    run: str
    data: Mapping
    positive: bool
    folder: str = "runs"

    @property
    def page(self) -> str:
        """Its page, from `book/`."""
        if self.run == CONTROLS:
            return f"../{self.claim.notebook.removesuffix('.ipynb')}.html"
        return f"{self.folder}/{self.run}/{self.claim.id}.html"

    @cached_property
    def why(self) -> Decisions:
        """What decided it."""
        return decisions(self.claim, self.data)

    @property
    def result(self) -> Result:
        """As it was judged then."""
        return self.why.stored

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """Column -> the models judged in it."""
        found: dict[str, list[str]] = {}
        for one in self.result.verdicts:
            found.setdefault(column_of(one["model"]), []).append(one["model"])
        return found

    def folded(self, column: str) -> tuple[str, list[str]]:
        """The verdict of a column as the claim's quantifier folds its models', and who has it.

        Models to which no test is put stay aside where there are others.
        """
        verdicts = {
            one["model"]: one["verdict"]
            for one in self.result.verdicts
            if one["model"] in self.columns[column]
        }
        tested = {
            m: v
            for m, v in verdicts.items()
            if any(test.concerns(m) for test in self.claim.criterion.tests)
        } or verdicts
        kinds = {verdict for verdict in tested.values() if verdict != "not applicable"}
        first, last = (
            ("refuted", "supported")
            if self.claim.criterion.quantifier == "all"
            else ("supported", "refuted")
        )
        folded = (
            "not applicable"
            if not kinds
            else first
            if first in kinds
            else last
            if kinds == {last}
            else "inconclusive"
        )
        return folded, [model for model, verdict in tested.items() if verdict == folded]

    def deciding(self, models: Sequence[str], verdict: str) -> Decision | None:
        """The test that gave these models their verdict.

        Of a refuted one the clearest, else that nearest to its margin.
        """
        rows = [row for row in self.why.rows if row.model in models and row.verdict == verdict]
        rows = [row for row in rows if row.outcome is FORCED[verdict]] or rows
        far = [(math.inf if row.distance is None else row.distance) for row in rows]
        return None if not rows else rows[far.index(max(far) if verdict == "refuted" else min(far))]

    def little(self, verdict: str, models: Iterable[str]) -> list[str]:
        """Why a verdict on these models says little, by the keys of LITTLE."""
        models = list(models)
        rows = [
            row
            for row in self.why.rows
            if row.model in models and row.role == "applies" and row.outcome is not True
        ]
        found = (
            ["ceiling"]
            if any(row.test.value.startswith(ROOM) and row.test.op[0] == "<" for row in rows)
            else []
        )
        found += (
            ["controls only"]
            if models and all(model.startswith(CONTROL) for model in models)
            else []
        )
        return found + (
            ["control never positive"] if verdict in DECIDED and not self.positive else []
        )

    @property
    def deciders(self) -> list[str]:
        """The models on which the verdict on the whole rests."""
        return self.why.deciders or [one["model"] for one in self.result.verdicts]

    @property
    def distance(self) -> float | None:
        """From the value that decided the whole to its margin, in half-widths of its interval.

        None where nothing with an interval did.
        """
        return self.why.rows[0].distance if self.why.rows and self.why.rows[0].decides else None


def entries(
    registry: Registry,
    runs: Mapping[str, Mapping[str, dict]],
    calibration: Mapping[str, dict],
    folder: str = "runs",
) -> dict[str, list[Entry]]:
    """Claim -> what was published of it, a run each.

    Of a claim about controls and nothing else, its calibration. `folder` as in `board`.
    """
    found: dict[str, list[Entry]] = {id: [] for id in registry.claims}
    for id, claim in registry.claims.items():
        own = {run: results[id] for run, results in runs.items() if id in results}
        if not own and id in calibration and all(test.model for test in claim.criterion.tests):
            own = {CONTROLS: {**calibration[id], "run": CONTROLS}}
        found[id] = [
            Entry(claim, run, data, _positive(claim, calibration), folder)
            for run, data in own.items()
        ]
    return found


@dataclass(frozen=True)
class Line:
    """A claim on the scoreboard, with what was published of it."""

    claim: Claim
    entries: Sequence[Entry]

    @property
    def distance(self) -> float | None:
        """The least of its entries' distances from their margins, None where none has one."""
        return min((one.distance for one in self.entries if one.distance is not None), default=None)

    @property
    def tests(self) -> list[tuple[Entry, Decision]]:
        """Every test of every model, run by run."""
        return [(entry, row) for entry in self.entries for row in entry.why.rows]

    @property
    def spans(self) -> dict[str, tuple[float, float]]:
        """Value -> the ends of one axis for the bars of all its tests."""
        found: dict[str, list[Decision]] = {}
        for _, row in self.tests:
            found.setdefault(row.test.value, []).append(row)
        return {
            name: span_of(
                drawn_numbers(
                    [row.value for row in rows],
                    [row.test for row in rows],
                    [number for row in rows for number in row.numbers],
                )
            )
            for name, rows in found.items()
        }

    @property
    def columns(self) -> list[str]:
        """The columns of all its entries, each once, in order."""
        return list(dict.fromkeys(column for entry in self.entries for column in entry.columns))

    def judged(self, column: str) -> list[Entry]:
        """The entries that judge a model of this column."""
        return [entry for entry in self.entries if column in entry.columns]

    @property
    def missing(self) -> dict[str, tuple[str, str]]:
        """The checkpoints of its paper on which it was not run: model -> name and reason."""
        measured = {value.model for entry in self.entries for value in entry.result.values}
        why = {m: reason for entry in self.entries for m, reason in entry.result.not_run.items()}
        lists = [
            value
            for profile in self.claim.profiles.values()
            for value in profile.values()
            if isinstance(value, list)
        ]
        wanted = [model for models in lists for model in models]
        return {
            model: (name, why.get(model, "no published run asked for it"))
            for name, model in self.claim.source.models.items()
            if model in wanted and model not in measured
        }


def board(
    registry: Registry,
    runs: Mapping[str, Mapping[str, dict]],
    calibration: Mapping[str, dict],
    up: str = "",
    whole: bool = True,
    folder: str = "runs",
) -> str:
    """The table, as a raw block of Markdown.

    Args:
        runs: run -> claim -> result.
        calibration: claim -> result on the controls.
        up: from the page to the folder `book/`.
        whole: with the claims without a result, and the checkpoints of the papers that were not
            run.
        folder: of the runs' pages, below `book/`.
    """
    found = entries(registry, runs, calibration, folder)
    lines = [Line(registry[id], own) for id, own in found.items() if own or whole]
    papers = [
        (paper, own)
        for paper in registry.papers.values()
        if (own := [line for line in lines if line.claim.paper == paper.id])
    ]
    names = column_names(_columns(lines))
    shown = [entry for line in lines for entry in line.entries]
    choices = {
        "paper": {paper.id: paper.title for paper, _ in papers},
        "model": names,
        "run": {entry.run: entry.run for entry in shown},
        "verdict": dict(zip(VERDICTS, VERDICTS, strict=True)),
    }
    return raw(
        render(
            "board.html.j2",
            papers=papers,
            names=names,
            choices=choices,
            up=up,
            whole=whole,
            column_of=column_of,
            CONTROLS=CONTROLS,
            LITTLE=LITTLE,
            VERDICTS=VERDICTS,
        )
    )


def _columns(lines: Iterable[Line]) -> list[str]:
    """The models that have a column: those with most claims first, controls last."""
    claims = Counter[str]()
    for line in lines:
        claims.update(line.columns)
    return sorted(claims, key=lambda column: (column == CONTROLS, -claims[column]))


def _positive(claim: Claim, calibration: Mapping[str, dict]) -> bool:
    """Whether the claim was found to hold on a control that was judged alone.

    Also where there is no calibration to tell.
    """
    if claim.id not in calibration:
        return True
    return any(
        got == "supported"
        for got, _ in Result.from_json(claim, calibration[claim.id]).calibration().values()
    )
