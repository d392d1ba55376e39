import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score

from helpers.measures.outliers import (
    at_and_elsewhere,
    firing,
    limited_ratio,
    runner_up,
    strongest,
)


def planted(images=30, patches=25, at=8.0, elsewhere=0.5, seed=0):
    """A neuron that fires at the outliers, which the last ten images do not have."""
    rng = np.random.default_rng(seed)
    outlier = rng.random((images, patches)) < 0.1
    outlier[:, 0], outlier[-10:] = True, False
    activation = rng.uniform(0.9, 1.1, (images, patches)) * np.where(outlier, at, elsewhere)
    return torch.from_numpy(activation).float(), torch.from_numpy(outlier)


def test_a_planted_neuron_marks_the_outliers():
    found = firing(*planted())
    assert found.at_outliers.value == pytest.approx(
        8, rel=0.02
    ) and found.elsewhere.value == pytest.approx(0.5, rel=0.02)
    assert (
        found.ratio.value == pytest.approx(16, rel=0.03)
        and found.ratio.low < found.ratio.value < found.ratio.high
    )
    assert found.overlap.value == 1 and {x.n for x in found} == {20}  # images with an outlier


def test_a_neuron_that_does_not_care_marks_nothing():
    found = firing(*planted(at=1.0, elsewhere=1.0))
    assert found.ratio.value == pytest.approx(1, abs=0.05) and found.overlap.value < 0.3


def test_a_neuron_that_is_silent_elsewhere_has_a_limited_ratio():
    assert firing(*planted(elsewhere=0.0)).ratio[:3] == pytest.approx((1e6,) * 3)


def test_sides_against_numpy():
    activation, outlier = planted(images=12)
    sides = at_and_elsewhere(activation, outlier)
    for row, a, found in zip(sides, activation.numpy(), outlier.numpy(), strict=True):
        expected = [a[found].mean(), a[~found].mean()] if found.any() else [np.nan, np.nan]
        assert row.tolist() == pytest.approx(expected, nan_ok=True)


def test_strongest_are_as_many_as_the_outliers():
    activation, outlier = planted(at=1.0, elsewhere=1.0)
    chosen = strongest(activation, outlier)
    assert chosen.sum(1).tolist() == outlier.sum(1).tolist()
    for row, a in zip(chosen.numpy(), activation.numpy(), strict=True):
        assert row.sum() == 0 or a[row].min() > a[~row].max()
    assert strongest(torch.ones(1, 4), torch.tensor([[False, True, False, True]])).tolist() == [
        [True, True, False, False]
    ]
    overlap = np.mean(
        [
            jaccard_score(x, y)
            for x, y in zip(chosen[:20].numpy(), outlier[:20].numpy(), strict=True)
        ]
    )
    assert firing(activation, outlier).overlap.value == pytest.approx(overlap)


def test_limited_ratio_is_one_of_means():
    rows = torch.tensor([[1.0, 1.0], [3.0, 0.0], [2.0, 1.0], [2.0, 0.0], [2.0, 0.5]])
    found = limited_ratio(rows, seed=1)
    assert (
        found.value == pytest.approx(10 / 2.5)
        and found.low < 4 < found.high
        and found != limited_ratio(rows, seed=2)
    )


def test_runner_up_at_the_outliers():
    (first, outlier), (second, _) = planted(), planted(at=2.0, elsewhere=30.0)
    found = runner_up(second, first, outlier)
    assert found.value == pytest.approx(0.25) and found.n == 20
