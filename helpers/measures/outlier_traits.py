"""Where a model's outliers start and stand, how they compare in other maps, and what they hold."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from helpers.measures._arrays import mean_where
from helpers.measures.norms import outliers
from helpers.measures.similarity import cosine
from helpers.measures.stats import Estimate, bootstrap, over_images, ratio_of_means


def relative_norms(norms: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Norms over their median, all pooled, to four decimals: norms that differ by less differ by rounding, and are equal."""
    return (norms / norms.median()).round(decimals=4)


def onset_ratio(
    norms: Float[Tensor, "image block patch"], parts: Float[Tensor, "image block patch"], onset: Int[Tensor, " image"]
) -> Float[Tensor, " image"]:
    """How far the token with which outliers start stands out in the queries, keys or values of the block that reads it first.

    The norm of its part over that of the median patch, in the block after the onset, or in the last where there is none after.

    Args:
        norms: of the patches after each block; the token is that of the largest norm after the onset block.
        parts: of the queries, keys or values of each block.
        onset: first block with an outlier, as `helpers.measures.norms.onset_block` gives it; -1, and a ratio of nan, without.
    """
    rows, reader = torch.arange(len(norms)), (onset + 1).clamp(max=norms.shape[1] - 1)
    token, read = norms[rows, onset].argmax(1), parts[rows, reader]
    ratio = read[rows, token] / read.median(1).values
    return ratio.where(onset >= 0, torch.nan)


def onset_depth(norms: Float[Tensor, "image block patch"], rule: str) -> Float[Tensor, " image"]:
    """The first block with an outlier by `rule`, put to the norms of each block, as a share of the depth; nan without an outlier.

    1 is the last block.
    """
    bears = torch.stack([outliers(x, rule).any(1) for x in norms.unbind(1)], dim=1)
    onset = (bears.float().argmax(1) + 1) / bears.shape[1]
    return onset.where(bears.any(1), torch.nan)


def as_common(
    scores: Float[Tensor, "image patch"], norms: Float[Tensor, "image patch"], rule: str
) -> Bool[Tensor, "image patch"]:
    """Which scores stand out as norms do by `rule`: by the same rule, or where it is a fixed norm, which means nothing for
    scores, as large a share of them as of the norms."""
    if rule.startswith("fixed"):
        rule = f"percentile:{100 * (1 - outliers(norms, rule).float().mean().item())}"
    return outliers(scores, rule)


def overlapping(positions: Sequence[int], grid: tuple[int, int], other: tuple[int, int]) -> list[int]:
    """The patches of the grid `other` of a picture that overlap the area of `positions` of its `grid`.

    Grids are (rows, columns), patches row-major indices.
    """
    marked = torch.zeros(grid[0] * grid[1]).index_fill(0, torch.tensor(positions), 1).view(1, *grid)
    return adaptive_max_pool2d(marked, other).flatten().nonzero()[:, 0].tolist()


def largest_channel_share(tokens: Float[Tensor, "image token width"]) -> Estimate:
    """Share of a token's squared norm that is in its largest channel, a mean over the tokens of an image. Tokens of zeros do not
    count."""
    energy = tokens**2
    return over_images((energy.amax(-1) / energy.sum(-1)).nanmean(1), (0, 1), continuous=True)


def leading_channels(tokens: Float[Tensor, "image width"], count: int) -> list[tuple[int, float]]:
    """The channels that hold most of a token's squared norm, a mean over images: index and share, the largest first, and of equal
    ones the first."""
    energy = tokens**2
    shares = (energy / energy.sum(1, keepdim=True)).nanmean(0)
    order = shares.argsort(descending=True, stable=True)[:count]
    return [(int(i), float(shares[i])) for i in order]


def cosine_with_others(tokens: Float[Tensor, "image token width"]) -> Estimate:
    """Cosine of a token with the mean one of other images, a mean over the tokens of an image: near 1 where a token says little
    about its image.

    The mean token is that of the first half of the images; measured are the others. Tokens of zeros do not count.
    """
    learnt, tested = tokens.tensor_split(2)
    return over_images(cosine(tested, learnt.sum((0, 1))).nanmean(1), (-1, 1), continuous=True)


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
        "activation", at outliers; "elsewhere", at the other patches; "lead", at outliers over that of the second neuron.
    """
    one, two, rest = (mean_where(*at) for at in ((activation, mask), (second, mask), (activation, ~mask)))
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
        "neuron_activation", "neuron_elsewhere", "neuron_lead": of `activity_at`; "channel_share" and "channel_share_normal": of
        `largest_channel_share`; "cosine_outlier" and "cosine_normal": of `cosine_with_others`.
    """
    activity = {f"neuron_{name}": x for name, x in activity_at(activation, second, mask, seed).items()}
    return activity | {
        "channel_share": largest_channel_share(outlier),
        "cosine_outlier": cosine_with_others(outlier),
        "channel_share_normal": largest_channel_share(normal),
        "cosine_normal": cosine_with_others(normal),
    }
