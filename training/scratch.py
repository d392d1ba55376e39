"""Small models from scratch: augmented images, and their losses, cross-entropy as DeiT has it or
the disagreement of two views (DINO, SwAV).
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from helpers.images import Images, load_train_test
from helpers.models import Recipe, trained, wrap_timm
from helpers.models.trained import DATA
from training.evaluation import evaluate
from training.recipes import DATA_SEED
from training.tasks import Items, Task, seed_all

TRAINING, TEST = 2, 3  # of the draws of a border


class Frame:
    """The border around pictures (see `Recipe`), with mean and standard deviation of `pictures`."""

    def __init__(self, recipe: Any, pictures: Iterable[Image.Image], patch_size: int):
        self.recipe, self.width = recipe, recipe.border * patch_size
        if recipe.border:
            pixels = (np.asarray(one) / 127.5 - 1 for one in pictures)
            first, second = np.mean([(x.mean(), (x**2).mean()) for x in pixels], axis=0)
            self.mean, self.std = first, np.sqrt(second - first**2)

    def __call__(self, x: Float[Tensor, "3 h w"], which: int, index: int) -> Tensor:
        """Normalised pixels with their border, drawn by the seed, `which` set and the `index`."""
        if not self.width:
            return x
        shape = (3, *(side + 2 * self.width for side in x.shape[1:]))
        framed = np.full(shape, self.mean, np.float32)
        if self.recipe.frame == "noise":
            generator = np.random.default_rng((self.recipe.seed, which, index))
            framed += self.std * generator.standard_normal(shape, np.float32)
        framed = torch.from_numpy(framed)
        framed[:, self.width : -self.width, self.width : -self.width] = x
        return framed

    def around(self, images: Images, size: int) -> Images:
        """Test images as pixels of so many a side, each with its border."""
        plain = create_transform(size, **DATA)
        pixels = [self(plain(picture), TEST, i) for i, picture in enumerate(images)]
        return replace(images, read=pixels.__getitem__)


class AugmentedImages(Items):
    """The images of a training, decoded in memory, each augmented by a seed of its own."""

    def __init__(self, images: Images, recipe: Recipe, start: int = 0):
        super().__init__(recipe, start)
        self.pictures, self.labels = list(images), images.labels
        self.frame = Frame(recipe, self.pictures, recipe.patch_size)
        self.transform = create_transform(
            recipe.image_size,
            is_training=True,
            mean=DATA["mean"],
            std=DATA["std"],
            interpolation=DATA["interpolation"],
            scale=(recipe.scale, 1.0),
            auto_augment=recipe.augment or None,
            re_prob=recipe.erase,
            re_mode="pixel",
        )

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        index = self.picture(item, len(self.pictures))
        seed_all(self.recipe.seed, 0, self.first + item)
        picture, label = self.pictures[index], int(self.labels[index])
        views = 2 if self.recipe.objective == "self-distillation" else 1
        drawn = [
            self.frame(self.transform(picture), TRAINING, self.first + item) for _ in range(views)
        ]
        return torch.stack(drawn) if views > 1 else drawn[0], label


class Supervised:
    """Soft-target cross-entropy on mixed images (DeiT, Touvron et al. 2021, not distilled)."""

    classifies = True

    def __init__(self, recipe: Recipe, classes: int):
        self.outputs = classes
        self.mix = Mixup(
            recipe.mixup,
            recipe.cutmix,
            prob=float(recipe.mixup > 0 or recipe.cutmix > 0),
            label_smoothing=recipe.smoothing,
            num_classes=classes,
        )
        self.loss = SoftTargetCrossEntropy()

    def __call__(self, model: nn.Module, average: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x, y = self.mix(x, y)
        return self.loss(model(x).float(), y)


class SelfDistillation:
    """Two views of an image must agree: the model on one names the prototypes that its average is
    given on the other.

    Caron et al. 2021 (DINO), equation 1, with two whole views and a cosine head, without small
    crops. Not centred as there, which let all images have one answer, but balanced as in SwAV, over
    prototypes that stay random. Labels are not used.
    """

    classifies = False
    # The two temperatures. DINO has 0.1 and 0.04, SwAV balances at 0.05: there the targets of a
    # model whose features all start nearly alike are even, and teach it nothing.
    STUDENT, TEACHER = 0.1, 0.01

    def __init__(self, recipe: Recipe, classes: int):
        self.outputs = recipe.prototypes

    def __call__(self, model: nn.Module, average: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        # Of (image, view, 3, h, w) the first view of every image, then the second.
        views = x.transpose(0, 1).flatten(0, 1)
        with torch.no_grad():
            target = balanced(_cosines(average, views) / self.TEACHER)
        log = (_cosines(model, views) / self.STUDENT).log_softmax(-1)
        return -(target.roll(len(x), 0) * log).sum(-1).mean()


def balanced(
    scores: Float[Tensor, "image prototype"], iterations: int = 3
) -> Float[Tensor, "image prototype"]:
    """Shares of each image among the prototypes: a batch is spread evenly whatever the scores.

    Each image's sum to 1, each prototype's nearly to images / prototypes. By Sinkhorn and Knopp
    (SwAV, Caron et al. 2020, arXiv:2006.09882, equations 3 to 5).
    """
    for _ in range(iterations):
        scores = scores.log_softmax(0).log_softmax(-1)
    return scores.exp()


def _cosines(model: nn.Module, x: Float[Tensor, "image 3 h w"]) -> Float[Tensor, "image prototype"]:
    """Cosine of each feature with each prototype, the rows of the head's weight, not learnt."""
    feature = model.forward_head(model.forward_features(x), pre_logits=True)
    prototypes = F.normalize(model.head.weight.detach(), dim=-1)
    return (F.normalize(feature, dim=-1) @ prototypes.mT).float()


OBJECTIVES = {"supervised": Supervised, "self-distillation": SelfDistillation}


class FromScratch(Task):
    """A small model of its own, beside its twins."""

    prefix = trained.SHIPPED
    twins = (0, 1, 2, 4)
    save = staticmethod(trained.save)

    def __init__(self, recipe: Recipe, device: str, cache: Path):
        super().__init__(recipe, device, cache)
        self.train, self.test = load_train_test(
            recipe.train, recipe.test, recipe.n_train, recipe.n_test, DATA_SEED
        )
        classes = int(max(self.train.labels.max(), self.test.labels.max())) + 1
        self.objective = OBJECTIVES[recipe.objective](recipe, classes)
        self.model = trained.build(recipe, self.objective.outputs)
        if recipe.border:
            frame = Frame(recipe, self.train, recipe.patch_size)
            self.test = frame.around(self.test, recipe.image_size)

    def items(self, start: int) -> Dataset:
        return AugmentedImages(self.train, self.recipe, start)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        backbone = wrap_timm("the model in training", model, DATA, pretrained=True)
        classifies, border = self.objective.classifies, self.recipe.border
        return evaluate(backbone, self.test, classifies, border=border)

    def finished(self, model: nn.Module) -> nn.Module:
        if not self.objective.classifies:
            model.reset_classifier(0)
        return model
