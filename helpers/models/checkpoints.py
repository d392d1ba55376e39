"""Weights of one's own.

A folder or a repository that timm saved ('local-dir:PATH', 'hf-hub:OWNER/NAME'), and a file of
weights for one of timm's architectures ('file:PATH@ARCH').
"""

import json
import math
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from helpers.models.backbone import Backbone
from helpers.models.family import Family, Size
from helpers.models.hub import loading
from helpers.models.paths import located
from helpers.models.timm_family import create, is_plain
from helpers.models.transformers_family import REPOSITORY

FOLDER, HUB, FILE = "local-dir:", "hf-hub:", "file:"
ANCHOR = (
    "patch_embed.proj.weight"  # every one of timm's has it, behind whatever prefix a wrapper gave
)
# Where training scripts put the weights, the averaged ones first, then the teacher's.
AVERAGED = ("state_dict_ema", "model_ema", "ema", "teacher")
PLACES = (*AVERAGED, "state_dict", "model_state_dict", "model", "module", "student", "weights")


# ---- What timm saved
# --------------------------------------------------------------------------------------------------


def _architecture(name: str) -> str:
    """The architecture that the folder's config.json names.

    Raises ValueError where it is not timm's.
    """
    path = located(name.removeprefix(FOLDER)) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        told = config["architecture"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"the config.json of '{name}' names no architecture of timm; for a folder of "
            "transformers give 'transformers:PATH'"
        ) from None
    return str(told)


def _load_saved(name: str, size: Size | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    if name.startswith(FOLDER):
        source, arch = (
            f"{FOLDER}{located(name.removeprefix(FOLDER)).resolve()}",
            _architecture(name),
        )
    else:
        with loading(name):
            try:
                source, arch = (
                    name,
                    timm.models.load_model_config_from_hf(name.removeprefix(HUB))[1],
                )
            except KeyError:
                told = name.removeprefix(HUB)
                raise ValueError(
                    f"'{name}' was not saved by timm; for a model of transformers give "
                    f"'transformers:{told}'"
                ) from None
    if not timm.is_model(arch) or not is_plain(arch):
        raise ValueError(
            f"'{name}' is a {arch!r}, not a plain Vision Transformer; choose a vit_*, deit*, eva* "
            "or flexivit_*"
        )
    return create(name, source, size, pretrained, whole, fit)


def _absent_saved(name: str) -> str:
    if name.startswith(HUB):
        return f"'{name}' names no repository; give '{HUB}OWNER/NAME'"
    return (
        f"there is no config.json in {name.removeprefix(FOLDER)!r}; give the folder of a model "
        "that timm saved"
    )


def _known_saved(name: str, pretrained: bool) -> bool:
    if name.startswith(HUB):
        return bool(REPOSITORY.fullmatch(name.removeprefix(HUB).partition("@")[0]))
    return os.path.isfile(located(name.removeprefix(FOLDER)) / "config.json")


# ---- A file of weights
# --------------------------------------------------------------------------------------------------


def weights_of(path: Path, name: str) -> dict[str, Tensor]:
    """The state dict in a file, its keys beginning where timm's do.

    A file that needs a pickle to be run is refused.

    Raises ValueError where there is none for a Vision Transformer of timm.
    """
    try:
        data = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except pickle.UnpicklingError:
        raise ValueError(
            f"'{name}' holds more than tensors, and is not run; save its state_dict alone, with "
            "torch.save or as safetensors"
        ) from None
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"'{name}' does not load ({' '.join(str(error).split())[:120]}); save it again"
        ) from None
    found = _state_dict(data)
    prefixes = {key.removesuffix(ANCHOR) for key in found if key.endswith(ANCHOR)}
    if not prefixes:
        some = (
            ", ".join(map(str, list(data)[:3]))
            if isinstance(data, Mapping)
            else type(data).__name__
        )
        raise ValueError(
            f"'{name}' has no {ANCHOR!r} among its weights ({some}, ...); give weights under "
            "timm's names"
        )
    prefix = min(prefixes, key=lambda p: (not any(place in p for place in AVERAGED), len(p), p))
    own = {
        key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)
    }
    for key in ("head.weight", "head.bias"):  # of a classifier that holds the backbone
        if (
            key in found
            and key not in own
            and found["head.weight"].shape[-1:] == own[ANCHOR].shape[:1]
        ):
            own[key] = found[key]
    return own


