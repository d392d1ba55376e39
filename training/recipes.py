"""The recipes that this project trains by."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from helpers.models import PostHoc, Recipe, SinkTask

DATA_SEED = 2026  # of the choice of images; the seed of a recipe changes the training alone
PRESETS = {
    "cpu": Recipe(),
    # No [CLS]: the head reads the mean of the patches.
    "gap": Recipe(pool="avg", steps=1000),
    # What might provoke artifacts. Without labels: a prototype for each image of a batch, and views
    # without RandAugment and erasing, with which it did not begin to learn.
    "self-distillation": Recipe(
        objective="self-distillation", prototypes=32, augment="", erase=0.0, steps=1000
    ),
    "deep": Recipe(depth=16, steps=1000),
    "no-decay": Recipe(weight_decay=0.0, steps=1000),
    "fine": Recipe(image_size=96, steps=1000),  # 144 patches in place of 64
    # long training on little data: 400 epochs in place of 32
    "long": Recipe(n_train=200, steps=2500),
    "cifar10": Recipe(
        train="data:cifar10-jpeg/train", test="data:cifar10-jpeg/test", n_train=10000
    ),
    # Colour tells nothing. As `cpu` it stays at chance; so whole pictures, more of them, unchanged
    # and unmixed, for longer.
    "hard": Recipe(
        train="scenes-hard", test="scenes-hard", n_train=4000, steps=4000, scale=1.0,
        augment="", erase=0.0, mixup=0.0, cutmix=0.0, smoothing=0.0,
    ),
    # Free places around photographs, of which one class is read from [CLS]: book/bench/borders.sh.
    "borders": Recipe(
        train="data:tiny-imagenet-64/train", test="data:tiny-imagenet-64/validation",
        n_train=10100, image_size=48, depth=6, steps=1500, batch_size=16, lr=3e-3, augment="",
        erase=0.0, mixup=0.0, cutmix=0.0, checkpoints=9,
    ),
    # For one GPU, some two minutes each; the weights stay below 4 MB.
    "gpu": Recipe(image_size=128, width=128, depth=9, n_train=16000, n_test=1000, steps=12000,
    batch_size=256, drop_path=0.1),
}  # fmt: skip

_ASKED = PostHoc()
_REGROW = PostHoc(registers=0, target="own", removed="7:417", batch_size=8, checkpoints=9)
# What is done to a finished model, ViT-Ti AugReg unless --base says otherwise, whose outliers one
# unit writes.
PRESETS |= {
    # The patches are matched to features without outliers: those of the test-time register, ...
    "asked": _ASKED,
    # ... PH-Reg's mean over shifted and flipped views, ...
    "mean": replace(_ASKED, target="mean", space="normed", steps=400, lr=1e-2),
    # ... and their median, since the plain view always has the corners.
    "median": replace(_ASKED, target="median"),
    # Nothing asks for clean patches.
    "offered": replace(_ASKED, target="own"),
    "offered-cls": replace(_ASKED, target="own", patches=0.0),
    # Which weights learn: those of PH-Reg; the blocks around the onset; none but the registers.
    "ph-reg": replace(_ASKED, target="mean", space="normed", free="ph-reg", lr=1e-3),
    "blocks": replace(_ASKED, free="blocks:6-8", lr=3e-4),
    "registers-only": (_ONLY := replace(_ASKED, free="registers", lr=1e-2)),
    # The same for longer, whatever the loss; measured every 100 steps.
    "frozen": replace(_ONLY, steps=600, checkpoints=7),
    # Registers that stay random.
    "fixed": replace(_ASKED, tokens="fixed"),
    # What wrote the outliers is taken out for good, and the model learns on: towards its own [CLS]
    # and patches, ...
    "regrow": _REGROW,
    # ... [CLS] alone, labels; without the block that wrote them; and after another unit was taken
    # out.
    "regrow-cls": replace(_REGROW, patches=0.0),
    "regrow-labels": replace(
        _REGROW, patches=0.0, cls=0.0, labels=1.0, train="data:imagenet-1per-class/train"
    ),
    "regrow-frozen": replace(_REGROW, free="low-rank:4@5-6,8-11"),
    "regrow-other": replace(_REGROW, removed="7:100"),
    # Towards [CLS], while later blocks cannot read something: nothing, ...
    "unread-none": (_UNREAD := replace(_REGROW, patches=0.0, checkpoints=3)),
    # ... the channel of the outliers in queries and keys, or in values; the corners; and as nulls
    # another channel, and other patches.
    "unread-attention": replace(_UNREAD, unread="attention:41@8-11"),
    "unread-values": replace(_UNREAD, unread="values:41@8-11"),
    "unread-corners": replace(_UNREAD, unread="patches:0,13,182,195@8-11"),
    "unread-other": replace(_UNREAD, unread="attention:100@8-11"),
    "unread-centre": replace(_UNREAD, unread="patches:60,65,130,135@8-11"),
}
# Tasks that ask for a sink: a minute or two on one core; and for one GPU.
_FULL = SinkTask(n_test=512, width=128, steps=20_000, batch_size=128, warmup=500, checkpoints=41)
PRESETS |= {
    "quiet": SinkTask(),
    "broadcast": SinkTask(task="broadcast"),
    "quiet-gpu": _FULL,
    "broadcast-gpu": replace(_FULL, task="broadcast"),
}


def check_same(path: Path, stored: Mapping[str, Any], recipe: Any) -> None:
    """Raise ValueError where what lies at `path` was made with another recipe."""
    changed = [name for name, value in asdict(recipe).items() if stored.get(name) != value]
    if changed:
        raise ValueError(
            f"{path} was made with another recipe (differs in {', '.join(changed)}); choose "
            "another folder or name"
        )
