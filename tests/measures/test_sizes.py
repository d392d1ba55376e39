import numpy as np
import pytest
import torch

from helpers.measures.outliers import over_larger, size_slope

RNG = np.random.default_rng(0)
SIZES = [2e7, 8e7, 3e8, 1.1e9]


def test_a_planted_slope():
    """Each image rises by its own amount for ten times the size."""
    rise = torch.tensor([3.0, -1.0, 0.0], dtype=torch.float64)
    per_image = 5 + rise[:, None] * torch.tensor(SIZES, dtype=torch.float64).log10()
    torch.testing.assert_close(size_slope(SIZES, per_image), rise)


def test_the_mean_is_the_slope_of_the_means():
    per_image = RNG.random((30, 4))
    expected = np.polyfit(np.log10(SIZES), per_image.mean(0), 1)[0]
    assert size_slope(SIZES, per_image).mean() == pytest.approx(expected)


def test_sizes_that_make_no_line():
    with pytest.raises(
        ValueError, match=r"no trend over the sizes 10, 10; give models of at least two sizes"
    ):
        size_slope([10, 10], np.ones((3, 2)))
    with pytest.raises(ValueError, match="2 sizes for 3 models"):
        size_slope([10, 20], np.ones((3, 3)))


def test_a_smaller_model_with_planted_outliers_and_longer_norms():
    """One patch of ten in the smaller model, on a finer grid none in the larger; norms of three
    times the length."""
    few, none = torch.zeros(20, 10, dtype=torch.bool), torch.zeros(20, 40, dtype=torch.bool)
    few[:, 3] = True
    norms = torch.full((20, 10), 6.0), torch.full((20, 40), 2.0)
    found = over_larger((few, none), norms)
    assert (
        found["tokens_over_larger"].value == pytest.approx(10)
        and found["tokens_over_larger"].low > 9
    )
    assert found["norm_over_larger"][:4] == pytest.approx((3, 3, 3, 20))
    back = over_larger((none, few), norms[::-1])
    assert back["tokens_over_larger"].value == pytest.approx(-10) and back[
        "norm_over_larger"
    ].value == pytest.approx(1 / 3)


def test_a_comparison_is_paired():
    """What makes an image's norms long in both models does not widen the interval."""
    scale = torch.from_numpy(RNG.lognormal(3, 1, (50, 1)))
    norms = scale * torch.ones(50, 4), 2 * scale * torch.ones(50, 9)
    nothing = torch.zeros(50, 4, dtype=torch.bool), torch.zeros(50, 9, dtype=torch.bool)
    ratio = over_larger(nothing, norms)["norm_over_larger"]
    assert ratio.low == pytest.approx(0.5) and ratio.high == pytest.approx(0.5)
