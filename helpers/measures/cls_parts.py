"""What [CLS] takes from patches, registers and itself in one layer (decoupling, 3 and 4.1).

The parts are those of `helpers.capture.ClsParts`.
"""

import numpy as np
from jaxtyping import Float

from helpers.measures._arrays import Array, PerImage, Vectors, to_numpy
from helpers.measures.similarity import cosine
from helpers.measures.stats import (
    Estimate,
    jackknife,
)

ROUNDING = 3e-3  # of the whole: what is shorter is left of numbers that cancel


def part_cosine(part: Vectors, total: Vectors) -> PerImage:
    """Cosine of a part with the total (decoupling, section 3.4), image by image.

    Nan for a part of less than 0.003 of the total, whose direction is rounding.
    """
    short = part.norm(dim=1, keepdim=True) < ROUNDING * total.norm(dim=1, keepdim=True)
    return cosine(part.masked_fill(short, 0), total)


def gram_shares_over_images(parts: Float[Array, "image part width"]) -> list[list[Estimate]]:
    """The share of each term A B' in the Gram matrix X X' of the sum of the parts, in float64.

    The terms are those of decoupling, eq. 5, which measures none. The share of a term is
    `<A B', X X'> / |X X'|^2` (Frobenius): the terms sum to one, a negative share works against the
    whole, and that of A A' is `CKA(A, X) |A A'| / |X X'|`.

    Returns:
        By part A, then by part B, with intervals by `jackknife`; nan where the sum is constant.
    """
    parts = to_numpy(parts).astype(np.float64)
    n = len(parts)
    parts = parts - parts[0]  # first, so that what is constant becomes exactly zero
    parts = parts - parts.mean(axis=0)
    total = parts.sum(axis=1)
    moments = np.einsum("iaw,iv->awv", parts, total, optimize=True)  # A'X
    inner = np.einsum("awv,bwv->ab", moments, moments, optimize=True)  # <A B', X X'> = <A'X, B'X>
    loss = n / (n - 1)  # A'X loses this times a x' with an image
    along = np.einsum("iaw,ibw->iab", parts, np.einsum("bwv,iv->ibw", moments, total))
    products = np.einsum("iaw,ibw->iab", parts, parts) * (total**2).sum(axis=1)[:, None, None]
    value = _shares(inner)
    without = _shares(inner - loss * (along + along.swapaxes(1, 2)) + loss**2 * products)
    return [
        [jackknife(float(value[a, b]), without[:, a, b]) for b in range(len(value))]
        for a in range(len(value))
    ]


def _shares(inner: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = inner.sum(axis=(-2, -1), keepdims=True)
        return np.where(whole > 0, inner / whole, np.nan)
