"""Name or module -> Backbone."""

from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import nn

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
from helpers.models.backbone import Backbone
from helpers.models.family import Framing
from helpers.models.tokens import TokenLayout
from helpers.names import stored_name

# How a name begins -> (name, pretrained, framing) -> Backbone. All others are timm's.
LOADERS: dict[str, Callable[[str, bool, Framing], Backbone]] = {
    open_clip_family.PREFIX: open_clip_family.load,
    converted.PREFIX: converted.load,
    checkpoints.FOLDER: checkpoints.load_saved,
    checkpoints.HUB: checkpoints.load_saved,
    checkpoints.FILE: checkpoints.load_file,
    controls.PREFIX: controls.load,
    **dict.fromkeys(trained.PREFIXES, trained.load_backbone),
    **dict.fromkeys(posthoc.PREFIXES, posthoc.load_backbone),
    **dict.fromkeys(sinks.PREFIXES, sinks.load_backbone),
}


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
        model: a timm name, 'open_clip:ARCH/TAG' (vision tower only), 'transformers:OWNER/NAME' or
            its folder, 'hf-hub:OWNER/NAME' and 'local-dir:PATH' (saved by timm), 'file:PATH@ARCH'
            (weights for an architecture of timm), 'control-...', 'scratch-...', 'registers-...' and
            'sinks-...' (of this project), 'scratch:PATH', 'registers:PATH' and 'sinks:PATH'
            (trained with its recipes). Or a module of timm, open_clip or transformers, also inside
            torch.compile, DataParallel or a model around it: it shares its weights and stays as is.
        image_size: side, or (height, width), in pixels.
        pretrained: False gives random weights; no effect on models of this project.
        whole: preprocessing squashes the whole image to the model's size, so that boxes in relative
            coordinates [0, 1] carry over.
        fit: `image_size` is rounded down to a multiple of the model's patch.
        name: what a module is called in results; its architecture unless given.
        data: for a module, what it expects of an image, as in timm.data.create_transform; that of
            its pretrained_cfg, or ImageNet's, unless given.

    Raises:
        ModelUnavailable: the weights cannot be had here.
        ValueError: unknown or unsupported model, image size that the patches do not divide, weights
            that are not the model's, or with NaN or infinity.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    framing = Framing(size and tuple(size), whole, fit)
    if isinstance(model, nn.Module):
        backbone = checkpoints.wrap(model, name, data, framing)
    elif name or data:
        raise ValueError(f"{model!r} has a name and a recipe of its own")
    else:
        name = stored_name(model)
        backbone = _loader(name)(name, pretrained, framing)
    backbone.model.to(device)
    for key, value in backbone.model.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"the weights of '{backbone.name}' hold NaN or infinity in '{key}'")
    return backbone


def _loader(name: str) -> Callable[[str, bool, Framing], Backbone]:
    prefixes = (prefix for prefix in LOADERS if name.startswith(prefix))
    return LOADERS.get(next(prefixes, ""), timm_family.load)


def backbone_of(model: str | nn.Module | Backbone) -> Backbone:
    """`model` where it is a Backbone, with its interventions; else `load_backbone(model)`."""
    return model if isinstance(model, Backbone) else load_backbone(model)


def token_layout(model: str | nn.Module | Backbone) -> TokenLayout:
    """Which tokens are [CLS], registers and patches, and the grid of the patches.

    At the image size of the model. Of a name of timm or open_clip no weights are needed.

    >>> layout = token_layout("vit_small_patch14_reg4_dinov2.lvd142m")
    >>> layout.cls, layout.registers, layout.grid, layout.tokens
    (True, 4, (37, 37), 1374)
    """
    if isinstance(model, str) and _loader(model) in (timm_family.load, open_clip_family.load):
        with torch.device("meta"):  # without memory
            return _loader(model)(model, False, Framing()).layout
    return backbone_of(model).layout


def known(name: str) -> bool:
    """Whether `name` is a name of timm, or begins as the others that `load_backbone` reads."""
    return name.startswith((*LOADERS,)) or name in timm.list_models() + timm.list_pretrained()
