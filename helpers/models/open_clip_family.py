"""The vision towers of open_clip.

The library is imported when one of them is asked for: a machine without it can run the rest.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from helpers.extras import extra
from helpers.foreign import reading
from helpers.models.attention import Sublayer, TorchAttention
from helpers.models.backbone import Backbone, Change, LayerNames, See, on_input, on_output
from helpers.models.family import UNKNOWN, Family, Framing, loading, require_real
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


def refused_architecture(name: str) -> str:
    """Why 'open_clip:ARCH' is no architecture, without loading anything; '' where it is one."""
    open_clip, arch, _ = _parts(name)
    known = open_clip.list_models()
    return (
        "" if arch in known else f"open_clip has no architecture {arch!r}; {nearest(arch, known)}"
    )


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
    _, arch, tag = _parts(name)
    visual = _made(name, arch, tag if pretrained else None, framing)
    return wrap_open_clip(name, visual, visual.preprocess_cfg, framing, pretrained)


def load_with(
    name: str, arch: str, state: dict[str, Tensor] | None, framing: Framing
) -> OpenClipBackbone:
    """The tower of 'open_clip:ARCH' with exactly these weights; random ones where there are none.

    Raises ValueError where they are not its own.
    """
    visual = _made(name, arch.removeprefix(PREFIX), None, framing)
    if state is not None:
        with reading(f"the weights of '{name}'", "name the architecture that they are for"):
            visual.load_state_dict(state)
        require_real(name, {key: value.dtype for key, value in state.items()})
    return wrap_open_clip(name, visual, visual.preprocess_cfg, framing, state is not None)


@contextmanager
def _unannounced() -> Iterator[None]:
    """Without open_clip's warning of random weights, where they are meant or come later."""
    root, told = logging.getLogger(), lambda record: "initialized randomly" not in str(record.msg)
    root.addFilter(told)
    try:
        yield
    finally:
        root.removeFilter(told)


def _made(name: str, arch: str, tag: str | None, framing: Framing) -> nn.Module:
    """The vision tower of an architecture, with random weights where there is no tag.

    Raises ValueError where it is no Vision Transformer of open_clip.
    """
    open_clip = extra("open_clip")
    vision = open_clip.get_model_config(arch)["vision_cfg"]
    if "timm_model_name" in vision:
        raise ValueError(
            f"the vision tower of '{name}' is timm's '{vision['timm_model_name']}'; choose one of "
            "its timm names"
        )
    if isinstance(vision["layers"], list):
        raise ValueError(f"'{name}' is not a Vision Transformer; choose an open_clip ViT")
    config = open_clip.get_pretrained_cfg(arch, tag) if tag else {}
    size = framing.fitted(name, (vision["patch_size"], vision["patch_size"]))
    with loading(name), nullcontext() if tag else _unannounced():
        open_clip.pretrained.download_pretrained(config)  # apart, so that a miss keeps its error
        return open_clip.create_model(
            arch,
            pretrained=tag,
            pretrained_text=False,
            device=torch.get_default_device(),
            force_image_size=size,
            # The activation belongs to the weights; create_model only warns where the two differ.
            force_quick_gelu=config.get("quick_gelu", False),
        ).visual


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
