"""What can be trained.

Each kind of recipe brings its model, its images, its loss, what is measured, and its files.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.utils.data import Dataset

from helpers.images import load_train_test
from helpers.models import Recipe
from helpers.models import trained as scratch
from helpers.training.batches import Batches
from helpers.training.evaluation import evaluate
from helpers.training.objectives import OBJECTIVES
from helpers.training.recipes import DATA_SEED


class Task(ABC):
    """One training, from its recipe; made in the process that trains.

    Attributes:
        model: at its start; what learns requires a gradient.
        objective: (model, its average, *batch) -> loss. What it keeps is part of the state of the
            training.
        precise: whether matrix products stay float32 on the CPU.
        optimizer: timm's name of it.
        twins: how many registers those have that are trained unless said otherwise.
    """

    prefix: ClassVar[str]
    twins: ClassVar[tuple[int, ...]]
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
        """What is followed along the training; the model is left as it was."""

    def finished(self, model: nn.Module) -> nn.Module:
        """The model as it is kept."""
        return model

    @classmethod
    @abstractmethod
    def save(cls, path: Path, model: nn.Module, recipe: Any) -> None:
        """Write the weights and the recipe."""

    @classmethod
    @abstractmethod
    def stored(cls, path: Path) -> Any:
        """The recipe of what `save` wrote. Raises ValueError where it is damaged."""


class FromScratch(Task):
    """A small model of its own, beside its twins."""

    prefix = scratch.SHIPPED
    twins = (0, 1, 2, 4)

    def __init__(self, recipe: Recipe, device: str, cache: Path):
        super().__init__(recipe, device, cache)
        self.learnt, self.tested = load_train_test(
            recipe.train, recipe.test, recipe.n_train, recipe.n_test, DATA_SEED
        )
        classes = int(max(self.learnt.labels.max(), self.tested.labels.max())) + 1
        self.objective = OBJECTIVES[recipe.objective](recipe, classes)
        self.model = scratch.build(recipe, self.objective.outputs)

    def items(self, start: int) -> Dataset:
        return Batches(self.learnt, self.recipe, start)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        return evaluate(model, self.tested, scratch.DATA, self.objective.classifies)

    def finished(self, model: nn.Module) -> nn.Module:
        if not self.objective.classifies:
            model.reset_classifier(0)
        return model

    @classmethod
    def save(cls, path: Path, model: nn.Module, recipe: Recipe) -> None:
        scratch.save(path, model, recipe)

    @classmethod
    def stored(cls, path: Path) -> Recipe:
        return scratch.load(f"{scratch.FILE}{path}")[1]
