"""The models that this project trained: `NAME.safetensors`, whose metadata hold the recipe, and
`NAME.json`, the record. Both lie in `helpers/weights` for the models that are shipped.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.files import digest_of, write_text, written_whole
from helpers.models.backbone import Backbone
from helpers.models.controls import CONTROL_DATA
from helpers.models.family import Framing
from helpers.models.timm_family import wrap_at
from helpers.settings import check_choice

SHIPPED, FILE = PREFIXES = "scratch-", "scratch:"
# Of finished models that this project trained on (`helpers.models.posthoc`), and of tasks that ask
# for a sink (`helpers.models.sinks`).
ADDED = ("registers-", "registers:")
SINKS = ("sinks-", "sinks:")
Members = dict[tuple[int, int], str]  # (registers, seed) -> name
# Of a name: the seed at its end, before what a file adds.
SEED = re.compile(r"-seed\d+(?=$|\.safetensors$)")
WEIGHTS = Path(__file__).resolve().parents[1] / "weights"
DATA = CONTROL_DATA  # what the models expect
INIT_STD = 0.02  # of [CLS] and registers; timm's own 1e-6 would start all registers as one
FRAMES = ("flat", "noise")
_CHOICES = {
    "pool": ("token", "avg"),
    "objective": ("supervised", "self-distillation"),
    "frame": FRAMES,
}


@dataclass(frozen=True)
class Recipe:
    """All that decides a training. Those that differ in `registers` alone give matched models.

    Attributes:
        train, test: names of data sets, as `load_train_test` takes them; n_train, n_test: images of
            each.
        image_size, patch_size: sides in pixels.
        width, depth, heads: of the Vision Transformer; its MLPs are four times as wide.
        registers: number of register tokens after [CLS].
        pool: 'token' (the head reads [CLS]) or 'avg' (no [CLS]; it reads the mean of the patches,
            of those inside a border).
        steps, batch_size: length of the training.
        lr, weight_decay, warmup: of AdamW; the learning rate rises over `warmup` steps, then falls
            towards 1 % along a cosine.
        clip: largest gradient norm.
        drop_path: rate of the last block; it rises linearly from 0 in the first.
        mixup, cutmix, smoothing: strengths alpha, and label smoothing.
        augment, erase: name of timm's RandAugment policy or ''; probability of random erasing.
        scale: smallest area of a random crop.
        ema: decay of the average of the weights, which is what is measured and kept.
        checkpoints: measurements along the training, the start and the end among them.
        objective: 'supervised', or 'self-distillation' with so many `prototypes`; then mixing and
            smoothing are not used.
        border: patches around a picture on each side, beyond `image_size`; they are free, since
            nothing is read from them. The weights hold no border: who loads them has to draw it.
        frame: 'flat' for a border of one grey, the mean of the pictures, or 'noise' for new
            Gaussian noise each time, with their mean and standard deviation.
    """

    train: str = "scenes"
    test: str = "scenes"
    n_train: int = 2000
    n_test: int = 500
    image_size: int = 64
    patch_size: int = 8
    width: int = 64
    depth: int = 8
    heads: int = 4
    registers: int = 0
    pool: str = "token"
    steps: int = 2000
    batch_size: int = 32
    lr: float = 1e-3
    weight_decay: float = 0.05
    warmup: int = 100
    clip: float = 1.0
    drop_path: float = 0.0
    mixup: float = 0.2
    cutmix: float = 0.5
    smoothing: float = 0.1
    augment: str = "rand-m7-mstd0.5-inc1"
    erase: float = 0.25
    scale: float = 0.3
    ema: float = 0.99
    checkpoints: int = 11
    seed: int = 0
    objective: str = "supervised"
    prototypes: int = 256
    border: int = 0
    frame: str = "flat"

    def __post_init__(self) -> None:
        """Raise ValueError where it would train something else."""
        check_recipe(self, _CHOICES)
        if self.image_size % self.patch_size:  # timm would leave pixels out
            raise ValueError(f"patch size {self.patch_size} must divide {self.image_size}")


def check_recipe(recipe: Any, choices: Mapping[str, Iterable[str]]) -> None:
    """Raise ValueError for a word that is none of its field's `choices`, or odd checkpoints."""
    for name, known in choices.items():
        check_choice(name, getattr(recipe, name), known)
    if not 2 <= recipe.checkpoints <= recipe.steps + 1:
        raise ValueError(f"{recipe.checkpoints} checkpoints of {recipe.steps} steps")


