import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from helpers.measures.outliers import outlier_images, outlier_shares


def planted(images=40, bearing=7, factor=4.0, patches=49, seed=0):
    """Norms near 10, and in the last `bearing` of the images two patches of `factor` times that."""
    norms = np.random.default_rng(seed).uniform(9, 11, (images, patches)).astype(np.float32)
    norms[images - bearing :, 3:5] *= factor
    return norms


@pytest.mark.parametrize("bearing", [0, 7, 40])
@pytest.mark.parametrize("to", [np.asarray, torch.from_numpy])
def test_outlier_images_are_those_that_bear_planted_ones(bearing, to):
    measured = outlier_images(to(planted(bearing=bearing)))
    assert measured.value == bearing / 40 and measured.n == 40 and measured.step == 1 / 40
    wilson = binomtest(bearing, 40).proportion_ci(method="wilson")
    assert (measured.low, measured.high) == pytest.approx((wilson.low, wilson.high), abs=1e-9)


def test_outlier_images_by_another_rule():
    norms = planted(factor=2.0)
    assert outlier_images(norms).value == 0
    assert outlier_images(norms, "median:1.5").value == 7 / 40
    assert outlier_images(norms, "fixed:12").value == 7 / 40
    with pytest.raises(ValueError, match="at least one image"):
        outlier_images(norms[:0])


@pytest.mark.parametrize("to", [np.asarray, torch.from_numpy])
def test_outlier_shares(to):
    """Two planted patches of 49 in 7 of 40 images; a rule changes which patches count, not which
    images have outliers."""
    norms = to(planted())
    assert outlier_shares(norms) == {
        "outlier_images": outlier_images(norms),
        "outlier_tokens": pytest.approx(14 / (40 * 49)),
    }
    assert outlier_shares(norms, "fixed:1e9") == {
        "outlier_images": outlier_images(norms),
        "outlier_tokens": 0,
    }
