"""name -> Backbone: the Vision Transformers of timm and open_clip, and the constructed and the trained models of this project.

Weights come through timm and open_clip, which read safetensors, or older files with `torch.load(weights_only=True)`: a file
that needs a pickle is refused. What a plain hook would get wrong without a sign (rotary, gated or differential attention,
parallel blocks) is refused too.
"""

import difflib
import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import timm
import torch
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, LocalEntryNotFoundError
from huggingface_hub.utils import get_session
from PIL import Image
from safetensors import SafetensorError
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from helpers.models import trained as scratch
from helpers.models.backbone import Backbone, OpenClipBackbone, TimmBackbone
from helpers.models.tokens import TokenLayout

CONTROL, OPEN_CLIP = "control-", "open_clip:"
# What the models of build_control expect; 1.0 shows them the whole image.
CONTROL_DATA = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "interpolation": "bicubic", "crop_pct": 1.0}
# What `whole` replaces in the recipe of a timm model: both sides are resized on their own, and there is no margin.
WHOLE = {"crop_mode": "squash", "crop_pct": 1.0}

_silent = False  # whether the hub did not answer when it was last asked for weights
_noise: int | None = None  # the seed of `rounding_noise`, inside it


class ModelUnavailable(LookupError):
    """The weights of a known model cannot be had here (no network, not in the cache, gated)."""


def load_backbone(
    name: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    pretrained: bool = True,
    device: Any = None,
    whole: bool = False,
    fit: bool = False,
) -> Backbone:
    """The model called `name`, at its own image size or at `image_size` (position embedding resampled by its library).

    Args:
        name: a timm name, 'open_clip:ARCH/TAG' (vision tower only), 'control-...', 'scratch-...' (trained and shipped by this
            project) or 'scratch:PATH' (trained with `python -m helpers train`).
        image_size: side, or (height, width), in pixels.
        pretrained: False gives random weights (then TAG is not used); no effect on controls and models trained here.
        device: where to put it; the CPU unless given.
        whole: preprocessing squashes the whole image to the model's size and crops nothing away, so that boxes in relative
            coordinates [0, 1] carry over; the model's own recipe unless given.
        fit: `image_size` is rounded down to a multiple of the model's patch, at least one, where it else must be one.

    Raises:
        ModelUnavailable: the weights cannot be had here.
        ValueError: unknown or unsupported model, image size that the patches do not divide, no such device, weights with NaN or
            infinity.
    """
    check_name(name, pretrained)
    _check_device(device)
    size = None if image_size is None else (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if name.startswith(CONTROL):
        backbone = _load_control(name, size, whole, fit)
    elif name.startswith(scratch.PREFIXES):
        backbone = _load_scratch(name, size, whole, fit)
    elif name.startswith(OPEN_CLIP):
        backbone = _load_open_clip(name, size, pretrained, whole, fit)
    else:
        backbone = _load_timm(name, size, pretrained, whole, fit)
    backbone.model.eval().requires_grad_(False).to(device)
    for key, value in backbone.model.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"the weights of '{name}' hold NaN or infinity in '{key}'; fetch or train them again")
    if _noise is not None:
        _add_noise(backbone, _noise)
    return backbone


@contextmanager
def rounding_noise(seed: int) -> Iterator[None]:
    """Models loaded inside have weights and pixels moved by a random unit in the last place: relative 2^-23, up or down.

    What another processor does to a result at most, at once (Monte Carlo arithmetic, Parker 1997, in the small). The same weight
    or picture is moved in the same way each time, as one machine rounds it in the same way each time.
    """
    global _noise
    before, _noise = _noise, seed
    try:
        yield
    finally:
        _noise = before


def _add_noise(backbone: Backbone, seed: int) -> None:
    def moved(x: torch.Tensor, key: bytes) -> torch.Tensor:
        signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(zlib.crc32(key, seed))).to(x) * 2 - 1
        return x * (1 + 2.0**-23 * signs)

    for key, value in backbone.model.state_dict().items():
        if value.is_floating_point():
            value.copy_(moved(value, key.encode()))
    plain = backbone.transform

    def transform(image: Image.Image) -> torch.Tensor:
        pixels = plain(image)
        return moved(pixels, pixels.numpy().tobytes())

    backbone.transform = transform


def known(name: str, pretrained: bool = True) -> bool:
    """Whether `name` is a name that load_backbone reads, without loading anything."""
    if name.startswith(CONTROL):
        return name in _controls().CONTROLS
    if name.startswith(scratch.PREFIXES):
        return scratch.path_of(name).is_file()
    if name.startswith(OPEN_CLIP):
        arch, _, tag = name.removeprefix(OPEN_CLIP).partition("/")
        open_clip = _open_clip()
        return arch in open_clip.list_models() and (not pretrained or open_clip.pretrained.is_pretrained_cfg(arch, tag))
    return name in timm.list_models() or name in timm.list_pretrained()