class ReadInside(VisionTransformer):
    """A Vision Transformer whose head reads the mean of the patches inside a border."""

    def __init__(self, border: int, **options: Any):
        super().__init__(**options)
        self.inside = slice(border, -border)

    def pool(
        self, x: Float[Tensor, "image token width"], pool_type: str | None = None
    ) -> Float[Tensor, "image width"]:
        patches = x[:, self.num_prefix_tokens :].unflatten(1, self.patch_embed.grid_size)
        return patches[:, self.inside, self.inside].mean((1, 2))


def build(recipe: Recipe, classes: int) -> VisionTransformer:
    """The untrained model of a recipe; of the same seed equal to the bit in all that both have."""
    inside = recipe.border and recipe.pool == "avg"
    return twin_of(
        recipe,
        partial(ReadInside, recipe.border) if inside else VisionTransformer,
        img_size=recipe.image_size + 2 * recipe.border * recipe.patch_size,
        patch_size=recipe.patch_size,
        num_classes=classes,
        class_token=recipe.pool == "token",
        global_pool=recipe.pool,
        drop_path_rate=recipe.drop_path,
    )


def twin_of(
    recipe: Any, kind: Callable[..., VisionTransformer] = VisionTransformer, **options: Any
) -> VisionTransformer:
    """The model of a recipe, seeded; with other registers equal to the bit in all else."""
    options |= {"embed_dim": recipe.width, "depth": recipe.depth, "num_heads": recipe.heads}
    make = partial(kind, no_embed_class=True, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        common = make().state_dict()
        twin = make(reg_tokens=recipe.registers)
        twin.load_state_dict(common, strict=False)
        torch.manual_seed(recipe.seed + 1)  # [CLS] first, so that registers leave it as it is
        for token in (twin.cls_token, twin.reg_token):
            if token is not None:
                nn.init.trunc_normal_(token, std=INIT_STD)
    return twin


def names(prefix: str = SHIPPED) -> list[str]:
    """The models that are shipped and called `prefix`..."""
    return sorted(path.stem for path in WEIGHTS.glob(f"{prefix}*.safetensors"))


def name_of(label: str, registers: int, seed: int = 0, prefix: str = SHIPPED) -> str:
    """The name of a model of the preset `label`: 'scratch-reg4', 'scratch-gap-reg0-seed2'."""
    middle = "" if label == "cpu" else f"{label}-"
    return f"{prefix}{middle}reg{registers}" + (f"-seed{seed}" if seed else "")


def trained_like(name: str, counts: Iterable[int] = (), seeds: Iterable[int] = ()) -> Members:
    """(registers, seed) -> the models that were trained like `name`.

    Args:
        name: of a model with any number of registers and any seed.
        counts: numbers of registers; that of `name` unless given.
        seeds: unless given all of which a model with each number is here.

    Raises:
        ValueError: `name` is no model that this project trained, or weights are not there.
    """
    called = re.fullmatch(r"(.*reg)(\d+)((?:\.safetensors)?)", SEED.sub("", name))
    if not called or not name.startswith((*PREFIXES, *ADDED, *SINKS)):
        raise ValueError(f"{name!r} was not trained here, as 'scratch-reg0' was")
    counts = list(counts) or [int(called[2])]

    def member(count: int, seed: int) -> str:
        return f"{called[1]}{count}{f'-seed{seed}' if seed else ''}{called[3]}"

    here = [_seeds(path_of(member(count, 0))) for count in counts]
    seeds = list(seeds) or sorted(set.intersection(*here))
    members = {(count, seed): member(count, seed) for seed in seeds for count in counts}
    if not members:
        raise ValueError(f"no seed of {name!r} is there with each of {counts} registers")
    for one in (name, *members.values()):
        if not path_of(one).is_file():
            raise ValueError(f"the weights of {one!r} are not there; train it, or leave it out")
    return members


def _seeds(first: Path) -> set[int]:
    """The seeds of what lies beside the weights of seed 0, and is called like them."""
    called = re.compile(re.escape(first.stem) + r"(?:-seed(\d+))?")
    beside = first.parent.glob(f"{escape(first.stem)}*.safetensors")
    return {int(found[1] or 0) for path in beside if (found := called.fullmatch(path.stem))}


def trained_alike(models: Iterable[str]) -> dict[str, list[str]]:
    """First name -> the models among these that were trained in one way with several seeds.

    'scratch-reg4' and 'scratch-reg4-seed1' differ in nothing else.
    """
    alike: dict[str, list[str]] = {}
    for model in dict.fromkeys(models):
        if model.startswith((*PREFIXES, *ADDED)):
            alike.setdefault(SEED.sub("", model), []).append(model)
    return {own[0]: own for own in alike.values() if len(own) > 1}


def path_of(name: str) -> Path:
    """The file of weights of a model of this project, by its name or as 'scratch:PATH'."""
    kind, colon, path = name.partition(":")
    if kind + colon in (FILE, ADDED[1], SINKS[1]):
        return Path(path).expanduser()
    return WEIGHTS / f"{name}.safetensors"


def save(path: Path, model: nn.Module, recipe: Any) -> None:
    """Write the weights in float16, the recipe beside them in the file's metadata."""
    write_weights(path, model.state_dict(), recipe)


def write_weights(path: Path, weights: Mapping[str, Tensor], recipe: Any, **about: str) -> None:
    """Write weights in float16, which must hold them; recipe and what is `about` as metadata."""
    halves = {
        name: value.detach().to("cpu", torch.float16).contiguous()
        for name, value in weights.items()
    }
    if not all(value.isfinite().all() for value in halves.values()):
        raise ValueError(f"a weight of {path.stem} is too large for float16; train with a lower lr")
    with written_whole(path) as new:
        new.write_bytes(to_bytes(halves, metadata={"recipe": json.dumps(asdict(recipe)), **about}))


def read_weights(path: Path, kind: type) -> tuple[Any, dict[str, str], dict[str, Tensor]]:
    """Recipe, of the class `kind`, metadata, and weights in float32, of what was written."""
    with safe_open(path, "pt") as file:
        about = file.metadata() or {}
        weights = {key: file.get_tensor(key).float() for key in file.keys()}
    if "recipe" not in about:
        raise ValueError(f"{path.name} has no recipe: it was not trained here")
    return kind(**json.loads(about["recipe"])), about, weights


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record of a training (see `record`); numbers with six digits."""
    text = json.dumps(record, allow_nan=False)
    rounded = json.loads(text, parse_float=lambda number: float(f"{float(number):.6g}"))
    write_text(path, json.dumps(rounded) + "\n")


def load(name: str) -> tuple[VisionTransformer, Recipe]:
    """The model called `name` in float32, and its recipe."""
    recipe, _, weights = read_weights(path_of(name), Recipe)
    model = build(recipe, classes=len(weights.get("head.bias", ())))
    model.load_state_dict(weights)
    return model, recipe


def load_backbone(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """The Backbone of 'scratch-...' or 'scratch:PATH'; `pretrained` changes nothing."""
    return wrap_at(name, load(name)[0], DATA, framing)


def record(name: str) -> dict[str, Any]:
    """How a model came to be: `recipe`, `history` (one entry a checkpoint), `provenance`.

    Raises ValueError where the weights beside the record are not those of its digest.
    """
    path = path_of(name).with_suffix(".json")
    data = read_record(path)
    weights = path.with_suffix(".safetensors")
    if weights.is_file() and digest_of(weights.read_bytes()) != data["provenance"]["weights"]:
        raise ValueError(f"{path.name} does not tell of the weights beside it (another sha256)")
    return data


def records(label: str) -> dict[tuple[int, int], dict[str, Any]]:
    """(registers, seed) -> record of each training of the preset `label`, weights here or not."""
    recorded = {}
    for prefix in (SHIPPED, ADDED[0], SINKS[0]):
        for path in WEIGHTS.glob(f"{name_of(label, 0, prefix=prefix).removesuffix('0')}*.json"):
            recipe = (data := record(path.stem))["recipe"]
            if path.stem == name_of(label, recipe["registers"], recipe["seed"], prefix):
                recorded[recipe["registers"], recipe["seed"]] = data
    if not recorded:
        raise ValueError(f"no training of the preset {label!r} is recorded")
    return dict(sorted(recorded.items()))


def changes(recipe: Mapping[str, Any], plain: Any = Recipe()) -> str:
    """What a recipe changes in the `plain` one, but for registers and seed: 'steps 6000, ...'."""
    same = asdict(plain) if plain else {}
    return ", ".join(
        f"{key} {value}"
        for key, value in recipe.items()
        if key not in ("registers", "seed") and same.get(key) != value
    )


def read_record(path: Path) -> dict[str, Any]:
    """The record in a file, whatever weights lie beside it."""
    return json.loads(path.read_text(encoding="utf-8"))
