"""Figures of what [CLS] takes from the other tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from torch import Tensor

from helpers.figures.comparisons import sweep
from helpers.figures.curves import response
from helpers.figures.responses import curve


def sorted_images(
    per_image: Mapping[str, Float[Tensor, " image"]],
    ax: Axes,
    xlabel: str,
    ylabel: str,
    reference: float | None = None,
    points: int = 51,
) -> Axes:
    """One number an image, the images sorted by it, from 0 to 100 % of them.

    Args:
        per_image: name -> (image,), whose quantiles are taken in its own precision; images without a number (nan) are left out.
        reference: drawn as a horizontal dashed line.
        points: quantiles of a curve.
    """
    curves = {}
    for name, x in per_image.items():
        levels = torch.linspace(0, 1, points, dtype=x.dtype)
        curves[name] = (100 * levels, x.nanquantile(levels), None, None)
    return response(curves, ax, xlabel, ylabel, reference)


def block_cosines(curves: Mapping[str, Sequence], ax: Axes, ylabel: str) -> Axes:
    """Cosines after each block with their intervals, on a scale that ends at 1 and holds 0.

    Args:
        curves: model -> one estimate a block, with value, low and high.
    """
    response({model: curve(blocks) for model, blocks in curves.items()}, ax, "after block (0 = first)", ylabel)
    ax.set_ylim(min(0, ax.get_ylim()[0]), 1.05)
    return ax


def part_shares(tables: Sequence[tuple[str, ArrayLike]], parts: Sequence[str], axes: np.ndarray) -> np.ndarray:
    """One heat map of the share of each pair of parts a model, all on one scale from 0 to 1.

    Args:
        tables: title and (part, part) of each.
        parts: their names.
        axes: at least one a table, any shape; the rest are left empty.
    """
    panels = np.ravel(axes)
    for ax, (title, table) in zip(panels, tables, strict=False):
        sweep(table, parts, parts, ax, label="share", largest=1.0).set_title(title)
    for ax in panels[len(tables) :]:
        ax.set_axis_off()
    return axes
