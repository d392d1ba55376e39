"""Small models from scratch: their images, augmented by chance, and their losses, cross-entropy in
the manner of DeiT or the disagreement of two views (DINO, SwAV).
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from helpers.images import Images, load_train_test
from helpers.models import Recipe
from helpers.models import trained as scratch
from helpers.training.evaluation import evaluate
from helpers.training.recipes import DATA_SEED
from helpers.training.tasks import Items, Task, seed_all


class Batches(Items):
    """The images of a training, each augmented by chance of its own.

    All images are kept decoded in memory.
    """

    def __init__(self, images: Images, recipe: Recipe, start: int = 0):
        """`start`: the step to begin with."""
        super().__init__(recipe, start)
        self.pictures, self.labels = list(images), images.labels
        shown = {name: scratch.DATA[name] for name in ("mean", "std", "interpolation")}
        changes = {
            "scale": (recipe.scale, 1.0),
            "auto_augment": recipe.augment or None,
            "re_prob": recipe.erase,
            "re_mode": "pixel",
        }
        self.transform = create_transform(recipe.image_size, is_training=True, **shown, **changes)

    def __getitem__(self, item: int) -> tuple[Tensor, int]:
        index = self.picture(item, len(self.pictures))
        seed_all(self.recipe.seed, 0, self.first + item)
        picture, label = self.pictures[index], int(self.labels[index])
        if self.recipe.objective == "self-distillation":
            return torch.stack([self.transform(picture), self.transform(picture)]), label
        return self.transform(picture), label


class Supervised(nn.Module):
    """Soft-target cross-entropy on mixed images, as DeiT has it.

    Touvron et al. 2021, without its distillation.
    """

    classifies = True

    def __init__(self, recipe: Recipe, classes: int):
        super().__init__()
        self.outputs, mixing = classes, float(recipe.mixup > 0 or recipe.cutmix > 0)
        self.mix = Mixup(
            recipe.mixup,
            recipe.cutmix,
            prob=mixing,
            label_smoothing=recipe.smoothing,
            num_classes=classes,
        )
        self.loss = SoftTargetCrossEntropy()

    def forward(
        self,
        model: nn.Module,
        average: nn.Module,
        x: Float[Tensor, "image 3 h w"],
        y: Int[Tensor, " image"],
    ) -> Tensor:
        x, y = self.mix(x, y)
        return self.loss(model(x).float(), y)


class SelfDistillation(nn.Module):
    """Two views of an image must agree.

    The model on one names the prototypes that its average is given on the other.

    Caron et al. 2021 (DINO), equation 1, with two whole views and a cosine head; small crops and
    the three-layer head are left out. Not centred as there, which let all images have one answer,
    but balanced as in SwAV (see `balanced`), over prototypes that stay as random as they began.
    Labels are not used.
    """

    classifies = False
    # The two temperatures. DINO has 0.1 and 0.04, SwAV balances at 0.05: there the targets of a
    # model whose features all start nearly alike are even, and teach it nothing.
    STUDENT, TEACHER = 0.1, 0.01

    def __init__(self, recipe: Recipe, classes: int):
        super().__init__()
        self.outputs = recipe.prototypes

    def forward(
        self,
        model: nn.Module,
        average: nn.Module,
        x: Float[Tensor, "image 2 3 h w"],
        y: Int[Tensor, " image"],
    ) -> Tensor:
        views = x.transpose(0, 1).flatten(0, 1)  # the first view of every image, then the second
        with torch.no_grad():
            target = balanced(_cosines(average, views) / self.TEACHER)
        log = (_cosines(model, views) / self.STUDENT).log_softmax(-1)
        return -(target.roll(len(x), 0) * log).sum(-1).mean()


def balanced(
    scores: Float[Tensor, "image prototype"], iterations: int = 3
) -> Float[Tensor, "image prototype"]:
    """Shares of each image among the prototypes.

    Each image's sum to 1, each prototype's nearly to images / prototypes.

    By Sinkhorn and Knopp, as Caron et al. 2020 (SwAV, arXiv:2006.09882), equations 3 to 5: a batch
    is spread evenly whatever the scores, so that no prototype is the answer for all images. There
    may be fewer images than prototypes.
    """
    for _ in range(iterations):
        scores = scores.log_softmax(0).log_softmax(-1)
    return scores.exp()


def _cosines(model: nn.Module, x: Float[Tensor, "image 3 h w"]) -> Float[Tensor, "image prototype"]:
    """Cosine of each image's feature with each prototype.

    Prototypes are the rows of the head's weight, which is not learnt.
    """
    feature = model.forward_head(model.forward_features(x), pre_logits=True)
    return (
        F.normalize(feature, dim=-1) @ F.normalize(model.head.weight.detach(), dim=-1).mT
    ).float()


OBJECTIVES = {"supervised": Supervised, "self-distillation": SelfDistillation}


class FromScratch(Task):
    """A small model of its own, beside its matched models."""

    prefix = scratch.SHIPPED
    twins = (0, 1, 2, 4)
    save = staticmethod(scratch.save)

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
    def stored(cls, path: Path) -> Recipe:
        return scratch.load(f"{scratch.FILE}{path}")[1]
