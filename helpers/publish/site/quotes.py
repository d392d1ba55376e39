"""Hand-written pages that quote stored results: templates in Jinja's sandbox, which reach nothing else.

A page says `{{ v('RUN', 'CLAIM', 'NAME', 'MODEL') }}` where it wants a number, and declares what a sentence rests on:
`{{ evidence(['RUN', 'CLAIM', 'MODEL', 'NAME > 0.5']) }}` shows the comparisons with their values, and says so where one no longer
holds. A value that does not exist ends the build; one that moved is seen.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from helpers.names import short_name
from helpers.publish.claims import Claim, Result
from helpers.publish.criteria import OUTCOMES, Test, Value
from helpers.publish.markdown import inert
from helpers.publish.registry import Registry
from helpers.publish.site.marks import agreement_badge, badge, html, interval_bar
from helpers.publish.terms import term

SPANS = "spans"  # an operator of sentences, not of criteria: the interval holds the number, so neither side is shown
_COMPARISON = re.compile(rf"(\w[\w.:/-]*) +(>=|<=|>|<|{SPANS}) +([-+.\de]+)")
_MARKDOWN = str.maketrans({sign: f"&#{ord(sign)};" for sign in "_*`[]"})  # what text in an SVG must not mean to Markdown


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
    def holds(self) -> bool:
        """Whether the whole interval lies as the sentence says."""
        if self.op == SPANS:
            return self.value.ends is not None and self.value.ends[0] <= self.number <= self.value.ends[1]
        return self.test.outcome(self.value) is True

    @property
    def test(self) -> Test:
        """The comparison as a test; of 'spans' the one that it must leave undecided."""
        return Test(self.value.name, ">" if self.op == SPANS else self.op, self.number)

    @property
    def label(self) -> str:
        """What the value is called."""
        return term(self.claim.id, self.value.name).label

    @property
    def unit(self) -> str:
        """The value's unit, '' for a plain ratio."""
        return term(self.claim.id, self.value.name).unit

    @property
    def page(self) -> str:
        """The HTML page of the result, from the folder `book/`."""
        return f"runs/{self.run}/{self.claim.id}.html"

    @property
    def says(self) -> str:
        """The comparison in words: `above 0.5: holds`."""
        word = {">": "above", ">=": "at least", "<": "below", "<=": "at most", SPANS: "not told from"}[self.op]
        outcome = ("holds" if self.holds else "fails") if self.op == SPANS else OUTCOMES[self.test.outcome(self.value)]
        return f"{word} {self.number:g}: {outcome}"

    def bar(self, span: tuple[float, float] | None = None) -> str:
        """The value as an interval bar with the number as its margin."""
        return interval_bar(self.value, self.test, span=span, label=f"{self.label}, {short_name(self.value.model)}")

    def __str__(self) -> str:
        where = f"{self.run}, {self.claim.id}, {self.value.model}"
        return f"{where}: {self.value.name} = {self.value} is not {self.op} {self.number:g}"


@dataclass
class Quotes:
    """What hand-written pages may quote: the results of published runs.

    Attributes:
        runs: run -> claim -> result, without the controls.
        broken: comparisons that no longer hold, by the name of the text that declared them; filled by `render`.
    """

    registry: Registry
    runs: Mapping[str, Mapping[str, dict]]
    broken: dict[str, list[Comparison]] = field(default_factory=dict)

    def result(self, run: str, claim: str) -> Result:
        """A published result. Raises ValueError where there is none."""
        if claim not in self.runs.get(run, {}):
            raise ValueError(f"there is no result of {claim!r} in a run {run!r}; quote one that is published")
        return Result.from_json(self.registry[claim], self.runs[run][claim])

    def value(self, run: str, claim: str, name: str, model: str) -> Value:
        """A stored value. Raises ValueError where there is none."""
        for value in self.result(run, claim).values:
            if (value.name, value.model) == (name, model):
                return value
        raise ValueError(f"the result of {claim} in run {run} has no value {name!r} of {model!r}; quote one that it has")

    def comparison(self, run: str, claim: str, model: str, says: str) -> Comparison:
        """Read `NAME > NUMBER`. Raises ValueError where it is none, or where the value does not exist."""
        if not (parts := _COMPARISON.fullmatch(says.strip())):
            raise ValueError(f"{says!r} is no comparison; write one such as 'auc > 0.6' or 'gain {SPANS} 0'")
        name, op, number = parts.groups()
        return Comparison(run, self.registry[claim], self.value(run, claim, name, model), op, float(number))

    def render(self, text: str, name: str) -> str:
        """The text with its quotes filled in; `name` is what to call it in an error.

        Raises ValueError that names the text and what is wrong, such as a value that no result has.
        """

        def evidence(*comparisons: Sequence[str]) -> str:
            own = [self.comparison(*one) for one in comparisons]
            self.broken.setdefault(name, []).extend(one for one in own if not one.holds)
            return evidence_table(own)

        def bar(run: str, claim: str, value: str, model: str, margin: str = "") -> str:
            if margin:
                return self.comparison(run, claim, model, f"{value} {margin}").bar().translate(_MARKDOWN)
            quote = self.value(run, claim, value, model)
            return interval_bar(quote, label=term(claim, value).label).translate(_MARKDOWN)

        return rendered(
            text,
            name,
            v=lambda *what: quoted(self.value(*what)),
            number=lambda *what: inert(replace(self.value(*what), low=None, high=None, unit="")),
            percent=lambda *what: _percent(self.value(*what)),
            n=lambda *what: _images(self.value(*what)),
            dataset=lambda *what: inert(self.value(*what).dataset),
            verdict=lambda run, claim: badge((result := self.result(run, claim)).verdict, result.reason),
            agreement=lambda run, claim: agreement_badge(self.result(run, claim).agreement),
            bar=bar,
            evidence=evidence,
        )


