"""Losses: cross-entropy in the manner of DeiT, or the disagreement of two views (DINO, SwAV)."""

import torch
from jaxtyping import Float, Int
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.models import Recipe


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
