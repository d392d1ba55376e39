"""Pages from templates: one Jinja environment over `templates/`, with a filter for each kind of
number and text.

What ends in `.html.j2` is HTML: whatever is filled in is escaped, unless a template made it. What
ends in `.md.j2` is MyST Markdown: data go through the filter `inert`, HTML through `raw`.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from helpers.claims.criteria import IMAGES, NO_YES, OUTCOMES, Test, Value, of_trainings
from helpers.claims.markdown import cell, code, inert
from helpers.claims.registry import Term, term
from helpers.names import plural, short_name

SIDES = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}
SHARE_OF = "share of "  # how the unit of a part of something begins
TRAININGS = "trainings"
WIDTH, EDGE = 240, 6  # of a bar, and what is left free at its ends for a mark (macros.html.j2)
WHOLE = 1e-6  # how near to a whole number a count of images comes, after the rounding of floats


def render(template: str, **data: Any) -> str:
    """A template of `templates/` filled in, as Markdown; a template of HTML as a raw block."""
    text = environment().get_template(template).render(**data).strip()
    return raw(text) if text and template.endswith(".html.j2") else text


def macro(name: str, *args: Any, **data: Any) -> Markup:
    """What the macro `name` of `macros.html.j2` makes of its arguments."""
    return getattr(environment().get_template("macros.html.j2").module, name)(*args, **data)


def one_line(text: str) -> str:
    """A text without line breaks and repeated spaces, escaped or not as it was."""
    return type(text)(" ".join(text.split()))


def distinct(items: Iterable) -> list:
    """The items without repetitions, in order; they need not be hashable."""
    return list({str(item): item for item in items}.values())


def raw(html: str) -> str:
    """HTML as a block of Markdown; on one line, so that nothing in it can end the block."""
    return f"```{{raw}} html\n{one_line(html)}\n```"


def in_sentence(label: str) -> str:
    """A label within a sentence: with a small first letter, unless it begins with a name."""
    word = label.split()[0]
    is_name = word.endswith("'s") or word[1:].lower() != word[1:] or not word[0].isalpha()
    return label if is_name else label[0].lower() + label[1:]


def with_interval(value: Value | None, term: Term) -> str:
    """A value with its interval: `0.63 [0.62, 0.64]`, `998 of 1,000 images (99.3 to 99.9 %)`."""
    if value is None:
        return "not measured"
    if value.value is None:
        return "not defined"
    count = _count(value, term)
    text = count or number(value.value, term.unit)
    if not value.is_bounded:
        return text
    middle, low, high = (_bare(x, term.unit) for x in (value.value, value.low, value.high))
    if low == middle == high:  # it tells a reader nothing
        return text
    return f"{text} ({low} to {high} %)" if count else f"{text} [{low}, {high}]"


def number(x: float, unit: str = "") -> str:
    """A number in its unit, to three digits; those of a p-value to two. Shares are given in %."""
    if unit == "p-value":
        return "p < 0.001" if x < 0.001 else f"p = {float(f'{x:.2g}'):g}"
    bare = _bare(x, unit)
    named = "%" if unit.startswith(SHARE_OF) else "" if unit == "count" else unit
    if unit == "points" and bare.lstrip("+-") == "1":
        named = "point"
    return f"{bare} {named}".strip()


def as_reported(figure: Mapping, unit: str) -> str:
    """A figure of the paper in the unit of ours where both are shares or %, else as printed."""
    plain = figure["numbers"] and not figure["unit"] and (unit.startswith(SHARE_OF) or unit == "%")
    return " to ".join(number(x, SHARE_OF) for x in figure["numbers"]) if plain else figure["text"]


def threshold(test: Test, unit: str = "") -> str:
    """What a test asks for: `above 5 %`. Points have no sign here."""
    return f"{SIDES[test.op]} {number(test.margin, unit).removeprefix('+')}"


def counted(value: Value, term: Term) -> str:
    """What the n of a value counts, in the plural."""
    return TRAININGS if value.trainings else term.of


def interval_over(value: Value, term: Term) -> str:
    """What the interval of a value is over, '' where it has none."""
    return "" if not value.is_bounded else term.of if value.over == IMAGES else value.over


def sample_size(value: Value | None, term: Term) -> str:
    """`n = 1,000 images`, or `n = 3 trainings, interval over images of these`."""
    if not value or not value.n:
        return ""
    what, interval = counted(value, term), interval_over(value, term)
    more = f", interval over {interval} of these" if interval not in ("", what) else ""
    return f"n = {value.n:,} {what}{more}"


def each_training(value: Value, term: Term) -> str:
    """What each training gave, and how many are in the higher of two clusters if there are two."""
    found = ", ".join(number(one, term.unit) for one, *_ in value.trainings)
    higher = value.higher
    if higher is None:
        return found
    return f"{found}; {of_trainings(higher, value.n)} in the higher of two clusters"


def _bare(x: float, unit: str) -> str:
    """A number without its unit, to three digits and at most four decimals; points have a sign."""
    if unit == "count" and float(x).is_integer():
        return f"{x:,.0f}"
    sign = "+" if unit == "points" and x > 0 else ""
    x = 100 * x if unit.startswith(SHARE_OF) else x
    x = round(x) if abs(x) >= 1000 else round(float(f"{x:.3g}"), 4)
    return f"{sign}{x + 0:,.10g}" if x else f"{sign}0"


def _count(value: Value, term: Term) -> str:
    """So many of so many, where a value is a share of its images or of a number in its unit."""
    what = term.unit.partition(SHARE_OF)[2]
    total, _, named = what.partition(" ")
    if not total.isdecimal():
        total, named = (value.n if what == counted(value, term) else None), what
    if not total:
        return ""
    n, of = int(total), value.value * int(total)
    return f"{round(of):,} of {n:,} {named}" if abs(of - round(of)) <= WHOLE * n else ""


def axis(
    values: Iterable[Value | None], marks: Iterable[float], unit: str = ""
) -> tuple[float, float]:
    """The ends of an axis for bars of these values and marks; 0 to 1 of shares by the `unit`."""
    drawn = (x for value in values if value and value.ends for x in (value.value, *value.ends))
    numbers = [number for number in (*marks, *drawn) if math.isfinite(number)]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    if unit.startswith(SHARE_OF) and 0 <= low and high <= 1:
        return 0.0, 1.0
    spare = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return low - spare, high + spare


def x_of(number: float, span: tuple[float, float]) -> float:
    """Where a number lies on a bar with this axis (`WIDTH`); at an end where it is beyond."""
    low, high = span
    share = (min(max(number, low), high) - low) / (high - low)
    return round(EDGE + share * (WIDTH - 2 * EDGE), 1)


@cache
def environment() -> Environment:
    """The environment of all templates, with its filters."""
    env = Environment(
        loader=PackageLoader("helpers.book"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts = (cell, code, distinct, in_sentence, inert, one_line, plural, raw, short_name)
    numbers = (as_reported, each_training, number, sample_size, threshold, with_interval, x_of)
    for function in (*texts, *numbers):
        env.filters[function.__name__] = function
    env.globals |= dict(axis=axis, term=term, OUTCOMES=OUTCOMES, NO_YES=NO_YES)
    return env
