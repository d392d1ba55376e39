"""The Vision Transformers of timm (ViT, DeiT, DeiT-III, DINO, DINOv2, CLIP towers), and whatever else is one of its classes."""

from collections.abc import Callable
from typing import Any

import timm
import torch
from jaxtyping import Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from helpers.models.attention import Attention, Sublayer, TimmAttention
from helpers.models.backbone import Backbone, only
from helpers.models.family import WHOLE, Family, Size, fitting
from helpers.models.hub import loading
from helpers.models.tokens import TokenLayout


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
        return self.embed.register_forward_hook(lambda _, __, x: change(self.patch_grid(x)).reshape(x.shape))

    def neurons(self, block: int) -> nn.Linear:
        return self.mlp_layer(block, "fc2")

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
        return attn.qkv.register_forward_hook(lambda _, __, output: only(see(TimmAttention(attn, output))))

    def watch_feature(self, see: Callable[[Tensor], object]) -> RemovableHandle:
        return self.model.head.register_forward_pre_hook(lambda _, inputs: only(see(inputs[0])))

    def change_output(self, change: Callable[[Tensor], Tensor]) -> RemovableHandle:
        return self.model.norm.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]),))


def wrap_timm(name: str, model: nn.Module, data: dict[str, Any], pretrained: bool) -> Backbone:
    """A Backbone around a timm VisionTransformer; `data` holds the mean, std, crop_pct... of timm.data.create_transform."""
    _refuse_unusual(name, model)
    size, registers, distillation = model.patch_embed.img_size, model.num_reg_tokens, int(hasattr(model, "dist_token"))
    layout = TokenLayout(model.patch_embed.grid_size, model.cls_token is not None, registers, distillation)
    transform = timm.data.create_transform(**data | {"input_size": (3, *size)})
    return TimmBackbone(name, model, layout, size, model.patch_embed.patch_size, transform, pretrained)


def wrap_own(name: str, model: VisionTransformer, data: dict[str, Any], size: Size | None, whole: bool, fit: bool) -> Backbone:
    """A Backbone around a model that this project made; the arguments as in `wrap_timm` and `load_backbone`."""
    if size is not None:
        model.set_input_size(img_size=fitting(name, size, model.patch_embed.patch_size, fit))
    return wrap_timm(name, model, data | WHOLE if whole else data, pretrained=True)


def _known(name: str, pretrained: bool) -> bool:
    return name in timm.list_models() or name in timm.list_pretrained()


def _names() -> list[str]:
    return [name for name in timm.list_pretrained() if _is_plain(name.partition(".")[0])]


def _is_plain(arch: str) -> bool:
    return timm.models.is_model_in_modules(arch, ["vision_transformer", "deit"])


def _load(name: str, size: Size | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    arch = name.partition(".")[0]
    if timm.models.is_model_in_modules(arch, ["eva"]):
        raise ValueError(f"'{name}' applies rotary embedding after qkv, so a plain qkv hook would be silently wrong")
    if not _is_plain(arch):
        raise ValueError(f"'{name}' is not a plain Vision Transformer; choose one of timm's vit_*, deit* or flexivit_*")
    with torch.device("meta"):  # the architecture without memory: refuse before anything is downloaded
        sketch = timm.create_model(name)
    _refuse_unusual(name, sketch)
    data = timm.data.resolve_data_config(pretrained_cfg=sketch.pretrained_cfg)
    if size is not None:
        size = fitting(name, size, sketch.patch_embed.patch_size, fit)
        # A margin cropped away belongs to the size that the recipe was made for.
        data["crop_pct"] = data["crop_pct"] if size == sketch.patch_embed.img_size else 1.0
    with loading(name):
        model = timm.create_model(name, pretrained=pretrained, img_size=size)
    return wrap_timm(name, model, data | WHOLE if whole else data, pretrained)


def _refuse_unusual(name: str, model: nn.Module) -> None:
    """Raise ValueError where softmax(q k) of the qkv layer is not what the blocks compute."""
    for block in model.blocks if isinstance(model, VisionTransformer) else [None]:
        attn = getattr(block, "attn", None)
        plain = type(attn) is timm.layers.Attention and getattr(attn, "gate", None) is None
        if not plain or not hasattr(block.mlp, "fc2"):
            raise ValueError(
                f"'{name}' has {type(block).__name__} with {type(attn).__name__}, not plain attention followed by "
                "an MLP, so a plain qkv hook would be silently wrong; choose another"
            )


FAMILY = Family(prefixes=(), forms=("a timm name",), known=_known, names=_names, load=_load)
