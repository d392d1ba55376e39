"""Measured values in words: with their unit, their interval where it can be seen, and counts as counts."""

import math
import re

from helpers.publish.criteria import Test, Value
from helpers.publish.terms import Term

SIDES = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}
SHARE = "share of "
WHOLE = 1e-6  # how near to a whole number a count of images comes, after the rounding of floats


def amount(value: Value | None, term: Term) -> str:
    """A value with its interval: `0.63 [0.62, 0.64]`, `998 of 1,000 images (99.3 to 99.9 %)`, `63.2 %`, `p < 0.001`."""
    unit = term.unit
    if value is None:
        return "not measured"
    if value.value is None:
        return "not defined"
    count = _count(value, term)
    text = count or number(value.value, unit)
    ends = [None if end is None else number(end, unit) for end in (value.low, value.high)]
    # An interval whose ends print as the value does tells a reader nothing.
    if ends == [None, None] or all(end == number(value.value, unit) for end in ends):
        return text
    # The unit stands once, behind the value.
    bare = re.compile(rf" ({'|'.join(map(re.escape, ('%', 'points', 'point', unit)))})$")
    low, high = ("?" if end is None else bare.sub("", end) for end in ends)
    return f"{text} ({low} to {high} %)" if count else f"{text} [{low}, {high}]"


def number(x: float, unit: str = "") -> str:
    """A number in its unit, to three digits; those of a p-value to two. Shares are given in %."""
    if unit == "p-value":
        return "p < 0.001" if x < 0.001 else f"p = {float(f'{x:.2g}'):g}"
    if unit == "count":
        return f"{x:,.0f}" if float(x).is_integer() else _digits(x)
    if unit.startswith(SHARE):
        return f"{_digits(100 * x)} %"
    if unit == "%":
        return f"{_digits(x)} %"
    if unit == "points":
        sign, digits = "+" * (x > 0), _digits(x)
        return f"{sign}{digits} point{'' if digits.lstrip('-') == '1' else 's'}"
    return f"{_digits(x)} {unit}".strip()


def asked(test: Test, unit: str = "") -> str:
    """What a test asks for: `above 5 %`. Points have no sign here."""
    return f"{SIDES[test.op]} {number(test.margin, unit).removeprefix('+')}"


def behind(value: Value | None, term: Term) -> str:
    """`n = 1,000 images`, '' of a plain number."""
    return f"n = {value.n:,} {term.of}" if value is not None and value.n else ""


def _count(value: Value, term: Term) -> str:
    """So many of so many, where a value is a share of the images behind it, or of a number that its unit names; else ''."""
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
