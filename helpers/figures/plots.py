"""One function per figure: (data, axes) -> axes. Nothing is measured here; the same functions serve notebooks and figure tests.

    plt.rcParams.update(figures.STYLE)
    figure, ax = plt.subplots()
    figures.norm_histogram(norms, thresholds, ax)

Blocks are counted from 0. A figure grows in height where the names of its models need the room. A model keeps its colour where
figures get the models in the same order.

In a notebook, importing this module makes every figure carry its numbers beside its picture.
"""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from IPython import get_ipython
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection, PathCollection, QuadMesh
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, Normalize
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from helpers.publish.numbers import FIGURE, condensed, told

COLOURS = sns.color_palette("colorblind")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", ":")
GREY = "0.4"
TICKS = 8  # points of a curve up to which each has its tick
FLAT = 1e-3  # relative difference below which a map or curve counts as flat
NORM = "patch L2 norm before the final LayerNorm"
# As light as black text on them needs it.
VERDICTS = {
    "supported": (0.60, 0.85, 0.75),
    "refuted": (0.95, 0.72, 0.55),
    "inconclusive": (0.97, 0.93, 0.62),
    "not applicable": (0.88, 0.88, 0.88),
    "not run": (1.0, 1.0, 1.0),
}
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")


# The look of all figures: solid white (also on a dark page), constrained layout, legible at 700 pixels (7 inches) width.
STYLE = {
    "figure.dpi": 100,
    "figure.figsize": (7, 4),
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.size": 10,
    "axes.titlesize": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def rows(count: int, columns: int = 1, each: float = 2.2, more: float = 0.0) -> np.ndarray:
    """Axes (row, column) of a new figure 7 inches wide, `each` inches for a row and `more` for what stands around them."""
    return plt.subplots(count, columns, figsize=(7, more + each * count), squeeze=False)[1]


def lines(count: int, each: float = 0.8, more: float = 0.8) -> Axes:
    """One axis of a new figure 7 inches wide, with `each` inches for each of `count` names, and `more` around them."""
    return plt.subplots(figsize=(7, more + each * count))[1]


def token_maps(
    images: Iterable, norm_maps: Iterable, attention_maps: Iterable, axes: np.ndarray, labels: Sequence[str] = ()
) -> np.ndarray:
    """Rows of three panels: image, patch norms, [CLS] attention.

    Args:
        images: one a row, PIL or (height, width, 3).
        norm_maps, attention_maps: one (patch row, patch column) a row, each with its own colour scale.
        axes: (row, 3).
        labels: one a row, such as the model, written beside the image.
    """
    axes = np.asarray(axes).reshape(-1, 3)
    for row, image, norms, attention in zip(axes, images, norm_maps, attention_maps, strict=True):
        norms, attention = np.asarray(norms), np.asarray(attention)
        row[0].imshow(np.asarray(image))
        _colourbar(row[1].imshow(norms, cmap="viridis", interpolation="nearest", norm=_scale(norms)), row[1])
        _colourbar(row[2].imshow(attention, cmap="magma", interpolation="nearest", vmin=0), row[2])
    for ax, title in zip(axes[0], ("image", _wrapped(NORM), "[CLS] attention\nin the last block"), strict=True):
        ax.set_title(title)
    for ax, label in zip(axes[:, 0], labels, strict=False):
        ax.set_ylabel(_wrapped(label))
    _bare(axes)
    return axes


def norm_histogram(norms: Mapping[str, ArrayLike], thresholds: Mapping[str, float], ax: Axes, rule: str = "") -> Axes:
    """Share of patch tokens per norm, one outline a model, with its outlier threshold as a dashed line. Both axes logarithmic.

    Args:
        norms: model -> patch norms, any shape, positive.
        thresholds: model -> outlier threshold; a model may lack one.
        rule: how the thresholds were found, such as 'percentile:98', for the legend.
    """
    norms = {model: np.asarray(values).ravel() for model, values in norms.items()}
    low, high = min(values.min() for values in norms.values()), max(values.max() for values in norms.values())
    edges = np.geomspace(low, max(high, 1.01 * low), 81)
    for (model, values), colour in zip(norms.items(), itertools.cycle(COLOURS), strict=False):
        ax.stairs(np.histogram(values, edges)[0] / values.size, edges, color=colour, linewidth=1.6, label=_wrapped(model))
        if model in thresholds:
            ax.axvline(thresholds[model], color=colour, linestyle="--", linewidth=1)
    ax.set(xlabel=NORM, ylabel="share of patch tokens per bin", yscale="log")
    _log_axis(ax, "x")
    label = f"outlier threshold\n({rule})" if rule else "outlier threshold"
    threshold = [Line2D([], [], color=GREY, linestyle="--", linewidth=1, label=label)] if thresholds else []
    _legend(ax, [*ax.get_legend_handles_labels()[0], *threshold])
    return ax


def size_prevalence(
    rows: Sequence[tuple[float, object]], not_run: Mapping[str, str], ax: Axes, claimed: float | None = None
) -> Axes:
    """A value, such as the share of images with an outlier, against the size of the model on a logarithmic axis.

    Args:
        rows: (parameters, value) a model. A value has name, unit, model, value, low and high (None where undefined).
        not_run: model -> reason; the legend counts these models, and names those whose value is undefined.
        claimed: the size from which on outliers are claimed, drawn as a dotted line.
    """
    handles, absent = [], []
    for (parameters, value), colour, marker in zip(rows, itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False):
        if value.value is None:
            absent.append(f"undefined: {value.model}")
            continue
        _interval(ax, value, parameters, upright=True, color=colour, marker=marker, markerfacecolor="none")
        handles.append(
            Line2D([], [], linestyle="", color=colour, marker=marker, markerfacecolor="none", label=_wrapped(value.model))
        )
    if claimed is not None:
        line = ax.axvline(claimed, color=GREY, linestyle=":", linewidth=1.4, label=f"{claimed / 1e6:g} million")
        handles.append(line)
    if not_run:
        absent.append(f"models not run: {len(not_run)}")
    ax.set(xlabel="parameters (millions)", ylabel=_quantity([value for _, value in rows]))
    _log_axis(ax, "x", FuncFormatter(lambda count, _: f"{count / 1e6:g}"))
    _legend(ax, [*handles, *(Line2D([], [], linestyle="", label=_wrapped(text)) for text in absent)])
    return ax


def similarity_densities(normal: ArrayLike, outlier: ArrayLike, ax: Axes) -> Axes:
    """Density of the cosine similarity to neighbouring patches, for normal and for outlier patches (Darcet et al., Fig. 5a).

    Args:
        normal, outlier: similarities, any shape; nan are left out and a group may be empty.
    """
    groups = {"normal patches": np.asarray(normal), "outlier patches": np.asarray(outlier)}
    groups = {name: values[np.isfinite(values)] for name, values in groups.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(groups.values())), 40)
    for (name, values), colour in zip(groups.items(), COLOURS, strict=False):
        heights = np.histogram(values, edges, density=True)[0] if values.size else np.zeros(len(edges) - 1)
        ax.stairs(heights, edges, color=(*colour, 0.35), fill=True)
        ax.stairs(heights, edges, color=colour, linewidth=1.6, label=f"{name}\n(n = {values.size:,})")
    ax.set(xlabel="mean cosine similarity to the neighbouring patches,\nafter patch embedding", ylabel="density")
    _legend(ax, ax.get_legend_handles_labels()[0])
    return ax


