"""Pictures and maps over the patches, side by side."""

import math
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike
from PIL import Image, ImageOps

from helpers.figures.style import (
    COLOURS,
    NORM,
    SMALL,
    add_colourbar,
    bare,
    colour_scale,
    is_flat,
    many,
    rows,
    wrapped,
    write,
)
from helpers.names import shortened


def share_maps(shares: Mapping[str, ArrayLike], columns: int = 3, each: float = 2.6) -> np.ndarray:
    """One map a model: the share of images with an outlier at each grid position, from 0 to 1;
    `each` is the height of one in inches.
    """
    if not shares:
        return np.array([])
    axes = many(None, len(shares), columns, each=each)
    panels = axes.ravel()
    for ax, (model, share) in zip(panels, shares.items(), strict=True):
        drawn = ax.imshow(np.asarray(share), cmap="cividis", interpolation="none", vmin=0, vmax=1)
        write(ax.title, wrapped(model, 18), 18)
    bare(panels)
    add_colourbar(drawn, list(panels), label="share of images with\nan outlier here")
    return axes


def marked_patches(image, planted: ArrayLike, found: ArrayLike, ax: Axes) -> Axes:
    """An image with the `planted` outlier patches (patch row, patch column) outlined and those that
    were `found` dotted.
    """
    pixels = np.asarray(image)
    patch = np.array(pixels.shape[:2]) / np.shape(planted)
    ax.imshow(pixels)
    for row, column in np.argwhere(np.asarray(planted)):
        corner = (column * patch[1] - 0.5, row * patch[0] - 0.5)
        for edge, width in (("white", 2.4), ("black", 1)):
            ax.add_patch(
                Rectangle(corner, patch[1], patch[0], fill=False, edgecolor=edge, linewidth=width)
            )
    centres = (np.argwhere(np.asarray(found)) + 0.5) * patch - 0.5
    dots = {"markersize": 4, "markerfacecolor": COLOURS[1], "markeredgecolor": "black"}
    ax.plot(centres[:, 1], centres[:, 0], "o", **dots)
    bare(ax)
    return ax


def twin_maps(
    images: Iterable,
    maps: Sequence[Mapping[str, ArrayLike]],
    axes: np.ndarray | None = None,
    label: str = "",
    labels: Sequence = (),
):
    """Rows of an image and the same map of several models, on one colour scale a row.

    Args:
        images: one a row, PIL or (height, width, 3).
        maps: one mapping a row: title, such as a number of registers -> (patch row, patch column).
            Those of the first row are written.
        axes: (row, 1 + map).
        label, labels: of the colour bars, and of each row.
    """
    across = 1 + len(maps[0])
    axes = many(axes, len(maps) * across, across, each=1.7, more=0.4)
    for row, image, grids in zip(axes, images, maps, strict=True):
        row[0].imshow(_square(image))
        values = {title: np.asarray(grid) for title, grid in grids.items()}
        scale = colour_scale(np.concatenate([grid.ravel() for grid in values.values()]))
        for ax, grid in zip(row[1:], values.values(), strict=True):
            drawn = _draw(ax, grid, scale)
        add_colourbar(drawn, row[-1], label=label)
    titles = ["image", *(wrapped(title, 18) for title in maps[0])]
    _name(axes, titles, [wrapped(text, 18) for text in labels], fontsize="small")
    return axes


