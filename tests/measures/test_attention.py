import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import jaccard_score

from helpers.measures.attention import (
    entropy,
    iou,
    mass,
    rank_correlation,
    top_agreement,
    top_patches,
)
from helpers.measures.norms import outliers

BOTH = pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


@BOTH
def test_mass_is_the_attention_in_the_mask(convert):
    attention = np.array([[[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]]])
    mask = np.array([[[True, False, True], [False, False, True]]])
    assert np.asarray(mass(convert(attention), convert(mask))) == pytest.approx(
        np.array([[0.7, 0.8]])
    )
    assert np.asarray(mass(convert(attention), convert(mask[0, 1]))) == pytest.approx(
        np.array([[0.2, 0.8]])
    )  # one mask for all
    assert type(mass(convert(attention), convert(mask))) is type(convert(attention))


@BOTH
def test_entropy_closed_forms_and_scipy(convert):
    uniform, one_token = np.full((1, 8), 1 / 8), np.eye(8)[:1]
    assert np.asarray(entropy(convert(np.concatenate([uniform, one_token])))) == pytest.approx(
        np.array([np.log(8), 0])
    )
    rows = np.random.default_rng(0).dirichlet(np.ones(50), size=(3, 4))
    assert np.asarray(entropy(convert(rows))) == pytest.approx(stats.entropy(rows, axis=-1))


@pytest.mark.parametrize("rows", [[[0.2, 0.2]], [[1.5, -0.5]], [[0.5, 0.5], [3.0, 4.0]]])
def test_entropy_refuses_what_is_no_distribution(rows):
    with pytest.raises(ValueError, match="sum to one"):
        entropy(np.array(rows))


def test_entropy_forgives_a_hundredth():
    rows = np.full((2, 4), 0.25)
    assert entropy(rows * [[0.995], [1.005]]) == pytest.approx(np.log(4), abs=0.01)
    for total in (0.985, 1.015):
        with pytest.raises(ValueError, match="sum to one"):
            entropy(rows * [[1], [total]])


@BOTH
def test_iou_against_sklearn(convert):
    a, b = np.random.default_rng(0).random((2, 20, 30)) < 0.2
    expected = [jaccard_score(x, y) for x, y in zip(a, b, strict=True)]
    assert np.asarray(iou(convert(a), convert(b))) == pytest.approx(expected)


@BOTH
def test_iou_of_empty_sets_is_nan(convert):
    a = np.array([[False, False], [False, True], [True, True]])
    b = np.array([[False, False], [False, False], [True, True]])
    assert np.asarray(iou(convert(a), convert(b))).tolist() == pytest.approx(
        [np.nan, 0, 1], nan_ok=True
    )


