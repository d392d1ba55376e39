"""Models and settings beside each other with their intervals, and tables."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from types import SimpleNamespace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike

from helpers.figures.style import (
    COLOURS,
    GREY,
    MARKERS,
    REFERENCE,
    SMALL,
    VERDICTS,
    add_legend,
    cycled,
    draw_interval,
    key,
    make_room,
    many,
    name_rows,
    one,
    rows,
    say,
    undefined,
    wrapped,
    write,
)
from helpers.names import shortened

DASHES = "--", ":", "-."  # of several thresholds in one panel


def forest(
    values: Sequence,
    thresholds: Mapping[str, Sequence[float | None]],
    ax: Axes,
    label: str,
) -> Axes:
    """One quantity of several models with its intervals, and the thresholds that judge them.

    Args:
        values: with model, value, low and high (None where undefined).
        thresholds: what the legend calls one -> where it lies for each value, None where it does
            not judge it.
        label: of the axis that shows the values.
    """
    for row, value in enumerate(values):
        if value.value is None:
            undefined(ax, row, color=GREY)
        else:
            draw_interval(ax, value, row, color=COLOURS[0], marker="o")
            place = {"xytext": (0, 5), "textcoords": "offset points"}
            written = value.value if abs(value.value) > 1e-6 else 0.0  # what is less is rounding
            text = f"{written:.3g}"
            ax.annotate(text, (value.value, row), ha="center", fontsize=SMALL, **place)
    for (legend, places), dashes in zip(thresholds.items(), cycle(DASHES), strict=False):
        look = REFERENCE | {"linestyle": dashes, "label": legend}
        if len({*places}) == 1:
            ax.axvline(places[0], **look)
            continue
        for row, place in enumerate(places):
            if place is not None:
                ax.plot([place, place], [row - 0.4, row + 0.4], **look)
                look["label"] = None
    name_rows(ax, [wrapped(model) for model in shortened(value.model for value in values)], 1.5)
    ax.set(xlabel=label)
    if max(map(abs, ax.get_xlim())) > 1e5:  # matplotlib would write 1e6 on the label
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    add_legend(ax, ax.get_legend_handles_labels()[0])
    return ax


def compared(
    groups: Mapping[str, Sequence],
    ax: Axes | None = None,
    label: str = "",
    reference: float | None = None,
    legend: str = "",
    named: bool = True,
) -> Axes:
    """Several quantities side by side for each model, one colour and marker a group.

    Args:
        groups: group -> one value a model, the same models in the same order in all groups; None in
            place of a value leaves the place empty. A group without values has its colour alone.
        reference: drawn as a vertical dashed line.
        legend: what the line is called; that it is a reference, unless given.
        named: whether the legend names the groups, too; once is enough where panels share them.
    """
    drawn = [group for group, values in groups.items() if values]
    rows = [row for row in zip(*map(groups.get, drawn), strict=True) if any(row)]
    ax = one(ax, 0.8 + 0.2 * len(rows) * len(drawn))
    if not rows:
        return say(ax, "There is nothing to draw: no model has these values.")
    models = [{value.model for value in row if value} for row in rows]
    names = shortened(model for (model,) in models)  # one a row
    columns = dict(zip(drawn, zip(*rows, strict=True), strict=True))
    handles = []
    for group, colour, marker in cycled(groups, COLOURS, MARKERS):
        handles.append(key(group, linestyle="", color=colour, marker=marker))
        for position, value in enumerate(columns.get(group, ())):
            if value is None:
                continue
            position += (drawn.index(group) - (len(drawn) - 1) / 2) * 0.64 / len(drawn)
            if value.value is None:
                undefined(ax, position, color=colour, fontsize=SMALL)
            else:
                draw_interval(ax, value, position, color=colour, marker=marker)
    handles = handles if named else []
    if reference is not None:
        called = legend or f"reference: {reference:g}"
        handles.append(ax.axvline(reference, **REFERENCE, label=called))
    name_rows(ax, [wrapped(name, 18) for name in names], max(1.5, 0.9 * len(drawn)))
    if (across := ax.get_gridspec().ncols) > 1:  # or labels of neighbours run into each other
        label = wrapped(label.replace("\n", " "), 72 // across)
    ax.set(xlabel=label)
    add_legend(ax, handles)
    return ax


def compared_settings(
    groups: Mapping[str, Mapping[str, object]],
    ax: Axes | None = None,
    label: str = "",
    reference: float | None = None,
    legend: str = "",
    named: bool = True,
) -> Axes:
    """`compared` with settings in place of models: group, such as the model -> setting -> estimate,
    where nan is undefined. A group may lack a setting, or have None for it.
    """

    def as_value(setting: str, estimate: object) -> SimpleNamespace | None:
        if estimate is None:
            return None
        ends = (getattr(estimate, end) for end in ("value", "low", "high"))
        value, low, high = (None if x is None or math.isnan(x) else x for x in ends)
        each = getattr(estimate, "trainings", ())
        return SimpleNamespace(model=setting, value=value, low=low, high=high, trainings=each)

    settings = dict.fromkeys(setting for own in groups.values() for setting in own)
    rows = {group: [as_value(x, own.get(x)) for x in settings] for group, own in groups.items()}
    return compared(rows, ax, label, reference, legend, named)


def _heat_map(
    table: np.ndarray, rows: Sequence, columns: Sequence, ax: Axes, label: str, largest: float
) -> None:
    """One panel of `heat_maps`, with its numbers in the cells."""
    import seaborn as sns  # here, since it takes half a second to import

    decimals = max(0, 2 - math.floor(math.log10(largest)))  # three digits for the largest
    sns.heatmap(
        table,
        annot=True,
        fmt=f".{decimals}f",
        annot_kws={"fontsize": SMALL},
        cmap="viridis",
        vmin=0,
        vmax=largest,
        cbar_kws={"label": label, "fraction": 0.046, "pad": 0.03},
        xticklabels=columns,
        yticklabels=[wrapped(name) for name in shortened(rows)],
        ax=ax,
    )
    # The longest alone: measuring each takes seconds.
    longest = max(ax.texts, key=lambda text: len(text.get_text()), default=None)
    widest = 0 if longest is None else longest.get_window_extent().width
    upright = widest > 0.9 * ax.get_window_extent().width / table.shape[1]
    for text in ax.texts:
        column, row = map(int, text.get_position())
        # Black and white have equal contrast (4.6) with a luminance of 0.18; seaborn keeps white up
        # to 0.4.
        light = sns.utils.relative_luminance(ax.collections[0].to_rgba(table[row, column])) > 0.18
        text.set(color="black" if light else "white", rotation=90 if upright else 0)
    ax.tick_params(axis="y", rotation=0)
    ax.tick_params(axis="x", labelsize=SMALL)


def verdict_tables(
    tables: Mapping[str, Mapping[str, Mapping[str, str]]],
    titles: Mapping[str, str],
    columns: Mapping[str, Mapping[str, str]],
) -> np.ndarray:
    """Verdicts on coloured cells, a panel a model.

    Args:
        tables: model -> row, such as a claim -> a way to judge it -> verdict.
        titles, columns: row, and model -> way to judge -> how it is called.
    """
    axes = rows(len(tables), each=2.8, wide=True)
    for ax, (model, table) in zip(axes.flat, tables.items(), strict=True):
        named = columns[model]
        for i, verdicts in enumerate(table.values()):
            for j, verdict in enumerate(map(verdicts.get, named)):
                colour, ink, shape = VERDICTS[verdict]
                # A gap between the cells; what was not run has a frame and no colour.
                edge = ink if colour == "none" else "none"
                look = {"facecolor": colour, "edgecolor": edge, "linewidth": 0.8}
                cell = FancyBboxPatch((j - 0.47, i - 0.44), 0.94, 0.88, "square,pad=0", **look)
                ax.add_patch(cell)
                written = {"ha": "center", "va": "center", "fontsize": SMALL, "color": ink}
                ax.text(j, i, f"{shape} {verdict}", **written)
        ax.set(xlim=(-0.5, len(named) - 0.5), ylim=(len(table) - 0.5, -0.5))
        ax.set_xticks(range(len(named)), [wrapped(column, 18) for column in named.values()])
        ax.set_yticks(range(len(table)), [wrapped(titles[row], 40) for row in table])
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        make_room(ax, 0.36 * len(table))
        ax.set_title(*shortened([model]))
    return axes


def heat_maps(
    tables: Mapping[str, ArrayLike],
    rows: Sequence,
    columns: Sequence,
    label: str = "",
    xlabel: str = "",
) -> np.ndarray:
    """Tables (row, column) with the same names as heat maps, on one colour scale from 0; nan where
    there is no number.
    """
    axes = many(None, len(tables), 2, each=2.9)
    arrays = [np.asarray(table) + 0.0 for table in tables.values()]  # no -0.0
    largest = float(max(np.nan_to_num(table).max(initial=0) for table in arrays)) or 1.0
    for ax, title, table in zip(axes.flat, tables, arrays, strict=False):
        _heat_map(table, rows, columns, ax, label, largest)
        ax.set_xlabel(xlabel)
        write(ax.title, title)
    for ax in axes.flat[len(tables) :]:
        ax.set_axis_off()
    return axes
