"""The countable rules of the book's style: short sentences, and shares in per cent."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("book/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
WORDS = 25  # at most, in a sentence
# How many are longer still. Lower it where you shorten one.
LONGER = 89
# What is no prose, and what stands for it: templates, code, links, citations, formulas.
NO_PROSE = (
    (r"\{%.*?%\}", ""),
    (r"^(`{3,}|:{3,}).*?^\1`*\s*$", ""),
    (r"\{\{.*?\}\}(?:\s*%)?", "0"),
    (r"\{cite:[tp]\}`[^`]*`", "Name"),
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"`[^`]*`", "code"),
    (r"\$[^$]*\$", "x"),
    (r"\*", ""),
)


def sentences(text):
    """Of a page in Markdown; each cell of a table and each item of a list has its own."""
    for pattern, stands in NO_PROSE:
        text = re.sub(pattern, stands, text, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n|\n(?=[-*|#>]|\d+\. )", text):
        for cell in block.split("|"):
            text = " ".join(cell.split()).lstrip("-#> ")
            yield from re.split(r'(?<=[.!?:;])\s+(?=[A-Z(\["\']|\d|[a-z]{2}\d)', text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two [of it](a.md) `x y`.\n- Three", ["One.", "Two of it code.", "Three"]),
        ("```\nno. Prose\n```\nA {{ v('a', 'b') }} %.", ["A 0."]),
        ("**So.** Then", ["So.", "Then"]),
        ("| a. B | c |", ["", "a.", "B", "c", ""]),
    ],
)
def test_what_a_sentence_is(text, found):
    assert [one for one in sentences(text)] == found


def test_sentences_are_short():
    every = [one for page in PAGES for one in sentences(page.read_text(encoding="utf-8"))]
    longer = sorted((one for one in every if len(one.split()) > WORDS), key=len)
    assert len(longer) <= LONGER, longer[-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shares_are_in_per_cent(page):
    assert not re.findall(r"a share of 0?\.\d+", page.read_text(encoding="utf-8"))
