from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from helpers.measures.similarity import (
    Comoments,
    cka_difference,
    cka_floor,
    cka_over_images,
    cosine,
    linear_cka,
    neighbour_cosine,
    pairwise_cosine,
)
from helpers.measures.stats import jackknife


def neighbour_cosine_by_loop(grid, neighbours):
    batch, rows, columns, _ = grid.shape
    out = np.zeros((batch, rows, columns))
    for i, r, c in np.ndindex(out.shape):
        near = [
            grid[i, r + dr, c + dc]
            for dr in (-1, 0, 1)
            for dc in (-1, 0, 1)
            if (dr, dc) != (0, 0)
            and (neighbours == 8 or 0 in (dr, dc))
            and 0 <= r + dr < rows
            and 0 <= c + dc < columns
        ]
        out[i, r, c] = cosine_similarity(grid[i, r, c][None], near).mean()
    return out


def cka_by_gram(x, y, debiased):
    """Centred or U-centred n x n Gram matrices (Song et al. 2012; Szekely & Rizzo 2014),
    independent of the feature form."""
    n = len(x)

    def centred(gram):
        if not debiased:
            h = np.eye(n) - 1 / n
            return h @ gram @ h
        gram = gram - np.diag(np.diag(gram))
        rows = gram.sum(axis=0)
        gram = (
            gram - rows[:, None] / (n - 2) - rows[None] / (n - 2) + gram.sum() / ((n - 1) * (n - 2))
        )
        return gram - np.diag(np.diag(gram))

    k, m = centred(x @ x.T), centred(y @ y.T)
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("shape", [(2, 5, 4, 7), (1, 1, 3, 2), (1, 2, 1, 2)])
def test_neighbour_cosine_against_a_loop(shape, neighbours):
    grid = np.random.default_rng(0).normal(size=shape)
    expected = neighbour_cosine_by_loop(grid, neighbours)
    found = neighbour_cosine(torch.from_numpy(grid), neighbours)
    assert found.dtype == torch.float64 and found.numpy() == pytest.approx(expected)
    assert neighbour_cosine(grid.astype(np.float32), neighbours) == pytest.approx(
        expected, abs=1e-5
    )


def test_neighbour_cosine_of_known_grids():
    redundant = torch.ones(1, 3, 3, 8) * torch.arange(1.0, 10.0).reshape(
        1, 3, 3, 1
    )  # same direction, any length
    assert neighbour_cosine(redundant) == pytest.approx(torch.ones(1, 3, 3))
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    chequered = torch.eye(2)[(rows + columns) % 2][None]
    assert neighbour_cosine(chequered, 4).abs().max() == 0
    assert neighbour_cosine(chequered, 8)[0, 1, 1] == 0.5  # the diagonal half of the neighbours
    black = torch.ones(1, 1, 2, 3)
    black[0, 0, 0] = 0
    assert neighbour_cosine(black).tolist() == [[[0, 0]]]
    assert neighbour_cosine(torch.ones(1, 1, 1, 3)).isnan().all()


def test_neighbour_cosine_batch_equals_single_images_and_half_precision_is_raised():
    grid = torch.randn(3, 4, 4, 16, generator=torch.Generator().manual_seed(0))
    single = torch.cat([neighbour_cosine(image[None]) for image in grid])
    assert torch.equal(neighbour_cosine(grid), single)
    assert neighbour_cosine(grid.bfloat16()).dtype == torch.float32


def test_neighbour_cosine_refuses_other_neighbourhoods():
    with pytest.raises(ValueError, match="not 6; use neighbours=4"):
        neighbour_cosine(torch.ones(1, 2, 2, 2), 6)


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
def test_linear_cka_of_related_features(debiased):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 16))
    rotation = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    assert linear_cka(x, 5 * x @ rotation + 2, debiased) == pytest.approx(1)
    assert linear_cka((x + 1e4).astype(np.float32), x, debiased) == pytest.approx(
        1, abs=1e-5
    )  # a large common offset
    assert np.isnan(linear_cka(x, np.ones((200, 3)), debiased))


def test_linear_cka_of_independent_features():
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 1536)).astype(np.float32)
    assert linear_cka(x, y) == pytest.approx(0.606, abs=0.005)
    assert linear_cka(x, y, debiased=True) == pytest.approx(0, abs=0.005)


def test_debiased_cka_refuses_too_few_images():
    with pytest.raises(ValueError, match="at least 4 images, not 3"):
        linear_cka(np.ones((3, 2)), np.ones((3, 2)), debiased=True)


def related(n=40, width_x=6, width_y=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width_x))
    return x + 3, np.hstack([x[:, :1], rng.normal(size=(n, width_y - 1))]) - 5


both = pytest.mark.parametrize("debiased", [False, True])


