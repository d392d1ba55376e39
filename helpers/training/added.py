"""Registers trained into a finished model, by self-distillation (PH-Reg, arXiv:2505.21501): its
patches are matched to those of the frozen model, as they are or with their outliers removed.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import lru_cache, reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16, Int
from PIL import Image
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from helpers.capture import Output, capture, find_register_neurons
from helpers.files import digest_of, locked, written_whole
from helpers.images import Images, load_images, load_train_test
from helpers.interventions import test_time_registers
from helpers.models import Backbone, PostHoc, TokenLayout, posthoc, wrap_timm
from helpers.names import plural
from helpers.training.evaluation import measured
from helpers.training.recipes import DATA_SEED
from helpers.training.tasks import Items, Task

SEARCHED = 20  # units, of which the one that writes most is the writer
BATCH = 16
DRAWS = 100  # of which the views are the farthest from one another
# Of a recipe, what the targets hang on, beside the images and the weights.
_DECIDE = ("target", "views", "shift", "space", "neurons")


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
        self.learnt, self.tested = images_of(recipe)
        self.transform = teacher.transform
        self.targets = (
            Targets(teacher, self.learnt, recipe, cache) if recipe.patches or recipe.cls else None
        )
        self.model = posthoc.with_registers(student, recipe)
        if device == "cpu" and not self.precise:
            # There, in bfloat16, torch's fused attention makes a step 1.6 times as long.
            for block in self.model.blocks:
                block.attn.fused_attn = False
        self.layout = replace(teacher.layout, registers=recipe.registers)
        self.objective = Likeness(recipe, self.layout, self.targets.unit if self.targets else 1.0)
        self.answers = capture(teacher, self.tested, [Output()], progress=False)["output"].argmax(
            -1
        )

    def items(self, start: int) -> Dataset:
        return Shown(self.learnt, self.transform, self.targets, self.recipe, start)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """`measured`, with `same_answer` and `writer`.

        `same_answer`: how often (%) the head names the class that the frozen model names.
        `writer`: see `writer`, where more than 5 % of the images have an outlier.
        """
        backbone = wrap_timm("the model in training", posthoc.plain(model), {}, pretrained=True)
        backbone.transform = self.transform
        entry = measured(backbone, self.tested, answers=self.answers)
        return entry | {
            "writer": writer(backbone, self.tested) if entry["outlier_images"] > 0.05 else None
        }

    @classmethod
    def stored(cls, path: Path) -> PostHoc:
        return posthoc.read(path)[0]


def images_of(recipe: PostHoc) -> tuple[Images, Images]:
    """Images to learn from and images to measure on, which share no picture.

    Two sets, or one that is divided.

    Raises ValueError where they do, where labels are to be learnt and are missing, and what
    `load_train_test` raises.
    """
    return _images(recipe.train, recipe.test, recipe.n_train, recipe.n_test, bool(recipe.labels))


@lru_cache(maxsize=1)  # the trainings of one process, one after another, mostly have the same
def _images(
    train: str, test: str, n_train: int, n_test: int, labelled: bool
) -> tuple[Images, Images]:
    if train == test:
        return load_train_test(train, test, n_train, n_test, DATA_SEED)
    parts = [load_images(name, n_train or None, DATA_SEED) for name in train.split(" + ")]
    if labelled:
        for part in parts:
            part.require_labels()
    else:  # sets with other classes go together, too
        parts = [replace(part, labels=None, class_names=None) for part in parts]
    learnt, tested = reduce(add, parts), load_images(test, n_test or None, DATA_SEED)
    if both := {*learnt.contents} & {*tested.contents}:
        raise ValueError(
            f"{train!r} and {test!r} share {plural(len(both), 'image')}; choose others to "
            "measure on"
        )
    return learnt, tested


class Shown(Items):
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


class Likeness(nn.Module):
    """(1 - cosine) + mean squared error between tokens, of the patches and of [CLS].

    Cross-entropy (see `PostHoc`).
    """

    def __init__(self, recipe: PostHoc, layout: TokenLayout, unit: float = 1.0):
        """`unit`: of the tokens, as in `Targets`."""
        super().__init__()
        self.recipe, self.layout, self.unit = recipe, layout, unit

    def forward(
        self, model: nn.Module, _: nn.Module, x: Float[Tensor, "image 3 h w"], patches: Tensor, cls:
        Tensor, labels: Int[Tensor, " image"],
    ) -> Tensor:  # fmt: skip
        loss = 0.0
        if self.recipe.labels:
            loss += self.recipe.labels * F.cross_entropy(model(x).float(), labels)
        if self.recipe.patches or self.recipe.cls:
            tokens = posthoc.features(model, x, self.recipe.space) / self.unit
        if self.recipe.patches:
            loss += self.recipe.patches * unlike(
                self.layout.patch_tokens(tokens), patches / self.unit
            )
        if self.recipe.cls:
            loss += self.recipe.cls * unlike(
                self.layout.cls_token(tokens)[:, None], cls / self.unit
            )
        return loss


def unlike(
    tokens: Float[Tensor, "image token width"], wanted: Float[Tensor, "image token width"]
) -> Float[Tensor, ""]:
    """(1 - cosine) + mean squared error, mean over tokens (PH-Reg, section 3.3)."""
    tokens, wanted = tokens.float(), wanted.float()
    return (1 - F.cosine_similarity(tokens, wanted, dim=-1)).mean() + F.mse_loss(tokens, wanted)


def writer(backbone: Backbone, images: Images) -> list[float]:
    """Block, index and |activation| x |output weights| of one unit.

    It is the one that writes most to the outliers of the last block.
    """
    found = find_register_neurons(backbone, images, top_k=SEARCHED, progress=False)
    written = [
        one.at_outliers * backbone.neurons(one.block).weight[:, one.unit].norm().item()
        for one in found
    ]
    most = max(range(len(found)), key=lambda i: abs(written[i]))
    return [found[most].block, found[most].unit, round(abs(written[most]), 3)]


class Targets:
    """For each image the tokens of the frozen model in the recipe's `space`, in float16.

    Attributes:
        unit: what tokens are divided by before they are compared: 1 after the final LayerNorm,
            before it the median norm of the target's patches over the root of the width.
        patches: (image, patch, width), by the recipe's `target`.
        cls: (image, 1, width), of the image as it is; (image, 0, width) for a model without.
    """

    def __init__(self, backbone: Backbone, images: Images, recipe: PostHoc, cache: Path):
        """Compute them, or read what another training left in `cache`.

        There they take 2 bytes a number.
        """
        decide = [f"{name} {value}" for name, value in asdict(recipe).items() if name in _DECIDE]
        shown_to = (backbone.weights_hash, backbone.configuration)
        key = digest_of(*shown_to, images.digest, images.pixel_digest, *decide, length=16)
        path = cache / f"targets-{key}.safetensors"
        with locked(cache / path.stem):  # others that need the same wait for it
            if not path.is_file():
                parts = []
                for start in range(0, len(images), BATCH):
                    shown = [backbone.transform(one) for one in images[start : start + BATCH]]
                    pixels = torch.stack(shown).to(backbone.device)
                    parts.append(_tokens(backbone, pixels, recipe))
                patches, cls = (torch.cat(part).half() for part in zip(*parts, strict=True))
                with written_whole(path) as new:
                    new.write_bytes(save({"patches": patches, "cls": cls}))
        kept: dict[str, Float16[Tensor, "image token width"]] = load_file(path)
        self.patches, self.cls = kept["patches"], kept["cls"]
        ordinary = self.patches.float().norm(dim=-1).median().item() / backbone.width**0.5
        self.unit = ordinary if recipe.space == "residual" else 1.0


@torch.no_grad()
def _tokens(backbone: Backbone, pixels: Tensor, recipe: PostHoc) -> tuple[Tensor, Tensor]:
    """Patches as the recipe wants them, and [CLS], on the CPU."""
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
    """Mean or median over views of the image (PH-Reg, section 3.2).

    Each patch is put back to its place.
    """
    layout, seen = backbone.layout, []
    for rows, columns, flip in shifts(layout.grid, recipe.views, recipe.shift):
        view = pixels.flip(-1) if flip else pixels
        sizes = [
            step * side for step, side in zip((rows, columns), backbone.patch_size, strict=True)
        ]
        view = _shifted(view, *sizes, white[None])
        grid = layout.to_grid(
            layout.patch_tokens(posthoc.features(backbone.model, view, recipe.space)), dim=1
        ).permute(0, 3, 1, 2)
        back = _shifted(grid, -rows, -columns, grid.new_full((1, 1, *layout.grid), torch.nan))
        seen.append(back.flip(-1) if flip else back)
    views = torch.stack(seen)
    kept = views.nanmean(0) if recipe.target == "mean" else views.nanmedian(0).values
    return kept.flatten(2).mT


def shifts(
    grid: tuple[int, int], views: int, share: float, seed: int = 0
) -> Iterator[tuple[int, int, bool]]:
    """Rows and columns by which each view is moved, and whether it is flipped first.

    The first view is the image as it is.

    Of `DRAWS` seeded draws within `share` of each side those are taken that lie farthest from what
    was taken before, as in PH-Reg's code. All images have the same views.
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
    """`x` (..., row, column) moved down and right.

    `fill`, of its shape, where nothing comes from.
    """
    moved = x.roll((rows, columns), (-2, -1))
    place = [
        torch.arange(side, device=x.device) - step
        for side, step in zip(x.shape[-2:], (rows, columns), strict=True)
    ]
    inside = [(p >= 0) & (p < side) for p, side in zip(place, x.shape[-2:], strict=True)]
    return torch.where(inside[0][:, None] & inside[1], moved, fill)
