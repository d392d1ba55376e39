from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine

from helpers.measures.similarity import (
    dimension_share,
    largest_dimensions,
    magnitudes,
    pairwise_cosine_drop,
    pairwise_cosine_over_images,
    varying_share,
)
from helpers.measures.stats import jackknife


def vectors(common=0.0, n=12, width=6, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, width)) + common)


def mean_cosine(x):
    return np.mean([1 - cosine(a, b) for a, b in combinations(x.numpy(), 2)])


def without_each(x):
    return np.array([mean_cosine(x[torch.arange(len(x)) != i]) for i in range(len(x))])


@pytest.mark.parametrize("common", [0.0, 1.0, 5.0])
def test_pairwise_cosine_leaves_out_one_image_after_another(common):
    x = vectors(common)
    expected = jackknife(mean_cosine(x), without_each(x), (-1, 1))
    assert pairwise_cosine_over_images(x) == pytest.approx(expected, abs=1e-5)


def test_pairwise_cosine_of_what_all_images_share():
    found = pairwise_cosine_over_images(vectors(1000.0))
    assert (
        found.value == pytest.approx(1, abs=1e-4)
        and pairwise_cosine_over_images(vectors()).value < 0.2
    )


def test_the_drop_is_paired():
    before, after = vectors(5.0), vectors(0.5)
    found = pairwise_cosine_drop(before, after)
    one, other = without_each(before), without_each(after)
    expected = jackknife(mean_cosine(before) - mean_cosine(after), one - other, (-2, 2))
    assert found == pytest.approx(expected, abs=1e-5) and found.low > 0
    assert found.value == pytest.approx(expected.value, abs=6e-7)
    assert pairwise_cosine_drop(before, 3 * before)[:2] == (
        0,
        0,
    )  # a token of another length has the same direction


def test_one_image_makes_no_pair():
    with pytest.raises(ValueError, match="give at least 2"):
        pairwise_cosine_over_images(vectors(n=1))


def test_dimensions_in_the_order_of_their_magnitude():
    x = torch.tensor([[1.0, -9.0, 0.0, 1.0], [-1.0, 9.0, 3.0, -1.0]])
    order = largest_dimensions(x)
    assert order.tolist() == [1, 2, 0, 3]
    assert magnitudes(x, order[1:]).tolist() == pytest.approx([1, 2 / 3, 2 / 3])


def test_magnitudes_that_are_not_seen():
    seen = magnitudes(torch.tensor([[2.0, 2.1e-4, 1.9e-4]]), torch.tensor([0, 1, 2]))
    assert seen.tolist() == pytest.approx([1, 1.05e-4, np.nan], nan_ok=True)


def test_share_of_one_dimension():
    x = torch.tensor(
        [[3.0, 4.0, 0.0], [0.0, 0.0, 2.0], [-1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]
    )
    assert dimension_share(x, 0).value == pytest.approx((0.36 + 0 + 0.5 + 1 + 1) / 5)
    assert dimension_share(torch.ones(6, 3), 0).value == pytest.approx(
        0.33333, abs=1e-6
    )  # five decimals
    assert dimension_share(x, torch.tensor(2)).value == pytest.approx(0.2)
    assert dimension_share(x[[0, 2, 3, 4, 4], :1], 0)[:3] == (1, 1, 1)


def test_varying_share():
    """Vectors with a common part of length 3 and as much to either side as 4: 16 of 25."""
    x = torch.tensor([[3.0, 4.0], [3.0, -4.0]]).repeat(20, 1)
    assert varying_share(x).value == pytest.approx(16 / 25)
    assert varying_share(torch.full((10, 2), 7.0))[:3] == (0, 0, 0)
    scattered = vectors(n=400, width=50)
    found, mean = varying_share(scattered, seed=3), scattered.mean(0)
    assert found.value == pytest.approx(
        1 - 400 * float(mean @ mean) / float((scattered**2).sum()), abs=1e-4
    )
    assert found.low < found.value < found.high or found.low == pytest.approx(found.high, abs=1e-2)
    for unit in (1e9, 1e-9):  # a share has none
        assert varying_share(unit * scattered, seed=3) == pytest.approx(found)
    assert varying_share(scattered) == varying_share(scattered, seed=0) != found


def test_a_varying_share_of_four_millionths():
    x = torch.tensor([[1.0, 2e-3], [1.0, -2e-3]]).repeat(20, 1)
    assert varying_share(x).value == pytest.approx(4e-6, rel=1e-3)
