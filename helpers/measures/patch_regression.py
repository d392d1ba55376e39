"""How well least squares reads from a token where its patch stands and which colour it has (SORTS, experiment 4)."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from helpers.measures.one_token import PatchTokens
from helpers.measures.probes import fit_regression, squared_error


def coordinates(positions: Int[Tensor, "image token"], grid: tuple[int, int]) -> Float[Tensor, "image token 2"]:
    """Row and column of row-major patch indices, in grid units."""
    return torch.stack([positions // grid[1], positions % grid[1]], dim=-1).float()


def mean_colour(pixels: Float[Tensor, "image token values"]) -> Float[Tensor, "image token 3"]:
    """The mean of each colour channel over a patch, whose pixels stand channel by channel."""
    return pixels.unflatten(-1, (3, -1)).mean(-1)


def regression_errors(
    learn: PatchTokens, tested: Mapping[str, PatchTokens], grid: tuple[int, int], device: Any = None
) -> dict[str, Float[Tensor, "image kind"]]:
    """Squared errors of what linear probes, one for each target, read from tokens: "position" and "rgb".

    Args:
        learn: what the probes learn from, with pixels.
        tested: kind -> tokens of other images, with pixels; those at position -1 do not count.
        grid: (rows, columns) of the patches.
        device: where to fit.

    Returns:
        target -> the mean over the tokens of an image, one column a kind in the order of `tested`; nan without a token. Of
        "position" in squared grid units, of "rgb" in squared units of the pixels, summed over rows and columns, or channels.
    """
    errors = {}
    for name, target in (("position", lambda x: coordinates(x.positions, grid)), ("rgb", lambda x: mean_colour(x.pixels))):
        probe = fit_regression(learn.tokens, target(learn), device=device)
        found = [squared_error(probe(x.tokens), target(x)).where(x.positions >= 0, torch.nan) for x in tested.values()]
        errors[name] = torch.stack([x.nanmean(1) for x in found], dim=1)
    return errors
