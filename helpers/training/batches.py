"""The images of a training in their order, each augmented by chance of its own."""

import random

import numpy as np
import torch
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import Dataset

from helpers.images import Images
from helpers.models import Recipe
from helpers.models import trained as scratch


class Batches(Dataset):
    """The images of a training, one item a position.

    Epoch after epoch, each in an order of its own.

    Item i is a function of the recipe and i alone. All images are kept decoded in memory.
    """

    def __init__(self, images: Images, recipe: Recipe, start: int = 0):
        """`start`: the step to begin with."""
        self.pictures, self.labels = list(images), images.labels
        self.recipe, self.first = recipe, start * recipe.batch_size
        shown = {name: scratch.DATA[name] for name in ("mean", "std", "interpolation")}
        changes = {
            "scale": (recipe.scale, 1.0),
            "auto_augment": recipe.augment or None,
            "re_prob": recipe.erase,
            "re_mode": "pixel",
        }
        self.transform = create_transform(recipe.image_size, is_training=True, **shown, **changes)

    def __len__(self) -> int:
        return self.recipe.steps * self.recipe.batch_size - self.first

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        epoch, place = divmod(self.first + item, len(self.pictures))
        index = np.random.default_rng((self.recipe.seed, epoch)).permutation(len(self.pictures))[
            place
        ]
        seed_all(self.recipe.seed, 0, self.first + item)
        picture, label = self.pictures[index], int(self.labels[index])
        if self.recipe.objective == "self-distillation":
            return torch.stack([self.transform(picture), self.transform(picture)]), label
        return self.transform(picture), label


def seed_all(*key: int) -> None:
    """Seed the generators of torch, NumPy and Python, which timm's augmentations draw from.

    With numbers that say what for.
    """
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
