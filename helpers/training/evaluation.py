"""What is followed along a training."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.capture import ClsAttention, Feature, Output, TokenNorms, capture
from helpers.images import Images
from helpers.measures.norms import norm_ratio, outliers
from helpers.models import Backbone, TokenLayout, wrap_timm

RULE = "median:3"


def evaluate(
    model: nn.Module, images: Images, data: Mapping[str, Any], classifies: bool = True
) -> dict[str, Any]:
    """What is followed along a training, on test images and with the averaged weights.

    `accuracy` (%) of the head or, where it names no classes, how often the nearest other image by
    the cosine of the features is of the same class; of the patches after the last block, before the
    final LayerNorm: `outlier_images` and `outlier_tokens` (shares, 3 x the median), `norm_median`
    and `norm_largest` (the largest of an image, mean over the images); `norm_ratio`, the 99.9th
    percentile of their norms over the median, for each block; for each register `register_norm`,
    its norm over that median, and `register_attention`, its share of the attention of [CLS] in the
    last block.

    Args:
        data: what the model expects of an image, as in timm.data.create_transform.
    """
    training = model.training
    backbone = wrap_timm("the model in training", model.eval(), dict(data), pretrained=True)
    entry = measured(backbone, images, classifies)
    model.train(training)
    return entry


def measured(
    backbone: Backbone,
    images: Images,
    classifies: bool = True,
    answers: Int[Tensor, " image"] | None = None,
) -> dict[str, Any]:
    """`evaluate` of a model that is no longer trained; `accuracy` where the images have labels.

    With `answers`, the classes that another model names, also `same_answer`, how often (%) this one
    names them.
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
        entry["register_attention"] = (
            layout.register_tokens(kept["cls_attention"][:, 0], dim=-1).mean(0).tolist()
        )
    return entry


def measured_norms(
    norms: Float[Tensor, "image block token"], layout: TokenLayout
) -> dict[str, Any]:
    """What `evaluate` tells of norms, all but `register_attention`."""
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
