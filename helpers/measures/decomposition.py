"""How much of the similarity between images each part of their representations accounts for, where the parts add up."""

import numpy as np
from jaxtyping import Float

from helpers.measures._arrays import Array, to_numpy
from helpers.measures.stats import Estimate, jackknife


def gram_shares_over_images(
    parts: Float[Array, "image part width"], centred: bool = True, level: float = 0.95
) -> list[list[Estimate]]:
    """The share of each term A B' in the Gram matrix X X' of the sum of the parts (decoupling, eq. 5), in float64, with its
    interval over images by `helpers.measures.stats.jackknife`.

    The paper names the terms and measures none. Here the share of a term is <A B', X X'> / |X X'|^2 (Frobenius): the terms sum to
    one, a negative share works against the whole, and that of A A' is CKA(A, X) |A A'| / |X X'|. The two terms of a mixed
    pair have the same share. Works on features, so no n x n matrix is built; nan where the sum is constant (or zero).

    Args:
        parts: of each image; those that `helpers.capture.ClsParts` returns without the skip connection, for example.
        centred: subtract the mean of each part over the images, as CKA does. What is the same in all images then has no share.

    Returns:
        by part A, then by part B.

    Raises ValueError for fewer than 2 images.
    """
    parts, total, moments = _with_total(parts, centred)
    n, inner = len(parts), _inner(moments)
    loss = n / (n - 1) if centred else 1.0  # X_a'X loses this times x_a x' with an image
    along = np.einsum("iaw,ibw->iab", parts, np.einsum("bwv,iv->ibw", moments, total))
    products = np.einsum("iaw,ibw->iab", parts, parts) * (total**2).sum(axis=1)[:, None, None]
    without = _shares(inner - loss * (along + along.swapaxes(1, 2)) + loss**2 * products)
    return [
        [jackknife(float(value), column, level=level) for value, column in zip(values, columns, strict=True)]
        for values, columns in zip(_shares(inner), np.moveaxis(without, 0, -1), strict=True)
    ]


def _with_total(parts: Array, centred: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The parts, their sum, and X_a'X for each part a."""
    parts = to_numpy(parts).astype(np.float64)
    if len(parts) < 2:
        raise ValueError(f"{len(parts)} image has no similarity to others; give at least 2")
    if centred:
        parts = parts - parts[0]  # first, so that what is constant becomes exactly zero
        parts = parts - parts.mean(axis=0)
    total = parts.sum(axis=1)
    return parts, total, np.einsum("iaw,iv->awv", parts, total, optimize=True)


def _inner(moments: np.ndarray) -> np.ndarray:
    """<A B', X X'> = <A'X, B'X> for all pairs of parts."""
    return np.einsum("awv,bwv->ab", moments, moments, optimize=True)


def _shares(inner: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = inner.sum(axis=(-2, -1), keepdims=True)
        return np.where(whole > 0, inner / whole, np.nan)
