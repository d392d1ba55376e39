"""The countable rules of the book's style: short sentences, one word for one thing, no names of
code."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("book/*.md"), *ROOT.glob("book/runs/*/*.reading.md")]
PAGES += [*ROOT.glob("helpers/book/templates/**/*.j2"), *ROOT.glob("helpers/own/templates/*.j2")]
REGISTRY = [*ROOT.glob("notebooks/claims/*.yml"), ROOT / "notebooks" / "terms.yml"]
PROSE = {"title", "statement", "measure", "why", "but", "extension", "higher"}
WORDS = 25  # at most, in a sentence
# What is no prose, and what stands for it: templates, blocks, tags, links, citations, formulas.
NO_PROSE = (
    (r"\{#.*?#\}|<style>.*?</style>", ""),
    (r"\{%.*?%\}", "\n\n"),
    (r"^\([\w-]+\)=$", ""),
    (r"^(`{3,}|:{3,})(?!\{(?:dropdown|admonition|glossary)).*?^\1`*\s*$", ""),
    (r"\{\{.*?\}\}(?:\s*%)?", "0"),
    (r"\{cite:[tp]\}`[^`]*`", "Name"),
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"\$[^$]*\$", "x"),
    (r"</(?:p|li|td|th|h\d|figcaption|div)>", "\n\n"),
    (r"<[^<>]*>", " "),
    (r"\*", ""),
    (r"`[^`]*`", "Code"),
)
# What has another word (neuron, shift, threshold, run, reference model, baseline, clean target),
# each with its exceptions.
WORDING = {
    r"units?": r"(?<!hidden )(?<!grid )\b{}\b(?! (?:of|is the|variance))",
    r"mov(?:ed|ing)": r"\b{}\b(?! average)",
    r"margins?": r"\b{}\b",
    r"experiment sets?": r"\b{}\b",
    r"synthetic (?:reference )?models?": r"\b{}\b",
    r"controls?": r"(?<!positive )\b{}\b(?!-)",
    r"asked": r"\b{}\b(?!-)",
}


def prose(node, key=""):
    """The texts of a registry, but for what was predicted before a measurement."""
    if isinstance(node, dict):
        for name, part in node.items():
            yield from prose(part, name) if name != "predicted" else ()
    elif isinstance(node, list):
        for part in node:
            yield from prose(part, key)
    elif isinstance(node, str) and key in PROSE:
        yield node


def texts():
    """(place, prose) of each page, template and registry."""
    found = [(path.name, path.read_text(encoding="utf-8")) for path in PAGES]
    for path in REGISTRY:
        entries = [*yaml.safe_load_all(path.read_text(encoding="utf-8"))]
        found.append((path.name, "\n\n".join(prose(entries))))
    for place, text in found:
        for pattern, stands in NO_PROSE:
            text = re.sub(pattern, stands, text, flags=re.M | re.S)
        yield place, text


def sentences(text):
    """Each cell of a table and each item of a list has its own."""
    for block in re.split(r"\n\s*\n|\n(?=[-*|#>]|\d+\. )", text):
        for cell in block.split("|"):
            text = " ".join(cell.split()).lstrip("-#> ")
            yield from re.split(r'(?<=[.!?:;])\s+(?=[A-Z(\["\']|\d|[a-z]{2}\d)', text)


def test_sentences_are_short():
    every = [(place, one) for place, text in texts() for one in sentences(text)]
    assert not [one for one in every if len(one[1].split()) > WORDS]


def test_one_word_stands_for_one_thing():
    patterns = [pattern.format(word) for word, pattern in WORDING.items()]
    found = [
        (place, text[max(0, one.start() - 40) : one.end() + 20])
        for place, text in texts()
        for one in re.finditer("|".join(patterns), text, re.I)
    ]
    assert not found


def test_prose_has_no_raw_names():
    raw = r"(?<![\w/.-])(?!open_clip)[a-z]+\d*_[a-z_\d]{3,}(?![\w/.(-])"
    for place, text in texts():
        assert not re.findall(raw, text), place
