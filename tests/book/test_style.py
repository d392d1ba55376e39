"""The countable rules of the book's style: short sentences, the field's words, and no raw names.

They hold for pages, readings, the texts of the registry and the labels of values.
"""

import re
from pathlib import Path

import pytest

from helpers.claims.registry import load_registry, load_terms
from helpers.names import ALIASES

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("book/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
READINGS = [*ROOT.glob("book/runs/*/*.reading.md")]
WORDS = 25  # at most, in a sentence
# Words that this project once had for what the field calls otherwise, and figures of speech.
PRIVATE = re.compile(
    r"\btwins?\b|\bcalibrat\w+|\bhalf-widths? from\b|\bh(?:a|u)ngs? on\b|\bglow|\bgrow long\b"
    r"|\blaid to\b|\bpictures?\b|\bcommonest\b|\bstands? (?:in|at|beside|out|still|where)\b"
    r"|\btold (?:from|apart)\b"
    rf"|`(?:{'|'.join(ALIASES.values())})`",
    re.IGNORECASE,
)
# Pages that still have some, and how many. Lower it where you replace one.
STILL: dict[str, int] = {}
# Where a recipe's stored name is what the text is about.
STORED = {"trained-models.md": "Results and files of weights keep earlier names"}
# How many are longer still. Lower it where you shorten one.
LONGER = 26
# What is no prose, and what stands for it: templates, code, links, citations, formulas.
NO_PROSE = (
    (r"\{%.*?%\}", ""),
    (r"^(`{3,}|:{3,}).*?^\1`*\s*$", ""),
    (r"\{\{.*?\}\}(?:\s*%)?", "0"),
    (r"\{cite:[tp]\}`[^`]*`", "Name"),
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"`[^`]*`", "Code"),
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
        ("One. Two [of it](a.md) `x y`.\n- Three", ["One.", "Two of it Code.", "Three"]),
        ("```\nno. Prose\n```\nA {{ v('a', 'b') }} %.", ["A 0."]),
        ("**So.** Then", ["So.", "Then"]),
        ("| a. B | c |", ["", "a.", "B", "c", ""]),
    ],
)
def test_what_a_sentence_is(text, found):
    assert [one for one in sentences(text)] == found


def registered():
    """(place, text) of each text of the registry that a page shows."""
    for claim in load_registry().claims.values():
        criterion, says = claim.criterion, claim.paper_says
        texts = {
            "statement": claim.statement, "measure": claim.measure, "headline": claim.headline,
            "why": criterion.why, "paper_says": says["why"],
            "others": says.get("others", {}).get("why", ""),
            "predicted": (claim.predicted or {}).get("why", ""),
        }  # fmt: skip
        texts |= {str(test): test.extension for test in criterion.all_tests}
        yield from ((f"{claim.id}, {name}", text) for name, text in texts.items() if text)


def labels():
    """(place, text) of each label and of what a higher value means."""
    terms = load_terms()
    for claim, own in {**terms.claims, "common": terms.common}.items():
        for name, words in own.items():
            yield f"{claim}, {name}", f"{words.label}. {words.higher}"


def prose(text):
    """A text without templates, targets of links, formulas and code, except names of recipes."""
    kept = rf"`(?!(?:{'|'.join(ALIASES.values())})`)[^`]*`"
    for pattern, stands in NO_PROSE:
        pattern = kept if stands == "Code" else pattern
        text = re.sub(pattern, stands, text, flags=re.M | re.S)
    return text


FILES = [(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in PAGES + READINGS]


def test_sentences_are_short():
    # A prediction stays as it was written.
    own = [text for place, text in registered() if not place.endswith(", predicted")]
    texts = [text for _, text in FILES] + own
    longer = [one for text in texts for one in sentences(text) if len(one.split()) > WORDS]
    assert len(longer) <= LONGER, sorted(longer, key=len)[-1]


def test_words_are_the_fields():
    found = {}
    for place, text in (*FILES, *registered(), *labels()):
        lines = [
            one
            for one in prose(text).splitlines()
            if STORED.get(place.rpartition("/")[2], "\n") not in one
        ]
        if words := PRIVATE.findall("\n".join(lines)):
            found[place] = words
    assert {place: len(words) for place, words in found.items()} == STILL, found


@pytest.mark.parametrize(("place", "text"), FILES, ids=[place for place, _ in FILES])
def test_prose_has_no_raw_names(place, text):
    text = re.sub(r"`[^`]*`", "", prose(text))
    assert not re.findall(r"(?<![\w/.-])(?!open_clip)[a-z]+\d*_[a-z_\d]{3,}(?![\w/.(-])", text)


def test_the_registry_says_what_is_measured_and_not_its_raw_name():
    terms, claims, found = load_terms(), load_registry().claims, {}
    for place, text in registered():
        claim = place.partition(", ")[0]
        names = re.findall(r"`(_?\w+_?)`", text)
        known = claims[claim].parameters
        if raw := [name for name in names if name not in known and terms.of(claim, name)]:
            found[place] = raw
    assert not found


@pytest.mark.parametrize(("place", "text"), FILES, ids=[place for place, _ in FILES])
def test_shares_are_in_per_cent(place, text):
    assert not re.findall(r"a share of (?:0?\.\d+|\{\{)", text)
