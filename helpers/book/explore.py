"""The two figures that a reader can change, of what `scripts/explore.py` stored in `book/explore`.

Their templates hold the controls and tables; `_static/explore.js` draws the maps from the data in
the page: 16-bit numbers in base64, which a browser reads as well as Python does.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from helpers import names
from helpers.book.render import render
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
    "set to zero": "unit set to zero",
    "moved": "unit shifted to a test-time register",
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
SHARES = ("outlier_tokens", "outlier_images", "onset_depth")  # printed in %
# Those that have a threshold of their own. A percentile has none: it takes its share of the patches
# of every model after every block.
RULES = {rule: name for rule, name in names.RULES.items() if not rule.startswith("percentile")}
DEFAULT = 3  # medians
MOST = 2**16 - 1  # the largest code of a 16-bit number


def quantise(values: Float[np.ndarray, "..."]) -> dict:
    """Numbers from 0 on as 16-bit codes: `step`, `shape` and `base64` (row-major, lowest byte
    first).

    A number is its code times the step, which is 1, 2 or 5 times a power of ten, so that what is
    printed to its last digit is what is stored.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all() or values.min() < 0:
        raise ValueError(f"an array {values.shape} is not of finite numbers from 0 on")
    step = _step(float(values.max()) / MOST)
    codes = np.rint(values / step).astype("<u2")
    return {
        "step": step,
        "shape": list(values.shape),
        "base64": base64.b64encode(codes.tobytes()).decode(),
    }


def dequantise(quantised: Mapping) -> Float[np.ndarray, "..."]:
    """The numbers of `quantise`."""
    codes = np.frombuffer(base64.b64decode(quantised["base64"]), dtype="<u2")
    return codes.reshape(quantised["shape"]) * quantised["step"]


