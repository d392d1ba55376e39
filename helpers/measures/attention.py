"""Attention maps, and how far two maps or two sets of patches agree image by image."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import entr
from scipy.stats import rankdata
from torch import Tensor

from helpers.measures._arrays import Array, like, settled, to_numpy

TIE = 1e-5  # of a value, to the next one


def mass(attention: Float[Array, "*batch token"], mask: Bool[Array, "... token"]) -> Float[Array, "*batch"]:
    """The attention that lands on the tokens in `mask`: a share of the whole where the rows sum to one."""
    return (attention * mask).sum(-1)


def entropy(rows: Float[Array, "*batch token"]) -> Float[Array, "*batch"]:
    """The entropy of attention rows in nats, from 0 (one token) to log(tokens) (uniform).

    Raises ValueError for rows that are no distribution, such as the patches alone of a row that also covers [CLS].
    """
    if (rows < 0).any() or (abs(rows.sum(-1) - 1) > 1e-2).any():
        raise ValueError("attention rows must be non-negative and sum to one; normalise them over the tokens that are kept")
    return (torch.special.entr(rows) if isinstance(rows, Tensor) else entr(rows)).sum(-1)


def iou(a: Bool[Array, "image patch"], b: Bool[Array, "image patch"]) -> Float[Array, " image"]:
    """Intersection over union of two sets of patches, image by image; nan where both are empty."""
    with np.errstate(invalid="ignore"):
        return (a & b).sum(-1) / (a | b).sum(-1)


def top_patches(scores: Float[Array, "image patch"], counts: Int[Array, " image"]) -> Bool[Array, "image patch"]:
    """The `counts` patches of each image with the largest scores; of equal ones (`settled`) the first in row-major order.

    Raises ValueError for a count below 0 or above the number of patches.
    """
    wanted, (images, patches) = to_numpy(counts), scores.shape
    if (wanted < 0).any() or (wanted > patches).any():
        raise ValueError(f"counts {wanted.tolist()} of {images} images with {patches} patches; give 0 to {patches} for each")
    ranks = (-settled(scores)).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return like(ranks < wanted[:, None], scores)


def rank_correlation(a: Float[Array, "image patch"], b: Float[Array, "image patch"]) -> Float[Array, " image"]:
    """Spearman's rank correlation of two maps, image by image; nan where a map is constant.

    Ties get their mean rank. Values tie that follow each other by less than 1e-5 of themselves, about what float32 leaves of
    them: identical patches of a flat background have no order.
    """
    ranks_a, ranks_b = (_ranks(to_numpy(x).astype(np.float64)) for x in (a, b))
    ranks_a, ranks_b = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (ranks_a, ranks_b))
    with np.errstate(invalid="ignore"):
        return like((ranks_a * ranks_b).sum(axis=1) / np.sqrt((ranks_a**2).sum(axis=1) * (ranks_b**2).sum(axis=1)), a)


def top_agreement(a: Float[Array, "image patch"], b: Float[Array, "image patch"]) -> Bool[Array, " image"]:
    """Whether both maps have their largest value at the same patch (the first of equal ones), image by image."""
    return a.argmax(-1) == b.argmax(-1)


def _ranks(x: np.ndarray) -> np.ndarray:
    order = x.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(x, order, axis=1)
    apart = np.diff(ordered, axis=1) > TIE * np.maximum(abs(ordered[:, 1:]), abs(ordered[:, :-1]))
    groups = np.zeros(x.shape)
    np.put_along_axis(groups, order[:, 1:], apart.cumsum(axis=1), axis=1)
    return rankdata(groups, axis=1)
