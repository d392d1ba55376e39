"""Attention of a model in one call, from whatever model and images a pipeline has."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from helpers.capture.engine import capture
from helpers.capture.reducers import AttentionReceived, Blocks, ClsAttention
from helpers.models import Backbone, backbone_of


def cls_attention(
    model: str | nn.Module | Backbone,
    images: Any,
    *,
    blocks: Blocks = -1,
    heads: str = "mean",
    **options: Any,
) -> Float[Tensor, "image *block_head token"]:
    """The attention of [CLS] to each token, which sums to one.

    Args:
        model: what `load_backbone` takes, or a Backbone, with the interventions that are active.
        images, options: as in `capture`.
        blocks, heads: as in `ClsAttention`.
    """
    reducers = [ClsAttention(blocks, heads)]
    return capture(backbone_of(model), images, reducers, **options)["cls_attention"]


def attention_received(
    model: str | nn.Module | Backbone,
    images: Any,
    *,
    blocks: Blocks = -1,
    heads: str = "mean",
    **options: Any,
) -> Float[Tensor, "image *block_head token"]:
    """The attention that each token gets, mean over all queries, which sums to one.

    Arguments as in `cls_attention`, but no [CLS] is needed. The model keeps its fused attention.
    """
    reducers = [AttentionReceived(blocks, heads)]
    return capture(backbone_of(model), images, reducers, **options)["attention_received"]
