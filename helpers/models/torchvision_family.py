"""The Vision Transformers of torchvision, as timm's: the same layers under other names."""

import re
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
import torchvision
from huggingface_hub import constants
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.models.backbone import Backbone
from helpers.models.family import Family, Size
from helpers.models.hub import ModelUnavailable
from helpers.models.timm_family import wrap_at

PREFIX = "torchvision:"
DATA = {
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
    "interpolation": "bilinear",
    "crop_pct": 224 / 256,
}
NAMES = {  # theirs -> timm's
    r"^class_token$": "cls_token",
    r"^conv_proj\.": "patch_embed.proj.",
    r"^encoder\.pos_embedding$": "pos_embed",
    r"^encoder\.layers\.encoder_layer_(\d+)\.": r"blocks.\1.",
    r"\.ln_(\d)\.": r".norm\1.",
    r"\.self_attention\.in_proj_": ".attn.qkv.",
    r"\.self_attention\.out_proj\.": ".attn.proj.",
    r"\.mlp\.(0|linear_1)\.": ".mlp.fc1.",
    r"\.mlp\.(3|linear_2)\.": ".mlp.fc2.",
    r"^encoder\.ln\.": "norm.",
    r"^heads\.head\.": "head.",
}


def is_one(module: nn.Module) -> bool:
    """Whether it is a Vision Transformer of torchvision."""
    return isinstance(module, torchvision.models.VisionTransformer)


def renamed(state: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """A state dict under other names, by regular expressions that are applied in turn."""
    new = {}
    for key, value in state.items():
        for theirs, ours in names.items():
            key = re.sub(theirs, ours, key)
        new[key] = value
    return new


def converted(model: nn.Module, state: dict[str, Tensor] | None = None) -> VisionTransformer:
    """Timm's model with the weights of `model`, shared with it, or `state`.

    Raises ValueError for a head of several layers.
    """
    state = renamed(model.state_dict() if state is None else state, NAMES)
    if odd := [key for key in state if key.startswith("heads.")]:
        raise ValueError(
            f"the head of this torchvision model has several layers ({odd[0]}); give it a head of "
            "one, or none"
        )
    own = {key: value.float() for key, value in state.items()}
    with torch.device("meta"):
        ours = VisionTransformer(
            img_size=model.image_size, patch_size=model.patch_size, embed_dim=model.hidden_dim,
            depth=len(model.encoder.layers), num_heads=model.encoder.layers[0].num_heads,
            mlp_ratio=(model.mlp_dim + 0.5) / model.hidden_dim, num_classes=len(own["head.weight"])
            if "head.weight" in own else 0, norm_layer=partial(nn.LayerNorm,
            eps=model.encoder.ln.eps),
        )  # fmt: skip
    ours.load_state_dict(own, assign=True)
    return ours


def _parts(name: str) -> tuple[str, str]:
    """Architecture, and tag of the weights ('DEFAULT' unless given)."""
    arch, _, tag = name.removeprefix(PREFIX).partition("/")
    return arch, tag or "DEFAULT"


def _names() -> list[str]:
    return [
        f"{PREFIX}{arch}" for arch in torchvision.models.list_models() if arch.startswith("vit_")
    ]


def _known(name: str, pretrained: bool) -> bool:
    arch, tag = _parts(name)
    return (
        f"{PREFIX}{arch}" in _names()
        and tag in torchvision.models.get_model_weights(arch).__members__
    )


def _load(name: str, size: Size | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    arch, tag = _parts(name)
    weights = torchvision.models.get_model_weights(arch)[tag]
    recipe = weights.transforms()
    (own,), (resized,) = recipe.crop_size, recipe.resize_size
    with torch.device("meta"):
        sketch = torchvision.models.get_model(arch, weights=None, image_size=own)
    if pretrained:
        there = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name).is_file()
        try:
            if constants.HF_HUB_OFFLINE and not there:
                raise OSError("offline")
            state = weights.get_state_dict(progress=False, check_hash=True)
        except (URLError, OSError) as error:
            raise ModelUnavailable(
                f"'{name}' is not in torch's cache of downloads, and its server did not give it "
                "(no network, or "
                "HF_HUB_OFFLINE set)"
            ) from error
    else:
        state = torchvision.models.get_model(arch, weights=None, image_size=own).state_dict()
    data: dict[str, Any] = {
        "mean": tuple(recipe.mean), "std": tuple(recipe.std), "interpolation":
        recipe.interpolation.value, "crop_pct": own / resized,
    }  # fmt: skip
    return wrap_at(name, converted(sketch, state), data, size, whole, fit, pretrained)


FAMILY = Family((PREFIX,), (f"'{PREFIX}ARCH'",), _known, _names, _load)
