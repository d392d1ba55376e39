"""What a notebook measures is collected in its order, drawn as it is, and judged with all of its
sources."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from helpers.capture import Lab
from helpers.claims import Value, load_registry
from helpers.claims.values import Values
from helpers.images import load_images
from helpers.measures.stats import Estimate


@pytest.fixture(scope="module")
def claim():
    """auc > 0.6 and auc_matched > 0.55, where outlier_images > 0.05"""
    claim = load_registry()["nr3-redundancy"]
    return replace(claim, criterion=replace(claim.criterion, tests=claim.criterion.tests[:2]))


def ends(x):
    return x / 10, x / 10 - 0.05, x / 10 + 0.05


@pytest.fixture
def values(claim):
    """Two models, one with a curve of three points."""
    values = Values(claim, "scenes")
    values.add("a", {"auc": Estimate(0.8, 0.7, 0.9, 64), "registers": 4})
    values.add("b", {f"auc_{x}": Estimate(*ends(x), 64) for x in (1, 2, 3)})
    return values


def test_values_are_added_in_order(values):
    values.add("b", {"auc": Estimate(0.5, 0.4, 0.6, 8)}, dataset="photographs", end="_large")
    values.add("b", {"share": 0.5, "one": Estimate(1.0, 1.0, 1.0, 1)}, start="rolled_")
    assert values == [
        Value("auc", "a", "scenes", 0.8, 0.7, 0.9, 64),
        Value("registers", "a", "scenes", 4.0),
        *(Value(f"auc_{x}", "b", "scenes", *ends(x), 64) for x in (1, 2, 3)),
        Value("auc_large", "b", "photographs", 0.5, 0.4, 0.6, 8),
        Value("rolled_share", "b", "scenes", 0.5),
        Value("rolled_one", "b", "scenes", 1.0, n=1),  # an interval would be a false certainty
    ]


def test_values_of_a_name(values):
    values.add("c", {"auc": 0.3})
    assert [value.value for value in values.of("auc")] == [0.8, 0.3]
    found = values.of("auc", ["c", "b", "a"])
    assert [value and value.value for value in found] == [0.3, None, 0.8]
    named = values.of("auc", ["c", "a"], {"a": "a, edited"})
    assert [value and value.model for value in named] == ["c", "a, edited"]
    assert values.of("nothing") == [] and values.of("nothing", ["a"]) == [None]


def test_settings_in_panels_and_beside_printed_numbers(values):
    rows = {"one": "auc_1", "two": "auc_2"}
    values.panels(
        rows, {"three": "auc_3"}, labels=["left", "right"], models=["b"], references=[0.5, 0.1]
    )
    first, second = plt.gcf().axes
    assert (first.get_xlabel(), second.get_xlabel()) == ("left", "right")
    assert [x.get_text() for x in first.get_yticklabels()] == ["one", "two"]
    legends = [[x.get_text() for x in ax.get_legend().get_texts()] for ax in (first, second)]
    assert legends == [["b", "reference: 0.5"], ["reference: 0.1"]]  # one names the models of both
    values.by_value(rows, "share", ["b"], printed={"the paper": {"auc_2": 0.4}})
    (ax,) = plt.gcf().axes
    assert 0.4 in np.concatenate([line.get_xdata() for line in ax.lines])
    plt.close("all")
    values.panels({"none": "nothing"})
    assert not plt.get_fignums()


def test_every_threshold_is_drawn_by_whose_it_is_and_for_the_models_that_it_judges(claim):
    first, second = claim.criterion.tests
    ours = replace(first, margin=0.8, model="b", extension="ours")
    tests = (first, ours, replace(second, model="b"))
    values = Values(replace(claim, criterion=replace(claim.criterion, tests=tests)), "scenes")
    for model, images in (("a", 0.5), ("b", 0.6), ("none", 0.0)):
        measured = {"outlier_images": Estimate(images, images, images, 64)}
        values.add(model, measured | {"auc": Estimate(0.7, 0.6, 0.75, 64), "auc_matched": 0.9})
    values.forest({"b": "b, edited"})
    axes = plt.gcf().axes
    rows = [[text.get_text() for text in ax.get_yticklabels()] for ax in axes]
    legends = [[text.get_text() for text in ax.get_legend().get_texts()] for ax in axes]
    plt.close("all")
    assert rows == [["a", "b, edited", "none"], ["a", "b, edited"], ["b, edited"]]
    assert legends == [
        ["condition: > 0.05"],
        ["paper's test: > 0.6", "our test: > 0.8"],
        ["our test: > 0.55"],
    ]
    with pytest.raises(ValueError, match="0.6, 0.8"):
        values.claim.margin("auc")


def test_the_verdict_has_every_source_once(claim):
    values = Values(claim, "scenes")
    for model, auc in (("a", 0.9), ("b", 0.2)):
        estimate = Estimate(auc, auc - 0.05, auc + 0.05, 64)
        values.add(model, {"outlier_images": Estimate(0.5, 0.4, 0.6, 64), "auc": estimate})
        values.add(model, {"auc_matched": estimate})
    measured, learnt = (load_images("scenes", 2, seed) for seed in (0, 1))
    sources = {model: {"name": model, "weights_hash": f"f{model}"} for model in "ab"}
    not_run = {"giant": "no network"}
    sets = [measured, learnt, measured]
    result = values.judge(Lab(["a", "b"], sources=sources, sets=sets, not_run=not_run))
    assert result.models == {"a": "supported", "b": "refuted"} and result.verdict == "refuted"
    assert result.sources == [*sources.values(), measured.describe(), learnt.describe()]
    assert result.not_run == not_run and result.values == list(values)


def test_rows_are_called_as_terms_without_what_all_begin_with():
    values = Values(load_registry()["xx2-corner-outliers"], "scenes")
    assert values._by_label(["max_norm", "max_norm_ablated"]) == (
        "Largest patch norm",
        {"original model": "max_norm", "the neuron at zero": "max_norm_ablated"},
    )
    label, rows = values._by_label(["channel_share", "cosine_outlier"])
    assert label == "" and [*rows.values()] == ["channel_share", "cosine_outlier"]
