"""Whether a model has outliers, where they start, what they hold, and which neurons fire there."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from helpers.measures._arrays import Array, like, mean_where, to_numpy
from helpers.measures.attention import iou, top_patches
from helpers.measures.norms import outliers
from helpers.measures.similarity import cosine
from helpers.measures.stats import (
    Estimate,
    auc_over_images,
    bootstrap,
    matched_auc_over_images,
    over_images,
    ratio_of_means,
    share,
    share_at,
    usual_positions,
)

# The rule of all criteria that ask whether there are outliers; a percentile finds some anywhere.
PRESENT = "median:3"
LARGEST_RATIO = 1e6  # of a neuron that is silent elsewhere


def outlier_images(norms: Float[Array, "image patch"], rule: str = PRESENT) -> Estimate:
    """The share of images with at least one outlier, with its interval.

    Args:
        norms: patch norms of one model, after one block.
        rule: as in `helpers.measures.norms.threshold`, one threshold for all images given.

    Raises:
        ValueError: another rule, or no image.
    """
    return share(outliers(norms, rule).any(1))


def outlier_shares(
    norms: Float[Array, "image patch"], rule: str = PRESENT
) -> dict[str, Estimate | float]:
    """The share of images with an outlier, and the share of patches that are outliers.

    Returns:
        "outlier_images", by three medians whatever the rule; "outlier_tokens", by `rule`.

    Raises:
        ValueError: as `outlier_images`.
    """
    return {
        "outlier_images": outlier_images(norms),
        "outlier_tokens": float(to_numpy(outliers(norms, rule)).mean()),
    }


def under_rule(
    rule: str,
    norms: Float[Tensor, "image block patch"],
    attention: Float[Tensor, "image patch"],
    similarities: Mapping[str, Float[Tensor, "image patch"]],
    parts: Mapping[str, Float[Tensor, "image patch"]],
) -> dict[str, Estimate | float]:
    """What the claims about outliers measure, with outliers by one rule after the last block.

    Args:
        rule: as in `helpers.measures.norms.threshold`.
        norms: of the patches after each block.
        attention: of [CLS] on the patches, in the last block.
        similarities: end of a name -> similarity of the patches with their neighbours.
        parts: "q", "k" or "v" -> norms of the patches' queries, keys or values in the last block.

    Returns:
        `outlier_images`; `outlier_tokens`, the share of all patches; `iou`, the overlap with the
        attention artifacts by the same rule (`as_common`), and `iou_top`, with as many of an
        image's most attended patches; `onset_depth`, the first block with an outlier by the rule as
        a share of the depth; for each similarity `auc` and `auc_matched`, the chance that an
        outlier is more similar than another patch, and than another one at its position; for each
        part `PART_auc`, the chance that an outlier has the larger norm.
    """
    last = norms[:, -1]
    found = outliers(last, rule)
    estimates: dict[str, Estimate | float] = {
        "outlier_images": outlier_images(last, rule),
        "outlier_tokens": found.float().mean().item(),
        "iou": over_images(iou(found, as_common(attention, last, rule)), (0, 1)),
        "iou_top": over_images(iou(found, top_patches(attention, found.sum(1))), (0, 1)),
        "onset_depth": over_images(onset_depth(norms, rule), (0, 1), continuous=True),
    }
    for end, similarity in similarities.items():
        estimates[f"auc{end}"] = auc_over_images(similarity, found)
        estimates[f"auc_matched{end}"] = matched_auc_over_images(similarity, found)
    for part, own in parts.items():
        estimates[f"{part}_auc"] = auc_over_images(relative_norms(own), found)
    return estimates


def relative_norms(norms: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Norms over their median, all pooled, to four decimals.

    Norms that differ by less differ by rounding, and are equal.
    """
    return (norms / norms.median()).round(decimals=4)


def as_common(
    scores: Float[Tensor, "image patch"], norms: Float[Tensor, "image patch"], rule: str
) -> Bool[Tensor, "image patch"]:
    """Which scores are high by the same rule as norms.

    A fixed norm means nothing for scores: of these, as large a share is taken as of the norms.
    """
    if rule.startswith("fixed"):
        rule = f"percentile:{100 * (1 - outliers(norms, rule).float().mean().item())}"
    return outliers(scores, rule)


def onset_depth(norms: Float[Tensor, "image block patch"], rule: str) -> Float[Tensor, " image"]:
    """The first block with an outlier by `rule`, applied block by block, as a share of the depth.

    1 is the last block; nan stands for an image without an outlier.
    """
    bears = torch.stack([outliers(x, rule).any(1) for x in norms.unbind(1)], dim=1)
    onset = (bears.float().argmax(1) + 1) / bears.shape[1]
    return onset.where(bears.any(1), torch.nan)


