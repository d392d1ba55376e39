"""The page of a claim: golden pages of three results, and what holds of every published result."""

import shlex
from dataclasses import replace

import pytest
from books import PROJECT, book_of, found, of
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.book import claim_page
from helpers.book.finding import Finding
from helpers.book.render import as_reported, macro
from helpers.claims.criteria import REFUTING, Criterion, Test, Value
from helpers.claims.history import Entry
from helpers.run.parameters import parse

NORM, ATTENTION = Test("norm_reduction", ">", 50), Test("attention_reduction", ">", 50)
OUTLIERS = Test("outlier_images", ">", 0.05)
BOTH = Criterion("all", (NORM, ATTENTION), (OUTLIERS,))
TT3 = PROJECT.registry["tt3-attention-patterns"]
CLAIM, DINOV2 = replace(TT3, criterion=BOTH), TT3.paper.models["DINOv2"]


def values(model, outliers, norm=None, attention=None):
    """The three values of a model."""
    measured = [of("outlier_images", model, outliers, 0.01)]
    measured += [of("norm_reduction", model, norm)] if norm is not None else []
    return measured + ([of("attention_reduction", model, attention)] if attention else [])


def page(*findings, controls=(), reading=""):
    """The page of the first one's claim."""
    book, (first, *_) = book_of(*findings, controls=controls), findings
    vars(book)["log"] = {}
    first.summary, _, first.reading = reading.partition("\n\n")
    return claim_page.page(book, first.claim.id)


def notebook():
    picture = new_output("display_data", {"image/svg+xml": "<svg/>"})
    look = {"image": {"alt": "Norms <b>"}, "figure": {"name": "fig-norms", "caption": "The norms."}}
    key = {"mystnb": look, "tags": ["key"]}
    cells = [
        new_markdown_cell("# Title"),
        new_code_cell("first()", outputs=[new_output("display_data", {"image/svg+xml": "<g/>"})]),
        new_code_cell("second()", outputs=[picture], metadata=key),
        new_markdown_cell("## How to read this\n\nSlowly, as in [nr1](nr1-artifacts.ipynb)."),
    ]
    return new_notebook(cells=cells)


