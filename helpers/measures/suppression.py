"""What becomes of high norms and of attention when outliers are suppressed, image by image."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.measures._arrays import Array, to_numpy
from helpers.measures.attention import mass
from helpers.measures.blocks import at_peak
from helpers.measures.stats import Estimate, bootstrap, over_images, ratio_of_means


class Largest(NamedTuple):
    """What is largest on the patches of each image after each block.

    Attributes:
        norm: of a patch.
        attention, attention_heads: on a patch, in the mean over heads and in any head.
    """

    norm: Float[Tensor, "image block"]
    attention: Float[Tensor, "image block"]
    attention_heads: Float[Tensor, "image block"]


def largest(
    norms: Float[Tensor, "image block patch"], attention: Float[Tensor, "image block head patch"]
) -> Largest:
    """The maxima over patches, and of the third over heads."""
    return Largest(norms.amax(-1), attention.mean(2).amax(-1), attention.amax((2, 3)))


def reduction(
    after: Float[Array, "image block"],
    before: Float[Array, "image block"],
    decimals: int = 2,
    seed: int = 0,
) -> Estimate:
    """How much is gone in the block where it is largest before, in %.

    It is 1 minus the mean after over the mean before.

    Args:
        after, before: something positive of the same images, such as their largest norm.
        decimals: to which values and resamples are rounded; what differs by less is rounding of the
            forward pass.
        seed: of the bootstrap, which draws both sides of an image together.
    """
    pairs = np.stack([to_numpy(at_peak(x, before)) for x in (after, before)], axis=1)

    def percent(rows: Float[np.ndarray, "image 2"]) -> float:
        return round(100 * (1 - ratio_of_means(rows)), decimals) + 0.0  # no -0.0

    return bootstrap(pairs, percent, seed=seed)


def reductions(
    after: Largest, before: Largest, decimals: int = 2, seed: int = 0
) -> dict[str, Estimate]:
    """norm_reduction, attention_reduction and attention_reduction_heads: `reduction` of each."""
    names = ("norm_reduction", "attention_reduction", "attention_reduction_heads")
    return {
        name: reduction(x, y, decimals, seed)
        for name, x, y in zip(names, after, before, strict=True)
    }


def peaks(now: Largest, before: Largest) -> dict[str, Estimate]:
    """max_norm and max_attention: means over images in the blocks where they are largest before."""
    return {
        "max_norm": over_images(at_peak(now.norm, before.norm)),
        "max_attention": over_images(
            at_peak(now.attention, before.attention), (0, 1), continuous=True
        ),
    }


def under_conditions(
    tops: Mapping[str, Largest], names: Mapping[str, str], decimals: int = 2, seed: int = 0
) -> dict[str, Estimate]:
    """What is largest before and after outliers are suppressed, and how much is gone.

    Args:
        tops: condition -> what is largest under it; "before" is the model as it is.
        names: condition -> end of the names of its `reductions`; others are left out.
        decimals, seed: as in `reduction`.

    Returns:
        `peaks` of "before" (_before) and of "moved" (_after), and `reductions` of each condition.
    """
    before = tops["before"]
    estimates = {
        f"{name}{end}": estimate
        for condition, end in (("before", "_before"), ("moved", "_after"))
        if condition in tops
        for name, estimate in peaks(tops[condition], before).items()
    }
    for condition, end in names.items():
        if condition in tops:
            gone = reductions(tops[condition], before, decimals, seed)
            estimates |= {f"{name}{end}": estimate for name, estimate in gone.items()}
    return estimates


def attention_on(
    attention: Float[Tensor, "image head patch"], outlier: Bool[Tensor, "image patch"]
) -> Float[Tensor, " image"]:
    """The attention that lands on the outliers of an image, summed, mean over heads.

    Nan for an image without an outlier.
    """
    return mass(attention.mean(1), outlier).masked_fill(~outlier.any(1), torch.nan)


def outlier_attention(
    attention: Float[Tensor, "image head patch"], outlier: Bool[Tensor, "image patch"]
) -> dict[str, Estimate]:
    """outlier_attention: the mean of `attention_on` over images with an outlier."""
    on = attention_on(attention, outlier)
    return {"outlier_attention": over_images(on, (0, 1), continuous=True)}


def medians(
    name: str,
    patches: Float[Array, "image patch"],
    registers: Float[Array, "image register"],
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Estimate]:
    """The medians of a quantity at the patches and at the registers, and their ratio.

    Args:
        name: of the quantity, such as "norm".
        patches, registers: several an image, or one, such as the largest attention.
        resamples: for the first and the third; the second, which is cheap, has 1000.
        seed: of the bootstrap.

    Returns:
        patch_NAME, the median over images and patches; register_NAME, that over images and
        registers; NAME_ratio, the second over the first.
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


def at_register(
    norms: Float[Tensor, "image patch"],
    attention: Float[Tensor, "image head patch"],
    register_norms: Float[Tensor, "image register"],
    register_attention: Float[Tensor, "image head register"],
    seed: int = 0,
) -> dict[str, Estimate]:
    """`medians` of norm and of attention after one block.

    Attention is that of the medical paper's Figures 5 and 6: the largest over heads and, at the
    patches, over these too; of several registers each counts. The intervals of the first, for which
    all patches are sorted, take 200 resamples.
    """
    most, on_registers = attention.amax((1, 2))[:, None], register_attention.amax(1)
    return medians("norm", norms, register_norms, 200, seed) | medians(
        "attention", most, on_registers, seed=seed
    )