def onset_ratio(
    norms: Float[Tensor, "image block patch"],
    parts: Float[Tensor, "image block patch"],
    onset: Int[Tensor, " image"],
) -> Float[Tensor, " image"]:
    """The first outlier's query, key or value norm over the median patch's, where it is read first.

    That is the block after the onset, or the last where there is none after.

    Args:
        norms: of the patches after each block; the token is that of the highest norm after the
            onset block.
        parts: norms of the queries, keys or values of each block.
        onset: first block with an outlier, as `helpers.measures.norms.onset_block` gives it; -1,
            and a ratio of nan, without.
    """
    rows, reader = torch.arange(len(norms)), (onset + 1).clamp(max=norms.shape[1] - 1)
    token, read = norms[rows, onset].argmax(1), parts[rows, reader]
    ratio = read[rows, token] / read.median(1).values
    return ratio.where(onset >= 0, torch.nan)


def overlapping(
    positions: Sequence[int], grid: tuple[int, int], other: tuple[int, int]
) -> list[int]:
    """The patches of the grid `other` that overlap the area of `positions` in `grid`.

    Args:
        positions: row-major patch indices, as those returned.
        grid: (rows, columns) of the same image, as `other`.
    """
    marked = torch.zeros(grid[0] * grid[1]).index_fill(0, torch.tensor(positions), 1).view(1, *grid)
    return adaptive_max_pool2d(marked, other).flatten().nonzero()[:, 0].tolist()


def after_rolling(
    before: Bool[Tensor, "image patch"],
    after: Bool[Tensor, "image patch"],
    source: Bool[Tensor, "image patch"],
    similarity: Float[Tensor, "image patch"],
) -> dict[str, Estimate]:
    """Whether outliers follow the content of rolled images or stay at their positions.

    The images are those of `helpers.interventions.rolled_content`.

    Args:
        before, after: which patches are outliers in the unrolled and in the rolled images, by one
            threshold.
        source: which patches of the rolled images show what an outlier of the unrolled ones showed:
            `before`, rolled.
        similarity: of the rolled images' patches with their neighbours.

    Returns:
        "auc_rolled", the chance that an outlier of the rolled images is more similar than another
        patch; "rolled_share", of these outliers at the most frequent positions of the unrolled
        images, as many as such an image has outliers on average (rounded, at least one);
        "rolled_follow" and "rolled_stay", the share of a rolled image's outliers in `source` and in
        `before`, a mean over the images that still have one. A patch that is in both counts for
        both.
    """
    count = max(1, round(before.sum(1).double().mean().item()))
    found = after.sum(1)
    return {
        "auc_rolled": auc_over_images(similarity, after),
        "rolled_share": share_at(after, usual_positions(before, count)),
        "rolled_follow": over_images((after & source).sum(1) / found, (0, 1)),
        "rolled_stay": over_images((after & before).sum(1) / found, (0, 1)),
    }


def size_slope(
    sizes: Sequence[float], per_image: Float[Array, "image model"]
) -> Float[Array, " image"]:
    """By how much a quantity of an image rises when a model has ten times the size.

    The slope of the least-squares line through the models of a family, against the logarithm of
    their sizes. Its mean over images is the slope of the means.

    Args:
        sizes: parameters of each model.
        per_image: the quantity in each model, a column a model.

    Raises:
        ValueError: all models have one size, or there are more or fewer sizes than models.
    """
    if len(set(sizes)) < 2:
        given = ", ".join(f"{size:g}" for size in sizes)
        raise ValueError(f"no trend over the sizes {given}; give models of at least two sizes")
    values = to_numpy(per_image)
    if values.shape[1] != len(sizes):
        raise ValueError(f"{len(sizes)} sizes for {values.shape[1]} models; give one for each")
    away = np.log10(sizes) - np.log10(sizes).mean()
    return like(values @ (away / (away @ away)), per_image)


