"""What is measured block by block, such as the patch norm, in the early, middle and late blocks of a model."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


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
