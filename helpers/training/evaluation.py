"""What is followed along a training."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.capture import ClsAttention, Feature, Output, TokenNorms, capture
from helpers.images import Images
from helpers.measures.norms import norm_ratio, outliers
from helpers.models import trained as scratch
from helpers.models import wrap_timm

RULE = "median:3"


def evaluate(model: nn.Module, images: Images, classifies: bool = True) -> dict[str, Any]:
    """What is followed along a training, on test images and with the averaged weights.

    `accuracy` (%) of the head or, where it names no classes, how often the nearest other image by the cosine of the features is
    of the same class; of the patches after the last block, before the final LayerNorm: `outlier_images` and `outlier_tokens`
    (shares, 3 x the median) and `norm_median`; `norm_ratio`, the 99.9th percentile of their norms over the median, for each
    block; for each register `register_norm`, its norm over that median, and `register_attention`, its share of the attention
    of [CLS] in the last block.
    """
    training, device = model.training, next(model.parameters()).device
    backbone = wrap_timm("the model in training", model.eval(), scratch.DATA, pretrained=True)
    layout, has_cls = backbone.layout, backbone.layout.cls
    reducers = [TokenNorms(), Feature(), Output(), *([ClsAttention()] if has_cls else [])]
    kept = capture(backbone, images, reducers, batch_size=64, device=device, progress=False)
    model.train(training)
    norms = kept["token_norms"]
    patches = layout.patch_tokens(norms, dim=-1)
    above, median = outliers(patches[:, -1], RULE), patches[:, -1].median()
    registers = layout.register_tokens(norms[:, -1], dim=-1) / median
    labels = torch.as_tensor(images.labels)
    named = labels[_nearest_images(kept["feature"])] if not classifies else kept["output"].argmax(-1)
    entry = {
        "accuracy": 100 * (named == labels).float().mean().item(),
        "outlier_images": above.any(1).float().mean().item(),
        "outlier_tokens": above.float().mean().item(),
        "norm_median": median.item(),
        "norm_ratio": [norm_ratio(block) for block in patches.unbind(1)],
        "register_norm": registers.mean(0).tolist(),
    }
    if has_cls:
        entry["register_attention"] = layout.register_tokens(kept["cls_attention"][:, 0], dim=-1).mean(0).tolist()
    return entry


def _nearest_images(features: Float[Tensor, "image width"]) -> Int[Tensor, " image"]:
    """The nearest other image of each, by cosine."""
    directions = F.normalize(features, dim=-1)
    return (directions @ directions.mT).fill_diagonal_(-1).argmax(-1)
