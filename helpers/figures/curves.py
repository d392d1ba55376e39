"""What changes along blocks, settings or a training."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from helpers.figures.style import COLOURS, DASHES, FLAT, GREY, MARKERS, REFERENCE, TICKS, add_legend, cycled, log_axis, wrapped


def block_norms(
    norms: Mapping[str, ArrayLike], ax: Axes, quantiles: Sequence[str] = ("median", "98th percentile", "maximum")
) -> Axes:
    """Quantiles of the patch norm after each block, one colour a model, one line style a quantile. Logarithmic norm axis.

    Args:
        norms: model -> (quantile, block), in the order of `quantiles`; three at most.
    """
    for rows, colour in cycled(norms.values(), COLOURS):
        for row, linestyle in zip(np.asarray(rows), DASHES, strict=False):
            ax.plot(row, color=colour, linestyle=linestyle, linewidth=1.6, marker=".", markersize=4)
    ax.set(xlabel="block (0 = first)", ylabel="patch L2 norm after the block")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    log_axis(ax, "y")
    colours = [Line2D([], [], color=colour, label=wrapped(model)) for model, colour in cycled(norms, COLOURS)]
    kinds = [
        Line2D([], [], color=GREY, linestyle=linestyle, label=name) for name, linestyle in zip(quantiles, DASHES, strict=False)
    ]
    add_legend(ax, [*colours, *kinds])
    return ax


def response(curves: Mapping[str, tuple], ax: Axes, xlabel: str = "", ylabel: str = "", reference: float | None = None) -> Axes:
    """Curves with their intervals as bands, one colour and marker a curve.

    Args:
        curves: name -> (x, values, low, high), each (point,). low and high may be None; None or nan in any of them leaves a gap.
        reference: drawn as a horizontal dashed line.
    """
    for (name, drawn), colour, marker in cycled(curves.items(), COLOURS, MARKERS):
        x, values, low, high = (np.asarray(numbers, dtype=float) for numbers in drawn)  # None becomes nan
        ax.plot(x, values, color=colour, marker=marker, markersize=4, linewidth=1.6, label=wrapped(name))
        ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        ax.vlines(x, low, high, color=colour, alpha=0.5, linewidth=1)  # a point between gaps has no band
    if reference is not None:
        ax.axhline(reference, **REFERENCE, label=f"reference: {reference:g}")
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
    add_legend(ax, ax.get_legend_handles_labels()[0])
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
            ax.set_xlabel("training step")
        ax.xaxis.set_major_locator(MaxNLocator(2 if columns > 2 else 5, steps=[1, 2, 5, 10], integer=True))
        ax.set_title(wrapped(title))
    used[0].set_ylim(bottom=bottom)
    handles = [Line2D([], [], label=wrapped(kind), **look) for kind, look in looks.items()]
    if reference is not None:
        handles.append(Line2D([], [], **REFERENCE, label=f"reference: {reference:g}"))
    add_legend(axes[0, -1] if len(panels) >= columns else used[-1], handles)
    return axes