def over_larger(
    outliers: tuple[Bool[Tensor, "image _"], Bool[Tensor, "image _"]],
    norms: tuple[Float[Tensor, "image _"], Float[Tensor, "image _"]],
    seed: int = 0,
) -> dict[str, Estimate]:
    """A smaller model against a larger one on the same images, paired.

    After Fig. 4 of the reproduction of Darcet et al.

    Args:
        outliers: which patches are outliers in the smaller and in the larger model, by the same
            rule; their grids may differ.
        norms: their patch norms, taken at the same place.
        seed: of the bootstrap over images.

    Returns:
        "tokens_over_larger": the share of patches that are outliers in the smaller model minus that
        in the larger one, in points; "norm_over_larger": mean patch norm of the smaller model over
        that of the larger one.
    """
    smaller, larger = (100 * x.double().mean(1) for x in outliers)
    means = torch.stack([x.double().mean(1) for x in norms], dim=1)
    return {
        "tokens_over_larger": over_images(smaller - larger, (-100, 100), continuous=True),
        "norm_over_larger": bootstrap(means, ratio_of_means, seed=seed),
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


def at_and_elsewhere(
    activation: Float[Tensor, "image patch"], outlier: Bool[Tensor, "image patch"]
) -> Float[Tensor, "image 2"]:
    """Mean activation at the outliers and at the other patches.

    Both are nan for an image without an outlier.
    """
    sides = [(activation * group).sum(1) / group.sum(1) for group in (outlier, ~outlier)]
    return torch.stack(sides, 1).masked_fill(~outlier.any(1)[:, None], torch.nan)


def strongest(
    activation: Float[Tensor, "image patch"], outlier: Bool[Tensor, "image patch"]
) -> Bool[Tensor, "image patch"]:
    """The patches where it is largest, as many as the image has outliers.

    Of equal ones the first.
    """
    ranks = activation.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    return ranks < outlier.sum(1, keepdim=True)


def limited_ratio(rows: Float[Tensor, "image 2"], seed: int = 0) -> Estimate:
    """Mean of the first column over mean of the second, at most a million, by `bootstrap`.

    It is nan where both are zero.
    """

    def ratio(rows: Float[np.ndarray, "image 2"]) -> float:
        first, second = rows.mean(0)
        below = max(second, first / LARGEST_RATIO)
        return first / below if below else np.nan

    return bootstrap(rows, ratio, seed=seed)


def firing(
    activation: Float[Tensor, "image patch"], outlier: Bool[Tensor, "image patch"], seed: int = 0
) -> Firing:
    """How a neuron fires at outliers and elsewhere.

    Args:
        activation: absolute, of one neuron.
        outlier: which patches are outliers.
        seed: of the ratio's bootstrap.
    """
    sides = at_and_elsewhere(activation, outlier)
    overlap = over_images(iou(strongest(activation, outlier), outlier), (0, 1))
    return Firing(*map(over_images, sides.T), limited_ratio(sides, seed), overlap)


def runner_up(
    second: Float[Tensor, "image patch"],
    first: Float[Tensor, "image patch"],
    outlier: Bool[Tensor, "image patch"],
    seed: int = 0,
) -> Estimate:
    """Activation of the second neuron at outliers over that of the first, by `limited_ratio`."""
    sides = [at_and_elsewhere(activation, outlier)[:, 0] for activation in (second, first)]
    return limited_ratio(torch.stack(sides, 1), seed)


def activity_at(
    activation: Float[Tensor, "image patch"],
    second: Float[Tensor, "image patch"],
    mask: Bool[Tensor, "image patch"],
    seed: int = 0,
) -> dict[str, Estimate]:
    """What a neuron does at outliers, each a mean over the patches of an image.

    Args:
        activation, second: of the neuron, and of the one it is compared with.
        mask: which patches are outliers.
        seed: of the interval of "lead".

    Returns:
        "activation", at outliers; "elsewhere", at the other patches; "lead", at outliers over that
        of the second neuron.
    """
    one, two, rest = (
        mean_where(*at) for at in ((activation, mask), (second, mask), (activation, ~mask))
    )
    lead = bootstrap(torch.stack([one, two], dim=1), ratio_of_means, seed=seed)
    return {"activation": over_images(one), "elsewhere": over_images(rest), "lead": lead}


def unit_traits(
    activation: Float[Tensor, "image patch"],
    second: Float[Tensor, "image patch"],
    mask: Bool[Tensor, "image patch"],
    outlier: Float[Tensor, "image token width"],
    normal: Float[Tensor, "image token width"],
    seed: int = 0,
) -> dict[str, Estimate]:
    """What a neuron does at outliers, and what these hold beside as many other patches.

    Args:
        activation, second, mask, seed: as in `activity_at`.
        outlier, normal: tokens of outliers, and of other patches of the same images.

    Returns:
        "neuron_activation", "neuron_elsewhere", "neuron_lead": of `activity_at`; "channel_share"
        and "channel_share_normal": of `largest_channel_share`; "cosine_outlier" and
        "cosine_normal": of `cosine_with_others`.
    """
    activity = activity_at(activation, second, mask, seed)
    return {f"neuron_{name}": x for name, x in activity.items()} | {
        "channel_share": largest_channel_share(outlier),
        "cosine_outlier": cosine_with_others(outlier),
        "channel_share_normal": largest_channel_share(normal),
        "cosine_normal": cosine_with_others(normal),
    }


def largest_channel_share(tokens: Float[Tensor, "image token width"]) -> Estimate:
    """Share of a token's squared norm that is in its largest channel.

    A mean over the tokens of an image; tokens of zeros do not count.
    """
    energy = tokens**2
    return over_images((energy.amax(-1) / energy.sum(-1)).nanmean(1), (0, 1), continuous=True)


def leading_channels(tokens: Float[Tensor, "image width"], count: int) -> list[tuple[int, float]]:
    """The channels that hold most of a token's squared norm, a mean over images.

    Returns:
        Index and share, the largest first, and of equal ones the first.
    """
    energy = tokens**2
    shares = (energy / energy.sum(1, keepdim=True)).nanmean(0)
    order = shares.argsort(descending=True, stable=True)[:count]
    return [(int(i), float(shares[i])) for i in order]


def cosine_with_others(tokens: Float[Tensor, "image token width"]) -> Estimate:
    """Cosine of a token with the mean token of other images, a mean over the tokens of an image.

    It is near 1 where a token says little about its image. The mean token is that of the first half
    of the images; measured are the others. Tokens of zeros do not count.
    """
    learnt, tested = tokens.tensor_split(2)
    return over_images(cosine(tested, learnt.sum((0, 1))).nanmean(1), (-1, 1), continuous=True)