@both
@pytest.mark.parametrize("size", [1, 7, 40])
def test_comoments_of_batches_are_those_of_the_whole(debiased, size):
    x, y = related()
    batches = Comoments()
    for start in range(0, 40, size):
        batches.update(torch.from_numpy(x[start : start + size]), y[start : start + size])
    assert batches.n == 40
    assert batches.cka(debiased) == pytest.approx(cka_by_gram(x, y, debiased), rel=1e-9)
    assert batches.floor() == pytest.approx(Comoments().update(x, y).floor(), rel=1e-9)


@both
def test_cka_is_stable_under_a_large_common_offset(debiased):
    x, y = related()
    moved = Comoments()
    for start in range(0, 40, 8):
        moved.update(x[start : start + 8] + 1e6, y[start : start + 8] - 1e6)
    assert moved.cka(debiased) == pytest.approx(cka_by_gram(x, y, debiased), rel=1e-8)


@both
def test_cka_does_not_depend_on_units_axes_or_order(debiased):
    x, y = related()
    rng = np.random.default_rng(1)
    order, rotation = rng.permutation(40), np.linalg.qr(rng.normal(size=(6, 6)))[0]
    expected = linear_cka(x, y, debiased)
    assert linear_cka(y, x, debiased) == pytest.approx(expected)
    for units in ((1e-6, 1e6), (1e-6, 1e-6)):
        assert linear_cka(
            units[0] * x[order] @ rotation, units[1] * y[order], debiased
        ) == pytest.approx(expected)


@both
def test_cka_of_constant_features_is_nan(debiased):
    x, constant = related()[0], np.full((40, 3), 0.1)
    for pair in ((x, constant), (constant, x), (constant, constant)):
        assert np.isnan(linear_cka(*pair, debiased))
        assert np.isnan(
            Comoments().update(*(z[:9] for z in pair)).update(*(z[9:] for z in pair)).cka(debiased)
        )
        estimate, floor = (
            cka_over_images(*pair, debiased),
            cka_floor(*pair, debiased, permutations=3),
        )
        assert np.isnan([*estimate[:3], *floor[:2]]).all() and estimate.n == 40
        assert np.isnan(cka_difference(pair, (x, x), debiased).value)
    assert np.isnan(Comoments().update(x, constant).floor())


def test_the_floor_is_the_mean_over_all_pairings():
    x, y = related(5)
    exact = np.mean([cka_by_gram(x, y[list(order)], False) for order in permutations(range(5))])
    assert Comoments().update(x, y).floor() == pytest.approx(exact)


@both
def test_the_floor_over_permutations(debiased):
    x, y = related(60, 30, 20)
    floor = cka_floor(x, y, debiased, permutations=400, quantile=0.9)
    rng = np.random.default_rng(0)
    draws = [cka_by_gram(x, y[rng.permutation(60)], debiased) for _ in range(400)]
    assert floor[:2] == pytest.approx((np.mean(draws), np.quantile(draws, 0.9)))
    assert floor.mean == pytest.approx(
        0 if debiased else Comoments().update(x, y).floor(), abs=0.003
    )
    assert (
        cka_floor(x, y, debiased, 400, 0.9, seed=1) != floor == cka_floor(x, y, debiased, 400, 0.9)
    )
    assert floor.mean < floor.high < linear_cka(x, x, debiased) and floor.permutations == 400
    one = cka_floor(x, y, debiased, permutations=1)
    assert one.mean == one.high == pytest.approx(draws[0])


@both
@pytest.mark.parametrize("n", [5, 40])
def test_the_interval_of_cka_is_the_jackknifes(debiased, n):
    x, y = related(n)
    estimate = cka_over_images(x, y, debiased)
    assert estimate.value == linear_cka(x, y, debiased) and estimate.n == n
    if n > 5:  # without one of five images, debiased CKA is of four
        without = np.array(
            [cka_by_gram(np.delete(x, i, 0), np.delete(y, i, 0), debiased) for i in range(n)]
        )
        limits = (-1 if debiased else 0, 1)
        assert estimate == pytest.approx(jackknife(estimate.value, without, limits))
        error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
        assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * error, rel=0.1)
        z = np.hstack([y[:, :2], x[:, :1]])
        apart = np.array(
            [cka_by_gram(np.delete(x, i, 0), np.delete(z, i, 0), debiased) for i in range(n)]
        )
        difference = cka_difference((x, y), (x, z), debiased)
        assert difference.value == pytest.approx(estimate.value - linear_cka(x, z, debiased))
        assert difference == pytest.approx(
            jackknife(difference.value, without - apart, (-2, 2) if debiased else (-1, 1))
        )
        assert cka_difference((x, y), (x, y), debiased).value == 0


@both
def test_the_interval_covers_what_resampled_images_would_not(debiased):
    """Of independent features, where images that come twice would move CKA up."""
    x, y = np.random.default_rng(0).normal(size=(2, 256, 192))
    estimate, floor = cka_over_images(x, y, debiased), cka_floor(x, y, debiased, permutations=20)
    assert estimate.low < floor.mean < estimate.high
    drawn = np.random.default_rng(1).integers(0, 256, (20, 256))
    assert min(linear_cka(x[rows], y[rows], debiased) for rows in drawn) > estimate.high


