"""Name or module -> Backbone.

The Vision Transformers of timm, open_clip, torchvision and transformers, weights of one's own, the
constructed and trained models of this project, and stubs.

A stub is the architecture of a model with random weights, few blocks and few patches, to see
whether something runs at all; it knows what the model itself would cost, without its weights. What
it gives is no result: `helpers.claims` publishes nothing of that name.

Weights are safetensors, or older files read with `torch.load(weights_only=True)`: a file that needs
a pickle is refused. What of a model cannot be measured (rows of differential attention, what gated
attention adds) is refused by the reducer that needs it.
"""

import difflib
import fnmatch
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

from helpers.models import (
    checkpoints,
    controls,
    converted,
    open_clip_family,
    posthoc,
    sinks,
    timm_family,
    trained,
)
from helpers.models.backbone import Architecture, Backbone
from helpers.models.family import UNKNOWN, Family, Framing
from helpers.models.tokens import TokenLayout
from helpers.names import STUB, stored_name

BLOCKS = 4  # of a stub: as many as a profile names from the end
PATCHES = 13  # along a side: a number that no model has heads, registers or channels of
# One neuron of a stub writes so many times as much as the others, so that some patches are
# outliers.
GAIN = 300.0
OWN_FRAMING = Framing()  # a model's own image size and preprocessing
_noise = ContextVar[int | None]("seed of rounding_noise", default=None)


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
            these (stubs, as this module says). Or a module of one of these libraries, also
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
    _check_device(device)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    framing = Framing(size and tuple(size), whole, fit)
    if isinstance(model, nn.Module):
        backbone = checkpoints.wrap(model, name, data, framing)
    elif isinstance(model, str):
        if name is not None or data is not None:
            raise ValueError(
                f"{model!r} has a name and a recipe of its own; give name and data for a module "
                "only"
            )
        model = stored_name(model)
        check_name(model, pretrained)
        backbone = family_of(model).load(model, pretrained, framing)
    else:
        raise ValueError(f"{type(model).__name__} is no model; give a name or a torch.nn.Module")
    backbone.model.to(device)
    for key, value in backbone.model.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(
                f"the weights of '{backbone.name}' hold NaN or infinity in '{key}'; fetch or train "
                "them again"
            )
    if (seed := _noise.get()) is not None:
        _add_noise(backbone, seed)
    return backbone


def backbone_of(model: str | nn.Module | Backbone) -> Backbone:
    """`model` where it is a Backbone, with its interventions; else `load_backbone(model)`."""
    return model if isinstance(model, Backbone) else load_backbone(model)


def token_layout(model: str | nn.Module | Backbone) -> TokenLayout:
    """Which tokens are [CLS], registers and patches, and the grid of the patches.

    At the image size of the model. Of a name of timm or open_clip no weights are needed.

    Args:
        model: what `load_backbone` takes, or a Backbone, then with the tokens that an active
            intervention appends.

    Raises what `load_backbone` raises.

    >>> layout = token_layout("vit_small_patch14_reg4_dinov2.lvd142m")
    >>> layout.cls, layout.registers, layout.grid, layout.tokens
    (True, 4, (37, 37), 1374)
    """
    if isinstance(model, str) and family_of(model) in NAMED:
        check_name(model)
        return sketched(model).layout
    return backbone_of(model).layout


def sketched(name: str, framing: Framing = OWN_FRAMING) -> Backbone:
    """The architecture of the model `name`, without memory and weights."""
    with torch.device("meta"):
        return family_of(name).load(name, False, framing)


@contextmanager
def rounding_noise(seed: int) -> Iterator[None]:
    """Models loaded inside have weights and pixels moved by a random unit in the last place.

    Relative 2^-23, up or down.

    What another processor does to a result at most, at once (Monte Carlo arithmetic, Parker 1997,
    in the small). The same weight or picture is moved in the same way each time, as one machine
    rounds it in the same way each time.
    """
    before = _noise.set(seed)
    try:
        yield
    finally:
        _noise.reset(before)


def _add_noise(backbone: Backbone, seed: int) -> None:
    def moved(x: torch.Tensor, key: bytes) -> torch.Tensor:
        chance = torch.Generator().manual_seed(zlib.crc32(key, seed))
        signs = 2 * torch.randint(0, 2, x.shape, generator=chance).to(x) - 1
        return x * (1 + 2.0**-23 * signs)

    for key, value in backbone.model.state_dict().items():
        if value.is_floating_point():
            value.copy_(moved(value, key.encode()))
    backbone.transform = Compose([backbone.transform, lambda x: moved(x, x.numpy().tobytes())])


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
    if name.startswith((converted.PREFIX, checkpoints.FOLDER, checkpoints.HUB)):
        return None
    return sketched(name).depth


def family_of(name: str) -> Family:
    """The family that reads `name`."""
    return next((family for family in FAMILIES if name.startswith(family.prefixes)), FAMILIES[0])


