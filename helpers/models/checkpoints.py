"""Models of one's own: a loaded module, a folder, a repository or a file of weights.

What timm saved, or `edit` wrote, is 'local-dir:PATH'; what lies on the hub 'hf-hub:OWNER/NAME'; a
file of weights for one of timm's architectures 'file:PATH@ARCH', and for a tower of open_clip
'file:PATH@open_clip:ARCH'. Of a module, wrappers are seen through, adapters merged, and the model
itself is left as it is.
"""

import copy
import difflib
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from safetensors.torch import load_file
from timm.models import load_state_dict_from_hf
from timm.models._hub import download_from_hf, load_state_dict_from_path
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.foreign import one_line, read_json, reading
from helpers.models import converted, modeling, open_clip_family
from helpers.models.backbone import Backbone
from helpers.models.family import (
    MEANS,
    REPOSITORY,
    SIDE,
    SIDES,
    STDS,
    Family,
    Framing,
    Size,
    loading,
    located,
    parts_of,
    require_real,
    saved_in,
)
from helpers.models.open_clip_family import wrap_open_clip
from helpers.models.shapes import ANCHOR, differences, fitting, on_meta, own_size
from helpers.models.timm_family import create, is_plain, wrap_at

FOLDER, HUB, FILE = "local-dir:", "hf-hub:", "file:"
# Where training scripts put the weights, the averaged ones first, then the teacher's.
AVERAGED = ("state_dict_ema", "model_ema", "ema", "teacher")
PLACES = (*AVERAGED, "state_dict", "model_state_dict", "model", "module", "student", "weights")

WEIGHTS = (ANCHOR, "head.weight")  # whose shape is looked at
_CLASSES = {"type": "integer", "minimum": 0, "maximum": 10**6}
_RECIPE = {  # what is read here of timm's pretrained_cfg
    "num_classes": _CLASSES,
    "input_size": {
        "type": "array",
        "prefixItems": [{"const": 3}],
        "items": SIDE,
        "minItems": 3,
        "maxItems": 3,
    },
    "mean": MEANS,
    "std": STDS,
    "interpolation": {"enum": ["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]},
    "crop_pct": {"type": ["number", "null"], "minimum": 0.01, "maximum": 2},
    "crop_mode": {"enum": ["center", "squash", "border", None]},
    "hf_hub_filename": {"type": ["string", "null"]},
}
_OPTIONS = {
    "img_size": SIDES,
    "patch_size": SIDES,
    "in_chans": {"const": 3},
    "num_classes": _CLASSES,
    "embed_dim": SIDE,
    "depth": SIDE | {"maximum": 128},
    "num_heads": SIDE,
    "mlp_ratio": {"type": "number", "exclusiveMinimum": 0, "maximum": 64},
    "reg_tokens": SIDE | {"minimum": 0},
    "global_pool": {"type": "string", "minLength": 1},
    "device": {"const": "cpu"},
}
# What `edit` wrote beside the weights.
_UNITS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 10**6}}
EDITED = {
    "type": "object",
    "required": ["of", "architecture", "arguments", "registers", "neurons", "clear"],
    "properties": {
        "of": {"type": "string"},
        "architecture": {"type": ["string", "null"]},
        "arguments": {"type": "object", "properties": _OPTIONS},
        "registers": SIDE,
        "neurons": {
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "items": _UNITS,
                "minItems": 2,
                "maxItems": 2,
            },
        },
        "clear": {"enum": ["patches", "all"]},
    }
    | _RECIPE,
}
# A config.json of timm's; that it names an architecture is asked for in a sentence of its own.
CONFIG = {
    "type": "object",
    "properties": _RECIPE
    | {
        "architecture": {"type": ["string", "null"]},
        "pretrained_cfg": {"type": "object", "properties": _RECIPE},
        "model_args": {"type": "object", "properties": _OPTIONS},
    },
}


# ---- What timm saved
# --------------------------------------------------------------------------------------------------


