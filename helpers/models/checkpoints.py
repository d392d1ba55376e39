"""Models of one's own: a loaded module, a folder, a repository or a file of weights.

Timm converts what authors published; here a file's sets of weights are found and chosen from.
"""

import copy
import json
import math
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.models import beit
from torch import Tensor, nn

from helpers.models import converted, modeling, open_clip_family
from helpers.models.backbone import Backbone
from helpers.models.family import Framing, Size, loading, parts_of, require_real, saved_in
from helpers.models.timm_family import BIASES, KINDS, beit_options, create, require_plain, wrap_at

FOLDER, HUB, FILE = "local-dir:", "hf-hub:", "file:"
ANCHORS = (  # the patch embedding in the words of authors that timm converts
    "patch_embed.proj.weight",
    "patch_embed.projection.weight",  # Sapiens2
    "visual.conv1.weight",  # CLIP and Perception Encoder, and this of its tower alone
    "conv1.weight",
    "preprocessor.patchifier.proj.weight",  # AIMv2
    "radio_model.model.patch_generator.embedder.weight",  # RADIO
    "beit3.vision_embed.proj.weight",
)
KERNELS = tuple(  # the same in the words of Google's files
    f"{prefix}embedding/kernel" for prefix in ("", "opt/target/", "params/", "params/img/")
)
WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
# Parts of names under which training scripts keep averaged weights; data2vec's _ema is a target.
AVERAGED = r"\b(?!no_|non_|_)(\w+_)?(ema|swa)(_\w+)?\b"
# Of what trains together, the part that its authors evaluate -> the others.
EVALUATED = {
    r"\bteacher\b": r"\bstudent\b",  # DINO, iBOT, DINOv2, DINOv3
    r"\btarget_encoder\b": r"\b(context_)?encoder\b",  # I-JEPA, MSN
    r"\bbase_encoder\b": r"\bmomentum_encoder\b",  # MoCo v3
    r"\bstate_dict\b": r"\bcurrent_model_state\b",  # Lightning, where it averages
}
# What training alone needs, such as MAE's decoder and MoCo's projection.
UNUSED = re.compile(r"(optim\w*|decoder\w*|masked_embed|lm_head|head\.(\d+|mlp|last_layer)|fc)\b")
ADAPTER = re.compile(r"\b(base_layer|modules_to_save|(lora|ia3|hada|lokr|vera|b?oft)_\w+)\b")


# ---- What timm saved