def known(name: str, pretrained: bool = True) -> bool:
    """Whether `name` is a name that load_backbone reads, without loading anything."""
    return not family_of(name).refused(name, pretrained)


def published(pattern: str) -> list[str]:
    """The plain Vision Transformers of timm and open_clip with published weights whose names fit a
    pattern such as 'vit_*.augreg*'; of a name without a * itself.

    >>> published("vit_*_patch16_224.dino")
    ['vit_base_patch16_224.dino', 'vit_small_patch16_224.dino']
    """
    if "*" not in pattern:
        return [pattern]
    return [name for family in NAMED for name in fnmatch.filter(family.names(), pattern)]


def check_name(name: str, pretrained: bool = True) -> None:
    """Raise ValueError with the nearest name where `name` is not known."""
    if not (reason := family_of(name).refused(name, pretrained)):
        return
    if reason != UNKNOWN:
        raise ValueError(reason)
    names = [other for family in FAMILIES for other in family.names()]
    begin = sorted((other for other in names if name and other.startswith(name)), key=len)
    if not begin and "." not in name:  # nobody types the tag of a checkpoint by heart
        names = list(dict.fromkeys(other.partition(".")[0] for other in names))
    nearest = begin or difflib.get_close_matches(name, names, n=1)
    *forms, last = (form for family in FAMILIES for form in family.forms)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"give {', '.join(forms)} or {last}"
    raise ValueError(f"{UNKNOWN} '{name}'; {hint}")


def _check_device(device: Any) -> None:
    """Raise ValueError where there is no such device, before a model is loaded."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ValueError(f"there is no device {str(device)!r} here; use device='cpu'") from None


# ---- Stubs
# --------------------------------------------------------------------------------------------------


def _refused_stub(name: str, pretrained: bool) -> str:
    own = name.removeprefix(STUB)
    return family_of(own).refused(own, False)


def _load_stub(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """The stub of the model that is called `name` without its beginning.

    Both are made on torch's device "meta" first, which needs no memory: the model to be measured,
    the other to be cut.

    Raises ValueError where `family.load` does.
    """
    own = name.removeprefix(STUB)
    architecture = _architecture(own, framing)
    smaller = tuple(
        pixels // patches * min(patches, PATCHES)
        for pixels, patches in zip(architecture.image_size, architecture.layout.grid, strict=True)
    )
    backbone = sketched(own, framing._replace(size=smaller))
    del backbone.blocks[BLOCKS:]
    _randomise(backbone)
    # That of the model was made on "meta", too, and so were its mean and standard deviation.
    backbone.transform = Compose(
        [Resize(backbone.image_size), ToTensor(), Normalize((0.5,) * 3, (0.25,) * 3)]
    )
    backbone.name, backbone.stands_for = name, architecture
    return backbone


@cache  # to count operations takes a second
def _architecture(name: str, framing: Framing) -> Architecture:
    """What one image costs in the model."""
    backbone = sketched(name, framing)
    pixels = torch.empty(1, 3, *backbone.image_size, device="meta")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        backbone.model(pixels)
    layers = chain.from_iterable(block.modules() for block in backbone.blocks)
    return Architecture(
        backbone.image_size,
        backbone.layout,
        backbone.depth,
        backbone.width,
        max(layer.out_features for layer in layers if isinstance(layer, nn.Linear)),
        backbone.parameters,
        counter.get_total_flops(),
    )


def _randomise(backbone: Backbone) -> None:
    """Give the model memory and weights: the same for the same name, scales one and biases zero,
    and one neuron that writes outliers.
    """
    backbone.model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(zlib.crc32(backbone.name.encode()))
    for name, value in chain(backbone.model.named_parameters(), backbone.model.named_buffers()):
        if value.dim() == 1:
            value.data.fill_(0.0 if name.endswith("bias") else 1.0)
        elif value.is_floating_point():
            inputs = 1 if len(value) == 1 else value[0].numel()
            value.data.normal_(0, inputs**-0.5, generator=generator)
    backbone.neurons(min(1, backbone.depth - 1)).weight[:, 0] *= GAIN


# ---- All families; names that begin with no prefix are of the first
# --------------------------------------------------------------------------------------------------

# Part of this project: small, and there without a download.
OWN = (controls.FAMILY, trained.FAMILY, sinks.FAMILY)
# Whose names tell the architecture and the image size.
NAMED = (timm_family.FAMILY, open_clip_family.FAMILY)
FAMILIES = (
    timm_family.FAMILY,
    open_clip_family.FAMILY,
    *converted.FAMILIES,
    *checkpoints.FAMILIES,
    controls.FAMILY,
    trained.FAMILY,
    posthoc.FAMILY,
    sinks.FAMILY,
    Family((STUB,), (), _refused_stub, _load_stub),
)
