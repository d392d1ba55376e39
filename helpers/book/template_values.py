"""Hand-written pages are templates: what they may take from stored results.

A page says `{{ v('RUN', 'CLAIM', 'NAME', 'MODEL') }}` where it wants a number, and declares what a
sentence rests on: `{{ evidence(['RUN', 'CLAIM', 'refuted'], ['RUN', 'CLAIM', 'MODEL', 'N > 0.5'])
}}` shows each claim with its verdict and each comparison with its value. The cards of the landing
page (book/cards.yml) do so, too. Where a comparison no longer holds, the page says so. A verdict
that is not the stored one and a value that does not exist end the build. Templates are filled in
within Jinja's sandbox, so they reach nothing else.
"""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from helpers.book.decisions import Decisions, shared_axes
from helpers.book.fragments import called
from helpers.book.render import SHARE, SIDES, Runs, amount, macro, render
from helpers.claims.criteria import OUTCOMES, Test, Value
from helpers.claims.markdown import inert
from helpers.claims.registry import Registry, Term, term
from helpers.claims.result import Claim, Result

SPANS = "spans"  # of sentences alone: the interval holds the number, so neither side is shown
WORDS = {**SIDES, SPANS: "cannot be told from"}
_COMPARISON = re.compile(rf"(\w[\w.:/-]*) +(>=|<=|>|<|{SPANS}) +([-+.\de]+)")


@dataclass(frozen=True)
class Comparison:
    """One thing that a sentence rests on: a stored value and where it must lie.

    Attributes:
        run: of the result; `claim` its claim, `value` the value, which names its model.
        op: of `Test`, or 'spans', where the interval must hold `number`.
    """

    run: str
    claim: Claim
    value: Value
    op: str
    number: float

    @property
    def test(self) -> Test:
        """The comparison as a test; of 'spans' the one that it must leave undecided."""
        return Test(self.value.name, ">" if self.op == SPANS else self.op, self.number)

    @property
    def outcome(self) -> bool | None:
        """True where the whole interval lies as the sentence says, None where it is undecided."""
        if self.op != SPANS:
            return self.test.outcome(self.value)
        return bool(self.value.ends) and self.value.ends[0] <= self.number <= self.value.ends[1]

    @property
    def term(self) -> Term:
        """What the value is called."""
        return term(self.claim.id, self.value.name)

    @property
    def told(self) -> str:
        """The value with its interval, a share in %."""
        share = self.term.unit.startswith(SHARE)
        return amount(self.value, replace(self.term, unit=SHARE) if share else self.term)

    @property
    def says(self) -> str:
        """The comparison in words: `above 0.5: holds`."""
        outcome = "as stated" if self.op == SPANS and self.outcome else OUTCOMES[self.outcome]
        return f"{WORDS[self.op]} {self.number:g}: {outcome}"


