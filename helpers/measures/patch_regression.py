"""What least squares reads from a token: where its patch stands, its colour, its pixels (SORTS, experiments 4 and 5)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from helpers.measures._arrays import mean_where
from helpers.measures.one_token import PatchTokens
from helpers.measures.probes import coordinates, fit_regression, squared_error
from helpers.measures.stats import Estimate, bootstrap, over_images, ratio_of_means


def mean_colour(pixels: Float[Tensor, "image token values"]) -> Float[Tensor, "image token 3"]:
    """The mean of each colour channel over a patch, whose pixels stand channel by channel."""
    return pixels.unflatten(-1, (3, -1)).mean(-1)


def regression_errors(
    learn: PatchTokens,
    tested: Mapping[str, PatchTokens],
    grid: tuple[int, int],
    device: Any = None,
    targets: Sequence[str] = ("position", "rgb"),
) -> dict[str, Float[Tensor, "image kind"]]:
    """Squared errors of what linear probes, one for each target, read from tokens: "position", "rgb" or "pixels".

    Args:
        learn: what the probes learn from, with pixels.
        tested: kind -> tokens of other images, with pixels; those at position -1 do not count, here and in `learn`.
        grid: (rows, columns) of the patches.
        device: where to fit.
        targets: which of them.

    Returns:
        target -> the mean over the tokens of an image, one column a kind in the order of `tested`; nan without a token. Of
        "position" in squared grid units, of "rgb" and "pixels" in squared units of the pixels, summed over rows and columns,
        channels, or all pixels of the patch.
    """
    errors = {}
    for name, target in _targets(grid, targets).items():
        probe = fit_regression(learn.tokens, target(learn), mask=learn.positions >= 0, device=device)
        errors[name] = _mean_errors([probe(x.tokens) for x in tested.values()], target, tested)
    return errors


def constant_errors(
    learn: PatchTokens,
    tested: Mapping[str, PatchTokens],
    grid: tuple[int, int],
    targets: Sequence[str] = ("position", "rgb"),
) -> dict[str, Float[Tensor, "image kind"]]:
    """The errors of one answer for all tokens, the mean of what is learnt from; all else as in `regression_errors`."""
    errors = {}
    for name, target in _targets(grid, targets).items():
        mean = target(learn)[learn.positions >= 0].mean(0, dtype=torch.float64)
        errors[name] = _mean_errors([mean.expand_as(target(x)) for x in tested.values()], target, tested)
    return errors


def unexplained(
    errors: Float[Tensor, "image 2"], constant: Float[Tensor, "image 2"], seed: int = 0
) -> tuple[Estimate, Estimate, Estimate]:
    """The share of the variance that a probe leaves unexplained in tokens of two kinds, and that of the first over the second.

    A mean error over that of a constant answer. The position of tokens far from the middle of the grid has a larger error to
    begin with, which the ratio of two errors takes for lost information and this does not.

    Args:
        errors, constant: from `regression_errors` and `constant_errors`; nan without a token.
        seed: of the bootstrap over images.
    """
    rows = torch.stack([errors.double(), constant.double()], dim=1)
    ratio = bootstrap(rows, lambda x: ratio_of_means(x[..., 0]) / ratio_of_means(x[..., 1]), seed=seed)
    return *(bootstrap(rows[..., kind], ratio_of_means, seed=seed) for kind in (0, 1)), ratio


def read_shares(
    learn: PatchTokens, tested: Mapping[str, PatchTokens], grid: tuple[int, int], seed: int = 0, device: Any = None
) -> dict[str, Estimate]:
    """How much linear probes read from tokens, in per cent (SORTS, Table 5, which does not define its own).

    Args:
        learn, tested, grid, device: as in `regression_errors`.
        seed: of the bootstrap over images.

    Returns:
        position_KIND: tokens whose row and column are right when rounded, mean over images; rgb_KIND: the share of the variance
        of the mean colour, around the mean of what is learnt from, that the probe explains (R squared); below 0 where the probe
        is worse than that mean.
    """
    probe = fit_regression(learn.tokens, coordinates(learn.positions, grid), device=device)
    errors, constant = (of(learn, tested, grid, *more)["rgb"] for of, *more in ((regression_errors, device), (constant_errors,)))
    shares = {}
    for i, (kind, x) in enumerate(tested.items()):
        right = (probe(x.tokens).round() == coordinates(x.positions, grid).to(x.tokens.device)).all(-1)
        shares[f"position_{kind}"] = over_images(mean_where(100 * right.float(), x.positions >= 0), (0, 100), continuous=True)
        rows = torch.stack([errors[:, i].double(), constant[:, i].double()], dim=1)
        shares[f"rgb_{kind}"] = bootstrap(rows, lambda pair: 100 * (1 - ratio_of_means(pair)), seed=seed)
    return shares


def pixel_errors(
    changed: Float[Tensor, "image token width"],
    plain: Float[Tensor, "image token width"],
    pixels: Float[Tensor, "image token values"],
    device: Any = None,
) -> Float[Tensor, "half 2"]:
    """What a linear probe misses of the pixels of patches in the tokens of a changed model, and in those of the model as it is.

    It learns from the plain tokens of the first half of the images. The squared errors of the others, summed over the pixels of a
    patch and averaged over the tokens of an image, are the two columns; `stats.ratio_of_means` compares them.

    Args:
        device: where to fit.
    """
    half = len(pixels) // 2
    probe = fit_regression(plain[:half], pixels[:half], device=device)
    errors = [squared_error(probe(x[half:]), pixels[half:]).mean(-1) for x in (changed, plain)]
    return torch.stack(errors, dim=1)


def _targets(grid: tuple[int, int], names: Sequence[str]) -> dict[str, Callable[[PatchTokens], Tensor]]:
    """What is read from tokens."""
    known = {
        "position": lambda x: coordinates(x.positions, grid),
        "rgb": lambda x: mean_colour(x.pixels),
        "pixels": lambda x: x.pixels,
    }
    return {name: known[name] for name in names}


def _mean_errors(
    answers: Sequence[Tensor], target: Callable[[PatchTokens], Tensor], tested: Mapping[str, PatchTokens]
) -> Float[Tensor, "image kind"]:
    pairs = zip(answers, tested.values(), strict=True)
    errors = [mean_where(squared_error(answer, target(x)), x.positions >= 0) for answer, x in pairs]
    return torch.stack(errors, dim=1)
