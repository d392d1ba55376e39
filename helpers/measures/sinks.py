"""Attention sinks: tokens to which nearly all queries attend, and whether they have anything to give.

After 'Attention sinks: NOP vs broadcast' (arXiv:2606.08105, definition 1 and its code).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOST = 4  # tokens that may share a sink: as many as the twins have registers
EVENT = 0.5  # of a query's attention


def shared_attention(rows: Float[Tensor, "*batch query token"], most: int) -> Float[Tensor, "*batch"]:
    """The attention that at least 90 % of the queries each give to the same few tokens: those, at most `most`, that get the most
    in the mean over the queries. 0 where there is no token.

    With one token and a value of at least 0.5 this is the event of arXiv:2606.08105. Several are this project's: what four
    corners share is no event for any of them.

    >>> rows = torch.tensor([[0.6, 0.3, 0.1]] * 9 + [[0.0, 0.0, 1.0]])
    >>> round(float(shared_attention(rows, 1)), 2), round(float(shared_attention(rows, 2)), 2)
    (0.6, 0.9)
    """
    queries, tokens = rows.shape[-2:]
    if tokens == 0:
        return rows.new_zeros(rows.shape[:-2])
    taken = rows.mean(-2, keepdim=True).topk(min(most, tokens)).indices.expand(*rows.shape[:-1], -1)
    given = rows.gather(-1, taken).sum(-1)
    enough = -(-9 * queries // 10)
    return given.kthvalue(queries - enough + 1, dim=-1).values


def value_ratio(
    rows: Float[Tensor, "*batch query token"], values: Float[Tensor, "*batch token width"]
) -> Float[Tensor, "*batch"]:
    """The norm of what the most attended token would add to the stream, over the mean norm of the others: at most 0.2 in a
    'NOP', at least 0.5 in a 'broadcast' (arXiv:2606.08105; its test of rank is left out).

    Args:
        values: after output projection and LayerScale, of the same tokens as the rows.
    """
    norms, sink = torch.linalg.vector_norm(values, dim=-1), rows.mean(-2).argmax(-1, keepdim=True)
    own = norms.gather(-1, sink).squeeze(-1)
    others = (norms.sum(-1) - own) / (norms.shape[-1] - 1)
    return own / others.clamp(min=1e-12)


def with_sink(attention: Float[Tensor, "image *place"]) -> Bool[Tensor, " image"]:
    """Which images have a sink anywhere, from the `shared_attention` of their heads."""
    return (attention >= EVENT).flatten(1).any(1)


def sinks_by_image(
    patches: Float[Tensor, "image *place"],
    registers: Float[Tensor, "image *place"],
    one: Float[Tensor, "image *place"],
    idle: Bool[Tensor, " image"] | None = None,
) -> dict[str, Tensor]:
    """Whether each image has a sink: "sink_images", of patches; "register_sink_images"; "sink_one_images", of any one token.

    Args:
        patches, registers, one: `shared_attention` of the heads.
        idle: images in which attention has nothing to fetch; then also "idle_...", the same of these as 1 and 0, nan for others.
    """
    kinds = {"sink_images": patches, "register_sink_images": registers, "sink_one_images": one}
    found = {name: with_sink(attention) for name, attention in kinds.items()}
    if idle is None:
        return found
    return found | {f"idle_{name}": torch.where(idle, x.float(), torch.nan) for name, x in found.items()}
