"""The models that this project trained itself: their architecture from their recipe, their weights, and how they came to be.

A model is two files: `NAME.safetensors`, whose metadata hold the recipe, and `NAME.json`, the record (recipe, history of the
training, device, time, energy). Both lie in `helpers/weights` for the models that are shipped; 'scratch:PATH' reads any other.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

SHIPPED, FILE = "scratch-", "scratch:"
PREFIXES = (SHIPPED, FILE)
WEIGHTS = Path(__file__).resolve().parent / "weights"
# What the models expect; 1.0 shows them the whole image.
DATA = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "interpolation": "bicubic", "crop_pct": 1.0}
INIT_STD = 0.02  # of [CLS] and registers; timm's own 1e-6 would start all registers as one


@dataclass(frozen=True)
class Recipe:
    """All that decides a training. Two recipes that differ in `registers` alone give twins.

    Attributes:
        train, test: names of data sets, as `load_train_test` takes them; n_train, n_test: images of each.
        image_size, patch_size: sides in pixels.
        width, depth, heads: of the Vision Transformer; its MLPs are four times as wide.
        registers: number of register tokens after [CLS].
        pool: 'token' (the head reads [CLS]) or 'avg' (no [CLS]; it reads the mean of the patches).
        steps, batch_size: length of the training.
        lr, weight_decay, warmup: of AdamW; the learning rate rises over `warmup` steps and falls to 1 % along a cosine.
        clip: largest gradient norm.
        drop_path: rate of the last block; it rises linearly from 0 in the first.
        mixup, cutmix, smoothing: strengths alpha, and label smoothing.
        augment, erase: timm's name of a RandAugment policy, '' for none; probability of random erasing.
        scale: smallest area of a random crop.
        ema: decay of the average of the weights, which is what is measured and kept.
        checkpoints: measurements along the training, the start and the end among them.
        seed: of weights, order and augmentations.
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


def build(recipe: Recipe, classes: int) -> VisionTransformer:
    """The untrained model of a recipe, seeded: twins with the same seed start equal to the bit in all that both have.

    Raises ValueError for sizes that do not fit each other.
    """
    if recipe.pool not in ("token", "avg"):
        raise ValueError(f"pool is {recipe.pool!r}; choose 'token' ([CLS]) or 'avg' (mean of the patches)")
    if recipe.image_size % recipe.patch_size or recipe.width % recipe.heads:
        raise ValueError(
            f"image size {recipe.image_size} must be a multiple of the patch size {recipe.patch_size}, "
            f"and width {recipe.width} one of the number of heads {recipe.heads}"
        )

    def model(registers: int) -> VisionTransformer:
        return VisionTransformer(
            img_size=recipe.image_size, patch_size=recipe.patch_size, embed_dim=recipe.width, depth=recipe.depth,
            num_heads=recipe.heads, num_classes=classes, reg_tokens=registers, class_token=recipe.pool == "token",
            global_pool=recipe.pool, no_embed_class=True, drop_path_rate=recipe.drop_path,
        )  # fmt: skip

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        common = model(0).state_dict()
        twin = model(recipe.registers)
        twin.load_state_dict(common, strict=False)
        torch.manual_seed(recipe.seed + 1)  # [CLS] first, so that registers leave it as it is
        for token in (twin.cls_token, twin.reg_token):
            if token is not None:
                nn.init.trunc_normal_(token, std=INIT_STD)
    return twin


def names() -> list[str]:
    """The models that are shipped."""
    return sorted(path.stem for path in WEIGHTS.glob(f"{SHIPPED}*.safetensors"))


def name_of(label: str, registers: int, seed: int = 0) -> str:
    """The name of a model trained by the preset `label`: 'scratch-reg4', 'scratch-gap-reg0-seed2'."""
    return f"{SHIPPED}{'' if label == 'cpu' else f'{label}-'}reg{registers}{f'-seed{seed}' if seed else ''}"


def path_of(name: str) -> Path:
    """Where the weights of 'scratch-...' (shipped) or 'scratch:PATH' (anyone's) lie, if they are there."""
    return Path(name.removeprefix(FILE)) if name.startswith(FILE) else WEIGHTS / f"{name}.safetensors"


