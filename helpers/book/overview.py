"""All claims in one figure: how far the value that decided each one lies from its margin.

The unit is half of the value's own 95 % interval: beyond 1, the interval excludes the margin. The
axis is linear up to 1 and logarithmic beyond. To the right the test holds.
"""

import math
from typing import NamedTuple

from helpers.book.book import Book
from helpers.book.finding import Decision, Finding
from helpers.claims.criteria import CONTROL, NOT_TESTED

WIDTH, EDGE = 300, 8  # of a row's drawing in pixels, and what is left free at its ends
LAST = 300  # the distance at the ends of the axis; what is beyond is drawn there
TICKS = (-100, -10, -1, 0, 1, 10, 100)


class Row(NamedTuple):
    """A claim in the figure."""

    found: Finding
    test: Decision | None  # that decided it
    distance: tuple[float, float, float] | None = None  # of value and interval from the margin
    reported: tuple[float, ...] = ()  # the same of the paper's figures

    @property
    def says(self) -> str:
        """Where the mark is, in words."""
        if self.distance is None:
            return "the deciding value has no interval"
        value = self.distance[0]
        side = "where the test holds" if value > 0 else "where it fails"
        beyond = "more than " if abs(value) > LAST else ""
        return f"{beyond}{min(abs(value), LAST):.3g} half-intervals from the margin, {side}"


def claims(book: Book) -> list[Row]:
    """One row for each claim that was measured, the furthest on the passing side first.

    Of its runs, the one with most claims in which a value with an interval decided it on a model
    that is no control.
    """
    rows = []
    runs = sorted(book.counted.values(), key=len, reverse=True)
    for id in book.registry.claims:
        found = [_row(own[id]) for own in runs if id in own]
        rows += sorted(found, key=lambda row: row.distance is None)[:1]
    return sorted(rows, key=lambda row: -row.distance[0] if row.distance else math.inf)


def _row(found: Finding) -> Row:
    not_tested = found.result.shown[""] == NOT_TESTED
    test = next((row for row in found.rows if row.decides and not not_tested), None)
    if test is None or test.model.startswith(CONTROL) or not (unit := _half(test)):
        return Row(found, test)
    sign = 1 if test.test.op.startswith(">") else -1
    value, margin = test.value, test.test.margin
    ends = sorted(sign * (end - margin) / unit for end in value.ends)
    reported = tuple(sign * (number - margin) / unit for number in test.numbers)
    return Row(found, test, (sign * (value.value - margin) / unit, *ends), reported)


def _half(test: Decision) -> float | None:
    """The half of the interval that points to the margin; None without an interval."""
    value = test.value
    if value is None or not value.is_bounded:
        return None
    return value.value - value.low if value.value > test.test.margin else value.high - value.value


def place(distance: float) -> float:
    """Where a distance lies in the drawing, in pixels from the left."""
    reach = min(abs(distance), LAST)
    along = reach if reach <= 1 else 1 + math.log10(reach)
    most = 1 + math.log10(LAST)
    half = (WIDTH - 2 * EDGE) / 2
    return round(EDGE + half + math.copysign(half * along / most, distance), 1)
