"""The look of all figures, and what several of them draw alike."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from helpers.names import shortened, with_conditions

# Each has a contrast of 3 with white and with a dark page, and each pair stays apart without the
# sense for red and green.
COLOURS = [
    to_rgb(colour) for colour in ("#0173b2", "#d08000", "#029e73", "#c8102e", "#b565a7", "#2f9bd8")
]
MARKERS = "osD^vP*X"
DASHES = ("-", "--", ":")
# Text and axes: legible on white and on a dark page; the book draws them in the colour of its text.
INK = "#767676"
GREY = INK
# The line of a margin, or of a value to compare with.
REFERENCE = {"color": GREY, "linestyle": "--", "linewidth": 1}
TICKS = 8  # points of a curve up to which each has its tick
FLAT = 1e-3  # relative difference below which a map or curve counts as flat
NORM = "patch L2 norm before the final LayerNorm"
# The colours of the verdicts in the book (book.css), of the text on them, and the shapes that tell
# them apart without a colour.
VERDICTS = {
    "supported": ("#0b5fa5", "white", "\N{BLACK CIRCLE}"),
    "refuted": ("#b8400b", "white", "\N{MULTIPLICATION X}"),
    "does not extend": ("none", INK, "\N{RIGHTWARDS ARROW WITH STROKE}"),
    "inconclusive": ("#f2c94c", "#1f1a00", "\N{CIRCLE WITH LEFT HALF BLACK}"),
    "not applicable": ("#57606a", "white", "\N{EN DASH}"),
    "not run": ("none", INK, "\N{WHITE CIRCLE}"),
    "not tested": ("none", INK, "?"),
}
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
# Inches of a figure with one column: its text is still read where a phone shows it 350 pixels wide.
WIDTH = 5.0
WIDE = 9.2  # of a figure as wide as the text of a page, which a phone scrolls
SMALL = 9.5  # points: 9 pixels on such a phone
# The look of all figures: no plate behind them, text as text, constrained layout.
STYLE = {
    "figure.dpi": 100,
    "figure.figsize": (WIDTH, 3.4),
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    **{f"{part}.color": INK for part in ("text", "xtick", "ytick", "grid")},
    **dict.fromkeys(("axes.labelcolor", "axes.edgecolor", "patch.edgecolor"), INK),
    # What figures say comes from names and data: a dollar in it begins no formula.
    "text.parse_math": False,
    "font.size": 10,
    "font.sans-serif": ["DejaVu Sans"],  # each text of a drawing repeats this list
    "axes.titlesize": 10,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "image.composite_image": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "registers",  # the same figure is the same file
}


def rows(
    count: int, columns: int = 1, each: float = 2.2, more: float = 0.0, wide: bool = False
) -> np.ndarray:
    """Axes (row, column) of a new figure, `each` inches for a row and `more` around them.

    As wide as a phone, or as a page's text with several columns or where it is `wide`.
    """
    width = WIDE if wide or columns > 1 else WIDTH
    return plt.subplots(count, columns, figsize=(width, more + each * count), squeeze=False)[1]


def one(ax: Axes | None, height: float = 3.3) -> Axes:
    """The axis that was given, else that of a new figure of this height in inches."""
    return rows(1, each=height)[0, 0] if ax is None else ax


def many(axes: np.ndarray | None, count: int, columns: int = 1, **size: float) -> np.ndarray:
    """The axes that were given, else `rows` for `count` panels in so many columns."""
    return rows(math.ceil(count / columns), columns, **size) if axes is None else axes


def write(text: Text, whole: str, width: int = 22) -> None:
    """Show a title or the label of an axis, with models by their short names (`shortened`).

    `helpers.figures.drawn` gives the whole of it.
    """
    whole = with_conditions(whole)
    # A long name was broken at its own marks.
    joined = re.sub(r"(?<=\w[_-])\n|(?<=\w\.)\n(?=[a-z])", "", whole)
    joined = joined.replace("\n", " " if re.search("[ ,]", whole) else "")
    (short,) = shortened([joined])
    text.set_text(whole if short == joined else wrapped(short, width))
    text.set_label(whole)


def say(ax: Axes, sentence: str) -> Axes:
    """A sentence in place of a plot that would be empty."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, wrapped(sentence, 60), transform=ax.transAxes, ha="center", va="center")
    return ax


def cycled(items: Iterable, *looks: Sequence) -> Iterator[tuple]:
    """Each item with its colour, marker or dashes, which begin anew where they end."""
    return zip(items, *map(itertools.cycle, looks), strict=False)


def key(label: str, **look) -> Line2D:
    """An entry of a legend that stands for no artist of its own."""
    return Line2D([], [], label=label, **look)


def name_beside(ax: Axes, model: str) -> None:
    """The name of a model beside the first of its panels, in small letters."""
    ax.set_ylabel("", fontsize=SMALL)
    write(ax.yaxis.label, model.replace(".", ".\n"))