def _state_dict(data: Any) -> dict[str, Tensor]:
    """The tensors by name, in one of PLACES or anywhere below."""
    if isinstance(data, nn.Module) or not isinstance(data, Mapping):
        return {}
    tensors = {str(key): value for key, value in data.items() if isinstance(value, Tensor)}
    if any(key.endswith(ANCHOR) for key in tensors):
        return tensors
    below = [data[place] for place in PLACES if place in data] + [
        data[key] for key in data if key not in PLACES
    ]
    return next((found for part in below if (found := _state_dict(part))), {})


def _parts(name: str) -> tuple[str, str]:
    """Path and architecture."""
    path, _, arch = name.removeprefix(FILE).rpartition("@")
    return path, arch


def _load_file(name: str, size: Size | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    path, arch = _parts(name)
    if not is_plain(arch.partition(".")[0]):
        raise ValueError(
            f"{arch!r} in '{name}' is not a plain Vision Transformer; choose a vit_*, deit*, eva* "
            "or flexivit_*"
        )
    if not pretrained:
        return create(name, arch, size, False, whole, fit)
    state = weights_of(located(path), name)
    classes = len(state["head.weight"]) if "head.weight" in state else 0
    with torch.device("meta"):
        sketch = timm.create_model(arch, num_classes=classes)
    own = size or _own_size(sketch, state)
    overlay = {
        "state_dict": state, "num_classes": classes, "source": "", "url": None, "hf_hub_id": None,
        "custom_load": False,
    }  # fmt: skip
    try:
        return create(
            name, arch, own, True, whole, fit, num_classes=classes, pretrained_cfg_overlay=overlay
        )
    except ValueError as error:
        if isinstance(error.__cause__, RuntimeError):  # of load_state_dict
            raise ValueError(
                f"{error}; name the architecture that they are for, or save all of them and "
                "nothing else"
            ) from None
        raise


def _own_size(sketch: nn.Module, state: Mapping[str, Tensor]) -> Size | None:
    """The image size whose patches the position embedding fits.

    Where it is not the architecture's and the grid is square.
    """
    theirs, ours = state.get("pos_embed"), sketch.pos_embed
    if theirs is None or ours is None or theirs.shape == ours.shape or theirs.dim() != 3:
        return None
    patches = theirs.shape[1] - (ours.shape[1] - math.prod(sketch.patch_embed.grid_size))
    side = math.isqrt(max(patches, 0))
    return (
        tuple(side * patch for patch in sketch.patch_embed.patch_size)
        if side and side**2 == patches
        else None
    )


def _known_file(name: str, pretrained: bool) -> bool:
    path, arch = _parts(name)
    return bool(path) and timm.is_model(arch.partition(".")[0]) and os.path.isfile(located(path))


def _absent_file(name: str) -> str:
    path, arch = _parts(name)
    if not path:
        return (
            f"'{name}' names no architecture; give '{FILE}PATH@ARCH' with a timm name, such as "
            "'@vit_small_patch16_224'"
        )
    if not os.path.isfile(located(path)):
        return f"there is no file {path!r}; give the path of a .pth or .safetensors"
    near = timm.list_models(f"{arch[:12]}*")
    return f"timm has no architecture {arch!r}; " + (
        f"did you mean '@{near[0]}'?" if near else "choose a vit_*, deit* or eva*"
    )


SAVED = Family(
    (FOLDER, HUB),
    (f"'{FOLDER}PATH'", f"'{HUB}OWNER/NAME'"),
    _known_saved,
    lambda: [],
    _load_saved,
    _absent_saved,
)
FROM_FILE = Family(
    (FILE,), (f"'{FILE}PATH@ARCH'",), _known_file, lambda: [], _load_file, _absent_file
)
