"""What is measured block by block, when it settles, and how much suppression takes away."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from helpers.measures._arrays import (
    Array,
    BlockScores,
    Labels,
    Limits,
    Pairs,
    PatchMask,
    PatchScores,
    PerBlock,
    PerBlockPatch,
    PerImage,
    PerRegister,
    to_numpy,
)
from helpers.measures.attention import mass
from helpers.measures.stats import Estimate, Estimates, bootstrap, over_images, ratio_of_means

PerHeadPatch = Float[Tensor, "image head patch"]


class Thirds(NamedTuple):
    """Means over the first, the second and the last third of the blocks."""

    early: PerImage
    middle: PerImage
    late: PerImage


def thirds(by_block: PerBlock) -> Thirds:
    """The mean over each third of the blocks; the first thirds may have one more."""
    return Thirds(*(third.mean(1) for third in by_block.tensor_split(3, dim=1)))


def growth(by_block: PerBlock) -> PerImage:
    """The last block over the mean of the first third, image by image."""
    return by_block[:, -1] / thirds(by_block).early


def over_blocks(
    per_image: BlockScores,
    limits: Limits | None = None,
    continuous: bool = False,
) -> list[Estimate]:
    """`over_images` after each block, with its arguments."""
    return [over_images(column, limits, continuous) for column in to_numpy(per_image).T]


def peak_block(per_image: BlockScores) -> int:
    """The block (0-based) in which the mean over images is largest, the first of equal ones."""
    return int(to_numpy(per_image).mean(axis=0, dtype=np.float64).argmax())


def at_peak(per_image: BlockScores, reference: BlockScores) -> Float[Array, " image"]:
    """The values in the peak block of `reference`, such as the same before an intervention."""
    return per_image[:, peak_block(reference)]


def median_onset(onset: Labels) -> int:
    """The block in which outliers start in the median image that has any, rounded down.

    Takes what `helpers.measures.norms.onset_block` gives; 0 where no image has one.
    """
    onset = to_numpy(onset)
    starts = np.sort(onset[onset >= 0])
    return int(starts[(len(starts) - 1) // 2]) if len(starts) else 0


def largest_before(per_image: BlockScores, block: int) -> Estimate:
    """The largest of each image in the blocks before `block`, mean over images; NONE before 0."""
    values = to_numpy(per_image)
    return over_images(values[:, :block].max(axis=1) if block else values[:0, 0])


class Largest(NamedTuple):
    """What is largest on the patches of each image after each block.

    Attributes:
        norm: of a patch.
        attention, attention_heads: on a patch, in the mean over heads and in any head.
    """

    norm: PerBlock
    attention: PerBlock
    attention_heads: PerBlock


def largest(norms: PerBlockPatch, attention: Float[Tensor, "image block head patch"]) -> Largest:
    """The maxima over patches, and of the third over heads."""
    return Largest(norms.amax(-1), attention.mean(2).amax(-1), attention.amax((2, 3)))


def reduction(
    after: BlockScores,
    before: BlockScores,
    decimals: int = 2,
    seed: int = 0,
) -> Estimate:
    """How much is gone in the block where it is largest before, in %, of the means over images.

    Both are positive and of the same images, whose sides the bootstrap draws together. Values and
    resamples are rounded to `decimals`: what differs by less is rounding of the forward pass.
    """
    pairs = np.stack([to_numpy(at_peak(x, before)) for x in (after, before)], axis=1)

    def percent(rows: Pairs) -> float:
        return round(100 * (1 - ratio_of_means(rows)), decimals) + 0.0  # no -0.0

    return bootstrap(pairs, percent, seed=seed)


def under_conditions(
    tops: Mapping[str, Largest], ends: Mapping[str, str], decimals: int = 2, seed: int = 0
) -> dict[str, Estimate | PerImage]:
    """What is largest before and after neurons are moved, and what conditions take away of it.

    "max_norm" and "max_attention" of "plain" (_before) and "moved" (_after), in the blocks where
    their means are largest before; "norm_reduction", "attention_reduction" and
    "attention_reduction_heads" (`reduction`) of each other condition, with its end in `ends`, or
    with its own name.
    """
    before, found = tops["plain"], {}
    for condition, end in {"plain": "_before", "moved": "_after"}.items():
        if now := tops.get(condition):
            found[f"max_norm{end}"] = at_peak(now.norm, before.norm)
            found[f"max_attention{end}"] = at_peak(now.attention, before.attention)
    kinds = "norm_reduction", "attention_reduction", "attention_reduction_heads"
    for condition, after in tops.items():
        if condition != "plain":
            for kind, x, y in zip(kinds, after, before, strict=True):
                found[kind + ends.get(condition, condition)] = reduction(x, y, decimals, seed)
    return found


def outlier_attention(attention: PerHeadPatch, outlier: PatchMask) -> PerImage:
    """The attention on the outliers of an image, summed, mean over heads; nan without one."""
    return mass(attention.mean(1), outlier).masked_fill(~outlier.any(1), torch.nan)


def register_medians(
    norms: tuple[PatchScores, Tensor, PerRegister],
    attention: tuple[PerHeadPatch, Tensor, Float[Tensor, "image head register"]],
    seed: int = 0,
) -> Estimates:
    """The medians over images, and tokens, of what the patches and the appended registers have
    after a block: `medians` of "norm", of which the many patches take 200 resamples, and of
    "attention", the largest of all heads, of the patches that of an image.

    Between the two stand trained registers, which are left out.
    """
    (lengths, _, long), (patches, _, registers) = norms, attention
    of_norm = medians("norm", lengths, long, 200, seed)
    highest = patches.amax((1, 2))[:, None], registers.amax(1)
    return of_norm | medians("attention", *highest, seed=seed)


def medians(
    name: str,
    patches: PatchScores,
    registers: Float[Array, "image register"],
    resamples: int = 1000,
    seed: int = 0,
) -> Estimates:
    """The medians of a quantity at the patches and at the registers, and their ratio.

    patch_NAME and register_NAME, over images and tokens; NAME_ratio, the second over the first. The
    cheap median of the registers always takes 1000 resamples.
    """
    patches, registers = to_numpy(patches), to_numpy(registers)
    both, count = np.concatenate([registers, patches], axis=1), registers.shape[1]

    def ratio(rows: Float[np.ndarray, "image more"]) -> float:
        return float(np.median(rows[:, :count]) / np.median(rows[:, count:]))

    return {
        f"patch_{name}": bootstrap(patches, np.median, resamples, seed=seed),
        f"register_{name}": bootstrap(registers, np.median, seed=seed),
        f"{name}_ratio": bootstrap(both, ratio, resamples, seed=seed),
    }
