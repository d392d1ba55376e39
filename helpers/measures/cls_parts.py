"""What [CLS] takes from patches, from registers and from itself in one attention layer: attention, direction, length and what a
part says of the images (decoupling, sections 3 and 4.1).

The parts are those of `helpers.capture.ClsParts`, whose masses are given in the order patches, registers, [CLS].
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helpers.measures.attention import mass
from helpers.measures.similarity import cka_floor, cka_over_images, cosine, linear_cka
from helpers.measures.stats import Estimate, bootstrap, over_images, ratio_of_means

ROUNDING = 1e-3  # of the whole: a part that is shorter is a difference of numbers that cancel
PART_ROUNDING = 3e-3  # the same for a direction


def register_share(masses: Float[Tensor, "image 3"]) -> Float[Tensor, " image"]:
    """The registers' part of the attention that [CLS] gives to registers and patches (decoupling, Fig. 2a); nan where no image
    gives them any, as in a model without registers."""
    patches, registers, _ = masses.unbind(1)
    shares = registers / (patches + registers)
    return shares if registers.any() else torch.full_like(shares, torch.nan)


def share_at_patches(
    attention: Float[Tensor, "image patch"], mask: Bool[Tensor, "image patch"], masses: Float[Tensor, "image 3"]
) -> Float[Tensor, " image"]:
    """The part of some patches, of the attention that [CLS] gives to registers and patches; to six decimals."""
    return (mass(attention, mask) / masses.narrow(1, 0, 2).sum(1)).round(decimals=6)


def attention_per_token(masses: Float[Tensor, "image 3"], patches: int, registers: int, seed: int = 0) -> Estimate:
    """How much more [CLS] attends to one register than to one patch: the ratio of the two means over images."""
    each = masses.narrow(1, 0, 2) / torch.tensor([patches, registers])
    return bootstrap(each.flip(1), ratio_of_means, seed=seed)


def part_alignment(
    part: Float[Tensor, "image width"],
    whole: Float[Tensor, "image width"],
    renormalised: Float[Tensor, "image width"],
    permutations: int = 100,
) -> dict[str, Estimate | float]:
    """How far a part arranges the images as the whole does (decoupling, section 3.3).

    Args:
        renormalised: the same part where the weights of its tokens sum to one.
        permutations: of the images, for the floor.

    Returns:
        'cka' with the whole, 'floor' (95th percentile of shuffled images), 'cka_debiased', 'cka_renormalised', and 'length', the
        mean of the part's norm over that of the whole, which CKA does not see. Nothing for a part of less than 0.001 of the whole
        in the median image: no register, or nothing but rounding.
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
    part: Float[Tensor, "image width"], whole: Float[Tensor, "image width"], counts: Sequence[int] | Int[np.ndarray, " counts"]
) -> tuple[list[float], list[float], list[float]]:
    """CKA of the first images, so many as each of `counts` says: plain, debiased, and the mean over shuffled images."""
    pairs = [(part[:count], whole[:count]) for count in counts]
    plain, debiased = ([linear_cka(*pair, debiased=unbiased) for pair in pairs] for unbiased in (False, True))
    return plain, debiased, [cka_floor(*pair).mean for pair in pairs]


def part_cosine(part: Float[Tensor, "image width"], total: Float[Tensor, "image width"]) -> Float[Tensor, " image"]:
    """Cosine of a part with the total (decoupling, section 3.4), image by image; nan for a part of less than 0.003 of the total,
    whose direction is rounding."""
    short = part.norm(dim=1, keepdim=True) < PART_ROUNDING * total.norm(dim=1, keepdim=True)
    return cosine(part.masked_fill(short, 0), total)


def along_total(
    norms: Float[Tensor, "image patch"], cosines: Float[Tensor, "image patch"], parts: Float[Tensor, "image part width"]
) -> Float[Tensor, "image patch"]:
    """What each patch adds along what all tokens contribute together, as a share of that (decoupling, Fig. 4).

    Args:
        norms, cosines: of the contributions of the patches, as `helpers.capture.PatchContributions` returns them.
        parts: as `helpers.capture.ClsParts` returns them; the first three are summed.
    """
    return norms * cosines / parts.narrow(1, 0, 3).sum(1).norm(dim=1, keepdim=True)


def levelled(maps: Float[Tensor, "image patch"]) -> Float[Tensor, "image patch"]:
    """Maps with a largest magnitude of one, to four decimals: patches that differ by less have one rank."""
    return (maps / maps.abs().amax(1, keepdim=True)).round(decimals=4)


def mixed_share(shares: Sequence[Sequence[Estimate]]) -> float:
    """What the terms of two different parts have together in `gram_shares_over_images`, to four decimals; nan where it is."""
    return round(1 - sum(row[i].value for i, row in enumerate(shares)), 4) + 0.0  # no negative zero


def residual(parts: Float[Tensor, "image part width"], total: Float[Tensor, "image width"]) -> float:
    """The largest difference of the parts' sum from the total, over the largest magnitude in the total."""
    return ((parts.sum(1) - total).abs().max() / total.abs().max()).item()


def length_ratio(
    a: Float[Tensor, "image width"], b: Float[Tensor, "image width"], centred: bool = False, seed: int = 0
) -> Estimate:
    """Mean norm of `a` over mean norm of `b`.

    Args:
        centred: of what is left without the mean over the images, to four decimals: a vector that is the same for all images is
            long, and says nothing of them.
    """
    if centred:
        a, b = (x - x.mean(0) for x in (a, b))
    lengths = torch.stack([a.norm(dim=1), b.norm(dim=1)], dim=1)
    return bootstrap(lengths.round(decimals=4) if centred else lengths, ratio_of_means, seed=seed)
