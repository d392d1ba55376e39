"""Measures take torch tensors or NumPy arrays alike, and give back what they were given."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Array = Tensor | np.ndarray

Grid = tuple[int, int]  # rows and columns of patches
Limits = tuple[float, float]  # the smallest and the largest possible value

# Shapes that many measures share. With a tensor:
PerImage = Float[Tensor, " image"]
PerPatch = Float[Tensor, "image patch"]
PerBlock = Float[Tensor, "image block"]
PerRegister = Float[Tensor, "image register"]
PerBlockPatch = Float[Tensor, "image block patch"]
PatchMask = Bool[Tensor, "image patch"]
ImageMask = Bool[Tensor, " image"]
Vectors = Float[Tensor, "image width"]
Tokens = Float[Tensor, "image token width"]
# with either:
PatchScores = Float[Array, "image patch"]
PatchSet = Bool[Array, "image patch"]
Answers = Bool[Array, " image"]
Labels = Int[Array, " image"]
BlockScores = Float[Array, "image block"]
Pairs = Float[np.ndarray, "image 2"]


def to_numpy(x: Array) -> np.ndarray:
    """`x` as a NumPy array of the same type and shape."""
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def like(result: np.ndarray, reference: Array) -> Array:
    """`result` as a tensor on the device of `reference` where that is a tensor, else unchanged."""
    return (
        torch.from_numpy(result).to(reference.device) if isinstance(reference, Tensor) else result
    )


def mean_where(
    scores: Float[Tensor, "image token"], mask: Bool[Tensor, "image token"]
) -> Float[Tensor, " image"]:
    """Mean over the masked tokens of an image; nan where it has none."""
    return scores.where(mask, torch.nan).nanmean(-1)


def settled(x: Array) -> np.ndarray:
    """`x` as NumPy, real numbers rounded to 16 bits, 1.5e-5 of themselves.

    For scores that are ranked, or cut at their own quantile: two flat patches have equal scores but
    for the last bits of float32, which another machine would put in another order.
    """
    x = to_numpy(x)
    if not np.issubdtype(x.dtype, np.floating):
        return x
    x = x.astype(np.float64)
    # A fraction is below one, since Veltkamp's splitting takes 37 bits more than the number has:
    # 16 are left of the 53 bits after adding and taking away 37.
    fraction, exponent = np.frexp(x)
    with np.errstate(invalid="ignore"):
        shifted = fraction * (2.0**37 + 1)
        return np.where(np.isfinite(x), np.ldexp(shifted - (shifted - fraction), exponent), x)


def tied(x: np.ndarray, tie: float) -> np.ndarray:
    """The place of each score of (image, patch) in its image's order, from 0 for the lowest.

    Scores share a place where each follows the next lower one by at most `tie` of itself.
    """
    order = x.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(x, order, axis=1)
    apart = np.diff(ordered, axis=1) > tie * np.maximum(abs(ordered[:, 1:]), abs(ordered[:, :-1]))
    places = np.zeros(x.shape, dtype=int)
    np.put_along_axis(places, order[:, 1:], apart.cumsum(axis=1), axis=1)
    return places
