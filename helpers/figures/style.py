"""The look of all figures, and what several of them draw alike."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, Normalize
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

COLOURS = sns.color_palette("colorblind")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", ":")
GREY = "0.4"
REFERENCE = {"color": GREY, "linestyle": "--", "linewidth": 1}  # the line of a margin, or of a value to compare with
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


def cycled(items: Iterable, *looks: Sequence) -> Iterator[tuple]:
    """Each item with its colour, marker or dashes, which begin anew where they end."""
    return zip(items, *map(itertools.cycle, looks), strict=False)


def name_rows(ax: Axes, names: Sequence[str], lines: float) -> None:
    """One row a model from the top, `lines` of text high or as high as the longest name."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(max(len(names), 1) - 0.5, -0.5)  # one empty row where there is no model
    ax.grid(axis="y", alpha=0.3)
    longest = max((name.count("\n") for name in names), default=0)
    make_room(ax, len(names) * max(longest + 1.5, lines) * 0.16)


def draw_interval(ax: Axes, value, position: float, upright: bool, **drawing) -> None:
    """A point with its interval, at `position` on the other axis."""
    ends = [(abs(value.value - value.low),), (abs(value.high - value.value),)] if None not in (value.low, value.high) else None
    x, y = (position, value.value) if upright else (value.value, position)
    ax.errorbar(x, y, **{"yerr" if upright else "xerr": ends}, linestyle="", capsize=3, markersize=6, **drawing)


def axis_label(values: Sequence) -> str:
    """The label of the axis that shows these values: name and unit."""
    names = {f"{value.name.replace('_', ' ')} ({value.unit})" if value.unit else value.name.replace("_", " ") for value in values}
    if len(names) > 1:
        raise ValueError(f"one axis shows one quantity, not {', '.join(sorted(names))}; draw one figure for each")
    return names.pop() if names else ""


def colour_scale(values: np.ndarray) -> Normalize:
    """A logarithmic colour scale where the values span a decade, else a linear one."""
    low, high = values.min(), values.max()
    return LogNorm(low, high) if 0 < 10 * low < high else Normalize(low, high)


def add_colourbar(drawn: AxesImage, axes: Axes | list[Axes], label: str = "") -> Colorbar:
    """A narrow colour bar beside the axes, with few and plain numbers."""
    bar = drawn.get_figure().colorbar(drawn, ax=axes, fraction=0.046, pad=0.03, label=label)
    logarithmic = isinstance(drawn.norm, LogNorm)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if logarithmic else MaxNLocator(4))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    if logarithmic:
        bar.ax.yaxis.set_major_formatter(PLAIN)
    return bar


def log_axis(ax: Axes, which: str, formatter: FuncFormatter = PLAIN) -> None:
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


def add_legend(ax: Axes, handles: list) -> None:
    """A legend to the right of the axes, where it covers no data."""
    beside = ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, handlelength=1.6, labelspacing=0.7
    )
    make_room(ax, beside.get_window_extent().height / ax.figure.dpi)


def make_room(ax: Axes, inches: float) -> None:
    """Make the figure taller where its axes are lower than `inches`: many models with long names must not be clipped."""
    height = ax.figure.get_figheight()
    ax.figure.set_figheight(height + max(0, inches - ax.get_position().height * height))


def wrapped(text: str, width: int = 22) -> str:
    """`text` in lines of at most `width` characters, broken at spaces or after the '_', '.', '/' and '-' of a model name."""
    lines = [""]
    for piece in re.findall(r"[^\s_./-]*[\s_./-]?", text):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def bare(axes: np.ndarray | Axes) -> None:
    """Axes without ticks and frames, for pictures."""
    for ax in np.ravel(axes):
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
