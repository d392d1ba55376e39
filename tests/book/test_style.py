"""The countable rules of the book's style: short sentences without names of code."""

import re
from pathlib import Path

from helpers.claims.registry import load_registry

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("book/*.md"), *ROOT.glob("book/runs/*/*.reading.md")]
WORDS, LONGER = 25, 30  # at most, in a sentence; and how many are longer still
# What is no prose, and what stands for it: templates, blocks, links, citations, formulas.
NO_PROSE = (
    (r"\{%.*?%\}", ""),
    (r"^(`{3,}|:{3,}).*?^\1`*\s*$", ""),
    (r"\{\{.*?\}\}(?:\s*%)?", "0"),
    (r"\{cite:[tp]\}`[^`]*`", "Name"),
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"\$[^$]*\$", "x"),
    (r"\*", ""),
)


def texts():
    """(place, prose) of each page, and of each statement that the registry makes."""
    claims = load_registry().claims.values()
    found = [(path.name, path.read_text(encoding="utf-8")) for path in PAGES]
    found += [(claim.id, "\n\n".join((claim.statement, claim.measure))) for claim in claims]
    for place, text in found:
        for pattern, stands in NO_PROSE:
            text = re.sub(pattern, stands, text, flags=re.M | re.S)
        yield place, text


def sentences(text):
    """Each cell of a table and each item of a list has its own."""
    for block in re.split(r"\n\s*\n|\n(?=[-*|#>]|\d+\. )", re.sub("`[^`]*`", "Code", text)):
        for cell in block.split("|"):
            text = " ".join(cell.split()).lstrip("-#> ")
            yield from re.split(r'(?<=[.!?:;])\s+(?=[A-Z(\["\']|\d|[a-z]{2}\d)', text)


def test_sentences_are_short():
    longer = [one for _, text in texts() for one in sentences(text) if len(one.split()) > WORDS]
    assert len(longer) <= LONGER, sorted(longer, key=len)


def test_prose_has_no_raw_names():
    raw = r"(?<![\w/.-])(?!open_clip)[a-z]+\d*_[a-z_\d]{3,}(?![\w/.(-])"
    for place, text in texts():
        assert not re.findall(raw, re.sub("`[^`]*`", "", text)), place
