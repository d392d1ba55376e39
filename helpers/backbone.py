"""Backbone: one face over the Vision Transformers of timm and open_clip, and where to look inside them.

Everything that differs between the two libraries stands here, so that no other module asks where a model comes from.
`helpers.models` makes Backbones from names.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from helpers.tokens import TokenLayout


@dataclass(eq=False)
class Backbone:
    """A Vision Transformer in eval mode without gradients, and where to look inside it.

    Attributes:
        layout: where its tokens stand; an intervention that appends tokens replaces it for as long as it lasts.
        image_size, patch_size: (height, width) in pixels.
        transform: PIL RGB image -> normalised pixels (3, height, width).
        pretrained: False for random weights; True for the controls, whose weights are constructed.
    """

    name: str
    model: nn.Module
    layout: TokenLayout
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    transform: Callable[[Image.Image], Tensor]
    pretrained: bool

    family: ClassVar[str]
    embed: ClassVar[nn.Module]  # its output: the patch embedding before the position embedding
    blocks: ClassVar[list[nn.Module]]  # their output: the residual stream (image, token, width)
    final_norm: ClassVar[nn.Module]
    heads: ClassVar[int]
    width: ClassVar[int]

    def __call__(self, pixels: Float[Tensor, "image 3 height width"]) -> Any:
        """What the model returns: class logits where the checkpoint has a head, else its feature."""
        return self.model(pixels)

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

    def watch(self, point: str, block: int, see: Callable[[Any], object]) -> RemovableHandle:
        """Call `see` in every forward pass with what goes through `point` of `block`; nothing is changed.

        Points of a block: 'residual' (image, token, width), after the block; 'final', the same through the model's final norm;
        'neurons' (image, token, hidden), the input of the second MLP layer, which is the neuron in gated MLPs too;
        'attention', an Attention. Points of the model, whatever the block: 'pixels' (image, 3, height, width), normalised;
        'embedding' (image, row, column, width), patches before the position embedding; 'feature' (image, width), pooled, before
        the classification head; 'output', what the model returns.
        Remove the handle afterwards. Raises ValueError for another point.
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
        if point == "feature":
            return self.watch_feature(see)
        if point == "output":
            return self.model.register_forward_hook(lambda _, __, output: _only(see(output)))
        points = "pixels, embedding, residual, final, neurons, attention, feature or output"
        raise ValueError(f"unknown point '{point}'; choose {points}")

    def change_input(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        """Replace the tokens (image, token, width) that enter the first block, after position embedding and CLIP's ln_pre."""
        return self.blocks[0].register_forward_pre_hook(lambda _, inputs: (change(inputs[0]), *inputs[1:]))


class Attention:
    """The attention of one block as a forward pass computed it, in float32; nothing is projected twice unless noted.

    q, k, v: (image, head, token, head_dim), after q_norm and k_norm where the model has them. scale: 1/sqrt(head_dim).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float

    def cls_row(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        """Softmax over all tokens of what [CLS] attends to."""
        return (self.cls_logits(layout) * self.scale).softmax(dim=-1)

    def cls_logits(self, layout: TokenLayout) -> Float[Tensor, "image head token"]:
        """[CLS] query times every key, before scaling."""
        return (self.k @ layout.cls_token(self.q)[..., None]).squeeze(-1)


class TimmAttention(Attention):
    """From the output of timm's `qkv` layer: (image, token, 3 x head x head_dim)."""

    def __init__(self, attn: nn.Module, output: Tensor):
        self.attn, self.scale = attn, attn.scale
        self.parts = output.float().unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)

    @cached_property
    def q(self) -> Tensor:
        return self.attn.q_norm(self.parts[0])

    @cached_property
    def k(self) -> Tensor:
        return self.attn.k_norm(self.parts[1])

    @cached_property
    def v(self) -> Tensor:
        return self.parts[2]


class TorchAttention(Attention):
    """From the input of `nn.MultiheadAttention`, which shows nothing of what is inside it (hooks on its out_proj never fire).

    The [CLS] row folds W_k into the [CLS] query (the key bias shifts a whole row and cancels in the softmax), so it costs no
    second projection; q, k and v themselves do.
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
        query = self._project(layout.cls_token(self.x), 0)
        folded = torch.einsum("bhd,hdw->bhw", query, self.weights[1].unflatten(0, (self.heads, -1)))
        return folded @ self.x.transpose(1, 2)


class TimmBackbone(Backbone):
    """timm's VisionTransformer (ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP towers), and the controls."""

    family = "timm"
    embed = property(lambda self: self.model.patch_embed)
    blocks = property(lambda self: list(self.model.blocks))
    heads = property(lambda self: self.model.blocks[0].attn.num_heads)
    width = property(lambda self: self.model.embed_dim)

    @property
    def final_norm(self) -> nn.Module:
        """The last LayerNorm; models that pool first have it as fc_norm."""
        return self.model.fc_norm if isinstance(self.model.norm, nn.Identity) else self.model.norm

    def patch_grid(self, output: Tensor) -> Float[Tensor, "image row column width"]:
        return output.reshape(len(output), *self.layout.grid, -1)

    def neurons(self, block: int) -> nn.Module:
        return self.blocks[block].mlp.fc2

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

    def patch_grid(self, output: Tensor) -> Float[Tensor, "image row column width"]:
        return output.permute(0, 2, 3, 1)

    def neurons(self, block: int) -> nn.Module:
        return self.blocks[block].mlp.c_proj

    def watch_attention(self, block: int, see: Callable[[Attention], object]) -> RemovableHandle:
        return self.blocks[block].attn.register_forward_pre_hook(lambda attn, x: _only(see(TorchAttention(attn, x[0]))))

    def watch_feature(self, see: Callable[[Tensor], object]) -> RemovableHandle:
        return self.model.register_forward_hook(lambda _, __, output: _only(see(output)))

    def change_output(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        return self.model.transformer.register_forward_hook(lambda _, __, output: change(output))


def _only(_: object) -> None:
    """A hook that returns anything but None replaces what it saw."""
