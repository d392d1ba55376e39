import numpy as np
import pytest
import torch
from by_hand import without_each
from sklearn.metrics.pairwise import paired_cosine_distances

from helpers.measures.similarity import gram_shares_over_images, part_cosine
from helpers.measures.stats import jackknife


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_the_direction_of_rounding_is_none():
    total = normal(2, 7)
    part = total * torch.tensor([[0.0029], [-0.0031]])
    other = normal(2, 7, seed=1)
    expected = 1 - paired_cosine_distances(other.numpy(), total.numpy())
    assert part_cosine(other, total).numpy() == pytest.approx(expected)
    assert part_cosine(part, total).tolist() == pytest.approx([np.nan, -1], nan_ok=True)


def features(n=30, parts=3, width=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, parts, width)) * (1 + np.arange(parts))[:, None] + rng.normal(
        size=(1, parts, width)
    )


def gram_shares_of(parts):
    return np.array(
        [[estimate.value for estimate in row] for row in gram_shares_over_images(parts)]
    )


def shares_by_gram(parts):
    """All terms of eq. 5 as n x n matrices."""
    each = [part - part.mean(0) for part in np.moveaxis(parts, 1, 0)]
    gram = sum(each) @ sum(each).T
    return np.array([[(a @ b.T * gram).sum() / (gram**2).sum() for b in each] for a in each])


@pytest.mark.parametrize("n, width", [(30, 7), (6, 20)])
def test_gram_shares_against_gram_matrices(n, width):
    parts = features(n, 4, width)
    found = gram_shares_of(torch.from_numpy(parts))
    assert found == pytest.approx(shares_by_gram(parts)) and found.sum() == pytest.approx(1)
    estimates = gram_shares_over_images(parts)
    without = without_each(shares_by_gram, parts)
    expected = [[jackknife(found[a, b], without[:, a, b]) for b in range(4)] for a in range(4)]
    assert np.array(estimates) == pytest.approx(np.array(expected))


def test_gram_shares_of_known_parts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8))
    parts = np.stack(
        [0.75 * x, 0.25 * x + 3, np.full((50, 8), 0.1)], axis=1
    )  # the same direction, and a constant
    assert gram_shares_of(parts) == pytest.approx(np.outer([0.75, 0.25, 0], [0.75, 0.25, 0]))
    assert gram_shares_of(1e-3 * parts) == pytest.approx(gram_shares_of(parts)), (
        "shares have no unit"
    )
    against = gram_shares_of(np.stack([2 * x, -x], axis=1))
    assert against == pytest.approx(np.array([[4, -2], [-2, 1]]))