def block_norms(
    norms: Mapping[str, ArrayLike], ax: Axes, quantiles: Sequence[str] = ("median", "98th percentile", "maximum")
) -> Axes:
    """Quantiles of the patch norm after each block, one colour a model, one line style a quantile. Logarithmic norm axis.

    Args:
        norms: model -> (quantile, block), in the order of `quantiles`; three at most.
    """
    for rows, colour in zip(norms.values(), itertools.cycle(COLOURS), strict=False):
        for row, linestyle in zip(np.asarray(rows), DASHES, strict=False):
            ax.plot(row, color=colour, linestyle=linestyle, linewidth=1.6, marker=".", markersize=4)
    ax.set(xlabel="block (0 = first)", ylabel="patch L2 norm after the block")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _log_axis(ax, "y")
    colours = [
        Line2D([], [], color=colour, label=_wrapped(model))
        for model, colour in zip(norms, itertools.cycle(COLOURS), strict=False)
    ]
    kinds = [
        Line2D([], [], color=GREY, linestyle=linestyle, label=name) for name, linestyle in zip(quantiles, DASHES, strict=False)
    ]
    _legend(ax, [*colours, *kinds])
    return ax


def block_maps(maps: ArrayLike, axes: np.ndarray) -> np.ndarray:
    """A strip of patch-norm maps, one a block, on one colour scale.

    Args:
        maps: (block, patch row, patch column).
        axes: at least one a block, any shape; the rest are left empty.
    """
    maps, panels = np.asarray(maps), np.ravel(axes)
    scale = _scale(maps)
    for ax, (block, values) in zip(panels, enumerate(maps), strict=False):
        drawn = ax.imshow(values, cmap="viridis", interpolation="nearest", norm=scale)
        ax.set_title(f"block {block}")
    _bare(panels)
    for ax in panels[len(maps) :]:
        ax.set_axis_off()
    _colourbar(drawn, list(panels), label="patch L2 norm\nafter the block")
    return axes


