"""What one token tells: of the whole image (its class), and of its own patch (where it stands, what it looks like).

Linear probes learn from the first images and are tested on the others. All numbers are one an image, so that what is compared can
be paired.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helpers.measures._arrays import mean_where
from helpers.measures.probes import (
    Schedule,
    coordinates,
    fit_classifier,
    fit_position,
    fit_regression,
    nearest_position,
    position_distance,
    position_top1,
    squared_error,
)
from helpers.measures.stats import Estimate, bootstrap, over_images, ratio_of_means


@dataclass(frozen=True)
class PatchTokens:
    """Tokens of chosen patches of each image.

    Attributes:
        positions: row-major patch indices; -1 where an image has fewer, and what stands there does not count.
        tokens: the model's output.
        pixels: of their patches, normalised; None where nobody asked.
    """

    positions: Int[Tensor, "image token"]
    tokens: Float[Tensor, "image token width"]
    pixels: Float[Tensor, "image token output"] | None = None

    def __getitem__(self, images: slice) -> "PatchTokens":
        return self._each(lambda x: x[images])

    def columns(self, part: slice) -> "PatchTokens":
        """Some of the tokens of each image."""
        return self._each(lambda x: x[:, part])

    def beside(self, other: "PatchTokens") -> "PatchTokens":
        """These tokens and those of `other` of the same images."""
        pixels = None if self.pixels is None or other.pixels is None else torch.cat([self.pixels, other.pixels], dim=1)
        positions, tokens = (torch.cat(x, dim=1) for x in ((self.positions, other.positions), (self.tokens, other.tokens)))
        return PatchTokens(positions, tokens, pixels)

    def outside(self, mask: Bool[Tensor, "image patch"]) -> "PatchTokens":
        """Without the tokens of patches in `mask`, whose position becomes -1."""
        masked = mask.gather(1, self.positions.clamp(min=0))
        return PatchTokens(self.positions.masked_fill(masked, -1), self.tokens, self.pixels)

    def _each(self, part) -> "PatchTokens":
        return PatchTokens(part(self.positions), part(self.tokens), None if self.pixels is None else part(self.pixels))


def held_out_answers(
    features: Float[Tensor, "image width"],
    labels: Int[Any, " image"],
    learnt: int,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: Any = None,
) -> Float[Tensor, " tested"]:
    """100 where a classifier of the first `learnt` images names the class of one of the others, else 0.

    Raises ValueError as `fit_classifier`, whose arguments these are.
    """
    labels = torch.as_tensor(labels)
    probe = fit_classifier(features[:learnt], labels[:learnt], schedule=schedule, seed=seed, device=device)
    return 100 * (probe(features[learnt:]).argmax(-1) == labels[learnt:]).float()


def head_answers(
    features: Float[Tensor, "image width"],
    head: tuple[Float[Tensor, "class read"], Float[Tensor, " class"]],
    labels: Int[Any, " image"],
) -> Float[Tensor, " image"]:
    """100 where a linear head (weight, bias) that was trained elsewhere names the class of the image, else 0.

    Raises ValueError where it reads features of another width.
    """
    weight, bias = head
    if weight.shape[1] != features.shape[1]:
        raise ValueError(f"the head reads {weight.shape[1]} features, not {features.shape[1]}; give that of this model")
    scores = features.float() @ weight.T + bias
    return 100 * (scores.argmax(-1) == torch.as_tensor(labels)).float()


def answers_of_tokens(
    outlier: PatchTokens,
    normal: PatchTokens,
    whole: Mapping[str, Float[Tensor, "image width"]],
    labels: Int[Any, " image"],
    learnt: int,
    *,
    seed: int = 0,
    **options: Any,
) -> dict[str, Float[Tensor, "draw tested"]]:
    """`held_out_answers` from one token at a time, with a classifier for each kind of token and each draw of it.

    Draw s takes the s-th outlier of each image, the first where it has fewer, and its normal partner. Images without an outlier
    are left out, and of the tested ones those of a class that no learnt one has: all kinds are tested on the same images.

    Args:
        outlier, normal: pairs, as `helpers.measures.norms.paired_positions` draws them; their number is that of the draws.
        whole: kind -> what stands for the whole image, such as [CLS]; the same in each draw.
        learnt: how many images, from the first, the classifiers learn from.
        seed: of a schedule; draw s takes `seed` + s.
        options: schedule and device, as in `held_out_answers`.

    Returns:
        kind -> answers, those of `whole` first, then "normal" and "outlier"; nothing where no learnt image has an outlier.
    """
    labels, rows = torch.as_tensor(labels), torch.arange(len(labels))
    there = outlier.positions >= 0
    kept = there.any(1)
    if not kept[:learnt].any():
        return {}
    count = labels[:learnt][kept[:learnt]].bincount(minlength=int(labels.max()) + 1)
    kept &= count[labels] > 0
    answers = {kind: [] for kind in (*whole, "normal", "outlier")}
    for draw in range(there.shape[1]):
        column = torch.where(there[:, draw], draw, 0)
        features = {**whole, "normal": normal.tokens[rows, column], "outlier": outlier.tokens[rows, column]}
        for kind, x in features.items():
            first = int(kept[:learnt].sum())
            answers[kind].append(held_out_answers(x[kept], labels[kept], first, seed=seed + draw, **options))
    return {kind: torch.stack(runs) for kind, runs in answers.items()}


@dataclass(frozen=True)
class Reading:
    """What probes read from tokens of one kind about their own patches, each a mean over the tokens of an image; nan without one.

    Attributes:
        top1: the position is the right one, in %.
        chance: the same for always naming the commonest position among the training tokens of that kind, the first of equals.
        distance: of the position from the right one, in grid units.
        constant: the same for always naming the position nearest to the training tokens of that kind (`nearest_position`).
        square: of the distance of the regressed row and column from the right ones.
        variance: the same for always naming the mean row and column of the training tokens of that kind.
        error: squared, summed over the normalised pixels of a patch.
    """

    top1: Float[Tensor, " image"]
    chance: Float[Tensor, " image"]
    distance: Float[Tensor, " image"]
    constant: Float[Tensor, " image"]
    square: Float[Tensor, " image"]
    variance: Float[Tensor, " image"]
    error: Float[Tensor, " image"]

    @property
    def skill(self) -> Float[Tensor, " image"]:
        """`top1` minus `chance`: tokens that stand still reveal their position by being of that kind."""
        return self.top1 - self.chance

    @property
    def distance_skill(self) -> Float[Tensor, " image"]:
        """`constant` minus `distance`: below zero where a constant answer comes nearer than the probe."""
        return self.constant - self.distance


def read_patches(
    learn: PatchTokens,
    tested: Mapping[str, PatchTokens],
    usual: Mapping[str, PatchTokens],
    grid: tuple[int, int],
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
    device: Any = None,
) -> dict[str, Reading]:
    """One position probe, one regression of the coordinates and one of the pixels, tested on several kinds of token.

    Args:
        learn: what all of them learn from, with pixels.
        tested: kind -> tokens of other images.
        usual: kind -> training tokens of that kind, from whose positions come the constant answers.
        grid: (rows, columns) of the patches.
        schedule, seed, device: of the position probe as in `fit_position`; the regressions are in closed form.

    Raises ValueError as `fit_position` and `fit_regression`.
    """
    position = fit_position(learn.tokens, learn.positions, grid, schedule=schedule, seed=seed, device=device)
    there = learn.positions >= 0
    pixels = fit_regression(learn.tokens, learn.pixels, mask=there, device=device)
    place = fit_regression(learn.tokens, coordinates(learn.positions, grid), mask=there, device=device)
    readings = {}
    for kind, on in tested.items():
        scores, seen = position(on.tokens), usual[kind].positions[usual[kind].positions >= 0]
        true = coordinates(on.positions, grid)
        nearest, mean = (
            x.expand_as(true)
            for x in (coordinates(torch.tensor(nearest_position(seen, grid)), grid), coordinates(seen, grid).mean(0))
        )
        of_tokens = (
            100 * position_top1(scores, on.positions),
            100 * (on.positions == seen.bincount().argmax()),
            position_distance(scores, on.positions, grid),
            squared_error(true, nearest).sqrt(),
            squared_error(place(on.tokens), true),
            squared_error(true, mean),
            squared_error(pixels(on.tokens), on.pixels),
        )
        readings[kind] = Reading(*(mean_where(x.float(), on.positions >= 0) for x in of_tokens))
    return readings


def read_pairs(
    outlier: PatchTokens,
    normal: PatchTokens,
    random: PatchTokens,
    mask: Bool[Tensor, "image patch"],
    learnt: int,
    grid: tuple[int, int],
    **how: Any,
) -> dict[str, dict[str, Reading]]:
    """`read_patches` of outliers and of normal patches by probes that learn from both, and by probes of their own.

    Args:
        outlier, normal: pairs of tokens; those of the images after the first `learnt` are tested.
        random: other tokens of the same images; those of them that are normal are learnt from.
        mask: which patches are outliers.
        how: schedule, seed and device, as in `read_patches`.

    Returns:
        '' for both together and '_own' -> 'outlier' and 'normal' -> reading; nothing where no learnt image has an outlier.
    """
    if not mask[:learnt].any():
        return {}
    on = {"outlier": outlier[learnt:], "normal": normal[learnt:]}
    learn = {"outlier": outlier[:learnt], "normal": random[:learnt].outside(mask[:learnt])}
    both = learn["outlier"].beside(learn["normal"])
    own = [read_patches(learn[kind], {kind: on[kind]}, learn, grid, **how) for kind in on]
    return {"": read_patches(both, on, learn, grid, **how), "_own": own[0] | own[1]}


def reading_estimates(readings: Mapping[str, Reading], seed: int = 0) -> dict[str, Estimate]:
    """The means over images of each kind's `Reading`, and gaps between "normal" and "outlier", positive where that tells less.

    "r2_KIND" is the share of the variance of the coordinates that their regression explains, below zero where the mean is
    better; `seed` is that of its interval. Raises KeyError without these two kinds.
    """
    estimates = {}
    for kind, r in readings.items():
        estimates |= {
            f"top1_{kind}": over_images(r.top1, (0, 100)),
            f"skill_{kind}": over_images(r.skill, (-100, 100)),
            f"distance_{kind}": over_images(r.distance),
            f"distance_skill_{kind}": over_images(r.distance_skill),
            f"r2_{kind}": bootstrap(torch.stack([r.square, r.variance], dim=1), _explained, seed=seed),
            f"error_{kind}": over_images(r.error),
        }
    normal, outlier = readings["normal"], readings["outlier"]
    return estimates | {
        "top1_gap": over_images(normal.top1 - outlier.top1, (-100, 100)),
        "skill_gap": over_images(normal.skill - outlier.skill, (-200, 200)),
        "distance_gap": over_images(outlier.distance - normal.distance),
        "distance_skill_gap": over_images(normal.distance_skill - outlier.distance_skill),
    }


def error_ratio(readings: Mapping[str, Reading], seed: int = 0) -> Estimate:
    """Pixel error of "outlier" over that of "normal" tokens, paired over images."""
    errors = torch.stack([readings[kind].error for kind in ("outlier", "normal")], dim=1)
    return bootstrap(errors, ratio_of_means, seed=seed)


def _explained(rows: np.ndarray) -> float:
    """One minus the mean of the first column over that of the second."""
    return 1 - ratio_of_means(rows)