def name_rows(ax: Axes, names: Sequence[str], lines: float) -> None:
    """One row a model from the top, `lines` of text high or as high as the longest name."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(axis="y", alpha=0.3)
    longest = max(name.count("\n") for name in names)
    make_room(ax, len(names) * max(longest + 1.5, lines) * 0.19)


def draw_interval(ax: Axes, value, position: float, **drawing) -> None:
    """A point with its interval, in the row `position`; dots are its single trainings."""
    for single, *_ in getattr(value, "trainings", ()) or ():
        dot = {"linestyle": "", "marker": ".", "markersize": 4, "alpha": 0.6}
        ax.plot(single, position, color=drawing["color"], **dot)
    ends = None
    if None not in (value.low, value.high):
        ends = [(abs(value.value - end),) for end in (value.low, value.high)]
    look = {"linestyle": "", "capsize": 3, "markersize": 6}
    ax.errorbar(value.value, position, xerr=ends, **look, **drawing)


def undefined(ax: Axes, position: float, **look) -> None:
    """The word in place of a point, in the middle of the row `position`."""
    place = {"xycoords": ("axes fraction", "data"), "ha": "center", "va": "center"}
    ax.annotate("undefined", (0.5, position), **place, **look)


def colour_scale(values: np.ndarray, linear: bool = False) -> Normalize:
    """A logarithmic colour scale where the values span a decade, else a linear one.

    It does not magnify rounding: values that are flat (`is_flat`) have one colour.
    """
    low, high = float(values.min()), float(values.max())
    if is_flat(values):
        reach = FLAT * max(abs(low), abs(high))
        return Normalize(low - reach, high + reach)
    return LogNorm(low, high) if 0 < 10 * low < high and not linear else Normalize(low, high)


def is_flat(values: ArrayLike) -> bool:
    """Whether all values are the same to a thousandth."""
    values = np.asarray(values, dtype=float)
    return bool(np.ptp(values) < FLAT * np.abs(values).max())


def add_colourbar(drawn: AxesImage, axes: Axes | list[Axes], label: str = "") -> Colorbar:
    """A narrow colour bar beside the axes, with few and plain numbers."""
    bar = drawn.get_figure().colorbar(drawn, ax=axes, fraction=0.046, pad=0.03, label=label)
    logarithmic = isinstance(drawn.norm, LogNorm)
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if logarithmic else MaxNLocator(4))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    if logarithmic:
        bar.ax.yaxis.set_major_formatter(PLAIN)
    return bar


def log_axis(ax: Axes, which: str) -> None:
    """A logarithmic axis with plain numbers, at least a factor of 5 wide."""
    axis: Axis = getattr(ax, f"{which}axis")
    ax.set(**{f"{which}scale": "log"})
    low, high = axis.get_view_interval()
    widen = max(1.0, math.sqrt(5 / (high / low)))
    ax.set(**{f"{which}lim": (low / widen, high * widen)})
    decades = math.log10(high / low)
    subs = range(1, 10) if decades < 1 else (1, 2, 5) if decades < 3 else (1,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_locator(NullLocator())


def add_legend(ax: Axes, handles: list, beside: bool = False) -> None:
    """A legend above the axes, or to their right where a title is above: it covers no data.

    It is drawn once a figure: above the first panel that has it, or beside the last of the first
    row. A single name, such as that of a threshold, stands at each of its panels.
    """
    if not handles:
        return
    width = 16 if beside else 22
    short = shortened(handle.get_label() for handle in handles)
    texts = ["\n".join(wrapped(line, width) for line in text.split("\n")) for text in short]
    look = {"handlelength": 1.6, "borderaxespad": 0, "labelspacing": 0.5, "columnspacing": 1.2}
    same = [other for other in ax.figure.axes if _said(other) == texts]
    if beside:
        for other in same:
            if other.get_subplotspec().rowspan != ax.get_subplotspec().rowspan:
                return
            other.get_legend().remove()
        drawn = ax.legend(handles, texts, loc="upper left", bbox_to_anchor=(1.01, 1), **look)
        make_room(ax, drawn.get_window_extent().height / ax.figure.dpi)
        return
    if same and len(texts) > 1:
        return
    columns = min(_columns_that_fit(ax, texts), len(texts))
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "ncols": columns}
    drawn = ax.legend(handles, texts, **place, **look)
    more = drawn.get_window_extent().height / ax.figure.dpi
    ax.figure.set_figheight(ax.figure.get_figheight() + more)


def _said(ax: Axes) -> list[str]:
    """The names in the legend of these axes."""
    return [text.get_text() for text in legend.get_texts()] if (legend := ax.get_legend()) else []


def _columns_that_fit(ax: Axes, texts: Sequence[str]) -> int:
    """How many columns of a legend fit the figure's width, at least one."""
    ticks = [line for tick in ax.get_yticklabels() for line in tick.get_text().split("\n")]
    longest = max(len(line) for text in texts for line in text.split("\n"))
    width = ax.figure.get_figwidth() / ax.get_gridspec().ncols
    names = max(map(len, ticks), default=0)
    return max(1, int((width - 0.2 - 0.085 * names) / (0.45 + 0.083 * longest)))


def make_room(ax: Axes, inches: float) -> None:
    """Make the figure taller where its axes are lower than `inches`, so that no name is clipped."""
    height = ax.figure.get_figheight()
    ax.figure.set_figheight(height + max(0, inches - ax.get_position().height * height))


def wrapped(text: str, width: int = 22) -> str:
    """`text` in lines of at most `width` characters, broken at spaces or after one of `_./-`."""
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