def check_name(name: str, pretrained: bool = True) -> None:
    """Raise ValueError with the nearest name where `name` is not known."""
    if known(name, pretrained):
        return
    if name.startswith(scratch.FILE):
        raise ValueError(f"there is no file {str(scratch.path_of(name))!r}; `python -m helpers train` makes such models")
    names = [*_plain(), *_controls().CONTROLS, *scratch.names()]
    begin = sorted((other for other in names if name and other.startswith(name)), key=len)
    nearest = begin or difflib.get_close_matches(name, names, n=1)
    forms = f"a timm name, '{OPEN_CLIP}ARCH/TAG', '{CONTROL}...', '{scratch.SHIPPED}...' or '{scratch.FILE}PATH'"
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"give {forms}"
    raise ValueError(f"unknown model '{name}'; {hint}")


def _plain() -> list[str]:
    """The names of timm and open_clip whose architecture is a plain Vision Transformer."""
    open_clip = _open_clip()
    visions = {arch: open_clip.get_model_config(arch)["vision_cfg"] for arch, _ in open_clip.list_pretrained()}
    plain = {arch for arch, cfg in visions.items() if "timm_model_name" not in cfg and isinstance(cfg["layers"], int)}
    clips = [f"{OPEN_CLIP}{arch}/{tag}" for arch, tag in open_clip.list_pretrained() if arch in plain]
    return [name for name in timm.list_pretrained() if _is_plain(name.partition(".")[0])] + clips


def _is_plain(arch: str) -> bool:
    return timm.models.is_model_in_modules(arch, ["vision_transformer", "deit"])


def wrap_timm(name: str, model: nn.Module, data: dict[str, Any], pretrained: bool) -> Backbone:
    """A Backbone around a timm VisionTransformer; `data` holds the mean, std, crop_pct... of timm.data.create_transform."""
    _refuse_unusual(name, model)
    size, registers, distillation = model.patch_embed.img_size, model.num_reg_tokens, int(hasattr(model, "dist_token"))
    layout = TokenLayout(model.patch_embed.grid_size, model.cls_token is not None, registers, distillation)
    transform = timm.data.create_transform(**data | {"input_size": (3, *size)})
    return TimmBackbone(name, model, layout, size, model.patch_embed.patch_size, transform, pretrained)


