"""The macros of `templates/macros.html.j2` as functions, for text that no template makes."""

from html import escape

from helpers.book.render import macro
from helpers.claims.criteria import Agreement


def html(text: object) -> str:
    """A text from data as one line of HTML that shows it."""
    return escape(" ".join(str(text).split()))


def badge(verdict: str, reason: str = "") -> str:
    """A verdict in its colour, with its shape."""
    return str(macro("badge", verdict, reason))


def agreement_badge(agreement: Agreement) -> str:
    """An agreement with its sign; the sign, not a colour, tells it from the others."""
    return str(macro("agreement_badge", agreement))
