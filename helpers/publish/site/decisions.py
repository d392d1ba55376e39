"""The tests of a claim row by row, as pages show them: what decided first, each with its value, outcome and the paper's figures.

A stored result is read by today's criterion, whose tests are the only ones that are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from helpers.names import short_name, short_names
from helpers.publish.claims import Claim, Result
from helpers.publish.criteria import Test, Value
from helpers.publish.site.amounts import amount, asked, behind
from helpers.publish.statistics import Judgement
from helpers.publish.terms import Term, term

_SCALES = {"M": 1e6, "k": 1e3}  # units of reported figures, in ours


@dataclass(frozen=True)
class Reported:
    """A figure that the paper reports of a quantity that is measured here.

    Attributes:
        where, model: in the paper, by the paper's name of the model.
        numbers: in our unit; a range as its two ends, none of a figure in words.
        text: as printed.
        note: what to know of it, or ''.
        checkpoint: that model as we call it, or ''.
        ours: what the quantity is called among our values.
        without: why there is none, or ''.
    """

    where: str
    model: str
    numbers: tuple[float, ...]
    text: str
    note: str = ""
    checkpoint: str = ""
    ours: str = ""
    without: str = ""


@dataclass(frozen=True)
class Decision(Judgement):
    """A test that is put to a model, and what came of it.

    Attributes:
        decides: whether the verdict on the whole rests on it.
        role: 'tests', or 'applies' where the model is not judged, or not yet, for it, or 'needs' where one model must pass it.
        reported: the paper's figures of the same quantity: of the same model where there are any, else of others.
        name: how pages call the model.
    """

    decides: bool
    role: str
    reported: tuple[Reported, ...]
    name: str

    @property
    def outcome(self) -> bool | None:
        """True where the test holds, False where it fails, None where it is undecided."""
        return self.test.outcome(self.value)

    @property
    def applicable(self) -> bool:
        """Whether the claim applies to the model."""
        return self.verdict != "not applicable"

    @property
    def term(self) -> Term:
        """What the value is called."""
        return term(self.id, self.test.value)

    @property
    def numbers(self) -> list[float]:
        """The paper's figures that can be drawn."""
        return [number for one in self.reported for number in one.numbers]

    @property
    def measured(self) -> str:
        """The value in words."""
        return amount(self.value, self.term)

    @property
    def asked(self) -> str:
        """What the test asks for, in words."""
        return asked(self.test, self.term.unit)


@dataclass(frozen=True)
class Decisions:
    """What decided a stored result.

    Attributes:
        stored: as it was judged then.
        run: its name.
        result: as today's criterion judges the same values; the stored one where that is the same.
        rows: deciding ones first, models to which the claim does not apply last.
    """

    stored: Result
    run: str

    @cached_property
    def result(self) -> Result:
        """The verdict of today's criterion."""
        return self.stored.today or self.stored

    @cached_property
    def names(self) -> dict[str, str]:
        """model -> how pages call it."""
        models = list(dict.fromkeys([*(value.model for value in self.result.values), *self.result.not_run]))
        return dict(zip(models, short_names(models), strict=True))

    @cached_property
    def rows(self) -> list[Decision]:
        """Every test that was put to a model: what decided first, models to which the claim does not apply last.

        Among the deciding ones, those of a refuted claim stand by how clear they are, those of a supported one by how near to
        failing.
        """
        criterion, whole = self.result.claim.criterion, self.result.verdict
        own: dict[str, dict[str, Value]] = {}
        for value in self.result.values:
            own.setdefault(value.model, {})[value.name] = value
        rows: list[Decision] = []
        for one in self.result.verdicts:
            model, verdict = one["model"], one["verdict"]
            role, decisive = _decisive(criterion, model, own[model], verdict)
            tests = [test for test in getattr(criterion, role) if test.concerns(model)]
            if role == "applies":
                tests = [test for test in tests if test in decisive]
            for test in tests:
                rows.append(self._row(model, verdict, test, role, verdict == whole and test in decisive, own[model]))
        for model in self._lacking:
            for test in (test for test in criterion.needs if test.concerns(model)):
                rows.append(self._row(model, whole, test, "needs", True, own[model]))
        return sorted(rows, key=self._place)

    @property
    def _lacking(self) -> list[str]:
        """The supported models where none of them, nor any other, has what the whole needs."""
        kinds = [one["verdict"] for one in self.result.verdicts if one["verdict"] != "not applicable"]
        lacking = self.result.verdict == "inconclusive" and "inconclusive" not in kinds and "supported" in kinds
        return [one["model"] for one in self.result.verdicts if lacking and one["verdict"] == "supported"]

    def _row(self, model: str, verdict: str, test: Test, role: str, decides: bool, own: Mapping[str, Value]) -> Decision:
        claim, value = self.result.claim, own.get(test.value)
        figures = _reported(claim, test.value, model)
        return Decision(claim.id, self.run, model, test, value, verdict, decides, role, figures, self.names[model])

    def _place(self, row: Decision) -> tuple:
        distance = row.distance if row.distance is not None else float("inf")
        clear = {"refuted": -distance, "supported": distance}.get(self.result.verdict, 0.0) if row.decides else 0.0
        return not row.applicable and self.result.verdict != "not applicable", not row.decides, clear

    @property
    def untested(self) -> list[str]:
        """The models to which none of the tests is put; they have no row."""
        told = {row.model for row in self.rows}
        return [one["model"] for one in self.result.verdicts if one["model"] not in told]

    @property
    def deciders(self) -> list[str]:
        """The models on which the verdict rests, that of the first row first."""
        return list(dict.fromkeys(row.model for row in self.rows if row.decides))

    @property
    def by(self) -> str:
        """`decided by MODEL, n = 1,000 images`, or `left open by`; empty where no model decided."""
        first = next((row for row in self.rows if row.decides), None)
        if first is None or self._lacking:
            return ""
        said = "left open by" if self.result.verdict == "inconclusive" else "decided by"
        more = len(self.deciders) - 1
        others = f" and {more} more" if more else ""
        return ", ".join(filter(None, [f"{said} {first.name}{others}", behind(first.value, first.term)]))

    @property
    def answer(self) -> str:
        """The verdict and the first test that decided it, in one sentence."""
        verdict = self.result.verdict
        said = verdict.capitalize()
        if self._lacking:
            return f"{said}: it holds on each model measured, but none of them has {self._needed}."
        first = next((row for row in self.rows if row.decides), None)
        if first is None:
            return f"{said}: {self.result.reason}"
        quantity = f"{said}: {_in_sentence(first.term.label)}"
        if first.value is None:
            return f"{quantity}: not measured."
        rest = {
            "inconclusive": f"which does not decide whether it is {first.asked}",
            "not applicable": f"and the claim is about models where it is {first.asked}",
        }.get(verdict, f"where {first.asked} was asked for")
        return f"{quantity}: {first.measured}, {rest}."

    @property
    def _needed(self) -> str:
        """What a model must have before the whole can be supported."""
        parts = []
        for test in self.result.claim.criterion.needs:
            own = term(self.result.id, test.value)
            where = f" on {short_name(test.model)}" if test.model else ""
            parts.append(f"{_in_sentence(own.label)} {asked(test, own.unit)}{where}")
        return " and ".join(parts)