def _load_timm(name: str, size: tuple[int, int] | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    arch = name.partition(".")[0]
    if timm.models.is_model_in_modules(arch, ["eva"]):
        raise ValueError(f"'{name}' applies rotary embedding after qkv, so a plain qkv hook would be silently wrong")
    if not _is_plain(arch):
        raise ValueError(f"'{name}' is not a plain Vision Transformer; choose one of timm's vit_*, deit* or flexivit_*")
    with torch.device("meta"):  # the architecture without memory: refuse before anything is downloaded
        sketch = timm.create_model(name)
    _refuse_unusual(name, sketch)
    data = timm.data.resolve_data_config(pretrained_cfg=sketch.pretrained_cfg)
    if size is not None:
        size = _fitting(name, size, sketch.patch_embed.patch_size, fit)
        # A margin cropped away belongs to the size that the recipe was made for.
        data["crop_pct"] = data["crop_pct"] if size == sketch.patch_embed.img_size else 1.0
    with _loading(name):
        model = timm.create_model(name, pretrained=pretrained, img_size=size)
    return wrap_timm(name, model, data | WHOLE if whole else data, pretrained)


def _load_control(name: str, size: tuple[int, int] | None, whole: bool, fit: bool) -> Backbone:
    model = _controls().build_control(name)
    if size is not None:
        size = _fitting(name, size, model.patch_embed.patch_size, fit)
        model.set_input_size(img_size=size)
    return wrap_timm(name, model, CONTROL_DATA | WHOLE if whole else CONTROL_DATA, pretrained=True)


def _load_scratch(name: str, size: tuple[int, int] | None, whole: bool, fit: bool) -> Backbone:
    model, _ = scratch.load(name)
    if size is not None:
        size = _fitting(name, size, model.patch_embed.patch_size, fit)
        model.set_input_size(img_size=size)
    return wrap_timm(name, model, scratch.DATA | WHOLE if whole else scratch.DATA, pretrained=True)


def _load_open_clip(name: str, size: tuple[int, int] | None, pretrained: bool, whole: bool, fit: bool) -> Backbone:
    open_clip, (arch, _, tag) = _open_clip(), name.removeprefix(OPEN_CLIP).partition("/")
    vision = open_clip.get_model_config(arch)["vision_cfg"]
    if "timm_model_name" in vision:
        raise ValueError(f"the vision tower of '{name}' is timm's '{vision['timm_model_name']}'; choose one of its timm names")
    if isinstance(vision["layers"], list):
        raise ValueError(f"'{name}' is not a Vision Transformer; choose an open_clip ViT")
    if size is not None:
        size = _fitting(name, size, (vision["patch_size"], vision["patch_size"]), fit)
    tag_config = open_clip.get_pretrained_cfg(arch, tag) if pretrained else {}
    with _loading(name):
        open_clip.pretrained.download_pretrained(tag_config)  # apart, so that a miss keeps its own error
        clip = open_clip.create_model(
            arch,
            pretrained=tag if pretrained else None,
            pretrained_text=False,
            force_image_size=size,
            # The activation belongs to the weights; create_model only warns where the two differ.
            force_quick_gelu=tag_config.get("quick_gelu", False),
        )
    visual = clip.visual
    if not all(isinstance(block.attn, nn.MultiheadAttention) for block in visual.transformer.resblocks):
        raise ValueError(f"the attention of '{name}' is not nn.MultiheadAttention, so its rows cannot be rebuilt; choose another")
    visual.output_tokens = False
    resize = {"resize_mode": "squash"} if whole else {}
    recipe = open_clip.transform.PreprocessCfg(**visual.preprocess_cfg | resize)
    transform = open_clip.transform.image_transform_v2(recipe, is_train=False)
    layout = TokenLayout(visual.grid_size)
    return OpenClipBackbone(name, visual, layout, visual.image_size, visual.patch_size, transform, pretrained)


def _refuse_unusual(name: str, model: nn.Module) -> None:
    """Raise ValueError where softmax(q k) of the qkv layer is not what the blocks compute."""
    for block in model.blocks if isinstance(model, VisionTransformer) else [None]:
        attn = getattr(block, "attn", None)
        plain = type(attn) is timm.layers.Attention and getattr(attn, "gate", None) is None
        if not plain or not hasattr(block.mlp, "fc2"):
            raise ValueError(
                f"'{name}' has {type(block).__name__} with {type(attn).__name__}, not plain attention followed by "
                "an MLP, so a plain qkv hook would be silently wrong; choose another"
            )


def _check_device(device: Any) -> None:
    """Raise ValueError where there is no such device: before a model is loaded, and in one sentence."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ValueError(f"there is no device {str(device)!r} here; use device='cpu'") from None


def _fitting(name: str, size: tuple[int, int], patch: tuple[int, int], fit: bool) -> tuple[int, int]:
    """The image size that the patches divide. Raises ValueError where they do not, and it must not be rounded."""
    if fit:
        size = tuple(max(1, s // p) * p for s, p in zip(size, patch, strict=True))
    if any(s < p or s % p for s, p in zip(size, patch, strict=True)):
        near = [sorted({max(s // p, 1) * p, max(-(-s // p), 1) * p}) for s, p in zip(size, patch, strict=True)]
        hint = " and ".join(" or ".join(map(str, n)) for n in (near if near[0] != near[1] else near[:1]))
        raise ValueError(
            f"image size {size[0]}x{size[1]} is not divisible by the patch size {patch[0]}x{patch[1]} of '{name}'; use {hint}"
        )
    return size


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn the many errors of a missing or damaged checkpoint into two.

    To wait for a hub that is out of reach takes half a minute. Where it did not answer for one model, it must answer a short
    question before it is asked for another, which may else come from the cache alone.
    """
    global _silent
    offline = constants.HF_HUB_OFFLINE
    _silent = _silent and not offline and not _hub_answers()
    constants.HF_HUB_OFFLINE = offline or _silent
    try:
        yield
    except (OSError, EntryNotFoundError) as error:
        errors = (error, error.__context__)
        gated = any(isinstance(e, GatedRepoError) for e in errors)
        _silent = not offline and not gated and any(isinstance(e, LocalEntryNotFoundError) for e in errors)
        reason = (
            "is gated: accept its terms on the hub and log in"
            if gated
            else (
                "is not in the Hugging Face cache, and the hub did not give it (no network, HF_HUB_OFFLINE set, or file missing)"
            )
        )
        raise ModelUnavailable(f"'{name}' {reason}") from error
    except (RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        raise ValueError(f"the weights of '{name}' do not load: {' '.join(str(error).split())[:200]}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline


def _hub_answers() -> bool:
    """Whether the hub says anything within some seconds, by the client and the proxy that also load from it."""
    try:
        get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # of the client, which is another one in each version of huggingface_hub
        return False
    return True


def _open_clip() -> Any:
    """open_clip, read when one of its models is asked for: a machine that has timm alone can run timm's."""
    import open_clip

    return open_clip


def _controls() -> Any:
    """helpers.controls, read when a control is asked for."""
    from helpers.models import controls

    return controls
