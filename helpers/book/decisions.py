"""What decided a stored result, test by test, each with its value and the paper's figures.

A stored result is read by today's criterion, whose tests are the only ones that are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from helpers.book.amounts import amount, asked, behind
from helpers.claims.criteria import Test, Value
from helpers.claims.registry import Term, term
from helpers.claims.result import Claim, Result, by_model
from helpers.claims.statistics import Judgement
from helpers.names import short_name, short_names

SCALES = {"M": 1e6, "k": 1e3}  # units of reported figures, in ours


@dataclass(frozen=True)
class Reported:
    """A figure that the paper reports of a quantity that is measured here.

    Attributes:
        where: in the paper.
        model: the paper's name of the model; `checkpoint` is that model as we call it, or ''.
        name: of the quantity; `ours` is what it is called among our values.
        text: as printed, with its unit.
        numbers: in our unit; a range as its two ends, none of a figure in words.
        note: what to know of it, or ''.
        without: why nothing of ours stands beside it, or ''.
    """

    where: str
    model: str
    checkpoint: str
    name: str
    ours: str
    text: str
    numbers: tuple[float, ...]
    note: str
    without: str


@dataclass(frozen=True)
class Decision(Judgement):
    """A test that is put to a model, and what came of it.

    Attributes:
        decides: whether the verdict on the whole rests on it.
        role: 'tests', 'applies' where it says that the model is not judged (yet), or 'needs' where
            one model must pass it.
        reported: the paper's figures of the same quantity: of the same model where there are any,
            else of others.
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
    """

    stored: Result
    run: str

    @cached_property
    def result(self) -> Result:
        """As today's criterion judges the same values; the stored one where that is the same."""
        return self.stored.today or self.stored

    @cached_property
    def names(self) -> dict[str, str]:
        """Model -> how pages call it."""
        measured = (value.model for value in self.result.values)
        models = list(dict.fromkeys([*measured, *self.result.not_run]))
        return dict(zip(models, short_names(models), strict=True))

    @cached_property
    def _values(self) -> dict[str, dict[str, Value]]:
        return by_model(self.result.values)

    @cached_property
    def rows(self) -> list[Decision]:
        """Every test that was put to a model: what decided first, models not concerned last.

        Among the deciding ones, those of a refuted claim stand by how clear they are, those of a
        supported one by how near to failing.
        """
        criterion, whole, rows = self.result.claim.criterion, self.result.verdict, []
        for one in self.result.verdicts:
            model, verdict = one["model"], one["verdict"]
            _, role, decisive = criterion.decisive(model, self._values[model])
            tests = decisive if role == "applies" else _put(criterion.tests, model)
            for test in tests:
                decides = verdict == whole and test in decisive
                rows.append(self._row(model, verdict, test, role, decides))
            if model in self._lacking:
                needs = _put(criterion.needs, model)
                rows += [self._row(model, whole, test, "needs", True) for test in needs]
        return sorted(rows, key=self._place)

    def _row(self, model: str, verdict: str, test: Test, role: str, decides: bool) -> Decision:
        claim, name = self.result.claim, test.value.removesuffix("_seeds")
        figures = [figure for figure in reported_figures(claim) if figure.ours == name]
        figures = [figure for figure in figures if figure.checkpoint == model] or figures
        judged = (claim.id, self.run, model, test, self._values[model].get(test.value), verdict)
        return Decision(*judged, decides, role, tuple(figures), self.names[model])

    def _place(self, row: Decision) -> tuple[bool, bool, float]:
        aside = not row.applicable and self.result.verdict != "not applicable"
        sign = {"refuted": -1, "supported": 1}.get(self.result.verdict, 0) * row.decides
        clear = inf if row.distance is None else row.distance
        return aside, not row.decides, sign * clear if sign else 0

    @property
    def _lacking(self) -> list[str]:
        """The supported models where none of them, nor any other, has what the whole needs."""
        verdicts = {one["model"]: one["verdict"] for one in self.result.verdicts}
        if self.result.verdict != "inconclusive" or "inconclusive" in verdicts.values():
            return []
        return [model for model, verdict in verdicts.items() if verdict == "supported"]

    @property
    def untested(self) -> list[str]:
        """The models to which none of the tests is put; they have no row."""
        tested = {row.model for row in self.rows}
        return [one["model"] for one in self.result.verdicts if one["model"] not in tested]

    @property
    def deciders(self) -> list[str]:
        """The models on which the verdict rests, that of the first row first."""
        return list(dict.fromkeys(row.model for row in self.rows if row.decides))

    @property
    def by(self) -> str:
        """`decided by MODEL, n = 1,000 images`, or `left open by`; '' where no model decided."""
        if not self.deciders or self._lacking:
            return ""
        first, more = self.rows[0], len(self.deciders) - 1
        how = "left open by" if self.result.verdict == "inconclusive" else "decided by"
        text = f"{how} {first.name}" + (f" and {more} more" if more else "")
        n = behind(first.value, first.term)
        return f"{text}, {n}" if n else text

    @property
    def answer(self) -> str:
        """The verdict and the first test that decided it, in one sentence."""
        verdict = self.result.verdict.capitalize()
        if self._lacking:
            lacks = f"none of them has {self._needed}"
            return f"{verdict}: it holds on each model measured, but {lacks}."
        if not self.deciders:
            return f"{verdict}: {self.result.reason}"
        first = self.rows[0]
        quantity = f"{verdict}: {_in_sentence(first.term.label)}"
        if first.value is None:
            return f"{quantity}: not measured."
        rest = {
            "Inconclusive": f"which does not decide whether it is {first.asked}",
            "Not applicable": f"and the claim is about models where it is {first.asked}",
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


def reported_figures(claim: Claim) -> list[Reported]:
    """The paper's figures, as the registry has them."""
    figures = []
    for row in claim.reported:
        printed = row.get("range") or ([row["value"]] if "value" in row else [])
        text = row.get("text") or " to ".join(f"{x:,.10g}" for x in printed)
        figures.append(
            Reported(
                where=row["where"],
                model=row["model"],
                checkpoint=claim.source.models.get(row["model"], ""),
                name=row["name"],
                ours=row.get("ours", row["name"]),
                text=f"{text} {row['unit']}".strip(),
                numbers=tuple(SCALES.get(row["unit"], 1.0) * x for x in printed),
                note=row.get("note", ""),
                without=row.get("without", ""),
            )
        )
    return figures


def _put(tests: Sequence[Test], model: str) -> list[Test]:
    return [test for test in tests if test.concerns(model)]


def _in_sentence(label: str) -> str:
    """A label within a sentence: with a small first letter, unless it begins with a name."""
    word = label.split()[0]
    is_name = word.endswith("'s") or word[1:].lower() != word[1:] or not word[0].isalpha()
    return label if is_name else label[0].lower() + label[1:]
