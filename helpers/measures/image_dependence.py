"""How far a token is the same for all images, and what of it is not (decoupling, section 3.2)."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from helpers.measures.similarity import pairwise_cosine
from helpers.measures.stats import Estimate, bootstrap, jackknife, over_images, ratio_of_means

SEEN = 1e-4  # of the largest magnitude: what is below it is not drawn


def pairwise_cosine_over_images(x: Float[Tensor, "image width"]) -> Estimate:
    """`pairwise_cosine` with its interval by the jackknife over images, since each image is in many pairs.

    Raises ValueError for fewer than 2 images.
    """
    return jackknife(*_with_and_without(x), (-1, 1))


def pairwise_cosine_drop(before: Float[Tensor, "image width"], after: Float[Tensor, "image width"]) -> Estimate:
    """`pairwise_cosine` of `before` minus that of `after`. Paired: each image is left out of both.

    Raises ValueError for fewer than 2 images.
    """
    (one, without_one), (two, without_two) = (_with_and_without(x) for x in (before, after))
    return jackknife(round(one - two, 6), without_one - without_two, (-2, 2))


def largest_dimensions(x: Float[Tensor, "image width"]) -> Int[Tensor, " width"]:
    """The dimensions in the order of their mean magnitude over the images, the largest first."""
    return x.abs().mean(0).argsort(descending=True, stable=True)


def magnitudes(x: Float[Tensor, "image width"], dimensions: Int[Tensor, " dimension"]) -> Float[Tensor, " dimension"]:
    """Mean magnitude over the images in some dimensions, over the largest of these; nan below 0.0001."""
    means = x[:, dimensions].abs().mean(0)
    return torch.where(means > SEEN * means.max(), means / means.max(), torch.nan)


def dimension_share(x: Float[Tensor, "image width"], dimension: int | Tensor) -> Estimate:
    """The share of the squared length that lies in one dimension, mean over images."""
    return over_images((x[:, dimension] ** 2 / (x**2).sum(1)).round(decimals=5), (0, 1), continuous=True)


def varying_share(x: Float[Tensor, "image width"], seed: int = 0) -> Estimate:
    """The share of the squared length, summed over images, that is not their mean: 0 where all images have the same vector."""
    spread = torch.stack([((x - x.mean(0)) ** 2).sum(1), (x**2).sum(1)], dim=1)
    return bootstrap((spread / spread[:, 1].mean()).round(decimals=6), ratio_of_means, seed=seed)


def _with_and_without(x: Tensor) -> tuple[float, np.ndarray]:
    """`pairwise_cosine` of all images, and without each of them."""
    n, whole = len(x), pairwise_cosine(x)
    units = x.double() / x.double().norm(dim=1, keepdim=True)
    with_others = (units @ units.sum(0) - 1) / (n - 1)  # mean over the pairs of each image
    return whole, ((n * whole - 2 * with_others) / (n - 2)).numpy().round(6)
