"""A Backbone around a model that is already loaded.

Wrappers are seen through, adapters merged, and the model itself is left as it is.
"""

import copy
from typing import Any

import timm
import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from helpers.models import open_clip_family, torchvision_family, transformers_family
from helpers.models.backbone import Backbone
from helpers.models.family import Size
from helpers.models.timm_family import wrap_at


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
        told = " ".join(str(error).split())[:120]
        raise ValueError(
            f"{type(module).__name__} cannot be copied ({told}); take off its hooks and whatever "
            "else was attached to it"
        ) from None
    for part in view.modules():
        part.__dict__.pop(
            "_compiled_call_impl", None
        )  # of module.compile(), which goes around hooks
    return _merged(view)


def _merged(module: nn.Module) -> nn.Module:
    """`module` with each adapter replaced by the layer that computes the same."""
    for name, layer in list(module.named_modules()):
        parent, _, child = name.rpartition(".")
        if hasattr(layer, "base_layer") and hasattr(layer, "merge"):
            base = layer.base_layer
            for weight in base.parameters():  # its own, since the adapter is added in place
                weight.data = weight.data.clone()
            if not getattr(layer, "merged", False) and not getattr(
                layer, "disable_adapters", False
            ):
                layer.merge()
            setattr(module.get_submodule(parent), child, base)
        elif isinstance(
            chosen := getattr(layer, "modules_to_save", None), nn.ModuleDict
        ) and hasattr(layer, "original_module"):
            active = getattr(layer, "active_adapter", None)
            active = active[0] if isinstance(active, list) and active else active
            setattr(
                module.get_submodule(parent),
                child,
                chosen[active] if active in chosen else layer.original_module,
            )
    return module


def wrap(
    module: nn.Module,
    name: str | None,
    data: dict[str, Any] | None,
    size: Size | None,
    whole: bool,
    fit: bool,
) -> Backbone:
    """The Backbone of the one Vision Transformer that is in `module`, as in `load_backbone`."""
    tower = _tower(view_of(module))
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in tower.parameters()):
        tower.float()
    if _is_open_clip(tower):
        recipe = getattr(tower, "preprocess_cfg", None) or {"size": tower.image_size}
        if size not in (None, tuple(tower.image_size)):
            raise ValueError(
                "a tower of open_clip stays at its image size; leave image_size out, or load it by "
                "its name"
            )
        return open_clip_family.wrap_open_clip(
            name or "module:open_clip", tower, recipe, True, whole
        )
    if transformers_family.is_one(tower):
        model, own = transformers_family.converted(
            tower.config.to_dict(), tower.state_dict(), type(tower).__name__
        )
        name, distilled = (
            name or f"module:{type(tower).__name__}",
            transformers_family.is_distilled(tower.config.to_dict()),
        )
    elif torchvision_family.is_one(tower):
        model, own, distilled = torchvision_family.converted(tower), torchvision_family.DATA, False
        name = name or "module:torchvision"
    else:
        model, distilled = tower, False
        cfg = getattr(model, "pretrained_cfg", None)
        own = (
            timm.data.resolve_data_config(pretrained_cfg=cfg if isinstance(cfg, dict) else {})
            if cfg
            else {}
        )
        architecture = (cfg or {}).get("architecture") if isinstance(cfg, dict) else None
        name = name or f"module:{architecture or type(model).__name__}"
    return wrap_at(name, model, own | (data or {}), size, whole, fit, True, distilled)


def _is_open_clip(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "VisionTransformer" and kind.__module__ == "open_clip.transformer"


def _known(module: nn.Module) -> bool:
    return (
        isinstance(module, VisionTransformer | Eva)
        or _is_open_clip(module)
        or torchvision_family.is_one(module)
        or transformers_family.is_one(module)
    )


def _tower(module: nn.Module) -> nn.Module:
    """The one Vision Transformer in `module`, however deep in wrappers.

    Such as DataParallel, PEFT, or a model with a head of its own.
    """
    found, waiting = [], [module]
    while waiting:
        part = waiting.pop()
        part = getattr(part, "_orig_mod", part)
        if _known(part):
            found.append(part)
        else:
            waiting += part.children()
    if len(found) != 1:
        told = (
            f"{len(found)} Vision Transformers; give the one that is meant"
            if found
            else "no Vision Transformer of timm, open_clip, torchvision or transformers "
            "(ViT, DeiT, DINOv2, CLIP, SigLIP); give "
            "one that does, or put its weights into an architecture of timm with 'file:PATH@ARCH'"
        )
        raise ValueError(f"{type(module).__name__} holds {told}")
    return found[0]
