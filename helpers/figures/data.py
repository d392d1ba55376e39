"""What a notebook stores of a figure: its numbers, summarised where they are many, and its SVG.

In a notebook, importing this module gives every figure the look of all, and its numbers beside its
picture.
"""

import base64
import io
import json
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
from IPython import get_ipython
from IPython.core.pylabtools import print_figure
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, QuadMesh
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from matplotlib_inline.config import InlineBackend
from numpy.typing import ArrayLike
from PIL import Image

from helpers.figures.style import STYLE
from helpers.files import digest_of

# the type of a figure's numbers among what a notebook's cell displays
FIGURE = "application/vnd.registers.figure+json"
LONG = 100  # numbers up to which an array is kept as it is
COLOURS = 256  # of a colour map: a picture with more, or in greys, is a photograph
QUALITY = 80  # of photographs
_LENGTHS = re.compile(r'( (?:d|x|y|width|height|points)=")([^"]*)(")')
# What draws nothing.
_SPARE = re.compile(r' transform="rotate\(-0 [^"]*"|(?<=<g) id="[^"]*"|(?<=>)\s+(?=<)')
_STYLE = re.compile(r' style="([^"]*)"')
_CLIP = re.compile(r"\bp[0-9a-f]{10}\b")  # the id of a clip, which tells where it lay in memory
_PICTURE = re.compile(r"data:image/png;base64,([^\"]*)")


def drawn(figure: Figure) -> list[dict]:
    """The numbers that a figure shows, for each of its axes but colour bars, as JSON data.

    Each has its axis (title and labels), and where it has any: lines, segments (the intervals of
    error bars and curves), steps (histograms), boxes, images, meshes (heat maps), and texts but
    numbers, which a heat map repeats.
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
    # What is filled has an outline too.
    steps = [patch.get_data() for patch in _of(StepPatch, ax.patches) if not patch.get_fill()]
    maps = [image.get_array() for image in ax.images]
    written = [text.get_text() for text in ax.texts]
    parts = {
        "lines": _points([line.get_xydata() for line in ax.lines if line not in caps], 1),
        "segments": _points([np.concatenate(ends) for ends in segments if ends], 2),
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
    """X and y of each (point, 2); those of at most `few` points, as of a forest, as one."""
    small = [points for points in drawn if len(points) <= few]
    joined = [np.concatenate(small)] if small else []
    large = [points for points in drawn if len(points) > few]
    return [{"x": summary(points[:, 0]), "y": summary(points[:, 1])} for points in joined + large]


def summary(values: ArrayLike, whole: bool = True) -> list | dict:
    """An array as JSON data: its numbers, or its moments where they are more than 100.

    What is not finite becomes None, and what is below 1e-9 of the largest number 0. A short vector
    is a list; else it is a dict of shape and numbers, or of shape, finite (how many are), mean, sd,
    min, max, the deciles q10 to q90 and order, the mean weighted with the place in the array, which
    another order changes. Of an array that is not kept `whole` only shape, finite, mean and sd.
    """
    x = np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)
    shape, flat = "x".join(map(str, x.shape)), x.ravel()
    finite = flat[np.isfinite(flat)]
    flat = np.where(np.abs(flat) < 1e-9 * np.abs(finite).max(initial=0), 0.0, flat)
    if whole and x.size <= LONG:
        numbers = [rounded(number) for number in flat]
        return numbers if x.ndim == 1 else {"shape": shape, "numbers": numbers}
    moments = {"finite": finite.size}
    if finite.size:
        moments |= {"mean": finite.mean(), "sd": finite.std()}
    if whole and finite.size:
        moments |= {"min": finite.min(), "max": finite.max()}
        moments |= {f"q{q}": np.quantile(finite, q / 100) for q in range(10, 100, 10)}
        moments["order"] = np.nanmean(
            np.where(np.isfinite(flat), flat, np.nan) * np.arange(1, flat.size + 1) / flat.size
        )
    return {"shape": shape, **{name: rounded(number) for name, number in moments.items()}}


def rounded(number: float | None) -> float | int | None:
    """A number with six significant digits; None for what is not finite, which JSON cannot hold."""
    if number is None or not math.isfinite(number):
        return None
    number = float(f"{number:.6g}")
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def shown(figure: Figure) -> dict[str, str] | None:
    """What a notebook stores of a figure: its numbers and its drawing; None without axes."""
    if not figure.axes:
        return None
    # One string, since nbformat gives each number of a list a line.
    numbers = json.dumps(drawn(figure), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return {FIGURE: numbers, "image/svg+xml": drawn_small(figure)}


def drawn_small(figure: Figure) -> str:
    """The figure as SVG without a date, lengths to a tenth of a point, pictures as WebP.

    The same figure is the same text.
    """
    about = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    svg = print_figure(figure, "svg", bbox_inches="tight", metadata=about)
    svg = _with_classes(re.sub(r"\s+", " ", _SPARE.sub("", svg)))
    clips = [*dict.fromkeys(_CLIP.findall(svg))]
    svg = _CLIP.sub(lambda found: f"clip{clips.index(found[0])}", svg)
    svg = _LENGTHS.sub(lambda found: found[1] + _tenths(found[2]) + found[3], svg)
    return _PICTURE.sub(lambda found: _as_webp(found[1]), svg)


def _with_classes(svg: str) -> str:
    """Each style once, as a class that is named after it: drawings on one page do not mix."""

    def name(style: str) -> str:
        return f"s{digest_of(style, length=6)}"

    rules = "".join(f".{name(style)}{{{style}}}" for style in dict.fromkeys(_STYLE.findall(svg)))
    svg = _STYLE.sub(lambda found: f' class="{name(found[1])}"', svg)
    return svg.replace("</style>", f"{rules}</style>", 1)


def _tenths(lengths: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: f"{round(float(found[0]), 1):g}", lengths)


def _as_webp(text: str) -> str:
    """A picture's data URI: a map exactly, a photograph nearly."""
    picture, file = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGBA"), io.BytesIO()
    colours = picture.getcolors(COLOURS)
    is_map = colours is not None and any(len({*colour[:3]}) > 1 for _, colour in colours)
    picture.save(
        file, "webp", lossless=is_map, exact=is_map, quality=100 if is_map else QUALITY, method=6
    )
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"


if (shell := get_ipython()) is not None:
    plt.rcParams.update(STYLE)
    # A picture is SVG: sharp at any size, and its text can be read by more than eyes.
    InlineBackend.instance(parent=shell).figure_formats = set()
    shell.display_formatter.mimebundle_formatter.for_type(Figure, shown)
