"""Marks that every page shares, as HTML: a verdict, an agreement with the paper, and an interval beside its margin.

Each mark has a shape and a word beside its colour (book/_static/book.css), so that it survives print and colour blindness.
"""

import math
from collections.abc import Sequence
from html import escape

from helpers.publish.agreement import Agreement
from helpers.publish.criteria import OUTCOMES, Test, Value

WIDTH, HEIGHT = 240, 20  # of an interval bar, in units of its own
_SIDE = 6  # what is left free at either end, for a mark that lies there


def html(text: object) -> str:
    """A text from data as one line of HTML that shows it."""
    return escape(" ".join(str(text).split()))


def badge(verdict: str, reason: str = "") -> str:
    """A verdict in its colour, with its shape."""
    title = f" title='{html(reason)}'" if reason else ""
    return f"<span class='verdict {html(verdict).replace(' ', '-')}'{title}>{html(verdict)}</span>"


def agreement_badge(agreement: Agreement) -> str:
    """An agreement with its sign; the sign, not a colour, tells it from the others."""
    title = f" title='{html(agreement.reason)}'" if agreement.reason else ""
    return f"<span class='agreement {agreement.answer.replace(' ', '-')}'{title}>{agreement.answer}</span>"


def interval_bar(
    value: Value | None,
    test: Test | None = None,
    reported: Sequence[float] = (),
    span: tuple[float, float] | None = None,
    label: str = "",
) -> str:
    """A measured value (filled, with its interval) beside what was reported (hollow), and the margin with its passing side.

    Args:
        value: None, or one without a number, is drawn as nothing but its margin.
        test: where its margin is; None draws no margin.
        reported: the paper's own figures of the same quantity; a range as its two ends.
        span: the ends of the axis, for bars that are compared; else as wide as what is drawn.
        label: what to call the value for who cannot see it; else its name.
    """
    low, high = span or _span(value, test, reported)

    def x(number: float) -> float:
        share = (min(max(number, low), high) - low) / (high - low) if high > low else 0.5
        return round(_SIDE + share * (WIDTH - 2 * _SIDE), 1)

    middle = HEIGHT / 2
    parts = [f"<line class='track' x1='{_SIDE}' x2='{WIDTH - _SIDE}' y1='{middle}' y2='{middle}'/>"]
    if test is not None:
        at, right = x(test.margin), test.op in (">", ">=")
        start, end = (at, WIDTH) if right else (0, at)
        parts.append(f"<rect class='passes' x='{start}' y='0' width='{round(end - start, 1)}' height='{HEIGHT}'/>")
        parts.append(f"<line class='margin' x1='{at}' x2='{at}' y1='0' y2='{HEIGHT}'/>")
    for number in reported:
        at = x(number)
        parts.append(f"<path class='reported' d='M{at} {middle - 5}l5 5l-5 5l-5 -5z'/>")
    if value is not None and value.value is not None:
        start, end = value.ends
        parts.append(f"<line class='interval' x1='{x(start)}' x2='{x(end)}' y1='{middle}' y2='{middle}'/>")
        parts.append(f"<circle class='measured' cx='{x(value.value)}' cy='{middle}' r='4'/>")
    told = f"{label or (value.name if value else '')}: {value or 'not measured'}"
    told += f"; {test.op} {test.margin:g} {OUTCOMES[test.outcome(value)]}" if test else ""
    told += f"; reported {', '.join(f'{number:g}' for number in reported)}" if reported else ""
    return (
        f"<svg class='interval-bar' role='img' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'>"
        f"<title>{html(told)}</title>{''.join(parts)}</svg>"
    )


def _span(value: Value | None, test: Test | None, reported: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that holds everything drawn, with a tenth to spare at either side."""
    numbers = [*reported, *([test.margin] if test else [])]
    if value is not None and value.value is not None:
        numbers += [value.value, *value.ends]
    numbers = [number for number in numbers if math.isfinite(number)] or [0.0]
    low, high = min(numbers), max(numbers)
    spare = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    return low - spare, high + spare
