"""Backbone: one face over the Vision Transformers of timm and open_clip, and where to look inside them.

Everything that differs between the two libraries stands here, so that no other module asks where a model comes from.
`helpers.models` makes Backbones from names.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from helpers.models.tokens import TokenLayout


@dataclass(eq=False)
class Backbone:
    """A Vision Transformer in eval mode without gradients, and where to look inside it.

    Attributes:
        layout: where its tokens stand; an intervention that appends tokens replaces it for as long as it lasts.
        image_size, patch_size: (height, width) in pixels.
        transform: PIL RGB image -> normalised pixels (3, height, width).
        pretrained: False for random weights; True for the controls, whose weights are constructed.
        next_image: index of the first image of the next forward pass, for what treats each image in its own way. `capture` sets
            it; otherwise a pass that ends without an error counts its images on.
        interventions: name and arguments of each that is active, the outermost first (see helpers/interventions/tokens.py).
    """

    name: str
    model: nn.Module
    layout: TokenLayout
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    transform: Callable[[Image.Image], Tensor]
    pretrained: bool
    next_image: int = 0
    interventions: tuple[tuple[str, dict[str, Any]], ...] = ()

    family: ClassVar[str]
    embed: ClassVar[nn.Module]  # its output: the patch embedding before the position embedding
    blocks: ClassVar[list[nn.Module]]  # their output: the residual stream (image, token, width)
    final_norm: ClassVar[nn.Module]
    heads: ClassVar[int]
    width: ClassVar[int]
    position_embedding: ClassVar[Tensor | None]  # (token, width), of the patches and perhaps of what stands before them

    def __call__(self, pixels: Float[Tensor, "image 3 height width"]) -> Any:
        """What the model returns: class logits where the checkpoint has a head, else its feature."""
        output = self.model(pixels)
        self.next_image += len(pixels)
        return output

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """`image` as this model's training saw it; at another image size it is resized to that size without a margin."""
        return self.transform(image.convert("RGB"))

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        """Number of weights of the vision tower, with its head where it has one."""
        return sum(p.numel() for p in self.model.parameters())

    @cached_property
    def weights_hash(self) -> str:
        """First 16 hex digits of the sha256 over names, shapes and bytes of the state dict (position embedding as resampled)."""
        digest = hashlib.sha256()
        for key, value in sorted(self.model.state_dict().items()):
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """What a result's provenance says about the model."""
        keys = ("name", "family", "parameters", "weights_hash", "image_size", "patch_size", "pretrained")
        return {key: getattr(self, key) for key in keys}

    def watch(self, point: str, block: int, see: Callable[[Any], object]) -> "RemovableHandle | Handles":
        """Call `see` in every forward pass with what goes through `point` of `block`; nothing is changed.

        Points of a block: 'residual' (image, token, width), after the block; 'final', the same through the model's final norm;
        'neurons' (image, token, hidden), the input of the second MLP layer, which is the neuron in gated MLPs too;
        'attention', an Attention; 'update', an Update; 'normed', a pair: 'residual', and what the next LayerNorm (before the next
        block's attention, or the final one) makes of it. Points of the model, whatever the block: 'pixels' (image, 3, height,
        width), normalised; 'embedding' (image, row, column, width), patches before the position embedding; 'feature' (image,
        width), pooled, before the classification head; 'output', what the model returns.
        Remove the handle afterwards. Raises ValueError for another point, and for 'update' and 'normed' of unusual blocks.
        """
        if point == "pixels":
            return self.embed.register_forward_pre_hook(lambda _, inputs: _only(see(inputs[0])))
        if point == "embedding":
            return self.embed.register_forward_hook(lambda _, __, output: _only(see(self.patch_grid(output))))
        if point == "residual":
            return self.blocks[block].register_forward_hook(lambda _, __, output: _only(see(output)))
        if point == "final":
            return self.blocks[block].register_forward_hook(
                # .forward goes around the hooks of an intervention, which belong to the model's own pass.
                lambda _, __, output: _only(see(self.final_norm.forward(output.float())))
            )
        if point == "neurons":
            return self.neurons(block).register_forward_pre_hook(lambda _, inputs: _only(see(inputs[0])))
        if point == "attention":
            return self.watch_attention(block, see)
        if point == "update":
            return self.watch_update(block, see)
        if point == "normed":
            last = block % self.depth == self.depth - 1
            norm = self.final_norm if last else self.sublayer(block % self.depth + 1).norm1
            return self.blocks[block].register_forward_hook(
                lambda _, __, output: _only(see((output.float(), norm.forward(output.float()))))
            )
        if point == "feature":
            return self.watch_feature(see)
        if point == "output":
            return self.model.register_forward_hook(lambda _, __, output: _only(see(output)))
        points = "pixels, embedding, residual, final, normed, neurons, attention, update, feature or output"
        raise ValueError(f"unknown point '{point}'; choose {points}")

    def watch_update(self, block: int, see: Callable[["Update"], object]) -> "Handles":
        """The 'update' of `watch`."""
        layers, seen = self.sublayer(block), {}
        hooks = (
            self.blocks[block].register_forward_pre_hook(lambda _, inputs: seen.update(before=inputs[0])),
            self.watch_attention(block, lambda attention: seen.update(attention=attention)),
            layers.norm2.register_forward_pre_hook(
                lambda _, inputs: _only(see(Update(seen.pop("before"), seen.pop("attention"), inputs[0], layers)))
            ),
        )
        return Handles(hooks)

    def change_input(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the tokens (image, token, width) that enter the first block, after position embedding and CLIP's ln_pre."""
        return self.blocks[0].register_forward_pre_hook(lambda _, inputs: (change(inputs[0]), *inputs[1:]))

    @property
    def patch_positions(self) -> Float[Tensor, "patch width"]:
        """The position embedding of the patches, row-major. Raises ValueError for a model without one."""
        embedding, (rows, columns) = self.position_embedding, self.layout.grid
        if embedding is None:
            raise ValueError(f"'{self.name}' adds no position embedding; choose a model that does")
        return embedding.narrow(0, len(embedding) - rows * columns, rows * columns)

    def change_neurons(self, block: int, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the neurons (image, token, hidden) of `block`: the input of its second MLP layer.

        Raises ValueError where the block has no such layer.
        """
        return self.neurons(block).register_forward_pre_hook(lambda _, inputs: (change(inputs[0]),))

    def _mlp_layer(self, block: int, name: str) -> nn.Linear:
        """The second MLP layer of a block, called `name`. Raises ValueError where there is none."""
        if not -self.depth <= block < self.depth:
            raise ValueError(f"no block {block} in '{self.name}'; choose from 0 to {self.depth - 1}")
        mlp = getattr(self.blocks[block], "mlp", None)
        layer = getattr(mlp, name, None)
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"block {block} of '{self.name}' has no MLP neurons: the second layer '{name}' is missing in {type(mlp).__name__}"
            )
        return layer


class Handles(tuple):
    """Several handles that are removed together."""

    def remove(self) -> None:
        """Remove them all."""
        for handle in self:
            handle.remove()


class Sublayer(NamedTuple):
    """The layers around the attention of a block: y = x + scale(projection(attention(norm1(x)))), then the MLP of norm2(y)."""

    norm1: nn.Module
    projection: nn.Linear
    scale: nn.Module
    norm2: nn.Module


class Attention:
    """The attention of one block as a forward pass computed it, in float32; nothing is projected twice unless noted.

    q, k, v: (image, head, token, head_dim), after q_norm and k_norm where the model has them. scale: 1/sqrt(head_dim).
    value_bias: (head, head_dim), what the bias of the value projection puts into every v; zeros where there is none.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    value_bias: Tensor

    def cls_row(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        """Softmax over all tokens of what [CLS] attends to."""
        return self.cls_logits(layout).softmax(dim=-1)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        """[CLS] query times every key, scaled: what goes into the softmax."""
        raise NotImplementedError

    def weighted(self, weights: Float[Tensor, "image head row token"]) -> Float[Tensor, "image head row dim"]:
        """The sum of the values, each times its weight."""
        return weights @ self.v


class TimmAttention(Attention):
    """From the output of timm's `qkv` layer: (image, token, 3 x head x head_dim)."""

    def __init__(self, attn: nn.Module, output: Tensor):
        self.attn, self.scale, self.output = attn, attn.scale, output

    def _part(self, index: int) -> Float[Tensor, "image token width"]:
        """Queries, keys or values, heads concatenated; as the model has them, so not in float32 where it is not."""
        part = self.output.chunk(3, dim=-1)[index]
        norm = (self.attn.q_norm, self.attn.k_norm, _IDENTITY)[index]
        return part if isinstance(norm, nn.Identity) else norm(part.float().unflatten(-1, (self.attn.num_heads, -1))).flatten(2)

    def _heads(self, index: int) -> Float[Tensor, "image head token dim"]:
        return self._part(index).float().unflatten(-1, (self.attn.num_heads, -1)).transpose(1, 2)

    @cached_property
    def q(self) -> Tensor:
        return self._heads(0)

    @cached_property
    def k(self) -> Tensor:
        return self._heads(1)

    @cached_property
    def v(self) -> Tensor:
        return self._heads(2)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        # The query of each head stands alone in a row of zeros as wide as all heads, so that one product takes the keys as they
        # lie in memory; head by head, they would be copied first.
        query, keys = layout.cls_token(self._part(0)), self._part(1)
        alone = _alone(self.attn.num_heads, query.shape[-1], query.dtype, query.device)
        return _product(query[:, None] * alone, keys.mT).mul_(self.scale)  # in float32, which bfloat16 would round

    @property
    def value_bias(self) -> Tensor:
        bias = self.attn.qkv.bias
        bias = self.output.new_zeros(self.attn.qkv.out_features) if bias is None else bias
        return bias.float().unflatten(0, (3, self.attn.num_heads, -1))[2]


class TorchAttention(Attention):
    """From the input of `nn.MultiheadAttention`, which shows nothing of what is inside it (hooks on its out_proj never fire).

    The [CLS] row folds W_k into the [CLS] query (the key bias shifts a whole row and cancels in the softmax), and `weighted`
    projects sums of tokens, so neither costs a second projection of all tokens; q, k and v themselves do.
    """

    def __init__(self, attn: nn.MultiheadAttention, x: Tensor):
        self.x, self.heads, self.scale = x.float(), attn.num_heads, attn.head_dim**-0.5
        self.weights, self.biases = attn.in_proj_weight.float().chunk(3), attn.in_proj_bias.float().chunk(3)

    def _project(self, x: Tensor, part: int) -> Tensor:
        return F.linear(x, self.weights[part], self.biases[part]).unflatten(-1, (self.heads, -1))

    @cached_property
    def q(self) -> Tensor:
        return self._project(self.x, 0).transpose(1, 2)

    @cached_property
    def k(self) -> Tensor:
        return self._project(self.x, 1).transpose(1, 2)

    @cached_property
    def v(self) -> Tensor:
        return self._project(self.x, 2).transpose(1, 2)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        query = self._project(layout.cls_token(self.x), 0) * self.scale
        folded = torch.einsum("bhd,hdw->bhw", query, self.weights[1].unflatten(0, (self.heads, -1)))
        return folded @ self.x.transpose(1, 2)

    @property
    def value_bias(self) -> Tensor:
        return self.biases[2].unflatten(0, (self.heads, -1))

    def weighted(self, weights: Float[Tensor, "image head row token"]) -> Float[Tensor, "image head row dim"]:
        tokens = torch.einsum("bhrt,btw->bhrw", weights, self.x)
        values = torch.einsum("bhrw,hdw->bhrd", tokens, self.weights[2].unflatten(0, (self.heads, -1)))
        return values + weights.sum(dim=-1, keepdim=True) * self.value_bias[:, None]


class Update:
    """What the attention of one block adds to the residual stream: after = before + bias + contribution of the values.

    before, after: (image, token, width), the stream as the model has it, in float32. attention: the Attention.
    bias: (width,), that of the output projection, after LayerScale; zeros where there is none.
    """

    def __init__(self, before: Tensor, attention: Attention, after: Tensor, layers: Sublayer):
        self.before, self.attention, self.after = before.float(), attention, after.float()
        self.weight, bias = layers.projection.weight.float(), layers.projection.bias
        self.gamma = getattr(layers.scale, "gamma", self.weight.new_ones(len(self.weight))).float()
        self.bias = torch.zeros_like(self.gamma) if bias is None else self.gamma * bias.float()

    def contribution(self, values: Float[Tensor, "image head row dim"]) -> Float[Tensor, "image row width"]:
        """What weighted values add to the stream: after output projection and LayerScale, without the bias."""
        return F.linear(values.transpose(1, 2).flatten(-2), self.weight) * self.gamma


class TimmBackbone(Backbone):
    """timm's VisionTransformer (ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP towers), and the controls."""

    family = "timm"
    embed = property(lambda self: self.model.patch_embed)
    blocks = property(lambda self: list(self.model.blocks))
    heads = property(lambda self: self.model.blocks[0].attn.num_heads)
    width = property(lambda self: self.model.embed_dim)
    position_embedding = property(lambda self: None if self.model.pos_embed is None else self.model.pos_embed[0])

    @property
    def final_norm(self) -> nn.Module:
        """The last LayerNorm; models that pool first have it as fc_norm."""
        return self.model.fc_norm if isinstance(self.model.norm, nn.Identity) else self.model.norm

    def patch_grid(self, output: Tensor) -> Float[Tensor, "image row column width"]:
        return output.reshape(len(output), *self.layout.grid, -1)

    def change_embedding(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the patches (image, row, column, width) to which the position embedding is then added."""
        return self.embed.register_forward_hook(lambda _, __, x: change(self.patch_grid(x)).reshape(x.shape))

    def neurons(self, block: int) -> nn.Linear:
        return self._mlp_layer(block, "fc2")

    def sublayer(self, block: int) -> Sublayer:
        layers = self.blocks[block]
        if not hasattr(layers, "ls1") or not isinstance(getattr(layers.attn, "norm", nn.Identity()), nn.Identity):
            raise ValueError(
                f"block {block} of '{self.name}' normalises what its attention returns, so this is no sum over the tokens; "
                "choose another model"
            )
        return Sublayer(layers.norm1, layers.attn.proj, layers.ls1, layers.norm2)

    def watch_attention(self, block: int, see: Callable[[Attention], object]) -> RemovableHandle:
        attn = self.blocks[block].attn
        return attn.qkv.register_forward_hook(lambda _, __, output: _only(see(TimmAttention(attn, output))))

    def watch_feature(self, see: Callable[[Tensor], object]) -> RemovableHandle:
        return self.model.head.register_forward_pre_hook(lambda _, inputs: _only(see(inputs[0])))

    def change_output(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the tokens (image, token, width) that leave the last block, before final norm and pooling."""
        return self.model.norm.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]),))


