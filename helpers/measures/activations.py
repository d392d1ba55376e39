"""What a neuron's activation says of the outliers: how much stronger it is there, and whether it marks them."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.measures.attention import iou
from helpers.measures.stats import Estimate, bootstrap, over_images

LARGEST_RATIO = 1e6  # of a neuron that is silent elsewhere


class Firing(NamedTuple):
    """A neuron at outliers and at the other patches of the same images.

    Attributes:
        at_outliers, elsewhere: mean activation, mean over the images with an outlier.
        ratio: `at_outliers` over `elsewhere`, at most a million.
        overlap: IoU of the patches where it is strongest, as many as the image has outliers, with the outliers.
    """

    at_outliers: Estimate
    elsewhere: Estimate
    ratio: Estimate
    overlap: Estimate


def at_and_elsewhere(activation: Float[Tensor, "image patch"], outlier: Bool[Tensor, "image patch"]) -> Float[Tensor, "image 2"]:
    """Mean activation at the outliers and at the other patches; nan for an image without an outlier."""
    sides = [(activation * group).sum(1) / group.sum(1) for group in (outlier, ~outlier)]
    return torch.stack(sides, 1).masked_fill(~outlier.any(1)[:, None], torch.nan)


def strongest(activation: Float[Tensor, "image patch"], outlier: Bool[Tensor, "image patch"]) -> Bool[Tensor, "image patch"]:
    """The patches where it is largest, as many as the image has outliers, the first of equal ones."""
    ranks = activation.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return ranks < outlier.sum(1, keepdim=True)


def limited_ratio(rows: Float[Tensor, "image 2"], seed: int = 0) -> Estimate:
    """Mean of the first column over mean of the second, at most a million, with its bootstrap interval over images.

    It is nan where both are zero.
    """

    def ratio(rows: Float[np.ndarray, "image 2"]) -> float:
        first, second = rows.mean(0)
        below = max(second, first / LARGEST_RATIO)
        return first / below if below else np.nan

    return bootstrap(rows, ratio, seed=seed)


def firing(activation: Float[Tensor, "image patch"], outlier: Bool[Tensor, "image patch"], seed: int = 0) -> Firing:
    """How a neuron fires at outliers and elsewhere.

    Args:
        activation: absolute, of one neuron.
        seed: of the ratio's bootstrap.
    """
    sides = at_and_elsewhere(activation, outlier)
    at, elsewhere = (over_images(column) for column in sides.T)
    return Firing(at, elsewhere, limited_ratio(sides, seed), over_images(iou(strongest(activation, outlier), outlier), (0, 1)))


def runner_up(
    second: Float[Tensor, "image patch"],
    first: Float[Tensor, "image patch"],
    outlier: Bool[Tensor, "image patch"],
    seed: int = 0,
) -> Estimate:
    """Activation of the second neuron at outliers over that of the first, at most a million, with its interval."""
    sides = [at_and_elsewhere(activation, outlier)[:, 0] for activation in (second, first)]
    return limited_ratio(torch.stack(sides, 1), seed)
