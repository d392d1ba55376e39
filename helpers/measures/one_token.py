"""What one token tells: of the whole image (its class), and of its own patch (where it stands, what it looks like).

Linear probes learn from the first images and are tested on the others. All numbers are one an image, so that what is compared can
be paired.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helpers.measures.probes import (
    Schedule,
    fit_classifier,
    fit_position,
    fit_regression,
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
        kind -> answers, those of `whole` first, then "normal" and "outlier".
    """
    labels, rows = torch.as_tensor(labels), torch.arange(len(labels))
    there = outlier.positions >= 0
    kept = there.any(1)
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
        error: squared, summed over the normalised pixels of a patch.
    """

    top1: Float[Tensor, " image"]
    chance: Float[Tensor, " image"]
    distance: Float[Tensor, " image"]
    error: Float[Tensor, " image"]

    @property
    def skill(self) -> Float[Tensor, " image"]:
        """`top1` minus `chance`: tokens that stand still reveal their position by being of that kind."""
        return self.top1 - self.chance


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
    """One position probe and one pixel probe, tested on several kinds of token.

    Args:
        learn: what both probes learn from, with pixels.
        tested: kind -> tokens of other images.
        usual: kind -> training tokens of that kind, which have the commonest position.
        grid: (rows, columns) of the patches.
        schedule, seed, device: of the position probe as in `fit_position`; the pixels are a regression in closed form.

    Raises ValueError as `fit_position` and `fit_regression`.
    """
    position = fit_position(learn.tokens, learn.positions, grid, schedule=schedule, seed=seed, device=device)
    pixels = fit_regression(learn.tokens, learn.pixels, mask=learn.positions >= 0, device=device)
    readings = {}
    for kind, on in tested.items():
        scores, seen = position(on.tokens), usual[kind].positions
        commonest = seen[seen >= 0].bincount().argmax()
        readings[kind] = Reading(
            _of_image(100 * position_top1(scores, on.positions), on.positions),
            _of_image(100 * (on.positions == commonest), on.positions),
            _of_image(position_distance(scores, on.positions, grid), on.positions),
            _of_image(squared_error(pixels(on.tokens), on.pixels), on.positions),
        )
    return readings


def reading_estimates(readings: Mapping[str, Reading]) -> dict[str, Estimate]:
    """The means over images of each kind's `Reading`, and gaps between "normal" and "outlier", positive where that tells less.

    Raises KeyError without these two kinds.
    """
    estimates = {}
    for kind, r in readings.items():
        estimates |= {
            f"top1_{kind}": over_images(r.top1, (0, 100)),
            f"skill_{kind}": over_images(r.skill, (-100, 100)),
            f"distance_{kind}": over_images(r.distance),
            f"error_{kind}": over_images(r.error),
        }
    normal, outlier = readings["normal"], readings["outlier"]
    return estimates | {
        "top1_gap": over_images(normal.top1 - outlier.top1, (-100, 100)),
        "skill_gap": over_images(normal.skill - outlier.skill, (-200, 200)),
        "distance_gap": over_images(outlier.distance - normal.distance),
    }


def error_ratio(readings: Mapping[str, Reading], seed: int = 0) -> Estimate:
    """Pixel error of "outlier" over that of "normal" tokens, paired over images."""
    errors = torch.stack([readings[kind].error for kind in ("outlier", "normal")], dim=1)
    return bootstrap(errors, ratio_of_means, seed=seed)


def _of_image(x: Tensor, positions: Tensor) -> Float[Tensor, " image"]:
    """Mean over the tokens of an image, nan where it has none."""
    return x.float().where(positions >= 0, torch.nan).nanmean(-1)
