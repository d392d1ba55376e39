"""What is followed along a training."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from helpers.capture import AttentionReceived, ClsAttention, Feature, Output, TokenNorms, capture
from helpers.images import Images
from helpers.measures.norms import norm_ratio, outliers
from helpers.models import Backbone, TokenLayout

RULE = "median:3"


def evaluate(
    backbone: Backbone,
    images: Images,
    classifies: bool = True,
    answers: Int[Tensor, " image"] | None = None,
    border: int = 0,
) -> dict[str, Any]:
    """Accuracy, norms (see `measured_norms`) and `register_attention` of a model.

    `accuracy` (%), where the images have labels: of the head or, where it names no classes, how
    often the nearest other image by the cosine of the features is of the same class.
    `same_answer` (%): how often the head names the class in `answers`, where these are given.
    `register_attention`: share of the attention of [CLS] in the last block, for each register.
    Where pictures have a `border` of so many patches, also `border_attention`, that on all of it,
    and `border_sink` and `register_sink`, the share of the attention of all tokens on it or on all
    registers, in the head of any block where that is largest.
    """
    layout, device = backbone.layout, backbone.device
    reducers = [TokenNorms(), Feature(), Output(), *([ClsAttention()] if layout.cls else [])]
    reducers += [AttentionReceived("all", "all")] * bool(border)
    kept = capture(backbone, images, reducers, batch_size=64, device=device, progress=False)
    named, entry = kept["output"].argmax(-1), {}
    if images.labels is not None:
        labels = torch.as_tensor(images.labels)
        guessed = named if classifies else labels[_nearest_images(kept["feature"])]
        entry["accuracy"] = 100 * (guessed == labels).float().mean().item()
    if answers is not None:
        entry["same_answer"] = 100 * (named == answers).float().mean().item()
    entry |= measured_norms(kept["token_norms"], layout, border)
    if layout.cls:
        attention = kept["cls_attention"][:, 0].mean(0)
        entry["register_attention"] = layout.register_tokens(attention, dim=-1).tolist()
    if border:
        entry |= border_sinks(kept["attention_received"], layout, border)
        if layout.cls:
            free = ~in_picture(layout, border)
            entry["border_attention"] = layout.patch_tokens(attention, -1)[free].sum().item()
    return entry


def border_sinks(
    received: Float[Tensor, "image block head token"], layout: TokenLayout, border: int
) -> dict[str, float]:
    """`border_sink` and `register_sink` of `evaluate`."""
    received, free = received.mean(0), ~in_picture(layout, border)
    given = {"border_sink": layout.patch_tokens(received, -1)[..., free]}
    if layout.registers:
        given["register_sink"] = layout.register_tokens(received, -1)
    return {name: x.sum(-1).max().item() for name, x in given.items()}


def in_picture(layout: TokenLayout, border: int) -> Bool[Tensor, " patch"]:
    """Which patches lie inside a border of so many."""
    rows, columns = layout.grid
    inside = torch.zeros(rows, columns, dtype=torch.bool)
    inside[border : rows - border, border : columns - border] = True
    return inside.flatten()


def measured_norms(
    norms: Float[Tensor, "image block token"], layout: TokenLayout, border: int = 0
) -> dict[str, Any]:
    """Of the patches after the last block, before the final LayerNorm, unless said otherwise.

    `outlier_images`, `outlier_tokens`: shares (3 x the median). `norm_median`; `norm_largest`: of
    an image, mean over images. `norm_ratio`: 99.9th percentile over the median, for each block.
    `largest`, `register_largest`: of an image over the median, mean over images, for each block; of
    registers, too. `register_norm`: over the median of the last block, for each register.

    All of the patches inside the `border`. Of the border over the same medians, for each block:
    `border_largest` and `border_outlier_images`.
    """
    everywhere, inside = layout.patch_tokens(norms, dim=-1), in_picture(layout, border)
    patches, free = everywhere[..., inside], everywhere[..., ~inside]
    above, median = outliers(patches[:, -1], RULE), patches[:, -1].median()
    medians = patches.transpose(0, 1).flatten(1).median(1).values
    registers, more = layout.register_tokens(norms, dim=-1), {}
    if border:
        largest = free.amax(2) / medians  # (image, block)
        more["border_largest"] = largest.mean(0).tolist()
        more["border_outlier_images"] = (largest > 3).float().mean(0).tolist()
    if layout.registers:
        more["register_largest"] = (registers.amax(2) / medians).mean(0).tolist()
    return more | {
        "outlier_images": above.any(1).float().mean().item(),
        "outlier_tokens": above.float().mean().item(),
        "norm_median": median.item(),
        "norm_largest": patches[:, -1].amax(1).mean().item(),
        "norm_ratio": [norm_ratio(block) for block in patches.unbind(1)],
        "largest": (patches.amax(2) / medians).mean(0).tolist(),
        "register_norm": (registers[:, -1] / median).mean(0).tolist(),
    }


def _nearest_images(features: Float[Tensor, "image width"]) -> Int[Tensor, " image"]:
    """The nearest other image of each, by cosine."""
    directions = F.normalize(features, dim=-1)
    return (directions @ directions.mT).fill_diagonal_(-1).argmax(-1)
