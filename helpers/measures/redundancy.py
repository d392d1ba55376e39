"""Whether outliers follow what the picture shows when that is moved, or stay at their positions."""

from jaxtyping import Bool, Float
from torch import Tensor

from helpers.measures.stats import Estimate, auc_over_images, over_images, share_at, usual_positions


def after_rolling(
    before: Bool[Tensor, "image patch"],
    after: Bool[Tensor, "image patch"],
    source: Bool[Tensor, "image patch"],
    similarity: Float[Tensor, "image patch"],
) -> dict[str, Estimate]:
    """What becomes of outliers when the content of the same images is rolled (`helpers.interventions.rolled_content`).

    Args:
        before, after: which patches are outliers in the unrolled and in the rolled images, by one threshold.
        source: which patches of the rolled images show what an outlier of the unrolled ones showed: `before`, rolled.
        similarity: of the rolled images' patches with their neighbours.

    Returns:
        "auc_rolled", the chance that an outlier of the rolled images is more similar than another patch; "rolled_share", of these
        outliers at the most frequent positions of the unrolled images, as many as such an image has outliers on average
        (rounded, at least one); "rolled_follow" and "rolled_stay", the share of a rolled image's outliers in `source` and in
        `before`, a mean over the images that still have one. A patch that is in both counts for both.
    """
    count = max(1, round(before.sum(1).double().mean().item()))
    found = after.sum(1)
    return {
        "auc_rolled": auc_over_images(similarity, after),
        "rolled_share": share_at(after, usual_positions(before, count)),
        "rolled_follow": over_images((after & source).sum(1) / found, (0, 1)),
        "rolled_stay": over_images((after & before).sum(1) / found, (0, 1)),
    }
