"""The Vision Transformers of torchvision and of transformers, as timm's: its layers, their weights.

Of transformers ViT, DeiT, DINOv2 with and without registers, and the vision towers of CLIP and
SigLIP, read from `config.json` and the weights, so that library need not be here. Names are those
of its files (which version 4 has in memory, too) and those that version 5 has in memory.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from jaxtyping import Float
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from timm.layers import GELUTanh, QuickGELU, SwiGLUPacked
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.foreign import mismatch, one_line, read_json
from helpers.models.backbone import Backbone
from helpers.models.family import (
    MEANS,
    REPOSITORY,
    SIDE,
    SIDES,
    STDS,
    UNKNOWN,
    Family,
    Framing,
    ModelUnavailable,
    loading,
    located,
    require_real,
    saved_in,
)
from helpers.models.timm_family import wrap_at

PREFIX, TORCHVISION = "transformers:", "torchvision:"


def _renamed(state: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """A state dict in float32 under other names, by regular expressions applied in turn."""
    new = {}
    for key, value in state.items():
        for theirs, ours in names.items():
            key = re.sub(theirs, ours, key)
        if key in new:
            raise ValueError(f"two of the weights are both {one_line(key)!r}; save the model again")
        new[key] = value.float()
    return new


# ---- torchvision
# --------------------------------------------------------------------------------------------------

_IMAGENET = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
TORCHVISION_DATA = _IMAGENET | {"interpolation": "bilinear", "crop_pct": 224 / 256}
TORCHVISION_NAMES = {  # theirs -> timm's
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


def from_torchvision(model: nn.Module, state: Mapping[str, Tensor]) -> VisionTransformer:
    """Timm's model with the weights `state` of a torchvision `model`.

    Raises ValueError for a head of several layers.
    """
    own = _renamed(state, TORCHVISION_NAMES)
    if odd := [key for key in own if key.startswith("heads.")]:
        raise ValueError(
            f"the head of this torchvision model has several layers ({odd[0]}); give it a head of "
            "one, or none"
        )
    with torch.device("meta"):
        ours = VisionTransformer(
            img_size=model.image_size,
            patch_size=model.patch_size,
            embed_dim=model.hidden_dim,
            depth=len(model.encoder.layers),
            num_heads=model.encoder.layers[0].num_heads,
            mlp_ratio=(model.mlp_dim + 0.5) / model.hidden_dim,
            num_classes=len(own.get("head.weight", ())),
            norm_layer=partial(nn.LayerNorm, eps=model.encoder.ln.eps),
        )
    ours.load_state_dict(own, assign=True)
    return ours


def _torchvision_names() -> list[str]:
    architectures = torchvision.models.list_models()
    return [f"{TORCHVISION}{arch}" for arch in architectures if arch.startswith("vit_")]


def _parts(name: str) -> tuple[str, str]:
    """Architecture, and tag of the weights ('DEFAULT' unless given)."""
    arch, _, tag = name.removeprefix(TORCHVISION).partition("/")
    return arch, tag or "DEFAULT"


def _refused_torchvision(name: str, pretrained: bool) -> str:
    arch, tag = _parts(name)
    known = (
        f"{TORCHVISION}{arch}" in _torchvision_names()
        and tag in torchvision.models.get_model_weights(arch).__members__
    )
    return "" if known else UNKNOWN


def _load_torchvision(name: str, pretrained: bool, framing: Framing) -> Backbone:
    arch, tag = _parts(name)
    weights = torchvision.models.get_model_weights(arch)[tag]
    recipe = weights.transforms()
    (own,), (resized,) = recipe.crop_size, recipe.resize_size
    make = partial(torchvision.models.get_model, arch, weights=None, image_size=own)
    with torch.device("meta"):
        sketch = make()
    if pretrained:
        there = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name).is_file()
        try:
            if constants.HF_HUB_OFFLINE and not there:
                raise OSError("offline")
            state = weights.get_state_dict(progress=False, check_hash=True)
        except OSError as error:
            raise ModelUnavailable(
                f"'{name}' is not in torch's cache of downloads, and its server did not give it "
                "(no network, or HF_HUB_OFFLINE set)"
            ) from error
    else:
        state = make().state_dict()
    data = {
        "mean": tuple(recipe.mean),
        "std": tuple(recipe.std),
        "interpolation": recipe.interpolation.value,
        "crop_pct": own / resized,
    }
    return wrap_at(name, from_torchvision(sketch, state), data, framing, pretrained)


# ---- transformers
# --------------------------------------------------------------------------------------------------

_CLIP = {"mean": OPENAI_CLIP_MEAN, "std": OPENAI_CLIP_STD}
_HALF = {"mean": IMAGENET_INCEPTION_MEAN, "std": IMAGENET_INCEPTION_STD}
_DINO = _IMAGENET | {"interpolation": "bicubic", "crop_pct": 224 / 256}
# What each kind expects where no preprocessor_config.json says it.
KINDS: dict[str, dict[str, Any]] = {
    "vit": _HALF | {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"},
    "deit": _DINO,
    "dinov2": _DINO,
    "dinov2_with_registers": _DINO,
    "clip": _CLIP | {"interpolation": "bicubic", "crop_pct": 1.0},
    "siglip": _HALF | {"interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "squash"},
}
ACTIVATIONS: dict[str, Callable] = {
    "gelu": nn.GELU, "quick_gelu": QuickGELU, "gelu_pytorch_tanh": GELUTanh, "gelu_new": GELUTanh,
    "relu": nn.ReLU, "silu": nn.SiLU, "swish": nn.SiLU,
}  # fmt: skip
# Of transformers' classes, where a config.json leaves them out; of all others 1e-6 and GELU.
DEFAULTS = {
    "vit": {"layer_norm_eps": 1e-12},
    "deit": {"layer_norm_eps": 1e-12},
    "clip": {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"},
    "siglip": {"hidden_act": "gelu_pytorch_tanh"},
}
SAVE = "save the model again with transformers"
INDEX = {  # a model.safetensors.index.json: names of files beside it
    "type": "object",
    "required": ["weight_map"],
    "properties": {
        "weight_map": {
            "type": "object",
            "additionalProperties": {"type": "string", "pattern": r"^[\w.-]+\.safetensors$"},
        }
    },
}
# What is read here of a config.json: of the tower, which CLIP and SigLIP may have within.
_TOWER = {
    "type": "object",
    "required": [
        "hidden_size",
        "image_size",
        "patch_size",
        "num_hidden_layers",
        "num_attention_heads",
    ],
    "properties": {
        "hidden_size": SIDE,
        "image_size": SIDES,
        "patch_size": SIDES,
        "num_hidden_layers": SIDE | {"maximum": 128},
        "num_attention_heads": SIDE,
        "layer_norm_eps": {"type": "number", "minimum": 0, "maximum": 1},
        "hidden_act": {"type": "string"},
        "use_swiglu_ffn": {"type": ["boolean", "null"]},
    },
}
_SHOWN = {  # sides of an image, alone or by name
    "anyOf": [
        {**SIDE, "type": ["integer", "null"]},
        {"type": "object", "additionalProperties": {**SIDE, "type": ["integer", "null"]}},
    ],
}
INTERPOLATIONS = {
    0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"
}  # fmt: skip
_FLAG = {"type": ["boolean", "null"]}
PROCESSOR = {  # a preprocessor_config.json
    "type": "object",
    "properties": {
        "image_mean": MEANS,
        "image_std": STDS,
        "resample": {"enum": [*INTERPOLATIONS, None]},
        "size": _SHOWN,
        "crop_size": _SHOWN,
        "rescale_factor": {"type": ["number", "null"], "minimum": 1e-6, "maximum": 1e6},
        "do_resize": {
            "enum": [True, None],
            "errorMessage": "images of any size cannot go into one batch",
        },
        "do_center_crop": _FLAG,
        "do_normalize": _FLAG,
        "do_rescale": _FLAG,
    },
}
NAMES = {  # theirs -> timm's, within a tower
    r"^embeddings\.patch_embeddings?\.(projection\.)?": "patch_embed.proj.",
    r"^embeddings\.position_embeddings?(\.weight)?$": "pos_embed",
    r"^embeddings\.(cls_token|class_embedding)$": "cls_token",
    r"^embeddings\.distillation_token$": "dist_token",
    r"^embeddings\.register_tokens$": "reg_token",
    r"^(encoder\.)?layers?\.(\d+)\.": r"blocks.\2.",
    r"\.attention\.attention\.(query|key|value)\.": r".attn.\1.",
    r"\.(attention|self_attn)\.([qkv])_proj\.": r".attn.\2.",
    r"\.attn\.(q)uery\.|\.attn\.(k)ey\.|\.attn\.(v)alue\.": r".attn.\1\2\3.",
    r"\.(attention\.output\.dense|attention\.o_proj|self_attn\.out_proj)\.": ".attn.proj.",
    r"\.(layernorm_before|layer_norm1)\.": ".norm1.",
    r"\.(layernorm_after|layer_norm2)\.": ".norm2.",
    r"\.(intermediate\.dense|mlp\.weights_in)\.": ".mlp.fc1.",
    r"^(blocks\.\d+)\.(output\.dense|mlp\.weights_out|mlp\.down_proj)\.": r"\1.mlp.fc2.",
    r"\.layer_scale(\d)\.lambda1$": r".ls\1.gamma",
    r"^pre_layrnorm\.": "norm_pre.",
    r"^(post_)?layernorm\.": "norm.",
    r"^head\.probe$": "attn_pool.latent",
    r"^head\.attention\.out_proj\.": "attn_pool.proj.",
    r"^head\.layernorm\.": "attn_pool.norm.",
    r"^head\.mlp\.": "attn_pool.mlp.",
}
HEADS = {
    "classifier": "head",
    "cls_classifier": "head",
    "distillation_classifier": "head_dist",
    "visual_projection": "head",
}
_LEFT_OUT = re.compile(
    r"embeddings\.(mask_token|position_ids)|pooler\.|(\w+_)?(classifier|projection)\."
)
_ANCHOR = re.compile(r"(^|.*\.)embeddings\.patch_embeddings?\.(projection\.)?weight$")


def kind_of(config: Mapping[str, Any]) -> str:
    """The type of a model, for KINDS where it is read here."""
    return str(config.get("model_type")).removesuffix("_vision_model")


def _require_kind(config: Mapping[str, Any]) -> str:
    """The key in KINDS. Raises ValueError for another model."""
    if (kind := kind_of(config)) in KINDS:
        return kind
    raise ValueError(
        f"model type {one_line(config.get('model_type'))!r} of transformers is not read here; "
        f"choose one of {', '.join(KINDS)}"
    )


def from_transformers(
    config: Mapping[str, Any], state: Mapping[str, Tensor], name: str
) -> tuple[VisionTransformer, dict[str, Any], bool]:
    """Timm's model with these weights, what it expects of an image, and whether it is distilled.

    Of a distilled one the only register is DeiT's distillation token. Raises ValueError for a model
    of another kind, or weights that are not all of one.
    """
    kind = _require_kind(config)
    # Within, of CLIP and SigLIP with their text tower.
    config = DEFAULTS.get(kind, {}) | (config.get("vision_config") or config)
    state = _tower(state, name) | _heads(state, kind, name)
    separate = kind == "dinov2_with_registers"  # timm gives registers no position
    if separate:  # and [CLS] its own at once
        first, rest = state["pos_embed"].tensor_split([1], dim=1)
        state |= {"cls_token": state["cls_token"] + first, "pos_embed": rest}
    if distilled := kind == "deit" and "head_dist.weight" not in state:
        state["reg_token"] = state.pop("dist_token")
    width, gated = config["hidden_size"], bool(config.get("use_swiglu_ffn"))
    make = VisionTransformerDistilled if "dist_token" in state else VisionTransformer
    pool = "map" if "attn_pool.latent" in state else "avg"
    try:
        with torch.device("meta"):
            model = make(
                img_size=config["image_size"],
                patch_size=config["patch_size"],
                embed_dim=width,
                depth=config["num_hidden_layers"],
                num_heads=config["num_attention_heads"],
                mlp_ratio=(len(state["blocks.0.mlp.fc1.weight"]) + 0.5) / width,
                qkv_bias="blocks.0.attn.qkv.bias" in state,
                init_values=1.0 if "blocks.0.ls1.gamma" in state else None,
                num_classes=len(state.get("head.weight", ())),
                class_token="cls_token" in state,
                reg_tokens=state["reg_token"].shape[1] if "reg_token" in state else 0,
                global_pool="token" if "cls_token" in state else pool,
                fc_norm=False,
                no_embed_class=separate,
                pre_norm="norm_pre.weight" in state,
                norm_layer=partial(nn.LayerNorm, eps=config.get("layer_norm_eps", 1e-6)),
                act_layer=nn.SiLU if gated else ACTIVATIONS[config.get("hidden_act", "gelu")],
                **{"mlp_layer": SwiGLUPacked} if gated else {},
            )
        model.load_state_dict(state, assign=True)
    except KeyError as error:
        raise ValueError(
            f"'{name}' is not read here: {error} is missing or unknown; choose another model"
        ) from None
    except RuntimeError as error:
        raise ValueError(
            f"the weights of '{name}' are not those of its configuration ({one_line(error)}); "
            "save it again"
        ) from None
    return model, KINDS[kind], distilled


def _tower(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The weights of the vision tower under timm's names."""
    anchors = [match[1] for match in map(_ANCHOR.match, state) if match]
    if len(anchors) != 1:
        raise ValueError(
            f"'{name}' holds the weights of {len(anchors)} vision towers; give a model with one"
        )
    prefix = anchors[0]
    own = {key.removeprefix(prefix): key for key in state if key.startswith(prefix)}
    inside = {key: state[theirs] for key, theirs in own.items() if not _LEFT_OUT.match(key)}
    require_real(name, {key: value.dtype for key, value in inside.items()})
    tower = _renamed(inside, NAMES)
    for key in [key for key in tower if ".attn.q." in key]:
        tower[key.replace(".q.", ".qkv.")] = torch.cat(
            [tower.pop(key.replace(".q.", f".{part}.")) for part in "qkv"]
        )
    for key in [key for key in tower if ".mlp.gate_proj." in key]:
        parts = [tower.pop(key), tower.pop(key.replace("gate_proj", "up_proj"))]
        tower[key.replace("gate_proj", "fc1")] = torch.cat(parts)
    for kind in ("weight", "bias"):
        if (joint := tower.pop(f"head.attention.in_proj_{kind}", None)) is not None:
            query, keys, values = joint.chunk(3)
            tower |= {
                f"attn_pool.q.{kind}": query,
                f"attn_pool.kv.{kind}": torch.cat([keys, values]),
            }
    if "cls_token" in tower:
        tower["cls_token"] = tower["cls_token"].reshape(1, 1, -1)
    tower["pos_embed"] = tower["pos_embed"].reshape(1, -1, tower["pos_embed"].shape[-1])
    return tower


