"""Attention of one block: what it computed and what it adds, whatever library made the model."""

from functools import cache, cached_property
from typing import NamedTuple

import torch
from jaxtyping import Float
from timm.layers import apply_rot_embed_cat
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.models.tokens import TokenLayout


class Sublayer(NamedTuple):
    """The layers around the attention of a block.

    y = x + gamma * projection(attention of x), then the MLP of norm2(y).

    gamma: (width,), LayerScale; None where there is none.
    """

    projection: nn.Linear
    gamma: Tensor | None
    norm2: nn.Module


class Attention:
    """The attention of one block as a forward pass computed it, in float32.

    q, k, v: (image, head, token, head_dim), after q_norm, k_norm and rotation where the model has
    them; keys and values that several heads share are repeated. scale: 1/sqrt(head_dim).
    """

    scale: float

    def _heads(self, part: int) -> Float[Tensor, "image head token dim"]:
        """Queries, keys or values (0, 1 or 2)."""
        raise NotImplementedError

    @cached_property
    def q(self) -> Tensor:
        return self._heads(0)

    @cached_property
    def k(self) -> Tensor:
        return self._heads(1)

    @cached_property
    def v(self) -> Tensor:
        return self._heads(2)

    @property
    def matched(self) -> tuple[Tensor, Tensor]:
        """Queries and keys whose scaled products are the logits, with what is added to these."""
        return self.q, self.k

    def cls_row(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        """Softmax over all tokens of what [CLS] attends to."""
        return self.cls_logits(layout).softmax(dim=-1)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        """[CLS] query times every key, scaled: what goes into the softmax."""
        raise NotImplementedError


class TimmAttention(Attention):
    """From the output of timm's `qkv` layer: (image, token, 3 x head x head_dim)."""

    def __init__(self, attn: nn.Module, output: Tensor):
        self.attn, self.scale, self.output = attn, attn.scale, output

    def _part(self, index: int) -> Float[Tensor, "image token width"]:
        """Queries, keys or values, heads concatenated, in the model's own precision."""
        part = self.output.chunk(3, dim=-1)[index]
        norm = (self.attn.q_norm, self.attn.k_norm, _IDENTITY)[index]
        if isinstance(norm, nn.Identity):
            return part
        return norm(part.float().unflatten(-1, (self.attn.num_heads, -1))).flatten(2)

    def _heads(self, part: int) -> Float[Tensor, "image head token dim"]:
        return self._part(part).float().unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        # The query of each head stands alone in a row of zeros as wide as all heads, so that one
        # product takes the keys as they lie in memory; head by head, they would be copied first.
        query, keys = layout.cls_token(self._part(0)), self._part(1)
        alone = _alone(self.attn.num_heads, query.shape[1], query.dtype, query.device)
        product = _product(query[:, None] * alone, keys.mT)
        return product.mul_(self.scale)  # in float32, which bfloat16 would round


class TorchAttention(Attention):
    """From the input of `nn.MultiheadAttention`; hooks on its out_proj never fire.

    The [CLS] row folds W_k into the [CLS] query (the key bias cancels in the softmax), which
    projects no token again.
    """

    def __init__(self, attn: nn.MultiheadAttention, x: Tensor):
        self.x, self.heads, self.scale = x.float(), attn.num_heads, attn.head_dim**-0.5
        self.weights = attn.in_proj_weight.float().chunk(3)
        self.biases = attn.in_proj_bias.float().chunk(3)

    def _project(self, x: Tensor, part: int) -> Tensor:
        return F.linear(x, self.weights[part], self.biases[part]).unflatten(-1, (self.heads, -1))

    def _heads(self, part: int) -> Float[Tensor, "image head token dim"]:
        return self._project(self.x, part).transpose(1, 2)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        query = self._project(layout.cls_token(self.x), 0) * self.scale
        folded = torch.einsum("bhd,hdw->bhw", query, self.weights[1].unflatten(0, (self.heads, -1)))
        return folded @ self.x.transpose(1, 2)


class RotaryAttention(Attention):
    """From the input of timm's EvaAttention or AttentionRope, and the rotation of the patches.

    No hook sees q and k as they meet there, so this projects again what is asked for.
    """

    def __init__(self, attn: nn.Module, x: Tensor, rotation: Tensor | None):
        self.attn, self.scale, self.x, self.rotation = attn, attn.scale, x.float(), rotation

    def _layer(self, part: int) -> tuple[Tensor, Tensor | None]:
        """Weight and bias that make queries, keys or values."""
        if self.attn.qkv is None:
            layer = (self.attn.q_proj, self.attn.k_proj, self.attn.v_proj)[part]
            return layer.weight, layer.bias
        biases = [getattr(self.attn, name, None) for name in ("q_bias", "k_bias", "v_bias")]
        if self.attn.qkv.bias is not None:
            biases = self.attn.qkv.bias.chunk(3)
        return self.attn.qkv.weight.chunk(3)[part], biases[part]

    def _project(self, x: Tensor, part: int) -> Float[Tensor, "image head token dim"]:
        weight, bias = self._layer(part)
        heads = F.linear(x, weight.float(), None if bias is None else bias.float()).unflatten(
            -1, (-1, self.attn.head_dim)
        )
        return (self.attn.q_norm, self.attn.k_norm, _IDENTITY)[part](heads.transpose(1, 2))

    def _heads(self, part: int) -> Float[Tensor, "image head token dim"]:
        x = self._project(self.x, part)
        if self.rotation is not None and part < 2:
            prefix, patches = x.tensor_split([self.attn.num_prefix_tokens], dim=2)
            half = self.attn.rotate_half
            x = torch.cat([prefix, apply_rot_embed_cat(patches, self.rotation, half=half)], dim=2)
        # Keys and values are repeated for the heads that share them.
        return x.repeat_interleave(self.attn.num_heads // x.shape[1], dim=1)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        query = self._project(layout.cls_token(self.x)[:, None], 0) * self.scale
        return (query @ self.k.mT).squeeze(2)


class BiasedAttention(RotaryAttention):
    """From the input of the attention of timm's Beit, and the bias of its logits.

    bias: (head, token, token), what the relative position of query and key adds.
    """

    def __init__(self, attn: nn.Module, x: Tensor, bias: Float[Tensor, "head token token"]):
        super().__init__(attn, x, None)
        self.bias = bias.float()

    def _project(self, x: Tensor, part: int) -> Float[Tensor, "image head token dim"]:
        weight, bias = self._layer(part)
        heads = F.linear(x, weight.float(), None if bias is None else bias.float())
        return heads.unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2)

    @cached_property
    def matched(self) -> tuple[Tensor, Tensor]:
        # A query carries its row of the bias, and each key a one that picks its column; zeros make
        # the width a multiple of eight, as the kernels of GPUs want it.
        spare = -(self.q.shape[-1] + self.bias.shape[-1]) % 8
        rows = F.pad(self.bias / self.scale, (0, spare)).expand(len(self.x), -1, -1, -1)
        columns = torch.eye(*rows.shape[-2:], device=rows.device).expand_as(rows)
        return torch.cat([self.q, rows], dim=-1), torch.cat([self.k, columns], dim=-1)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        return super().cls_logits(layout) + layout.cls_token(self.bias, dim=1)


class Update:
    """What the attention of one block adds to the residual stream.

    after = before + bias + contribution of the values.

    before, after: (image, token, width), the stream as the model has it, in float32. attention: the
    Attention. bias: (width,), that of the output projection, after LayerScale; zeros where there is
    none.
    """

    def __init__(self, before: Tensor, attention: Attention, after: Tensor, layers: Sublayer):
        self.before, self.attention, self.after = before.float(), attention, after.float()
        self.weight, bias = layers.projection.weight.float(), layers.projection.bias
        gamma = self.weight.new_ones(len(self.weight)) if layers.gamma is None else layers.gamma
        self.gamma = gamma.float()
        self.bias = torch.zeros_like(self.gamma) if bias is None else self.gamma * bias.float()

    def contribution(
        self, values: Float[Tensor, "image head row dim"]
    ) -> Float[Tensor, "image row width"]:
        """What weighted values add to the stream, after projection and LayerScale, without bias."""
        return F.linear(values.transpose(1, 2).flatten(2), self.weight) * self.gamma

    def head_weights(self) -> Float[Tensor, "head width dim"]:
        """What makes of a head's values what they add to the stream: projection and LayerScale."""
        weight = self.weight * self.gamma[:, None]
        return weight.unflatten(1, (self.attention.v.shape[1], -1)).movedim(1, 0)

    def value_norms(self) -> Float[Tensor, "image head token"]:
        """The norm of what each head adds for full attention to one token."""
        # Head by head: all at once they would take as many streams as there are heads.
        each = zip(self.attention.v.unbind(1), self.head_weights(), strict=True)
        return torch.stack([(v @ weight.mT).norm(dim=-1) for v, weight in each], dim=1)


_IDENTITY = nn.Identity()


@cache
def _alone(
    heads: int, width: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "head width"]:
    """One in the columns of each head, else zero; made once, since it costs as much as its use."""
    with torch.inference_mode(False):
        return torch.eye(heads, dtype=dtype, device=device).repeat_interleave(width // heads, dim=1)


def _product(
    a: Float[Tensor, "image row dim"], b: Float[Tensor, "image dim column"]
) -> Float[Tensor, "image row column"]:
    """A @ b, summed and returned in float32."""
    if a.device.type == "cuda" and a.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(a, b, out_dtype=torch.float32)  # without a float32 copy of all keys
    return a.float() @ b.float()
