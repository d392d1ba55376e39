"""The page of a claim: golden pages of three results, and what holds of every published result."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.book import claim_page
from helpers.book.claim_page import Shown
from helpers.book.decisions import Decisions, axes
from helpers.book.render import macro
from helpers.claims.criteria import Criterion, Test, Value
from helpers.claims.history import Entry
from helpers.claims.project import Project
from helpers.claims.registry import load_registry, term
from helpers.run.parameters import checked, parse

REGISTRY = load_registry()
PATHS = list(Project().results())
NORM, ATTENTION = Test("norm_reduction", ">", 50), Test("attention_reduction", ">", 50)
OUTLIERS = Test("outlier_images", ">", 0.05)
BOTH = Criterion("all", (NORM, ATTENTION), (OUTLIERS,))


def of(name, model, value, half=1.0, n=100):
    return Value(name, model, "scenes", value, value - half, value + half, n)


def values(model, outliers, norm=None, attention=None):
    """The three values of a model."""
    measured = [of("outlier_images", model, outliers, 0.01)]
    measured += [of("norm_reduction", model, norm)] if norm is not None else []
    measured += [of("attention_reduction", model, attention)] if attention is not None else []
    return measured


@pytest.fixture(scope="module")
def claim():
    return replace(REGISTRY["tt3-attention-patterns"], criterion=BOTH)


def read(claim, measured, **more):
    data = claim.judge(measured, **more).to_json() | {"run": "mine"}
    return Decisions(claim, data)


@pytest.fixture
def notebook(claim):
    picture = new_output("display_data", {"image/svg+xml": "<svg/>", "image/png": "AAAA"})
    look = {"image": {"alt": "Norms <b>"}, "figure": {"caption": "The norms."}}
    card = new_output("execute_result", {"text/markdown": "card"})
    return new_notebook(
        cells=[
            new_markdown_cell("# Title"),
            new_code_cell("n = 1", metadata={"tags": ["parameters"]}),
            new_code_cell(f'load_registry()["{claim.id}"]', outputs=[card]),
            new_markdown_cell("## Capture\n\nSo."),
            new_code_cell("first()", outputs=[picture], metadata={"mystnb": look}),
            new_code_cell(
                "second()",
                outputs=[picture],
                metadata={"mystnb": look, "tags": ["key", "hide-input"]},
            ),
            new_code_cell("print(1)", outputs=[new_output("stream", text="one\n")]),
            new_markdown_cell("## How to read this\n\nSlowly."),
        ]
    )


def made(data):
    """A result as it is published."""
    origin = {"git_revision": "a", "git_dirty": False, "started": "2026"} | data.get(
        "provenance", {}
    )
    return {"run": "mine", **data, "provenance": origin}


def page(claim, data, notebook=None, reading="", pages=("claims", "verdicts"), **more):
    """The page of one result, and its figures."""
    one = Shown("mine", made(data), notebook or new_notebook(), reading)
    return claim_page.page(claim, [one], pages=pages, **more)


SIZES = [{"name": "scenes <b>", "n": 1000, "hub": "nearest/one"}]
DINOV2 = REGISTRY["tt3-attention-patterns"].source.models["DINOv2"]
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


@pytest.mark.parametrize(
    ("repository", "leads"),
    [
        ({}, False),
        ({"url": ""}, False),
        ({"url": "https://example.org/a/b"}, False),
        ({"url": "https://github.com/ann/book"}, True),
        ({"url": "https://github.com/ann/book.git", "branch": "v1/x"}, True),
    ],
)
def test_a_repository_address_switches_colab_and_binder_on(claim, repository, leads):
    data = claim.judge(values(DINOV2, 0.9, 90, 52)).to_json()
    text, _ = page(claim, data, repository=repository)
    branch = "v1%2Fx" if "branch" in repository else "main"
    colab = f"https://colab.research.google.com/github/ann/book/blob/{branch}/{claim.notebook}"
    assert (f"]({colab})" in text) == leads == ("mybinder.org/v2/gh/ann/book/" in text)
    assert ("Colab" in text) == ("%pip install git+https://github.com/ann/book@" in text) == leads


@pytest.mark.parametrize("case", CASES)
def test_golden_pages(claim, notebook, file_regression, case):
    """As stored in tests/book/test_claim_page; `--force-regen` stores them anew."""
    criterion, measured, more = CASES[case]
    data = replace(claim, criterion=criterion).judge(measured, **more).to_json()
    data |= {"parameters": {"seed": 9, "gone": "a`b|c"}}
    claim = replace(claim, expected={"control-clean": "refuted"})
    calibration = claim.judge(values("control-clean", 0.9, 90, 90)).to_json()
    reading = "## What was found\n\nThis."
    text, pictures = page(claim, data, notebook, reading, calibration=calibration)
    assert pictures == {f"{claim.id}.mine.svg": b"<svg/>"}
    file_regression.check(text, extension=".md")


def test_a_page_says_that_the_first_criterion_gave_another_verdict_and_when_it_changed(claim):
    data = claim.judge(values("a", 0.9, 90, 90)).to_json()
    change = Entry("2026-02-03", None, "", "real data", "", {}, {})
    for first in ("supported", "refuted", "inconclusive"):
        stored = data | {"first_verdict": first}
        text, _ = page(claim, stored, changes=[change])
        says = f"The criterion that was written first gives {macro('badge', first)}"
        assert (says in text) is (first != data["verdict"])
        assert ("on 2026-02-03, seen by then: real data, and" in text) is (says in text)


def test_a_page_of_a_small_book_leads_to_no_page_that_is_not_there(claim):
    data = claim.judge(values("a", 0.9, 90, 9)).to_json() | {"after_the_fact": True}
    refuted = claim.judge(values("control-clean", 0.9, 9, 9)).to_json()
    reading = "See [the guard](../verdicts.md#the-guard) and [nr1](nr1-artifacts.md)."
    (small, _), (whole, _) = (
        page(claim, data, reading=reading, calibration=refuted, pages=pages)
        for pages in ((), {"claims", "verdicts", "criteria-log"})
    )
    leads = (
        "verdicts.md#never-seen",
        "verdicts.md#the-guard",
        "verdicts.html#as-first",
        "claims.html",
    )
    assert all(f"../{place}" in whole and place not in small for place in leads)
    assert "The test was never seen to say yes on" in small
    assert "See the guard and [nr1](nr1-artifacts.md)." in small


def test_a_claim_of_no_paper_speaks_of_none():
    claim = REGISTRY["xx3-from-scratch"]
    text, _ = page(claim, claim.judge([], not_run={"a": "no"}).to_json())
    assert f"{claim.id}, <a href='../claims.html#paper-beyond'>Beyond the papers</a>" in text
    assert not re.search("[Tt]he paper |[Tt]he paper's", text) and claim.paper_says["why"] in text


@pytest.mark.parametrize(
    ("attention", "verdict", "sign", "limit"),
    [
        (90, "supported", 0, "on no synthetic model, so this *yes* was not checked against one."),
        (50, "inconclusive", 1, "So a *no* may be the test's own."),
        (10, "refuted", 1, "So a *no* may be the test's own."),
    ],
)
def test_a_no_of_a_test_that_never_said_yes_is_in_doubt_and_a_yes_unchecked(
    claim, attention, verdict, sign, limit
):
    data = claim.judge(values("a", 0.9, 90, attention)).to_json()
    never = claim.judge(values("control-clean", 0.9, 9, 9)).to_json()
    text, _ = page(claim, data, calibration=never)
    assert data["verdict"] == verdict and text.count("class='no-yes'") == sign and limit in text
    assert ("never seen to say yes" in text) is bool(sign)


def test_a_page_marks_a_verdict_that_the_images_may_have_shaped(claim):
    data = claim.judge(values("a", 0.9, 90, 90)).to_json()
    marked = {"after_the_fact": True, "provenance": {"exploratory": True}}
    for stored, shows in ((data, False), (data | marked, True)):
        text, _ = page(claim, stored)
        for mark in ("after the fact", "exploratory"):
            assert (f"verdicts.html#as-first-written'>{mark}</a>" in text) is shows


def test_a_page_without_figures_values_or_a_run(claim):
    data = claim.judge([], not_run={"a": "no"}).to_json()
    text, pictures = page(claim, data)
    assert "Not run: None of the models could be run" in text and "- `a`: no\n" in text
    assert "{figure}" not in text and not pictures and "{tab-set}" not in text


def test_each_run_has_a_tab_and_those_on_controls_alone_come_last(claim):
    def of_run(place, model, repeats=None):
        data = claim.judge(values(model, 0.9, 90, 52)).to_json() | {"run": place}
        return Shown(place, made(data), new_notebook(), repeats=repeats)

    runs = [of_run("on-controls", "control-clean"), of_run("mine", DINOV2)]
    runs += [of_run("mine-2", DINOV2, "mine"), of_run("own/bob", "scratch-reg0-seed1")]
    text, _ = claim_page.page(claim, runs)
    labels = [line.partition("} ")[2] for line in text.splitlines() if "{tab-item}" in line]
    assert labels == [
        "ViT-L (DINOv2): supported",
        "ViT-L (DINOv2) on other images: supported",
        "Trained from scratch here (yours: bob): supported",
        "Synthetic models: supported",
    ]
    assert text.count("{tab-set}") == 1 and "id='own-bob'" in text


@pytest.mark.parametrize(
    ("outliers", "attention", "label"),
    [
        ((0.9, 0.9), 52, "ViT-S, DeiT-Ti: supported"),
        ((0.9, 0.01), 52, "ViT-S: supported"),
        ((0.9, 0.01), None, "ViT-S: inconclusive"),
        ((0.01, 0.01), 52, "ViT-S, DeiT-Ti: not applicable"),
    ],
)
def test_a_tab_names_the_models_that_the_claim_was_put_to(claim, outliers, attention, label):
    models = ("vit_small_patch16_224", "deit_tiny_patch16_224", "control-clean")
    measured = [
        values(*one, 90, attention) for one in zip(models, (*outliers, outliers[0]), strict=True)
    ]
    data = claim.judge(sum(measured, [])).to_json()
    shown = Shown("mine", made(data), new_notebook())
    text, _ = claim_page.page(claim, [shown, shown])
    assert text.count(f"{{tab-item}} {label}\n") == 2
    aside = "" if "DeiT-Ti" in label else "; not applicable"
    assert f", DeiT-Ti (`deit_tiny_patch16_224`{aside}), clean (reference)" in text


def test_extensions_are_named_as_figures_name_them(claim):
    model = "vit_tiny_patch16_224.a"
    added = [replace(test, model=model, extension="It is small.") for test in (NORM, ATTENTION)]
    own = replace(claim, criterion=Criterion("all", tuple(added), (OUTLIERS,)))
    text, _ = page(own, own.judge(values(model, 0.9, 90, 80)).to_json())
    labels = "; ".join(term(claim.id, test.value).label for test in added)
    assert f"Our extension ({labels} on ViT-Ti): It is small.</p>" in unescape(text)


def test_a_claim_without_a_result_says_why_and_what_controls_gave(claim):
    calibration = claim.judge(values("control-clean", 0.9, 90, 90)).to_json()
    claim = replace(claim, waiting="It needs weights.", expected={"control-clean": "supported"})
    text, pictures = claim_page.page(claim, [], calibration)
    assert "It needs weights." in text and not pictures
    assert f"- control-clean: {macro('badge', 'supported')}, where supported was expected" in text


def test_the_command_for_a_model_of_the_readers():
    """With the images of the run, and nothing of a run on models that were trained here."""
    claim, pretrained = REGISTRY["nr5-registers"], {"models": ["vit_tiny"], "n": 7, "twins": [""]}
    words = shlex.split(claim_page.yours(claim, "vit-tiny", pretrained))
    assert words[3:9] == ["run", claim.id, "--profile", "vit-tiny", "--run", "mine"]
    given = dict(word.split("=", 1) for word in words[10::2])
    assert given == {
        "n": "7",
        "models": '["YOUR_MODEL"]',
        "twins": '["THE_SAME_WITHOUT_REGISTERS"]',
    }
    assert parse("models", given["models"], claim.parameters["models"]) == ["YOUR_MODEL"]
    ours = {"models": ["control-clean", "scratch-reg0", "registers-asked-reg4"]}
    assert claim_page.yours(claim, "scratch", ours) == ""
    assert " --run mine-2 " in claim_page.yours(claim, "mine", pretrained)  # a name that is free


@pytest.mark.parametrize(
    ("measured", "rows", "answer", "by"),
    [
        (  # a refuted claim does not rest on a test that held
            values("a", 0.9, 90, 10),
            [("a", ATTENTION, True), ("a", NORM, False)],
            "Refuted: fall of the largest [CLS]",
            "decided by a",
        ),
        (
            values("a", 0.9, 90, 52),
            [("a", ATTENTION, True), ("a", NORM, True)],
            "Supported: fall of the largest [CLS]",
            "decided by a",
        ),
        (
            values("a", 0.9, 90),
            [("a", ATTENTION, True), ("a", NORM, False)],
            "Inconclusive: fall of the largest [CLS] attention on a patch when outliers are "
            "shifted: not measured.",
            "left open by a",
        ),
    ],
)
def test_what_decided_comes_first(claim, measured, rows, answer, by):
    found = read(claim, measured)
    assert [(row.model, row.test, row.decides) for row in found.rows] == rows
    assert unescape(macro("answer", found)).startswith(answer)
    assert str(macro("decided_by", found)).startswith(by)


def test_what_the_whole_needs_and_no_model_has(claim):
    needs = replace(BOTH, tests=(NORM,), needs=(Test("attention_reduction", ">", 99),))
    found = read(replace(claim, criterion=needs), values("a", 0.9, 90, 52))
    assert [(row.role, row.decides) for row in found.rows] == [("needs", True), ("tests", False)]
    answer = str(macro("answer", found))
    assert answer.startswith("Not tested: no measured model meets") and "above 99 %" in answer
    assert "half on other models holds on a: " in answer
    assert macro("decided_by", found) == ""
    # What it needs is named though no model that was measured is put to it.
    other = Test("attention_reduction", ">", 99, "vit_giant_patch14_dinov2.lvd142m")
    found = read(replace(claim, criterion=replace(needs, needs=(other,))), values("a", 0.9, 90, 52))
    asked = str(macro("criterion", found))
    assert "; it also needs a model with fall of" in asked and "(ViT-g (DINOv2))." in asked


def test_figures_of_the_same_model_stand_alone_and_others_where_there_are_none(claim):
    def reported(model):
        rows = read(claim, values(model, 0.9, 90, 90)).rows
        (norm,) = (row for row in rows if row.test == NORM)
        return {one["model"] for one in norm.reported}, norm.numbers

    assert reported(DINOV2) == ({"DINOv2"}, [83.0])
    assert reported("a") == ({"DINOv2", "all"}, [83.0, 83.0, 96.0])


def test_reported_millions_are_in_our_unit():
    measured = [Value("parameters", "a", value=5.7e6), of("outlier_images", "a", 0.0, 0.01)]
    rows = read(REGISTRY["nr2-model-size"], measured).rows
    numbers = [row.numbers for row in rows if row.test.value == "parameters"]
    assert numbers and all(one == [300e6] for one in numbers)


def test_a_share_has_the_axis_from_none_to_all_and_others_hold_what_they_show(claim):
    spans = axes(read(claim, [*values("b", 0.01), *values("a", 0.9, 45, 10)]).rows, shares=True)
    low, high = spans["norm_reduction"]
    assert low < 44 and high > 83 and spans["outlier_images"] == (0, 1)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_published_result_says_what_decided_it_and_how_to_run_it_again(path):
    claim, data = REGISTRY[path.stem], json.loads(path.read_text(encoding="utf-8"))
    found = Decisions(claim, data)
    whole, models = found.result.shown[""], found.result.shown
    assert {row.model for row in found.rows} <= models.keys()
    answer = str(macro("answer", found))
    assert answer.startswith(whole.capitalize()) and "_" not in answer.split(" on ")[0]
    for row in found.rows:
        assert row.verdict == models[row.model] or row.role == "needs"
        if row.decides and row.role == "tests":
            assert row.outcome is {"supported": True, "refuted": False, "inconclusive": None}[whole]
        assert whole != "not tested" or not row.decides or row.role == "needs"
    if whole in ("supported", "refuted"):
        assert {*found.deciders} == {x for x, own in models.items() if x and own == whole}

    run, stored = path.parent.name, data["parameters"]
    words = shlex.split(claim_page.rerun(claim, run, stored))
    assert words[:7] == ["python", "-m", "helpers", "run", claim.id, "--run", run]
    assert {*words[7::2]} <= {"-p"}
    defaults = claim.parameters
    given = dict(word.split("=", 1) for word in words[8::2])
    again = checked(defaults, claim.profiles.get(run, {}))
    again |= {name: parse(name, text, defaults[name]) for name, text in given.items()}
    common = [
        name for name in stored if name in again and type(stored[name]) is type(defaults[name])
    ]  # noqa: E501
    assert {name: again[name] for name in common} == {name: stored[name] for name in common}