def save(path: Path, model: nn.Module, recipe: Recipe) -> None:
    """Write the weights in float16, the recipe beside them in the file's metadata."""
    weights = {name: value.detach().to("cpu", torch.float16).contiguous() for name, value in model.state_dict().items()}
    with _whole(path) as new:
        save_file(weights, new, metadata={"recipe": json.dumps(asdict(recipe))})


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record of a training (see `record`); numbers with six digits."""
    with _whole(path) as new:
        new.write_text(json.dumps(_rounded(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A name to write to; what was written becomes `path` at the end, and nothing is left where writing failed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(v) for key, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def load(name: str) -> tuple[VisionTransformer, Recipe]:
    """The model called `name` in float32, and its recipe.

    Raises FileNotFoundError, or ValueError where the file is not one that `save` wrote or its weights do not fit its recipe.
    """
    path = path_of(name)
    try:
        with safe_open(path, "pt") as file:
            recipe = Recipe(**json.loads(file.metadata()["recipe"]))
            weights = {key: file.get_tensor(key).float() for key in file.keys()}
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path.name} is not a checkpoint of this project ({error}); train it again") from None
    model = build(recipe, classes=len(weights.get("head.bias", ())))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split()).partition(": ")[2][:160]
        raise ValueError(f"the weights of {path.name} do not fit the recipe in it ({reason}); train it again") from None
    return model, recipe


def record(name: str) -> dict[str, Any]:
    """How a model came to be: `recipe`, `history` (one entry a checkpoint), `provenance`.

    Raises FileNotFoundError, or ValueError where weights lie beside it that are not the ones it tells of.
    """
    path = path_of(name).with_suffix(".json")
    data = json.loads(path.read_text(encoding="utf-8"))
    weights = path.with_suffix(".safetensors")
    if weights.is_file() and digest(weights) != data["provenance"]["weights"]:
        raise ValueError(f"{path.name} does not tell of the weights beside it (another sha256); train them again")
    return data


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def card(folder: Path) -> str:
    """The model card, as Markdown, of all models trained into `folder`, from their records; '' where there is none."""
    told = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{SHIPPED}*.json"))}
    rows, commands = [], {}
    for name, record in told.items():
        recipe, last, made = record["recipe"], record["history"][-1], record["provenance"]
        shipped = "yes" if (folder / f"{name}.safetensors").is_file() else "no"
        numbers = (f"{last['accuracy']:.1f}", f"{100 * last['outlier_images']:.1f}", f"{made['wall_s'] / 60:.1f}")
        about = (recipe["registers"], recipe["seed"], *numbers, f"{made['energy_wh']:.1f}", made["device"], shipped)
        rows.append("| " + " | ".join(map(str, (f"`{name}`", *about))) + " |")
        plain = asdict(Recipe(registers=recipe["registers"], seed=recipe["seed"]))
        differs = ", ".join(f"{key} {value}" for key, value in recipe.items() if plain.get(key) != value)
        commands[made["command"]] = differs
    return _CARD.format(
        recipe=", ".join(f"{key} {value}" for key, value in asdict(Recipe()).items() if key not in ("registers", "seed")),
        commands="\n".join(f"- `{command}`: {differs or 'the recipe above'}" for command, differs in commands.items()),
        rows="\n".join(rows),
    )


_CARD = """# Models trained by this project

Small Vision Transformers that differ in nothing but the number of their registers: twins for the claims about trained registers.

**Intended use.** To run those claims offline, on models whose training is known to the last step. They are far smaller than any
model of the papers, and were trained for minutes on small pictures: what they show holds for them. They classify nothing but the
pictures they were trained on, and are no features for other work.

**Data.** Unless the commands below say otherwise, the procedural scenes of this project (`scenes`): made from a seed, ten
classes, no photograph and no person in them. Test scenes are of the same series and were not trained on. The colour of a
scene's objects tells its class, so an accuracy near 100 % is no achievement.

**Recipe.** Supervised, in the manner of DeiT, with timm's AdamW, cosine schedule, RandAugment, random erasing, mixup, cutmix
and averaged weights (`helpers/training.py`): {recipe}.

Twins with the same seed start equal to the bit in all but the registers, and see the same pictures in the same order with the
same augmentations. The file holds the averaged weights in float16 and the recipe.

**Commands.** What each changes in the recipe:

{commands}

**Results.** On the test images, at the end of the training. Outlier: a patch norm after the last block, before the final
LayerNorm, above 3 x the median. The energy is an estimate from the wall time; each NAME.json says how, with versions, device
and the whole history. Weights that are not in the repository are made again by their command.

| model | registers | seed | accuracy (%) | images with an outlier (%) | minutes | energy (Wh) | device | weights here |
|---|---|---|---|---|---|---|---|---|
{rows}

Apache-2.0, as the project.
"""
