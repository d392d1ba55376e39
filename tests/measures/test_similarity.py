from functools import partial
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from by_hand import cka_by_gram, without_each
from scipy.spatial import distance
from sklearn.metrics.pairwise import cosine_similarity
from torch.nn import functional as F

from helpers.measures.similarity import (
    cka_difference,
    cka_floor,
    cka_over_images,
    cosine,
    expected_cka,
    linear_cka,
    neighbour_cosine,
    pairwise_cosine_drop,
    pairwise_cosine_over_images,
    principal_components,
    rank_share,
    varying_share,
)
from helpers.measures.stats import jackknife


def neighbour_cosine_by_pairs(grid, neighbours):
    """Over all pairs of patches, of which those one step apart count."""
    places = np.argwhere(np.ones(grid.shape[1:3]))
    near = distance.cdist(places, places, {4: "cityblock", 8: "chebyshev"}[neighbours]) == 1
    pairs = [cosine_similarity(image.reshape(len(places), -1)) for image in grid]
    return ((pairs * near).sum(-1) / near.sum(-1)).reshape(grid.shape[:3])


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("shape", [(2, 5, 4, 7), (1, 1, 3, 2), (1, 2, 1, 2)])
def test_neighbour_cosine_against_pairs(shape, neighbours):
    grid = np.random.default_rng(0).normal(size=shape)
    expected = neighbour_cosine_by_pairs(grid, neighbours)
    found = neighbour_cosine(torch.from_numpy(grid), neighbours)
    assert found.dtype == torch.float64 and found.numpy() == pytest.approx(expected)
    assert neighbour_cosine(grid.astype(np.float32), neighbours) == pytest.approx(
        expected, abs=1e-5
    )


def test_neighbour_cosine_of_known_grids():
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    chequered = torch.eye(2)[(rows + columns) % 2][None]
    assert neighbour_cosine(chequered, 4).abs().max() == 0
    assert neighbour_cosine(chequered, 8)[0, 1, 1] == 0.5  # the diagonal half of the neighbours
    black = torch.tensor([[[[0.0, 0, 0], [1, 1, 1]]]])
    assert neighbour_cosine(black).tolist() == [[[0, 0]]]
    assert neighbour_cosine(torch.ones(1, 1, 1, 3)).isnan().all()


def test_neighbour_cosine_batch_equals_single_images_and_half_precision_is_raised():
    grid = torch.randn(3, 4, 4, 16, generator=torch.Generator().manual_seed(0))
    single = torch.cat([neighbour_cosine(image[None]) for image in grid])
    assert torch.equal(neighbour_cosine(grid), single)
    assert neighbour_cosine(grid.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("n, width_x, width_y", [(4, 3, 2), (60, 8, 5), (40, 100, 70)])
def test_linear_cka_against_gram_matrices(debiased, n, width_x, width_y):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, width_x)) + 3
    y = rng.normal(size=(n, width_y)) - 5 + 0.7 * x[:, :1]
    assert linear_cka(x, y, debiased) == pytest.approx(cka_by_gram(x, y, debiased), rel=1e-9)
    assert linear_cka(torch.from_numpy(x), torch.from_numpy(y), debiased) == linear_cka(
        x, y, debiased
    )


@pytest.mark.parametrize("debiased", [False, True])
def test_linear_cka_of_a_large_common_offset(debiased):
    x = np.random.default_rng(0).normal(size=(200, 16))
    apart = (x + 1e4).astype(np.float32)
    assert linear_cka(apart, x, debiased) == pytest.approx(1, abs=1e-5)


def related(n=40, width_x=6, width_y=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width_x))
    return x + 3, np.hstack([x[:, :1], rng.normal(size=(n, width_y - 1))]) - 5


both = pytest.mark.parametrize("debiased", [False, True])


@both
def test_cka_of_constant_features_is_nan(debiased):
    x, constant = related()[0], np.full((40, 3), 0.1)
    for pair in ((x, constant), (constant, x), (constant, constant)):
        assert np.isnan(linear_cka(*pair, debiased))
        estimate, floor = cka_over_images(*pair, debiased), cka_floor(*pair, permutations=3)
        assert np.isnan([*estimate[:3], *floor]).all() and estimate.n == 40
        assert np.isnan(cka_difference(pair, (x, x)).value)
    assert np.isnan(expected_cka(x, constant))


def test_the_expected_cka_is_the_mean_over_all_pairings():
    x, y = related(5)
    exact = np.mean([cka_by_gram(x, y[list(order)], False) for order in permutations(range(5))])
    assert expected_cka(x, torch.from_numpy(y)) == pytest.approx(exact)


