"""The vision towers of open_clip.

The library is imported when one of them is asked for: a machine without it can run the rest.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from helpers.extras import extra
from helpers.models.attention import Sublayer, TorchAttention
from helpers.models.backbone import Backbone, Change, LayerNames, See, on_input, on_output
from helpers.models.family import UNKNOWN, Family, Framing, loading
from helpers.models.tokens import TokenLayout

PREFIX = "open_clip:"


class OpenClipBackbone(Backbone):
    """The vision tower of an open_clip model."""

    family = "open_clip"
    attentions = (nn.MultiheadAttention,)
    names = LayerNames("conv1", "transformer.resblocks", "ln_1", "c_proj")
    final_norm = property(lambda self: self.model.ln_post)
    width = property(lambda self: self.model.transformer.width)
    position_embedding = property(lambda self: self.model.positional_embedding)

    def patch_grid(self, output: Tensor) -> Float[Tensor, "image row column width"]:
        return output.permute(0, 2, 3, 1)

    def change_embedding(self, change: Change) -> RemovableHandle:
        return self.embed.register_forward_hook(
            lambda _, __, x: change(self.patch_grid(x)).permute(0, 3, 1, 2)
        )

    def sublayer(self, block: int) -> Sublayer:
        self.require_attention(block)
        layers = self.blocks[block]
        return Sublayer(
            layers.ln_1, layers.attn.out_proj, getattr(layers.ls_1, "gamma", None), layers.ln_2
        )

    def watch_attention(self, block: int, see: See) -> RemovableHandle:
        attn = self.blocks[block].attn
        return on_input(attn, lambda x: see(TorchAttention(attn, x)))

    def watch_feature(self, see: See) -> RemovableHandle:
        return on_output(self.model, see)

    def change_output(self, change: Change) -> RemovableHandle:
        return self.model.transformer.register_forward_hook(lambda _, __, output: change(output))


def _parts(name: str) -> tuple[Any, str, str]:
    """The library, and architecture and tag of the model."""
    arch, _, tag = name.removeprefix(PREFIX).partition("/")
    return extra("open_clip"), arch, tag


def _refused(name: str, pretrained: bool) -> str:
    open_clip, arch, tag = _parts(name)
    known = arch in open_clip.list_models() and (
        not pretrained or open_clip.pretrained.is_pretrained_cfg(arch, tag)
    )
    return "" if known else UNKNOWN


def _names() -> list[str]:
    """The plain Vision Transformers; none where open_clip is not installed."""
    try:
        open_clip = extra("open_clip")
    except ImportError:
        return []
    names = []
    for arch, tag in open_clip.list_pretrained():
        vision = open_clip.get_model_config(arch)["vision_cfg"]
        if "timm_model_name" not in vision and isinstance(vision["layers"], int):
            names.append(f"{PREFIX}{arch}/{tag}")
    return names


def _load(name: str, pretrained: bool, framing: Framing) -> Backbone:
    open_clip, arch, tag = _parts(name)
    vision = open_clip.get_model_config(arch)["vision_cfg"]
    if "timm_model_name" in vision:
        raise ValueError(
            f"the vision tower of '{name}' is timm's '{vision['timm_model_name']}'; choose one of "
            "its timm names"
        )
    if isinstance(vision["layers"], list):
        raise ValueError(f"'{name}' is not a Vision Transformer; choose an open_clip ViT")
    config = open_clip.get_pretrained_cfg(arch, tag) if pretrained else {}
    size = framing.fitted(name, (vision["patch_size"], vision["patch_size"]))
    with loading(name):
        open_clip.pretrained.download_pretrained(config)  # apart, so that a miss keeps its error
        visual = open_clip.create_model(
            arch,
            pretrained=tag if pretrained else None,
            pretrained_text=False,
            device=torch.get_default_device(),
            force_image_size=size,
            # The activation belongs to the weights; create_model only warns where the two differ.
            force_quick_gelu=config.get("quick_gelu", False),
        ).visual
    return wrap_open_clip(name, visual, visual.preprocess_cfg, framing, pretrained)


def wrap_open_clip(
    name: str, visual: nn.Module, recipe: dict[str, Any], framing: Framing, pretrained: bool = True
) -> Backbone:
    """A Backbone around the vision tower of open_clip; `recipe` is its preprocess_cfg."""
    transform = extra("open_clip").transform
    visual.output_tokens = False
    recipe = transform.PreprocessCfg(
        **recipe | ({"resize_mode": "squash"} if framing.whole else {})
    )
    return OpenClipBackbone(
        name,
        visual,
        TokenLayout(visual.grid_size),
        visual.image_size,
        visual.patch_size,
        transform.image_transform_v2(recipe, is_train=False),
        pretrained,
    )


FAMILY = Family((PREFIX,), (f"'{PREFIX}ARCH/TAG'",), _refused, _load, _names)
