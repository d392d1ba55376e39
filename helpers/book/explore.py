"""The figure that a reader can change, of what `scripts/explore.py` stored in `book/explore`.

Its template holds the controls and a table; `_static/explore.js` draws the maps from the data in
the page: 16-bit numbers in base64, which a browser reads as well as Python does.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from helpers.book.render import render
from helpers.names import short_names

CLAIMS = ("nr1-artifacts", "nr7-block-maps", "tt3-attention-patterns")  # it shows what these ask
STATES = {
    "before": "as it is",
    "set to zero": "neuron set to zero",
    "moved": "neuron shifted to a test-time register",
    "empty token": "empty appended token",
}


def dequantise(quantised: Mapping) -> Float[np.ndarray, "..."]:
    """The numbers of 16-bit codes: `base64` (row-major, lowest byte first) of `shape`, times the
    `step`.
    """
    codes = np.frombuffer(base64.b64decode(quantised["base64"]), dtype="<u2")
    return codes.reshape(quantised["shape"]) * quantised["step"]


def fragment(root: Path) -> str:
    """The figure, to include in a page; '' where nothing is stored."""
    models = [*map(read, sorted((root / "book" / "explore").glob("patches-*.json")))]
    return render("explore.html.j2", **patches(models)) if models else ""


def read(path: Path) -> dict:
    """One file of measurements, its photographs with `jpeg` in base64."""
    found = json.loads(path.read_text(encoding="utf-8"))
    for one in found["photographs"]:
        one["jpeg"] = base64.b64encode(picture_of(path, one).read_bytes()).decode()
    return found


def picture_of(path: Path, photograph: Mapping) -> Path:
    """Where the picture of a photograph of a file of measurements lies."""
    return path.with_name(photograph["id"]).with_suffix(".jpg")


def patches(models: Sequence[Mapping]) -> dict:
    """Norm and [CLS] attention of each patch, by block and state of the model.

    A model with outliers comes first, at the block where they begin.
    """
    models = sorted(models, key=lambda one: one["neuron"] is None)
    first, norms = models[0], [dequantise(one["norms"]) for one in models]
    counts = np.array(first["outliers"])[0, 0]
    block = int((counts > 0).argmax()) if counts.any() else len(counts) - 1
    shown = norms[0][0, 0, block]
    over = np.flatnonzero(shown > 3 * first["medians"][0][block])
    fields = ("grid", "states", "medians", "outliers", "norms", "attention")
    data = {
        "scales": {
            "norms": _scale(norms),
            "attention": _scale([dequantise(one["attention"]) for one in models]),
        },
        "photographs": [one["jpeg"] for one in first["photographs"]],
        "states": STATES,
        "patch": int(shown.argmax()),
        "models": [
            {**{key: one[key] for key in fields}, "largest": _largest(one, own)}
            for one, own in zip(models, norms, strict=True)
        ],
    }
    return {
        "models": models,
        "names": short_names([one["model"] for one in models]),
        "data": data,
        "states": STATES,
        "block": block,
        "largest": norms[0][:, 0].max(-1),
        "corners": over.tolist() == first["corners"],
    }


def _scale(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    """The ends of a logarithmic scale: all but the lowest hundredth of what is positive."""
    values = np.concatenate([array[array > 0] for array in arrays])
    return float(f"{np.quantile(values, 0.01):.2g}"), float(f"{values.max():.3g}")


def _largest(one: Mapping, norms: np.ndarray) -> list[list[list[str]]]:
    """By photograph and block: the median norm, and the largest in each of STATES, in print."""
    columns = np.full((1 + len(STATES), *norms.shape[1:3]), np.nan)
    columns[0] = one["medians"]
    for state, largest in zip(one["states"], norms.max(-1), strict=True):
        columns[1 + list(STATES).index(state)] = largest
    printed = np.where(np.isnan(columns), "–", np.char.mod("%.1f", columns))
    return np.moveaxis(printed, 0, -1).tolist()
