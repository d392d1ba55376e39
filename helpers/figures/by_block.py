"""Figures of what changes from block to block. Blocks are counted from 0."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from helpers.figures.curves import response
from helpers.figures.maps import block_maps
from helpers.figures.responses import curve
from helpers.figures.style import write
from helpers.names import shortened


def block_curves(curves: Mapping[str, Sequence], ax: Axes, ylabel: str = "", title: str = "") -> Axes:
    """A quantity after each block with its intervals as bands, one colour and marker a curve.

    Args:
        curves: name, such as the model -> one estimate a block, anything with value, low and high.
    """
    write(ax.title, title, 60)
    return response({name: curve(estimates) for name, estimates in curves.items()}, ax, "block (0 = first)", ylabel)


def block_strips(strips: Mapping[str, ArrayLike], figure: Figure, columns: int = 6) -> list[np.ndarray]:
    """One strip of `block_maps` below the other, each with its own colour scale.

    Args:
        strips: title, such as the model -> (block, patch row, patch column).
        figure: empty; it gets the height that the strips need.
        columns: maps beside each other.

    Returns:
        The axes (row, column) of each strip.
    """
    rows = [math.ceil(len(maps) / columns) for maps in strips.values()]
    figure.set_figheight(1.6 * sum(rows))
    parts = figure.subfigures(len(strips), height_ratios=rows, squeeze=False).flat
    drawn = []
    for part, count, (title, maps) in zip(parts, rows, strips.items(), strict=True):
        part.suptitle(*shortened([title]), fontsize="medium")
        drawn.append(block_maps(maps, part.subplots(count, columns, squeeze=False)))
    return drawn