def share_maps(shares: Mapping[str, ArrayLike], axes: np.ndarray) -> np.ndarray:
    """One map a model: the share of images in which each grid position holds an outlier patch, on one scale from 0 to 1.

    Args:
        shares: model -> (patch row, patch column).
        axes: one a model, any shape.
    """
    panels = np.ravel(axes)
    for ax, (model, share) in zip(panels, shares.items(), strict=True):
        drawn = ax.imshow(np.asarray(share), cmap="cividis", interpolation="nearest", vmin=0, vmax=1)
        ax.set_title(_wrapped(model, 18))
    _bare(panels)
    _colourbar(drawn, list(panels), label="share of images with\nan outlier here")
    return axes


def marked_patches(image, planted: ArrayLike, found: ArrayLike, ax: Axes) -> Axes:
    """An image with the planted outlier patches outlined and those that were found dotted.

    Args:
        planted, found: (patch row, patch column) bool.
    """
    pixels = np.asarray(image)
    patch = np.array(pixels.shape[:2]) / np.shape(planted)
    ax.imshow(pixels)
    for row, column in np.argwhere(np.asarray(planted)):
        corner = (column * patch[1] - 0.5, row * patch[0] - 0.5)
        ax.add_patch(Rectangle(corner, patch[1], patch[0], fill=False, edgecolor="white", linewidth=2.4))
        ax.add_patch(Rectangle(corner, patch[1], patch[0], fill=False, edgecolor="black", linewidth=1))
    centres = (np.argwhere(np.asarray(found)) + 0.5) * patch - 0.5
    ax.plot(centres[:, 1], centres[:, 0], "o", markersize=4, markerfacecolor=COLOURS[1], markeredgecolor="black", linestyle="")
    _bare(ax)
    return ax


def onset_histogram(onset: Mapping[str, ArrayLike], depth: int, ax: Axes) -> Axes:
    """Share of images per block in which outliers start, bars side by side for the models.

    Args:
        onset: model -> first block of each image (image,), -1 where there is none.
        depth: number of blocks, of the deepest model.
    """
    positions = np.array([*range(depth), depth + 1])  # the last one is 'none', set apart
    width = 0.8 / len(onset)
    for i, ((model, blocks), colour) in enumerate(zip(onset.items(), itertools.cycle(COLOURS), strict=False)):
        blocks = np.asarray(blocks)
        shares = np.bincount(np.where(blocks < 0, depth, blocks), minlength=depth + 1) / max(blocks.size, 1)
        ax.bar(positions + (i + 0.5) * width - 0.4, shares, width, color=colour, label=_wrapped(model))
    ticks = range(0, depth, math.ceil(depth / 12))
    ax.set_xticks([*ticks, depth + 1], [*map(str, ticks), "none"])
    ax.set(xlabel="block in which outlier patches start (0 = first)", ylabel="share of images")
    _legend(ax, ax.get_legend_handles_labels()[0])
    return ax


