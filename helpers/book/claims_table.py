"""The table of all claims: what the paper says, what we find, and how the two compare.

It is whole without a script; `_static/sortable.js` chooses and sorts.
"""

import re
from collections.abc import Mapping
from typing import Any

from helpers.book.book import Book, standing
from helpers.book.finding import Finding
from helpers.book.render import render
from helpers.claims.claim import Claim
from helpers.claims.project import CONTROLS

SAYS = {"supported": "yes", "refuted": "no", "mixed": "in some", "inconclusive": "open"}
FIRST_SENTENCE = re.compile(r".*?[.?!](?=\s+[A-Z]|$)", re.DOTALL)
# What is no text: emphasis, code and the addresses of links.
MARKDOWN = ((r"\[([^\]]*)\]\([^)]*\)", r"\1"), (r"[*`]", ""))


def table(book: Book, readings: Mapping[str, Mapping[str, str]]) -> str:
    """All claims and statements by paper, as a raw block of Markdown for a page in `book/`;
    `readings` are the commentaries on results, by claim and place.
    """
    registered = (*book.registry.claims.values(), *book.registry.statements.values())
    lines = [line(book, claim, readings) for claim in registered]
    return render("claims_table.html.j2", lines=lines, book=book)


def line(book: Book, claim: Claim, readings: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """A claim or statement: its results, first the one that its page shows first, where it stands,
    and what the paper and the first result say.
    """
    found = results(book, claim)
    says = SAYS.get(claim.paper_says["verdict"]) if claim.source.bib else None
    own = readings.get(claim.id, {})
    text = own[found[0].place] if found and found[0].place in own else ""
    return {
        "claim": claim,
        "results": found,
        "standing": standing(claim, [one.stored for one in book.of(claim.id)]),
        "says": says,
        "why": first_sentence(claim.paper_says["why"]) if says else "",
        "finds": plain(text.strip().partition("\n\n")[0]),
    }


def results(book: Book, claim: Claim) -> list[Finding]:
    """What stands in the line of a claim or statement: its results, those that repeat another run
    last; of a claim about controls that on these.
    """
    page = book.pages.get(claim.id)
    if page and page.run == CONTROLS:
        return [page]
    runs = [one.run for one in book.findings(claim.values_of)]
    found = sorted(book.of(claim.id), key=lambda one: runs.index(one.run))
    return found + book.repeated(claim.id)


def plain(text: str) -> str:
    """A paragraph of Markdown as text."""
    for pattern, stands in MARKDOWN:
        text = re.sub(pattern, stands, text)
    return " ".join(text.split())


def first_sentence(text: str) -> str:
    """The first sentence of a text, with its full stop."""
    found = FIRST_SENTENCE.match(text)
    return found[0] if found else text
