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

    `token_layout(model).patch_tokens(a, -1)` keeps the patches, and its `to_grid` makes a map.

    Args:
        model: a module of timm, open_clip, torchvision or transformers, which stays as it is, a
            name of one, or a Backbone, with the interventions that are active.
        images: as in `capture`, such as a list of pictures, an ImageFolder or a DataLoader.
        blocks: one index, several, or "all"; one leaves the dimension of blocks away.
        heads: "mean" of all heads, or "all", each.
        options: batch_size, device, dtype, progress, ..., as in `capture`.

    Raises what `load_backbone` and `capture` raise, such as ValueError without [CLS].
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

    Arguments and errors as in `cls_attention`, but no [CLS] is needed. The model keeps its fused
    attention, and the matrix of all queries by all keys is never held.
    """
    reducers = [AttentionReceived(blocks, heads)]
    return capture(backbone_of(model), images, reducers, **options)["attention_received"]
