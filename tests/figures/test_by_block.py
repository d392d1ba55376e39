import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from helpers import figures
from helpers.measures.stats import Estimate

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_block_curves_hold_the_estimates():
    curves = {
        "before": [Estimate(3.0, 2.0, 4.5, 9), Estimate(5.0, 4.0, 7.0, 9), Estimate(4.0, 3.5, 4.2, 9)],
        "moved": [Estimate(1.0, 0.5, 1.5, 9), Estimate(2.0, np.nan, np.nan, 1)],
    }
    ax = figures.block_curves(curves, plt.subplots()[1], "largest norm", "a model")
    for line, estimates in zip(ax.lines, curves.values(), strict=True):
        assert line.get_xdata().tolist() == [*range(len(estimates))]
        assert line.get_ydata().tolist() == [e.value for e in estimates]
    for bars, estimates in zip(figures.drawn(ax.figure)[0]["segments"], curves.values(), strict=True):
        ends = [end for e in estimates for end in (e.low, e.high)]
        assert bars["y"] == pytest.approx([None if np.isnan(end) else end for end in ends])
    assert [text.get_text() for text in ax.artists[-1].texts] == ["before", "moved"]
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("a model", "block (0 = first)", "largest norm")


def test_block_strips_hold_the_maps_under_their_titles():
    rng = np.random.default_rng(0)
    strips = {"one": rng.uniform(1, 2, (4, 3, 3)), "two": rng.uniform(5, 90, (7, 3, 3))}
    figure = plt.figure(figsize=(7, 1), layout="constrained")
    axes = figures.block_strips(strips, figure, columns=5)
    assert [part.get_suptitle() for part in figure.subfigs] == list(strips)
    assert [strip.shape for strip in axes] == [(1, 5), (2, 5)] and figure.get_figheight() == pytest.approx(4.8)
    for strip, maps in zip(axes, strips.values(), strict=True):
        images = [ax.images[0] for ax in strip.flat if ax.images]
        assert np.array_equal([image.get_array() for image in images], maps)
        assert {(image.norm.vmin, image.norm.vmax) for image in images} == {(maps.min(), maps.max())}