def load_saved(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """'local-dir:PATH' or 'hf-hub:OWNER/NAME', which timm saved, or a folder that `edit` wrote."""
    if name.startswith(HUB):
        return create(name, name, pretrained, framing)
    folder = Path(name.removeprefix(FOLDER)).expanduser().resolve()
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


def load_file(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """'file:PATH@ARCH': the weights in a file, for an architecture of timm or open_clip.

    Of several sets of weights that fit ARCH, the averaged one is taken, or else the one that its
    authors evaluate (EVALUATED). Raises ValueError where no set fits, or where several are left.
    """
    _, path, arch = parts_of(name)
    if not path:
        raise ValueError(f"'{name}' names no architecture; give '{FILE}PATH@ARCH'")
    anchors, fill = ANCHORS, _filled
    if arch.startswith(open_clip_family.PREFIX):
        anchors, fill = (open_clip_family.ANCHOR,), open_clip_family.load_with
    else:
        require_plain(arch)
    if not pretrained:
        return fill(name, arch, None, framing)
    if not (place := Path(path).expanduser()).is_file():
        raise FileNotFoundError(f"there is no file {path!r}")
    if place.suffix.lower() == ".npz" and fill is _filled:
        return _from_jax(name, arch, place, framing)
    with loading(name):
        every = _weights_in(saved_in(place))
    fits, refused = {}, ValueError(f"'{name}' holds no weight called {anchors[0]!r}")
    if adapter := next(filter(ADAPTER.search, every), ""):
        refused = ValueError(f"'{name}' has adapters, {adapter}; call merge_and_unload() first")
    elif any(map(converted.ANCHOR.match, every)):
        refused = ValueError(f"'{name}' is in another format; give '{converted.PREFIX}FOLDER'")
    for where, state in _sets(every, anchors):
        unused = {match[1] for match in map(UNUSED.match, state) if match}
        try:
            used = {key: value for key, value in state.items() if not UNUSED.match(key)}
            fits[where] = fill(name, arch, used, framing)
        except ValueError as error:
            refused = refused if adapter else error
        else:
            said = f"{where or 'the weights'} in {place.name}"
            fits[where].source = ", without ".join(filter(None, [said, ", ".join(sorted(unused))]))
    if not fits:
        raise refused
    chosen = [*fits]
    for meant, behind in EVALUATED.items():
        if any(re.search(meant, where) for where in chosen):
            chosen = [where for where in chosen if not re.search(behind, where)] or chosen
    chosen = [where for where in chosen if re.search(AVERAGED, where)] or chosen
    if len(chosen) > 1:
        several = ", ".join(fits[where].source for where in chosen)
        raise ValueError(f"several sets of weights fit {arch}: {several}; save one of them alone")
    return fits[chosen[0]]


def _weights_in(data: Any, path: str = "") -> dict[str, Tensor]:
    """The weights of a checkpoint by the keys that lead to them, without names of wrappers."""
    found: dict[str, Tensor] = {}
    for key, value in data.items() if isinstance(data, Mapping) else ():
        name = ".".join(part for part in f"{path}{key}".split(".") if part not in WRAPPERS)
        inner = _weights_in(value, name and f"{name}.")
        if isinstance(value, Tensor) and value.dtype not in (torch.int64, torch.bool):
            inner = {name: value}  # and no counter
        if twice := found.keys() & inner.keys():
            raise ValueError(f"two weights are called {min(twice)}, without names of wrappers")
        found |= inner
    return found


def _sets(every: dict[str, Tensor], anchors: Sequence[str]) -> Iterator[tuple[str, dict]]:
    """Each set of weights that has one of `anchors`: what stood before its names, and the weights.

    A head that lies beside the set belongs to it. DINOv2's `blocks.0.3.` becomes `blocks.3.`.
    """
    pattern = re.compile(rf"(|.*?\.)({'|'.join(map(re.escape, anchors))})")
    for match in filter(None, map(pattern.fullmatch, every)):
        prefix, width = match[1], every[match[0]].shape[:1]
        state = {
            re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", key.removeprefix(prefix)): value
            for key, value in every.items()
            if key.startswith(prefix)
        }
        for key, head in every.items():
            around = key.removesuffix("head.weight")
            bias = every.get(f"{around}head.bias")
            if bias is not None and prefix.startswith(around) and head.shape[1:] == width:
                state = {"head.weight": head, "head.bias": bias} | state
        yield prefix, state


def _filled(name: str, arch: str, state: dict[str, Tensor] | None, framing: Framing) -> Backbone:
    """Timm's `arch` with exactly these weights, as its own filter converts them; random without."""
    if state is None:
        return create(name, arch, False, framing)
    require_real(name, state)
    module = sys.modules[timm.models.model_entrypoint(arch.partition(".")[0]).__module__]
    options: dict[str, Any] = {}
    if module is beit:
        state = {key: value for key, value in state.items() if key != "mask_token"}
        options = beit_options(state)
    with torch.device("meta"):
        sketch = timm.create_model(arch, num_classes=1, **options)
    embed, positions = sketch.patch_embed, sketch.pos_embed
    if module is not beit:
        sketch.pos_embed = None
    anchor = next(key for key in ANCHORS if key in state)
    theirs, ours = state[anchor].shape, embed.proj.weight.shape
    if len(theirs) == 4 and theirs != ours or theirs.numel() != ours.numel():
        raise ValueError(f"{anchor} in '{name}' is {tuple(theirs)}, not {tuple(ours)}")
    if "storage_tokens" in state and getattr(sketch.blocks[0].attn, "q_bias", None) is None:
        biases = {key for key in state if key.endswith("attn.qkv.bias")}
        if any(state[key].any() for key in biases):  # timm would leave them out
            raise ValueError(f"the weights of '{name}' have biases of queries; try {arch}_qkvb")
        state = {key: value for key, value in state.items() if key not in biases}
    # What timm makes of it; it resamples no positions where the model has none.
    try:
        with loading(name):
            words = module.checkpoint_filter_fn(dict(state), sketch)
    except AttributeError as error:  # a bias of positions where the architecture has none
        raise ValueError(f"the weights of '{name}' are not those of {arch}: {error}") from None
    classes = len(words.get("head.weight", ()))
    # With a classifier timm would drop a head of another size, and all that is strict.
    overlay = {"num_classes": classes, "state_dict": state, "classifier": None}
    table = next((x for key, x in state.items() if key.endswith(BIASES)), None)
    patches = 0
    if table is not None:  # of a square of positions, since timm reads no other
        patches = (math.isqrt(len(table) - 3) // 2 + 1) ** 2
    elif positions is not None and "pos_embed" in words and not anchor.startswith("radio"):
        before = positions.shape[1] - math.prod(embed.grid_size)
        patches = words["pos_embed"].shape[1] - (0 if "register_tokens" in state else before)
    if patches:
        size = _size_of(name, patches, embed, framing.fitted(name, embed.patch_size))
        if size != tuple(embed.img_size):
            overlay["input_size"] = (3, *size)  # where the file's positions stand
            framing = framing._replace(size=framing.size or size)
    options |= {"pretrained_strict": True, "pretrained_cfg_overlay": overlay}
    if "register_tokens" in state and getattr(sketch, "reg_token", True) is None:
        options |= {"reg_tokens": state["register_tokens"].shape[1], "no_embed_class": True}
    backbone = create(name, arch, True, framing, num_classes=classes, **options)
    # timm is never strict with SigLIPs, whose pooling may be left out.
    pooling = {key for key in words if key.startswith("attn_pool.")}
    odd = (backbone.model.state_dict().keys() ^ words.keys()) - pooling
    if odd and "siglip" in arch:
        raise ValueError(f"the weights of '{name}' are not those of {arch}: {min(odd)}")
    return backbone


def _from_jax(name: str, arch: str, place: Path, framing: Framing) -> Backbone:
    """Timm's `arch` with the weights of one of Google's files, which its own loader reads.

    That loader says nothing of weights that are left over or missing: here they are counted.
    """
    with loading(name), np.load(place) as file:
        shapes = {key: file[key].shape for key in file.files}
    if (kernel := next((key for key in KERNELS if key in shapes), None)) is None:
        raise ValueError(f"'{name}' holds no weight called {KERNELS[0]!r}")
    prefix = kernel.removesuffix(KERNELS[0])
    shapes = {key.removeprefix(prefix): x for key, x in shapes.items() if key.startswith(prefix)}
    sizes = {key: math.prod(x) for key, x in shapes.items() if not key.startswith("pre_logits/")}
    with torch.device("meta"):
        sketch = timm.create_model(arch)
    positions = next((key for key in shapes if key.endswith("pos_embedding")), "")
    embed, ours = sketch.patch_embed, sketch.pos_embed
    if not positions or ours is None or not hasattr(sketch, "load_pretrained"):
        raise ValueError(f"timm reads no file such as '{name}' for {arch}")
    height, width, channels, channels_out = shapes[KERNELS[0]]
    if (channels_out, channels, height, width) != embed.proj.weight.shape:
        raise ValueError(f"{kernel} in '{name}' is {shapes[KERNELS[0]]}, not that of {arch}")
    before = ours.shape[1] - math.prod(embed.grid_size)
    wanted = framing.fitted(name, embed.patch_size)
    size = _size_of(name, shapes[positions][1] - before, embed, wanted)
    if size != tuple(embed.img_size):
        framing = framing._replace(size=wanted or size)
    classes = shapes.get("head/bias", (0,))[-1]
    backbone = create(name, arch, False, framing, num_classes=classes)
    state = backbone.model.state_dict()
    for value in state.values():
        value.fill_(torch.nan)
    try:
        with loading(name):
            backbone.model.load_pretrained(str(place))
    except KeyError as error:
        raise ValueError(f"the weights of '{name}' are not those of {arch}: {error}") from None
    left = sorted(key for key, value in state.items() if value.isnan().any())
    taken = sum(value.numel() for key, value in state.items() if key != "pos_embed")
    if left or taken != (there := sum(sizes.values()) - sizes[positions]):
        odd = f"{left[0]} is not there" if left else f"{there} numbers, not {taken}"
        raise ValueError(f"the weights of '{name}' are not those of {arch}: {odd}")
    unused = ", without pre_logits" * (len(sizes) < len(shapes))
    backbone.pretrained, backbone.source = True, f"the weights in {place.name}{unused}"
    return backbone


def _size_of(name: str, patches: int, embed: nn.Module, wanted: Size | None) -> Size:
    """The image size of so many patches: as ARCH has it, as it is wanted, or else a square."""
    grids = {tuple(embed.img_size): embed.grid_size}
    if wanted:
        grids[wanted] = tuple(x // y for x, y in zip(wanted, embed.patch_size, strict=True))
    sizes = [size for size, grid in grids.items() if math.prod(grid) == patches]
    side = math.isqrt(max(patches, 0))
    if not sizes and side**2 == patches:
        sizes.append(tuple(side * patch for patch in embed.patch_size))
        if wanted is None:
            said = f"'{name}' is read as {side} x {side} patches; for others give image_size"
            warnings.warn(said, stacklevel=5)
    if len(sizes) != 1:
        said = f"fit {' and '.join(map(str, sizes))} px" if sizes else "are no square"
        raise ValueError(f"{patches} patches of '{name}' {said}; give image_size or a module")
    return sizes[0]


# ---- Modules


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
    if isinstance(module, tuple(KINDS)) or _is_open_clip(module) or _is_transformers(module):
        yield module
    else:
        for part in module.children():
            yield from _towers(part)
