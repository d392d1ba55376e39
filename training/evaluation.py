"""What is followed along a training."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from helpers.capture import ClsAttention, Feature, Output, TokenNorms, capture
from helpers.images import Images
from helpers.measures.norms import norm_ratio, outliers
from helpers.models import Backbone, TokenLayout

RULE = "median:3"


def evaluate(
    backbone: Backbone,
    images: Images,
    classifies: bool = True,
    answers: Int[Tensor, " image"] | None = None,
) -> dict[str, Any]:
    """Accuracy, norms (see `measured_norms`) and `register_attention` of a model.

    `accuracy` (%), where the images have labels: of the head or, where it names no classes, how
    often the nearest other image by the cosine of the features is of the same class.
    `same_answer` (%): how often the head names the class in `answers`, where these are given.
    `register_attention`: share of the attention of [CLS] in the last block, for each register.
    """
    layout, device = backbone.layout, backbone.device
    reducers = [TokenNorms(), Feature(), Output(), *([ClsAttention()] if layout.cls else [])]
    kept = capture(backbone, images, reducers, batch_size=64, device=device, progress=False)
    named, entry = kept["output"].argmax(-1), {}
    if images.labels is not None:
        labels = torch.as_tensor(images.labels)
        guessed = named if classifies else labels[_nearest_images(kept["feature"])]
        entry["accuracy"] = 100 * (guessed == labels).float().mean().item()
    if answers is not None:
        entry["same_answer"] = 100 * (named == answers).float().mean().item()
    entry |= measured_norms(kept["token_norms"], layout)
    if layout.cls:
        attention = layout.register_tokens(kept["cls_attention"][:, 0], dim=-1)
        entry["register_attention"] = attention.mean(0).tolist()
    return entry


def measured_norms(
    norms: Float[Tensor, "image block token"], layout: TokenLayout
) -> dict[str, Any]:
    """Of the patches after the last block, before the final LayerNorm, unless said otherwise.

    `outlier_images`, `outlier_tokens`: shares (3 x the median). `norm_median`; `norm_largest`: of
    an image, mean over images. `norm_ratio`: 99.9th percentile over the median, for each block.
    `register_norm`: over that median, for each register.
    """
    patches = layout.patch_tokens(norms, dim=-1)
    above, median = outliers(patches[:, -1], RULE), patches[:, -1].median()
    registers = layout.register_tokens(norms[:, -1], dim=-1) / median
    return {
        "outlier_images": above.any(1).float().mean().item(),
        "outlier_tokens": above.float().mean().item(),
        "norm_median": median.item(),
        "norm_largest": patches[:, -1].amax(1).mean().item(),
        "norm_ratio": [norm_ratio(block) for block in patches.unbind(1)],
        "register_norm": registers.mean(0).tolist(),
    }


def _nearest_images(features: Float[Tensor, "image width"]) -> Int[Tensor, " image"]:
    """The nearest other image of each, by cosine."""
    directions = F.normalize(features, dim=-1)
    return (directions @ directions.mT).fill_diagonal_(-1).argmax(-1)
