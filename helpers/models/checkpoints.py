"""Models of one's own: a loaded module, a folder, a repository or a file of weights.

Timm converts what authors published; here a file's sets of weights are found and chosen from.
"""

import copy
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.models import converted, modeling, open_clip_family
from helpers.models.backbone import Backbone
from helpers.models.family import (
    Framing,
    Size,
    loading,
    located,
    parts_of,
    require_real,
    saved_in,
)
from helpers.models.timm_family import create, require_plain, wrap_at

FOLDER, HUB, FILE = "local-dir:", "hf-hub:", "file:"
ANCHOR = "patch_embed.proj.weight"  # every model of timm has it
# Names under which training scripts keep averaged weights, or a teacher that is an average.
AVERAGED = {"state_dict_ema", "model_ema", "ema_model", "ema", "teacher"}
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


# ---- What timm saved
# --------------------------------------------------------------------------------------------------


def load_saved(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """'local-dir:PATH' or 'hf-hub:OWNER/NAME', which timm saved, or a folder that `edit` wrote."""
    if name.startswith(HUB):
        return create(name, name, pretrained, framing)
    folder = located(name.removeprefix(FOLDER)).resolve()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if {"arguments", "neurons"} <= config.keys():
        return _edited(name, folder, config, pretrained, framing)
    if not config.get("architecture"):
        raise ValueError(f"'{name}' is no model of timm; try '{converted.PREFIX}{folder}'")
    return create(name, f"{FOLDER}{folder}", pretrained, framing)


def _edited(
    name: str, folder: Path, config: dict[str, Any], pretrained: bool, framing: Framing
) -> Backbone:
    """The model that `edit` wrote, by our own copy of its loader, which checks its outputs."""
    with loading(name):
        model = modeling.load(folder) if pretrained else modeling.unloaded(config)
    # What `edit` does not write, such as how images are cropped, is that of the model it edited.
    of = config["of"] if timm.is_model(config["of"].partition(".")[0]) else config["architecture"]
    recipe = timm.models.get_pretrained_cfg(of).to_dict() if of else {}
    recipe |= {key: config[key] for key in ("mean", "std", "input_size") if key in config}
    if not recipe.get("mean"):
        raise ValueError(f"the config.json of '{name}' has no mean and std; write it again")
    data = timm.data.resolve_data_config(pretrained_cfg=recipe)
    return wrap_at(name, model, data, framing, pretrained)


# ---- A file of weights
# --------------------------------------------------------------------------------------------------


def load_file(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """'file:PATH@ARCH': the weights in a file, for an architecture of timm or open_clip.

    Of several sets of weights that fit ARCH the averaged one is taken. Raises ValueError where none
    fits, or several do that are alike.
    """
    _, path, arch = parts_of(name)
    if not path:
        raise ValueError(f"'{name}' names no architecture; give '{FILE}PATH@ARCH'")
    anchor, fill = ANCHOR, _filled
    if arch.startswith(open_clip_family.PREFIX):
        anchor, fill = open_clip_family.ANCHOR, open_clip_family.load_with
    else:
        require_plain(arch)
    if not pretrained:
        return fill(name, arch, None, framing)
    if not (place := located(path)).is_file():
        raise FileNotFoundError(f"there is no file {path!r}")
    with loading(name):
        found = weights_in(saved_in(place), anchor)
    averaged = {key: found[key] for key in found if AVERAGED & {*key.split(".")}}
    others = {key: found[key] for key in found if key not in averaged}
    refused = ValueError(f"'{name}' holds no weight called {anchor!r}")
    for sets in (averaged, others):
        fits = []
        for prefix, state in sets.items():
            try:
                fits.append(fill(name, arch, state, framing))
            except ValueError as error:
                refused = error
            else:
                fits[-1].source = f"{prefix or 'the weights'} in {place.name}"
        if len(fits) > 1:
            several = ", ".join(backbone.source for backbone in fits)
            raise ValueError(f"several sets of weights fit {arch}: {several}")
        if fits:
            return fits[0]
    raise refused


def weights_in(data: Any, anchor: str) -> dict[str, dict[str, Tensor]]:
    """Each set of weights in a checkpoint, by what stands before its names.

    A set has a weight called `anchor`. Names of wrappers are taken out, the chunks of DINOv2's
    blocks too.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for path, tensors in _levels(data):
        for prefix in [key.removesuffix(anchor) for key in tensors if key.endswith(anchor)]:
            weights = {
                re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", key.removeprefix(prefix)): value
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
            head = {key: tensors[key] for key in ("head.weight", "head.bias") if key in tensors}
            # Of a classifier that holds the backbone.
            if "head.weight" in head and head["head.weight"].shape[1:] == weights[anchor].shape[:1]:
                weights = head | weights
            found[path + prefix] = weights
    return found


def _levels(data: Any, path: str = "") -> Iterator[tuple[str, dict[str, Tensor]]]:
    """The tensors of each mapping in a checkpoint, and the keys that lead to it."""
    if not isinstance(data, Mapping):
        return
    tensors = {}
    for key, value in data.items():
        if isinstance(value, Tensor):
            tensors[".".join(part for part in f"{key}".split(".") if part not in WRAPPERS)] = value
    yield path, tensors
    for key, value in data.items():
        yield from _levels(value, f"{path}{key}.")


def _filled(name: str, arch: str, state: dict[str, Tensor] | None, framing: Framing) -> Backbone:
    """Timm's `arch` with exactly these weights, as its own filter converts them; random without.

    Raises ValueError where one is left out or would be drawn, or patches have another size.
    """
    if state is None:
        return create(name, arch, False, framing)
    require_real(name, state)
    classes = len(state.get("head.weight", ()))
    with torch.device("meta"):
        sketch = timm.create_model(arch, num_classes=classes)
    theirs, ours = state[ANCHOR].shape, sketch.patch_embed.proj.weight.shape
    if len(theirs) == 4 and theirs != ours:  # timm would resample it
        raise ValueError(f"{ANCHOR} in '{name}' is {tuple(theirs)}, not {tuple(ours)}")
    framing = framing._replace(size=framing.size or _own_size(name, sketch, state))
    overlay = {
        "num_classes": classes,
        "state_dict": state,
        "source": "",
        "url": None,
        "hf_hub_id": None,
        "classifier": None,  # else timm drops a head of another size and all that is strict
    }
    options = {"pretrained_strict": True, "pretrained_cfg_overlay": overlay}
    backbone = create(name, arch, True, framing, num_classes=classes, **options)
    # timm is never strict with SigLIPs, whose pooling may be left out.
    lacking = backbone.model.state_dict().keys() - state.keys()
    if lacking and "siglip" in arch:
        raise ValueError(f"the weights of '{name}' lack {min(lacking)}")
    return backbone


def _own_size(name: str, sketch: nn.Module, state: Mapping[str, Tensor]) -> Size | None:
    """The image size of the position embedding, a square grid; None where it is ARCH's own."""
    theirs, ours = state.get("pos_embed"), sketch.pos_embed
    if theirs is None or ours is None:
        return None
    before = ours.shape[1] - math.prod(sketch.patch_embed.grid_size)
    if "register_tokens" in state:  # DINOv2's own file, where [CLS] has a position
        before = 1
    patches = theirs.shape[1] - before
    if patches == math.prod(sketch.patch_embed.grid_size):
        return None
    side = math.isqrt(max(patches, 0))
    if not side or side**2 != patches:
        raise ValueError(f"{patches} patches of '{name}' are no square grid; give image_size")
    return tuple(side * patch for patch in sketch.patch_embed.patch_size)


# ---- Modules
# --------------------------------------------------------------------------------------------------


def view_of(module: nn.Module) -> nn.Module:
    """A copy of the modules that shares its weights with `module`.

    To put it into eval mode, to hook or to move it changes nothing of `module`, and costs no
    memory.
    """
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()}
    shared |= {id(b): b.detach() for b in module.buffers()}
    return copy.deepcopy(module, shared)


def wrap(
    module: nn.Module, name: str | None, data: dict[str, Any] | None, framing: Framing
) -> Backbone:
    """The Backbone of the one Vision Transformer that is in `module`, as in `load_backbone`."""
    towers = [*_towers(view_of(module))]
    if len(towers) != 1:
        raise ValueError(
            f"{type(module).__name__} holds {len(towers)} Vision Transformers known here"
        )
    tower = towers[0].float()
    if _is_open_clip(tower):
        recipe = getattr(tower, "preprocess_cfg", None) or {"size": tower.image_size}
        if framing.size not in (None, tuple(tower.image_size)):
            raise ValueError(f"a tower of open_clip stays at its image size {tower.image_size}")
        return open_clip_family.wrap_open_clip(name or "module:open_clip", tower, recipe, framing)
    model, own, distilled, kind = tower, {}, False, type(tower).__name__
    if _is_transformers(tower):
        model, own, distilled = converted.from_transformers(
            tower.config.to_dict(), tower.state_dict(), kind
        )
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


def _towers(module: nn.Module) -> Iterator[nn.Module]:
    """The Vision Transformers in `module`, however deep in wrappers such as DataParallel."""
    module = getattr(module, "_orig_mod", module)
    known = isinstance(module, VisionTransformer | Eva)
    if known or _is_open_clip(module) or _is_transformers(module):
        yield module
    else:
        for part in module.children():
            yield from _towers(part)
