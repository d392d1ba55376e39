"""Attention summed up without its matrix: at most a chunk of it is held at a time."""

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor


def chunk(device: str) -> int:
    """Numbers of attention that are held at a time, by what a cache of the device holds."""
    return 2**26 if device == "cuda" else 2**18


def received_attention(
    q: Tensor, k: Tensor, scale: float
) -> tuple[Float[Tensor, "image head token"], Float[Tensor, "image head row"]]:
    """The attention that each token gets, mean over the queries, and the logsumexp of the logits of
    each query.
    """
    images, _, rows, _ = q.shape
    q, k, tokens = q.flatten(0, 1), k.flatten(0, 1), k.shape[2]
    got, totals = q.new_zeros(len(q), tokens), q.new_empty(len(q), rows)
    most = chunk(q.device.type)
    heads = max(1, most // (rows * tokens))
    each = max(1, most // (heads * tokens))
    for head in range(0, len(q), heads):
        own, keys = slice(head, head + heads), k[head : head + heads].mT
        for row in range(0, rows, each):
            now = slice(row, row + each)
            logits = (q[own, now] * scale) @ keys
            top = logits.amax(-1, keepdim=True)
            shares = logits.sub_(top).exp_()
            total = shares.sum(-1, keepdim=True)
            totals[own, now] = (top + total.log()).squeeze(-1)
            got[own] += (total.reciprocal().mT @ shares).squeeze(1)
    return (got / rows).unflatten(0, (images, -1)), totals.unflatten(0, (images, -1))


def fused_attention(
    q: Tensor, k: Tensor, scale: float
) -> tuple[Float[Tensor, "image head row dim"], Float[Tensor, "image head row"]]:
    """For each query the mean of the keys under its attention, and the logsumexp of its logits."""
    return (kernel(q.device.type) or by_rows)(q, k, scale)


@lru_cache
def kernel(device: str) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] | None:
    """Fused attention that gives the logsumexp, which no public function of torch does.

    None where this torch has none for such a device, or one that gives other numbers.
    """

    def fused(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if device == "cpu":
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, scale=scale)
        mean, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, k, None, True, scale=scale
        )
        return mean, total[..., : q.shape[-2]]  # it is padded to whole warps

    q, k = (torch.linspace(-2, 2, 2 * n * 16, device=device).view(1, 2, n, 16) for n in (5, 7))
    try:
        found = fused(q, k, 0.25)
        alike = all(
            torch.allclose(x, y, atol=1e-2) for x, y in zip(found, by_rows(q, k, 0.25), strict=True)
        )
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    return fused if alike else None


def by_rows(
    q: Tensor, k: Tensor, scale: float
) -> tuple[Float[Tensor, "image head row dim"], Float[Tensor, "image head row"]]:
    """`fused_attention` on any device, of at least one row of each head at a time."""
    most = chunk(q.device.type) // (len(q) * q.shape[1] * k.shape[-2])
    logits = ((part @ k.mT).mul_(scale) for part in q.split(max(1, most), dim=-2))
    found = [(rows.softmax(dim=-1) @ k, rows.logsumexp(dim=-1)) for rows in logits]
    means, totals = zip(*found, strict=True)
    return torch.cat(means, dim=-2), torch.cat(totals, dim=-1)
