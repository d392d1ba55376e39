"""The Vision Transformers of timm: whatever is its VisionTransformer, Eva or Beit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import timm
import torch
from jaxtyping import Float
from timm.layers import AttentionRope
from timm.models import beit
from timm.models.eva import Eva, EvaAttention, EvaBlockPostNorm
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from helpers.models.attention import BiasedAttention, RotaryAttention, Sublayer, TimmAttention
from helpers.models.backbone import (
    Backbone,
    Change,
    Handles,
    LayerNames,
    See,
    on_input,
    on_output,
    replace_input,
)
from helpers.models.family import Framing, loading
from helpers.models.tokens import TokenLayout
from helpers.settings import nearest

BIASES = "relative_position_bias_table"  # of attention, in Beit
MODULES = ("vision_transformer", "deit", "eva", "beit")  # of timm, whose models are known here


class TimmBackbone(Backbone):
    """timm's VisionTransformer (ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP), and the controls."""

    family = "timm"
    attentions = (timm.layers.Attention,)
    unordered = (ResPostBlock, EvaBlockPostNorm)
    names = LayerNames("patch_embed", "blocks", "norm1", "fc2")
    scale_name = "ls1"  # of the LayerScale after the attention of a block, if it has one
    width = property(lambda self: self.model.embed_dim)
    position_embedding = property(
        lambda self: None if self.model.pos_embed is None else self.model.pos_embed[0]
    )

    @property
    def final_norm(self) -> nn.Module:
        """The last LayerNorm; models that pool first have it as fc_norm."""
        return self.model.fc_norm if isinstance(self.model.norm, nn.Identity) else self.model.norm

    def patch_grid(self, output: Tensor) -> Float[Tensor, "image row column width"]:
        return output.reshape(len(output), *self.layout.grid, -1)

    def change_embedding(self, change: Change) -> RemovableHandle:
        return self.embed.register_forward_hook(
            lambda _, __, x: change(self.patch_grid(x)).reshape(x.shape)
        )

    def sublayer(self, block: int) -> Sublayer:
        self.require_attention(block)
        layers, attn = self.blocks[block], self.blocks[block].attn
        sums = (
            isinstance(getattr(attn, "norm", nn.Identity()), nn.Identity)
            and hasattr(layers, self.scale_name)
            and getattr(attn, "gate", None) is None
            and isinstance(attn.proj, nn.Linear)
        )
        if not sums:
            raise ValueError(f"block {block} of '{self.name}' attends, but adds no plain sum")
        scale = getattr(layers, self.scale_name)
        gamma = scale if isinstance(scale, Tensor) else getattr(scale, "gamma", None)
        return Sublayer(attn.proj, gamma, layers.norm2)

    def watch_attention(self, block: int, see: See) -> RemovableHandle:
        attn = self.blocks[block].attn
        return on_output(attn.qkv, lambda output: see(TimmAttention(attn, output)))

    def watch_feature(self, see: See) -> RemovableHandle:
        return on_input(self.model.head, see)

    def change_output(self, change: Change) -> RemovableHandle:
        return replace_input(self.model.norm, change)


