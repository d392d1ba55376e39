"""Whether a model has outliers, where they lie and start, and which neurons fire there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from helpers.measures._arrays import (
    Grid,
    ImageMask,
    Labels,
    Pairs,
    PatchMask,
    PatchScores,
    PerBlockPatch,
    PerImage,
    PerPatch,
    Tokens,
    Vectors,
    mean_where,
    to_numpy,
)
from helpers.measures.answers import paired_accuracy
from helpers.measures.attention import iou, top_patches
from helpers.measures.blocks import at_peak, largest_before, median_onset, over_blocks, reduction
from helpers.measures.norms import onset_block, outliers, threshold
from helpers.measures.similarity import cosine
from helpers.measures.stats import (
    Estimate,
    Estimates,
    auc_over_images,
    bootstrap,
    bootstrap_spread,
    matched_auc_over_images,
    mcnemar,
    over_images,
    position_share,
    ratio_of_means,
    share,
    share_at,
    usual_positions,
)

# The rule of all criteria that ask whether there are outliers; a percentile finds some anywhere.
PRESENT = "median:3"
FEW = 0.05  # of the images: outliers in no more of them make no model with outliers
LARGEST_RATIO = 1e6  # of a neuron that is silent elsewhere


def outlier_images(norms: PatchScores, rule: str = PRESENT) -> Estimate:
    """The share of images with an outlier by `rule`, one threshold for all images given."""
    return share(outliers(norms, rule).any(1))


def outlier_shares(norms: PatchScores, rule: str = PRESENT) -> Estimates:
    """The share of images with an outlier, by three medians, and of outlier patches, by `rule`."""
    return {
        "outlier_images": outlier_images(norms),
        "outlier_tokens": float(to_numpy(outliers(norms, rule)).mean()),
    }


def under_rule(
    rule: str,
    norms: PerBlockPatch,
    attention: PerPatch,
    similarities: Mapping[str, PerPatch],
    parts: Mapping[str, PerPatch],
) -> Estimates:
    """What the claims about outliers measure, with outliers by one rule after the last block.

    `threshold`, in medians; `early`, the share of images with an outlier after the first block;
    `outlier_images`; `outlier_tokens`, the share of all patches; `iou`, the overlap with [CLS]'s
    attention by the same rule (`as_common`), and `iou_top`, with as many of an image's most
    attended patches; `onset_depth`; for each similarity with the neighbours `auc` and
    `auc_matched`, the chance that an outlier is more similar than another patch, and than another
    one at its position; for each part ("q", "k", "v") `PART_auc`, the chance that an outlier has
    the larger norm.
    """
    last = norms[:, -1]
    found = outliers(last, rule)
    estimates: Estimates = {
        "threshold": threshold(last, rule) / last.median().item(),
        "early": outlier_images(norms[:, 0], rule),
        "outlier_images": outlier_images(last, rule),
        "outlier_tokens": found.float().mean().item(),
        "iou": over_images(iou(found, as_common(attention, last, rule)), (0, 1)),
        "iou_top": over_images(iou(found, top_patches(attention, found.sum(1))), (0, 1)),
        "onset_depth": over_images(onset_depth(norms, rule), (0, 1), counts=True),
    }
    for end, similarity in similarities.items():
        estimates[f"auc{end}"] = auc_over_images(similarity, found)
        estimates[f"auc_matched{end}"] = matched_auc_over_images(similarity, found)
    for part, own in parts.items():
        estimates[f"{part}_auc"] = auc_over_images(relative_norms(own), found)
    return estimates


def relative_norms(norms: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Norms over their median, all pooled, to four decimals: what differs by less is rounding."""
    return (norms / norms.median()).round(decimals=4)


def as_common(scores: PerPatch, norms: PerPatch, rule: str) -> PatchMask:
    """Which scores are high by the same rule as norms, or as common as these by a fixed norm."""
    if rule.startswith("fixed"):
        rule = f"percentile:{100 * (1 - outliers(norms, rule).float().mean().item())}"
    return outliers(scores, rule)


def onset_depth(norms: PerBlockPatch, rule: str) -> PerImage:
    """The first block with an outlier by `rule`, as a share of the depth; nan without one."""
    bears = torch.stack([outliers(x, rule).any(1) for x in norms.unbind(1)], dim=1)
    onset = (bears.float().argmax(1) + 1) / bears.shape[1]
    return onset.where(bears.any(1), torch.nan)


