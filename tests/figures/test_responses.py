"""Panels of curves: the artists hold exactly the data given."""

from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from helpers import figures

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def estimates(*values):
    return [SimpleNamespace(value=v, low=v - 1, high=v + 2) for v in values]


def test_a_curve_of_estimates():
    assert figures.curve(estimates(3.0, 5.0), [10, 20]) == ([10, 20], [3, 5], [2, 4], [5, 7])
    assert figures.curve(iter(estimates(3.0, 5.0))) == (range(2), [3, 5], [2, 4], [5, 7])
    assert figures.curve([]) == (range(0), [], [], [])


def test_a_panel_for_each_model():
    given = {
        "one": {"a": figures.curve(estimates(1.0, 2.0)), "b": figures.curve(estimates(0.0, 4.0), [0, 5])},
        "other": {"a": figures.curve(estimates(7.0))},
    }
    axes = figures.rows(2)
    assert figures.responses(given, axes, "dropped (%)", "accuracy (%)") is axes
    assert [ax.get_title() for ax in axes.flat] == ["one", "other"]
    assert {(ax.get_xlabel(), ax.get_ylabel()) for ax in axes.flat} == {("dropped (%)", "accuracy (%)")}
    for ax, curves in zip(axes.flat, given.values(), strict=True):
        for line, (x, values, *_) in zip(ax.lines, curves.values(), strict=True):
            np.testing.assert_array_equal(line.get_xydata(), np.transpose([x, values]))
        bars = [drawn.get_segments() for drawn in ax.collections if hasattr(drawn, "get_segments")]
        for segments, (x, _, low, high) in zip(bars, curves.values(), strict=True):
            np.testing.assert_array_equal(segments, [[(a, b), (a, c)] for a, b, c in zip(x, low, high, strict=True)])
        assert [text.get_text() for text in ax.artists[-1].texts] == [*curves]


def test_as_many_panels_as_models():
    with pytest.raises(ValueError):
        figures.responses({"one": {}, "other": {}}, figures.rows(1))
