"""The Vision Transformers of timm.

ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP and SigLIP towers, DINOv3, EVA02, Perception Encoder, and
whatever else is one of its classes.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import timm
import torch
from jaxtyping import Float
from timm.layers import AttentionRope
from timm.models.eva import Eva, EvaAttention, EvaBlockPostNorm
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from helpers.models.attention import Attention, RotaryAttention, Sublayer, TimmAttention
from helpers.models.backbone import Backbone, Handles, only
from helpers.models.family import WHOLE, Family, Size, fitting
from helpers.models.hub import loading
from helpers.models.tokens import TokenLayout


class TimmBackbone(Backbone):
    """timm's VisionTransformer (ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP), and the controls."""

    family = "timm"
    attentions: ClassVar[tuple[type, ...]] = (timm.layers.Attention,)
    embed = property(lambda self: self.model.patch_embed)
    blocks = property(lambda self: list(self.model.blocks))
    heads = property(lambda self: self.model.blocks[0].attn.num_heads)
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

    def change_embedding(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        return self.embed.register_forward_hook(
            lambda _, __, x: change(self.patch_grid(x)).reshape(x.shape)
        )

    def neurons(self, block: int) -> nn.Module:
        return self.mlp_layer(block, "fc2")

    def sublayer(self, block: int) -> Sublayer:
        self.require_attention(block)
        layers, attn = self.blocks[block], self.blocks[block].attn
        odd = (
            "normalises what its attention returns"
            if not isinstance(getattr(attn, "norm", nn.Identity()), nn.Identity)
            or not hasattr(layers, self.scale_name)
            else "gates what its attention returns"
            if getattr(attn, "gate", None) is not None
            else f"projects what its attention returns by {type(attn.proj).__name__}"
            if not isinstance(attn.proj, nn.Linear)
            else ""
        )
        if odd:
            raise ValueError(
                f"block {block} of '{self.name}' {odd}, so this is no sum over the tokens; choose "
                "another model"
            )
        scale = getattr(layers, self.scale_name)
        return Sublayer(
            layers.norm1,
            attn.proj,
            scale if isinstance(scale, Tensor) else getattr(scale, "gamma", None),
            layers.norm2,
        )

    @property
    def scale_name(self) -> str:
        """What blocks call the LayerScale after their attention, if they have one."""
        return "ls1"

    def require_attention(self, block: int) -> None:
        kind = type(getattr(self.blocks[block], "attn", None))
        if kind not in self.attentions:
            told = "no attention of its own" if kind is type(None) else kind.__name__
            raise ValueError(
                f"block {block} of '{self.name}' is {type(self.blocks[block]).__name__} with "
                f"{told}, whose rows are no softmax "
                "of one product of queries and keys; choose another model, or what needs no "
                "attention"
            )

    def require_order(self, block: int) -> None:
        layers = self.blocks[block]
        if isinstance(layers, ResPostBlock | EvaBlockPostNorm) or not isinstance(
            getattr(layers, "norm1", None), nn.Module
        ):
            raise ValueError(
                f"block {block} of '{self.name}' is {type(layers).__name__}, whose first layer is "
                "no LayerNorm known here; "
                "choose another model"
            )

    def watch_attention(self, block: int, see: Callable[[Attention], object]) -> RemovableHandle:
        attn = self.blocks[block].attn
        return attn.qkv.register_forward_hook(
            lambda _, __, output: only(see(TimmAttention(attn, output)))
        )

    def watch_feature(self, see: Callable[[Tensor], object]) -> RemovableHandle:
        return self.model.head.register_forward_pre_hook(lambda _, inputs: only(see(inputs[0])))

    def change_output(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        return self.model.norm.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]),))


