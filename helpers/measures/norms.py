"""Outlier patches by their norm: the L2 norm of a patch token before the final LayerNorm."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from helpers.measures._arrays import Array, Labels, PatchScores, PatchSet, like, to_numpy
from helpers.settings import outlier_rule

Norms = Float[Array, "..."]


def _percentile(norms: np.ndarray, number: float) -> float:
    """The percentile, or where all norms above are equal the highest below, so they exceed it."""
    limit, largest = np.percentile(norms, number), norms.max()
    if limit == largest and number < 100 and norms.min() < largest:
        limit = norms[norms < largest].max()
    return float(limit)


# Each rule turns the norms and the rule's number into a threshold.
RULES = {
    "percentile": _percentile,
    "fixed": lambda norms, number: number,
    "median": lambda norms, number: number * np.median(norms),
    # 1.4826 makes the MAD of a normal distribution its standard deviation.
    "mad": lambda norms, number: (
        np.median(norms) + number * 1.4826 * np.median(np.abs(norms - np.median(norms)))
    ),
}

# Bimodality: everything in natural-log units of the norm. 0.1 is a factor of 1.1.
BIN = 0.025
WINDOWS = (4, 8, 16, 32)  # widths in bins: 0.1, 0.2, 0.4 and 0.8
MINIMAL_SHARE = 5e-4  # of the tokens, above the valley: one patch in two images of 1000 patches
STANDARD_ERRORS = 3.5  # a shallower valley is counting noise


class Modes(NamedTuple):
    """The norms at two modes, and the share of the tokens in the upper one; nan for one mode."""

    low: float
    high: float
    upper_share: float


def threshold(norms: Norms, rule: str) -> float:
    """The norm above which a patch is an outlier, all norms pooled.

    The rule is 'percentile:98' (Darcet et al.'s reproduction), 'fixed:100', 'median:3' (3 x the
    median) or 'mad:10' (median + 10 x 1.4826 x median absolute deviation). A percentile always
    finds its share of outliers, even where there are none. Where half of the norms or more are
    equal to the median, by 'mad' every norm above it is an outlier.

    >>> threshold(np.array([1.0, 2.0, 3.0, 100.0]), "median:3")
    7.5
    """
    kind, number = outlier_rule(rule)
    norms = to_numpy(norms)
    if norms.size == 0:
        raise ValueError(f"no norms to apply the outlier rule {rule!r} to")
    if wrong := int((~np.isfinite(norms)).sum()):
        raise ValueError(f"{wrong} of {norms.size} norms are NaN or infinite; leave them out")
    return float(RULES[kind](norms, number))


def outliers(norms: PatchScores, rule: str) -> PatchSet:
    """Which patches lie above `threshold`, one threshold for all images given.

    >>> outliers(np.array([[1.0, 2.0, 9.0], [1.0, 2.0, 3.0]]), "median:3").tolist()
    [[False, False, True], [False, False, False]]
    """
    return norms > threshold(norms, rule)


def norm_ratio(norms: Norms) -> float:
    """The 99.9th percentile of the norms over their median: how far the largest norms stand out."""
    upper, median = np.percentile(to_numpy(norms), (99.9, 50))
    return float(upper / median)


def bimodality(norms: Norms) -> float:
    """How well an upper mode of the norms is separated, from 0 (one mode) to 1 (an empty valley).

    The depth of the deepest valley in the histogram of log norms: 1 - (tokens in the valley) /
    (tokens in the lower of the two peaks beside it), all three counted in windows of 0.1, 0.2, 0.4
    or 0.8 log units. A valley counts where it lies above the median, at least 0.05 % of the tokens
    lie above it, and it is deeper than 3.5 standard errors of the counts. Norms of zero are left
    out.
    """
    return max((depth for _, depth, above in _valleys(_logs(norms)) if above <= 0.5), default=0.0)


def modes(norms: Norms) -> Modes:
    """The two modes of the norms on either side of their deepest valley.

    Of equally deep ones that with the more equal sides. A valley is one of `bimodality`, but
    wherever it lies, with at least 0.05 % of the tokens on either side. A mode is the median of the
    tokens in the fullest window of 0.1 log units.
    """
    logs = _logs(norms)
    valleys = [
        (depth, min(above, 1 - above), at)
        for at, depth, above in _valleys(logs)
        if above <= 1 - MINIMAL_SHARE
    ]
    if not valleys:
        return Modes(math.nan, math.nan, math.nan)
    upper = logs >= max(valleys)[-1]
    return Modes(_mode(logs[~upper]), _mode(logs[upper]), float(upper.mean()))


def _logs(norms: Norms) -> Float[np.ndarray, " token"]:
    norms = to_numpy(norms)
    return np.log(norms[norms > 0], dtype=np.float64)


def _valleys(logs: Float[np.ndarray, " token"]) -> Iterator[tuple[float, float, float]]:
    """Log norm, depth, and share of tokens above, of each valley that is no counting noise."""
    if logs.size == 0:
        return
    low = logs.min()
    counts = np.bincount(((logs - low) / BIN).astype(np.int64))
    for width in WINDOWS:
        padded = np.pad(counts, width)
        # The middle of a window is the lower edge of the bin.
        windows = np.convolve(padded, np.ones(width, dtype=np.int64), mode="same")
        peak = np.minimum(
            np.maximum.accumulate(windows), np.maximum.accumulate(windows[::-1])[::-1]
        )
        above = padded[::-1].cumsum()[::-1] / logs.size
        noise = STANDARD_ERRORS * np.sqrt(peak + windows)
        for i in np.flatnonzero((MINIMAL_SHARE <= above) & (peak - windows > noise)):
            yield float(low + BIN * (i - width)), float(1 - windows[i] / peak[i]), float(above[i])


def _mode(logs: Float[np.ndarray, " token"]) -> float:
    """The median norm in the fullest window of the smallest width, the lowest of equal ones."""
    ends = np.searchsorted(logs := np.sort(logs), logs + WINDOWS[0] * BIN)
    first = int((ends - np.arange(len(logs))).argmax())
    return float(np.exp(np.median(logs[first : ends[first]])))


def onset_block(norms: Float[Array, "image block patch"], rule_factor: float = 3.0) -> Labels:
    """The first block (0-based) with a patch norm above `rule_factor` times its median, or -1.

    The median is over all images. Darcet et al., Fig. 4a, look for it by eye.
    """
    values = to_numpy(norms)
    exceeds = values.max(axis=2) > rule_factor * np.median(values, axis=(0, 2))
    return like(np.where(exceeds.any(axis=1), exceeds.argmax(axis=1), -1), norms)


def paired_positions(
    outliers: PatchSet, count: int, seed: int = 0
) -> tuple[Int64[Tensor, "image {count}"], Int64[Tensor, "image {count}"]]:
    """Up to `count` random outlier patches of each image, and as many random normal ones of it.

    Row-major indices; -1 where an image has fewer of either, at the same places in both, after the
    others. The choice for an image does not depend on the images after it.
    """
    mask = to_numpy(outliers)
    keys = np.random.default_rng(seed).random(mask.shape)
    pairs = np.minimum(mask.sum(axis=1), (~mask).sum(axis=1))[:, None]

    def chosen(group: np.ndarray) -> Tensor:
        # The group first, in random order.
        order = np.argsort(np.where(group, keys, 2), axis=1)[:, :count]
        order = np.pad(order, ((0, 0), (0, count - order.shape[1])))
        return torch.from_numpy(np.where(np.arange(count) < pairs, order, -1))

    return chosen(mask), chosen(~mask)


def random_positions(
    images: int, patches: int, count: int, seed: int = 0, first: int = 0
) -> Int64[Tensor, "{images} {count}"]:
    """`count` random patches of each image, without replacement, as row-major patch indices.

    Of the images from the one with the index `first` on: what is drawn for those before is skipped.
    """
    if not 1 <= count <= patches:
        raise ValueError(f"{count} of {patches} patches without replacement")
    bits = np.random.PCG64(seed).advance(first * patches)  # one step a number
    keys = np.random.Generator(bits).random((images, patches))
    return torch.from_numpy(np.argsort(keys, axis=1)[:, :count])
