"""Short names of models, for figures and pages: `vit_tiny_patch16_224.augreg_in21k_ft_in1k` is
ViT-Ti (AugReg). And the names of recipes, beside those that results and files of weights keep. The
words stand in names.yml.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

# How the names of models begin that may be paths of this machine: of a file, and of a folder with
# config.json.
FILES = ("file:", "scratch:", "registers:", "sinks:")
LOCAL = (*FILES, "local-dir:", "transformers:")
_NAMES = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
ALIASES, RULES, CONDITIONS = (_NAMES[x] for x in ("aliases", "rules", "conditions"))
_SIZES, _FAMILIES = _NAMES["sizes"], _NAMES["families"]
_ALIAS = re.compile(rf"((?:registers-|sinks-)?)({'|'.join(ALIASES)})(?=-|$)(.*)", re.DOTALL)
_OWN = re.compile(r"(scratch|registers|sinks)(?:-(.+))?-reg(\d+)(?:-seed(\d+))?")
_MODEL = re.compile(rf"([a-z0-9]+?)_({'|'.join(_SIZES)})\d*_patch\d+[^.]*(?:\.(.*))?")

_TRAINED = {"scratch": "From-scratch ViT", "registers": "ViT-Ti", "sinks": "Sink-task ViT"}
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
    said += [word for begin, word in _NAMES["tags"].items() if tag and tag.startswith(begin)][:1]
    return f"{name} ({', '.join(said)})" if said else name


def preset_name(preset: str) -> str:
    """How a figure calls a recipe or a task of this project; one without such a name as it is.

    >>> preset_name("quiet"), preset_name("self-distillation")
    ('no-op', 'self-distillation')
    """
    return _NAMES["presets"].get(preset, preset)


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