def _step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`, but for rounding;
    1 where that is 0.
    """
    if least == 0:
        return 1.0
    power = math.floor(math.log10(least))
    steps = (float(f"{digit}e{power + more}") for more in (0, 1) for digit in (1, 2, 5))
    return next(step for step in steps if step >= least * (1 - 1e-12))


def fragments(root: Path, registry: Registry) -> dict[str, str]:
    """What to include in pages: `explore-patches` and `explore-thresholds`."""
    templates = {"patches": patches, "thresholds": partial(thresholds, registry)}
    found = {}
    for kind, values in templates.items():
        files = sorted((root / "book" / "explore").glob(f"{kind}-*.json"))
        if files:
            name = f"explore-{kind}"
            found[name] = render(f"{name}.html.j2", **values(map(read, files)), registry=registry)
    return found


def read(path: Path) -> dict:
    """One file of measurements."""
    return json.loads(path.read_text(encoding="utf-8"))


def patches(models: Sequence[Mapping]) -> dict:
    """Norm and [CLS] attention of each patch, by block and state of the model.

    A model with outliers comes first, at the block where they begin.
    """
    models = sorted(models, key=lambda one: one["neuron"] is None)
    first, norms = models[0], [dequantise(one["norms"]) for one in models]
    counts = np.array(first["outliers"])[0, 0]
    block = int((counts > 0).argmax()) if counts.any() else len(counts) - 1
    shown = norms[0][0, 0, block]
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
    over = np.flatnonzero(shown > 3 * first["medians"][0][block])
    return _common(models, data) | {
        "states": STATES,
        "block": block,
        "largest": norms[0][:, 0].max(-1),
        "corners": over.tolist() == first["corners"],
    }


def _common(models: Sequence[Mapping], data: Mapping) -> dict:
    names = short_names([one["model"] for one in models])
    return {"first": models[0], "models": models, "names": names, "data": data}


def _scale(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    """The ends of a logarithmic scale: all but the lowest hundredth of what is positive."""
    values = np.concatenate([array.ravel() for array in arrays])
    positive = values[values > 0]
    return float(f"{np.quantile(positive, 0.01):.2g}"), float(f"{positive.max():.3g}")


def _largest(one: Mapping, norms: np.ndarray) -> list[list[list[str]]]:
    """By photograph and block: the median norm, and the largest in each of STATES, in print."""
    largest = dict(zip(one["states"], norms.max(-1).tolist(), strict=True))
    columns = [one["medians"], *(largest.get(state) for state in STATES)]
    return [
        [
            ["–" if own is None else f"{own[photograph][block]:.1f}" for own in columns]
            for block in range(len(row))
        ]
        for photograph, row in enumerate(one["medians"])
    ]


def thresholds(registry: Registry, models: Sequence[Mapping]) -> dict:
    """Template values: which patches a threshold takes, what is measured of them, and verdicts.

    The model with most outliers at the default comes first.
    """

    def outliers(one: Mapping) -> float:
        return one["measures"]["outlier_images"][one["multiples"].index(DEFAULT)][0]

    models = [one | {"verdicts": _on_model(registry, one)} for one in models]
    models = sorted(models, key=outliers, reverse=True)
    first = models[0]
    at = first["multiples"].index(DEFAULT)
    data = {
        "photographs": [one["jpeg"] for one in first["photographs"]],
        "models": [
            {
                **{key: one[key] for key in ("grid", "multiples", "verdicts")},
                "limits": [
                    f"{multiple:g} × the median, a norm of {multiple * one['median']:.0f}"
                    for multiple in one["multiples"]
                ],
                "measures": [
                    [_measured(row, name in SHARES) for row in rows]
                    for name, rows in one["measures"].items()
                ],
                "rules": _rules(one),
                "passed": [photograph["passed"] for photograph in one["photographs"]],
            }
            for one in models
        ],
    }
    return _common(models, data) | {
        "labels": [term(MEASURES[name], name) for name in first["measures"]],
        "at": at,
        "unchanged": [first["multiples"][i] for i in _unchanged(first, at)],
    }


def _on_model(registry: Registry, one: Mapping) -> dict[str, list[str]]:
    """Claim -> the verdict on the model at each threshold, as every other page gives it.

    Where a claim as a whole needs another kind of model, too, the file says that it was not there.
    """
    model, found, measures = one["model"], dict(one["verdicts"]), one["measures"]
    plain = {"parameters": Value("parameters", model, value=one["sources"][0]["parameters"])}
    every = [
        plain | {name: Value(name, model, None, *rows[at]) for name, rows in measures.items()}
        for at in range(len(one["multiples"]))
    ]
    for id in (id for id in found if registry[id].criterion.needs):
        found[id] = [registry[id].criterion.on_model(model, values)[0] for values in every]
    return found


def _unchanged(one: Mapping, at: int) -> tuple[int, int]:
    """The first and the last threshold between which every verdict is that at `at`."""
    verdicts = list(zip(*one["verdicts"].values(), strict=True))
    others = [i for i, row in enumerate(verdicts) if row != verdicts[at]]
    low = max((i + 1 for i in others if i < at), default=0)
    return low, min((i - 1 for i in others if i > at), default=len(verdicts) - 1)


def _measured(row: Sequence, share: bool) -> str:
    """A value with its interval, a dash where there is none."""
    value, low, high, _ = row
    if value is None:
        return "–"
    value, low, high = (
        x if x is None else f"{100 * x:.1f}" if share else f"{x:.2f}" for x in (value, low, high)
    )
    interval = "" if low == high else f" [{low}, {high}]"
    return f"{value}{interval}{' %' if share else ''}"


def _rules(one: Mapping) -> list[tuple[str, float]]:
    """[label, place] of each rule, as a share of the width of a strip."""
    logs, own = np.log(one["multiples"]), [rule for rule in one["rules"] if rule[0] in RULES]
    places = np.interp(np.log([x for _, x in own]), logs, np.arange(len(logs))) + 0.5
    marks = zip(
        (RULES[name] for name, _ in own), (places / len(logs)).round(4).tolist(), strict=True
    )
    return sorted(marks, key=lambda mark: mark[1])
