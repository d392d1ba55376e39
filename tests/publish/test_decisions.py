"""What decided a result: the order of its tests, the paper's figures beside them, the answer in a sentence, values in words."""

from dataclasses import replace

import pytest

from helpers.publish.criteria import Criterion, Test, Value
from helpers.publish.project import Project
from helpers.publish.registry import load_registry
from helpers.publish.results import read_result
from helpers.publish.site.amounts import amount, asked, behind
from helpers.publish.site.decisions import decisions
from helpers.publish.terms import Term

SHARE = Term("share", "share of images")


def of(name, model, value, half=0.1, n=100):
    return Value(name, model, None, value, value - half, value + half, n)


def read(claim, criterion, values, not_run=None):
    claim = replace(claim, criterion=criterion)
    return decisions(claim, claim.judge(values, not_run=not_run).to_json() | {"run": "mine"})


@pytest.fixture(scope="module")
def claim():
    return load_registry()["tt3-attention-patterns"]


NORM, ATTENTION = Test("norm_reduction", ">", 50), Test("attention_reduction", ">", 50)
BOTH = Criterion("all", (NORM, ATTENTION), (Test("outlier_images", ">", 0.05),))
HAS = of("outlier_images", "a", 0.9, 0.05)


def test_the_clearest_failure_comes_first_and_models_without_outliers_last(claim):
    values = [HAS, of("norm_reduction", "a", 45, 1), of("attention_reduction", "a", 10, 1), of("outlier_images", "b", 0.01, 0.01)]
    found = read(claim, BOTH, [values[3], *values[:3]])
    assert [(row.model, row.test, row.decides) for row in found.rows] == [
        ("a", ATTENTION, True), ("a", NORM, True), ("b", BOTH.applies[0], False),
    ]  # fmt: skip
    assert not found.rows[2].applicable and found.deciders == ["a"]
    assert found.by == "decided by a, n = 100 images"
    asked_for = "10 % [9, 11], where above 50 % was asked for."
    assert found.answer == f"Refuted: fall of the largest [CLS] attention on a patch when outliers are moved: {asked_for}"


def test_a_supported_claim_rests_on_all_its_tests_that_nearest_to_failing_first(claim):
    found = read(claim, BOTH, [HAS, of("norm_reduction", "a", 90, 1), of("attention_reduction", "a", 52, 1)])
    assert [row.test for row in found.rows] == [ATTENTION, NORM] and all(row.decides for row in found.rows)
    assert found.answer.startswith("Supported: fall of the largest [CLS] attention")


def test_a_refuted_claim_does_not_rest_on_a_test_that_held(claim):
    found = read(claim, BOTH, [HAS, of("norm_reduction", "a", 90, 1), of("attention_reduction", "a", 10, 1)])
    assert [(row.test, row.decides, row.outcome) for row in found.rows] == [(ATTENTION, True, False), (NORM, False, True)]


def test_what_was_not_measured_leaves_it_open(claim):
    found = read(claim, BOTH, [HAS, of("norm_reduction", "a", 90, 1)])
    assert found.answer == "Inconclusive: fall of the largest [CLS] attention on a patch when outliers are moved: not measured."
    assert found.by == "left open by a"


def test_no_model_that_the_claim_applies_to(claim):
    found = read(claim, BOTH, [of("outlier_images", "b", 0.01, 0.01)])
    assert found.answer == (
        "Not applicable: images with at least one outlier: 1 of 100 images (0 to 2 %), and the claim is about models where it is "
        "above 5 %."
    )


def test_what_the_whole_needs_and_no_model_has(claim):
    needs = replace(BOTH, tests=(NORM,), needs=(Test("attention_reduction", ">", 99),))
    found = read(claim, needs, [HAS, of("norm_reduction", "a", 90, 1), of("attention_reduction", "a", 52, 1)])
    assert [(row.role, row.decides) for row in found.rows] == [("needs", True), ("tests", False)]
    assert "none of them has" in found.answer and "above 99 %" in found.answer and found.by == ""


def test_nothing_was_run(claim):
    found = read(claim, BOTH, [], {"a": "it is not there"})
    assert found.rows == [] and found.by == "" and found.answer.startswith("Not run: None of the models could be run")