def decisions(claim: Claim, data: Mapping) -> Decisions:
    """What decided the stored result `data` of `claim`."""
    return Decisions(Result.from_json(claim, data), data.get("run", ""))


def _decisive(criterion, model: str, own: Mapping[str, Value], verdict: str) -> tuple[str, Sequence[Test]]:
    """Which part of the criterion gave a model its verdict, and which of its tests forced it (`Criterion.on_model`)."""
    outcomes = {
        role: [(test, test.outcome(own.get(test.value))) for test in getattr(criterion, role) if test.concerns(model)]
        for role in ("applies", "tests")
    }
    applies = [outcome for _, outcome in outcomes["applies"]] if outcomes["tests"] else []
    role, forced = "tests", {"supported": True, "refuted": False, "inconclusive": None}.get(verdict)
    if False in applies or None in applies:
        role, forced = "applies", False if False in applies else None
    return role, [test for test, outcome in outcomes[role] if outcome is forced]


def reported_of(claim: Claim, name: str) -> list[Reported]:
    """The paper's figures of what is called `name` among our values."""
    return [figure for figure in reported(claim) if figure.ours == name]


def reported(claim: Claim) -> list[Reported]:
    """The paper's figures, a row each."""
    figures = []
    for row in claim.reported:
        scale = _SCALES.get(row["unit"], 1.0)
        printed = row["range"] if "range" in row else [row["value"]] if "value" in row else []
        text = row.get("text") or " to ".join(f"{x:,.10g}" for x in printed)
        numbers, checkpoint = tuple(scale * x for x in printed), claim.source.models.get(row["model"], "")
        told = f"{text} {row['unit']}".strip(), row.get("note", ""), checkpoint
        ours = row.get("ours", row["name"]), row.get("without", "")
        figures.append(Reported(row["where"], row["model"], numbers, *told, *ours))
    return figures


def _reported(claim: Claim, name: str, model: str) -> tuple[Reported, ...]:
    """The paper's figures of the quantity `name`: of `model` where there are any, else of others."""
    figures = reported_of(claim, name.removesuffix("_seeds"))
    own = [one for one in figures if one.checkpoint == model]
    return tuple(own or figures)


def _in_sentence(label: str) -> str:
    """A label to go into a sentence: with a small first letter, unless that begins a name or an abbreviation."""
    word = label.split()[0]
    begins_a_name = word.endswith("'s") or word[1:].lower() != word[1:] or not word[0].isalpha()
    return label if begins_a_name else label[0].lower() + label[1:]
