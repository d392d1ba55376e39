"""What a training makes small: cross-entropy in the manner of DeiT, or the disagreement of two views in the manner of DINO."""

import torch
from jaxtyping import Float, Int
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.models import Recipe


class Supervised(nn.Module):
    """Soft-target cross-entropy on mixed images, as DeiT has it (Touvron et al. 2021, without its distillation)."""

    classifies = True

    def __init__(self, recipe: Recipe, classes: int):
        super().__init__()
        self.outputs, mixing = classes, float(recipe.mixup > 0 or recipe.cutmix > 0)
        self.mix = Mixup(recipe.mixup, recipe.cutmix, prob=mixing, label_smoothing=recipe.smoothing, num_classes=classes)
        self.loss = SoftTargetCrossEntropy()

    def forward(self, model: nn.Module, average: nn.Module, x: Float[Tensor, "image 3 h w"], y: Int[Tensor, " image"]) -> Tensor:
        x, y = self.mix(x, y)
        return self.loss(model(x).float(), y)


class SelfDistillation(nn.Module):
    """Two views of an image must agree: the model on one names the prototypes that its average names on the other.

    Caron et al. 2021 (DINO), equation 1 with its centring and sharpening, with two whole views and a cosine head; their small
    crops and their three-layer head are left out. Labels are not used.
    """

    classifies = False
    STUDENT, TEACHER, CENTRE = 0.1, 0.04, 0.9  # the two temperatures and the centre's decay, as in the paper

    def __init__(self, recipe: Recipe, classes: int):
        super().__init__()
        self.outputs = recipe.prototypes
        self.register_buffer("centre", torch.zeros(recipe.prototypes))

    def forward(
        self, model: nn.Module, average: nn.Module, x: Float[Tensor, "image 2 3 h w"], y: Int[Tensor, " image"]
    ) -> Tensor:
        views = x.transpose(0, 1).flatten(0, 1)  # the first view of every image, then the second
        with torch.no_grad():
            taught = _cosines(average, views)
            target = ((taught - self.centre) / self.TEACHER).softmax(-1)
            self.centre.lerp_(taught.mean(0), 1 - self.CENTRE)
        log = (_cosines(model, views) / self.STUDENT).log_softmax(-1)
        return -(target.roll(len(x), 0) * log).sum(-1).mean()


def _cosines(model: nn.Module, x: Float[Tensor, "image 3 h w"]) -> Float[Tensor, "image prototype"]:
    """Cosine of each image's feature with each prototype, the rows of the head's weight."""
    feature = model.forward_head(model.forward_features(x), pre_logits=True)
    return (F.normalize(feature, dim=-1) @ F.normalize(model.head.weight, dim=-1).mT).float()


OBJECTIVES = {"supervised": Supervised, "self-distillation": SelfDistillation}
