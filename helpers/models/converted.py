"""Vision Transformers in the format of transformers, as timm's: its layers, their weights.

Read from `config.json` and the weights, so that library need not be here. Names are those of its
files (which version 4 has in memory, too) and those that version 5 has in memory.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from PIL.Image import Resampling
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from timm.layers import GELUTanh, QuickGELU, SwiGLUPacked
from timm.models.beit import Beit
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.models.backbone import Backbone
from helpers.models.family import Framing, loading, require_real, saved_in
from helpers.models.timm_family import BIASES, beit_options, wrap_at
from helpers.settings import check_choice

PREFIX = "transformers:"
_IMAGENET = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD}
_CLIP = {"mean": OPENAI_CLIP_MEAN, "std": OPENAI_CLIP_STD}
_HALF = {"mean": IMAGENET_INCEPTION_MEAN, "std": IMAGENET_INCEPTION_STD}
_DINO = _IMAGENET | {"interpolation": "bicubic", "crop_pct": 224 / 256}
_BEIT = _HALF | {"interpolation": "bicubic", "crop_pct": 224 / 256, "crop_mode": "squash"}
# What each kind expects where no preprocessor_config.json says it.
KINDS: dict[str, dict[str, Any]] = {
    "vit": _HALF | {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"},
    "deit": _DINO,
    "dinov2": _DINO,
    "dinov2_with_registers": _DINO,
    "clip": _CLIP | {"interpolation": "bicubic", "crop_pct": 1.0},
    "siglip": _HALF | {"interpolation": "bicubic", "crop_pct": 1.0, "crop_mode": "squash"},
    "ijepa": _HALF | {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"},
    "vit_mae": _DINO,
    "vit_msn": _DINO,
    "beit": _BEIT,
    "data2vec-vision": _BEIT,
}
# Other kinds that timm has -> what it calls those that were published.
OF_TIMM = {"aimv2": "aimv2_*", "dinov3_vit": "vit_*_dinov3.*", "siglip2": "vit_*_siglip_*.v2_*"}
ACTIVATIONS: dict[str, Callable] = {
    "gelu": nn.GELU, "quick_gelu": QuickGELU, "gelu_pytorch_tanh": GELUTanh, "gelu_new": GELUTanh,
    "relu": nn.ReLU, "silu": nn.SiLU, "swish": nn.SiLU,
}  # fmt: skip
# Of transformers' classes, where a config.json leaves them out.
_COMMON = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 16, "layer_norm_eps": 1e-6, "hidden_act": "gelu",
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "dinov2": {"patch_size": 14},
    "clip": {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu", "patch_size": 32},
    "siglip": {"hidden_act": "gelu_pytorch_tanh"},
}
DEFAULTS |= dict.fromkeys(
    ("vit", "deit", "ijepa", "vit_mae", "beit", "data2vec-vision"), {"layer_norm_eps": 1e-12}
)
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
    r"\.lambda_(\d)$": r".gamma_\1",
    rf"^(blocks\.\d+)\..*relative_position_bias\.{BIASES}$": rf"\1.attn.{BIASES}",
    rf"^(encoder\.relative|shared)_position_bias\.{BIASES}$": f"rel_pos_bias.{BIASES}",
    r"^pooler\.layernorm\.": "fc_norm.",
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
    r"embeddings\.(mask_token|position_ids)|pooler\.(?!layernorm)|(\w+_)?(classifier|projection)\."
    r"|.*relative_position_index$"
)
ANCHOR = re.compile(r"(^|.*\.)embeddings\.patch_embeddings?\.(projection\.)?weight$")


def kind_of(config: Mapping[str, Any]) -> str:
    """The type of the vision tower in a model where it is one of KINDS; else that of the model."""
    parts = (config.get("vision_config") or {}, config)
    kinds = [str(part.get("model_type")).removesuffix("_vision_model") for part in parts]
    return kinds[0] if kinds[0] in KINDS else kinds[1]


def from_transformers(
    config: Mapping[str, Any], state: Mapping[str, Tensor], name: str
) -> tuple[VisionTransformer | Beit, dict[str, Any], bool]:
    """Timm's model with these weights, what it expects of an image, and whether it is distilled.

    A distilled model has one register in timm's words, which is DeiT's distillation token. `config`
    is that of the model or of one around it, as in config.json; `state` may have other towers, too.
    """
    kind = kind_of(config)
    # Within, of CLIP and SigLIP with their text tower.
    config = _COMMON | DEFAULTS.get(kind, {}) | (config.get("vision_config") or config)
    of_beit = kind in ("beit", "data2vec-vision")
    check_choice("hidden_act", config["hidden_act"], ("gelu",) if of_beit else ACTIVATIONS)
    state = _heads(state, kind) | _tower(state, name)
    require_real(name, state)
    state = {key: value.float() for key, value in state.items()}
    separate = kind == "dinov2_with_registers"  # timm gives registers no position
    if separate:  # and [CLS] its own at once
        first, rest = state["pos_embed"].tensor_split([1], dim=1)
        state |= {"cls_token": state["cls_token"] + first, "pos_embed": rest}
    if distilled := kind == "deit" and "head_dist.weight" not in state:
        state["reg_token"] = state.pop("dist_token")
    width, gated = config["hidden_size"], bool(config.get("use_swiglu_ffn"))
    make = VisionTransformerDistilled if "dist_token" in state else VisionTransformer
    pool = "map" if "attn_pool.latent" in state else "avg"
    shape = {
        "img_size": config["image_size"],
        "patch_size": config["patch_size"],
        "in_chans": config.get("num_channels", 3),
        "embed_dim": width,
        "depth": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "mlp_ratio": (len(state["blocks.0.mlp.fc1.weight"]) + 0.5) / width,
        "init_values": 1.0 if {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} & state.keys() else None,
        "num_classes": len(state.get("head.weight", ())),
        "norm_layer": partial(nn.LayerNorm, eps=config["layer_norm_eps"]),
    }
    if of_beit:  # here, since its tables of positions are no weights
        pool = "avg" if "fc_norm.weight" in state else "token"
        model = Beit(global_pool=pool, **shape, **beit_options(state))
        if not {"norm.weight", "fc_norm.weight"} & state.keys():  # one that segments has none
            model.norm = nn.Identity()
        model.load_state_dict(state)
        return model, KINDS[kind], False
    with torch.device("meta"):
        model = make(
            qkv_bias="blocks.0.attn.qkv.bias" in state,
            class_token="cls_token" in state,
            reg_tokens=state["reg_token"].shape[1] if "reg_token" in state else 0,
            global_pool="token" if "cls_token" in state else pool,
            fc_norm=False,
            no_embed_class=separate,
            pre_norm="norm_pre.weight" in state,
            act_layer=nn.SiLU if gated else ACTIVATIONS[config["hidden_act"]],
            **shape,
            **{"mlp_layer": SwiGLUPacked} if gated else {},
        )
    model.load_state_dict(state, assign=True)
    return model, KINDS[kind], distilled


def _tower(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The weights of the vision tower under timm's names."""
    anchors = [match[1] for match in map(ANCHOR.match, state) if match]
    if len(anchors) != 1:
        raise ValueError(f"'{name}' holds the weights of {len(anchors)} vision towers")
    tower: dict[str, Tensor] = {}
    for theirs, value in state.items():
        key = theirs.removeprefix(anchors[0])
        if not theirs.startswith(anchors[0]) or _LEFT_OUT.match(key):
            continue
        for pattern, ours in NAMES.items():
            key = re.sub(pattern, ours, key)
        if key in tower:
            raise ValueError(f"two weights of '{name}' are one of timm's: {key}")
        tower[key] = value
    for key in [key for key in tower if ".attn.q." in key]:
        q, k, v = (tower.pop(key.replace(".q.", f".{part}."), None) for part in "qkv")
        if k is None:  # BEiT's keys have no bias
            tower |= {key.replace(".q.", ".q_"): q, key.replace(".q.", ".v_"): v}
        else:
            tower[key.replace(".q.", ".qkv.")] = torch.cat([q, k, v])
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
    if (positions := tower.get("pos_embed")) is not None:
        tower["pos_embed"] = positions.reshape(1, -1, positions.shape[-1])
    return tower


