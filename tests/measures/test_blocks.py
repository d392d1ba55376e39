import numpy as np
import pytest
import torch
from scipy import stats

from helpers.measures.blocks import (
    at_peak,
    growth,
    growth_before,
    largest_before,
    median_onset,
    over_blocks,
    peak_block,
    thirds,
)
from helpers.measures.stats import over_images


def test_thirds_are_numpys():
    x = torch.from_numpy(np.random.default_rng(0).lognormal(size=(5, 11)))
    early, middle, late = (np.mean(part, axis=1) for part in np.array_split(x.numpy(), 3, axis=1))
    found = thirds(x)
    for got, expected in ((found.early, early), (found.middle, middle), (found.late, late)):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert [part.shape[1] for part in np.array_split(x.numpy(), 3, axis=1)] == [4, 4, 3]


def test_planted_growth():
    """Twice as large in the second third and five times in the last block: only that block is
    growth."""
    x = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 5.0]).repeat(4, 1) * torch.tensor(
        [[1.0], [2.0], [3.0], [10.0]]
    )
    assert growth(x).tolist() == [5.0] * 4
    assert thirds(x)[1].tolist() == [2.0, 4.0, 6.0, 20.0]
    assert growth(torch.ones(2, 12)).tolist() == [1.0, 1.0]


def test_growth_before_a_planted_jump():
    """Flat but for the last block, and growing through all of them: only the second has grown
    before the last."""
    flat, growing = (
        torch.tensor([4.0, 4.0, 4.0, 4.0, 4.0, 12.0]),
        torch.tensor([1.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
    )
    assert growth_before(torch.stack([flat, growing])).tolist() == [1.0, 4.0]
    assert growth(torch.stack([flat, growing])).tolist() == [3.0, 5.0]


BOTH = pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


def planted():
    """Twenty images, six blocks: a peak in block 3 for most, a larger one elsewhere in a single
    image."""
    values = np.random.default_rng(0).uniform(1, 2, (20, 6)).astype(np.float32)
    values[:, 3] += 5
    values[7, 1] = 40
    return values


@BOTH
def test_over_blocks_are_the_means_of_the_columns(convert):
    estimates = over_blocks(convert(planted()))
    assert [e.value for e in estimates] == pytest.approx(planted().mean(0).tolist(), rel=1e-6)
    assert estimates == [over_images(column) for column in planted().T] and {
        e.n for e in estimates
    } == {20}
    even = np.tile([[1.0, 5.0], [3.0, 9.0]], (10, 1))  # no skewness: Student's t
    low, high = stats.t.interval(0.95, 19, loc=7, scale=stats.sem(even[:, 1]))
    assert over_blocks(convert(even))[1][:3] == pytest.approx((7, low, high))


def test_over_blocks_within_limits():
    cosines = np.random.default_rng(0).uniform(0.9, 1, (20, 3))
    cosines[:, 2] = 1  # by construction, not by chance
    bounded = over_blocks(cosines, (-1, 1), continuous=True)
    assert bounded == [over_images(column, (-1, 1), continuous=True) for column in cosines.T]
    assert bounded[2][:3] == (1, 1, 1) and bounded[0].high <= 1


@BOTH
def test_peak_is_that_of_the_mean(convert):
    assert peak_block(convert(planted())) == 3
    assert peak_block(convert(np.ones((4, 3)))) == 0
    assert peak_block(convert(planted()[:, ::-1].copy())) == 2


@BOTH
def test_at_the_peak_of_another(convert):
    after = np.random.default_rng(1).uniform(0, 90, (20, 6)).astype(np.float32)
    assert np.asarray(at_peak(convert(after), convert(planted()))).tolist() == after[:, 3].tolist()


@BOTH
@pytest.mark.parametrize(
    ("onset", "expected"),
    [([5, 2, -1, 9, -1], 5), ([4, 8], 4), ([-1, -1], 0), ([], 0), ([0, 0, 7], 0)],
)
def test_median_onset_leaves_out_images_without(convert, onset, expected):
    assert median_onset(convert(np.array(onset, dtype=np.int64))) == expected


@BOTH
def test_largest_before_a_block(convert):
    early = largest_before(convert(planted()), 3)
    assert (
        early.value
        == pytest.approx(np.mean([max(row[:3]) for row in planted().tolist()]), rel=1e-6)
        and early.n == 20
    )
    assert largest_before(convert(planted()), 1).value == pytest.approx(
        planted()[:, 0].mean(), rel=1e-6
    )
    assert largest_before(convert(planted()), 0).n == 0