def _saved(name: str) -> tuple[str, str, dict[str, Any]]:
    """What timm calls the folder or repository, the architecture that its config.json names, and
    what it says of the weights.

    Raises ValueError where it is not timm's.
    """
    path = name.removeprefix(FOLDER).removeprefix(HUB)
    if name.startswith(HUB):
        source, file = name, Path(download_from_hf(path, "config.json"))
    else:
        folder = located(path).resolve()
        source, file = f"{FOLDER}{folder}", folder / "config.json"
    what = f"the config.json of '{name}'"
    config = read_json(file, CONFIG, what, "save the model again with timm")
    if config.get("architecture") is None:
        raise ValueError(
            f"{what} names no architecture of timm; for a model of transformers give "
            f"'{converted.PREFIX}{path}'"
        )
    return source, config["architecture"], config.get("pretrained_cfg", config)


def _is_edited(name: str) -> bool:
    """Whether `edit` wrote the folder."""
    if not name.startswith(FOLDER):
        return False
    what = f"the config.json of '{name}'"
    place = located(name.removeprefix(FOLDER)) / "config.json"
    config = read_json(place, {"type": "object"}, what, "save the model again with timm")
    return {"arguments", "neurons"} <= config.keys()


def _load_edited(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """The model that `edit` wrote, by our own copy of its loader, which checks its outputs.

    Raises ValueError where it is not what was written.
    """
    folder = located(name.removeprefix(FOLDER))
    again = "write it again with `edit`"
    config = read_json(folder / "config.json", EDITED, f"the config.json of '{name}'", again)
    arch = config["architecture"]
    if arch is not None and not (timm.is_model(arch) and is_plain(arch)):
        raise ValueError(
            f"'{name}' is a {one_line(arch)!r}, not a plain Vision Transformer; {again}"
        )
    with reading(f"the model in '{name}'", again):
        with torch.device("meta"):  # the whole of it without memory, before any is taken
            sketch = modeling.unloaded(config)
        if pretrained and (wrong := _misfit(sketch, load_file(folder / "model.safetensors"), None)):
            raise ValueError(wrong)
        model = modeling.load(folder) if pretrained else modeling.unloaded(config)
    # What `edit` does not write, such as how images are cropped, is that of the model it edited.
    of = config["of"] if timm.is_model(config["of"].partition(".")[0]) else arch
    told = timm.models.get_pretrained_cfg(of).to_dict() if of else {}
    told |= {key: config[key] for key in _RECIPE if key in config}
    if not told.get("mean"):
        warnings.warn(
            f"'{name}' does not say how its images are normalised: ImageNet's mean and standard "
            f"deviation are taken; {again}",
            stacklevel=2,
        )
    data = timm.data.resolve_data_config(pretrained_cfg=told or {"mean": None})
    return wrap_at(name, model, data, framing, pretrained)


def _load_saved(name: str, pretrained: bool, framing: Framing) -> Backbone:
    if _is_edited(name):
        return _load_edited(name, pretrained, framing)
    with loading(name):
        source, arch, told = _saved(name)
    if not timm.is_model(arch) or not is_plain(arch):
        raise ValueError(
            f"'{name}' is a {one_line(arch)!r}, not a plain Vision Transformer; choose a vit_*, "
            "deit*, eva* or flexivit_*"
        )
    if not pretrained:
        return create(name, source, False, framing)
    if name.startswith(HUB):
        with loading(name):
            place = filter(None, (name.removeprefix(HUB), told.get("hf_hub_filename")))
            state = load_state_dict_from_hf(*place, weights_only=True)
    else:
        with reading(f"the weights of '{name}'", "save the model again with timm"):
            state = load_state_dict_from_path(source.removeprefix(FOLDER))
    if not isinstance(state, Mapping):
        raise ValueError(f"the weights of '{name}' have no names; save the model again with timm")
    return _filled(name, source, framing, state)


def _filled(
    name: str, source: str, framing: Framing, state: dict[str, Tensor], **classes: int
) -> Backbone:
    """The Backbone of what timm calls `source` with exactly these weights, none left out or drawn.

    `classes` is `num_classes` where the configuration does not tell it.

    Raises ValueError where they are not its own, whatever the configuration wants.
    """
    sketch, arch = _sketched(name, source, **classes), source
    if source.startswith(FOLDER):
        arch = "its config.json"
    if wrong := _misfit(sketch, state, framing.size, arch):
        raise ValueError(f"the weights of '{name}' do not load: {wrong}; {_fitting(state, source)}")
    overlay = classes | {
        "state_dict": state,
        "source": "",
        "url": None,
        "hf_hub_id": None,
        "classifier": None,  # else timm drops a head of another size and all that is strict
    }
    kinds = {key: getattr(value, "dtype", None) for key, value in state.items()}
    try:
        backbone = create(
            name,
            source,
            True,
            framing,
            pretrained_strict=True,
            pretrained_cfg_overlay=overlay,
            **classes,
        )
    except ValueError as error:
        if error.__cause__ is None:
            raise
        raise ValueError(
            f"{error}; {_fitting(state, source)}, or save all of them and nothing else"
        ) from None
    # timm is never strict with SigLIPs, whose pooling may be left out.
    lacking = sorted(backbone.model.state_dict().keys() - state.keys())
    if lacking and "siglip" in backbone.model.pretrained_cfg["architecture"]:
        raise ValueError(
            f"the weights of '{name}' lack {lacking[0]}; save all of them and nothing else"
        )
    require_real(name, kinds)
    return backbone


def _sketched(name: str, source: str, **classes: int) -> nn.Module:
    """The architecture without memory."""
    with reading(f"the architecture of '{name}'", "give one that timm makes"):
        return on_meta(source, **classes)


def _misfit(
    sketch: nn.Module, state: Mapping[str, Any], size: Size | None, arch: str = "ARCH"
) -> str:
    """Why weights are not those of the model where timm would resample them, or take much memory
    before it says so; '' where nothing is seen.

    `size`: the image size that is asked for, at which positions are resampled. `arch`: what the
    model is called.
    """
    state = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    if told := differences(state, sketch.state_dict(), arch):
        return told
    there = sum(math.prod(value.shape) for value in state.values())
    if (wanted := sum(p.numel() for p in sketch.parameters())) > 2 * there:
        return f"they are {there} numbers, not {wanted}"
    theirs, ours = state.get("pos_embed"), sketch.pos_embed
    if size is None and theirs is not None and ours is not None and theirs.shape != ours.shape:
        return f"its position embedding is {tuple(theirs.shape)}, not {tuple(ours.shape)}"
    return ""


def _fitting(state: Mapping[str, Any], source: str) -> str:
    """The remedy for weights that are not those of `source`: what of timm's they fit."""
    if source.startswith((FOLDER, HUB)):
        return "name the architecture that they are for"
    state = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    names = filter(is_plain, timm.list_models())
    if not (found := fitting(state, source, names, SIDE["maximum"])):
        return (
            "name the architecture that they are for, or of one with arguments of its own save the "
            f"model by `timm.models.save_for_hf(model, 'PATH')` and give '{FOLDER}PATH'"
        )
    forms = " or ".join(f"'@{name}'" for name in found)
    return f"give {forms}, whose shapes these are"


def _refused_saved(name: str, pretrained: bool) -> str:
    if name.startswith(HUB):
        if REPOSITORY.fullmatch(name.removeprefix(HUB).partition("@")[0]):
            return ""
        return f"'{name}' names no repository; give '{HUB}OWNER/NAME'"
    if os.path.isfile(located(path := name.removeprefix(FOLDER)) / "config.json"):
        return ""
    return f"there is no config.json in {path!r}; give the folder of a model that timm saved"


# ---- A file of weights
# --------------------------------------------------------------------------------------------------


def weights_of(path: Path, name: str, anchor: str = ANCHOR) -> dict[str, Tensor]:
    """The state dict in a file, its keys beginning where timm's do, or those of the library whose
    models all have a weight called `anchor`.

    Raises ValueError where there is none.
    """
    data = saved_in(path, name)
    with reading(f"the weights in '{name}'", "save them again"):
        found = _state_dict(data, anchor)
    if odd := next((key for key, x in found.items() if not x.dim() and key.endswith(WEIGHTS)), ""):
        raise ValueError(f"{one_line(odd)!r} in '{name}' is a single number; save it again")
    prefixes = {key.removesuffix(anchor) for key in found if key.endswith(anchor)}
    if not prefixes:
        keys = list(data)[:3] if isinstance(data, Mapping) else [type(data).__name__]
        some = one_line(", ".join(map(str, keys)))
        raise ValueError(
            f"'{name}' has no {anchor!r} among its weights ({some}, ...); give weights under "
            f"{'timm' if anchor == ANCHOR else 'open_clip'}'s names"
            + (", or for a tower of open_clip '@open_clip:ARCH'" if _is_tower(found) else "")
        )
    prefix = min(prefixes, key=lambda p: (not any(place in p for place in AVERAGED), len(p), p))
    own = {
        key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)
    }
    head = found.get("head.weight")  # of a classifier that holds the backbone
    if head is not None and head.shape[1:] == own[anchor].shape[:1]:
        own = {key: found[key] for key in ("head.weight", "head.bias") if key in found} | own
    return own


