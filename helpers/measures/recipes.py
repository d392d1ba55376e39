"""Which part of a training goes with outliers: checkpoints as the units, not images."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Shaped

from helpers.measures._arrays import PatchScores
from helpers.measures.norms import outliers
from helpers.measures.outliers import FEW, PRESENT, outlier_images
from helpers.measures.stats import Estimate, Estimates, bootstrap, over_images, share_at


def presence_and_corners(norms: PatchScores, corners: Sequence[int]) -> Estimates:
    """What `recipe_estimates` takes of one checkpoint's norms, after the last block."""
    found = outliers(norms, PRESENT)
    return {"outlier_images": outlier_images(norms), "corner_share": share_at(found, corners)}


def adjusted_r_squared(
    values: Float[np.ndarray, " checkpoint"], groups: Shaped[np.ndarray, " checkpoint"]
) -> float:
    """How much of the variance the means of groups explain, adjusted for their number (Theil 1961).

    1 - (variance within / (n - groups)) / (variance / (n - 1)). Nan where the values are all alike,
    and where each is a group of its own.
    """
    _, group = np.unique(groups, return_inverse=True)
    n, count = len(values), np.bincount(group)
    means = np.bincount(group, weights=values) / count
    total = ((values - values.mean()) ** 2).sum()
    if n <= len(count) or total <= 1e-12 * n:
        return np.nan
    within = ((values - means[group]) ** 2).sum()
    return float(1 - within / (n - len(count)) / (total / (n - 1)))


def first_over_second(rows: Float[np.ndarray, "checkpoint 3"]) -> float:
    """`adjusted_r_squared` by the first grouping minus that by the second."""
    values, first, second = rows.T
    return adjusted_r_squared(values, first) - adjusted_r_squared(values, second)


def recipe_estimates(
    checkpoints: Sequence[Estimates],
    recipes: Sequence[str],
    sizes: Sequence[str],
    judged: Sequence[bool],
    seed: int = 0,
) -> Estimates:
    """Whether the recipe of checkpoints explains their outliers better than their size does.

    "recipe_over_size": adjusted R squared of the share of images with an outlier by the recipe
    minus that by the size; "corner_share_21k": share of the outliers in the corners, mean over the
    `judged` checkpoints with outliers in more than 5 % of the images; "checkpoints_with": the share
    of all with outliers in more than 5 % of the images, a plain number.
    """
    present = np.array([own["outlier_images"].value for own in checkpoints])
    corners = np.array([own["corner_share"].value for own in checkpoints])
    has, groups = present > FEW, [np.unique(x, return_inverse=True)[1] for x in (recipes, sizes)]
    asked = corners[has & np.array(judged)]
    return {
        "recipe_over_size": _of_checkpoints(
            bootstrap(np.stack([present, *groups], axis=1), first_over_second, seed=seed)
        ),
        "corner_share_21k": _of_checkpoints(over_images(asked, (0, 1), counts=True)),
        "checkpoints_with": float(has.mean()),
    }


def _of_checkpoints(estimate: Estimate) -> Estimate:
    """An estimate whose rows were checkpoints; what it takes of each is no number of an image."""
    return estimate._replace(over="checkpoints", per_image=None)