SIZES = [{"name": "scenes <b>", "n": 1000, "hub": "nearest/one"}]
CASES = {
    # On one of the paper's own models; what is nearest to failing comes first.
    "supported": (BOTH, values(DINOV2, 0.9, 90, 52), {}),
    # On two models of four: the clearest failure first; on one the claim is not tested.
    "refuted": (
        BOTH,
        [
            *values("vit_small_patch16_224.a", 0.01),
            *values("vit_tiny_patch16_224.a", 0.9, 45, 10),
            *values("vit_base_patch16_224.a", 0.9, 90, 30),
            *values("vit_large_patch16_224.a", 0.9, 90),
        ],
        {"not_run": {"vit_giant": "no <b>network</b>"}, "sources": SIZES},
    ),
    # Today's criterion does not apply to it, where an earlier one supported it.
    "not-applicable": (Criterion("all", (NORM,)), values("m", 0.01, 90, 90), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_golden_pages(file_regression, case):
    """As stored in tests/book/test_claim_page; `--force-regen` stores them anew."""
    criterion, measured, more = CASES[case]
    then = found(replace(CLAIM, criterion=criterion), measured, **more).data
    marks = {"parameters": {"seed": 9, "dataset": "a`b|c"}}
    claim = replace(CLAIM, expected={"control-clean": "refuted"})
    result = Finding(claim, then | marks, notebook(), "runs")
    result.mark = "after the fact"
    control = found(claim, values("control-clean", 0.9, 90, 90), "controls", "controls")
    control.notebook = notebook()  # which tags the figure
    drawn = {name: one["content"] for name, one in claim_page.pictures(result).items()}
    assert drawn == {"": "<g/>", "norms": "<svg/>"}
    text = page(result, controls=[control], reading="This.\n\nIn detail.")
    file_regression.check(text, extension=".md")


def test_the_result_that_answers_comes_first_and_others_are_folded():
    runs = [
        found(CLAIM, values("control-clean", 0.9, 90, 52), "on-controls"),
        found(CLAIM, values("x", 0.01), "none"),
        found(CLAIM, [*values("deit_tiny_patch16_224", 0.9, 90, 9), *values("x", 0.01)], "other"),
    ]
    text = page(*runs)
    places = [text.index(f"id='{place}'") for place in ("other", "none", "on-controls")]
    assert places == sorted(places) and text.count("{dropdown} Tests and what was found") == 2
    # A test of a model to which the claim is not put is not shown.
    first = text.partition("## In other runs")[0]
    assert "data-model='deit_tiny_patch16_224'" in first and "data-model='x'" not in first
    text = page(found(CLAIM, [], not_run={"a": "no"}))
    assert "Not run: `a`, no\n" in text and "{figure}" not in text


def test_the_log_says_what_an_entry_changes():
    about, parts = ("2026-01-01", "nothing", "so"), {"quantifier": "all", "tests": ["a > 1"]}
    first = Entry(*about, parts, {"x": "supported", "y": "refuted"})
    assert claim_page.difference(None, first) == [
        "models: `all`", "tests: `a > 1`", "expected: `x: supported`, `y: refuted`"
    ]  # fmt: skip
    other = Entry(*about, parts | {"tests": ["a > 2"]}, {"x": "supported"})
    assert claim_page.difference(first, other) == [
        "tests, gone: `a > 1`", "tests, new: `a > 2`", "expected, gone: `y: refuted`"
    ]  # fmt: skip
    assert claim_page.difference(other, other) == ["the same criterion, measured otherwise"]


@pytest.mark.parametrize(
    ("figure", "unit", "text"),
    [
        ({"numbers": [0.0664], "unit": "", "text": "0.0664"}, "%", "6.64 %"),
        ({"numbers": [0.5, 0.9], "unit": "", "text": "-"}, "share of images", "50 % to 90 %"),
        ({"numbers": [83.0], "unit": "%", "text": "83 %"}, "%", "83 %"),
        ({"numbers": [20.06], "unit": "", "text": "20.06"}, "nats", "20.06"),
        ({"numbers": [], "unit": "", "text": "high"}, "%", "high"),
    ],
)
def test_figures_of_the_paper_have_our_unit(figure, unit, text):
    assert as_reported(figure, unit) == text


def test_commands_give_what_differs_and_a_model_of_the_readers():
    """None for a run on models that were trained here, which answers nothing of another."""
    claim = PROJECT.registry["nr5-registers"]
    pretrained = {"models": ["vit_tiny"], "n": 7, "twins": [""], "dataset": "b c"}
    words = shlex.split(claim_page.yours(claim, pretrained))
    assert words[3:8] == ["run", claim.id, "--run", "mine", "-p"]
    given = dict(word.split("=", 1) for word in words[8::2])
    assert given.items() <= claim_page.YOURS.items() and given.keys() == {
        "models",
        "twins",
        "dataset",
    }
    words = shlex.split(claim_page.rerun(claim, "mine", pretrained))[8::2]
    for name, text in (word.split("=", 1) for word in words):
        assert parse(text, claim.parameters[name]) == pretrained[name]
    ours = {"models": ["control-clean", "scratch-reg0", "registers-asked-reg4"]}
    assert claim_page.yours(claim, ours) == ""


def test_what_the_whole_needs_and_no_model_has():
    needs = replace(BOTH, tests=(NORM,), needs=(Test("attention_reduction", ">", 99),))
    one = found(replace(CLAIM, criterion=needs), values("a", 0.9, 90, 52))
    assert [(row.role, row.decides) for row in one.rows] == [("needs", True), ("tests", False)]


def test_figures_of_the_same_model_stand_alone_and_others_where_there_are_none():
    def reported(model):
        (norm,) = (r for r in found(CLAIM, values(model, 0.9, 90, 90)).rows if r.test == NORM)
        return {one["model"] for one in norm.reported}, norm.numbers

    assert reported(DINOV2) == ({"DINOv2"}, [83.0])
    assert reported("a") == ({"DINOv2", "all"}, [83.0, 83.0, 96.0])
    measured = [Value("parameters", "a", value=5.7e6), of("outlier_images", "a", 0.0, 0.01)]
    rows = found(PROJECT.registry["nr2-model-size"], measured).rows
    assert [row.numbers for row in rows if row.test.value == "parameters"] == [[300e6]]


def test_every_published_result_says_what_decided_it_and_how_to_run_it_again(book):
    for one in (one for own in book.runs.values() for one in own.values()):
        claim, models = one.claim, one.result.shown
        whole, answer = models[""], str(macro("answer", one))
        assert answer.startswith(whole.capitalize()) and "_" not in answer.split(" on ")[0]
        for row in one.rows:
            assert row.verdict == models[row.model] or row.role == "needs"
            if row.decides and row.role == "tests":
                outcomes = {"supported": True, "inconclusive": None}
                assert row.outcome is outcomes.get(whole, False)
        if whole in ("supported", *REFUTING):
            assert {*one.deciders} == {x for x, own in models.items() if x and own == whole}
        command = claim_page.rerun(claim, one.run, one.data["parameters"])
        assert command.startswith(f".venv/bin/python -m helpers run {claim.id} --run {one.run}")
