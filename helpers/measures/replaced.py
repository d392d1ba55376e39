"""Which tokens of an image are replaced and by what, and what that costs.

Places are indices into the sequence, the highest score first, and -1 where an image has fewer.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from helpers.measures._arrays import ImageMask, Labels
from helpers.measures.answers import points
from helpers.measures.norms import threshold
from helpers.measures.outliers import FEW, PRESENT
from helpers.measures.stats import Estimates, over_images

Places = Int[Tensor, "image k"]
Chosen = Bool[Tensor, "image token"]
Scores = Float[Tensor, "image token"]
TokensAt = Float[Tensor, "image block k width"]
PerToken = Float[Tensor, "image block token"]
NULLS = {"absent": "mean_normal", "masked": "masked_normal"}  # the same at as many random patches


def start_block(norms: PerToken, patches: Float[Tensor, "image block patch"]) -> int:
    """The first block after which more than 5 % of the images have a token above 3 x the median.

    The median is that of the patches of all images, block by block. -1 where there is no such
    block.
    """
    limits = torch.tensor([threshold(own, PRESENT) for own in patches.unbind(1)])
    above = (norms > limits[:, None]).any(-1).float().mean(0) > FEW
    return int(above.int().argmax()) if above.any() else -1


def places_of(chosen: Chosen, scores: Scores) -> Places:
    """Where the chosen tokens of each image stand, the highest score first."""
    counts = chosen.sum(1, keepdim=True)
    most = int(counts.max()) if len(counts) else 0
    order = scores.masked_fill(~chosen, -torch.inf).argsort(dim=1, descending=True, stable=True)
    order = order.narrow(1, 0, most)
    return order.where(torch.arange(most) < counts, -1)


def as_many(chosen: Chosen, among: Chosen, scores: Scores) -> Places:
    """Of each image as many tokens as are chosen, those `among` others with the highest scores."""
    ranks = scores.masked_fill(~among, -torch.inf).argsort(dim=1, descending=True, stable=True)
    ranks = ranks.argsort(1)
    return places_of(among & (ranks < chosen.sum(1, keepdim=True)), scores)


class Moments(NamedTuple):
    """The mean and the standard deviation of tokens, channel by channel: each (block, width)."""

    mean: Tensor
    std: Tensor


def moments(tokens: TokensAt, places: Places) -> Moments:
    """Over all tokens that are there, of all images, in each block; nan where there is none."""
    there = tokens.transpose(1, 2)[places >= 0].double()
    mean = there.mean(0)
    return Moments(mean.float(), (there - mean).square().mean(0).sqrt().float())


def noise_like(given: Moments, places: Places, seed: int = 0) -> TokensAt:
    """Gaussian tokens of this mean and standard deviation, each channel by itself."""
    shape = len(places), len(given.mean), places.shape[1], given.mean.shape[1]
    drawn = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))
    return given.mean[:, None] + given.std[:, None] * drawn


def borrowed(tokens: TokensAt, places: Places) -> TokensAt:
    """For each image the tokens of the next one that has any, of the last one those of the first.

    At each place that one's token at the same place where it has one there, else its highest. Zeros
    where an image has no place. ValueError where fewer than two images have one.
    """
    some = (places >= 0).any(1).nonzero()[:, 0]
    if len(some) < 2:
        raise ValueError(f"{len(some)} images have a token to borrow")
    donors = some.roll(-1)
    own, theirs = places[some], places[donors]
    same = own[:, :, None] == theirs[:, None]
    column = same.int().argmax(2)  # the first where there is none
    found = tokens[donors].gather(2, column[:, None, :, None].expand_as(tokens[donors]))
    result = torch.zeros_like(tokens)
    result[some] = found.masked_fill((own < 0)[:, None, :, None], 0)
    return result


def replacement_costs(
    right: Mapping[str, ImageMask],
    scores: Mapping[str, Float[Tensor, "image class"]],
    patches: Mapping[str, ImageMask],
    labels: Labels,
) -> Estimates:
    """What replacing tokens costs, in each condition; the first is the unchanged model.

    `patches` is whether a probe on the other patches is right; not of conditions that replace some
    of these. `accuracy` and `patches_accuracy` in %, of the unchanged model. Of each other
    condition, whose name ends the name: `loss_` and `patches_`, accuracy lost in points, and
    `entropy_`, cross-entropy gained in nats, all paired over images. `absent_minus_random` and
    `masked_minus_random`: what outlier tokens lose more than as many random patches, in points.
    """
    first, *others = right
    true = torch.as_tensor(labels).long()
    entropies = {
        name: F.cross_entropy(own.float(), true, reduction="none") for name, own in scores.items()
    }
    estimates: Estimates = {
        "accuracy": over_images(100 * right[first].float(), (0, 100)),
        "patches_accuracy": over_images(100 * patches[first].float(), (0, 100)),
    }
    for name in others:
        estimates |= {
            f"loss_{name}": points(right[first], right[name]),
            f"entropy_{name}": over_images(entropies[name] - entropies[first]),
        }
        if name in patches:
            estimates[f"patches_{name}"] = points(patches[first], patches[name])
    for name, null in NULLS.items():
        if {name, null} <= right.keys():
            estimates[f"{name}_minus_random"] = points(right[null], right[name])
    return estimates
