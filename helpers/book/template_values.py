"""Hand-written pages are templates: what they may take from stored results.

A page says `{{ v('RUN', 'CLAIM', 'NAME', 'MODEL') }}` where it wants a number, and declares what a
sentence rests on: `{{ evidence(['RUN', 'CLAIM', 'MODEL', 'NAME > 0.5']) }}` shows the comparisons
with their values, and says so where one no longer holds. A value that does not exist ends the
build. Templates are filled in within Jinja's sandbox, so they reach nothing else.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from helpers.book.amounts import SIDES
from helpers.book.render import macro, one_line, raw, render
from helpers.claims.criteria import OUTCOMES, Test, Value
from helpers.claims.markdown import inert
from helpers.claims.registry import Registry, Term, term
from helpers.claims.result import Claim, Result
from helpers.names import short_name

SPANS = "spans"  # of sentences alone: the interval holds the number, so neither side is shown
WORDS = {**SIDES, SPANS: "not told from"}
_COMPARISON = re.compile(rf"(\w[\w.:/-]*) +(>=|<=|>|<|{SPANS}) +([-+.\de]+)")
# What text in an SVG must not mean to Markdown.
_MARKDOWN = str.maketrans({sign: f"&#{ord(sign)};" for sign in "_*`[]"})


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
    def outcome(self) -> bool | None:
        """True where the whole interval lies as the sentence says, None where it is undecided."""
        if self.op != SPANS:
            return self.test.outcome(self.value)
        low, high = self.value.ends or (None, None)
        return low is not None and low <= self.number <= high

    @property
    def holds(self) -> bool:
        """Whether the whole interval lies as the sentence says."""
        return self.outcome is True

    @property
    def test(self) -> Test:
        """The comparison as a test; of 'spans' the one that it must leave undecided."""
        return Test(self.value.name, ">" if self.op == SPANS else self.op, self.number)

    @property
    def term(self) -> Term:
        """What the value is called."""
        return term(self.claim.id, self.value.name)

    @property
    def says(self) -> str:
        """The comparison in words: `above 0.5: holds`."""
        return f"{WORDS[self.op]} {self.number:g}: {OUTCOMES[self.outcome]}"

    def bar(self, span: tuple[float, float] | None = None) -> str:
        """The value as an interval bar with the number as its margin."""
        label = f"{self.term.label}, {short_name(self.value.model)}"
        return macro("interval_bar", self.value, self.test, (), span, label)


@dataclass
class TemplateValues:
    """What hand-written pages may take from the results of published runs.

    Attributes:
        runs: run -> claim -> result, without the controls.
        broken: comparisons that no longer hold, by the name of the text that declared them; filled
            by `render`.
    """

    registry: Registry
    runs: Mapping[str, Mapping[str, dict]]
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
        found = {(value.name, value.model): value for value in self.result(run, claim).values}
        if (name, model) not in found:
            where = f"the result of {claim} in run {run}"
            raise ValueError(f"{where} has no value {name!r} of {model!r}; name one that it has")
        return found[name, model]

    def comparison(self, run: str, claim: str, model: str, says: str) -> Comparison:
        """Read `NAME > NUMBER`.

        Raises:
            ValueError: it is none, or the value does not exist.
        """
        if not (parts := _COMPARISON.fullmatch(says.strip())):
            raise ValueError(
                f"{says!r} is no comparison; write one such as 'auc > 0.6' or 'gain {SPANS} 0'"
            )
        name, op, number = parts.groups()
        value = self.value(run, claim, name, model)
        return Comparison(run, self.registry[claim], value, op, float(number))

    def render(self, text: str, name: str) -> str:
        """The text with its values filled in; `name` is what to call it in an error.

        Raises:
            ValueError: names the text and what is wrong, such as a value that no result has.
        """

        def evidence(*comparisons: Sequence[str]) -> str:
            own = [self.comparison(*one) for one in comparisons]
            self.broken.setdefault(name, []).extend(one for one in own if not one.holds)
            return f"\n{raw(render('evidence.html.j2', comparisons=own))}\n"

        def bar(run: str, claim: str, value: str, model: str, margin: str = "") -> str:
            if margin:
                drawn = self.comparison(run, claim, model, f"{value} {margin}").bar()
            else:
                label, own = term(claim, value).label, self.value(run, claim, value, model)
                drawn = macro("interval_bar", own, label=label)
            return one_line(str(drawn)).translate(_MARKDOWN)

        def verdict(run: str, claim: str) -> str:
            result = self.result(run, claim)
            return str(macro("badge", result.verdict, result.reason))

        def agreement(run: str, claim: str) -> str:
            return str(macro("agreement_badge", self.result(run, claim).agreement))

        return rendered(
            text,
            name,
            v=lambda *which: with_interval(self.value(*which)),
            number=lambda *which: inert(replace(self.value(*which), low=None, high=None, unit="")),
            percent=lambda *which: percent(self.value(*which)),
            n=lambda *which: f"{self.value(*which).n:,}",
            dataset=lambda *which: inert(self.value(*which).dataset),
            verdict=verdict,
            agreement=agreement,
            bar=bar,
            evidence=evidence,
        )


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


def with_interval(value: Value) -> str:
    """A value as prose quotes it: with its interval, where this has a width in print."""
    # An interval whose ends print as the value does tells a reader nothing: `1 [1, 1]`.
    if len({None if x is None else f"{x:.3g}" for x in (value.value, value.low, value.high)}) == 1:
        value = replace(value, low=None, high=None)
    return inert(value)


def moved(comparisons: Iterable[Comparison]) -> str:
    """What a sentence rested on and no longer does, as HTML; '' where all of it holds."""
    lost = [one for one in comparisons if not one.holds]
    return macro("moved", lost) if lost else ""


def percent(value: Value) -> str:
    """A share in per cent, with one decimal where it would look like none or all and is neither."""
    if value.value is None:
        return "undefined"
    share = 100 * value.value
    return f"{share:.0f} %" if 1 <= share <= 99 or share in (0, 100) else f"{share:.1f} %"