def _heads(state: Mapping[str, Tensor], kind: str, name: str) -> dict[str, Tensor]:
    """The classification heads, or CLIP's projection, under timm's names.

    DINOv2's reads more than [CLS], and is left out.
    """
    if kind.startswith("dinov2") or kind == "siglip":
        return {}
    heads = {}
    for theirs, ours in HEADS.items():
        if f"{theirs}.weight" in state:
            weight = state[f"{theirs}.weight"]
            bias = state.get(f"{theirs}.bias", torch.zeros(weight.shape[:1]))
            heads |= {f"{ours}.weight": weight, f"{ours}.bias": bias}
    require_real(name, {key: value.dtype for key, value in heads.items()})
    return {key: value.float() for key, value in heads.items()}


def _recipe(processor: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """What preprocessor_config.json says, in the words of timm."""
    data = dict(default)
    for ours, theirs in (("mean", "image_mean"), ("std", "image_std")):
        if processor.get(theirs) is not None:
            data[ours] = tuple(processor[theirs])
    if processor.get("do_normalize") is False:
        data |= {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    # Ours are pixels of 0 to 1, of which theirs are so many times as much.
    factor = processor.get("rescale_factor") or 1 / 255
    times = 255 if processor.get("do_rescale") is False else 255 * factor
    if not math.isclose(times, 1):
        data |= {key: tuple(value / times for value in data[key]) for key in ("mean", "std")}
    data["interpolation"] = INTERPOLATIONS.get(processor.get("resample"), data["interpolation"])
    size, crop = processor.get("size"), processor.get("crop_size")
    sides = size if isinstance(size, dict) else {"shortest_edge": size}
    side, mode = sides.get("shortest_edge"), "center"
    if side is None:  # both sides on their own
        side, mode = sides.get("height"), "squash"
    crop = crop.get("height") if isinstance(crop, dict) else crop
    if processor and not processor.get("do_center_crop", crop is not None):
        data |= {"crop_pct": 1.0, "crop_mode": "squash"}
    elif side and crop:
        data |= {"crop_pct": crop / side, "crop_mode": mode}
    return data


def _file(name: str, filename: str) -> Path | None:
    """The file of that name in the folder or the repository; None where there is none."""
    path = name.removeprefix(PREFIX)
    if os.path.isdir(folder := located(path)):
        return folder / filename if (folder / filename).is_file() else None
    try:
        return Path(hf_hub_download(path, filename))
    except (LocalEntryNotFoundError, EntryNotFoundError):
        return None


def published_head(name: str) -> tuple[Float[Tensor, "class both"], Float[Tensor, " class"]]:
    """Weight and bias of the linear classifier that was published with DINOv2.

    It reads [CLS] and the mean of the patches side by side, both after the final LayerNorm.

    Args:
        name: 'transformers:OWNER/NAME' or the folder of a DINOv2 for image classification, as
            'transformers:facebook/dinov2-small-imagenet1k-1-layer'.

    Raises ModelUnavailable where it cannot be had here, and ValueError for one without such a head.
    """
    with loading(name):
        state = _weights(name)
    if not {"classifier.weight", "classifier.bias"} <= state.keys():
        raise ValueError(
            f"'{name}' has no linear classifier; give one that has, as "
            f"{PREFIX}facebook/dinov2-small-imagenet1k-1-layer"
        )
    return state["classifier.weight"].float(), state["classifier.bias"].float()


def _json(name: str, filename: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is in that file of the model; None where there is none."""
    path = _file(name, filename)
    what = f"the {filename} of '{name}'"
    return None if path is None else read_json(path, schema, what, SAVE)


def _weights(name: str) -> dict[str, Tensor]:
    if (index := _json(name, "model.safetensors.index.json", INDEX)) is not None:
        files = sorted({*index["weight_map"].values()})
    else:
        whole = ("model.safetensors", "pytorch_model.bin")
        files = [next((file for file in whole if _file(name, file)), whole[0])]
    state = {}
    for file in files:
        if (path := _file(name, file)) is None:
            here = os.path.isdir(located(name.removeprefix(PREFIX)))
            raise (ValueError if here else FileNotFoundError)(f"'{name}' has no {file}; {SAVE}")
        data = saved_in(path, name)
        tensors = data.items() if isinstance(data, Mapping) else ()
        state |= {str(key): value for key, value in tensors if isinstance(value, Tensor)}
    return state


def _load(name: str, pretrained: bool, framing: Framing) -> Backbone:
    with loading(name):
        config = _json(name, "config.json", {"type": "object"})
        if config is None:
            raise FileNotFoundError(f"'{name}' has no config.json")
        _require_kind(config)  # before anything large is fetched
        if wrong := mismatch(config.get("vision_config") or config, _TOWER):
            raise ValueError(f"the config.json of '{name}' cannot be read ({wrong}); {SAVE}")
        processor = _json(name, "preprocessor_config.json", PROCESSOR) or {}
        state = _weights(name)
        model, data, distilled = from_transformers(config, state, name)
    if not pretrained:
        model.init_weights()
    data = _recipe(processor, data)
    return wrap_at(name, model, data, framing, pretrained, distilled)


def _refused(name: str, pretrained: bool) -> str:
    path = name.removeprefix(PREFIX)
    if os.path.isfile(located(path) / "config.json") or REPOSITORY.fullmatch(path):
        return ""
    return (
        f"there is no config.json in {path!r}; give the folder of a saved model, or OWNER/NAME of "
        "one on the hub"
    )


FAMILIES = (
    Family(
        (TORCHVISION,),
        (f"'{TORCHVISION}ARCH'",),
        _refused_torchvision,
        _load_torchvision,
        _torchvision_names,
    ),
    Family((PREFIX,), (f"'{PREFIX}OWNER/NAME' or its folder",), _refused, _load),
)