def _is_tower(state: Mapping[str, Tensor]) -> bool:
    return any(key.endswith(open_clip_family.ANCHOR) for key in state)


def _state_dict(data: Any, anchor: str) -> dict[str, Tensor]:
    """The tensors by name, in one of PLACES or anywhere below."""
    if isinstance(data, nn.Module) or not isinstance(data, Mapping):
        return {}
    tensors = {str(key): value for key, value in data.items() if isinstance(value, Tensor)}
    if any(key.endswith((anchor, open_clip_family.ANCHOR)) for key in tensors):
        return tensors
    below = [data[place] for place in PLACES if place in data] + [
        data[key] for key in data if key not in PLACES
    ]
    return next((found for part in below if (found := _state_dict(part, anchor))), {})


def _load_file(name: str, pretrained: bool, framing: Framing) -> Backbone:
    _, path, arch = parts_of(name)
    if arch.startswith(open_clip_family.PREFIX):
        load = lambda: weights_of(located(path), name, open_clip_family.ANCHOR)  # noqa: E731
        return open_clip_family.load_with(name, arch, load() if pretrained else None, framing)
    if not is_plain(arch.partition(".")[0]):
        raise ValueError(
            f"{arch!r} in '{name}' is not a plain Vision Transformer; choose a vit_*, deit*, eva* "
            "or flexivit_*"
        )
    if not pretrained:
        return create(name, arch, False, framing)
    state = weights_of(located(path), name)
    classes = state["head.weight"].shape[0] if "head.weight" in state else 0
    if classes > _CLASSES["maximum"]:
        raise ValueError(f"the head in '{name}' has {classes} classes; take it out of the file")
    own = own_size(_sketched(name, arch, num_classes=classes), state, SIDE["maximum"])
    framing = framing._replace(size=framing.size or own)
    return _filled(name, arch, framing, state, num_classes=classes)


