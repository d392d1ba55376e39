"""A gallery: norm and attention of each patch in the last block, model by model, on the same
photographs.

It is made of what `python -m helpers explore` stored: `patches` of a model and of its test-time
register, and `maps` of others.
"""

import base64
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from PIL import Image

from helpers.book.explore import read
from helpers.names import short_name
from helpers.quantised import dequantise

# The ends of the logarithmic colour scales; what is beyond has the colour of the end.
SCALES = {"norms": (0.5, 30.0), "attention": (0.001, 0.2)}
SHIFTED = "unit shifted to a test-time register"


class Tile(NamedTuple):
    """A map as a picture, a pixel a patch, and what it shows in words."""

    picture: str
    says: str


class Row(NamedTuple):
    """A model, and the pair of maps of each photograph."""

    name: str
    model: str
    pairs: list[tuple[Tile, Tile]]


def values(root: Path) -> dict[str, Any]:
    """What the template is filled in from: models with outliers first, then by name.

    Raises:
        ValueError: a file was changed after it was written.
    """
    folder = root / "book" / "explore"
    measured = [read(path) for path in sorted(folder.glob("patches-*.json"))]
    others = [read(path) for path in sorted(folder.glob("maps-*.json"))]
    rows = []
    for one in sorted(measured, key=lambda one: one["neuron"] is None):
        norms, attention = (dequantise(one[kind])[:, :, -1] for kind in SCALES)
        for state, said in (("before", ""), ("moved", f", {SHIFTED}")):
            if state in one["states"]:
                at = one["states"].index(state)
                rows.append(_row(one, said, norms[at], attention[at]))
    for one in others:
        rows.append(_row(one, "", *(dequantise(one[kind]) for kind in SCALES)))
    photographs = measured[0]["photographs"] if measured else []
    scale = [] if not rows else [_colour(float(level)) for level in np.linspace(1, 0, 6)]
    return {"gallery": rows, "gallery_photographs": photographs, "gallery_scale": scale} | {
        "gallery_ends": SCALES
    }


def _row(one: Mapping, said: str, norms: np.ndarray, attention: np.ndarray) -> Row:
    medians = np.median(norms, axis=-1, keepdims=True)
    grid = one["grid"]
    pairs = [
        (
            _tile(own, grid, "norms", f"largest patch norm {own.max():.1f} times the median"),
            _tile(seen, grid, "attention", f"most attended patch {100 * seen.max():.1f} %"),
        )
        for own, seen in zip(norms / medians, attention, strict=True)
    ]
    return Row(short_name(one["model"]) + said, one["model"], pairs)


def _tile(values: Float[np.ndarray, " patch"], grid: list[int], kind: str, says: str) -> Tile:
    rows, columns = grid
    row, column = divmod(int(values.argmax()), columns)
    in_corner = row in (0, rows - 1) and column in (0, columns - 1)
    low, high = np.log(SCALES[kind])
    levels = (np.log(np.maximum(values, 1e-9)) - low) / (high - low)
    file = BytesIO()
    Image.fromarray(_pixels(levels.reshape(rows, columns))).save(file, "PNG", optimize=True)
    picture = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return Tile(picture, f"{says}, {'in a corner' if in_corner else 'not in a corner'}")


def _pixels(levels: Float[np.ndarray, "..."]) -> np.ndarray:
    """The colours of levels from 0 to 1, as 8-bit RGB."""
    from matplotlib import colormaps  # here, since it takes long to import

    return colormaps["viridis"](levels.clip(0, 1), bytes=True)[..., :3]


def _colour(level: float) -> str:
    return "#" + bytes(_pixels(np.array([level]))[0].tolist()).hex()
