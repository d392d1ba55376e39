"""Whether outliers are at fixed positions in any image, and what a model loses without them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from helpers.measures.answers import points
from helpers.measures.blocks import over_blocks
from helpers.measures.norms import onset_block, outliers, threshold
from helpers.measures.outliers import outlier_images
from helpers.measures.stats import (
    Estimate,
    mcnemar,
    over_images,
    position_share,
    share,
    share_at,
    usual_positions,
)

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
    """

    limit: float
    mask: Bool[Tensor, "image patch"]
    onset: Int[Tensor, " image"]
    usual: list[int]
    estimates: dict[str, Estimate]


def placement(
    norms: Float[Tensor, "image block patch"],
    corners: Sequence[int],
    rule: str = "median:3",
    seed: int = 0,
) -> Placement:
    """Where and when a model's outliers are.

    Its estimates: `outlier_images`; `outliers_per_image`; `position_share` and `position_share_98`,
    the share of the outliers at the positions where most are, by the rule and by the 98th
    percentile; `corner_share`, in the corners; `filled` and `corner_filled`, of the pairs of an
    image and one of the usual positions, or a corner, the share with an outlier; where there are
    outliers also `onset_block`, of the images with one, and `onset_share`, the share of images at
    the commonest onset.

    Args:
        norms: of the patches after each block, of unchanged images.
        corners: the patches in the corners of the grid.
        rule: of an outlier, as in `helpers.measures.norms.threshold`; the onset is always by three
            medians of the block.
        seed: of the halves of `position_share`.
    """
    last = norms[:, -1]
    limit, onset = threshold(last, rule), onset_block(norms)
    mask = last > limit
    usual = usual_positions(mask, USUAL) if mask.any() else []
    estimates = {
        "outlier_images": outlier_images(last),
        "outliers_per_image": over_images(mask.sum(1)),
        "position_share": position_share(mask, seed=seed),
        "position_share_98": position_share(outliers(last, "percentile:98"), seed=seed),
        "corner_share": share_at(mask, corners),
    }
    if usual:
        started = onset[onset >= 0]
        estimates |= {
            "filled": filled(mask, usual),
            "corner_filled": filled(mask, corners),
            "onset_block": over_images(started),
            "onset_share": share(onset == started.bincount().argmax()),
        }
    return Placement(limit, mask, onset, usual, estimates)


def filled(mask: Bool[Tensor, "image patch"], positions: Sequence[int]) -> Estimate:
    """Of the pairs of an image and one of `positions`, the share with an outlier.

    Counts, where `share_at` is a share of the outliers there are: an image without any counts here,
    and not there.
    """
    return over_images(mask[:, list(positions)].float().mean(1), (0, 1))


def counts_at(mask: Bool[Tensor, "image patch"], positions: Sequence[int]) -> dict[str, Estimate]:
    """How many outliers images have, and where.

    Args:
        mask: which patches are outliers.
        positions: patches where they are expected.

    Returns:
        "count", outliers an image; "images", the share of images with one anywhere; "share", of the
        outliers at `positions`; "filled", of the pairs of an image and one of `positions` with an
        outlier.
    """
    return {
        "count": over_images(mask.sum(1)),
        "images": share(mask.any(1)),
        "share": share_at(mask, positions),
        "filled": filled(mask, positions),
    }


def driver(counts: Mapping[str, Mapping[str, Estimate]], margin: float) -> str:
    """What the counts of several conditions (`counts_at`) say together, in words.

    Position decides *where* outliers are if in every condition with outliers more than `margin`
    of them are where they are expected, and *whether* there is one if in every condition more than
    `margin` of these places have one.

    Returns:
        "position", where it decides both; "position mainly, content has a veto", where it decides
        where; else "not position".
    """
    where = [x["share"].value for x in counts.values() if x["share"].n]
    if not where or min(where) <= margin:
        return "not position"
    whether = min(x["filled"].value for x in counts.values())
    return "position" if whether > margin else "position mainly, content has a veto"


def curves_at(
    norms: Float[Tensor, "image block patch"], positions: Sequence[int]
) -> dict[str, list[Estimate]]:
    """The mean norm after each block at the usual positions and elsewhere.

    Returns:
        "usual positions" and "all others": each a mean over the patches of an image.
    """
    rest = [patch for patch in range(norms.shape[-1]) if patch not in positions]
    places = {"usual positions": list(positions), "all others": rest}
    return {name: over_blocks(norms[:, :, at].mean(2)) for name, at in places.items()}


def treated(
    norms: Mapping[str, Float[Tensor, "image patch"]],
    limit: float,
    right: Mapping[str, Bool[Tensor, " image"]] | None = None,
) -> dict[str, Estimate | float]:
    """Outliers and accuracy of a model as it is, and under treatments such as an ablation.

    Args:
        norms: condition -> patch norms of the same images, the model as it is first; treatments may
            leave fewer patches.
        limit: the norm above which a patch is an outlier.
        right: condition -> whether the answer is right; None where there are no answers.

    Returns:
        For each condition, with `_CONDITION` at the end of the name but for the first: `max_norm`,
        largest norm of an image; `images`, the share of images with an outlier; and with answers
        `accuracy` in %, and of a treatment `loss`, the accuracy lost in points, paired over images,
        and `mcnemar_p`, its exact p-value.
    """
    estimates: dict[str, Estimate | float] = {}
    first = next(iter(norms))
    for condition, x in norms.items():
        end = "" if condition == first else f"_{condition}"
        estimates["max_norm" + end] = over_images(x.amax(1))
        estimates["images" + end] = share((x > limit).any(1))
        if right is None:
            continue
        estimates["accuracy" + end] = over_images(100 * right[condition].float(), (0, 100))
        if end:
            estimates["loss" + end] = points(right[first], right[condition])
            estimates["mcnemar_p" + end] = mcnemar(right[first], right[condition])
    return estimates
