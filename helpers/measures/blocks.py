"""What is measured block by block, such as the patch norm, in the early, middle and late blocks of a model."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from helpers.measures._arrays import Array, to_numpy
from helpers.measures.stats import Estimate, over_images


class Thirds(NamedTuple):
    """Means over the first, the second and the last third of the blocks."""

    early: Float[Tensor, " image"]
    middle: Float[Tensor, " image"]
    late: Float[Tensor, " image"]


def thirds(by_block: Float[Tensor, "image block"]) -> Thirds:
    """The mean over each third of the blocks. Where three does not divide their number, the first thirds have one more."""
    return Thirds(*(third.mean(1) for third in by_block.tensor_split(3, dim=1)))


def growth(by_block: Float[Tensor, "image block"]) -> Float[Tensor, " image"]:
    """The last block over the mean of the first third, image by image."""
    return by_block[:, -1] / thirds(by_block).early


def growth_before(by_block: Float[Tensor, "image block"]) -> Float[Tensor, " image"]:
    """The last block but one over the mean of the first third, image by image: `growth` without what the last block adds."""
    return by_block[:, -2] / thirds(by_block).early


def over_blocks(
    per_image: Float[Array, "image block"], limits: tuple[float, float] | None = None, continuous: bool = False
) -> list[Estimate]:
    """The mean over images after each block, with its interval: `over_images`, whose arguments these are."""
    return [over_images(column, limits, continuous) for column in to_numpy(per_image).T]


def peak_block(per_image: Float[Array, "image block"]) -> int:
    """The block (0-based) in which the mean over images is largest, the first of equal ones."""
    return int(to_numpy(per_image).mean(axis=0, dtype=np.float64).argmax())


def at_peak(per_image: Float[Array, "image block"], reference: Float[Array, "image block"]) -> Float[Array, " image"]:
    """What is there in the peak block of `reference`, such as the same quantity before an intervention."""
    return per_image[:, peak_block(reference)]


def median_onset(onset: Int[Array, " image"]) -> int:
    """The block in which outliers start in the median image that has any, rounded down; 0 where none has.

    Args:
        onset: the first block with an outlier, -1 for none, as from `helpers.measures.norms.onset_block`.
    """
    onset = to_numpy(onset)
    starts = np.sort(onset[onset >= 0])
    return int(starts[(len(starts) - 1) // 2]) if len(starts) else 0


def largest_before(per_image: Float[Array, "image block"], block: int) -> Estimate:
    """The largest of each image in the blocks before `block`, mean over images with its interval; of no image for block 0."""
    values = to_numpy(per_image)
    return over_images(values[:, :block].max(axis=1) if block else values[:0, 0])
