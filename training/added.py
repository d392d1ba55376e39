"""Registers trained into a finished model, by self-distillation (PH-Reg, arXiv:2505.21501): its
patches are matched to those of the frozen model, as they are or with their outliers removed.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from helpers.capture import Output, capture, find_register_neurons
from helpers.files import digest_of, written_whole
from helpers.images import Images, load_images, load_train_test
from helpers.interventions import test_time_registers
from helpers.models import Backbone, PostHoc, TokenLayout, posthoc, wrap_timm
from training.evaluation import evaluate
from training.recipes import DATA_SEED
from training.tasks import Items, Task

SEARCHED = 20  # units, of which the one that writes most is the writer
BATCH = 16
DRAWS = 100  # of which the views are the farthest from one another


class AddedRegisters(Task):
    """A finished model that gets free registers, or loses a unit, and learns to be what it was."""

    prefix = posthoc.SHIPPED
    twins = (0, 4)
    save = staticmethod(posthoc.save)

    def __init__(self, recipe: PostHoc, device: str, cache: Path):
        super().__init__(recipe, device, cache)
        self.precise = recipe.precision == "float32"
        teacher, student = posthoc.base_of(recipe), posthoc.base_of(recipe)
        teacher.model.to(device)
        self.train, self.test = images_of(recipe)
        self.transform = teacher.transform
        self.targets = (
            Targets(teacher, self.train, recipe, cache) if recipe.patches or recipe.cls else None
        )
        self.model = posthoc.with_registers(student, recipe)
        if device == "cpu" and not self.precise:
            # There, in bfloat16, torch's fused attention makes a step 1.6 times as long.
            for block in self.model.blocks:
                block.attn.fused_attn = False
        layout = replace(teacher.layout, registers=recipe.registers)
        self.objective = DistillationLoss(recipe, layout, self.targets.unit if self.targets else 1)
        answers = capture(teacher, self.test, [Output()], progress=False)["output"]
        self.answers = answers.argmax(-1)

    def items(self, start: int) -> Dataset:
        return TargetedImages(self.train, self.transform, self.targets, self.recipe, start)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """`evaluate`, with `same_answer` as the frozen model, and with `writer`, the unit that
        writes most to the outliers, where more than 5 % of the images have one.
        """
        backbone = wrap_timm("the model in training", posthoc.plain(model), {}, pretrained=True)
        backbone.transform = self.transform
        entry = evaluate(backbone, self.test, answers=self.answers)
        unit = writer(backbone, self.test) if entry["outlier_images"] > 0.05 else None
        return entry | {"writer": unit}


def images_of(recipe: PostHoc) -> tuple[Images, Images]:
    """Images to learn from and images to measure on: two sets, or one that is divided.

    Raises ValueError where they share a picture, or labels are to be learnt and missing.
    """
    if recipe.train == recipe.test:
        return load_train_test(recipe.train, recipe.test, recipe.n_train, recipe.n_test, DATA_SEED)
    parts = [
        load_images(name, recipe.n_train or None, DATA_SEED) for name in recipe.train.split(" + ")
    ]
    if recipe.labels:
        for part in parts:
            part.require_labels()
    else:  # sets with other classes go together, too
        parts = [replace(part, labels=None, class_names=None) for part in parts]
    train, test = reduce(add, parts), load_images(recipe.test, recipe.n_test or None, DATA_SEED)
    if both := {*train.contents} & {*test.contents}:
        raise ValueError(f"{recipe.train!r} and {recipe.test!r} share {len(both)} images")
    return train, test


class TargetedImages(Items):
    """The images of a training in their order, each with what its tokens are matched to: pixels,
    patches, [CLS], label (-1 for none).
    """

    def __init__(
        self, images: Images, transform: Any, targets: "Targets | None", recipe: PostHoc, start: int
    ):
        super().__init__(recipe, start)
        self.pictures, self.transform, self.targets = images, transform, targets

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor, Tensor, int]:
        index, labels = self.picture(item, len(self.pictures)), self.pictures.labels
        label = -1 if labels is None else int(labels[index])
        patches = cls = torch.empty(0)
        if self.targets is not None:
            patches, cls = self.targets.patches[index], self.targets.cls[index]
        return self.transform(self.pictures[index]), patches, cls, label


class DistillationLoss:
    """`token_distance` of the patches and of [CLS], and cross-entropy (see `PostHoc`).

    `unit`: of the tokens, as in `Targets`.
    """

    def __init__(self, recipe: PostHoc, layout: TokenLayout, unit: float = 1):
        self.recipe, self.layout, self.unit = recipe, layout, unit

    def __call__(
        self,
        model: nn.Module,
        average: nn.Module,
        x: Float[Tensor, "image 3 h w"],
        patches: Tensor,
        cls: Tensor,
        labels: Int[Tensor, " image"],
    ) -> Tensor:
        loss, recipe, layout = 0.0, self.recipe, self.layout
        if recipe.labels:
            loss += recipe.labels * F.cross_entropy(model(x).float(), labels)
        if recipe.patches or recipe.cls:
            tokens = posthoc.features(model, x, recipe.space) / self.unit
        if recipe.patches:
            distance = token_distance(layout.patch_tokens(tokens), patches / self.unit)
            loss += recipe.patches * distance
        if recipe.cls:
            distance = token_distance(layout.cls_token(tokens)[:, None], cls / self.unit)
            loss += recipe.cls * distance
        return loss


def token_distance(
    tokens: Float[Tensor, "image token width"], target: Float[Tensor, "image token width"]
) -> Float[Tensor, ""]:
    """(1 - cosine) + mean squared error, mean over tokens (PH-Reg, section 3.3)."""
    tokens, target = tokens.float(), target.float()
    return (1 - F.cosine_similarity(tokens, target, dim=-1)).mean() + F.mse_loss(tokens, target)


def writer(backbone: Backbone, images: Images) -> list[float]:
    """Block, index and |activation| x |output weights| of the unit that writes most to the outliers
    of the last block.
    """
    units = find_register_neurons(backbone, images, top_k=SEARCHED, progress=False)

    def written(unit) -> float:
        weights = backbone.neurons(unit.block).weight[:, unit.unit]
        return abs(unit.at_outliers * weights.norm().item())

    most = max(units, key=written)
    return [most.block, most.unit, round(written(most), 3)]


class Targets:
    """For each image the tokens of the frozen model in the recipe's `space`, in float16.

    They are computed, or read where another training left them in `cache`.

    Attributes:
        unit: what tokens are divided by before they are compared: 1 after the final LayerNorm,
            before it the median norm of the target's patches over the root of the width.
        patches: (image, patch, width), by the recipe's `target`.
        cls: (image, 1, width), of the image as it is; (image, 0, width) for a model without.
    """

    def __init__(self, backbone: Backbone, images: Images, recipe: PostHoc, cache: Path):
        of_recipe = (recipe.target, recipe.views, recipe.shift, recipe.space, recipe.neurons)
        of_model = (backbone.weights_hash, backbone.image_size, backbone.transform)
        of_images = (images.digest, images.pixel_digest)
        key = digest_of(repr((of_recipe, of_model, of_images)), length=16)
        path = cache / f"targets-{key}.safetensors"
        if not path.is_file():
            parts = []
            for start in range(0, len(images), BATCH):
                batch = [backbone.transform(one) for one in images[start : start + BATCH]]
                parts.append(_tokens(backbone, torch.stack(batch).to(backbone.device), recipe))
            patches, cls = (torch.cat(part).half() for part in zip(*parts, strict=True))
            with written_whole(path) as new:
                save_file({"patches": patches, "cls": cls}, new)
        tokens = load_file(path)
        self.patches, self.cls = tokens["patches"], tokens["cls"]
        ordinary = self.patches.float().norm(dim=-1).median().item() / backbone.width**0.5
        self.unit = ordinary if recipe.space == "residual" else 1.0


@torch.no_grad()
def _tokens(backbone: Backbone, pixels: Tensor, recipe: PostHoc) -> tuple[Tensor, Tensor]:
    """Target patches, and [CLS], on the CPU."""
    layout = backbone.layout
    plain = posthoc.features(backbone.model, pixels, recipe.space)
    cls = layout.cls_token(plain)[:, None] if layout.cls else plain[:, :0]
    if recipe.target == "own":
        patches = layout.patch_tokens(plain)
    elif recipe.target == "test-time":
        neurons = posthoc.units(recipe.neurons)
        with test_time_registers(backbone, neurons) if neurons else nullcontext():
            patches = layout.patch_tokens(posthoc.features(backbone.model, pixels, recipe.space))
    else:
        white = backbone.transform(Image.new("RGB", backbone.image_size[::-1], "white")).to(pixels)
        patches = _denoised(backbone, pixels, white, recipe)
    return patches.cpu(), cls.cpu()


def _denoised(
    backbone: Backbone, pixels: Tensor, white: Tensor, recipe: PostHoc
) -> Float[Tensor, "image patch width"]:
    """Mean or median over views, each patch put back to its place (PH-Reg, section 3.2)."""
    layout, views = backbone.layout, []
    height, width = backbone.patch_size
    for rows, columns, flip in shifts(layout.grid, recipe.views, recipe.shift):
        view = pixels.flip(-1) if flip else pixels
        view = _shifted(view, rows * height, columns * width, white[None])
        tokens = layout.patch_tokens(posthoc.features(backbone.model, view, recipe.space))
        grid = layout.to_grid(tokens, dim=1).permute(0, 3, 1, 2)
        back = _shifted(grid, -rows, -columns, grid.new_full((1, 1, *layout.grid), torch.nan))
        views.append(back.flip(-1) if flip else back)
    views = torch.stack(views)
    target = views.nanmean(0) if recipe.target == "mean" else views.nanmedian(0).values
    return target.flatten(2).mT


def shifts(
    grid: tuple[int, int], views: int, share: float, seed: int = 0
) -> Iterator[tuple[int, int, bool]]:
    """Rows and columns by which each view is moved, and whether it is flipped first.

    The first view is the image as it is. Of `DRAWS` seeded draws within `share` of each side those
    are taken that lie farthest from what was taken before, as in PH-Reg's code.
    """
    rng = np.random.default_rng(seed)
    reach = [int(share * side) for side in grid]
    drawn = np.stack([rng.integers(-most, most + 1, DRAWS) for most in reach], axis=1)
    taken = [np.zeros(2, int)]
    yield 0, 0, False
    for flip in rng.random(views - 1) < 0.5:
        distance = np.min([np.square(drawn - one).sum(1) for one in taken], axis=0)
        taken.append(drawn[distance.argmax()])
        yield int(taken[-1][0]), int(taken[-1][1]), bool(flip)


def _shifted(x: Tensor, rows: int, columns: int, fill: Tensor) -> Tensor:
    """`x` (..., row, column) moved down and right; `fill`, of its shape, comes in at the edges."""
    moved = x.roll((rows, columns), (-2, -1))
    row = torch.arange(x.shape[-2], device=x.device)[:, None] - rows
    column = torch.arange(x.shape[-1], device=x.device) - columns
    inside = (row >= 0) & (row < x.shape[-2]) & (column >= 0) & (column < x.shape[-1])
    return torch.where(inside, moved, fill)