class RotaryBackbone(TimmBackbone):
    """timm's Eva: DINOv3, EVA02, Perception Encoder, ViTs with rotary position."""

    attentions = (EvaAttention, AttentionRope)
    scale_name = "gamma_1"

    def require_attention(self, block: int) -> None:
        super().require_attention(block)
        attn = self.blocks[block].attn
        layers = (attn.qkv, attn.q_proj, attn.k_proj, attn.v_proj)
        if any(layer is not None and type(layer) is not nn.Linear for layer in layers):
            raise ValueError(f"block {block} of '{self.name}' has an adapter; merge it first")

    def watch_attention(self, block: int, see: See) -> RemovableHandle:
        def look(attn: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
            see(RotaryAttention(attn, inputs[0], options.get("rope")))

        return self.blocks[block].attn.register_forward_pre_hook(look, with_kwargs=True)

    def lengthen_prefix(self, count: int) -> None:
        for block in self.blocks:
            block.attn.num_prefix_tokens += count

    def change_rotation(self, change: Change) -> Handles:
        def changed(
            _: nn.Module, inputs: tuple, options: dict[str, Any]
        ) -> tuple[tuple, dict[str, Any]] | None:
            rope = options.get("rope")
            return None if rope is None else (inputs, options | {"rope": change(rope)})

        return Handles(
            block.register_forward_pre_hook(changed, with_kwargs=True) for block in self.blocks
        )


class BeitBackbone(TimmBackbone):
    """timm's Beit: BEiT, BEiT v2, data2vec-vision; positions are a bias of the attention."""

    attentions = (beit.Attention,)
    scale_name = "gamma_1"

    def watch_attention(self, block: int, see: See) -> RemovableHandle:
        def look(attn: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
            (x,), bias = inputs, options["shared_rel_pos_bias"]  # (head, token, token) or None
            if bias is None:
                bias = x.new_zeros(attn.num_heads, *(x.shape[1],) * 2)
            if (table := attn.relative_position_bias_table) is not None:
                bias = bias + table[attn.relative_position_index].movedim(-1, 0)
            see(BiasedAttention(attn, x, bias))

        return self.blocks[block].attn.register_forward_pre_hook(look, with_kwargs=True)


KINDS = {VisionTransformer: TimmBackbone, Eva: RotaryBackbone, beit.Beit: BeitBackbone}


def wrap_timm(name: str, model: nn.Module, data: dict[str, Any], pretrained: bool) -> Backbone:
    """A Backbone around a timm model of `KINDS`, put into eval mode, without gradients.

    `data` holds the mean, std, crop_pct... of timm.data.create_transform.
    """
    kind = next((own for theirs, own in KINDS.items() if isinstance(model, theirs)), None)
    if kind is None:
        raise ValueError(f"'{name}' is {type(model).__name__}, no Vision Transformer of timm")
    size, grid = model.patch_embed.img_size, model.patch_embed.grid_size
    if tuple(model.patch_embed.dynamic_feat_size(size)) != tuple(grid):
        raise ValueError(f"'{name}' pads its images of {size} px; choose an image_size that fits")
    layout = TokenLayout(
        grid,
        cls=model.cls_token is not None,
        registers=0 if getattr(model, "reg_token", None) is None else model.reg_token.shape[1],
        distillation=int(hasattr(model, "dist_token")),
        rotary=getattr(model, "rope", None) is not None,
        paired=any(key.endswith(BIASES) for key in model.state_dict()),
    )
    transform = timm.data.create_transform(**data | {"input_size": (3, *size)})
    return kind(name, model, layout, size, model.patch_embed.patch_size, transform, pretrained)


def beit_options(state: Mapping[str, Tensor]) -> dict[str, bool]:
    """The arguments of timm's Beit for these weights: before fine-tuning all blocks share a bias,
    and the norm stands before the pooling.
    """
    absolute, shared = "pos_embed" in state, f"rel_pos_bias.{BIASES}" in state
    return {
        "use_abs_pos_emb": absolute,
        "use_rel_pos_bias": f"blocks.0.attn.{BIASES}" in state or not (absolute or shared),
        "use_shared_rel_pos_bias": shared,
        "use_fc_norm": "fc_norm.weight" in state,
    }


def wrap_at(
    name: str,
    model: nn.Module,
    data: dict[str, Any],
    framing: Framing,
    pretrained: bool = True,
    distilled: bool = False,
) -> Backbone:
    """`wrap_timm` at another size; `distilled`: its one register is a distillation token."""
    patches = model.patch_embed
    size = framing.fitted(name, patches.patch_size) or tuple(patches.img_size)
    if resized := size != tuple(patches.img_size):
        model.set_input_size(img_size=size)
    backbone = wrap_timm(name, model, framing.recipe(data, resized), pretrained)
    if distilled:
        backbone.layout = replace(backbone.layout, registers=0, distillation=1)
    return backbone


def require_plain(name: str) -> None:
    """Raise ValueError where timm has no such Vision Transformer of a class known here."""
    known = timm.list_pretrained() if "." in name else timm.list_models()
    if name not in known:
        raise ValueError(f"unknown model '{name}'; {nearest(name, known)}")
    if not timm.models.is_model_in_modules(name.partition(".")[0], MODULES):
        raise ValueError(f"'{name}' is no plain Vision Transformer of timm")


def load(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """The model of timm that is called `name`."""
    require_plain(name)
    return create(name, name, pretrained, framing)


def create(name: str, source: str, pretrained: bool, framing: Framing, **options: Any) -> Backbone:
    """The Backbone `name` of what timm calls `source`; `options` are those of timm.create_model."""
    with loading(name):
        with torch.device("meta"):
            sketch = timm.create_model(source)
        require_plain(sketch.pretrained_cfg["architecture"])
        data = timm.data.resolve_data_config(pretrained_cfg=sketch.pretrained_cfg)
        size = framing.fitted(name, sketch.patch_embed.patch_size)
        model = timm.create_model(source, pretrained=pretrained, img_size=size, **options)
    resized = size is not None and size != sketch.patch_embed.img_size
    return wrap_timm(name, model, framing.recipe(data, resized), pretrained)