class RotaryBackbone(TimmBackbone):
    """timm's Eva: DINOv3, EVA02, Perception Encoder, ViTs with rotary position."""

    attentions = (EvaAttention, AttentionRope)

    @property
    def scale_name(self) -> str:
        return "gamma_1"

    def require_attention(self, block: int) -> None:
        super().require_attention(block)
        attn = self.blocks[block].attn
        if any(
            type(layer) is not nn.Linear
            for layer in (attn.qkv, attn.q_proj, attn.k_proj, attn.v_proj)
            if layer is not None
        ):
            raise ValueError(
                f"block {block} of '{self.name}' projects queries and keys by an adapter; merge it "
                "first, as load_backbone does"
            )

    def watch_attention(self, block: int, see: Callable[[Attention], object]) -> RemovableHandle:
        def look(attn: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
            see(RotaryAttention(attn, inputs[0], options.get("rope")))

        return self.blocks[block].attn.register_forward_pre_hook(look, with_kwargs=True)

    def lengthen_prefix(self, count: int) -> None:
        for block in self.blocks:
            block.attn.num_prefix_tokens += count

    def change_rotation(self, change: Callable[[Tensor], Tensor]) -> Handles:
        def changed(
            _: nn.Module, inputs: tuple, options: dict[str, Any]
        ) -> tuple[tuple, dict[str, Any]] | None:
            rope = options.get("rope")
            return None if rope is None else (inputs, options | {"rope": change(rope)})

        return Handles(
            block.register_forward_pre_hook(changed, with_kwargs=True) for block in self.blocks
        )


def wrap_timm(name: str, model: nn.Module, data: dict[str, Any], pretrained: bool) -> Backbone:
    """A Backbone around a timm VisionTransformer or Eva, put into eval mode, without gradients.

    `data` holds the mean, std, crop_pct... of timm.data.create_transform. Raises ValueError for
    another class.
    """
    if not isinstance(model, VisionTransformer | Eva):
        raise ValueError(
            f"'{name}' is {type(model).__name__}, no Vision Transformer of timm; choose one of its "
            "vit_*, deit*, eva*"
        )
    size, registers = (
        model.patch_embed.img_size,
        0 if model.reg_token is None else model.reg_token.shape[1],
    )
    layout = TokenLayout(
        model.patch_embed.grid_size, model.cls_token is not None, registers, int(hasattr(model,
        "dist_token")), rotary=getattr(model, "rope", None) is not None,
    )  # fmt: skip
    transform = timm.data.create_transform(**data | {"input_size": (3, *size)})
    kind = RotaryBackbone if isinstance(model, Eva) else TimmBackbone
    return kind(name, model, layout, size, model.patch_embed.patch_size, transform, pretrained)


def wrap_own(
    name: str,
    model: VisionTransformer,
    data: dict[str, Any],
    size: Size | None,
    whole: bool,
    fit: bool,
) -> Backbone:
    """A Backbone around a model that this project made.

    The arguments as in `wrap_timm` and `load_backbone`.
    """
    return wrap_at(name, model, data, size, whole, fit, True)


def wrap_at(
    name: str, model: nn.Module, data: dict[str, Any], size: Size | None, whole: bool, fit: bool,
    pretrained: bool, distilled: bool = False,
) -> Backbone:  # fmt: skip
    """`wrap_timm` at another image size, which the model then has.

    `distilled`: its one register is a distillation token.
    """
    if isinstance(model, VisionTransformer | Eva) and size is not None:
        size = fitting(name, size, model.patch_embed.patch_size, fit)
        if size != tuple(model.patch_embed.img_size):
            model.set_input_size(img_size=size)
            data = data | {
                "crop_pct": 1.0
            }  # a margin cropped away belongs to the size that the recipe was made for
    backbone = wrap_timm(name, model, data | WHOLE if whole else data, pretrained)
    if distilled and not backbone.layout.distillation:
        backbone.layout = replace(backbone.layout, registers=0, distillation=1)
    return backbone


def _known(name: str, pretrained: bool) -> bool:
    return name in timm.list_models() or name in timm.list_pretrained()


def _names() -> list[str]:
    return [name for name in timm.list_pretrained() if is_plain(name.partition(".")[0])]


def is_plain(arch: str) -> bool:
    """Whether timm's architecture `arch` is a Vision Transformer of a class known here."""
    return timm.models.is_model_in_modules(arch, ["vision_transformer", "deit", "eva"])


def _load(name: str, size: Size | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    if not is_plain(name.partition(".")[0]):
        raise ValueError(
            f"'{name}' is not a plain Vision Transformer; choose one of timm's vit_*, deit*, eva* "
            "or flexivit_*"
        )
    return create(name, name, size, pretrained, whole, fit)


def create(
    name: str,
    source: str,
    size: Size | None,
    pretrained: bool,
    whole: bool,
    fit: bool,
    **options: Any,
) -> Backbone:
    """The Backbone `name` of what timm calls `source`.

    `options` for timm.create_model, others as in `load_backbone`.
    """
    with torch.device("meta"):  # the architecture without memory, before anything is downloaded
        sketch = timm.create_model(source)
    data = timm.data.resolve_data_config(pretrained_cfg=sketch.pretrained_cfg)
    if size is not None:
        size = fitting(name, size, sketch.patch_embed.patch_size, fit)
        # A margin cropped away belongs to the size that the recipe was made for.
        data["crop_pct"] = data["crop_pct"] if size == sketch.patch_embed.img_size else 1.0
    with loading(name):
        model = timm.create_model(source, pretrained=pretrained, img_size=size, **options)
    return wrap_timm(name, model, data | WHOLE if whole else data, pretrained)


FAMILY = Family(prefixes=(), forms=("a timm name",), known=_known, names=_names, load=_load)
