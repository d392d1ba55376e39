"""Registers: what they take over, what linear heads read from them, and what more of them change.

Models alike but for their number of registers are a family; those of one seed are twins.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from helpers.measures._arrays import (
    Array,
    Grid,
    ImageMask,
    Labels,
    PatchMask,
    PerImage,
    PerPatch,
    PerRegister,
    Tokens,
    Vectors,
    mean_where,
)
from helpers.measures.norms import norm_ratio, outliers, paired_positions
from helpers.measures.object_discovery import covered
from helpers.measures.one_token import (
    PatchTokens,
    answers_of_tokens,
    regression_errors,
)
from helpers.measures.outliers import PRESENT
from helpers.measures.probes import (
    Probe,
    Schedule,
    fit_classifier,
    fit_regression,
    right_classes,
    squared_error,
)
from helpers.measures.stats import Estimate, bootstrap, mean_ratio, share

# Heads, and what they read of that which `helpers.capture.Pooled` keeps (reproduction of Darcet et
# al., Table 5).
HEADS = {
    "top1_cls_mean": ("cls", "patch_mean"),
    "top1_cls_mean_registers": ("cls", "patch_mean", "registers"),
    "top1_mean_registers": ("patch_mean", "registers"),
    "top1": ("cls", "patch_mean"),  # the published one, which is not trained here
}

LEAST = 1e-3  # of the largest norm: a token up to it is rounding
LOADED = 3  # times the median patch norm of the image: a register above it carries a load
MOST_IMAGES = 0.5  # a training took over where its registers did in more of the images


def head_features(pooled: Mapping[str, Tensor], head: str) -> Vectors:
    """What a head of HEADS reads, side by side."""
    return torch.cat([pooled[part].flatten(1) for part in HEADS[head]], dim=1)


def fit_heads(
    pooled: Mapping[str, Tensor],
    labels: Labels,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: Any = None,
) -> dict[str, Probe]:
    """A classifier of images for each head (`fit_classifier`), without registers the first alone.

    `pooled` are cls (image, width), patch_mean (image, width) and registers (image, register,
    width).
    """
    trained = [*HEADS][: 3 if pooled["registers"].shape[1] else 1]
    how = {"schedule": schedule, "seed": seed, "device": device}
    return {head: fit_classifier(head_features(pooled, head), labels, **how) for head in trained}


def answers_of_heads(
    heads: Mapping[str, Callable], pooled: Mapping[str, Tensor], labels: Labels
) -> dict[str, PerImage]:
    """Head -> 100 where it names the class of an image, else 0."""
    return {
        head: right_classes(probe(head_features(pooled, head)), labels)
        for head, probe in heads.items()
    }


def register_ratio(registers: PerRegister, patches: PerPatch) -> PerImage:
    """The largest register norm of an image over its median patch norm; nan without a register."""
    if registers.shape[1] == 0:
        return torch.full((len(patches),), torch.nan)
    return registers.amax(1) / patches.median(1).values


def register_first(registers: PerRegister, patches: PerPatch) -> ImageMask:
    """Whether a register gets more attention than any patch, image by image."""
    return registers.amax(1) > patches.amax(1)


def register_use(registers: PerRegister, patches: PerPatch) -> dict[str, Tensor]:
    """How much attention registers get, image by image: "register_attention", all together;
    "register_first", whether one gets more than any patch; "register_attention I", the one that is
    the I-th most attended over all images, I from 1.
    """
    ranked = registers[:, registers.mean(0).argsort(descending=True, stable=True)]
    use = {"register_attention": ranked.sum(1), "register_first": register_first(ranked, patches)}
    return use | {f"register_attention {i}": x for i, x in enumerate(ranked.unbind(1), start=1)}


def object_places(
    masks: Sequence[Bool[Array, "_ _ _"]] | None,
    grids: Iterable[Grid],
    count: int,
    seed: int = 0,
) -> dict[Grid, Int64[Tensor, "image both"]]:
    """For each grid, random patches of each image: `count` on objects, then as many off them.

    `masks` are as in `covered`; without any no grid has places. -1 where there are fewer.
    """
    if masks is None:
        return {}
    return {
        grid: torch.cat(paired_positions(covered(masks, grid), count, seed), dim=1)
        for grid in grids
    }


def object_accuracy(learnt: PatchTokens, tested: PatchTokens, device: Any = None) -> PerImage:
    """How often least squares tells from one token whether its patch lies on an object, in %.

    On and off are equally often among the tokens (`object_places`), so that chance is 50 %; those
    at -1 are left out, and an image without any is nan.
    """
    on = torch.tensor([True, False]).repeat_interleave(tested.positions.shape[1] // 2)
    targets = (2.0 * on - 1).expand(learnt.positions.shape)[..., None]
    probe = fit_regression(learnt.tokens, targets, mask=learnt.positions >= 0, device=device)
    right = (probe(tested.tokens)[..., 0] > 0) == on
    return 100 * mean_where(right.float(), tested.positions >= 0)


def place_traits(
    outlier: PatchTokens,
    normal: PatchTokens,
    random: PatchTokens,
    mask: PatchMask,
    cls: Vectors,
    registers: Float[Tensor, "image register width"],
    labels: Labels,
    learnt: int,
    grid: Grid,
    device: Any = None,
) -> dict[str, Float[Tensor, "_ ..."]]:
    """What one token at these places holds, beside a normal one of the same image.

    The class is read by a classifier for each kind of token, position and pixels by least squares
    of both kinds together. Arguments are as in `helpers.measures.one_token.answers_of_tokens`;
    `random` are more tokens of the same images, of which those outside `mask` are learnt from.

    Returns:
        Of tested images that have such a place: "accuracy_KIND", right
        answers in %, mean over draws, of "outlier", "normal", "cls" and "register"; "gap", outlier
        minus normal. Of all tested images, nan without one: "error_KIND", the squared error summed
        over a patch's normalised pixels. Two columns, for `ratio_of_means`: "error_ratio", the
        pixel errors of outlier and normal; "position_unexplained_KIND", the squared error of row
        and column and that of a constant answer. Nothing where no learnt image has such a place.
    """
    whole = {"cls": cls} | ({"register": registers.mean(1)} if registers.shape[1] else {})
    answers = answers_of_tokens(outlier, normal, whole, labels, learnt, device=device)
    if not answers:
        return {}
    traits = {f"accuracy_{kind}": x.mean(0) for kind, x in answers.items()}
    traits["gap"] = traits["accuracy_outlier"] - traits["accuracy_normal"]
    learn = outlier[:learnt].beside(random[:learnt].outside(mask[:learnt]))
    tested = {"outlier": outlier[learnt:], "normal": normal[learnt:]}
    errors = regression_errors(learn, tested, grid, device, ("position", "pixels"))
    for i, kind in enumerate(tested):
        traits[f"error_{kind}"] = errors["pixels"][:, 0, i]
        traits[f"position_unexplained_{kind}"] = errors["position"][..., i]
    return traits | {"error_ratio": errors["pixels"][:, 0]}


def member_traits(
    norms: tuple[PerPatch, PerRegister],
    attention: tuple[PerPatch, PerRegister],
) -> dict[str, Shaped[Tensor, "image ..."]]:
    """Where one model has its high norms, and what its registers take over.

    From norms and [CLS]'s attention of patches and registers: "outlier_images": whether a patch
    lies above 3 x the median of all images' patches; "max_norm": the largest patch norm;
    "norm_ratio": all patch norms. With registers also "register_ratio"; "register_largest": whether
    the token of the largest norm is a register; and `register_use`.
    """
    patches, registers = norms
    traits = {
        "outlier_images": outliers(patches, PRESENT).any(1),
        "max_norm": patches.amax(1),
        "norm_ratio": patches,
    }
    if registers.shape[1]:
        traits |= {
            "register_ratio": register_ratio(registers, patches),
            "register_largest": register_first(registers, patches),
            **register_use(*reversed(attention)),
        }
    return traits


def taken_over(patches: PerPatch, registers: PerRegister) -> ImageMask:
    """Whether the registers of an image carry what its patches might.

    No patch norm lies above 3 x the median of all images' patches, and a register above 3 x the
    image's median patch.
    """
    clean = ~outliers(patches, PRESENT).any(1)
    return clean & (register_ratio(registers, patches) > LOADED)


def takeover_traits(
    norms: tuple[PerPatch, PerRegister],
    attention: tuple[PerPatch, PerRegister],
    places: PatchMask,
    activation: tuple[PerPatch, PerRegister] | None = None,
) -> dict[str, Shaped[Tensor, "image ..."]]:
    """What registers took over from the places where outliers were.

    "taken_over"; "place_attention": share of [CLS]'s attention at the places; with the `activation`
    of the unit that writes outliers "place_activation", its magnitude there, mean over the places
    of an image (nan without one), and "register_activation", the largest of a register.
    """
    traits = {"taken_over": taken_over(*norms), "place_attention": (attention[0] * places).sum(1)}
    if activation is not None:
        patches, registers = (part.abs() for part in activation)
        traits["place_activation"] = mean_where(patches, places)
        if registers.shape[1]:
            traits["register_activation"] = registers.amax(1)
    return traits


def share_of_trainings(shares: Sequence[Estimate]) -> Estimate:
    """In which share of trainings the registers took over, in more than half of the images, from
    `taken_over`: with Wilson's interval over trainings; of a single one the share of its images.
    """
    if len(shares) == 1:
        return shares[0]
    over = share(np.array([one.value > MOST_IMAGES for one in shares]))
    each = tuple(one[:3] for one in shares)
    return over._replace(step=None, over="trainings", trainings=each, per_image=None)


def steadiness(
    without: Mapping[str, PerImage], register: Mapping[str, PerImage]
) -> dict[str, PerImage]:
    """What a register does where patches are dropped, of "accuracy" in % and of the "norm_change"
    and "entropy_change" from whole images, without and with it.

    "accuracy_without"; "accuracy_gain", in points; "norm_steadiness" and "entropy_steadiness", by
    how much less these change with it, to a hundredth of a norm and a thousandth of a nat: what is
    less is rounding.
    """
    norm, entropy = (
        without[x].abs() - register[x].abs() for x in ("norm_change", "entropy_change")
    )
    return {
        "accuracy_without": without["accuracy"],
        "accuracy_gain": register["accuracy"] - without["accuracy"],
        "norm_steadiness": norm.round(decimals=2),
        "entropy_steadiness": entropy.round(decimals=3),
    }


def tail_ratio(before: PerPatch, after: PerPatch, seed: int = 0) -> Estimate:
    """The `norm_ratio` of the patch norms after over before, with 400 resamples of images."""
    pairs = torch.stack([before, after], dim=1)
    return bootstrap(pairs, lambda x: norm_ratio(x[:, 1]) / norm_ratio(x[:, 0]), 400, seed=seed)


def error_ratio(
    before: Tokens,
    after: Tokens,
    pixels: Float[Tensor, "image token output"],
    seed: int = 0,
    device: Any = None,
) -> Estimate:
    """The error of the pixels that a probe reads from tokens after over that before.

    The probe (`fit_regression`) learns from the tokens before, of the first half of the images, and
    is tested on the others.
    """
    half = len(before) // 2
    probe = fit_regression(before[:half], pixels[:half], device=device)
    errors = [squared_error(probe(x[half:]), pixels[half:]).mean(1) for x in (after, before)]
    return mean_ratio(*errors, seed)


def register_cosines(
    tokens: Mapping[str, Float[Tensor, "image count width"]],
) -> dict[str, PerImage]:
    """'register_cosine_K': cosine of the sum of K appended tokens with the single one (Table 8).

    nan where the single one, of 'tokens_1', is all but zero.
    """
    found = {}
    for name, several in tokens.items():
        if several.shape[1] > 1:
            one = tokens["tokens_1"][:, 0]
            cosine = torch.cosine_similarity(several.sum(1), one, dim=1)
            norms = one.norm(dim=1)
            cosine = cosine.masked_fill(norms <= LEAST * norms.amax(), torch.nan)
            found[name.replace("tokens_", "register_cosine_")] = cosine
    return found