def overlapping(positions: Sequence[int], grid: Grid, other: Grid) -> list[int]:
    """The patches of the grid `other` that overlap the area of `positions` in `grid`, row-major."""
    marked = torch.zeros(grid[0] * grid[1]).index_fill(0, torch.tensor(positions), 1).view(1, *grid)
    return adaptive_max_pool2d(marked, other).flatten().nonzero()[:, 0].tolist()


def after_rolling(
    before: PatchMask,
    after: PatchMask,
    source: PatchMask,
    similarity: PerPatch,
) -> Estimates:
    """Whether outliers follow the content of rolled images or stay at their positions.

    `before` and `after` are the outliers of the unrolled and the rolled images, by one threshold;
    `source` is `before`, rolled. "auc_rolled", the chance that an outlier of the rolled images is
    more similar to its neighbours than another patch; "rolled_share", of these outliers at the most
    frequent positions of the unrolled images, as many as such an image has on average;
    "rolled_follow" and "rolled_stay", the share of a rolled image's outliers in `source` and in
    `before`.
    """
    found = after.sum(1)
    return {
        "auc_rolled": auc_over_images(similarity, after),
        "rolled_share": share_at(after, usual_positions(before)),
        "rolled_follow": over_images((after & source).sum(1) / found, (0, 1)),
        "rolled_stay": over_images((after & before).sum(1) / found, (0, 1)),
    }


class Firing(NamedTuple):
    """A neuron at outliers and at the other patches of the same images.

    Attributes:
        at_outliers, elsewhere: mean activation, mean over the images with an outlier.
        ratio: `at_outliers` over `elsewhere`, at most a million.
        overlap: IoU of the patches where it is strongest, as many as the image has outliers, with
            the outliers.
    """

    at_outliers: Estimate
    elsewhere: Estimate
    ratio: Estimate
    overlap: Estimate


def at_and_elsewhere(activation: PerPatch, outlier: PatchMask) -> Float[Tensor, "image 2"]:
    """Mean activation at the outliers and at the other patches; nan without an outlier."""
    sides = [mean_where(activation, group) for group in (outlier, ~outlier)]
    return torch.stack(sides, 1).masked_fill(~outlier.any(1)[:, None], torch.nan)


def limited_ratio(first: PerImage, second: PerImage, seed: int = 0) -> Estimate:
    """Mean of the first over mean of the second, at most a million; nan for zeros."""
    return bootstrap(torch.stack([first, second], dim=1), _limited, seed=seed)


def _limited(rows: Pairs) -> float:
    first, second = rows.mean(0)
    below = max(second, first / LARGEST_RATIO)
    return first / below if below else np.nan


def firing(activation: PerPatch, outlier: PatchMask, seed: int = 0) -> Firing:
    """How a neuron's absolute activation differs at outliers and elsewhere."""
    sides = at_and_elsewhere(activation, outlier)
    overlap = iou(top_patches(activation, outlier.sum(1)), outlier)
    ratio = limited_ratio(*sides.T, seed)
    return Firing(*map(over_images, sides.T), ratio, over_images(overlap, (0, 1)))


def emergence(norms: PerBlockPatch, attention: PerBlockPatch) -> Estimates:
    """When outliers start, and how large norms and [CLS] attention get (the medical paper, 4.1).

    "onset_block", mean over the images with an onset (`onset_block`); "max_norm" and
    "max_attention" on a patch, in the block where they are largest; "early_norm" and
    "early_attention", the largest before the median onset. "attention_lag", blocks from the largest
    step of the norm to that of the attention, over the images with an onset; "lag_of_two", the
    share of these in which it is two.
    """
    onset, depth = onset_block(norms), norms.shape[1]
    found: Estimates = {"onset_block": over_images(onset[onset >= 0], (0, depth))}
    for name, of_patches in {"norm": norms, "attention": attention}.items():
        top = of_patches.amax(-1)
        found[f"max_{name}"] = over_images(at_peak(top, top))
        found[f"early_{name}"] = largest_before(top, median_onset(onset))
    norm, step = (x.amax(-1).diff(dim=1).argmax(1) for x in (norms, attention))
    lag = (step - norm)[onset >= 0]
    found["attention_lag"] = over_images(lag, (-depth, depth))
    found["lag_of_two"] = share(lag == 2)
    return found


