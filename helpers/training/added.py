"""Registers trained into a finished model, by self-distillation (PH-Reg, arXiv:2505.21501)."""

from dataclasses import replace
from functools import lru_cache, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from helpers.capture import Output, capture, find_register_neurons
from helpers.images import Images, load_images, load_train_test
from helpers.models import Backbone, PostHoc, TokenLayout, posthoc, wrap_timm
from helpers.training.evaluation import measured
from helpers.training.recipes import DATA_SEED
from helpers.training.targets import Targets
from helpers.training.tasks import Task

SEARCHED = 20  # units, of which the one that writes most is the writer


class AddedRegisters(Task):
    """A finished model that is offered registers, or loses a unit, and learns to be what it was."""

    prefix = posthoc.SHIPPED
    twins = (0, 4)

    def __init__(self, recipe: PostHoc, device: str, cache: Path):
        super().__init__(recipe, device, cache)
        self.precise = recipe.precision == "float32"
        teacher, student = posthoc.base_of(recipe), posthoc.base_of(recipe)
        teacher.model.to(device)
        self.learnt, self.tested = images_of(recipe)
        self.transform = teacher.transform
        self.targets = (
            Targets(teacher, self.learnt, recipe, cache) if recipe.patches or recipe.cls else None
        )
        self.model = posthoc.with_registers(student, recipe)
        self.layout = replace(teacher.layout, registers=recipe.registers)
        self.objective = Likeness(recipe, self.layout, self.targets.unit if self.targets else 1.0)
        self.answers = capture(teacher, self.tested, [Output()], progress=False)["output"].argmax(
            -1
        )

    def items(self, start: int) -> Dataset:
        return Shown(self.learnt, self.transform, self.targets, self.recipe, start)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """`measured`, with `same_answer` and `writer`.

        `same_answer`: how often (%) the head names the class that the frozen model names.
        `writer`: see `writer`, where more than 5 % of the images have an outlier.
        """
        backbone = wrap_timm("the model in training", posthoc.plain(model), {}, pretrained=True)
        backbone.transform = self.transform
        entry = measured(backbone, self.tested, answers=self.answers)
        return entry | {
            "writer": writer(backbone, self.tested) if entry["outlier_images"] > 0.05 else None
        }

    @classmethod
    def save(cls, path: Path, model: nn.Module, recipe: PostHoc) -> None:
        posthoc.save(path, model, recipe)

    @classmethod
    def stored(cls, path: Path) -> PostHoc:
        return posthoc.read(path)[0]


def images_of(recipe: PostHoc) -> tuple[Images, Images]:
    """Images to learn from and images to measure on, which share no picture.

    Two sets, or one that is divided.

    Raises ValueError where they do, where labels are to be learnt and are missing, and what
    `load_train_test` raises.
    """
    return _images(recipe.train, recipe.test, recipe.n_train, recipe.n_test, bool(recipe.labels))


@lru_cache(maxsize=1)  # the trainings of one process, one after another, mostly have the same
def _images(
    train: str, test: str, n_train: int, n_test: int, labelled: bool
) -> tuple[Images, Images]:
    if train == test:
        return load_train_test(train, test, n_train, n_test, DATA_SEED)
    parts = [load_images(name, n_train or None, DATA_SEED) for name in train.split(" + ")]
    if labelled:
        for part in parts:
            part.require_labels()
    else:  # sets with other classes go together, too
        parts = [replace(part, labels=None, class_names=None) for part in parts]
    learnt, tested = reduce(add, parts), load_images(test, n_test or None, DATA_SEED)
    if both := {*learnt.contents} & {*tested.contents}:
        raise ValueError(
            f"{len(both)} images lie in both {train!r} and {test!r}; choose others to measure on"
        )
    return learnt, tested


class Shown(Dataset):
    """The images of a training in their order, each with what its tokens are matched to.

    Every epoch has an order of its own.

    Item i is a function of the recipe and i alone: pixels, patches, [CLS], label (-1 for none).
    """

    def __init__(
        self, images: Images, transform: Any, targets: Targets | None, recipe: PostHoc, start: int
    ):
        self.pictures, self.labels, self.transform, self.targets, self.recipe = (
            images,
            images.labels,
            transform,
            targets,
            recipe,
        )
        self.first = start * recipe.batch_size

    def __len__(self) -> int:
        return self.recipe.steps * self.recipe.batch_size - self.first

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor, Tensor, int]:
        epoch, place = divmod(self.first + item, len(self.pictures))
        index = int(
            np.random.default_rng((self.recipe.seed, epoch)).permutation(len(self.pictures))[place]
        )
        label = -1 if self.labels is None else int(self.labels[index])
        none = torch.empty(0)
        patches, cls = (
            (none, none)
            if self.targets is None
            else (self.targets.patches[index], self.targets.cls[index])
        )
        return self.transform(self.pictures[index]), patches, cls, label


class Likeness(nn.Module):
    """(1 - cosine) + mean squared error between tokens, of the patches and of [CLS].

    Cross-entropy (see `PostHoc`).
    """

    def __init__(self, recipe: PostHoc, layout: TokenLayout, unit: float = 1.0):
        """`unit`: of the tokens, as in `Targets`."""
        super().__init__()
        self.recipe, self.layout, self.unit = recipe, layout, unit

    def forward(
        self, model: nn.Module, _: nn.Module, x: Float[Tensor, "image 3 h w"], patches: Tensor, cls:
        Tensor, labels: Int[Tensor, " image"],
    ) -> Tensor:  # fmt: skip
        loss = 0.0
        if self.recipe.labels:
            loss += self.recipe.labels * F.cross_entropy(model(x).float(), labels)
        if self.recipe.patches or self.recipe.cls:
            tokens = posthoc.features(model, x, self.recipe.space) / self.unit
        if self.recipe.patches:
            loss += self.recipe.patches * unlike(
                self.layout.patch_tokens(tokens), patches / self.unit
            )
        if self.recipe.cls:
            loss += self.recipe.cls * unlike(
                self.layout.cls_token(tokens)[:, None], cls / self.unit
            )
        return loss


def unlike(
    tokens: Float[Tensor, "image token width"], wanted: Float[Tensor, "image token width"]
) -> Float[Tensor, ""]:
    """(1 - cosine) + mean squared error, mean over tokens (PH-Reg, section 3.3)."""
    tokens, wanted = tokens.float(), wanted.float()
    return (1 - F.cosine_similarity(tokens, wanted, dim=-1)).mean() + F.mse_loss(tokens, wanted)


def writer(backbone: Backbone, images: Images) -> list[float]:
    """Block, index and |activation| x |output weights| of one unit.

    It is the one that writes most to the outliers of the last block.
    """
    found = find_register_neurons(backbone, images, top_k=SEARCHED, progress=False)
    written = [
        one.at_outliers * backbone.neurons(one.block).weight[:, one.unit].norm().item()
        for one in found
    ]
    most = max(range(len(found)), key=lambda i: abs(written[i]))
    return [found[most].block, found[most].unit, round(abs(written[most]), 3)]