@BOTH
@pytest.mark.parametrize("ties", [False, True])
def test_rank_correlation_against_scipy(convert, ties):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 10, 196))
    b += 0.5 * a
    if ties:
        a, b = a.round(), b.round()
    expected = [stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    found = rank_correlation(convert(a), convert(b))
    assert type(found) is type(convert(a)) and np.asarray(found) == pytest.approx(
        expected, rel=1e-3
    )  # values 1e-5 apart tie


def test_rank_correlation_knows_monotone_reversed_and_constant_maps():
    a = np.random.default_rng(0).normal(size=(1, 50))
    maps = np.concatenate([np.exp(a), -(a**3), np.ones((1, 50))])
    assert rank_correlation(a.repeat(3, axis=0), maps).tolist() == pytest.approx(
        [1, -1, np.nan], nan_ok=True
    )


@BOTH
def test_top_agreement(convert):
    a = np.array([[0.1, 0.9, 0.3], [0.1, 0.9, 0.3], [0.5, 0.5, 0.1]])
    b = np.array([[1.0, 20.0, 3.0], [30.0, 20.0, 3.0], [9.0, 1.0, 1.0]])
    assert np.asarray(top_agreement(convert(a), convert(b))).tolist() == [True, False, True]


@pytest.mark.parametrize("size", [-1e4, 1.0, 1e-6])
def test_rank_correlation_ties_what_lies_a_hundred_thousandth_apart(size):
    def correlation(apart):
        return rank_correlation(
            size * np.array([[1, 1 + apart, 2.0]]), np.array([[1, 2, 3.0]])
        ).item()

    assert correlation(1.1e-5) == pytest.approx(np.sign(size))
    assert correlation(0.9e-5) == pytest.approx(
        np.sign(size) * np.sqrt(3) / 2
    )  # ranks 1.5, 1.5 and 3


def test_rank_correlation_ties_what_float32_cannot_tell_apart():
    rng = np.random.default_rng(0)
    levels = (
        rng.integers(0, 6, (5, 196)) + 40.0
    )  # a few kinds of patch, as in a picture with a flat background
    other = levels + 30 * rng.random((5, 196))
    noisy = levels * (1 + 1e-7 * rng.normal(size=levels.shape))
    exact = [stats.spearmanr(a, b).statistic for a, b in zip(levels, other, strict=True)]
    np.testing.assert_allclose(rank_correlation(levels, other), exact)
    np.testing.assert_allclose(rank_correlation(noisy, other), exact)
    assert not np.allclose(
        [stats.spearmanr(a, b).statistic for a, b in zip(noisy, other, strict=True)],
        exact,
        rtol=1e-3,
    )
    assert np.isnan(
        rank_correlation(np.full((1, 9), 3.0) * (1 + 1e-7 * rng.normal(size=9)), rng.random((1, 9)))
    ).all()


@BOTH
def test_top_patches_against_a_sort(convert):
    rng = np.random.default_rng(0)
    scores, counts = rng.normal(size=(12, 30)).astype(np.float32), rng.integers(0, 31, 12)
    counts[:2] = 0, 30
    found = top_patches(convert(scores), convert(counts))
    assert type(found) is type(convert(scores)) and np.asarray(found).dtype == bool
    for row, count, mask in zip(scores, counts, np.asarray(found), strict=True):
        assert sorted(row[mask]) == sorted(row)[30 - count :]


def test_of_equal_scores_the_first_patches_are_taken():
    flat = np.array([[0.5, 0.9, 0.5, 0.5], [0.2, 0.2, 0.2, 0.1]])
    noisy = flat * (1 + 3e-7 * np.array([[1, 0, -1, 2], [-1, 0, 1, 0]]))
    expected = [[True, True, False, False], [True, True, False, False]]
    assert (
        top_patches(flat, np.array([2, 2])).tolist()
        == expected
        == top_patches(noisy, np.array([2, 2])).tolist()
    )
    assert top_patches(np.array([[3.0, 7.0, 7.0]]), np.array([1])).tolist() == [
        [False, True, False]
    ]


@pytest.mark.parametrize("counts", [[1, 5], [-1, 1]])
def test_top_patches_refuses_what_is_no_number_of_patches(counts):
    with pytest.raises(
        ValueError, match=r"counts \[.*\] of 2 images with 4 patches; give 0 to 4 for each"
    ):
        top_patches(np.zeros((2, 4)), np.array(counts))


def test_as_many_patches_overlap_where_one_rule_selects_ten_times_as_many():
    """The same four patches stand out in both maps, and the tail of one is heavy: 3 medians find
    it, and the overlap falls."""
    rng = np.random.default_rng(0)
    norms, attention = 1 + 0.1 * rng.random((50, 196)), rng.lognormal(sigma=1.0, size=(50, 196))
    norms[:, :4], attention[:, :4] = 9.0, 99.0
    found = outliers(norms, "median:3")
    assert iou(found, top_patches(attention, found.sum(1))).tolist() == [1] * 50
    assert iou(found, outliers(attention, "median:3")).mean() < 0.2
    unrelated = iou(found, top_patches(rng.random((50, 196)), found.sum(1)))
    assert unrelated.mean() < 0.05