def unit_traits(
    activation: PerPatch,
    second: PerPatch,
    mask: PatchMask,
    outlier: Tokens,
    normal: Tokens,
    seed: int = 0,
) -> Estimates:
    """What a neuron does at outliers, and what these hold beside as many other patches.

    "neuron_activation", at outliers; "neuron_elsewhere", at the other patches; "neuron_lead", at
    outliers over that of the second neuron; "channel_share" and "channel_share_normal"
    (`largest_channel_share`); "cosine_outlier" and "cosine_normal" (`cosine_with_others`).
    """
    one, two = (mean_where(of, mask) for of in (activation, second))
    return {
        "neuron_activation": over_images(one),
        "neuron_elsewhere": over_images(mean_where(activation, ~mask)),
        "neuron_lead": bootstrap(torch.stack([one, two], dim=1), ratio_of_means, seed=seed),
        "channel_share": largest_channel_share(outlier),
        "cosine_outlier": cosine_with_others(outlier),
        "channel_share_normal": largest_channel_share(normal),
        "cosine_normal": cosine_with_others(normal),
    }


def largest_channel_share(tokens: Tokens) -> Estimate:
    """Share of a token's squared norm in its largest channel, mean over an image's tokens."""
    energy = tokens**2
    return over_images((energy.amax(-1) / energy.sum(-1)).nanmean(1), (0, 1), continuous=True)


def leading_channels(tokens: Vectors, count: int) -> list[tuple[int, float]]:
    """The channels that hold most of a token's squared norm, mean over images, with it."""
    energy = tokens**2
    shares = (energy / energy.sum(1, keepdim=True)).nanmean(0)
    order = shares.argsort(descending=True, stable=True)[:count]
    return [(int(i), float(shares[i])) for i in order]


def cosine_with_others(tokens: Tokens) -> Estimate:
    """Cosine of a token with the mean token of other images, a mean over the tokens of an image.

    Near 1 where a token says little about its image. The mean token is that of the first half of
    the images; measured are the others. Tokens of zeros do not count.
    """
    learnt, tested = tokens.tensor_split(2)
    return over_images(cosine(tested, learnt.sum((0, 1))).nanmean(1), (-1, 1), continuous=True)


USUAL = 4  # positions; a picture has as many corners


@dataclass(frozen=True)
class Placement:
    """The outliers of unchanged images, after the last block.

    Attributes:
        limit: the norm above which a patch is one; it holds for changed images, too.
        mask: which patches are outliers.
        onset: the first block with an outlier, as `onset_block` gives it.
        usual: the four positions at which most images have one; none without any.
        estimates: what `placement` says.
        curves: the mean norm after each block at the usual positions and at all others.
    """

    limit: float
    mask: PatchMask
    onset: Int[Tensor, " image"]
    usual: list[int]
    estimates: Estimates
    curves: Mapping[str, Sequence[Estimate]]


def placement(
    norms: PerBlockPatch,
    corners: Sequence[int],
    rule: str = "median:3",
    seed: int = 0,
) -> Placement:
    """Where and when a model's outliers are.

    Its estimates, of unchanged images: `outlier_images`; `outliers_per_image`; `position_share` and
    `position_share_98`, the share of the outliers at the positions where most are, by the rule and
    by the 98th percentile; `corner_share`, in the corners; `filled` and `corner_filled`, of the
    pairs of an image and one of the usual positions, or a corner, the share with an outlier; where
    there are outliers also `onset_block`, always by three medians of the block, of the images with
    one, and `onset_share`, the share of images at the commonest onset.
    """
    last = norms[:, -1]
    limit, onset = threshold(last, rule), onset_block(norms)
    mask = last > limit
    usual = usual_positions(mask, USUAL) if mask.any() else []
    others = [patch for patch in range(mask.shape[1]) if patch not in usual]
    places = {"usual positions": usual, "all others": others} if usual else {}
    curves = {name: over_blocks(norms[:, :, at].mean(2)) for name, at in places.items()}
    estimates = {
        "outlier_images": outlier_images(last),
        "outliers_per_image": over_images(mask.sum(1), (0, mask.shape[1])),
        "position_share": position_share(mask, seed=seed),
        "position_share_98": position_share(outliers(last, "percentile:98"), seed=seed),
        "corner_share": share_at(mask, corners),
    }
    if usual:
        started = onset[onset >= 0]
        estimates |= {
            "filled": filled(mask, usual),
            "corner_filled": filled(mask, corners),
            "onset_block": over_images(started, (0, norms.shape[1])),
            "onset_share": share(onset == started.bincount().argmax()),
        }
    return Placement(limit, mask, onset, usual, estimates, curves)


