"""Whether a model has outliers, and what they do, over images."""

from jaxtyping import Float

from helpers.measures._arrays import Array, to_numpy
from helpers.measures.norms import outliers
from helpers.measures.stats import Estimate, share

PRESENT = "median:3"  # the rule of all criteria that ask whether there are outliers at all; a percentile finds them in any model


def outlier_images(norms: Float[Array, "image patch"], rule: str = PRESENT) -> Estimate:
    """The share of images with at least one outlier, with its interval.

    Args:
        norms: patch norms of one model, after one block.
        rule: as in `helpers.measures.norms.threshold`, one threshold for all images given.

    Raises ValueError for another rule and for no image.
    """
    return share(outliers(norms, rule).any(1))


def outlier_shares(norms: Float[Array, "image patch"], rule: str = PRESENT) -> dict[str, Estimate | float]:
    """outlier_images, by three medians whatever the rule, and outlier_tokens: the share of patches that are outliers by `rule`.

    Raises what `outlier_images` raises.
    """
    return {"outlier_images": outlier_images(norms), "outlier_tokens": float(to_numpy(outliers(norms, rule)).mean())}
