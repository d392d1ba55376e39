"""The two figures that a reader can change, of what `scripts/explore.py` stored in `book/explore`.

Their templates hold the controls and tables; `_static/explore.js` draws the maps from the data in
the page: 16-bit numbers in base64, which a browser reads as well as Python does.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from helpers import names
from helpers.book.render import amount, render
from helpers.claims.criteria import Value
from helpers.claims.registry import Registry, term
from helpers.names import short_names

# Claim -> the section of the page Explore that shows what it asks.
PLACES = {
    **dict.fromkeys(
        ("nr1-artifacts", "nr7-block-maps", "tt3-attention-patterns"), "Patch by patch"
    ),
    "xx4-threshold-sensitivity": "Where is the threshold?",
}
STATES = {
    "before": "as it is",
    "set to zero": "neuron set to zero",
    "moved": "neuron shifted to a test-time register",
    "empty token": "empty appended token",
}
# Measure -> the claim that defines it.
MEASURES = {
    "outlier_tokens": "nr6-qkv-maps",
    "outlier_images": "nr2-model-size",
    "auc": "nr3-redundancy",
    "iou_top": "nr1-artifacts",
    "onset_depth": "nr7-block-maps",
}
# Those that have a threshold of their own. A percentile has none: it takes its share of the patches
# of every model after every block.
RULES = {rule: name for rule, name in names.RULES.items() if not rule.startswith("percentile")}
DEFAULT = 3  # medians


def dequantise(quantised: Mapping) -> Float[np.ndarray, "..."]:
    """The numbers of 16-bit codes: `base64` (row-major, lowest byte first) of `shape`, times the
    `step`.
    """
    codes = np.frombuffer(base64.b64decode(quantised["base64"]), dtype="<u2")
    return codes.reshape(quantised["shape"]) * quantised["step"]


def fragments(root: Path, registry: Registry) -> dict[str, str]:
    """What to include in pages: `explore-patches` and `explore-thresholds`."""
    found = {}
    for kind, values in (("patches", patches), ("thresholds", thresholds)):
        if files := sorted((root / "book" / "explore").glob(f"{kind}-*.json")):
            known, name = values([*map(read, files)]), f"explore-{kind}"
            names = short_names([one["model"] for one in known["models"]])
            found[name] = render(f"{name}.html.j2", **known, names=names, registry=registry)
    return found


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


def thresholds(models: Sequence[Mapping]) -> dict:
    """Which patches a threshold takes, what is measured of them, and verdicts.

    The model with most outliers at the default comes first.
    """
    at = models[0]["multiples"].index(DEFAULT)
    models = sorted(models, key=lambda one: one["measures"]["outlier_images"][at][0], reverse=True)
    words = {name: term(claim, name) for name, claim in MEASURES.items()}
    data = {
        "photographs": [one["jpeg"] for one in models[0]["photographs"]],
        "models": [
            {
                **{key: one[key] for key in ("grid", "multiples", "verdicts")},
                "limits": [
                    f"{multiple:g} × the median, a norm of {multiple * one['median']:.0f}"
                    for multiple in one["multiples"]
                ],
                "measures": [
                    [amount(Value(name, one["model"], None, *row), words[name]) for row in rows]
                    for name, rows in one["measures"].items()
                ],
                "rules": _marks(one),
                "passed": [photograph["passed"] for photograph in one["photographs"]],
            }
            for one in models
        ],
    }
    # The thresholds around the default between which every verdict stays.
    verdicts = [*zip(*models[0]["verdicts"].values(), strict=True)]
    low = high = at
    while low > 0 and verdicts[low - 1] == verdicts[at]:
        low -= 1
    while high + 1 < len(verdicts) and verdicts[high + 1] == verdicts[at]:
        high += 1
    unchanged = [models[0]["multiples"][i] for i in (low, high)]
    labels = [*words.values()]
    return {"models": models, "data": data, "labels": labels, "at": at, "unchanged": unchanged}


def _marks(one: Mapping) -> list[tuple[str, float]]:
    """[label, place] of the threshold of each rule, as a share of the width of a strip."""
    rules = sorted((multiple, rule) for rule, multiple in one["rules"] if rule in RULES)
    at = range(len(one["multiples"]))
    places = np.interp(np.log([x for x, _ in rules]), np.log(one["multiples"]), at) + 0.5
    shares = (places / len(at)).round(4).tolist()
    return [(RULES[rule], share) for (_, rule), share in zip(rules, shares, strict=True)]