def filled(mask: PatchMask, positions: Sequence[int]) -> Estimate:
    """Of the pairs of an image and one of `positions`, the share with an outlier.

    An image without any counts here, and not in `share_at`, a share of the outliers there are.
    """
    return over_images(mask[:, list(positions)].float().mean(1), (0, 1))


def counts_at(mask: PatchMask, positions: Sequence[int]) -> Estimates:
    """How many outliers images have, and whether they are at `positions`, where expected: "count",
    an image; "images", the share of images with one anywhere; "share", of the outliers at
    `positions`; and `filled`.
    """
    return {
        "count": over_images(mask.sum(1), (0, mask.shape[1])),
        "images": share(mask.any(1)),
        "share": share_at(mask, positions),
        "filled": filled(mask, positions),
    }


def at_other_size(mask: PatchMask, area: Sequence[int], corners: Sequence[int]) -> Estimates:
    """`counts_at` the patches of an `area` that may have more patches than outliers, so without
    "filled"; and "corner_share", the share of the outliers in the `corners`.
    """
    counts = counts_at(mask, area)
    del counts["filled"]
    return counts | {"corner_share": share_at(mask, corners)}


def treated(
    norms: Mapping[str, PerPatch], limit: float, right: Mapping[str, PerImage]
) -> Estimates:
    """Outliers and accuracy of a model as it is ("plain", the first), and under treatments.

    `max_norm`, largest norm of an image; `images`, the share of images with an outlier, above
    `limit`; and where answers are given, 100 where right and else 0, `accuracy` in %, and of a
    treatment `loss`, the accuracy lost in points, paired, and `mcnemar_p`. `_TREATMENT` ends the
    names.
    """
    estimates: Estimates = {}
    for name, x in norms.items():
        end = "" if name == "plain" else f"_{name}"
        estimates["max_norm" + end] = over_images(x.amax(1))
        estimates["images" + end] = share((x > limit).any(1))
        if right:
            estimates["accuracy" + end] = over_images(right[name], (0, 100))
        if right and end:
            before, after = right["plain"], right[name]
            estimates["loss" + end] = over_images(before - after, (-100, 100))
            estimates["mcnemar_p" + end] = mcnemar(before > 0, after > 0)
    return estimates


def moved_estimates(
    norms: Sequence[PerBlockPatch],
    right: Sequence[ImageMask],
    labels: Labels,
    seed: int = 0,
) -> Estimates:
    """What moving register neurons does to one data set's norms and answers, before and after.

    "norm_reduction", of the largest norm (`reduction`); "max_norm_before" and "max_norm_after", in
    the block where it is largest before; "majority", the share of the most frequent class, in %;
    and `paired_accuracy` in %.
    """
    before, after = (x.amax(-1) for x in norms)
    return {
        "norm_reduction": reduction(after, before, seed=seed),
        "max_norm_before": over_images(at_peak(before, before)),
        "max_norm_after": over_images(at_peak(after, before)),
        "majority": 100 * np.bincount(to_numpy(labels)).max() / len(labels),
        **paired_accuracy(*reversed(right), 100),
    }


def across_sets(by_set: Mapping[str, Estimates], seed: int = 0) -> Estimates:
    """Of `moved_estimates` of several data sets "norm_reduction_min", that whose interval reaches
    lowest; "accuracy_spread" and "spread_p", of their changes of accuracy (`bootstrap_spread`).
    """
    least = min((own["norm_reduction"] for own in by_set.values()), key=lambda x: x.low)
    changes = [own["accuracy_change"].per_image.pieces[0] for own in by_set.values()]
    spread, p_value = bootstrap_spread(changes, seed=seed)
    return {"norm_reduction_min": least, "accuracy_spread": spread, "spread_p": p_value}