def forest(values: Sequence, margin: float, ax: Axes) -> Axes:
    """One quantity of several models with its intervals, and the margin of the criterion as a dashed line.

    Args:
        values: each has name, unit, model, value, low and high (None where undefined); one name for all.
    """
    centred = {"ha": "center", "va": "center", "color": GREY, "backgroundcolor": "white"}
    for row, value in enumerate(values):
        if value.value is None:
            ax.annotate("undefined", (0.5, row), xycoords=("axes fraction", "data"), **centred)
        else:
            _interval(ax, value, row, upright=False, color=COLOURS[0], marker="o")
    ax.axvline(margin, color=GREY, linestyle="--", linewidth=1, label=f"criterion: {margin:g}")
    _rows(ax, [_wrapped(value.model) for value in values], 1.5)
    ax.set(xlabel=_quantity(values))
    _legend(ax, ax.get_legend_handles_labels()[0])
    return ax


def compared(groups: Mapping[str, Sequence], ax: Axes, label: str = "", reference: float | None = None) -> Axes:
    """Several quantities side by side for each model with their intervals, one colour and marker a group.

    Args:
        groups: group -> one value a model, the same models in the same order in all groups. A value has model, value, low and
            high; None as value.value is written as undefined, and None in place of a value leaves the place empty.
        label: of the axis that shows the values.
        reference: drawn as a vertical dashed line.

    Raises ValueError where the groups differ in their models.
    """
    if len({len(values) for values in groups.values()}) > 1:
        counts = ", ".join(f"{len(values)} for '{group}'" for group, values in groups.items())
        raise ValueError(f"groups need one value (or None) for each model, not {counts}")
    rows = [row for row in zip(*groups.values(), strict=True) if any(value is not None for value in row)]
    for row in rows:
        if len(models := {value.model for value in row if value is not None}) > 1:
            raise ValueError(f"groups need the same models in the same order; one row holds {', '.join(sorted(models))}")
    offsets = (np.arange(len(groups)) - (len(groups) - 1) / 2) * 0.64 / max(len(groups), 1)
    handles = []
    for i, (group, colour, marker) in enumerate(zip(groups, itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False)):
        for position, value in enumerate(row[i] for row in rows):
            if value is None:
                continue
            if value.value is None:
                written = {"ha": "center", "va": "center", "color": colour, "fontsize": 8}
                ax.annotate("undefined", (0.5, position + offsets[i]), xycoords=("axes fraction", "data"), **written)
            else:
                _interval(ax, value, position + offsets[i], upright=False, color=colour, marker=marker)
        handles.append(Line2D([], [], linestyle="", color=colour, marker=marker, label=_wrapped(group)))
    if reference is not None:
        handles.append(ax.axvline(reference, color=GREY, linestyle="--", linewidth=1, label=f"reference: {reference:g}"))
    names = [_wrapped(next(value.model for value in row if value is not None)) for row in rows]
    _rows(ax, names, max(1.5, 0.9 * len(groups)))
    ax.set(xlabel=label)
    _legend(ax, handles)
    return ax


def response(curves: Mapping[str, tuple], ax: Axes, xlabel: str = "", ylabel: str = "", reference: float | None = None) -> Axes:
    """Curves with their intervals as bands, one colour and marker a curve.

    Args:
        curves: name -> (x, values, low, high), each (point,). low and high may be None; None or nan in any of them leaves a gap.
        reference: drawn as a horizontal dashed line.
    """
    for (name, drawn), colour, marker in zip(curves.items(), itertools.cycle(COLOURS), itertools.cycle(MARKERS), strict=False):
        x, values, low, high = (np.asarray(numbers, dtype=float) for numbers in drawn)  # None becomes nan
        ax.plot(x, values, color=colour, marker=marker, markersize=4, linewidth=1.6, label=_wrapped(name))
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.vlines(x, low, high, color=colour, alpha=0.5, linewidth=1)  # a point between gaps has no band
    if reference is not None:
        ax.axhline(reference, color=GREY, linestyle="--", linewidth=1, label=f"reference: {reference:g}")
    places = sorted({float(x) for drawn in curves.values() for x in drawn[0]})
    if len(places) <= TICKS:
        ax.set_xticks(places, [f"{x:g}" for x in places])
    elif all(x.is_integer() for x in places):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    low, high = ax.get_ylim()
    middle, reach = (low + high) / 2, FLAT * max(abs(low), abs(high))
    if high - low < reach:  # what differs by less is drawn as a flat line, not as a magnified one with an offset on its axis
        ax.set_ylim(middle - reach, middle + reach)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    _legend(ax, ax.get_legend_handles_labels()[0])
    return ax


