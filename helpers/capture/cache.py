"""Captures on disk, found again by all that decides their numbers; what cannot be named by value
is computed each time. Batch size and threads are no part of the name: they change rounding alone.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load, save_file
from torch import Tensor, nn

from helpers.capture.inputs import picture
from helpers.capture.reducers import Reducer
from helpers.files import digest_of, written_whole
from helpers.images import Images
from helpers.models import Backbone

VARIABLE = "REGISTERS_CACHE"  # the folder; no cache where it is unset, empty or 'none'
MOST = 8e9  # bytes of one file: what is larger is not kept
# Their classes and functions are known by name: ours by their source, the others by their version.
PACKAGES = ("helpers", "torch", "torchvision", "timm", "open_clip")
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pillow", "open_clip_torch")
# What a module computes with, besides its parts.
OF_MODULES = Tensor, FunctionType, MethodType, partial, bool, int, float, str, tuple, type(None)
HELPERS = Path(__file__).parents[1]
FOLDERS = (".", "models", "images", "interventions", "capture", "measures")
SOURCES = digest_of(
    *(file.read_bytes() for name in FOLDERS for file in sorted((HELPERS / name).glob("*.py")))
)


class Unnamed(ValueError):
    """Something in a capture has no name by which to know it again."""


def path_of(
    backbone: Backbone, images: Any, reducers: Sequence[Reducer], dtype: torch.dtype
) -> Path | None:
    """Where this capture lies or will lie; None with no cache, or where it cannot be named."""
    folder, kind = os.environ.get(VARIABLE, ""), backbone.device.type
    if folder in ("", "none") or torch.is_autocast_enabled(kind):
        return None
    precision = [str(dtype), kind, str(torch.get_default_dtype())]
    precision += [torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32]
    try:
        parts = [_model(backbone), _named(backbone.interventions), _pictures(images)]
        parts += [_named(list(reducers)), precision, [*map(_version, LIBRARIES)], SOURCES]
    except Unnamed:
        return None
    return Path(folder).expanduser() / f"{digest_of(json.dumps(parts))}.safetensors"


def read(path: Path) -> dict[str, Tensor]:
    """Key -> tensor (image, ...)."""
    return load(path.read_bytes())


def write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Keep them at `path`, unless they are too large."""
    if sum(tensor.nbytes for tensor in tensors.values()) <= MOST:
        with written_whole(path) as new:
            save_file({**tensors}, new)


@lru_cache
def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _model(backbone: Backbone) -> list:
    """What tells a model from another, as it is now and as it is shown images."""
    if backbone.hooks - backbone.own_hooks:
        raise Unnamed("a hook that no intervention of ours has set")
    parts = []
    for name, part in backbone.model.named_modules():
        own = {**part._parameters, **part._buffers, **vars(part)}
        values = {key: value for key, value in own.items() if isinstance(value, OF_MODULES)}
        parts.append([name, _named(type(part)), _named(values)])
    steps = getattr(backbone.transform, "transforms", [backbone.transform])
    shown = [[*map(_step, steps)], backbone.normalisation, [*backbone.image_size]]
    return [_named(type(backbone)), parts, shown, repr(backbone.layout)]


def _step(transform: Any) -> Any:
    """A step of the preprocessing, by its name or by how it prints itself."""
    if isinstance(transform, FunctionType | partial):
        return _named(transform)
    if " at 0x" in repr(transform) or isinstance(transform, nn.Module) and transform.state_dict():
        raise Unnamed(repr(transform))
    return [_named(type(transform)), repr(transform)]


def _pictures(images: Any) -> Any:
    """What tells the images from others: their pixels, or what was known of these at loading."""
    if isinstance(images, Tensor):
        return _named(images)
    if isinstance(images, Images) and images.contents is not None and "+" not in images.name:
        return [*images.contents]  # a '+' names a change since then
    return [_named(picture(image)) for image in images]


def _named(value: Any) -> Any:
    """What tells a value from another, as JSON that is the same in every process."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor() | np.ndarray() | np.generic():
            x = torch.as_tensor(value).detach().cpu().contiguous()
            content = x.flatten().view(torch.uint8).numpy()
            return digest_of(f"{x.dtype} {tuple(x.shape)}", content.data)
        case Image.Image():
            return digest_of(f"{value.mode} {value.size}", value.tobytes())
        case list() | tuple() | range():
            return [_named(item) for item in value]
        case dict():
            return [[_named(key), _named(item)] for key, item in value.items()]
        case partial():
            return {"partial": [_named(x) for x in (value.func, value.args, value.keywords)]}
    if is_dataclass(value) and not isinstance(value, type):
        return [_named(type(value)), *(_named(getattr(value, x.name)) for x in fields(value))]
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    if module.partition(".")[0] in PACKAGES and "<" not in name:
        if attrgetter(name)(sys.modules[module]) is value:
            return f"{module}.{name}"
    raise Unnamed(repr(value))
