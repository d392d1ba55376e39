"""Measured values in words and on a bar: with their unit, their interval, and counts as counts."""

import math
from collections.abc import Iterable, Sequence

from helpers.claims.criteria import Test, Value
from helpers.claims.registry import Term

SIDES = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}
SHARE = "share of "
WIDTH, EDGE = 240, 6  # of a bar, and what is left free at its ends for a mark (macros.html.j2)
WHOLE = 1e-6  # how near to a whole number a count of images comes, after the rounding of floats


def amount(value: Value | None, term: Term) -> str:
    """A value with its interval: `0.63 [0.62, 0.64]`, `998 of 1,000 images (99.3 to 99.9 %)`."""
    if value is None:
        return "not measured"
    if value.value is None:
        return "not defined"
    count, bare = _count(value, term), _bare(value.value, term.unit)
    low, high = ("?" if x is None else _bare(x, term.unit) for x in (value.low, value.high))
    text = count or number(value.value, term.unit)
    # An interval whose ends print as the value does tells a reader nothing.
    if low == high and low in ("?", bare):
        return text
    return f"{text} ({low} to {high} %)" if count else f"{text} [{low}, {high}]"


def number(x: float, unit: str = "") -> str:
    """A number in its unit, to three digits; those of a p-value to two. Shares are given in %."""
    if unit == "p-value":
        return "p < 0.001" if x < 0.001 else f"p = {float(f'{x:.2g}'):g}"
    bare = _bare(x, unit)
    named = "%" if unit.startswith(SHARE) else "" if unit == "count" else unit
    if unit == "points" and bare.lstrip("+-") == "1":
        named = "point"
    return f"{bare} {named}".strip()


def _bare(x: float, unit: str) -> str:
    """A number without its unit, as it stands in an interval; points have a sign."""
    if unit == "count" and float(x).is_integer():
        return f"{x:,.0f}"
    if unit.startswith(SHARE):
        return _digits(100 * x)
    return "+" * (unit == "points" and x > 0) + _digits(x)


def asked(test: Test, unit: str = "") -> str:
    """What a test asks for: `above 5 %`. Points have no sign here."""
    return f"{SIDES[test.op]} {number(test.margin, unit).removeprefix('+')}"


def behind(value: Value | None, term: Term) -> str:
    """`n = 1,000 images`, '' of a plain number."""
    return f"n = {value.n:,} {term.of}" if value is not None and value.n else ""


def _count(value: Value, term: Term) -> str:
    """So many of so many, where a value is a share of its images or of a number that its unit names.

    '' for any other value.
    """  # noqa: E501
    if not term.unit.startswith(SHARE):
        return ""
    what = term.unit.removeprefix(SHARE)
    total, _, named = what.partition(" ")
    if total.isdecimal():
        n = int(total)
    elif what == term.of and value.n:
        n, named = value.n, what
    else:
        return ""
    of = value.value * n
    return f"{round(of):,} of {n:,} {named}" if abs(of - round(of)) <= WHOLE * n else ""


def _digits(x: float) -> str:
    """Three significant digits, at most four decimals; whole numbers above 999 in full."""
    if not math.isfinite(x):
        return "unbounded"
    x = round(x) if abs(x) >= 1000 else round(float(f"{x:.3g}"), 4)
    return f"{x + 0:,.10g}" if x else "0"


def drawn_numbers(
    values: Iterable[Value | None], tests: Iterable[Test | None], reported: Iterable[float] = ()
) -> list[float]:
    """The finite numbers that bars of these values, margins and figures of the paper show."""
    numbers = [*reported, *(test.margin for test in tests if test)]
    for value in values:
        if value is not None and value.ends:
            numbers += [value.value, *value.ends]
    return [number for number in numbers if math.isfinite(number)]


def span_of(numbers: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that holds these numbers, with a tenth to spare at either side."""
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    spare = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return low - spare, high + spare


def place(number: float, span: tuple[float, float]) -> float:
    """Where a number lies on a bar with this axis (`WIDTH`); at an end where it is beyond."""
    low, high = span
    share = (min(max(number, low), high) - low) / (high - low)
    return round(EDGE + share * (WIDTH - 2 * EDGE), 1)
