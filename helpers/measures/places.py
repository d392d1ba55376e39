"""What a token at given places holds: of its image, the class; of its patch, where it stands and how it looks."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helpers.measures.one_token import PatchTokens, answers_of_tokens
from helpers.measures.patch_regression import constant_errors, regression_errors


def place_traits(
    outlier: PatchTokens,
    normal: PatchTokens,
    random: PatchTokens,
    mask: Bool[Tensor, "image patch"],
    cls: Float[Tensor, "image width"],
    registers: Float[Tensor, "image register width"],
    labels: Int[Any, " image"],
    learnt: int,
    grid: tuple[int, int],
    device: Any = None,
) -> dict[str, Float[Tensor, "_ ..."]]:
    """What one token at these places holds, beside a normal one of the same image, for `helpers.measures.twins.family_estimates`.

    The class is read by a classifier for each kind of token, position and pixels by least squares of both kinds together.

    Args:
        outlier, normal: tokens at the places and at as many others, pairs; with pixels.
        random: more tokens of the same images, of which those that are not at these places are learnt from.
        mask: the places.
        cls, registers: of each image; of the registers, if any, their mean is read.
        labels, learnt: as in `helpers.measures.one_token.answers_of_tokens`.

    Returns:
        Of tested images that have such a place, one row each: "accuracy_KIND", right answers in %, mean over draws, of
        "outlier", "normal", "cls" and "register"; "gap", "accuracy_outlier" minus "accuracy_normal". Of all tested images, nan
        without one: "error_KIND", the squared error summed over a patch's normalised pixels. Two columns, for `ratio_of_means`:
        "error_ratio", the pixel errors of outlier and normal; "position_unexplained_KIND", the squared error of row and column
        and that of a constant answer. Nothing where no learnt image has such a place.
    """
    whole = {"cls": cls} | ({"register": registers.mean(1)} if registers.shape[1] else {})
    answers = answers_of_tokens(outlier, normal, whole, labels, learnt, device=device)
    if not answers:
        return {}
    traits = {f"accuracy_{kind}": x.mean(0) for kind, x in answers.items()}
    traits["gap"] = traits["accuracy_outlier"] - traits["accuracy_normal"]
    learn, targets = outlier[:learnt].beside(random[:learnt].outside(mask[:learnt])), ("position", "pixels")
    tested = {"outlier": outlier[learnt:], "normal": normal[learnt:]}
    errors = regression_errors(learn, tested, grid, device, targets)
    constant = constant_errors(learn, tested, grid, targets)
    for i, kind in enumerate(tested):
        traits[f"error_{kind}"] = errors["pixels"][:, i]
        pair = [x["position"][:, i].double() for x in (errors, constant)]
        traits[f"position_unexplained_{kind}"] = torch.stack(pair, dim=1)
    return traits | {"error_ratio": errors["pixels"]}
