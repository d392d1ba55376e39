"""What a student's patches are matched to.

Those of the frozen model, as they are or with their outliers removed.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float16
from PIL import Image
from safetensors.torch import load_file, save
from torch import Tensor

from helpers.files import digest_of, locked, written_whole
from helpers.images import Images
from helpers.interventions import test_time_registers
from helpers.models import Backbone, PostHoc, posthoc

BATCH = 16
DRAWS = 100  # of which the views are the farthest from one another
# Of a recipe, what the targets hang on, beside the images and the weights.
_DECIDE = ("target", "views", "shift", "space", "neurons")


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
        key = digest_of(backbone.weights_hash, images.digest, *decide, length=16)
        path = cache / f"targets-{key}.safetensors"
        with locked(cache / path.stem):  # others that need the same wait for it
            if not path.is_file():
                parts = [
                    _tokens(backbone, _pixels(backbone, images, start), recipe)
                    for start in range(0, len(images), BATCH)
                ]
                patches, cls = (torch.cat(part).half() for part in zip(*parts, strict=True))
                with written_whole(path) as new:
                    new.write_bytes(save({"patches": patches, "cls": cls}))
        kept: dict[str, Float16[Tensor, "image token width"]] = load_file(path)
        self.patches, self.cls = kept["patches"], kept["cls"]
        ordinary = self.patches.float().norm(dim=-1).median().item() / backbone.width**0.5
        self.unit = ordinary if recipe.space == "residual" else 1.0


def _pixels(
    backbone: Backbone, images: Images, start: int
) -> Float[Tensor, "image 3 height width"]:
    return torch.stack(
        [backbone.transform(picture) for picture in images[start : start + BATCH]]
    ).to(backbone.device)


@torch.no_grad()
def _tokens(backbone: Backbone, pixels: Tensor, recipe: PostHoc) -> tuple[Tensor, Tensor]:
    """Patches as the recipe wants them, and [CLS], on the CPU."""
    layout = backbone.layout
    plain = posthoc.features(backbone.model, pixels, recipe.space)
    cls = layout.cls_token(plain)[:, None] if layout.cls else plain[:, :0]
    if recipe.target == "own":
        patches = layout.patch_tokens(plain)
    elif recipe.target == "test-time":
        with _moved(backbone, recipe):
            patches = layout.patch_tokens(posthoc.features(backbone.model, pixels, recipe.space))
    else:
        white = backbone.transform(Image.new("RGB", backbone.image_size[::-1], "white")).to(pixels)
        patches = _denoised(backbone, pixels, white, recipe)
    return patches.cpu(), cls.cpu()


def _moved(backbone: Backbone, recipe: PostHoc) -> AbstractContextManager:
    neurons = posthoc.units(recipe.neurons)
    return test_time_registers(backbone, neurons) if neurons else nullcontext()


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