def rendered(text: str, name: str, **known: Callable[..., Any]) -> str:
    """A template filled in. It may compute with what is `known`, but reaches nothing else (Jinja's sandbox).

    Raises ValueError that names the text and what is wrong.
    """
    try:
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
        return environment.from_string(text).render(**known)
    except Exception as error:  # what an expression raises has no end of kinds
        raise ValueError(f"{name}: {' '.join(str(error).split())}") from None


def quoted(value: Value) -> str:
    """A value as prose quotes it: with its interval, where this has a width in print."""
    # An interval whose ends print as the value does tells a reader nothing: `1 [1, 1]`.
    if len({None if x is None else f"{x:.3g}" for x in (value.value, value.low, value.high)}) == 1:
        value = replace(value, low=None, high=None)
    return inert(value)


def evidence_table(comparisons: Sequence[Comparison]) -> str:
    """What a finding rests on, a row a comparison, as Markdown that shows HTML; with a warning where one does not hold."""
    rows = []
    for one in comparisons:
        model, held = short_name(one.value.model), "holds" if one.holds else "moved"
        unit = f" <small>{html(one.unit)}</small>" if one.unit else ""
        rows.append(
            f"<tr class='{held}'><td><a href='{one.page}'>{html(one.label)}</a><br>"
            f"<small title='{html(one.value.model)}'>{html(model)}{_with_n(one.value)}</small></td>"
            f"<td class='bar'>{one.bar()}</td><td>{html(one.value)}{unit}<br><small>{html(one.says)}</small></td></tr>"
        )
    head = "<thead><tr><th scope='col'>What it rests on</th><th scope='col'>Measured, and the line it is held to</th>"
    table = f"<table class='evidence'>{head}<th scope='col'>Value</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return "\n".join(["", "```{raw} html", *_warning(comparisons), table, "```", ""])


def moved(comparisons: Iterable[Comparison]) -> str:
    """What a sentence rested on and no longer does, in words; '' where all of it holds. HTML."""
    lost = [f"{one.label} ({short_name(one.value.model)}): {one.value}, {one.says}" for one in comparisons if not one.holds]
    return html(f"No longer so as it is written. {'; '.join(lost)}.") if lost else ""


def _warning(comparisons: Iterable[Comparison]) -> list[str]:
    text = moved(comparisons)
    return [f"<p class='moved' role='note'>{text}</p>"] if text else []


def _with_n(value: Value) -> str:
    return "" if value.n is None else f", n = {value.n:,}"


def _images(value: Value) -> str:
    if value.n is None:
        raise ValueError(f"{value.name!r} of {value.model!r} is a plain number and has no n; quote another")
    return f"{value.n:,}"


def _percent(value: Value) -> str:
    """A share as a whole number of per cent, with one decimal where it is neither none nor all and would look like it."""
    if value.value is None:
        return "undefined"
    share = 100 * value.value
    return f"{share:.0f} %" if 1 <= share <= 99 or share in (0, 100) else f"{share:.1f} %"
