"""Name or module -> Backbone.

The Vision Transformers of timm, open_clip, torchvision and transformers, weights of one's own, and
the constructed and trained models of this project.

Weights are safetensors, or older files read with `torch.load(weights_only=True)`: a file that needs
a pickle is refused. What of a model cannot be measured (rows of differential attention, what gated
attention adds) is refused by the reducer that needs it.
"""

import difflib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from PIL import Image
from torch import nn

from helpers.models import (
    checkpoints,
    controls,
    modules,
    open_clip_family,
    posthoc,
    sinks,
    timm_family,
    torchvision_family,
    trained,
    transformers_family,
)
from helpers.models.backbone import Backbone
from helpers.models.family import Family, Size
from helpers.models.paths import located
from helpers.models.sketch import stub
from helpers.names import STUB


def _load_stub(name: str, size: Size | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    own = name.removeprefix(STUB)
    return stub(family_of(own), own, size, whole, fit)


def _known_stub(name: str, pretrained: bool) -> bool:
    return known(name.removeprefix(STUB), False)


# All there are; names that begin with no prefix are of the first.
FAMILIES = (
    timm_family.FAMILY,
    open_clip_family.FAMILY,
    torchvision_family.FAMILY,
    transformers_family.FAMILY,
    checkpoints.SAVED,
    checkpoints.FROM_FILE,
    controls.FAMILY,
    trained.FAMILY,
    posthoc.FAMILY,
    sinks.FAMILY,
    Family((STUB,), (), _known_stub, list, _load_stub),
)

OWN = (
    controls.FAMILY,
    trained.FAMILY,
    sinks.FAMILY,
)  # part of this project: small, and there without a download

_noise: int | None = None  # the seed of `rounding_noise`, inside it


def load_backbone(
    model: str | nn.Module,
    *,
    image_size: int | tuple[int, int] | None = None,
    pretrained: bool = True,
    device: Any = None,
    whole: bool = False,
    fit: bool = False,
    name: str | None = None,
    data: dict[str, Any] | None = None,
) -> Backbone:
    """The model called or given as `model`, in eval mode and without gradients.

    At its own image size or at `image_size` (position embedding resampled).

    Args:
        model: a timm name, 'open_clip:ARCH/TAG' (vision tower only), 'torchvision:ARCH[/WEIGHTS]',
            'transformers:OWNER/NAME' or its folder, 'hf-hub:OWNER/NAME' and 'local-dir:PATH' (saved
            by timm), 'file:PATH@ARCH' (weights for an architecture of timm, prefixes and number of
            classes found out), 'control-...', 'scratch-...', 'registers-...' and 'sinks-...'
            (trained and shipped by this project), 'scratch:PATH', 'registers:PATH' and 'sinks:PATH'
            (trained with `python -m helpers train`), 'stub:NAME' for a few random blocks of any of
            these (see helpers/models/sketch.py). Or a module of one of these libraries, also
            inside torch.compile, DataParallel, PEFT or a model around it: it shares its weights and
            stays as it is.
        image_size: side, or (height, width), in pixels.
        pretrained: False gives random weights (then TAG is not used); no effect on controls and
            models trained here from scratch.
        device: where to put it; the CPU unless given.
        whole: preprocessing squashes the whole image to the model's size and crops nothing away, so
            that boxes in relative coordinates [0, 1] carry over; the model's own recipe unless
            given.
        fit: `image_size` is rounded down to a multiple of the model's patch, at least one, where it
            else must be one.
        name: what a module is called in results; its architecture unless given.
        data: for a module, what it expects of an image, as in timm.data.create_transform: mean,
            std, interpolation, crop_pct; that of its pretrained_cfg, or ImageNet's, unless given.

    Raises:
        ModelUnavailable: the weights cannot be had here.
        ValueError: unknown or unsupported model, image size that the patches do not divide, no such
            device, weights with NaN or infinity.
    """
    size = (
        None
        if image_size is None
        else (image_size, image_size)
        if isinstance(image_size, int)
        else tuple(image_size)
    )
    _check_device(device)
    if isinstance(model, nn.Module):
        backbone = modules.wrap(model, name, data, size, whole, fit)
    elif isinstance(model, str):
        if name is not None or data is not None:
            raise ValueError(
                f"{model!r} has a name and a recipe of its own; give name and data for a module "
                "only"
            )
        check_name(model, pretrained)
        backbone = family_of(model).load(model, size, pretrained, whole, fit)
    else:
        raise ValueError(f"{type(model).__name__} is no model; give a name or a torch.nn.Module")
    backbone.model.to(device)
    for key, value in backbone.model.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(
                f"the weights of '{backbone.name}' hold NaN or infinity in '{key}'; fetch or train "
                "them again"
            )
    if _noise is not None:
        _add_noise(backbone, _noise)
    return backbone


@contextmanager
def rounding_noise(seed: int) -> Iterator[None]:
    """Models loaded inside have weights and pixels moved by a random unit in the last place.

    Relative 2^-23, up or down.

    What another processor does to a result at most, at once (Monte Carlo arithmetic, Parker 1997,
    in the small). The same weight or picture is moved in the same way each time, as one machine
    rounds it in the same way each time.
    """
    global _noise
    before, _noise = _noise, seed
    try:
        yield
    finally:
        _noise = before


def _add_noise(backbone: Backbone, seed: int) -> None:
    def moved(x: torch.Tensor, key: bytes) -> torch.Tensor:
        signs = (
            torch.randint(
                0, 2, x.shape, generator=torch.Generator().manual_seed(zlib.crc32(key, seed))
            ).to(x)
            * 2
            - 1
        )
        return x * (1 + 2.0**-23 * signs)

    for key, value in backbone.model.state_dict().items():
        if value.is_floating_point():
            value.copy_(moved(value, key.encode()))
    plain = backbone.transform

    def transform(image: Image.Image) -> torch.Tensor:
        pixels = plain(image)
        return moved(pixels, pixels.numpy().tobytes())

    backbone.transform = transform


def stub_name(name: str) -> str:
    """What a dry run loads in place of the model `name`: its stub.

    Models that are part of this project are small, and stay.
    """
    return name if not name or family_of(name) in OWN else STUB + name


def depth_of(name: str) -> int | None:
    """Blocks of the model `name`, from its architecture alone.

    None where that cannot be told without its files.
    """
    family = family_of(name)
    if family in OWN:
        return load_backbone(name).depth
    if family in (transformers_family.FAMILY, checkpoints.SAVED):
        return None
    with torch.device("meta"):  # no memory, no weights
        return family.load(name, None, False, False, False).depth


def family_of(name: str) -> Family:
    """The family that reads `name`."""
    return next((family for family in FAMILIES if name.startswith(family.prefixes)), FAMILIES[0])


def known(name: str, pretrained: bool = True) -> bool:
    """Whether `name` is a name that load_backbone reads, without loading anything."""
    return family_of(name).known(name, pretrained)


def check_name(name: str, pretrained: bool = True) -> None:
    """Raise ValueError with the nearest name where `name` is not known."""
    if known(name, pretrained):
        return
    if reason := family_of(name).absent(name) or _other_form(name):
        raise ValueError(reason)
    names = [other for family in FAMILIES for other in family.names()]
    begin = sorted((other for other in names if name and other.startswith(name)), key=len)
    nearest = begin or difflib.get_close_matches(name, names, n=1)
    *forms, last = (form for family in FAMILIES for form in family.forms)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"give {', '.join(forms)} or {last}"
    raise ValueError(f"unknown model '{name}'; {hint}")


def _other_form(name: str) -> str:
    """The form in which a path or a repository is named, where `name` is one without it.

    '' where it is not.
    """
    if not name or name.startswith(
        tuple(prefix for family in FAMILIES for prefix in family.prefixes)
    ):
        return ""
    path = located(name)
    if os.path.isfile(path):
        return (
            f"unknown model '{name}'; give 'file:{name}@ARCH', with the timm architecture that "
            "its weights are for"
        )
    if os.path.isfile(path / "config.json"):
        return (
            f"unknown model '{name}'; give 'local-dir:{name}' where timm saved it, or "
            f"'transformers:{name}'"
        )
    if transformers_family.REPOSITORY.fullmatch(name):
        return (
            f"unknown model '{name}'; give 'hf-hub:{name}' where timm saved it, or "
            f"'transformers:{name}'"
        )
    return ""


def _check_device(device: Any) -> None:
    """Raise ValueError where there is no such device, before a model is loaded."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ValueError(f"there is no device {str(device)!r} here; use device='cpu'") from None
