"""Massive activations: a few numbers of the hidden state far above all others (arXiv:2402.17762).

Sun et al. name magnitudes above 100 and about 1,000 x the median magnitude of the hidden state.
"""

import math

import torch
from jaxtyping import Bool, Float

from helpers.measures._arrays import ImageMask, PerImage, Tokens, Vectors
from helpers.measures.similarity import pairwise_cosine_over_images
from helpers.measures.stats import Estimate, Estimates, over_images

ABOVE = 100.0
LETTER, VARIANT = 1000.0, 100.0  # times the median: the paper's rule, and ours
TOP = 3  # magnitudes of a hidden state that the paper's code keeps
DECIMALS = 3  # of a median magnitude: where most channels are empty it is rounding
MOST_IMAGES = 0.5  # a block, or a channel, has massive activations that has them in as many images

Magnitudes = Float[torch.Tensor, "image block 4"]  # the three largest, and the median


def magnitudes(x: Tokens) -> Float[torch.Tensor, "image 4"]:
    """The three largest magnitudes of each hidden state, and the median one (the paper's code)."""
    flat = x.abs().flatten(1)
    return torch.cat([flat.topk(TOP).values, flat.median(1, keepdim=True).values], dim=1)


def massive(x: Tokens) -> Bool[torch.Tensor, "image token width"]:
    """Which activations are massive: above 100, and above 100 x the hidden state's median."""
    size = x.abs()
    median = size.flatten(1).median(1).values[:, None, None]
    return (size > ABOVE) & (size > VARIANT * median)


def has_massive(kept: Magnitudes, factor: float) -> Bool[torch.Tensor, "image block"]:
    """Whether a hidden state has a massive activation, from its `magnitudes`."""
    return (kept[..., 0] > ABOVE) & (kept[..., 0] > factor * kept[..., TOP])


def onset_of(kept: Magnitudes) -> int | None:
    """The first block after which more than half of the images have one, by the variant."""
    often = has_massive(kept, VARIANT).float().mean(0) > MOST_IMAGES
    return int(often.int().argmax()) if often.any() else None


def fixed_channels(counts: Vectors) -> list[int]:
    """The channels that are massive in at least half of the images; `counts`: in how many tokens of
    each image.
    """
    return ((counts > 0).float().mean(0) >= MOST_IMAGES).nonzero()[:, 0].tolist()


def angle(cosine: Estimate) -> Estimate:
    """The angle in degrees, from 0 to 90, of a mean cosine; direction and its opposite are one."""
    value, *ends = (abs(x) for x in cosine[:3])
    near, far = max(ends), 0.0 if cosine.low < 0 < cosine.high else min(ends)
    of = [math.degrees(math.acos(min(1.0, x))) for x in (value, near, far)]
    return Estimate(*of, cosine.n)


def token_angles(tokens: Vectors, channels: list[int]) -> Estimates:
    """How alike the outlier tokens of different images are (SINDER, arXiv:2407.16826), and where.

    "angle_between": of the mean cosine of two images' tokens; "angle_between_rest": without the
    massive `channels`; "angle_to_channels": between a token and what lies in the channels alone.
    """
    rest = tokens.clone()
    rest[:, channels] = 0
    part: PerImage = tokens[:, channels].norm(dim=1) / tokens.norm(dim=1)
    return {
        "angle_between": angle(pairwise_cosine_over_images(tokens)),
        "angle_between_rest": angle(pairwise_cosine_over_images(rest)),
        "angle_to_channels": angle(over_images(part, (0, 1))),
    }


def sizes(kept: Magnitudes) -> dict[str, PerImage | ImageMask | float]:
    """How large the largest activations are.

    Of each image "massive_images", whether there is a massive activation after any block, by the
    letter, and "massive_images_100", by the variant; "largest", the largest magnitude after any
    block, and "median", that of the same hidden state. "ratio", one mean over the other, nan where
    the median is 0.
    """
    block = kept[..., 0].argmax(1)[:, None, None]
    top = kept.take_along_dim(block, dim=1)[:, 0]
    largest, median = top[:, 0], top[:, TOP].round(decimals=DECIMALS)
    return {
        "massive_images": has_massive(kept, LETTER).any(1),
        "massive_images_100": has_massive(kept, VARIANT).any(1),
        "largest": largest,
        "median": median,
        "ratio": float(largest.mean() / median.mean()) if median.any() else math.nan,
    }