def test_what_holds_unless_told_otherwise():
    """CKA as the papers give it, and 95 %."""
    x, y = related()
    assert linear_cka(x, y) == Comoments().update(x, y).cka() == linear_cka(x, y, debiased=False)
    assert cka_over_images(x, y) == cka_over_images(x, y, debiased=False)
    assert cka_difference((x, y), (x, x)) == cka_difference((x, y), (x, x), debiased=False)
    assert cka_floor(x, y) == cka_floor(
        x, y, debiased=False, permutations=100, quantile=0.95, seed=0
    )
    without = np.random.default_rng(0).normal(size=30)
    assert jackknife(0.5, without) == jackknife(0.5, without, limits=None, level=0.95, carriers=30)


@pytest.mark.parametrize("nan", [np.nan, np.inf])
def test_the_jackknife_of_an_undefined_value_has_no_interval(nan):
    for value, without in ((0.5, [0.4, nan, 0.6, 0.5, 0.5]), (nan, [0.4, 0.5, 0.6, 0.5, 0.5])):
        estimate = jackknife(value, np.array(without))
        assert np.isnan([estimate.low, estimate.high]).all() and estimate.n == 5


def test_the_interval_ends_before_one():
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.vstack([x[:11], 5 * np.ones((1, 3))])  # one image apart
    estimate = cka_over_images(x, y)
    assert 0 < estimate.low < estimate.value < estimate.high < 1
    same = cka_over_images(x, x)  # nothing varies: all that twelve images can say
    assert same.high == 1 and 0.7 < same.low < 0.8
    with pytest.raises(
        ValueError,
        match="12 and 11 images do not go together; give representations of the same images",
    ):
        cka_difference((x, y), (x[1:], y[1:]))


@pytest.mark.parametrize(
    "measure", [linear_cka, cka_over_images, cka_floor, lambda x, y: Comoments().update(x, y)]
)
def test_representations_that_do_not_go_together(measure):
    with pytest.raises(ValueError, match="5 and 6 images do not go together"):
        measure(np.ones((5, 2)), np.ones((6, 2)))


def test_comoments_of_unlike_widths():
    moments = Comoments().update(*related(5, 6, 4))
    with pytest.raises(
        ValueError, match=r"widths \(6, 3\) do not go with those of widths \(6, 4\)"
    ):
        moments.update(*related(5, 6, 3))
    assert moments.update(np.ones((0, 6)), np.ones((0, 4))).n == 5


@pytest.mark.parametrize("n", [0, 1])
def test_cka_refuses_fewer_than_two_images(n):
    pair = np.ones((n, 2)), np.ones((n, 2))
    for measure in (linear_cka, cka_floor, lambda x, y: Comoments().update(x, y).floor()):
        with pytest.raises(
            ValueError, match=f"CKA needs at least 2 images, not {n}; give more images$"
        ):
            measure(*pair)
    with pytest.raises(ValueError, match="debiased CKA needs at least 4 images, not 3"):
        cka_floor(np.ones((3, 2)), np.ones((3, 2)), debiased=True)
    for debiased, least in ((False, 3), (True, 5)):
        with pytest.raises(
            ValueError, match=f"interval of .*CKA needs at least {least} images, not {least - 1}"
        ):
            cka_over_images(*np.random.default_rng(0).normal(size=(2, least - 1, 2)), debiased)
    with pytest.raises(ValueError, match="0 permutations; give at least 1"):
        cka_floor(*related(), permutations=0)


def test_cosine_of_rows():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3, 8)), rng.normal(size=(5, 1, 8))
    expected = [cosine_similarity(rows, other)[:, 0] for rows, other in zip(a, b, strict=True)]
    assert cosine(a, b) == pytest.approx(np.array(expected))
    found = cosine(torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16())
    assert found.dtype == torch.float32 and found.numpy() == pytest.approx(
        np.array(expected), abs=0.02
    )
    assert np.isnan(cosine(np.zeros((1, 3)), np.ones((1, 3)))).all()
    assert cosine(np.array([[3.0, 4.0]]), np.array([[-6.0, -8.0]])).tolist() == pytest.approx([-1])


def test_pairwise_cosine():
    x = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    expected = cosine_similarity(x)[np.triu_indices(20, 1)].mean()
    assert pairwise_cosine(x) == pytest.approx(expected)
    assert pairwise_cosine(torch.from_numpy(x)) == pairwise_cosine(x)
    assert pairwise_cosine(x[:2]) == pytest.approx(cosine_similarity(x)[0, 1])
    assert pairwise_cosine(np.arange(1.0, 5)[:, None] * np.ones(3)) == pytest.approx(1)
    assert np.isnan(pairwise_cosine(np.eye(3) * [1, 1, 0]))
    with pytest.raises(ValueError, match="1 row makes no pair"):
        pairwise_cosine(np.ones((1, 3)))