def trainings(
    panels: Mapping[str, Mapping[str, Sequence[tuple]]],
    axes: np.ndarray,
    ylabel: str = "",
    reference: float | None = None,
    bottom: float | None = None,
) -> np.ndarray:
    """What was followed along trainings: one panel a recipe, one colour a kind of model, one line a training.

    Args:
        panels: title -> kind, such as a number of registers -> one (steps, values) a training, each (checkpoint,). A panel may
            lack a kind. All panels have one scale of values, each has its own scale of steps.
        axes: at least one a panel, (row, column); the rest are left empty.
        reference: drawn as a horizontal dashed line.
        bottom: lower end of the scale, such as 0 for a share; that of the values unless given.
    """
    axes = np.atleast_2d(axes)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    if not panels:
        return axes
    used, columns = axes.flat[: len(panels)], axes.shape[1]
    kinds = list(dict.fromkeys(kind for curves in panels.values() for kind in curves))
    looks = {
        kind: {"color": colour, "linestyle": dashes, "marker": marker, "markersize": 3.5, "linewidth": 1.2}
        for kind, colour, dashes, marker in zip(
            kinds, itertools.cycle(COLOURS), itertools.cycle(DASHES), itertools.cycle(MARKERS), strict=False
        )
    }
    for ax in used[1:]:
        ax.sharey(used[0])
    for i, (ax, (title, curves)) in enumerate(zip(used, panels.items(), strict=True)):
        for kind, drawn in curves.items():
            for steps, values in drawn:
                ax.plot(steps, values, alpha=0.8, clip_on=False, **looks[kind])
        if reference is not None:
            ax.axhline(reference, color=GREY, linestyle="--", linewidth=1)
        if i % columns:
            ax.tick_params(labelleft=False)
        else:
            ax.set_ylabel(ylabel)
        if i + columns >= len(panels):
            ax.set_xlabel("training step")
        ax.xaxis.set_major_locator(MaxNLocator(2 if columns > 2 else 5, steps=[1, 2, 5, 10], integer=True))
        ax.set_title(_wrapped(title))
    used[0].set_ylim(bottom=bottom)
    handles = [Line2D([], [], label=_wrapped(kind), **look) for kind, look in looks.items()]
    if reference is not None:
        handles.append(Line2D([], [], color=GREY, linestyle="--", linewidth=1, label=f"reference: {reference:g}"))
    _legend(axes[0, -1] if len(panels) >= columns else used[-1], handles)
    return axes


def twin_maps(images: Iterable, maps: Sequence[Mapping[str, ArrayLike]], axes: np.ndarray, label: str, labels: Sequence = ()):
    """Rows of an image and the same map of several models, such as twins, on one colour scale a row.

    Args:
        images: one a row, PIL or (height, width, 3).
        maps: one mapping a row: title, such as a number of registers -> (patch row, patch column). Those of the first row are
            written.
        axes: (row, 1 + map).
        label: of the colour bars.
        labels: one a row, written beside the image.
    """
    axes = np.asarray(axes).reshape(len(maps), -1)
    for row, image, grids in zip(axes, images, maps, strict=True):
        row[0].imshow(np.asarray(image))
        values = {title: np.asarray(grid) for title, grid in grids.items()}
        scale = _scale(np.concatenate([grid.ravel() for grid in values.values()]))
        for ax, grid in zip(row[1:], values.values(), strict=True):
            drawn = ax.imshow(grid, cmap="viridis", interpolation="nearest", norm=scale)
        _colourbar(drawn, row[-1], label=label)
    for ax, title in zip(axes[0], ("image", *maps[0]), strict=True):
        ax.set_title(_wrapped(title, 18))
    for ax, text in zip(axes[:, 0], labels, strict=False):
        ax.set_ylabel(_wrapped(text, 18), fontsize="small")
    _bare(axes)
    return axes


