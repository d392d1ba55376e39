"""What [CLS] takes from patches, registers and itself in one layer (decoupling, 3 and 4.1).

The parts are those of `helpers.capture.ClsParts`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from helpers.measures._arrays import Array, PatchMask, PerImage, PerPatch, Vectors, to_numpy
from helpers.measures.attention import mass
from helpers.measures.similarity import cka_floor, cka_over_images, cosine, linear_cka
from helpers.measures.stats import (
    Estimate,
    Estimates,
    bootstrap,
    jackknife,
    over_images,
    ratio_of_means,
)

Masses = Float[Tensor, "image 3"]  # of patches, registers and [CLS]
ROUNDING = 1e-3  # of the whole: a part of a lower norm is a difference of numbers that cancel
PART_ROUNDING = 3e-3  # the same for a direction


def register_share(masses: Masses) -> PerImage:
    """The registers' part of the attention that [CLS] gives to registers and patches (Fig. 2a).

    Nan where no image gives them any, as in a model without registers.
    """
    patches, registers, _ = masses.unbind(1)
    shares = registers / (patches + registers)
    return shares if registers.any() else torch.full_like(shares, torch.nan)


def share_at_patches(
    attention: PerPatch,
    mask: PatchMask,
    masses: Masses,
) -> PerImage:
    """The part of some patches, of what [CLS] gives to registers and patches, to six decimals."""
    return (mass(attention, mask) / masses.narrow(1, 0, 2).sum(1)).round(decimals=6)


def attention_per_token(masses: Masses, patches: int, registers: int, seed: int = 0) -> Estimate:
    """How much more [CLS] attends to one register than to one patch: a ratio of means."""
    each = masses.narrow(1, 0, 2) / torch.tensor([patches, registers])
    return bootstrap(each.flip(1), ratio_of_means, seed=seed)


def part_alignment(
    part: Vectors,
    whole: Vectors,
    renormalised: Vectors,
    permutations: int = 100,
) -> Estimates:
    """How far a part arranges the images as the whole does (decoupling, section 3.3).

    'cka' with the whole, 'floor' (95th percentile of shuffled images), 'cka_debiased',
    'cka_renormalised' (the weights of the part's tokens sum to one), and 'length', the mean of the
    part's norm over that of the whole. Nothing for a part of less than 0.001 of the whole in the
    median image: rounding.
    """
    length = part.norm(dim=1) / whole.norm(dim=1)
    if length.median() < ROUNDING:
        return {}
    return {
        "cka": cka_over_images(part, whole),
        "floor": cka_floor(part, whole, permutations=permutations).high,
        "cka_debiased": cka_over_images(part, whole, debiased=True),
        "cka_renormalised": cka_over_images(renormalised, whole),
        "length": over_images(length),
    }


def cka_by_images(
    part: Vectors,
    whole: Vectors,
    counts: Sequence[int] | Int[np.ndarray, " counts"],
) -> tuple[list[float], list[float], list[float]]:
    """CKA of the first images, so many as each of `counts` says: plain, debiased and shuffled."""
    pairs = [(part[:count], whole[:count]) for count in counts]
    plain = [linear_cka(*pair) for pair in pairs]
    debiased = [linear_cka(*pair, debiased=True) for pair in pairs]
    return plain, debiased, [cka_floor(*pair).mean for pair in pairs]


def part_cosine(part: Vectors, total: Vectors) -> PerImage:
    """Cosine of a part with the total (decoupling, section 3.4), image by image.

    Nan for a part of less than 0.003 of the total, whose direction is rounding.
    """
    short = part.norm(dim=1, keepdim=True) < PART_ROUNDING * total.norm(dim=1, keepdim=True)
    return cosine(part.masked_fill(short, 0), total)


def along_total(
    norms: PerPatch,
    cosines: PerPatch,
    parts: Float[Tensor, "image part width"],
) -> PerPatch:
    """What each patch adds along what all tokens contribute, as its share (decoupling, Fig. 4).

    `norms` and `cosines` are those of `helpers.capture.PatchContributions`; the first three of
    `parts` (`helpers.capture.ClsParts`) are summed.
    """
    return norms * cosines / parts.narrow(1, 0, 3).sum(1).norm(dim=1, keepdim=True)


def levelled(maps: PerPatch) -> PerPatch:
    """Maps with a largest magnitude of one, to four decimals: what differs by less has one rank."""
    return (maps / maps.abs().amax(1, keepdim=True)).round(decimals=4)


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


def mixed_share(shares: Sequence[Sequence[Estimate]]) -> float:
    """What the terms of two different parts have together, to four decimals; nan where it is."""
    return round(1 - sum(row[i].value for i, row in enumerate(shares)), 4) + 0.0  # no negative zero


def _shares(inner: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = inner.sum(axis=(-2, -1), keepdims=True)
        return np.where(whole > 0, inner / whole, np.nan)
