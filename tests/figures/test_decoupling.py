"""Figures of what [CLS] takes from the other tokens: they hold the data given."""

from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from helpers import figures

matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_images_sorted_by_their_number():
    """As many points as images: the curve is the sorted numbers."""
    shares = {"one": torch.rand(21, generator=torch.Generator().manual_seed(0)), "two": torch.linspace(0, 1, 101).double()}
    ax = figures.sorted_images(shares, plt.subplots()[1], "images (%)", "share", reference=0.5, points=21)
    one, two, reference = ax.lines
    assert one.get_xdata().tolist() == pytest.approx(np.linspace(0, 100, 21).tolist())
    assert one.get_ydata().tolist() == pytest.approx(sorted(shares["one"].tolist()))
    assert two.get_ydata().tolist() == pytest.approx((two.get_xdata() / 100).tolist())
    assert reference.get_ydata() == [0.5, 0.5] and (ax.get_xlabel(), ax.get_ylabel()) == ("images (%)", "share")
    assert [text.get_text() for text in ax.artists[-1].texts] == ["one", "two", "reference: 0.5"]


def test_an_image_without_a_number_is_left_out_and_the_others_are_drawn():
    ax = figures.sorted_images({"one": torch.tensor([torch.nan, 3, 1, 2])}, plt.subplots()[1], "images (%)", "cosine", points=3)
    assert ax.lines[0].get_xydata().tolist() == [[0, 1], [50, 2], [100, 3]]


def test_cosines_after_each_block():
    estimates = [SimpleNamespace(value=v, low=v - 0.1, high=v + 0.05) for v in (0.2, 0.6, 1.0)]
    undefined = [SimpleNamespace(value=np.nan, low=np.nan, high=np.nan)] * 2 + estimates[2:]
    ax = figures.block_cosines({"a": estimates, "b": undefined}, plt.subplots()[1], "cosine")
    a, b = ax.lines
    assert a.get_xydata().tolist() == [[0, 0.2], [1, 0.6], [2, 1.0]]
    assert np.isnan(b.get_ydata()).tolist() == [True, True, False]
    ends = [path.vertices[:, 1].tolist() for path in ax.collections[1].get_paths()]
    assert np.array(ends) == pytest.approx(np.array([[0.1, 0.25], [0.5, 0.65], [0.9, 1.05]]))
    assert ax.get_ylim() == (0, 1.05) and ax.get_ylabel() == "cosine"


def test_cosines_below_zero_are_seen():
    estimates = [SimpleNamespace(value=v, low=v, high=v) for v in (-0.7, 1.0)]
    assert figures.block_cosines({"a": estimates}, plt.subplots()[1], "").get_ylim()[0] < -0.7


def test_shares_of_parts():
    tables = [("first", np.array([[0.75, 0.1], [0.1, 0.05]])), ("second", [[1.0, 0.0], [0.0, 0.0]]), ("first", np.eye(2) / 2)]
    axes = figures.part_shares(tables, ("patches", "[CLS]"), plt.subplots(2, 2, figsize=(7, 6))[1])
    assert [ax.get_title() for ax in axes.flat] == ["first", "second", "first", ""]
    for ax, (_, table) in zip(axes.flat, tables, strict=False):
        (mesh,) = ax.collections
        assert mesh.get_array().reshape(2, 2).tolist() == np.asarray(table).tolist() and mesh.get_clim() == (0, 1)
        assert [label.get_text() for label in ax.get_xticklabels()] == ["patches", "[CLS]"]
    assert not axes[1, 1].axison and not axes[1, 1].collections