def found_boxes(image, truth: ArrayLike, found: Mapping[str, ArrayLike], ax: Axes, legend: bool = True) -> Axes:
    """An image with its true boxes in black and the found ones in colour.

    Args:
        image: PIL or (height, width, 3).
        truth: (object, 4), may be empty; boxes are xmin, ymin, xmax, ymax from 0 to 1 of the picture.
        found: name, such as the method -> one box (4,).
        legend: below the picture; one for several pictures is enough.
    """
    pixels = np.asarray(image)
    ax.imshow(pixels)
    # True boxes are drawn wider than found ones, and these differ in their dashes: boxes that coincide are all seen.
    true = {"color": "black", "linewidth": 3, "path_effects": [withStroke(linewidth=4.4, foreground="white")]}
    for box in (truth := np.asarray(truth, dtype=float).reshape(-1, 4)):
        _box(ax, box, pixels.shape, **true)
    handles = [Line2D([], [], label="true box", **true)] if len(truth) else []
    edged = {"linewidth": 1.8, "path_effects": [withStroke(linewidth=2.8, foreground="black")]}
    for (name, box), colour, dashes in zip(found.items(), itertools.cycle(COLOURS), itertools.cycle(DASHES), strict=False):
        _box(ax, np.asarray(box), pixels.shape, color=colour, linestyle=dashes, **edged)
        handles.append(Line2D([], [], color=colour, linestyle=dashes, label=_wrapped(name), **edged))
    if legend:
        ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=0.4, handlelength=2.4)
    _bare(ax)
    return ax


def panels(images: Sequence[Mapping], axes: np.ndarray, norms: Iterable[str] = (), labels: Sequence[str] = ()) -> np.ndarray:
    """Rows of small pictures under the titles of their columns; each map has its own linear colour scale.

    Args:
        images: one mapping a row: title -> (row, column) for a map, or PIL or (height, width, 3) for a picture, whose floats are
            clipped to [0, 1]. The titles of the first row are written.
        axes: (row, column).
        norms: titles of the maps with a colour bar.
        labels: one a row, such as the model, written beside the first picture.
    """
    axes, norms = np.asarray(axes).reshape(len(images), -1), set(norms)
    for row, pictures in zip(axes, images, strict=True):
        for ax, (title, values) in zip(row, pictures.items(), strict=True):
            values = np.asarray(values)
            if values.ndim == 3:
                ax.imshow(values if values.dtype == np.uint8 else values.clip(0, 1))
                continue
            drawn = ax.imshow(values, cmap="viridis", interpolation="nearest", norm=_at_least(values))
            if title in norms:
                _colourbar(drawn, ax).ax.tick_params(labelsize="small")
    for ax, title in zip(axes[0], images[0], strict=True):
        ax.set_title(title)
    for ax, label in zip(axes[:, 0], labels, strict=False):
        ax.set_ylabel(_wrapped(label, 18), fontsize="small")
    _bare(axes)
    return axes


def sweep(
    table: ArrayLike,
    rows: Sequence,
    columns: Sequence,
    ax: Axes,
    label: str = "",
    xlabel: str = "",
    ylabel: str = "",
    largest: float | None = None,
) -> Axes:
    """A heat map with its numbers in the cells; nan is left blank.

    Args:
        table: (row, column).
        rows, columns: their names.
        label: of the colour bar.
        largest: end of a colour scale from 0 that several tables share; the table's own smallest and largest unless given.
    """
    table, names = np.asarray(table), [_wrapped(str(name)) for name in rows]
    top = np.abs(table[np.isfinite(table)]).max(initial=0) if largest is None else largest
    decimals = max(0, 2 - math.floor(math.log10(top))) if top > 0 else 0  # three digits for the largest
    sns.heatmap(
        table,
        annot=True,
        fmt=f".{decimals}f",
        annot_kws={"fontsize": 8},
        cmap="viridis",
        vmin=None if largest is None else 0,
        vmax=largest or None,
        cbar_kws={"label": label, "fraction": 0.046, "pad": 0.03},
        xticklabels=columns,
        yticklabels=names,
        ax=ax,
    )
    longest = max(ax.texts, key=lambda text: len(text.get_text()), default=None)  # measuring each takes seconds
    widest = 0 if longest is None else longest.get_window_extent().width
    upright = widest > 0.9 * ax.get_window_extent().width / table.shape[1]
    for text in ax.texts:
        column, row = map(int, text.get_position())
        # Black and white have equal contrast (4.6) with a luminance of 0.18; seaborn keeps white up to 0.4.
        light = sns.utils.relative_luminance(ax.collections[0].to_rgba(table[row, column])) > 0.18
        text.set(color="black" if light else "white", rotation=90 if upright else 0)
    ax.tick_params(axis="y", rotation=0)
    ax.tick_params(axis="x", labelsize="small")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


