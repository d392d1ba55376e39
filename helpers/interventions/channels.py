"""Channels of chosen tokens set to a value after a block."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from helpers.interventions.tokens import intervention
from helpers.measures.massive import massive
from helpers.models import Backbone
from helpers.models.backbone import replace_input
from helpers.settings import check_choice

WHERE = ("massive", "centre")


@intervention
def set_channels(
    backbone: Backbone,
    block: int,
    channels: Sequence[int],
    values: Sequence[float],
    where: str = "massive",
) -> Iterator[Backbone]:
    """Set `channels` to `values` in some tokens after `block` (Sun et al., arXiv:2402.17762).

    Args:
        backbone: the model.
        block: from 0.
        channels, values: of the hidden state.
        where: "massive", in every token with a massive activation there
            (`helpers.measures.massive`); "centre", in as many patches without one, the nearest to
            the centre.

    Raises:
        ValueError: no such block, or another `where`.
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
