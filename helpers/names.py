"""Short names of models, for figures and pages: `vit_tiny_patch16_224.augreg_in21k_ft_in1k` is
ViT-Ti (AugReg). And the names of recipes, beside those that results and files of weights keep.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

# How the names of models begin that may be paths of this machine: of a file, and of a folder with
# config.json.
FILES = ("file:", "scratch:", "registers:", "sinks:")
LOCAL = (*FILES, "local-dir:", "transformers:")
# How pages name a recipe or a task -> its name in stored results, weight files and presets.
ALIASES = {
    "clean-target": "asked",
    "ph-reg-target": "mean",
    "free-register": "offered",
    "no-op": "quiet",
}
_ALIAS = re.compile(rf"((?:registers-|sinks-)?)({'|'.join(ALIASES)})(?=-|$)(.*)", re.DOTALL)

_SIZES = {
    "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G",  # noqa: E501
    "so400m": "So400M", "so150m": "So150M",
}  # fmt: skip
_FAMILIES = {
    "vit": "ViT",
    "deit": "DeiT",
    "deit3": "DeiT-III",
    "eva02": "EVA-02",
}
# The name of a kind of pretraining as its tag begins; the first that fits.
_TAGS = {
    "augreg2": "AugReg 2", "augreg": "AugReg", "lvd142m": "DINOv2", "lvd1689m": "DINOv3", "dinov3": "DINOv3", "dino": "DINO",  # noqa: E501
    "mae": "MAE", "openai": "CLIP", "laion2b": "OpenCLIP", "laion400m": "OpenCLIP", "webli": "SigLIP", "sam": "SAM",  # noqa: E501
    "orig": "original", "in21k": "21k",
}  # fmt: skip
# Presets of `training` in the field's words, and how each of the models is called.
_PRESETS = {
    "asked": "clean target", "mean": "PH-Reg target", "median": "median target",
    "offered": "free registers", "offered-cls": "free registers, [CLS] target",
    "ph-reg": "PH-Reg target and weights",
    "blocks": "clean target, blocks 6 to 8", "registers-only": "clean target, registers only",
    "frozen": "clean target, registers only, 600 steps",
    "fixed": "clean target, random registers",
    "regrow": "neuron removed", "regrow-cls": "neuron removed, [CLS] target",
    "regrow-labels": "neuron removed, labels", "regrow-frozen": "neuron removed, block frozen",
    "regrow-other": "random neuron removed",
    "cpu": "plain recipe", "gap": "mean pooling", "deep": "16 blocks",
    "no-decay": "no weight decay",
    "fine": "96 px images", "long": "400 epochs", "hard": "hard scenes", "cifar10": "CIFAR-10",
    "quiet": "no-op", "quiet-decay0": "no-op, no weight decay",
    "broadcast-decay0": "broadcast, no weight decay", "quiet-sigmoid": "no-op, sigmoid attention",
    "quiet-layerscale": "no-op, LayerScale", "quiet-cls": "no-op, with [CLS]",
    "quiet-sgd": "no-op, SGD",
    "quiet-borders-noise-1": "no-op, noise border", "quiet-borders-flat-1": "no-op, flat border",
    "quiet-borders-shallow-noise-1": "shallow no-op, noise border",
    "quiet-borders-shallow-flat-1": "shallow no-op, flat border",
}  # fmt: skip
# Outlier rules as figures call them.
RULES = {
    "median:3": "3 × median",
    "mad:10": "10 MAD",
    "percentile:98": "98th percentile",
    "fixed:150": "norm 150",
}
_OWN = re.compile(r"(scratch|registers|sinks)(?:-(.+))?-reg(\d+)(?:-seed(\d+))?")
_MODEL = re.compile(rf"([a-z0-9]+?)_({'|'.join(_SIZES)})\d*_patch\d+[^.]*(?:\.(.*))?")

_TRAINED = {"scratch": "From-scratch ViT", "registers": "ViT-Ti", "sinks": "Sink-task ViT"}
CONDITIONS = {"plain": "original model", "moved": "neurons shifted"}  # in figures
_CONDITION = re.compile(rf"(?:^|(?<=, )|(?<=\n))(?:{'|'.join(CONDITIONS)})(?=,|\n|$)")
_NAMED = re.compile(r"\w[\w./-]*\w")  # a word of a label that may be a model


def short_name(model: str) -> str:
    """How a figure calls the model: family, size, registers and pretraining of a timm name.

    Two checkpoints may share a short name; `short_names` keeps them apart.

    >>> short_name("vit_small_patch14_reg4_dinov2.lvd142m")
    'ViT-S (4 reg., DINOv2)'
    >>> short_name("registers-mean-reg4-seed1")  # fine-tuned from ViT-Ti by this project
    'ViT-Ti, PH-Reg target, 4 reg., seed 1'
    """
    if own := _OWN.fullmatch(model):
        kind, recipe, count, seed = own.groups()
        said = [_TRAINED[kind], *([preset_name(recipe)] if recipe else []), f"{count} reg."]
        return ", ".join([*said, *([f"seed {seed}"] if seed else [])])
    if not (parts := _MODEL.fullmatch(model)):
        control = model.removeprefix("control-")
        return model if control == model else f"{control} (reference)"
    family, size, tag = parts.groups()
    if family not in _FAMILIES:
        return model
    name = f"{_FAMILIES[family]}-{_SIZES[size]}"
    registers = re.search(r"_reg(\d+)", model)
    said = [f"{registers[1]} reg."] if registers else []
    said += [word for begin, word in _TAGS.items() if tag and tag.startswith(begin)][:1]
    return f"{name} ({', '.join(said)})" if said else name


def preset_name(preset: str) -> str:
    """How a figure calls a recipe or a task of this project; one without such a name as it is.

    >>> preset_name("quiet"), preset_name("self-distillation")
    ('no-op', 'self-distillation')
    """
    return _PRESETS.get(preset, preset)


def recipe_name(recipe: str) -> str:
    """How pages list a recipe or a task, as it may be typed; `stored_name` is the way back.

    >>> recipe_name("offered-cls"), recipe_name("mean"), recipe_name("broadcast")
    ('free-register-cls', 'ph-reg-target', 'broadcast')
    """
    known = {stored: said for said, stored in ALIASES.items()}
    first, dash, rest = recipe.partition("-")
    return f"{known.get(first, first)}{dash}{rest}"


def stored_name(name: str) -> str:
    """The name that results and files of weights keep of a model, recipe or task; others as is.

    >>> stored_name("registers-clean-target-reg4-seed1"), stored_name("no-op")
    ('registers-asked-reg4-seed1', 'quiet')
    """
    if not (parts := _ALIAS.fullmatch(name)):
        return name
    kind, recipe, rest = parts.groups()
    return f"{kind}{ALIASES[recipe]}{rest}"


def family_name(model: str) -> str:
    """How a figure calls the models that differ from this one in their registers alone.

    >>> family_name("registers-mean-reg0")
    'ViT-Ti, PH-Reg target'
    >>> family_name("control-noise")
    'noise (reference)'
    """
    return re.sub(r", \d+ reg\.(?=,|$)", "", short_name(model))


def size_name(model: str) -> str:
    """The size in a timm name, as figures call it; '' where it tells none.

    >>> size_name("vit_base_patch32_384.augreg_in1k"), size_name("control-clean")
    ('B', '')
    """
    parts = _MODEL.fullmatch(model)
    return _SIZES[parts[2]] if parts else ""


def short_names(models: list[str]) -> list[str]:
    """The short name of each model; the whole name of those that would share one."""
    return _told_apart(models, map(short_name, models))


def _told_apart(names: Sequence[str], short: Iterable[str]) -> list[str]:
    """The short ones; the whole name of those that would share one."""
    pairs = list(zip(names, short, strict=True))
    shared = Counter(one for _, one in dict.fromkeys(pairs))
    return [name if shared[one] > 1 else one for name, one in pairs]


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


def plural(count: int, noun: str) -> str:
    """How many of what, in print.

    >>> plural(1, "image"), plural(2000, "image")
    ('1 image', '2,000 images')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def with_conditions(label: str) -> str:
    r"""A label in which a condition stands between commas or on a line, as readers call it.

    >>> with_conditions("control-clean, plain"), with_conditions("patch norm\nmoved")
    ('control-clean, original model', 'patch norm\nneurons shifted')
    """
    return _CONDITION.sub(lambda word: CONDITIONS[word[0]], label)


def shortened(texts: Iterable[str]) -> list[str]:
    """Labels of a figure with the short name of each model in them, and with conditions as readers
    call them: `control-clean, moved` is `clean (reference), neurons shifted`.

    Labels that would become the same stay as they are.
    """
    texts = [with_conditions(str(text)) for text in texts]
    return _told_apart(texts, [_NAMED.sub(lambda word: short_name(word[0]), x) for x in texts])
