"""Heat maps side by side: the artists hold exactly the data given."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from helpers import figures

matplotlib.use("agg")

TABLES = {
    "vit.one": {"without": torch.tensor([[10.0, 20.0, torch.nan]]), "with": torch.tensor([[0.0, 80.0, 5.0]])},
    "other": {"without": np.array([[1.0, 2.0, 3.0]]), "with": np.array([[3.0, 2.0, 1.0]])},
    "blind": {"without": np.full((1, 3), np.nan), "with": np.full((1, 3), np.nan)},
}


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_a_row_of_heat_maps_for_each_model():
    axes = figures.rows(3, 2)
    assert figures.sweeps(TABLES, ["keys"], [-3, -2, -1], axes, "CorLoc (%)", "block") is axes
    for line, (model, own) in zip(axes, TABLES.items(), strict=True):
        assert line[0].get_ylabel() == model.replace(".", ".\n")
        for ax, (title, table) in zip(line, own.items(), strict=True):
            assert (ax.get_title(), ax.get_xlabel()) == (title, "block")
            drawn = ax.collections[0].get_array()
            np.testing.assert_array_equal(np.ma.filled(drawn, np.nan), np.asarray(table))
            assert [label.get_text() for label in ax.get_xticklabels()] == ["-3", "-2", "-1"]


def test_one_colour_scale_a_model_from_zero():
    axes = figures.sweeps(TABLES, ["keys"], [-3, -2, -1], figures.rows(3, 2))
    ends = [[ax.collections[0].get_clim() for ax in line] for line in axes]
    assert ends == [[(0, 80)] * 2, [(0, 3)] * 2, [(0, 1)] * 2]


def test_as_many_rows_as_models():
    with pytest.raises(ValueError):
        figures.sweeps(TABLES, ["keys"], [-3, -2, -1], figures.rows(2, 2))