def test_figures_of_the_same_model_stand_alone_and_others_where_there_are_none(claim):
    same = claim.source.models["DINOv2"]
    rows = read(claim, BOTH, [replace(HAS, model=same), of("norm_reduction", same, 90, 1)]).rows
    (norm,) = (row for row in rows if row.test == NORM)
    assert [one.model for one in norm.reported] == ["DINOv2"] and norm.numbers == [83.0]
    (norm,) = (row for row in read(claim, BOTH, [HAS, of("norm_reduction", "a", 90, 1)]).rows if row.test == NORM)
    assert {one.model for one in norm.reported} == {"DINOv2", "all"} and norm.numbers == [83.0, 83.0, 96.0]


def test_reported_millions_are_in_our_unit():
    claim = load_registry()["nr2-model-size"]
    rows = read(claim, claim.criterion, [Value("parameters", "a", value=5.7e6), of("outlier_images", "a", 0.0, 0.01)]).rows
    assert [row.numbers for row in rows if row.test.value == "parameters"] == [[300e6]] * sum(
        row.test.value == "parameters" for row in rows
    )


@pytest.mark.parametrize("path", Project().results(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_published_result_says_what_decided_it(path):
    claim, data = load_registry()[path.stem], read_result(path)
    found = decisions(claim, data)
    whole, models = found.result.verdict, {one["model"]: one["verdict"] for one in found.result.verdicts}
    untested = {one["model"] for one in found.result.verdicts if one["reason"] == "no test is put to this model"}
    assert {row.model for row in found.rows} == models.keys() - untested and set(found.untested) == untested
    assert found.answer.startswith(whole.capitalize()) and "_" not in found.answer.split(" on ")[0]
    for row in found.rows:
        assert row.verdict == models[row.model] or row.role == "needs"
        if row.decides and row.role == "tests":
            assert row.outcome is {"supported": True, "refuted": False, "inconclusive": None}[whole]
    if whole in ("supported", "refuted"):
        assert set(found.deciders) == {model for model, verdict in models.items() if verdict == whole}


@pytest.mark.parametrize(
    ("value", "term", "text"),
    [
        (Value("x", "m", value=0.5, low=0.3, high=0.7, n=6), SHARE, "3 of 6 images (30 to 70 %)"),
        (Value("x", "m", value=1.0, low=1.0, high=1.0, n=6), SHARE, "6 of 6 images"),
        (Value("x", "m", value=0.55, low=0.3, high=0.7, n=6), SHARE, "55 % [30, 70]"),
        (Value("x", "m", value=1.0, low=0.3, high=1.0, n=3), Term("x", "share of images", of="trainings"), "100 % [30, 100]"),
        (Value("x", "m", value=1 / 3), Term("x", "share of 6 claims"), "2 of 6 claims"),
        (Value("x", "m", value=0.25), Term("x", "share of 6 claims"), "25 %"),
        (Value("x", "m", value=1.0, low=1.0, high=1.0, n=6), Term("x"), "1"),
        (Value("x", "m", value=0.5, low=None, high=0.7, n=1), Term("x"), "0.5 [?, 0.7]"),
        (Value("x", "m", value=1.25, low=-1.0, high=3.5, n=6), Term("x", "points"), "+1.25 points [-1, +3.5]"),
        (Value("x", "m", value=5717416.0), Term("x", "count"), "5,717,416"),
        (Value("x", "m", value=1e-7), Term("x", "p-value"), "p < 0.001"),
        (Value("x", "m", value=0.0314), Term("x", "p-value"), "p = 0.031"),
        (Value("x", "m", value=-1e-12), Term("x"), "0"),
        (Value("x", "m", value=2.0, low=1.5, high=2.5, n=6), Term("x", "nats"), "2 nats [1.5, 2.5]"),
        (Value("x", "m"), Term("x"), "not defined"),
        (None, Term("x"), "not measured"),
    ],
)
def test_values_in_words(value, term, text):
    assert amount(value, term) == text


def test_margins_and_numbers_in_words():
    assert (
        asked(Test("x", ">=", 0.05), SHARE.unit) == "at least 5 %"
        and asked(Test("x", "<", -0.5), "points") == "below -0.5 points"
    )
    assert behind(of("x", "m", 1), SHARE) == "n = 100 images" and behind(Value("x", "m", value=1.0), SHARE) == ""
