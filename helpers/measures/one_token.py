"""What one token tells: of the whole image (its class), and of its own patch (position, pixels).

Linear probes learn from the first images and are tested on the others; numbers are one an image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from helpers.measures._arrays import Grid, Labels, PatchMask, PerImage, Tokens, Vectors, mean_where
from helpers.measures.probes import (
    Schedule,
    coordinates,
    fit_classifier,
    fit_position,
    fit_regression,
    nearest_position,
    position_distance,
    right_classes,
    squared_error,
)
from helpers.measures.stats import Estimate, bootstrap, ratio_of_means


@dataclass(frozen=True)
class PatchTokens:
    """Tokens of chosen patches of each image.

    Attributes:
        positions: row-major patch indices; -1 where an image has fewer, whose token does not count.
        tokens: the model's output.
        pixels: of their patches, normalised; None where they were not captured.
    """

    positions: Int[Tensor, "image token"]
    tokens: Tokens
    pixels: Float[Tensor, "image token output"] | None = None

    def __getitem__(self, index: slice | tuple[slice, slice]) -> "PatchTokens":
        """The tokens of some images, or of some of the tokens of each: `tokens[:, :3]`."""
        pixels = None if self.pixels is None else self.pixels[index]
        return PatchTokens(self.positions[index], self.tokens[index], pixels)

    def beside(self, *others: "PatchTokens") -> "PatchTokens":
        """These tokens and those of `others` of the same images."""
        parts = self, *others
        pixels = [x.pixels for x in parts]
        return PatchTokens(
            torch.cat([x.positions for x in parts], dim=1),
            torch.cat([x.tokens for x in parts], dim=1),
            None if any(x is None for x in pixels) else torch.cat(pixels, dim=1),
        )

    def outside(self, mask: PatchMask) -> "PatchTokens":
        """Without the tokens of patches in `mask`, whose position becomes -1."""
        masked = mask.gather(1, self.positions.clamp(min=0))
        return replace(self, positions=self.positions.masked_fill(masked, -1))


def answers_of_tokens(
    outlier: PatchTokens,
    normal: PatchTokens,
    whole: Mapping[str, Vectors],
    labels: Labels,
    learnt: int,
    *,
    seed: int = 0,
    **options: Any,
) -> dict[str, Float[Tensor, "draw tested"]]:
    """100 where a classifier of the first `learnt` images names another one's class from one token,
    else 0; a classifier for each kind of token and each draw, `options` as in `fit_classifier`.

    Draw s takes the s-th of an image's `outlier` tokens, the first where it has fewer, and its
    `normal` partner (`helpers.measures.norms.paired_positions`); `whole` are vectors of the whole
    image, such as [CLS]. Images without an outlier are left out, and of the tested ones those of a
    class that no learnt one has. Nothing where none of the first `learnt` images has an outlier.
    """
    labels, rows = torch.as_tensor(labels), torch.arange(len(labels))
    there = outlier.positions >= 0
    kept = there.any(1)
    if not kept[:learnt].any():
        return {}
    count = labels[:learnt][kept[:learnt]].bincount(minlength=int(labels.max()) + 1)
    kept &= count[labels] > 0
    first, labels = int(kept[:learnt].sum()), labels[kept]
    answers = {kind: [] for kind in (*whole, "normal", "outlier")}
    for draw in range(there.shape[1]):
        column = torch.where(there[:, draw], draw, 0)
        one = {"normal": normal.tokens[rows, column], "outlier": outlier.tokens[rows, column]}
        for kind, x in {**whole, **one}.items():
            learn, tested = x[kept].tensor_split([first])
            probe = fit_classifier(learn, labels[:first], seed=seed + draw, **options)
            answers[kind].append(right_classes(probe(tested), labels[first:]))
    return {kind: torch.stack(runs) for kind, runs in answers.items()}


TokensByKind = Mapping[str, PatchTokens]


@dataclass(frozen=True)
class Reading:
    """What probes read from tokens of one kind about their patches, means over an image's tokens.

    Attributes:
        top1: the position is the right one, in %.
        chance: the same for the commonest position among the training tokens of that kind.
        distance: of the position from the right one, in grid units.
        constant: the same for the position nearest to the training tokens of that kind.
        variance: of row and column about their mean over the training tokens of that kind.
        square: of the distance of the regressed row and column from the right ones.
        error: squared, summed over the normalised pixels of a patch.
    """

    top1: PerImage
    chance: PerImage
    distance: PerImage
    constant: PerImage
    variance: PerImage
    square: PerImage
    error: PerImage

    @property
    def skill(self) -> PerImage:
        """`top1` minus `chance`: tokens that never move reveal their position by their kind."""
        return self.top1 - self.chance

    @property
    def distance_skill(self) -> PerImage:
        """`constant` minus `distance`: below zero where a constant answer comes nearer."""
        return self.constant - self.distance


def read_patches(
    learn: PatchTokens,
    tested: TokensByKind,
    usual: TokensByKind,
    grid: Grid,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: Any = None,
) -> dict[str, Reading]:
    """Probes of position, coordinates and pixels, tested on several kinds of token of other images.

    The positions of `usual`, training tokens of each kind, give the constant answers. `schedule` is
    of the position probe; the regressions are in closed form.
    """
    position = fit_position(
        learn.tokens, learn.positions, grid, schedule=schedule, seed=seed, device=device
    )
    read = regression_errors(learn, tested, grid, device, ("position", "pixels"))
    readings = {}
    for i, (kind, on) in enumerate(tested.items()):
        scores, seen = position(on.tokens), usual[kind].positions[usual[kind].positions >= 0]
        true = coordinates(on.positions, grid)
        nearest = coordinates(torch.tensor(nearest_position(seen, grid)), grid)
        of_tokens = (
            100 * (scores.argmax(-1) == on.positions),
            100 * (on.positions == seen.bincount().argmax()),
            position_distance(scores, on.positions, grid),
            squared_error(nearest, true).sqrt(),
            squared_error(coordinates(seen, grid).mean(0), true),
        )
        means = [mean_where(x.float(), on.positions >= 0) for x in of_tokens]
        square, error = (x[:, 0, i].float() for x in read.values())
        readings[kind] = Reading(*means, square, error)
    return readings


def regression_errors(
    learn: PatchTokens,
    tested: TokensByKind,
    grid: Grid,
    device: Any = None,
    targets: Sequence[str] = ("position", "rgb"),
) -> dict[str, Float[Tensor, "image 2 kind"]]:
    """Squared errors of linear probes of tokens, one for each target (SORTS, experiments 4 and 5),
    and of one answer for all tokens, the mean of what is learnt from.

    Of each target the mean over the tokens of an image; nan without a token. Of "position" in
    squared grid units, of "rgb" and "pixels" in squared units of the pixels, summed over rows and
    columns, channels, or all pixels of the patch. Tokens at position -1 do not count.
    """
    errors, there = {}, learn.positions >= 0
    for name in targets:
        known = _target(name, learn, grid)
        probe = fit_regression(learn.tokens, known, mask=there, device=device)
        constant, kinds = known[there].mean(0, dtype=torch.float64), []
        for x in tested.values():
            true, answers = _target(name, x, grid), (probe(x.tokens), constant)
            of_tokens = [squared_error(answer, true) for answer in answers]
            kinds.append([mean_where(error, x.positions >= 0) for error in of_tokens])
        errors[name] = torch.stack([torch.stack(pair, dim=1) for pair in kinds], dim=-1)
    return errors


def unexplained(
    errors: Float[Tensor, "image 2 2"], seed: int = 0
) -> tuple[Estimate, Estimate, Estimate]:
    """The share of the variance that a probe leaves unexplained in tokens of two kinds.

    And their ratio. From `regression_errors`: the position of tokens far from the middle of the
    grid has a larger error to begin with.
    """
    one, two = (bootstrap(errors[..., kind], ratio_of_means, seed=seed) for kind in (0, 1))

    def ratio(rows: Float[np.ndarray, "image 2 2"]) -> float:
        return ratio_of_means(rows[..., 0]) / ratio_of_means(rows[..., 1])

    return one, two, bootstrap(errors, ratio, seed=seed)


def _target(name: str, x: PatchTokens, grid: Grid) -> Float[Tensor, "image token _"]:
    """What is to be read from tokens: "position", "pixels", or "rgb", the mean of each channel."""
    if name == "position":
        return coordinates(x.positions, grid)
    return x.pixels if name == "pixels" else x.pixels.unflatten(-1, (3, -1)).mean(-1)


def explained(rows: Float[np.ndarray, "image 2"]) -> float:
    """One minus the mean of the first column over that of the second: of squared errors R squared.

    For `bootstrap`; below zero where the first errors are larger.
    """
    return 1 - ratio_of_means(rows)
