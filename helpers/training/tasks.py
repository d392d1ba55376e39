"""What can be trained.

Each kind of recipe brings its model, its images, its loss, what is measured, and its files.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Task(ABC):
    """One training, from its recipe; made in the process that trains.

    Attributes:
        model: at its start; what learns requires a gradient.
        objective: (model, its average, *batch) -> loss. What it keeps is part of the state of the
            training.
        precise: whether matrix products stay float32 on the CPU.
        optimizer: timm's name of it.
        twins: how many registers those have that are trained unless said otherwise.
        save: (path, model, recipe), which writes the weights and the recipe.
    """

    prefix: ClassVar[str]
    twins: ClassVar[tuple[int, ...]]
    save: ClassVar[Callable[[Path, nn.Module, Any], None]]
    model: nn.Module
    objective: nn.Module
    precise: bool = True
    optimizer: str = "adamw"

    def __init__(self, recipe: Any, device: str, cache: Path):
        """`cache`: a folder for what trainings of other recipes need as well."""
        self.recipe = recipe

    @abstractmethod
    def items(self, start: int) -> Dataset:
        """What is shown, from step `start` on, image by image.

        A function of the recipe and the position alone.
        """

    @abstractmethod
    def measure(self, model: nn.Module) -> dict[str, Any]:
        """What is followed along the training, of a model that is evaluated, not trained."""

    def finished(self, model: nn.Module) -> nn.Module:
        """The model as it is kept."""
        return model

    @classmethod
    @abstractmethod
    def stored(cls, path: Path) -> Any:
        """The recipe of what `save` wrote. Raises ValueError where it is damaged."""


class Items(Dataset):
    """What a training is shown, one item a position, from step `start` on.

    Item i is a function of the recipe and i alone.
    """

    def __init__(self, recipe: Any, start: int = 0):
        self.recipe, self.first = recipe, start * recipe.batch_size

    def __len__(self) -> int:
        return self.recipe.steps * self.recipe.batch_size - self.first

    def picture(self, item: int, count: int) -> int:
        """Which of `count` pictures: each epoch shows all of them, in an order of its own."""
        epoch, place = divmod(self.first + item, count)
        return int(np.random.default_rng((self.recipe.seed, epoch)).permutation(count)[place])


def seed_all(*key: int) -> None:
    """Seed the generators of torch, NumPy and Python, which timm's augmentations draw from.

    With numbers that say what for.
    """
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
