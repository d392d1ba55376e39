"""What register tokens take over, what linear heads read from them, and what one changes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helpers.measures.norms import norm_ratio
from helpers.measures.probes import Probe, fit_classifier
from helpers.measures.stats import Estimate, bootstrap

# Heads, and what they read of that which `helpers.capture.Pooled` keeps (reproduction of Darcet et
# al., Table 5).
HEADS = {
    "cls_mean": ("cls", "patch_mean"),
    "cls_mean_registers": ("cls", "patch_mean", "registers"),
    "mean_registers": ("patch_mean", "registers"),
}


def head_features(pooled: Mapping[str, Tensor], head: str) -> Float[Tensor, "image width"]:
    """What a head of HEADS reads, side by side."""
    return torch.cat([pooled[part].flatten(1) for part in HEADS[head]], dim=1)


def fit_heads(
    pooled: Mapping[str, Tensor], labels: Int[Any, " image"], **how: Any
) -> dict[str, Probe]:
    """A classifier of images for each head, without registers the first alone.

    Args:
        pooled: cls (image, width), patch_mean (image, width) and registers (image, register,
            width).
        labels: of the images.
        how: schedule, seed and device, as in `fit_classifier`.

    Raises:
        ValueError: as `fit_classifier`.
    """
    heads = [
        head
        for head, parts in HEADS.items()
        if pooled["registers"].shape[1] or "registers" not in parts
    ]
    return {head: fit_classifier(head_features(pooled, head), labels, **how) for head in heads}


def answers_of_heads(
    heads: Mapping[str, Probe], pooled: Mapping[str, Tensor], labels: Int[Any, " image"]
) -> dict[str, Float[Tensor, " image"]]:
    """Head -> 100 where it names the class of an image, else 0."""
    given = {head: probe(head_features(pooled, head)).argmax(-1) for head, probe in heads.items()}
    return {
        head: 100 * (classes == torch.as_tensor(labels)).float() for head, classes in given.items()
    }


def register_ratio(
    registers: Float[Tensor, "image register"], patches: Float[Tensor, "image patch"]
) -> Float[Tensor, " image"]:
    """The largest register norm of an image over its median patch norm.

    Nan where there is no register.

    Args:
        registers, patches: norms of one image's tokens, taken at the same place.
    """
    if registers.shape[1] == 0:
        return torch.full((len(patches),), torch.nan)
    return registers.amax(1) / patches.median(1).values


def tail_ratio(
    without: Float[Tensor, "image patch"],
    with_register: Float[Tensor, "image patch"],
    resamples: int = 400,
    seed: int = 0,
) -> Estimate:
    """The `norm_ratio` with a register over that without, paired image by image."""

    def ratio(rows: Float[np.ndarray, "image 2 patch"]) -> float:
        return norm_ratio(rows[:, 1]) / norm_ratio(rows[:, 0])

    return bootstrap(torch.stack([without, with_register], dim=1), ratio, resamples, seed=seed)


def steadiness(
    without: Float[Tensor, " image"], with_one: Float[Tensor, " image"], decimals: int
) -> Float[Tensor, " image"]:
    """By how much less an image's quantity moves with a register than without.

    It is `|change without| - |change with|`.

    Args:
        without, with_one: change of the quantity, such as by dropping patches, signed.
        decimals: to which the difference is rounded, where what differs by less is rounding.
    """
    return (without.abs() - with_one.abs()).round(decimals=decimals)


def register_gains(right: Mapping[int, Float[Tensor, " _"]]) -> dict[str, Float[Tensor, " _"]]:
    """What registers change in each image's answer.

    Args:
        right: number of registers, 0 and 1 among them -> 100 where the answer is right, else 0, of
            the same images in the same order; of the first of them alone where a number was tried
            on fewer.

    Returns:
        "gain_one", one register against none; "gain_more", more of them, in the mean over their
        numbers, against one, on the images that all of these saw; nan where no more were tried.
    """
    one, more = right[1], [right[count] for count in right if count > 1]
    further = torch.full_like(one, torch.nan)
    if more:
        seen = min(map(len, [one, *more]))
        further = torch.stack([x[:seen] for x in more]).mean(0) - one[:seen]
    return {"gain_one": one - right[0], "gain_more": further}


def answers_by_count(right: Mapping[int, Float[Tensor, " _"]]) -> dict[str, Float[Tensor, " _"]]:
    """How an image's answer depends on the number of registers (SORTS, Figures 17 to 19).

    Args:
        right: as in `register_gains`.

    Returns:
        Of the images that all numbers saw: "right_always" and "right_never", 100 where it is right
        with every number and with none, else 0; "right_sometimes", the rest.
    """
    seen = min(map(len, right.values()))
    answers = torch.stack([x[:seen] for x in right.values()])
    always, never = (
        100.0 * (answers > 50 if good else answers < 50).all(0).float() for good in (True, False)
    )
    return {"right_always": always, "right_never": never, "right_sometimes": 100 - always - never}


def by_rank(attention: Float[Tensor, "image register"]) -> Float[Tensor, "image register"]:
    """The registers in the order of their mean attention, the most attended one first."""
    return attention[:, attention.mean(0).argsort(descending=True, stable=True)]


def register_first(
    registers: Float[Tensor, "image register"], patches: Float[Tensor, "image patch"]
) -> Bool[Tensor, " image"]:
    """Whether a register gets more attention than any patch, image by image."""
    return registers.amax(1) > patches.amax(1)


def register_use(
    registers: Float[Tensor, "image register"], patches: Float[Tensor, "image patch"]
) -> dict[str, Tensor]:
    """How much attention registers get, image by image.

    Args:
        registers, patches: shares of one row of attention, such as [CLS]'s.

    Returns:
        "register_attention": all registers together; "register_first": whether one of them gets
        more than any patch; and "register_attention I": the one that is the I-th most attended over
        all images, I from 1.
    """
    ranked = by_rank(registers)
    use = {"register_attention": ranked.sum(1), "register_first": register_first(ranked, patches)}
    return use | {f"register_attention {i}": x for i, x in enumerate(ranked.unbind(1), start=1)}
