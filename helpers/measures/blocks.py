"""What is measured block by block, such as the patch norm, and when it settles."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from helpers.measures._arrays import Array, to_numpy
from helpers.measures.similarity import cosine
from helpers.measures.stats import Estimate, over_images


class Thirds(NamedTuple):
    """Means over the first, the second and the last third of the blocks."""

    early: Float[Tensor, " image"]
    middle: Float[Tensor, " image"]
    late: Float[Tensor, " image"]


def thirds(by_block: Float[Tensor, "image block"]) -> Thirds:
    """The mean over each third of the blocks.

    Where three does not divide their number, the first thirds have one more.
    """
    return Thirds(*(third.mean(1) for third in by_block.tensor_split(3, dim=1)))


def growth(by_block: Float[Tensor, "image block"]) -> Float[Tensor, " image"]:
    """The last block over the mean of the first third, image by image."""
    return by_block[:, -1] / thirds(by_block).early


def growth_before(by_block: Float[Tensor, "image block"]) -> Float[Tensor, " image"]:
    """The last block but one over the mean of the first third, image by image.

    It is `growth` without what the last block adds.
    """
    return by_block[:, -2] / thirds(by_block).early


def over_blocks(
    per_image: Float[Array, "image block"],
    limits: tuple[float, float] | None = None,
    continuous: bool = False,
) -> list[Estimate]:
    """`over_images` after each block, with its arguments."""
    return [over_images(column, limits, continuous) for column in to_numpy(per_image).T]


def peak_block(per_image: Float[Array, "image block"]) -> int:
    """The block (0-based) in which the mean over images is largest, the first of equal ones."""
    return int(to_numpy(per_image).mean(axis=0, dtype=np.float64).argmax())


def at_peak(
    per_image: Float[Array, "image block"], reference: Float[Array, "image block"]
) -> Float[Array, " image"]:
    """The values in the peak block of `reference`.

    Such as that of the same quantity before an intervention.
    """
    return per_image[:, peak_block(reference)]


def median_onset(onset: Int[Array, " image"]) -> int:
    """The block in which outliers start in the median image that has any, rounded down.

    Args:
        onset: the first block with an outlier, -1 for none, as from
            `helpers.measures.norms.onset_block`.

    Returns:
        0-based; 0 where no image has one.
    """
    onset = to_numpy(onset)
    starts = np.sort(onset[onset >= 0])
    return int(starts[(len(starts) - 1) // 2]) if len(starts) else 0


def largest_before(per_image: Float[Array, "image block"], block: int) -> Estimate:
    """The largest of each image in the blocks before `block`, mean over images.

    Before block 0 there is none: an estimate of no image.
    """
    values = to_numpy(per_image)
    return over_images(values[:, :block].max(axis=1) if block else values[:0, 0])


def cosines_with_last(
    tokens: Float[Tensor, "image block width"], centred: bool = False
) -> Float[Tensor, "image block"]:
    """Cosine of a token after each block with the same token after the last (decoupling, Fig. 5b).

    Args:
        tokens: one token of each image, after each block.
        centred: of what is left without the mean over the images, to four decimals. A block where
            the token is the same in all images has no direction left (nan).
    """
    x = (tokens - tokens.mean(0)).round(decimals=4) if centred else tokens
    return cosine(x, x.narrow(1, -1, 1)).clamp(max=1)


def settled_depth(cosines: Float[Tensor, "image block"], level: float) -> Estimate:
    """The first block from which on the cosine stays above `level`, as a share of the depth.

    Blocks count from 1: 1 means in the last block only. A cosine that is nan is not above. The mean
    is over images.
    """
    depth = cosines.shape[1]
    settled = depth - (cosines > level).flip(1).cumprod(1).sum(1) + 1
    return over_images(settled / depth, (0, 1), continuous=True)