def _refused_file(name: str, pretrained: bool) -> str:
    _, path, arch = parts_of(name)
    if not path:
        return (
            f"'{name}' names no architecture; give '{FILE}PATH@ARCH' with a timm name, such as "
            "'@vit_small_patch16_224'"
        )
    if not os.path.isfile(located(path)):
        remedy = "give the path of a .pth or .safetensors, or name its folder in REGISTERS_MODELS"
        return f"there is no file {path!r}; {remedy}"
    if arch.startswith(open_clip_family.PREFIX):
        return open_clip_family.refused_architecture(arch)
    if timm.is_model(arch.partition(".")[0]):
        return ""
    near = difflib.get_close_matches(arch, filter(is_plain, timm.list_models()), n=1)
    return f"timm has no architecture {arch!r}; " + (
        f"did you mean '@{near[0]}'?" if near else "choose a vit_*, deit* or eva*"
    )


# ---- Modules
# --------------------------------------------------------------------------------------------------


def view_of(module: nn.Module) -> nn.Module:
    """A copy of the modules that shares its weights with `module`.

    To put it into eval mode, to hook or to move it changes nothing of `module`, and costs no
    memory. Adapters (LoRA and others that PEFT makes) are merged into weights of the copy's own.

    Raises ValueError where it cannot be copied.
    """
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()}
    shared |= {id(b): b.detach() for b in module.buffers()}
    try:
        view = copy.deepcopy(module, shared)
    except Exception as error:  # of whatever is attached to the module
        raise ValueError(
            f"{type(module).__name__} cannot be copied ({one_line(error)}); take off its "
            "hooks and whatever else was attached to it"
        ) from None
    return _merged(view)