def panels(
    images: Sequence[Mapping],
    norms: Iterable[str] = (),
    labels: Sequence[str] = (),
    aspect: str = "equal",
    each: float | None = None,
    more: float = 0.0,
) -> np.ndarray:
    """Rows of small pictures under the titles of their columns.

    Maps of a row whose titles begin with the same line, such as "norm" above "before" and above
    "after", have one colour scale; any other map has its own.

    Args:
        images: one mapping a row: title -> (row, column) for a map, or for a picture PIL or
            (height, width, 3), whose floats are clipped to [0, 1]. The titles of the first row are
            written.
        norms: titles of the maps with a colour bar.
        labels: one a row, such as the model, written beside the first picture.
        aspect: of a map; "auto" fills the panel.
        each, more: inches of a row and around them; of square pictures unless given.
    """
    if not images:
        return np.array([])
    across, norms = len(images[0]), set(norms)
    axes = rows(len(images), across, each or min(1.8, 9.2 / across), more)
    for row, pictures in zip(axes, images, strict=True):
        pictures, alike = {title: _square(values) for title, values in pictures.items()}, {}
        for title, values in pictures.items():
            alike.setdefault(_quantity(title), []).append(values.ravel())
        for ax, (title, values) in zip(row, pictures.items(), strict=True):
            if values.ndim == 3:
                ax.imshow(values if values.dtype == np.uint8 else values.clip(0, 1))
                continue
            scale = colour_scale(np.concatenate(alike[_quantity(title)]), linear=True)
            drawn = _draw(ax, values, scale)
            ax.set_aspect(aspect)
            if title in norms:
                add_colourbar(drawn, ax).ax.tick_params(labelsize="small")
    _name(axes, images[0], [wrapped(text, 18) for text in labels], fontsize="small")
    fit = max(9, 78 // axes.shape[1])  # characters above a column: titles must not overlap
    for ax in axes[0]:
        ax.title.set_text("\n".join(wrapped(x, fit) for x in ax.get_title().split("\n")))
    return axes


def map_rows(
    images: Sequence,
    maps: Mapping[str, Mapping[str, ArrayLike]],
    each: float = 1.4,
) -> np.ndarray:
    """`panels` with a row for each model and image: the image, then its maps, model -> title ->
    (image, patch row, patch column), each with a colour bar; a row is `each` inches high.
    """
    if not maps:
        return np.array([])
    pictures = [
        {"image": image} | {title: own[title][i] for title in own}
        for own in maps.values()
        for i, image in enumerate(images)
    ]
    labels = [model for model in maps for _ in images]
    return panels(pictures, pictures[0], labels, each=each, more=0.4)


def _square(image) -> np.ndarray:
    """The central square of a PIL image, as most preprocessing keeps it; an array is as it was."""
    if isinstance(image, Image.Image):
        image = ImageOps.fit(image, (min(*image.size, 384),) * 2)
    return np.asarray(image)


def _name(axes: np.ndarray, titles: Iterable[str], labels: Sequence[str], **look) -> None:
    """Titles above the first row of pictures, and a label beside each row."""
    for ax, title in zip(axes[0], titles, strict=True):
        write(ax.title, title)
    for ax, label in zip(axes[:, 0], labels, strict=False):
        ax.set_ylabel("", **look)
        write(ax.yaxis.label, label)
    bare(axes)


def _quantity(title: str) -> str:
    """What a map shows: the first of two lines of its title, or all of it."""
    return title.partition("\n")[0]


def _draw(ax: Axes, values: np.ndarray, scale: Normalize) -> AxesImage:
    """A map on a colour scale; one that is flat says so."""
    if is_flat(values):
        ax.set_xlabel("flat", fontsize=SMALL)
    return ax.imshow(values, cmap="viridis", interpolation="none", norm=scale)


def block_strips(strips: Mapping[str, ArrayLike]) -> list[np.ndarray]:
    """The patch-norm maps of each model (block, patch row, patch column), six in a row, on a colour
    scale of its own; the axes (row, column) of each.
    """
    counts = [math.ceil(len(maps) / 6) for maps in strips.values()]
    figure = plt.figure(figsize=(7, 1.6 * sum(counts)))
    parts = figure.subfigures(len(strips), height_ratios=counts, squeeze=False).flat
    found = []
    for part, count, (title, maps) in zip(parts, counts, strips.items(), strict=True):
        part.suptitle(*shortened([title]), fontsize="medium")
        maps = np.asarray(maps)
        axes, scale = part.subplots(count, 6, squeeze=False), colour_scale(maps)
        for block, (ax, values) in enumerate(zip(axes.flat, maps, strict=False)):
            drawn = _draw(ax, values, scale)
            ax.set_title(f"block {block}")
        bare(axes)
        for ax in axes.flat[len(maps) :]:
            ax.set_axis_off()
        add_colourbar(drawn, list(axes.flat), label="patch L2 norm\nafter the block")
        found.append(axes)
    return found


def model_maps(images: Sequence, maps: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> np.ndarray:
    """Rows of image, patch norms and [CLS] attention, the images of one model after another.

    Args:
        images: PIL, of which the central square is drawn, or (height, width, 3). A map lies over
            what the model saw, which may be cropped: `Backbone.as_seen` gives that.
        maps: label, such as the model -> (patch norms, [CLS] attention), each (image, patch row,
            patch column).
    """
    drawn = [
        (label, image, *map(np.asarray, pair))
        for label, both in maps.items()
        for image, pair in zip(images, zip(*both, strict=True), strict=True)
    ]
    axes = rows(len(drawn), 3)
    for row, (_, image, norms, attention) in zip(axes, drawn, strict=True):
        row[0].imshow(_square(image))
        add_colourbar(_draw(row[1], norms, colour_scale(norms)), row[1])
        add_colourbar(row[2].imshow(attention, cmap="magma", interpolation="none", vmin=0), row[2])
    titles = "image", wrapped(NORM), "[CLS] attention\nin the last block"
    _name(axes, titles, [wrapped(label) for label, *_ in drawn])
    return axes
