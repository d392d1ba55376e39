"""Tokens, or channels of them, replaced to tell whether a model needs what they hold."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from helpers.interventions.tokens import intervention
from helpers.measures.massive import massive
from helpers.models import Backbone
from helpers.models.backbone import replace_input
from helpers.settings import check_choice

WHERE = ("massive", "centre")


@intervention
def replaced_tokens(
    backbone: Backbone,
    places: Int[Tensor, "image k"],
    tokens: Float[Tensor, "#image block #k #width"],
    blocks: Sequence[int],
    normed: bool = False,
) -> Iterator[Backbone]:
    """Put `tokens` in the place of those at `places` at the output of each of the `blocks`.

    The k-th image of a capture gets the k-th row, whatever the batch; outside of `capture` it is
    the k-th that passes since entry.

    Args:
        places: indices into the sequence (see TokenLayout), -1 for none, as it is on entry.
        tokens: those of each image and place, 1 where they are the same for all.
        blocks: from 0 to the last but one, since the next block's attention reads the tokens.
        normed: replace what the first LayerNorm of the next block makes of them, and nothing else.
            Its keys and values there are then those of `tokens`, and what the places hold is lost.
            As keys and values are linear in it, its mean gives the mean key and value of Sun et al.
            (arXiv:2402.17762, section 5) and Jiang et al. (arXiv:2506.08010, Table 7).
    """
    tokens = tokens.expand(len(places), len(blocks), places.shape[1], backbone.width)
    _require_attended(backbone, blocks)
    backbone.next_image = 0

    def replaced(x: Tensor, index: int) -> Tensor:
        now = _passing(backbone, len(x), len(places))
        image, column = (places[now] >= 0).nonzero(as_tuple=True)
        x = x.clone()
        x[image, places[now][image, column]] = tokens[now, index][image, column].to(x)
        return x

    with ExitStack() as hooks:
        for index, block in enumerate(blocks):
            change = partial(replaced, index=index)
            if normed:
                norm = backbone.norm_before(block + 1)
                hook = norm.register_forward_hook(lambda _, __, y, change=change: change(y))
            else:
                hook = replace_input(backbone.blocks[block + 1], change)
            hooks.enter_context(hook)
        yield backbone


@intervention
def masked_keys(
    backbone: Backbone, places: Int[Tensor, "image k"], blocks: Sequence[int]
) -> Iterator[Backbone]:
    """Let no token attend to those at `places` in the block after each of the `blocks`, both as in
    `replaced_tokens`; in a model of timm.
    """
    if not backbone.family.startswith("timm"):
        raise ValueError(f"the attention of '{backbone.name}' takes no mask known here")
    _require_attended(backbone, blocks)
    backbone.next_image = 0

    def masked(_: Any, inputs: tuple, options: dict) -> tuple[tuple, dict]:
        x = inputs[0]
        now = _passing(backbone, len(x), len(places))
        image, column = (places[now] >= 0).nonzero(as_tuple=True)
        mask = x.new_zeros(len(x), 1, 1, x.shape[1])
        mask[image, 0, 0, places[now][image, column]] = -torch.inf
        return inputs, options | {"attn_mask": mask}

    with ExitStack() as hooks:
        for block in blocks:
            attention = backbone.blocks[block + 1].attn
            hooks.enter_context(attention.register_forward_pre_hook(masked, with_kwargs=True))
        yield backbone


@intervention
def resumed(
    backbone: Backbone, block: int, tokens: Float[Tensor, "image token width"]
) -> Iterator[Backbone]:
    """Take up the pass after `block` with the `tokens` that it returned, and skip the blocks up to
    it: to the bit the whole pass, for a part of its time.

    The k-th image gets the k-th row, as in `replaced_tokens`.
    """
    _require_attended(backbone, [block])
    backbone.next_image = 0

    def stored(x: Tensor) -> Tensor:
        return tokens[_passing(backbone, len(x), len(tokens))].to(x)

    with ExitStack() as changes:
        for skipped in backbone.blocks[: block + 1]:
            skipped.forward = lambda x, *_, **__: x
            changes.callback(delattr, skipped, "forward")
        changes.enter_context(replace_input(backbone.blocks[block + 1], stored))
        yield backbone


def _require_attended(backbone: Backbone, blocks: Sequence[int]) -> None:
    """Raise ValueError for a block whose output no attention reads."""
    if wrong := [block for block in blocks if not 0 <= block < backbone.depth - 1]:
        raise ValueError(f"nothing of '{backbone.name}' attends to what block {wrong[0]} returns")


def _passing(backbone: Backbone, count: int, images: int) -> slice:
    """Which of the images, that have a row each, pass now."""
    now = slice(backbone.next_image, backbone.next_image + count)
    if now.stop > images:
        raise ValueError(f"places for {images} images, and image {now.stop - 1} passes")
    return now


@intervention
def set_channels(
    backbone: Backbone,
    block: int,
    channels: Sequence[int],
    values: Sequence[float],
    where: str = "massive",
) -> Iterator[Backbone]:
    """Set `channels` to `values` in some tokens after `block` (Sun et al., arXiv:2402.17762).

    `where` "massive": in every token with a massive activation there (`helpers.measures.massive`);
    "centre": in as many patches without one, the nearest to the centre.
    """
    check_choice("where", where, WHERE)
    if not 0 <= block < backbone.depth:
        raise ValueError(f"no block {block} in '{backbone.name}'")
    at, wanted = torch.tensor(list(channels), dtype=torch.long), torch.tensor(list(values))
    order = backbone.layout.from_centre

    def edited(x: Tensor) -> Tensor:
        tokens = massive(x.float()).any(-1)
        if where == "centre":
            free = ~backbone.layout.patch_tokens(tokens, dim=-1)[:, order]
            chosen = free & (free.cumsum(1) <= tokens.sum(1, keepdim=True))
            tokens = torch.zeros_like(tokens)
            backbone.layout.patch_tokens(tokens, dim=-1)[:, order] = chosen
        x = x.clone()
        chosen = x[tokens]
        chosen[:, at] = wanted.to(chosen)
        x[tokens] = chosen
        return x

    if block == backbone.depth - 1:
        hook = backbone.change_output(edited)
    else:
        hook = replace_input(backbone.blocks[block + 1], edited)
    with hook:
        yield backbone