@dataclass
class TemplateValues:
    """What hand-written pages may take from the results of published runs.

    Attributes:
        runs: run -> claim -> result, without the controls.
        doubtful: claims whose test was never seen to say yes (`board.never_positive`).
        broken: comparisons that no longer hold, by the name of the text that declared them; filled
            by `render` and `cards`.
    """

    registry: Registry
    runs: Runs
    doubtful: Set[str] = frozenset()
    broken: dict[str, list[Comparison]] = field(default_factory=dict)

    def result(self, run: str, claim: str) -> Result:
        """A published result. Raises ValueError where there is none."""
        if claim not in self.runs.get(run, {}):
            raise ValueError(
                f"there is no result of {claim!r} in a run {run!r}; name one that is published"
            )
        return Result.from_json(self.registry[claim], self.runs[run][claim])

    def value(self, run: str, claim: str, name: str, model: str) -> Value:
        """A stored value. Raises ValueError where there is none."""
        for value in self.result(run, claim).values:
            if (value.name, value.model) == (name, model):
                return value
        where = f"the result of {claim} in run {run}"
        raise ValueError(f"{where} has no value {name!r} of {model!r}; name one that it has")

    def comparison(self, run: str, claim: str, model: str, says: str) -> Comparison:
        """One of `comparisons`, with their errors."""
        if not (parts := _COMPARISON.fullmatch(says.strip())):
            raise ValueError(
                f"{says!r} is no comparison; write one such as 'auc > 0.6' or 'gain {SPANS} 0'"
            )
        name, op, number = parts.groups()
        value = self.value(run, claim, name, model)
        return Comparison(run, self.registry[claim], value, op, float(number))

    def comparisons(self, text: str, declared: Sequence[Sequence[str]]) -> list[Comparison]:
        """Read lists of run, claim, model and `NAME > NUMBER`, on which the text `text` rests.

        Raises:
            ValueError: one is no comparison, or the value does not exist.
        """
        found = [self.comparison(*one) for one in declared]
        self.broken.setdefault(text, []).extend(one for one in found if one.outcome is not True)
        return found

    def rests_on(self, text: str, declared: Sequence[Sequence[str]]) -> dict[str, list]:
        """What the text `text` rests on: `comparisons`, with the `spans` of their bars, and of each
        claim its run and what decided it, the `verdicts`.

        Args:
            declared: what `comparisons` reads, and for each of these claims a list of run, claim
                and the verdict beside which the text was written.

        Raises:
            ValueError: the stored verdict is another one, or a claim has none declared; and the
                errors of `comparisons`.
        """
        said_of = {(row[0], row[1]): row[2] for row in declared if len(row) == 3}
        comparisons = self.comparisons(text, [row for row in declared if len(row) != 3])
        claims = dict.fromkeys([*said_of, *((one.run, one.claim.id) for one in comparisons)])
        for run, claim in claims:
            result, said = self.result(run, claim), said_of.get((run, claim), "none")
            if said != result.verdict:
                raise ValueError(
                    f"the verdict on {result.id} in run {run} is {result.verdict!r}, and this text "
                    f"declares {said!r}; see that it is still true, and declare "
                    f"[{run}, {result.id}, {result.verdict}]"
                )
        found = [(run, Decisions(self.registry[id], self.runs[run][id])) for run, id in claims]
        return {
            "comparisons": comparisons,
            "spans": shared_axes(comparisons),
            "verdicts": found,
            "doubtful": self.doubtful,
        }

    def render(self, text: str, name: str) -> str:
        """The text with its values filled in; `name` is what to call it in an error.

        Raises:
            ValueError: names the text and what is wrong, such as a value that no result has.
        """

        def evidence(*declared: Sequence[str]) -> str:
            return f"\n{render('evidence.html.j2', **self.rests_on(name, declared))}\n"

        def verdict(run: str, claim: str) -> str:
            result = self.result(run, claim)
            shown = result.shown[""]
            doubt = macro("no_yes", shown, claim in self.doubtful)
            return macro("badge", shown, result.reason) + doubt

        def in_trainings(*which: str) -> str:
            one = self.comparison(*which)
            if not one.value.trainings:
                raise ValueError(
                    f"{one.value.name} of {one.value.model} is of no several trainings"
                )
            return one.test.in_trainings(one.value)

        more = {"in_trainings": in_trainings, "verdict": verdict, "evidence": evidence}
        return rendered(text, name, **self.quotes, **more)

    @property
    def quotes(self) -> dict[str, Callable[..., str]]:
        """What quotes one value, from its run, claim, name and model: as pages and readings do."""

        def quoted(run: str, claim: str, name: str, model: str) -> str:
            return with_interval(self.value(run, claim, name, model), term(claim, name).unit)

        def number(run: str, claim: str, name: str, model: str) -> str:
            value = replace(self.value(run, claim, name, model), low=None, high=None)
            return with_interval(value, term(claim, name).unit)

        return {
            "v": quoted,
            "number": number,
            "percent": lambda *which: percent(self.value(*which)),
            "n": lambda *which: f"{self.value(*which).n:,}",
        }


def cards(path: Path, values: TemplateValues) -> str:
    """The cards of the landing page, as HTML in Markdown; '' where the file is missing.

    A card is data: a sentence with quoted values, and the comparisons and verdicts that it rests
    on. Where a comparison no longer holds, the card says so.

    Raises:
        ValueError: names the file where a card lacks a field, quotes what does not exist, or
            declares another verdict than the stored one.
    """
    if not path.is_file():
        return ""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for card in data["cards"]:
            card |= values.rests_on(path.name, card["rests_on"])
            card["says"] = Markup(values.render(card["says"], path.name).strip())
            shown = [card["comparisons"][which] for which in card["shows"].values()]
            card["shows"] = [*zip(card["shows"], shown, shared_axes(shown), strict=True)]
        return render("landing_cards.html.j2", **data, doubtful=values.doubtful, called=called)
    except KeyError as error:
        raise ValueError(f"{path.name}: a card has no field {error}; give it one") from None
    except Exception as error:  # what data of any form and its templates raise has many kinds
        reason = " ".join(str(error).split()).removeprefix(f"{path.name}: ")
        raise ValueError(f"{path.name}: {reason}") from None


def rendered(text: str, name: str, **known: Callable[..., Any]) -> str:
    """A template filled in, in Jinja's sandbox: it may compute with what is `known`.

    Raises:
        ValueError: names the text and what is wrong.
    """
    try:
        environment = ImmutableSandboxedEnvironment(
            undefined=StrictUndefined, keep_trailing_newline=True
        )
        return environment.from_string(text).render(**known)
    except Exception as error:  # what an expression raises has no end of kinds
        raise ValueError(f"{name}: {' '.join(str(error).split())}") from None


def with_interval(value: Value, unit: str = "") -> str:
    """A value as prose quotes it: with its interval, where this has a width in print.

    A share is given in %, as tables give it; any other unit is the sentence's.
    """
    if unit.startswith(SHARE) and value.value is not None:
        return amount(value, Term("", SHARE))
    # An interval whose ends print as the value does tells a reader nothing: `1 [1, 1]`.
    if len({None if x is None else f"{x:.3g}" for x in (value.value, value.low, value.high)}) == 1:
        value = replace(value, low=None, high=None)
    return inert(value)


def percent(value: Value) -> str:
    """A share in per cent, with one decimal where it would look like none or all and is neither."""
    if value.value is None:
        return "undefined"
    share = 100 * value.value
    return f"{share:.0f} %" if 1 <= share <= 99 or share in (0, 100) else f"{share:.1f} %"