def _heads(state: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The classification heads, or CLIP's projection, under timm's names.

    DINOv2's reads more than [CLS], and is left out.
    """
    heads = {}
    for theirs, ours in HEADS.items():
        if f"{theirs}.weight" in state and not kind.startswith(("dinov2", "siglip")):
            weight = state[f"{theirs}.weight"]
            bias = state.get(f"{theirs}.bias", torch.zeros(weight.shape[:1]))
            heads |= {f"{ours}.weight": weight, f"{ours}.bias": bias}
    if kind == "beit" and "layernorm.weight" in state:  # where it predicts masked patches
        heads |= {f"norm.{part}": state[f"layernorm.{part}"] for part in ("weight", "bias")}
    return heads


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
    if processor.get("resample") is not None:
        data["interpolation"] = Resampling(processor["resample"]).name.lower()
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
    if (folder := Path(path).expanduser()).is_dir():
        return folder / filename if (folder / filename).is_file() else None
    try:
        return Path(hf_hub_download(path, filename))
    except (LocalEntryNotFoundError, EntryNotFoundError):
        return None


def _json(name: str, filename: str) -> dict[str, Any] | None:
    """What is in that file of the model; None where there is none."""
    path = _file(name, filename)
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def _weights(name: str) -> dict[str, Tensor]:
    """All weights, from one file or several parts, safetensors first."""
    if (index := _json(name, "model.safetensors.index.json")) is not None:
        files = [_file(name, file) for file in sorted({*index["weight_map"].values()})]
    else:
        files = [_file(name, "model.safetensors") or _file(name, "pytorch_model.bin")]
    if None in files:
        raise FileNotFoundError(f"'{name}' has no model.safetensors, or not all its parts")
    return {key: value for file in files for key, value in saved_in(file).items()}


def published_head(name: str) -> nn.Linear:
    """The linear classifier that was published with DINOv2.

    It reads [CLS] and the mean of the patches side by side, both after the final LayerNorm. The
    name is as 'transformers:facebook/dinov2-small-imagenet1k-1-layer', or that of a folder. Raises
    ModelUnavailable where it cannot be had here.
    """
    with loading(name):
        state = _weights(name)
    if "classifier.weight" not in state:
        raise ValueError(f"'{name}' has no linear classifier; give a dinov2-...-1-layer")
    weight, bias = (state[f"classifier.{part}"].float() for part in ("weight", "bias"))
    head = nn.Linear(*weight.T.shape).requires_grad_(False)
    head.load_state_dict({"weight": weight, "bias": bias})
    return head


def load(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """'transformers:OWNER/NAME' or 'transformers:FOLDER'."""
    with loading(name):
        if (config := _json(name, "config.json")) is None:
            raise FileNotFoundError(f"'{name}' has no config.json")
        # Before anything large is fetched.
        if arch := config.get("architecture"):
            raise ValueError(f"'{name}' is of timm; give 'hf-hub:OWNER/NAME' or 'file:PATH@{arch}'")
        if pattern := OF_TIMM.get(kind_of(config)):
            names = ", ".join(timm.list_pretrained(pattern))
            raise ValueError(
                f"'{name}' is a {kind_of(config)}, which timm calls otherwise: {names}"
            )
        check_choice("the model type of transformers", kind_of(config), KINDS)
        processor = _json(name, "preprocessor_config.json") or {}
        model, data, distilled = from_transformers(config, _weights(name), name)
    if not pretrained:
        model.init_weights()
    return wrap_at(name, model, _recipe(processor, data), framing, pretrained, distilled)
