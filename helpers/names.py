"""Short names of models, for figures and pages: `vit_tiny_patch16_224.augreg_in21k_ft_in1k` is
ViT-Ti (AugReg).
"""

import re
from collections import Counter
from collections.abc import Iterable

STUB = "stub:"  # begins the name of random weights or other images, which a dry run takes
# How the names of models begin that may be paths of this machine: of a file, and of a folder with
# config.json.
FILES = ("file:", "scratch:", "registers:", "sinks:")
LOCAL = (*FILES, "local-dir:", "transformers:")

_SIZES = {
    "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G",  # noqa: E501
    "so400m": "So400M", "so150m": "So150M",
}  # fmt: skip
_FAMILIES = {
    "vit": "ViT",
    "deit": "DeiT",
    "deit3": "DeiT-III",
    "eva02": "EVA-02",
    "beit": "BEiT",
    "beitv2": "BEiT v2",
}
# The name of a kind of pretraining as its tag begins; the first that fits.
_TAGS = {
    "augreg2": "AugReg 2", "augreg": "AugReg", "lvd142m": "DINOv2", "lvd1689m": "DINOv3", "dinov3": "DINOv3", "dino": "DINO",  # noqa: E501
    "mae": "MAE", "openai": "CLIP", "laion2b": "OpenCLIP", "laion400m": "OpenCLIP", "webli": "SigLIP", "sam": "SAM",  # noqa: E501
    "orig": "original", "in21k": "21k",
}  # fmt: skip
_MODEL = re.compile(rf"([a-z0-9]+?)_({'|'.join(_SIZES)})\d*_patch\d+[^.]*(?:\.(.*))?")

_NAMED = re.compile(r"\w[\w./-]*\w")  # a word of a label that may be a model


def short_name(model: str) -> str:
    """How a figure calls the model: family, size, registers and pretraining of a timm name.

    A control or another name as it is.

    Two checkpoints may share a short name, so it labels and does not identify; `short_names` keeps
    them apart.

    >>> short_name("vit_small_patch14_reg4_dinov2.lvd142m")
    'ViT-S (4 reg., DINOv2)'
    >>> short_name("registers-mean-reg4-seed1")  # trained on from ViT-Ti by this project
    'ViT-Ti mean, 4 reg., seed 1'
    """
    scratch = re.fullmatch(r"scratch-reg(\d+)(?:-seed(\d+))?", model)
    if scratch:
        return f"Twin, {scratch[1]} reg." + (f", seed {scratch[2]}" if scratch[2] else "")
    if added := re.fullmatch(r"registers-(.+)-reg(\d+)(?:-seed(\d+))?", model):
        return f"ViT-Ti {added[1]}, {added[2]} reg." + (f", seed {added[3]}" if added[3] else "")
    if sinks := re.fullmatch(r"sinks-(.+)-reg(\d+)(?:-seed(\d+))?", model):
        return f"Twin {sinks[1]}, {sinks[2]} reg." + (f", seed {sinks[3]}" if sinks[3] else "")
    if not (parts := _MODEL.fullmatch(model)):
        return (
            model.removeprefix("control-") + " (control)" if model.startswith("control-") else model
        )
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
    shared = {
        name
        for name, model in zip(names, models, strict=True)
        if len({m for m in models if short_name(m) == name}) > 1
    }
    return [model if name in shared else name for name, model in zip(names, models, strict=True)]


def size_families(models: Iterable[str]) -> list[list[str]]:
    """The models among these whose timm names differ in the size, and with it the patch size,
    alone; two or more each.

    >>> size_families(["deit3_small_patch16_224.fb_in1k", "deit_tiny_patch16_224.fb_in1k", "deit3_huge_patch14_224.fb_in1k"])
    [['deit3_small_patch16_224.fb_in1k', 'deit3_huge_patch14_224.fb_in1k']]
    """  # noqa: E501
    families: dict[str, list[str]] = {}
    for model in dict.fromkeys(models):
        if parts := _MODEL.fullmatch(model):
            start, end = parts.span(2)
            families.setdefault(
                model[:start] + re.sub(r"_patch\d+", "", model[end:], count=1), []
            ).append(model)
    return [own for own in families.values() if len(own) > 1]


def shortened(texts: Iterable[str]) -> list[str]:
    """Labels of a figure with the short name of each model in them: `control-clean: moved` is
    `clean (control): moved`.

    Labels that would become the same stay as they are.
    """
    texts = [str(text) for text in texts]
    short = [_NAMED.sub(lambda found: short_name(found[0]), text) for text in texts]
    shared = Counter(name for _, name in dict.fromkeys(zip(texts, short, strict=True)))
    return [text if shared[name] > 1 else name for text, name in zip(texts, short, strict=True)]
