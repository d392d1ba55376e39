"""The recipes that this project trains by, and whether two are the same."""

from dataclasses import fields
from pathlib import Path

from helpers.models import Recipe

DATA_SEED = 2026  # of the choice of images: the seed of a recipe changes the training, never the data
PRESETS = {
    "cpu": Recipe(),
    # No [CLS]: the head reads the mean of the patches.
    "gap": Recipe(pool="avg", steps=1000),
    # What might provoke artifacts.
    "self-distillation": Recipe(objective="self-distillation", steps=1000),
    "deep": Recipe(depth=16, steps=1000),
    "no-decay": Recipe(weight_decay=0.0, steps=1000),
    "fine": Recipe(image_size=96, steps=1000),  # 144 patches in place of 64
    "long": Recipe(n_train=200, steps=2500),  # long training on little data: 400 epochs in place of 32
    "cifar10": Recipe(train="data:cifar10-jpeg/train", test="data:cifar10-jpeg/test", n_train=10000),
    # For one GPU, some two minutes each; the weights stay below 4 MB.
    "gpu": Recipe(image_size=128, width=128, depth=9, n_train=16000, n_test=1000, steps=12000, batch_size=256, drop_path=0.1),
}  # fmt: skip


def check_same(path: Path, stored: Recipe, asked: Recipe) -> None:
    """Raise ValueError where what lies at `path` was made with another recipe than the one asked for."""
    differ = [field.name for field in fields(asked) if getattr(stored, field.name) != getattr(asked, field.name)]
    if differ:
        raise ValueError(f"{path} was made with another recipe (differs in {', '.join(differ)}); choose another folder or name")
