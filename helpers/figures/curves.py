"""What changes along blocks, settings or a training."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from helpers.figures.style import (
    COLOURS,
    DASHES,
    FLAT,
    GREY,
    MARKERS,
    REFERENCE,
    TICKS,
    add_legend,
    cycled,
    key,
    log_axis,
    many,
    one,
    say,
    wrapped,
    write,
)


def block_norms(
    norms: Mapping[str, ArrayLike],
    ax: Axes | None = None,
    names: Sequence[str] = ("median", "98th percentile", "maximum"),
) -> Axes:
    """The patch norm after each block, one colour a model, one line style a quantile or mean.

    `norms`: model -> (line, block), in the order of `names`; three at most.
    """
    ax, handles = one(ax), []
    for (model, rows), colour, marker in cycled(norms.items(), COLOURS, MARKERS):
        look = {"color": colour, "linewidth": 1.6, "marker": marker, "markersize": 3}
        for row, linestyle in zip(np.asarray(rows), DASHES, strict=False):
            ax.plot(row, linestyle=linestyle, **look)
        handles.append(key(model, **look))
    ax.set(xlabel="block (0 = first)", ylabel="patch L2 norm after the block")
    ax.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
    log_axis(ax, "y")
    for name, linestyle in zip(names, DASHES, strict=False):
        handles.append(key(name, color=GREY, linestyle=linestyle))
    add_legend(ax, handles, beside=True)
    return ax


def response(
    curves: Mapping[str, tuple],
    ax: Axes | None = None,
    xlabel: str = "",
    ylabel: str = "",
    reference: float | None = None,
    marked: Mapping[float, str] = MappingProxyType({}),
    log: bool = False,
) -> Axes:
    """Curves with their intervals as bands, one colour, line style and marker a curve.

    Args:
        curves: name -> (x, values, low, high), each (point,). low and high may be None; None or nan
            in any of them leaves a gap.
        reference: drawn as a horizontal dashed line.
        marked: x -> what is written below its tick.
        log: whether the scale of values is logarithmic.
    """
    ax = one(ax)
    if not curves:
        return say(ax, "There is nothing to draw: no model has this quantity.")
    for (name, drawn), colour, dashes, marker in cycled(curves.items(), COLOURS, DASHES, MARKERS):
        x, values, low, high = (np.asarray(part, dtype=float) for part in drawn)  # None: nan
        look = {"linestyle": dashes, "linewidth": 1.6, "marker": marker, "markersize": 4}
        ax.plot(x, values, label=name, color=colour, **look)
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        # A point between gaps has no band.
        ax.vlines(x, low, high, color=colour, alpha=0.5, linewidth=1)
    if reference is not None:
        ax.axhline(reference, **REFERENCE, label=f"reference: {reference:g}")
    places = sorted({float(x) for drawn in curves.values() for x in drawn[0]})
    if len(places) <= TICKS:
        ax.set_xticks(places, [f"{x:g}\n{marked.get(x, '')}".strip() for x in places])
    elif all(x.is_integer() for x in places):
        ax.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 5, 10], integer=True))
    if log:
        log_axis(ax, "y")
    low, high = ax.get_ylim()
    middle, reach = (low + high) / 2, FLAT * max(abs(low), abs(high))
    if high - low < reach:  # else a flat line would be magnified, with an offset on its axis
        ax.set_ylim(middle - reach, middle + reach)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    add_legend(ax, ax.get_legend_handles_labels()[0], beside=True)
    return ax


def trainings(
    panels: Mapping[str, Mapping[str, Sequence[tuple]]],
    axes: np.ndarray | None = None,
    ylabel: str = "",
    reference: float | None = None,
    bottom: float | None = None,
    legend: bool = True,
    xlabel: str = "training step",
) -> np.ndarray:
    """What was followed along trainings, one line each: a panel a recipe, a colour a kind of model.

    Args:
        panels: title -> kind, such as a number of registers -> one (steps, values) a training. All
            panels have one scale of values, each has its own scale of steps.
        axes: at least one a panel, (row, column); the first of the rest has the legend.
        reference: drawn as a horizontal dashed line.
        bottom: lower end of the scale, such as 0 for a share; that of the values unless given.
        legend: one for several calls is enough.
    """
    axes = np.atleast_2d(many(axes, max(1, len(panels)), 3, each=2.4))
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    if not panels:
        return axes
    used, columns = axes.flat[: len(panels)], axes.shape[1]
    kinds = list(dict.fromkeys(kind for curves in panels.values() for kind in curves))
    size = {"markersize": 3.5, "linewidth": 1.2}
    looks = {
        kind: {"color": colour, "linestyle": dashes, "marker": marker, **size}
        for kind, colour, dashes, marker in cycled(kinds, COLOURS, DASHES, MARKERS)
    }
    for ax in used[1:]:
        ax.sharey(used[0])
    for i, (ax, (title, curves)) in enumerate(zip(used, panels.items(), strict=True)):
        for kind, drawn in curves.items():
            for steps, values in drawn:
                ax.plot(steps, values, alpha=0.8, clip_on=False, **looks[kind])
        if reference is not None:
            ax.axhline(reference, **REFERENCE)
        if i % columns:
            ax.tick_params(labelleft=False)
        else:
            ax.set_ylabel(ylabel)
        if i + columns >= len(panels):
            ax.set_xlabel(xlabel)
        ax.xaxis.set_major_locator(
            MaxNLocator(2 if columns > 2 else 5, steps=[1, 2, 5, 10], integer=True)
        )
        write(ax.title, wrapped(title))
    used[0].set_ylim(bottom=bottom)
    handles = [key(kind, **look) for kind, look in looks.items()]
    if reference is not None:
        handles.append(key(f"reference: {reference:g}", **REFERENCE))
    if legend and len(panels) < axes.size:
        free = axes.flat[len(panels)]
        free.legend(handles, [wrapped(one.get_label()) for one in handles], loc="upper left")
    elif legend:
        add_legend(axes[0, -1], handles, beside=True)
    return axes


def curve(estimates: Iterable, x: Sequence[float] | None = None) -> tuple:
    """A curve for `response`: value, low and high of each estimate, against `x` or 0, 1, ..."""
    estimates = list(estimates)
    ends = ([getattr(estimate, end) for estimate in estimates] for end in ("value", "low", "high"))
    return range(len(estimates)) if x is None else x, *ends


def responses(
    curves: Mapping[str, Mapping[str, tuple]],
    axes: np.ndarray | None = None,
    xlabel: str = "",
    ylabel: str = "",
    marked: Mapping[float, str] = MappingProxyType({}),
    log: bool = False,
) -> np.ndarray:
    """`response`, one panel a model under its name, on one scale of values: model -> name -> (x,
    values, low, high).
    """
    axes = many(axes, len(curves), each=2.4)
    panels = np.ravel(axes)
    for ax, (model, drawn) in zip(panels, curves.items(), strict=True):
        response(drawn, ax, xlabel, ylabel, marked=marked, log=log)
        write(ax.title, model, 60)
    lows, highs = zip(*(ax.get_ylim() for ax in panels), strict=True)
    for ax in panels:
        ax.set_ylim(min(lows), max(highs))
    return axes


def block_curves(
    curves: Mapping[str, Sequence],
    ax: Axes | None = None,
    ylabel: str = "",
    title: str = "",
    reference: float | None = None,
) -> Axes:
    """A quantity after each block with its intervals: name -> one estimate a block."""
    write((ax := one(ax)).title, title, 60)
    drawn = {name: curve(estimates) for name, estimates in curves.items()}
    return response(drawn, ax, "block (0 = first)", ylabel, reference)


def sorted_images(
    per_image: Mapping[str, Float[Tensor, " image"]],
    ylabel: str = "",
    reference: float | None = None,
    points: int = 51,
    log: bool = False,
) -> Axes:
    """One number an image, the images sorted by it, from 0 to 100 % of them, as a `response`.

    So many quantiles (`points`) are taken in the precision of the numbers; images without one (nan)
    are left out.
    """
    curves = {}
    for name, x in per_image.items():
        levels = torch.linspace(0, 1, points, dtype=x.dtype)
        curves[name] = (100 * levels, x.nanquantile(levels), None, None)
    xlabel = "images (%), from the lowest to the highest"
    return response(curves, None, xlabel, ylabel, reference, log=log)
