"""The vision towers of open_clip, which is imported when one is asked for."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from helpers.models.attention import Sublayer, TorchAttention
from helpers.models.backbone import Backbone, Change, LayerNames, See, on_input, on_output
from helpers.models.family import Framing, loading, require_real
from helpers.models.tokens import TokenLayout
from helpers.settings import nearest

PREFIX = "open_clip:"
ANCHOR = "conv1.weight"  # of every tower, behind whatever prefix a wrapper gave


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
        return Sublayer(layers.attn.out_proj, getattr(layers.ls_1, "gamma", None), layers.ln_2)

    def watch_attention(self, block: int, see: See) -> RemovableHandle:
        attn = self.blocks[block].attn
        return on_input(attn, lambda x: see(TorchAttention(attn, x)))

    def watch_feature(self, see: See) -> RemovableHandle:
        return on_output(self.model, see)

    def change_output(self, change: Change) -> RemovableHandle:
        return self.model.transformer.register_forward_hook(lambda _, __, output: change(output))


def load(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """'open_clip:ARCH/TAG'."""
    arch, _, tag = name.removeprefix(PREFIX).partition("/")
    visual = _made(name, arch, tag if pretrained else None, framing)
    return wrap_open_clip(name, visual, visual.preprocess_cfg, framing, pretrained)


def load_with(
    name: str, arch: str, state: dict[str, Tensor] | None, framing: Framing
) -> OpenClipBackbone:
    """The tower of 'open_clip:ARCH' with exactly these weights; with random ones without."""
    visual = _made(name, arch.removeprefix(PREFIX), None, framing)
    if state is not None:
        require_real(name, state)
        with loading(name):
            visual.load_state_dict(state)
    return wrap_open_clip(name, visual, visual.preprocess_cfg, framing, state is not None)


def _made(name: str, arch: str, tag: str | None, framing: Framing) -> nn.Module:
    """The vision tower of an architecture, with random weights where there is no tag."""
    import open_clip

    if (config := open_clip.get_model_config(arch)) is None:
        raise ValueError(f"unknown model '{name}'; {nearest(arch, open_clip.list_models())}")
    vision = config["vision_cfg"]
    if not isinstance(vision.get("layers"), int):
        raise ValueError(f"the tower of '{name}' is a ResNet or timm's")
    weights = open_clip.get_pretrained_cfg(arch, tag) if tag else {}
    if tag and not weights:
        tags = open_clip.list_pretrained_tags_by_model(arch)
        raise ValueError(f"unknown model '{name}'; {nearest(tag, tags)}")
    size = framing.fitted(name, (vision["patch_size"], vision["patch_size"]))
    with loading(name):
        open_clip.pretrained.download_pretrained(weights)  # apart, so that a miss keeps its error
        return open_clip.create_model(
            arch,
            pretrained=tag,
            pretrained_text=False,
            device=torch.get_default_device(),
            force_image_size=size,
            # The activation belongs to the weights; create_model only warns where the two differ.
            force_quick_gelu=weights.get("quick_gelu", False),
        ).visual


def wrap_open_clip(
    name: str, visual: nn.Module, recipe: dict[str, Any], framing: Framing, pretrained: bool = True
) -> Backbone:
    """A Backbone around the vision tower of open_clip; `recipe` is its preprocess_cfg."""
    from open_clip import transform

    visual.output_tokens = False
    squash = {"resize_mode": "squash"} if framing.whole else {}
    return OpenClipBackbone(
        name,
        visual,
        TokenLayout(visual.grid_size),
        visual.image_size,
        visual.patch_size,
        transform.image_transform_v2(transform.PreprocessCfg(**recipe | squash), is_train=False),
        pretrained,
    )
