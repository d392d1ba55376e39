"""Gram shares against matrices of all images by all images, and against parts that are known."""

import numpy as np
import pytest
import torch

from helpers.measures.cls_parts import gram_shares_over_images
from helpers.measures.similarity import linear_cka
from helpers.measures.stats import jackknife


def features(n=30, parts=3, width=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, parts, width)) * (1 + np.arange(parts))[:, None] + rng.normal(
        size=(1, parts, width)
    )


def gram_shares_of(parts, centred=True):
    return np.array(
        [[estimate.value for estimate in row] for row in gram_shares_over_images(parts, centred)]
    )


def shares_by_gram(parts, centred):
    """All terms of eq. 5 as n x n matrices."""
    each = [part - part.mean(0) if centred else part for part in np.moveaxis(parts, 1, 0)]
    gram = sum(each) @ sum(each).T
    return np.array([[(a @ b.T * gram).sum() / (gram**2).sum() for b in each] for a in each])


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("n, width", [(30, 7), (6, 20)])
def test_gram_shares_against_gram_matrices(centred, n, width):
    parts = features(n, 4, width)
    found = gram_shares_of(torch.from_numpy(parts), centred)
    assert found == pytest.approx(shares_by_gram(parts, centred)) and found.sum() == pytest.approx(
        1
    )
    estimates = gram_shares_over_images(parts, centred)
    without = np.array([shares_by_gram(np.delete(parts, i, axis=0), centred) for i in range(n)])
    expected = [[jackknife(found[a, b], without[:, a, b]) for b in range(4)] for a in range(4)]
    assert np.array(estimates) == pytest.approx(np.array(expected))


def test_gram_shares_of_two_images():
    assert gram_shares_of(features(2)) == pytest.approx(shares_by_gram(features(2), True))


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
    assert gram_shares_of(parts, centred=False)[0, 0] < 0.1
    against = gram_shares_of(np.stack([2 * x, -x], axis=1))
    assert against == pytest.approx(np.array([[4, -2], [-2, 1]]))
    other = features(40, 2, 5)
    first, total = other[:, 0] - other[:, 0].mean(0), other.sum(1) - other.sum(1).mean(0)
    ratio = np.linalg.norm(first @ first.T) / np.linalg.norm(total @ total.T)
    assert gram_shares_of(other)[0, 0] == pytest.approx(linear_cka(first, total) * ratio)


def test_gram_shares_of_nothing():
    assert np.isnan(gram_shares_of(np.full((9, 2, 3), 0.1))).all()
    estimate = gram_shares_over_images(np.full((9, 2, 3), 0.1))[0][1]
    assert np.isnan(estimate.value) and np.isnan(estimate.low) and estimate.n == 9