def test_the_floor_over_permutations():
    x, y = related(60, 30, 20)
    rng = np.random.default_rng(0)
    draws = [cka_by_gram(x, y[rng.permutation(60)], False) for _ in range(100)]
    assert cka_floor(x, y) == pytest.approx((np.mean(draws), np.quantile(draws, 0.95)))
    assert cka_floor(x, y).mean == pytest.approx(expected_cka(x, y), abs=0.006)
    assert cka_floor(x, y, permutations=1) == pytest.approx((draws[0], draws[0]))


@both
@pytest.mark.parametrize("n", [5, 40])
def test_the_interval_of_cka_is_the_jackknifes(debiased, n):
    x, y = related(n)
    estimate = cka_over_images(x, y, debiased)
    assert estimate.value == linear_cka(x, y, debiased) and estimate.n == n
    if debiased and n == 5:  # without one of five images, debiased CKA is of four
        return
    without = without_each(partial(cka_by_gram, debiased=debiased), x, y)
    expected = jackknife(estimate.value, without, (-1 if debiased else 0, 1))
    assert estimate == pytest.approx(expected)


def test_a_difference_of_cka_leaves_each_image_out_of_both():
    x, y = related()
    z = np.hstack([y[:, :2], x[:, :1]])
    apart = without_each(
        lambda x, y, z: cka_by_gram(x, y, False) - cka_by_gram(x, z, False), x, y, z
    )
    difference = linear_cka(x, y) - linear_cka(x, z)
    expected = jackknife(difference, apart, (-1, 1))
    assert cka_difference((x, y), (x, z)) == pytest.approx(expected)


def test_the_interval_ends_before_one():
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.vstack([x[:11], 5 * np.ones((1, 3))])  # one image apart
    estimate = cka_over_images(x, y)
    assert 0 < estimate.low < estimate.value < estimate.high < 1
    same = cka_over_images(x, x)  # nothing varies: all that twelve images can say
    assert same.high == 1 and 0.7 < same.low < 0.8


def participation(x):
    """The effective rank over the width, from the eigenvalues."""
    values = np.linalg.eigvalsh(np.cov(x, rowvar=False))
    return values.sum() ** 2 / (values**2).sum() / len(values)


def test_the_rank_is_that_of_the_eigenvalues_and_leaves_each_image_out():
    x = np.random.default_rng(0).normal(size=(30, 6)) * [5, 3, 1, 1, 0.1, 0] + 7
    expected = jackknife(participation(x), without_each(participation, x), (0, 1))
    assert rank_share(x) == pytest.approx(expected)
    corners = torch.cat([torch.eye(4), -torch.eye(4)])  # as long in each direction
    assert rank_share(corners).value == pytest.approx(1)
    assert rank_share(torch.arange(8.0)[:, None].expand(8, 4)).value == pytest.approx(1 / 4)
    assert np.isnan(rank_share(torch.ones(8, 4)).value)


ROWS = np.random.default_rng(0).normal(size=(8, 2))


@pytest.mark.parametrize(
    "refused",
    [
        lambda: linear_cka(ROWS[:5], ROWS[:6]),
        lambda: expected_cka(ROWS[:5], ROWS[:7]),
        lambda: linear_cka(ROWS[:1], ROWS[:1]),
        lambda: cka_floor(ROWS[:1], ROWS[:1]),
        lambda: linear_cka(ROWS[:3], ROWS[:3], debiased=True),
        lambda: cka_over_images(ROWS[:2], ROWS[:2]),
        lambda: cka_over_images(ROWS[:4], ROWS[:4], debiased=True),
    ],
)
def test_what_has_no_similarity_is_refused(refused):
    with pytest.raises(ValueError):
        refused()


def test_cosine_of_rows():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3, 8)), rng.normal(size=(5, 1, 8))
    expected = F.cosine_similarity(*map(torch.from_numpy, (a, b)), dim=-1).numpy()
    assert cosine(a, b) == pytest.approx(expected)
    found = cosine(torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16())
    assert found.dtype == torch.float32 and found.numpy() == pytest.approx(expected, abs=0.02)
    assert np.isnan(cosine(np.zeros((1, 3)), np.ones((1, 3)))).all()


def vectors(common=0.0, n=12, width=6, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, width)) + common)


def mean_cosine(x):
    return np.mean([1 - distance.cosine(a, b) for a, b in combinations(np.asarray(x), 2)])


@pytest.mark.parametrize("common", [0.0, 1.0, 5.0])
def test_pairwise_cosine_leaves_out_one_image_after_another(common):
    x = vectors(common)
    expected = jackknife(mean_cosine(x), without_each(mean_cosine, x.numpy()), (-1, 1))
    assert pairwise_cosine_over_images(x) == pytest.approx(expected, abs=1e-5)
    assert pairwise_cosine_over_images(x).value == pytest.approx(expected.value)
    assert np.isnan(pairwise_cosine_over_images(x * (x[:, :1] != x[0, 0])).value)  # a row of zeros
    two = pairwise_cosine_over_images(x[:2])
    assert two.value == pytest.approx(mean_cosine(x[:2])) and np.isnan(two.low)