class OpenClipBackbone(Backbone):
    """The vision tower of an open_clip model."""

    family = "open_clip"
    embed = property(lambda self: self.model.conv1)
    blocks = property(lambda self: list(self.model.transformer.resblocks))
    final_norm = property(lambda self: self.model.ln_post)
    heads = property(lambda self: self.model.transformer.resblocks[0].attn.num_heads)
    width = property(lambda self: self.model.transformer.width)
    position_embedding = property(lambda self: self.model.positional_embedding)

    def patch_grid(self, output: Tensor) -> Float[Tensor, "image row column width"]:
        return output.permute(0, 2, 3, 1)

    def change_embedding(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the patches (image, row, column, width) to which the position embedding is then added."""
        return self.embed.register_forward_hook(lambda _, __, x: change(self.patch_grid(x)).permute(0, 3, 1, 2))

    def neurons(self, block: int) -> nn.Linear:
        return self._mlp_layer(block, "c_proj")

    def sublayer(self, block: int) -> Sublayer:
        layers = self.blocks[block]
        return Sublayer(layers.ln_1, layers.attn.out_proj, layers.ls_1, layers.ln_2)

    def watch_attention(self, block: int, see: Callable[[Attention], object]) -> RemovableHandle:
        return self.blocks[block].attn.register_forward_pre_hook(lambda attn, x: _only(see(TorchAttention(attn, x[0]))))

    def watch_feature(self, see: Callable[[Tensor], object]) -> RemovableHandle:
        return self.model.register_forward_hook(lambda _, __, output: _only(see(output)))

    def change_output(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        return self.model.transformer.register_forward_hook(lambda _, __, output: change(output))


_IDENTITY = nn.Identity()


@lru_cache(maxsize=8)
def _alone(heads: int, width: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "head width"]:
    """One in the columns of each head, else zero. Made once for all blocks: to make it costs as much as to use it."""
    with torch.inference_mode(False):
        return torch.eye(heads, dtype=dtype, device=device).repeat_interleave(width // heads, dim=1)


def _product(a: Float[Tensor, "image row dim"], b: Float[Tensor, "image dim column"]) -> Float[Tensor, "image row column"]:
    """a @ b, summed and returned in float32."""
    if a.device.type == "cuda" and a.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(a, b, out_dtype=torch.float32)  # without a float32 copy of all keys
    return a.float() @ b.float()


def _only(_: object) -> None:
    """A hook that returns anything but None replaces what it saw."""
