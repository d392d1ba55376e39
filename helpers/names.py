"""Short names of models, for figures and pages: `vit_tiny_patch16_224.augreg_in21k_ft_in1k` is ViT-Ti (AugReg)."""

import re
from collections import Counter
from collections.abc import Iterable

_SIZES = {
    "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G",
    "so400m": "So400M", "so150m": "So150M",
}  # fmt: skip
_FAMILIES = {"vit": "ViT", "deit": "DeiT", "deit3": "DeiT-III", "eva02": "EVA-02", "beit": "BEiT", "beitv2": "BEiT v2"}
# The name of a kind of pretraining as its tag begins; the first that fits.
_TAGS = {
    "augreg2": "AugReg 2", "augreg": "AugReg", "lvd142m": "DINOv2", "lvd1689m": "DINOv3", "dinov3": "DINOv3", "dino": "DINO",
    "mae": "MAE", "openai": "CLIP", "laion2b": "OpenCLIP", "laion400m": "OpenCLIP", "webli": "SigLIP", "sam": "SAM",
    "orig": "original", "in21k": "21k",
}  # fmt: skip
_MODEL = re.compile(rf"([a-z0-9]+?)_({'|'.join(_SIZES)})\d*_patch\d+[^.]*(?:\.(.*))?")

_NAMED = re.compile(r"\w[\w./-]*\w")  # a word of a label that may be a model


def short_name(model: str) -> str:
    """How a figure calls the model: family, size, registers and pretraining of a timm name; a control or another name as it is.

    Two checkpoints may share a short name, so it labels and does not identify; `short_names` keeps them apart.

    >>> short_name("vit_small_patch14_reg4_dinov2.lvd142m")
    'ViT-S (4 reg., DINOv2)'
    """
    scratch = re.fullmatch(r"scratch-reg(\d+)(?:-seed(\d+))?", model)
    if scratch:
        return f"Twin, {scratch[1]} reg." + (f", seed {scratch[2]}" if scratch[2] else "")
    if not (parts := _MODEL.fullmatch(model)):
        return model.removeprefix("control-") + " (control)" if model.startswith("control-") else model
    family, size, tag = parts.groups()
    if family not in _FAMILIES:
        return model
    name = f"{_FAMILIES[family]}-{_SIZES[size]}"
    registers = re.search(r"_reg(\d+)", model)
    said = [f"{registers[1]} reg."] if registers else []
    said += [word for begin, word in _TAGS.items() if tag and tag.startswith(begin)][:1]
    return f"{name} ({', '.join(said)})" if said else name


def short_names(models: list[str]) -> list[str]:
    """The short name of each model; the whole name of those that would share one."""
    names = [short_name(model) for model in models]
    shared = {name for name, model in zip(names, models, strict=True) if len({m for m in models if short_name(m) == name}) > 1}
    return [model if name in shared else name for name, model in zip(names, models, strict=True)]


def shortened(texts: Iterable[str]) -> list[str]:
    """Labels of a figure with the short name of each model in them: `control-clean: moved` is `clean (control): moved`.

    Labels that would become the same stay as they are.
    """
    texts = [str(text) for text in texts]
    short = [_NAMED.sub(lambda found: short_name(found[0]), text) for text in texts]
    shared = Counter(name for _, name in dict.fromkeys(zip(texts, short, strict=True)))
    return [text if shared[name] > 1 else name for text, name in zip(texts, short, strict=True)]
