import numpy as np
import pytest
import torch
from by_hand import cka_by_gram, without_each
from scipy.stats import rankdata
from sklearn.metrics.pairwise import paired_cosine_distances

from helpers.measures.cls_parts import (
    along_total,
    attention_per_token,
    gram_shares_over_images,
    levelled,
    mixed_share,
    part_alignment,
    part_cosine,
    register_share,
    share_at_patches,
)
from helpers.measures.stats import Estimate, jackknife


def normal(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_register_share_leaves_cls_itself_out():
    masses = torch.tensor([[0.2, 0.6, 0.2], [0.5, 0.0, 0.5], [0.0, 0.1, 0.9]])
    assert register_share(masses).tolist() == pytest.approx([0.75, 0, 1])


def test_share_at_patches():
    """Two patches take 0.3 and 0.1 of what patches (0.5) and registers (0.3) get."""
    attention, masses = torch.tensor([[0.3, 0.1, 0.1]] * 3), torch.tensor([[0.5, 0.3, 0.2]] * 3)
    mask = torch.tensor([[True, False, False], [True, True, False], [False, False, False]])
    assert share_at_patches(attention, mask, masses).tolist() == pytest.approx([0.375, 0.5, 0])
    for size, expected in ((1e-7, 0), (3.2e-6, 1.2e-5)):
        small = share_at_patches(torch.full((3, 3), size), torch.ones(3, 3) > 0, masses)
        assert small.tolist() == pytest.approx([expected] * 3, rel=1e-3)


def test_one_register_gets_six_times_a_patch():
    patch = torch.from_numpy(np.random.default_rng(0).uniform(0.001, 0.01, 40))
    masses = torch.stack([50 * patch, 4 * 6 * patch, 1 - 74 * patch], dim=1)
    found = attention_per_token(masses, patches=50, registers=4, seed=1)
    assert found[:3] == pytest.approx((6, 6, 6)) and found.n == 40
    uneven = torch.tensor(
        [[0.5, 0.1, 0.4], [0.1, 0.5, 0.4]]
    )  # a ratio of means, not a mean of ratios
    assert attention_per_token(uneven, patches=10, registers=2).value == pytest.approx(0.15 / 0.03)


def test_part_alignment():
    """Of a part that carries the whole, and of one that has nothing to do with it."""
    part, other = normal(60, 5), 0.2 * normal(60, 5, seed=1)
    whole = part + other
    carries, stands_by = part_alignment(part, whole, 3 * part), part_alignment(other, whole, part)
    for found, x in ((carries, part), (stands_by, other)):
        assert found["cka"].value == pytest.approx(cka_by_gram(x, whole))
        assert found["cka"].low < found["cka"].value < found["cka"].high
        assert found["length"].value == pytest.approx(
            float((x.norm(dim=1) / whole.norm(dim=1)).mean())
        )
        assert found["cka_debiased"].value < found["cka"].value
    assert carries["cka_renormalised"] == pytest.approx(carries["cka"])  # CKA knows no scale
    assert stands_by["cka_renormalised"].value == pytest.approx(cka_by_gram(part, whole))
    assert carries["floor"] < 0.4 < 0.9 < carries["cka"].value
    assert stands_by["cka"].value < 0.4 and abs(stands_by["cka_debiased"].value) < 0.2


def test_a_part_that_is_rounding_has_no_alignment():
    whole = normal(9, 4)
    share = torch.tensor([0.5] * 4 + [0.0] * 5)[:, None]  # in most images
    assert part_alignment(share * whole, whole, whole) == {}
    assert part_alignment(0.9e-3 * whole, whole, whole) == {}
    assert part_alignment(1.1e-3 * whole, whole, whole)["cka"].value == pytest.approx(1)


def test_the_direction_of_rounding_is_none():
    total = normal(2, 7)
    part = total * torch.tensor([[0.0029], [-0.0031]])
    other = normal(2, 7, seed=1)
    expected = 1 - paired_cosine_distances(other.numpy(), total.numpy())
    assert part_cosine(other, total).numpy() == pytest.approx(expected)
    assert part_cosine(part, total).tolist() == pytest.approx([np.nan, -1], nan_ok=True)


def test_contributions_along_the_total_sum_to_one():
    """Of all tokens; those of the patches to the component of their sum."""
    contributions = normal(3, 6, 5)  # image, token, width; tokens: four patches, a register, [CLS]
    parts = torch.stack(
        [contributions[:, :4].sum(1), *contributions[:, 4:].unbind(1), 9 * torch.ones(3, 5)], dim=1
    )
    total = contributions.sum(1)
    norms, cosines = (
        contributions.norm(dim=2),
        torch.cosine_similarity(contributions, total[:, None], dim=2),
    )
    assert along_total(norms, cosines, parts).sum(1).tolist() == pytest.approx([1, 1, 1])
    expected = [
        [c @ t / (t @ t) for c in image]
        for image, t in zip(contributions.numpy(), total.numpy(), strict=True)
    ]
    assert along_total(norms, cosines, parts).numpy() == pytest.approx(np.array(expected))


def test_levelled_maps_tie_where_only_rounding_differs():
    found = levelled(torch.tensor([[2.0, -4.0, 2.00001, 1.0], [30.0, 10.0, 20.0, 10.0003]]))
    assert found[0].tolist() == pytest.approx([0.5, -1, 0.5, 0.25])
    assert levelled(torch.tensor([[1.0, 0.5004]]))[0, 1] == pytest.approx(0.5004, abs=1e-6)
    assert [rankdata(row).tolist() for row in found.numpy()] == [[3.5, 1, 3.5, 2], [4, 1.5, 3, 1.5]]


def test_mixed_share_is_what_is_not_on_the_diagonal():
    parts = normal(12, 3, 4)
    table = np.array([[share.value for share in row] for row in gram_shares_over_images(parts)])
    expected = table.sum() - np.trace(table)
    assert mixed_share(gram_shares_over_images(parts)) == pytest.approx(expected, abs=6e-5)
    one = torch.stack([normal(8, 4), torch.zeros(8, 4), torch.zeros(8, 4)], dim=1)
    assert str(mixed_share(gram_shares_over_images(one))) == "0.0"
    assert np.isnan(mixed_share(gram_shares_over_images(torch.zeros(8, 3, 4))))
    assert str(mixed_share([[Estimate(1 + 1e-9, 1, 1, 8)]])) == "0.0"


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
