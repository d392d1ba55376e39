"""How values are distributed: norms, similarities, blocks."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike

from helpers.figures.style import (
    COLOURS,
    DASHES,
    GREY,
    NORM,
    REFERENCE,
    add_legend,
    cycled,
    key,
    log_axis,
    one,
    rows,
    write,
)
from helpers.names import shortened


def norm_histogram(
    norms: Mapping[str, ArrayLike],
    thresholds: Mapping[str, float] = MappingProxyType({}),
    ax: Axes | None = None,
    rule: str = "",
    medians: float = 0,
) -> Axes:
    """Share of patch tokens per norm, one outline a model, with its outlier threshold dashed.

    Args:
        norms: model -> patch norms, any shape, positive.
        thresholds: model -> outlier threshold; a model may lack one.
        rule: how the thresholds were found, such as 'percentile:98', for the legend.
        medians: so many of a model's medians are marked above, in its colour.
    """
    ax = one(ax)
    norms = {model: np.asarray(values).ravel() for model, values in norms.items()}
    every = np.concatenate([*norms.values()])
    low, high = every.min(), every.max()
    edges = np.geomspace(low, max(high, 1.01 * low), 81)
    for (model, values), colour, dashes in cycled(norms.items(), COLOURS, DASHES):
        heights = np.histogram(values, edges)[0] / values.size
        ax.stairs(heights, edges, color=colour, linewidth=1.6, linestyle=dashes, label=model)
        if model in thresholds:
            ax.axvline(thresholds[model], color=colour, linestyle="--", linewidth=1)
        if medians:
            place = {"transform": ax.get_xaxis_transform(), "clip_on": False}
            ax.scatter(medians * np.median(values), 1, marker="v", color=colour, **place)
    ax.set(xlabel=NORM, ylabel="patch tokens per bin (%)", yscale="log")
    log_axis(ax, "x")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}"))
    label = f"outlier threshold\n({rule})" if rule else "outlier threshold"
    handles = ax.get_legend_handles_labels()[0]
    handles += [key(label, **REFERENCE)] if thresholds else []
    if medians:
        handles.append(key(f"{medians:g} medians", color=GREY, linestyle="", marker="v"))
    add_legend(ax, handles)
    return ax


def norm_histograms(norms: Mapping[str, Mapping[str, ArrayLike]]) -> np.ndarray:
    """`norm_histogram`, a panel a model with its name: model -> name -> patch norms."""
    axes = rows(len(norms), each=2.6)
    for ax, (model, several) in zip(axes.flat, norms.items(), strict=True):
        norm_histogram(several, ax=ax)
        write(ax.yaxis.label, f"{model}, patch tokens per bin (%)")
    return axes


def similarity_densities(
    groups: Mapping[str, tuple[ArrayLike, ArrayLike]],
    names: tuple[str, str] = ("normal patches", "outlier patches"),
) -> np.ndarray:
    """Density of the cosine similarity to neighbouring patches (Darcet et al., Fig. 5a), a panel a
    model: similarities of normal patches and of outliers, or of groups with other `names`, any
    shape; nan are left out and a group may be empty.
    """
    if not groups:
        return np.array([])
    axes = rows(len(groups), each=2.6)
    for ax, (model, both) in zip(axes.flat, groups.items(), strict=True):
        named = zip(names, map(np.asarray, both), strict=True)
        kinds = {name: values[np.isfinite(values)] for name, values in named}
        edges = np.histogram_bin_edges(np.concatenate([*kinds.values()]), 40)
        for (name, values), colour in zip(kinds.items(), COLOURS, strict=False):
            heights = np.zeros(len(edges) - 1)
            if values.size:
                heights = np.histogram(values, edges, density=True)[0]
            label = f"{name}\n(n = {values.size:,})"
            ax.stairs(heights, edges, color=(*colour, 0.35), fill=True)
            ax.stairs(heights, edges, color=colour, linewidth=1.6, label=label)
        ax.set(
            xlabel="mean cosine similarity to the neighbouring patches,\nafter patch embedding",
            ylabel="density",
        )
        ax.set_title(*shortened([model]))
        add_legend(ax, ax.get_legend_handles_labels()[0], beside=True)
    return axes


def onset_histogram(onset: Mapping[str, ArrayLike], depth: int, ax: Axes | None = None) -> Axes:
    """Share of images per block in which outliers start, bars side by side for the models: the
    first block of each image (image,), -1 where there is none; `depth` is that of the deepest.
    """
    ax = one(ax)
    positions = np.array([*range(depth), depth + 1])  # the last one is 'none', set apart
    width = 0.8 / len(onset)
    for i, ((model, blocks), colour) in enumerate(cycled(onset.items(), COLOURS)):
        blocks = np.asarray(blocks)
        shares = np.bincount(np.where(blocks < 0, depth, blocks), minlength=depth + 1) / max(
            blocks.size, 1
        )
        ax.bar(positions + (i + 0.5) * width - 0.4, shares, width, color=colour, label=model)
    ticks = range(0, depth, math.ceil(depth / 12))
    ax.set_xticks([*ticks, depth + 1], [*map(str, ticks), "none"])
    ax.set(xlabel="block in which outlier patches start (0 = first)", ylabel="share of images")
    add_legend(ax, ax.get_legend_handles_labels()[0])
    return ax