def _merged(module: nn.Module) -> nn.Module:
    """`module` with each adapter replaced by the layer that computes the same."""
    for name, layer in list(module.named_modules()):
        if hasattr(layer, "base_layer") and hasattr(layer, "merge"):
            plain = layer.base_layer
            for weight in plain.parameters():  # its own, since the adapter is added in place
                weight.data = weight.data.clone()
            if not (getattr(layer, "merged", False) or getattr(layer, "disable_adapters", False)):
                layer.merge()
        elif isinstance(
            chosen := getattr(layer, "modules_to_save", None), nn.ModuleDict
        ) and hasattr(layer, "original_module"):
            active = getattr(layer, "active_adapter", None)
            active = next(iter(active), None) if isinstance(active, list) else active
            plain = chosen[active] if active in chosen else layer.original_module
        else:
            continue
        module.set_submodule(name, plain)
    return module


def wrap(
    module: nn.Module, name: str | None, data: dict[str, Any] | None, framing: Framing
) -> Backbone:
    """The Backbone of the one Vision Transformer that is in `module`, as in `load_backbone`."""
    tower = _tower(view_of(module))
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in tower.parameters()):
        tower.float()
    if _is_open_clip(tower):
        recipe = getattr(tower, "preprocess_cfg", None) or {"size": tower.image_size}
        if framing.size not in (None, tuple(tower.image_size)):
            raise ValueError(
                "a tower of open_clip stays at its image size; leave image_size out, or load it by "
                "its name"
            )
        return wrap_open_clip(name or "module:open_clip", tower, recipe, framing)
    model, own, distilled, kind = tower, {}, False, type(tower).__name__
    if _is_transformers(tower):
        model, own, distilled = converted.from_transformers(
            tower.config.to_dict(), tower.state_dict(), kind
        )
    elif isinstance(tower, torchvision.models.VisionTransformer):
        model = converted.from_torchvision(tower, tower.state_dict())
        own, kind = converted.TORCHVISION_DATA, "torchvision"
    elif cfg := getattr(tower, "pretrained_cfg", None):
        cfg = cfg if isinstance(cfg, dict) else {}
        own = timm.data.resolve_data_config(pretrained_cfg=cfg)
        kind = cfg.get("architecture") or kind
    own = own | (data or {})
    return wrap_at(name or f"module:{kind}", model, own, framing, distilled=distilled)


def _is_open_clip(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "VisionTransformer" and kind.__module__ == "open_clip.transformer"


def _is_transformers(module: nn.Module) -> bool:
    config = {"model_type": getattr(getattr(module, "config", None), "model_type", "")}
    return (
        type(module).__module__.startswith("transformers.")
        and converted.kind_of(config) in converted.KINDS
    )


def _tower(module: nn.Module) -> nn.Module:
    """The one Vision Transformer in `module`, however deep in wrappers.

    Such as DataParallel, PEFT, or a model with a head of its own.
    """
    found, waiting = [], [module]
    while waiting:
        part = waiting.pop()
        part = getattr(part, "_orig_mod", part)
        if (
            isinstance(part, VisionTransformer | Eva | torchvision.models.VisionTransformer)
            or _is_open_clip(part)
            or _is_transformers(part)
        ):
            found.append(part)
        else:
            waiting += part.children()
    if len(found) == 1:
        return found[0]
    held = f"{len(found)} Vision Transformers; give the one that is meant"
    if not found:
        held = (
            "no Vision Transformer of timm, open_clip, torchvision or transformers "
            "(ViT, DeiT, DINOv2, CLIP, SigLIP); give one that does, or put its weights into an "
            "architecture of timm with 'file:PATH@ARCH'"
        )
    raise ValueError(f"{type(module).__name__} holds {held}")


FAMILIES = (
    Family(
        (FOLDER, HUB),
        (f"'{FOLDER}PATH'", f"'{HUB}OWNER/NAME'"),
        _refused_saved,
        _load_saved,
    ),
    Family((FILE,), (f"'{FILE}PATH@ARCH'",), _refused_file, _load_file),
)