def test_the_drop_is_paired():
    before, after = vectors(5.0), vectors(0.5)
    found = pairwise_cosine_drop(before, after)
    apart = without_each(
        lambda a, b: mean_cosine(a) - mean_cosine(b), before.numpy(), after.numpy()
    )
    expected = jackknife(mean_cosine(before) - mean_cosine(after), apart, (-2, 2))
    assert found == pytest.approx(expected, abs=1e-5) and found.low > 0
    assert found.value == pytest.approx(expected.value, abs=6e-7)
    # A token of another length has the same direction.
    assert pairwise_cosine_drop(before, 3 * before)[:2] == (0, 0)


def test_varying_share():
    """Vectors with a common part of length 3 and as much to either side as 4: 16 of 25."""
    x = torch.tensor([[3.0, 4.0], [3.0, -4.0]]).repeat(20, 1)
    assert varying_share(x).value == pytest.approx(16 / 25)
    assert varying_share(torch.full((10, 2), 7.0))[:3] == (0, 0, 0)
    scattered = vectors(n=400, width=50)
    found, mean = varying_share(scattered, seed=3), scattered.mean(0)
    common = 400 * float(mean @ mean) / float((scattered**2).sum())
    assert found.value == pytest.approx(1 - common, abs=1e-4) and found.low < found.value
    for unit in (1e9, 1e-9):  # a share has none
        assert varying_share(unit * scattered, seed=3) == pytest.approx(found)
    assert varying_share(scattered) != found


def test_components_of_features_of_rank_one():
    """All variance is in one direction, whose largest entry is positive; scores are distances."""
    steps = torch.arange(5.0)
    found = principal_components(steps[:, None] * torch.tensor([0.6, -0.8, 0.0]) + 7, count=2)
    torch.testing.assert_close(found.shares, torch.tensor([1.0, 0.0], dtype=torch.float64))
    expected = torch.tensor([-0.6, 0.8, 0.0], dtype=torch.float64)
    torch.testing.assert_close(found.directions[:, 0], expected, atol=1e-6, rtol=0)
    scores = found.scores(torch.tensor([[7.0, 7.0, 7.0]]))
    assert scores[0, 0].item() == pytest.approx(2, abs=1e-6)


def test_one_outlier_along_one_direction():
    """Of n patches one lies at a distance d along one axis, the others at plus and minus s along
    another: variances d^2 (n - 1) / n^2 and s^2 (n - 1) / n. All of the rest is at the outlier."""
    n, d, s = 9, 12.0, 1.0
    x = torch.zeros(n, 4)
    x[0, 3], x[1::2, 1], x[2::2, 1] = d, s, -s
    found = principal_components(x)
    first, second = d**2 * (n - 1) / n**2, s**2 * (n - 1) / n
    expected = [first / (first + second), second / (first + second), 0]
    assert found.shares.tolist() == pytest.approx(expected)
    squared = found.scores(x)[:, 0] ** 2
    assert (squared[0] / squared.sum()).item() == pytest.approx((n - 1) / n)
    without = principal_components(x[1:])
    assert without.directions[:, 0].tolist() == pytest.approx([0, 1, 0, 0])
    # The first two directions are kept by both; the last one is any of the two that are left.
    first = [principal_components(rows, count=1) for rows in (x, x[1:])]
    assert first[0].overlap(first[1]).item() == pytest.approx(0)
    both = [principal_components(rows, count=2) for rows in (x, x)]
    assert both[0].overlap(both[1]).item() == pytest.approx(1)


def test_components_against_singular_vectors_image_by_image():
    x = torch.randn(3, 20, 6, generator=torch.Generator().manual_seed(0))
    found = principal_components(x)
    for image, own in enumerate(x.double()):
        _, lengths, directions = torch.linalg.svd(own - own.mean(0))
        torch.testing.assert_close(found.shares[image], (lengths**2 / (lengths**2).sum())[:3])
        cosines = (directions[:3] * found.directions[image].T).sum(1)
        torch.testing.assert_close(cosines.abs(), torch.ones(3, dtype=torch.float64))
        scores = (own - own.mean(0)) @ found.directions[image]
        torch.testing.assert_close(found.scores(x)[image], scores)
        torch.testing.assert_close(found.own[image], scores)


def test_components_of_some_items_of_all_batches():
    x = torch.randn(3, 20, 6, generator=torch.Generator().manual_seed(0))
    among = torch.rand(3, 20, generator=torch.Generator().manual_seed(1)) > 0.3
    found, alone = principal_components(x, among), principal_components(x[among])
    assert all(torch.equal(a, b) for a, b in zip(found[:3], alone[:3], strict=True))
    torch.testing.assert_close(found.own, alone.scores(x))
