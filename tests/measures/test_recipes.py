"""The share of variance that groups explain against least squares, and planted recipes."""

import numpy as np
import pytest

from helpers.capture import PatchNorms, capture
from helpers.claims import load_registry
from helpers.claims.values import verdict_on
from helpers.images import load_images
from helpers.measures.recipes import (
    adjusted_r_squared,
    first_over_second,
    presence_and_corners,
    recipe_estimates,
)
from helpers.measures.stats import NONE, Estimate, over_images
from helpers.models import load_backbone


def one(presence, corners=0.5):
    shares = {"outlier_images": presence, "corner_share": corners}
    return {x: Estimate(y, y, y, 200) if y is not None else NONE for x, y in shares.items()}


@pytest.mark.parametrize("seed", range(5))
def test_r_squared_is_that_of_least_squares_with_a_column_for_each_group(seed):
    rng = np.random.default_rng(seed)
    groups, y = rng.choice(["a", "b", "c", "d"], 28), rng.random(28)
    columns = (groups[:, None] == np.unique(groups)).astype(float)
    residual = y - columns @ np.linalg.lstsq(columns, y, rcond=None)[0]
    plain = 1 - residual @ residual / ((y - y.mean()) ** 2).sum()
    expected = 1 - (1 - plain) * 27 / (28 - columns.shape[1])
    assert adjusted_r_squared(y, groups) == pytest.approx(expected)


def test_r_squared_in_closed_form():
    y = np.array([0.0, 0, 1, 1])
    assert adjusted_r_squared(y, np.array(["a", "a", "b", "b"])) == 1
    # Means of groups are all 1/2: nothing is explained, and 1 - 3/2 is left of it.
    assert adjusted_r_squared(y, np.array(["a", "b", "a", "b"])) == -0.5
    assert adjusted_r_squared(y, np.zeros(4)) == 0
    with np.errstate(all="raise"):
        assert np.isnan(adjusted_r_squared(y, np.arange(4)))
        alike = np.full(3, 0.1)  # whose mean is another number
        assert alike.mean() != 0.1 and np.isnan(adjusted_r_squared(alike, np.array([0, 0, 1])))
    rows = np.stack([y, [0, 0, 1, 1], [0, 1, 0, 1]], axis=1)
    assert first_over_second(rows) == 1.5 and first_over_second(rows[:, [0, 2, 1]]) == -1.5


def test_a_planted_recipe_and_a_planted_size():
    recipes, sizes = (
        ["1k", "21k", "21k, then 1k"] * 8,
        [x for x in ("Ti", "S", "B") for _ in range(8)],
    )
    rng = np.random.default_rng(0)
    for groups, sign in ((recipes, 1), (sizes, -1)):
        _, number = np.unique(groups, return_inverse=True)
        own = [one(x) for x in number / 3 + 0.02 * rng.random(24)]
        found = recipe_estimates(own, recipes, sizes, [True] * 24)["recipe_over_size"]
        assert found.low * sign > 0 and found.high * sign > 0
        assert (found.n, found.over, found.per_image) == (24, "checkpoints", None)


def test_corners_are_of_judged_checkpoints_with_outliers():
    own = [one(1, 0.9), one(0.06, 0.5), one(0.05, 0.1), one(0, None), one(1, 0)] + 2 * [one(1, 1)]
    judged = [True] * 4 + [False, True, True]
    found = recipe_estimates(own, list("aabbbbb"), list("xyxyxyx"), judged)
    assert found["checkpoints_with"] == 5 / 7
    assert found["corner_share_21k"].value == pytest.approx(3.4 / 4)
    # Corners that are alike in all checkpoints could have varied.
    alike = recipe_estimates([one(1, 0.37)] * 8, list("aabbaabb"), list("xy" * 4), [True] * 8)
    assert alike["corner_share_21k"].low < 0.37 < alike["corner_share_21k"].high


def test_outliers_that_one_recipe_puts_into_corners_support_the_claim():
    """As in the notebook, with sets of scenes in place of sides of the images."""
    claim = load_registry()["xx11-recipe"]
    models = {x: load_backbone(x) for x in ("control-corners", "control-clean")}
    own, recipes, sizes = [], [], []
    for seed in range(6):
        images = load_images("scenes", 6, seed)
        for name, backbone in models.items():
            norms = capture(backbone, images, [PatchNorms((-1,))])["patch_norms"][:, 0]
            own.append(presence_and_corners(norms, backbone.layout.corners))
            recipes.append(name)
            sizes.append("small" if seed % 2 else "large")
    found = recipe_estimates(own, recipes, sizes, [x == "control-corners" for x in recipes])
    assert found["corner_share_21k"].value == 1 and found["checkpoints_with"] == 0.5
    assert verdict_on(claim, "corners", found) == "supported"
    elsewhere = found | {"corner_share_21k": over_images(np.zeros(6), (0, 1), counts=True)}
    assert verdict_on(claim, "elsewhere", elsewhere) == "refuted"
