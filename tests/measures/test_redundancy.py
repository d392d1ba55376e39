"""Outliers planted by content or by position, in images whose content is rolled by a permutation of
the patches."""

import numpy as np
import pytest
import torch

from helpers.measures.outliers import after_rolling
from helpers.measures.stats import auc_over_images
from helpers.models import TokenLayout

LAYOUT = TokenLayout((8, 10))
CORNERS = LAYOUT.corners
PLAIN = 4  # patches of each image


def images(count=60, seed=0):
    """Similarity with the neighbours: high for a few patches of each image, which are plain."""
    rng = np.random.default_rng(seed)
    similarity = torch.from_numpy(rng.random((count, LAYOUT.patches))).float()
    plain = torch.from_numpy(rng.random(similarity.shape).argsort(1).argsort(1) < PLAIN)
    return similarity + plain.float(), plain


def at(positions, like):
    mask = torch.zeros_like(like)
    mask[:, positions] = True
    return mask


def test_outliers_that_content_makes_follow_it():
    similarity, plain = images()
    rolled = LAYOUT.rolled(plain)
    found = after_rolling(plain, rolled, rolled, LAYOUT.rolled(similarity))
    assert list(found) == ["auc_rolled", "rolled_share", "rolled_follow", "rolled_stay"]
    assert found["auc_rolled"].value == 1 and found["rolled_follow"].value == 1
    assert found["rolled_share"].value < 0.12 and found["rolled_stay"].value < 0.12
    assert {estimate.n for estimate in found.values()} == {60}


def test_outliers_that_position_makes_stay_although_the_picture_is_plain_there():
    """Corners are plain, as in photographs, and so all outliers are: the association alone would be
    perfect."""
    similarity, _ = images()
    corners = at(CORNERS, similarity.bool())
    similarity = similarity + 2 * corners
    assert auc_over_images(similarity, corners).value == 1
    found = after_rolling(corners, corners, LAYOUT.rolled(corners), LAYOUT.rolled(similarity))
    assert found["auc_rolled"].high < 0.6
    assert (
        found["rolled_share"].value == found["rolled_stay"].value == 1
        and found["rolled_follow"].value == 0
    )


def test_a_veto_of_content_is_no_following():
    """Position puts outliers into the corners, and content that is not plain prevents half of them:
    what is left stands there."""
    similarity, _ = images()
    corners, rolled = at(CORNERS, similarity.bool()), LAYOUT.rolled(similarity)
    left = corners & (rolled > rolled.median())
    found = after_rolling(corners, left, LAYOUT.rolled(corners), rolled)
    assert (
        found["rolled_share"].value == 1 == found["rolled_stay"].value
        and found["rolled_follow"].value == 0
    )
    assert found["auc_rolled"].low > 0.6  # by similarity alone it would pass
    assert found["rolled_follow"].n == found["rolled_stay"].n == int(left.any(1).sum()) < 60


def test_shares_are_those_counted_patch_by_patch():
    rng = np.random.default_rng(1)
    before, after = (
        torch.from_numpy(rng.random((40, LAYOUT.patches)) < share) for share in (0.05, 0.03)
    )
    after[:3] = False
    found = after_rolling(
        before, after, LAYOUT.rolled(before), torch.from_numpy(rng.random(before.shape))
    )
    follow, stay, usual = [], [], np.argsort(-before.sum(0).numpy(), kind="stable")[:4]
    for image in range(3, 40):
        at = np.argwhere(LAYOUT.to_grid(before).numpy()[image])
        went = [(row + 4) % 8 * 10 + (column + 5) % 10 for row, column in at]
        now = after[image].nonzero()[:, 0].tolist()
        if now:
            follow.append(np.mean([patch in went for patch in now]))
            stay.append(np.mean([before[image, patch].item() for patch in now]))
    assert round(before.sum(1).double().mean().item()) == 4
    assert found["rolled_follow"].value == pytest.approx(np.mean(follow)) and found[
        "rolled_follow"
    ].n == len(follow)
    assert found["rolled_stay"].value == pytest.approx(np.mean(stay)) and found[
        "rolled_stay"
    ].n == len(stay)
    assert found["rolled_share"].value == pytest.approx(
        (after[:, usual].sum() / after.sum()).item()
    )


def test_without_an_outlier_after_the_roll_nothing_is_known():
    similarity, plain = images(10)
    found = after_rolling(plain, torch.zeros_like(plain), plain, similarity)
    assert all(np.isnan(estimate.value) and estimate.n == 0 for estimate in found.values())


def test_few_outliers_have_one_usual_position():
    before = torch.zeros(10, 4, dtype=torch.bool)
    before[0, 2] = before[1, 1] = before[2, 1] = True
    after = torch.ones(10, 4, dtype=torch.bool)
    assert after_rolling(before, after, before, torch.rand(10, 4))["rolled_share"].value == 0.25