def verdict_table(table: Mapping[str, Mapping[str, str]], ax: Axes) -> Axes:
    """Verdicts by name on coloured cells, one row a claim and one column a way to judge it.

    Args:
        table: row -> column -> verdict, the same columns in every row.
    """
    columns = list(next(iter(table.values())))
    ax.imshow([[VERDICTS[row[column]] for column in columns] for row in table.values()], aspect="auto")
    for i, row in enumerate(table.values()):
        for j, column in enumerate(columns):
            ax.text(j, i, row[column], ha="center", va="center", fontsize=8)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(table)), table)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    _make_room(ax, 0.28 * len(table))
    return ax


def drawn(figure: Figure) -> list[dict]:
    """The numbers that a figure shows, for each of its axes but colour bars, as JSON data (see `numbers.condensed`).

    Each has its axis (title and labels), and where it has any: lines, segments (the intervals of error bars and curves), points,
    steps (histograms), boxes, images, meshes (heat maps), and texts but numbers, which a heat map repeats.
    """
    return [_data(ax) for ax in figure.axes if ax.get_label() != "<colorbar>"]


def _data(ax: Axes) -> dict:
    caps = {line for bars in ax.containers if isinstance(bars, ErrorbarContainer) for line in bars.lines[1]}
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    sides = np.array([[*box.get_xy(), box.get_width(), box.get_height()] for box in boxes]).reshape(-1, 4)
    segments = [[path.vertices for path in drawn.get_paths()] for drawn in ax.collections if isinstance(drawn, LineCollection)]
    maps = [image.get_array() for image in ax.images]
    found = {
        "lines": _points([line.get_xydata() for line in ax.lines if line not in caps], 1),
        "segments": _points([np.concatenate(ends) for ends in segments if ends], 2),
        "points": _points([drawn.get_offsets() for drawn in ax.collections if isinstance(drawn, PathCollection)], 1),
        "steps": [
            {name: condensed(x) for name, x in zip(("heights", "edges"), patch.get_data(), strict=False)}
            for patch in ax.patches
            if isinstance(patch, StepPatch) and not patch.get_fill()  # what is filled has an outline too
        ],
        "boxes": dict(zip(("x", "y", "width", "height"), map(condensed, sides.T), strict=True)) if boxes else {},
        "images": [condensed(values, whole=values.ndim == 2) for values in maps],
        "meshes": [condensed(drawn.get_array()) for drawn in ax.collections if isinstance(drawn, QuadMesh)],
        "texts": [text.get_text() for text in ax.texts if re.search(r"[^\W\d]", text.get_text())],
    }
    axis = {"title": ax.get_title(), "x": ax.get_xlabel(), "y": ax.get_ylabel()}
    return {"axis": axis, **{kind: data for kind, data in found.items() if data}}


def _points(drawn: Sequence[np.ndarray], few: int) -> list[dict]:
    """x and y of each (point, 2); those of at most `few` points, such as the marks of a forest, as one."""
    small = [points for points in drawn if len(points) <= few]
    joined = [np.concatenate(small)] if small else []
    large = [points for points in drawn if len(points) > few]
    return [{"x": condensed(points[:, 0]), "y": condensed(points[:, 1])} for points in joined + large]


def _box(ax: Axes, box: np.ndarray, shape: tuple[int, ...], **drawing) -> Rectangle:
    """The outline of a box in relative coordinates on a picture of this shape, seen whole at the picture's edge too."""
    low, high = box.reshape(2, 2) * (shape[1], shape[0]) - 0.5
    return ax.add_patch(Rectangle(low, *(high - low), fill=False, clip_on=False, **drawing))


