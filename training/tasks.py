"""What can be trained: each kind of recipe brings its model, its images, its loss and measures."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset


class Task(ABC):
    """One training, from its recipe.

    Attributes:
        prefix: of the names of its models.
        twins: numbers of registers that are trained unless said otherwise.
        save: writes (path, model, recipe).
        model: at its start; what learns requires a gradient.
        objective: (model, its average, *batch) -> loss.
        precise: whether matrix products stay float32 on the CPU.
        optimizer: timm's name of it.
    """

    prefix: ClassVar[str]
    twins: ClassVar[tuple[int, ...]]
    save: ClassVar[Callable[[Path, nn.Module, Any], None]]
    model: nn.Module
    objective: Callable[..., Tensor]
    precise: bool = True
    optimizer: str = "adamw"

    def __init__(self, recipe: Any, device: str, cache: Path):
        """`cache`: a folder for what trainings of other recipes need as well."""
        self.recipe = recipe

    @abstractmethod
    def items(self, start: int) -> Dataset:
        """The training items from step `start` on."""

    @abstractmethod
    def measure(self, model: nn.Module) -> dict[str, Any]:
        """What is followed along the training, of the averaged model."""

    def finished(self, model: nn.Module) -> nn.Module:
        """The model as it is saved."""
        return model


class Items(Dataset):
    """The training items in their order, from step `start` on.

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
    """Seed torch, NumPy and Python, which timm's augmentations draw from."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
