"""Small models that answer at every patch of images which give a reason for an attention sink."""

import math
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from timm.layers import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from helpers.images.triggers import PATCH, SIDE, TRIGGERED
from helpers.models import trained
from helpers.models.backbone import Backbone
from helpers.models.family import Framing
from helpers.models.timm_family import wrap_at

SHIPPED, FILE = PREFIXES = trained.SINKS
OUTPUTS = 3  # colour channels, at each token
_CHOICES = {
    "task": TRIGGERED,
    "attention": ("softmax", "sigmoid"),
    "optimizer": ("adamw", "sgd"),
    "frame": trained.FRAMES,
}


@dataclass(frozen=True)
class SinkTask:
    """All that decides a training on a task that asks for a sink.

    The loss is the mean squared error of the answers at the patches.

    Attributes:
        task: 'quiet' or 'broadcast' (helpers/images/triggers.py).
        n_test: pictures to measure on.
        width, depth, heads, registers: as in `Recipe`.
        cls: 1 for a model with [CLS], of which nothing is asked; else 0.
        attention: 'softmax', or 'sigmoid' for `SigmoidAttention`, which can be switched off and so
            needs no sink.
        layer_scale: what LayerScale starts at; 0 for none.
        optimizer: 'adamw', or 'sgd' (Nesterov's momentum 0.9).
        border, frame: as in `Recipe`; no answer is asked at the border.
        steps, batch_size, lr, weight_decay, warmup, clip, ema, checkpoints, seed: as in `Recipe`.
    """

    task: str = "quiet"
    n_test: int = 256
    width: int = 64
    depth: int = 4
    heads: int = 2
    registers: int = 0
    cls: int = 0
    attention: str = "softmax"
    layer_scale: float = 0.0
    optimizer: str = "adamw"
    steps: int = 2000
    batch_size: int = 16
    lr: float = 1e-3
    weight_decay: float = 0.1
    warmup: int = 100
    clip: float = 1.0
    ema: float = 0.0
    checkpoints: int = 21
    seed: int = 0
    border: int = 0
    frame: str = "flat"

    def __post_init__(self) -> None:
        """Raise ValueError where it would train something else."""
        trained.check_recipe(self, _CHOICES)


class SigmoidAttention(Attention):
    """Attention whose weights are sigmoids, each of its own logit (arXiv:2409.04431).

    Each is biased by minus the log of the number of tokens: a row sums to no fixed number, and may
    be zero.
    """

    def forward(
        self, x: Float[Tensor, "image token width"], **_: Any
    ) -> Float[Tensor, "image token width"]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT * self.scale - math.log(x.shape[1])).sigmoid()
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


def build(recipe: SinkTask) -> VisionTransformer:
    """The untrained model of a recipe, seeded as `trained.build`; it returns (image, token, 3)."""
    return trained.twin_of(
        recipe,
        img_size=SIDE + 2 * recipe.border * PATCH,
        patch_size=PATCH,
        num_classes=OUTPUTS,
        class_token=bool(recipe.cls),
        global_pool="",
        init_values=recipe.layer_scale or None,
        attn_layer=SigmoidAttention if recipe.attention == "sigmoid" else Attention,
    )


def load(name: str) -> tuple[VisionTransformer, SinkTask]:
    """The model called `name` in float32, and its recipe."""
    recipe, _, weights = trained.read_weights(trained.path_of(name), SinkTask)
    model = build(recipe)
    model.load_state_dict(weights)
    return model, recipe


def load_backbone(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """The Backbone of 'sinks-...' or 'sinks:PATH'; `pretrained` changes nothing."""
    return wrap_at(name, load(name)[0], trained.DATA, framing)


def task_of(name: str) -> str | None:
    """The task that the model called `name` was trained on; None for other models."""
    return load(name)[1].task if name.startswith(PREFIXES) else None
