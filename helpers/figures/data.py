"""The numbers behind a figure.

In a notebook, importing this module makes every figure carry them beside its picture.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from IPython import get_ipython
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, QuadMesh
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from matplotlib_inline.config import InlineBackend

from helpers.figures.svg import drawn_small
from helpers.summary import FIGURE, figure_text, summary


def drawn(figure: Figure) -> list[dict]:
    """The numbers that a figure shows, for each of its axes but colour bars, as JSON data.

    Long ones as `helpers.summary` gives them. Each has its axis (title and labels), and where it
    has any: lines, segments (the intervals of error bars and curves), points, steps (histograms),
    boxes, images, meshes (heat maps), and texts but numbers, which a heat map repeats.
    """
    return [_data(ax) for ax in figure.axes if ax.get_label() != "<colorbar>"]


def _data(ax: Axes) -> dict:
    bars = _of(ErrorbarContainer, ax.containers)
    caps = {line for bar in bars for line in bar.lines[1]}
    boxes = _of(Rectangle, ax.patches)
    sides = [[*box.get_xy(), box.get_width(), box.get_height()] for box in boxes]
    lines = _of(LineCollection, ax.collections)
    segments = [[path.vertices for path in drawn.get_paths()] for drawn in lines]
    names = "x", "y", "width", "height"
    points = [drawn.get_offsets() for drawn in _of(PathCollection, ax.collections)]
    # What is filled has an outline too.
    steps = [patch.get_data() for patch in _of(StepPatch, ax.patches) if not patch.get_fill()]
    maps = [image.get_array() for image in ax.images]
    written = [text.get_text() for text in ax.texts]
    parts = {
        "lines": _points([line.get_xydata() for line in ax.lines if line not in caps], 1),
        "segments": _points([np.concatenate(ends) for ends in segments if ends], 2),
        "points": _points(points, 1),
        "steps": [{"heights": summary(own.values), "edges": summary(own.edges)} for own in steps],
        "boxes": dict(zip(names, map(summary, np.transpose(sides)), strict=False)),  # or none
        "images": [summary(values, whole=values.ndim == 2) for values in maps],
        "meshes": [summary(mesh.get_array()) for mesh in _of(QuadMesh, ax.collections)],
        "texts": [text for text in written if re.search(r"[^\W\d]", text) and not _number(text)],
    }
    # A text that is shown in short (style.name) is told whole.
    shown = {"title": ax.title, "x": ax.xaxis.label, "y": ax.yaxis.label}
    axis = {which: text.get_label() or text.get_text() for which, text in shown.items()}
    return {"axis": axis, **{kind: data for kind, data in parts.items() if data}}


def _of(kind: type, artists: Iterable) -> list:
    return [artist for artist in artists if isinstance(artist, kind)]


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _points(drawn: Sequence[np.ndarray], few: int) -> list[dict]:
    """X and y of each (point, 2).

    Those of at most `few` points, such as the marks of a forest, as one.
    """
    small = [points for points in drawn if len(points) <= few]
    joined = [np.concatenate(small)] if small else []
    large = [points for points in drawn if len(points) > few]
    return [{"x": summary(points[:, 0]), "y": summary(points[:, 1])} for points in joined + large]


def shown(figure: Figure) -> dict[str, str] | None:
    """What a notebook stores of a figure: its numbers and its drawing; None where nothing is drawn,
    as where no model is left to draw.
    """
    if not figure.axes:
        return None
    return {FIGURE: figure_text(drawn(figure)), "image/svg+xml": drawn_small(figure)}


if (shell := get_ipython()) is not None:
    # A picture is SVG: sharp at any size, and its text can be read by more than eyes.
    InlineBackend.instance(parent=shell).figure_formats = set()
    shell.display_formatter.mimebundle_formatter.for_type(Figure, shown)
