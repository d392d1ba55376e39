"""What the claims about outliers measure under one rule of what an outlier is."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from helpers.measures.attention import iou, top_patches
from helpers.measures.norms import outliers
from helpers.measures.outlier_traits import as_common, onset_depth, relative_norms
from helpers.measures.outliers import outlier_images
from helpers.measures.stats import Estimate, auc_over_images, matched_auc_over_images, over_images


def under_rule(
    rule: str,
    norms: Float[Tensor, "image block patch"],
    attention: Float[Tensor, "image patch"],
    similarities: Mapping[str, Float[Tensor, "image patch"]],
    parts: Mapping[str, Float[Tensor, "image patch"]],
) -> dict[str, Estimate | float]:
    """Outliers by `rule` after the last block, and what they are elsewhere.

    Args:
        rule: as in `helpers.measures.norms.threshold`.
        norms: of the patches after each block.
        attention: of [CLS] on the patches, in the last block.
        similarities: end of a name -> similarity of the patches with their neighbours.
        parts: "q", "k" or "v" -> norms of the patches' queries, keys or values in the last block.

    Returns:
        `outlier_images`; `outlier_tokens`, the share of all patches; `iou`, the overlap with the attention artifacts by the same
        rule (`as_common`), and `iou_top`, with as many of an image's most attended patches; `onset_depth`, the first block with
        an outlier by the rule as a share of the depth; for each similarity `auc` and `auc_matched`, the chance that an outlier is
        more similar than another patch, and than another one at its position; for each part `PART_auc`, the chance that an
        outlier has the larger norm.
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
