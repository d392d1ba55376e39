"""What hand-written pages, which are templates, may take from stored results.

A page says `{{ v('RUN', 'CLAIM', 'NAME', 'MODEL') }}` where it wants a number, and declares what a
sentence rests on: `{{ evidence(['RUN', 'CLAIM', 'refuted'], ['RUN', 'CLAIM', 'MODEL', 'N > 0.5'])
}}` shows each claim with its verdict and each comparison with its value, folded;
`badges` shows the first claim alone. `{{ picture('RUN', 'CLAIM', 'CAPTION') }}` shows a figure.
Where a comparison no longer holds, the page says so. A verdict that is not the stored one and a
value that does not exist end the build.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jinja2

from helpers.book.book import Book
from helpers.book.claim_page import pictures
from helpers.book.finding import Finding
from helpers.book.render import SHARE_OF, SIDES, macro, one_line, render, with_interval
from helpers.book.render import number as in_unit
from helpers.claims.criteria import OUTCOMES, Test, Value
from helpers.claims.markdown import inert
from helpers.claims.registry import Term, term

SPANS = "spans"  # of sentences alone: the interval holds the number, so neither side is shown
WORDS = {**SIDES, SPANS: "cannot be told from"}
FUNCTIONS = (  # of a page
    *("v", "number", "percent", "n", "verdict", "in_trainings"),
    *("evidence", "badges", "picture"),
)
_PAGES = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
_SHARE_TERM = Term("", SHARE_OF)
_COMPARISON = re.compile(rf"(\w[\w.:/-]*) +(>=|<=|>|<|{SPANS}) +([-+.\de]+)")


@dataclass
class TemplateValues:
    """What pages may take from the published results of a book.

    Each method raises ValueError for a result, value or verdict that is not there.

    Attributes:
        pictures: file below `book/` -> SVG of each figure that a page has shown.
    """

    book: Book
    pictures: dict[str, str] = field(default_factory=dict)

    def finding(self, run: str, claim: str) -> Finding:
        if claim not in self.book.runs.get(run, {}):
            raise ValueError(f"there is no published result of {claim!r} in run {run!r}")
        return self.book.runs[run][claim]

    def value(self, run: str, claim: str, name: str, model: str) -> Value:
        value = self.finding(run, claim).stored.by_model.get(model, {}).get(name)
        if value is None:
            raise ValueError(f"the result of {claim} in run {run} has no {name!r} of {model!r}")
        return value

    def comparison(self, run: str, claim: str, model: str, says: str) -> dict[str, Any]:
        """A value and where it must lie, as in `auc > 0.6` or `gain spans 0`: `outcome` is True
        where the whole interval lies so, None where that is undecided.
        """
        if not (parts := _COMPARISON.fullmatch(says.strip())):
            raise ValueError(f"{says!r} is no comparison")
        name, op, number = parts[1], parts[2], float(parts[3])
        value, words = self.value(run, claim, name, model), term(claim, name)
        # Of 'spans' the test that must stay undecided.
        test = Test(name, ">" if op == SPANS else op, number)
        outcome = test.outcome(value)
        if op == SPANS:
            outcome = bool(value.ends) and value.ends[0] <= number <= value.ends[1]
        said = "as stated" if op == SPANS and outcome else OUTCOMES[outcome]
        return {
            "run": run, "claim": claim, "value": value, "test": test, "outcome": outcome,
            "term": words, "amount": with_interval(value, words),
            "says": f"{WORDS[op]} {in_unit(number, words.unit).removeprefix('+')}: {said}",
        }  # fmt: skip

    def rests_on(self, declared: Sequence[Sequence[str]]) -> dict[str, Any]:
        """What a text rests on: lists of run, claim, model and comparison, and for each of these
        claims one of run, claim and the verdict beside which the text was written.
        """
        verdicts = {(row[0], row[1]): row[2] for row in declared if len(row) == 3}
        comparisons = [self.comparison(*row) for row in declared if len(row) != 3]
        pairs = dict.fromkeys([*verdicts, *((one["run"], one["claim"]) for one in comparisons)])
        found = [self.finding(*pair) for pair in pairs]
        for (run, claim), one in zip(pairs, found, strict=True):
            if one.stored.verdict != (said := verdicts.get((run, claim))):
                raise ValueError(
                    f"the verdict on {claim} in run {run} is {one.stored.verdict!r}, and this text "
                    f"declares {said!r}; see that it is still true"
                )
        return {"comparisons": comparisons, "verdicts": found, "doubtful": self.book.doubtful}

    def render(self, text: str, name: str, about: Sequence[str] = ()) -> str:
        """The text with its values filled in; `name` is what to call it in an error, `about` run
        and claim of a text about one result, which does not name them.
        """
        functions = {word: partial(getattr(self, word), *about) for word in FUNCTIONS}
        try:
            return _PAGES.from_string(text).render(functions)
        except (ValueError, TypeError, jinja2.TemplateError) as error:
            raise ValueError(f"{name}: {error}") from None

    # What a page calls.

    def v(self, run: str, claim: str, name: str, model: str, interval: bool = True) -> str:
        """A value, with its interval where this has a width in print.

        A share is given in %, as tables give it; any other unit is the sentence's.
        """
        value = self.value(run, claim, name, model)
        ends = (value.value, value.low, value.high)
        texts = {None if x is None else f"{x:.3g}" for x in ends}
        if not interval or len(texts) == 1:  # `1 [1, 1]` tells a reader nothing
            value = replace(value, low=None, high=None)
        share = term(claim, name).unit.startswith(SHARE_OF) and value.value is not None
        return with_interval(value, _SHARE_TERM) if share else inert(value)

    def number(self, *which: str) -> str:
        """A value without its interval."""
        return self.v(*which, interval=False)

    def percent(self, *which: str) -> str:
        """A share in per cent; with a decimal where it would look like none or all and is not."""
        share = 100 * self.value(*which).value
        return f"{share:.0f} %" if 1 <= share <= 99 or share in (0, 100) else f"{share:.1f} %"

    def n(self, *which: str) -> str:
        """How many images, or trainings, a value is of."""
        return f"{self.value(*which).n:,}"

    def verdict(self, run: str, claim: str) -> str:
        """The badge of a verdict."""
        result = self.finding(run, claim).stored
        doubt = macro("no_yes", result.shown[""], claim in self.book.doubtful)
        return macro("badge", result.shown[""], result.reason) + doubt

    def in_trainings(self, *which: str) -> str:
        """In how many trainings a comparison holds."""
        one = self.comparison(*which)
        return one["test"].in_trainings(one["value"])

    def evidence(self, *declared: Sequence[str]) -> str:
        """The table of what a text rests on, folded."""
        return f"\n{render('evidence.html.j2', **self.rests_on(declared))}\n"

    def badges(self, *declared: Sequence[str]) -> str:
        """The first claim that a text rests on, with its status, verdict and mark."""
        return f"\n{render('badges.html.j2', **self.rests_on(declared))}\n"

    def picture(self, run: str, claim: str, caption: str, figure: str = "", alt: str = "") -> str:
        """A figure of a published notebook: the `key` figure, or the one with this name, as in
        `nr1-histogram`. `alt` says what is seen, where the notebook's text does not.
        """
        figure = figure or self.book.key_figure(claim)
        if not (shown := pictures(self.finding(run, claim)).get(figure)):
            raise ValueError(f"the notebook of {claim} in run {run} has no figure {figure!r}")
        self.pictures[path := f"_generated/{shown['name']}"] = shown["content"]
        return (
            f"\n:::{{figure}} {path}\n:alt: {json.dumps(one_line(alt or shown['alt']))}\n"
            f":figclass: picture\n:target: ../_images/{shown['name']}\n\n"
            f"{caption} [{claim.partition('-')[0]}](claims/{claim}.md)\n:::\n"
        )
