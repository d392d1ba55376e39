"""What a page says of stored figures, from the numbers that these carry."""

import json

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from helpers import figures
from helpers.condensed import FIGURE, figure_text
from helpers.publish.criteria import Value
from helpers.publish.site.outputs import explained, improve, instead, said, tabled
from helpers.publish.terms import load_terms

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def drawn(ax):
    """The numbers of a figure as a notebook stores them."""
    return json.loads(figure_text(figures.drawn(np.ravel(ax)[0].figure)))


def value(model, x, low=None, high=None, name="iou"):
    return Value(name=name, model=model, value=x, low=low, high=high)


def test_a_figure_of_one_number_is_a_sentence():
    axes = drawn(figures.forest([value("one", 0.52, 0.5, 0.55)], 0.6, plt.subplots()[1]))
    assert instead(axes) == "One number needs no figure. Iou: **0.52** [0.5, 0.55], beside the margin 0.6."
    axes = drawn(figures.forest([value("one", 0.52)], 0.6, plt.subplots()[1]))
    assert instead(axes) == "One number needs no figure. Iou: **0.52**, beside the margin 0.6."
    axes = drawn(figures.forest([value("one", None), value("two", None)], 0.6, plt.subplots()[1]))
    assert instead(axes) == "No figure: iou is undefined for 2 of the models."


@pytest.mark.parametrize(
    "draw",
    [
        lambda ax: figures.forest([value("one", 0.5), value("two", 0.5)], 0.6, ax),
        lambda ax: figures.response({"a": ([0, 1], [2, 2], None, None)}, ax),
        lambda ax: figures.onset_histogram({"a": np.array([1, -1])}, 3, ax),
        lambda ax: figures.sweep(np.ones((1, 1)), ["a"], ["b"], ax),
    ],
)
def test_other_figures_stay(draw):
    assert instead(drawn(draw(plt.subplots()[1]))) == ""


def test_alternative_text_tells_the_numbers():
    ax = figures.response({"a": ([0, 1, 2], [2, 7.25, 3], None, None), "b": ([0, 1], [1, 4], None, None)}, plt.subplots()[1],
                          "block", "norm", reference=9)  # fmt: skip
    assert said(drawn(ax)) == "norm from 1 to 7.25 (2 curves), the largest at block 1."
    ax = figures.forest([value("one", 0.2), value("two", 0.7), value("three", None)], 0.6, plt.subplots()[1])
    assert said(drawn(ax)) == "iou from 0.2 to 0.7 (2 values), beside a line at 0.6."
    axes = figures.share_maps({"vit_tiny_patch16_224.augreg_in21k": np.eye(3)}, plt.subplots(squeeze=False)[1])
    assert said(drawn(axes)) == "ViT-Ti (AugReg): map from 0 to 1."  # stored whole, in lines
    assert said(drawn(figures.sweep(np.array([[1.0, 4.0]]), ["q"], [1, 2], plt.subplots()[1]))) == "cells from 1 to 4."


def test_long_curves_and_many_panels_are_told_in_short():
    axes = plt.subplots(6, 1)[1]
    for ax in axes:
        figures.response({"a": (range(200), np.linspace(0, 5, 200), None, None)}, ax, "x", "height")
    assert said(drawn(axes)) == " ".join(["height from 0 to 5 (1 curve)."] * 4) + " 2 more panels."


def test_a_photograph_says_nothing():
    _, ax = plt.subplots()
    ax.imshow(np.zeros((4, 4, 3)))
    ax.set_title("image")
    assert said(drawn(ax)) == ""


def test_a_printed_dict_is_a_table():
    assert tabled("{'m': '1.6e-07'}").splitlines()[-1] == "| `m` | 1.6e-07 |"
    assert tabled("{'m': [(7, 417, 173.768806),\n (8, 1, 2.0)]}").splitlines()[-1] == "| `m` | 7, 417, 174; 8, 1, 2 |"
    assert tabled("{}") == "None." and tabled("[1]") == "" and tabled("<Result>") == "" and tabled("{") == ""


def test_a_notebook_is_improved_where_it_can_be():
    forest = figure_text(figures.drawn(figures.forest([value("one", 0.5)], 0.6, plt.subplots()[1]).figure))
    many = figure_text(figures.drawn(figures.forest([value("one", 0.5), value("two", 1)], 0.6, plt.subplots()[1]).figure))
    look = {"mystnb": {"image": {"alt": "Values beside a margin."}, "figure": {"caption": "What is shown."}}}
    cells = [
        new_code_cell("a", outputs=[new_output("display_data", data={FIGURE: text, "image/png": "x"})], metadata=look)
        for text in (forest, many)
    ]
    cells.append(new_code_cell("b", outputs=[new_output("execute_result", data={"text/plain": "{}"})]))
    one, other, table = improve(new_notebook(cells=cells)).cells
    assert one.outputs[0].data["text/markdown"].endswith("margin 0.6. What is shown.")
    assert other.outputs[0].data["image/png"] == "x"
    alt = "Values beside a margin. iou from 0.5 to 1 (2 values), beside a line at 0.6."
    assert other.metadata.mystnb.image.alt == alt and table.outputs[0].data == {"text/markdown": "None."}


def test_an_axis_of_a_value_is_explained_by_its_term():
    values = [Value(name="outlier_images", model="m", value=0.5, unit="share of images")]
    axes = drawn(figures.forest(values, 0.05, plt.subplots()[1]))
    term = load_terms().of("nr1-artifacts", "outlier_images")
    text = explained(axes, "nr1-artifacts")
    assert (
        text.startswith("Outlier images (share of images): ") and term.unit in text and f"further right: {term.higher}." in text
    )
    assert (
        explained(axes, "") and explained(drawn(figures.forest([value("m", 1, name="no_such")], 0, plt.subplots()[1])), "") == ""
    )