def _rows(ax: Axes, names: Sequence[str], lines: float) -> None:
    """One row a model from the top, `lines` of text high or as high as the longest name."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(max(len(names), 1) - 0.5, -0.5)  # one empty row where there is no model
    ax.grid(axis="y", alpha=0.3)
    longest = max((name.count("\n") for name in names), default=0)
    _make_room(ax, len(names) * max(longest + 1.5, lines) * 0.16)


def _interval(ax: Axes, value, position: float, upright: bool, **drawing) -> None:
    """A point with its interval, at `position` on the other axis."""
    ends = [(abs(value.value - value.low),), (abs(value.high - value.value),)] if None not in (value.low, value.high) else None
    x, y = (position, value.value) if upright else (value.value, position)
    ax.errorbar(x, y, **{"yerr" if upright else "xerr": ends}, linestyle="", capsize=3, markersize=6, **drawing)


def _quantity(values: Sequence) -> str:
    """The label of the axis that shows these values: name and unit."""
    names = {f"{value.name.replace('_', ' ')} ({value.unit})" if value.unit else value.name.replace("_", " ") for value in values}
    if len(names) > 1:
        raise ValueError(f"one axis shows one quantity, not {', '.join(sorted(names))}; draw one figure for each")
    return names.pop() if names else ""


def _scale(values: np.ndarray) -> Normalize:
    """A logarithmic colour scale where the values span a decade, else a linear one."""
    low, high = values.min(), values.max()
    return LogNorm(low, high) if 0 < 10 * low < high else Normalize(low, high)


def _at_least(values: np.ndarray) -> Normalize:
    """A linear colour scale that does not magnify rounding: a map that is flat has one colour."""
    low, high = float(values.min()), float(values.max())
    reach = FLAT * max(abs(low), abs(high)) if high - low < FLAT * max(abs(low), abs(high)) else 0
    return Normalize(low - reach, high + reach)


def _colourbar(drawn: AxesImage, axes: Axes | list[Axes], label: str = "") -> Colorbar:
    bar = drawn.get_figure().colorbar(drawn, ax=axes, fraction=0.046, pad=0.03, label=label)
    logarithmic = isinstance(drawn.norm, LogNorm)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if logarithmic else MaxNLocator(4))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    if logarithmic:
        bar.ax.yaxis.set_major_formatter(PLAIN)
    return bar


def _log_axis(ax: Axes, which: str, formatter: FuncFormatter = PLAIN) -> None:
    """A logarithmic axis with plain numbers, more ticks the fewer decades it spans, and at least a factor of 5 wide."""
    axis: Axis = getattr(ax, f"{which}axis")
    ax.set(**{f"{which}scale": "log"})
    low, high = axis.get_view_interval()
    widen = max(1.0, math.sqrt(5 / (high / low)))
    ax.set(**{f"{which}lim": (low / widen, high * widen)})
    decades = math.log10(high / low)
    subs = range(1, 10) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(formatter)
    axis.set_minor_locator(NullLocator())


def _legend(ax: Axes, handles: list) -> None:
    """A legend to the right of the axes, where it covers no data."""
    legend = ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, handlelength=1.6, labelspacing=0.7
    )
    _make_room(ax, legend.get_window_extent().height / ax.figure.dpi)


def _make_room(ax: Axes, inches: float) -> None:
    """Make the figure taller where its axes are lower than `inches`: many models with long names must not be clipped."""
    height = ax.figure.get_figheight()
    ax.figure.set_figheight(height + max(0, inches - ax.get_position().height * height))


def _wrapped(text: str, width: int = 22) -> str:
    """`text` in lines of at most `width` characters, broken at spaces or after the '_', '.', '/' and '-' of a model name."""
    lines = [""]
    for piece in re.findall(r"[^\s_./-]*[\s_./-]?", text):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _bare(axes: np.ndarray | Axes) -> None:
    for ax in np.ravel(axes):
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)


if (shell := get_ipython()) is not None:
    shell.display_formatter.mimebundle_formatter.for_type(Figure, lambda figure: {FIGURE: told(drawn(figure))})
