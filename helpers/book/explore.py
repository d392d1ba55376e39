"""The two figures that a reader can change, and the table of moved positions.

All are of what `scripts/explore.py` stored in `book/explore`. Their templates hold the controls and
tables; `_static/explore.js` draws the maps from the data in the page.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from helpers.book.render import raw, render
from helpers.claims.registry import Registry, term
from helpers.files import digest_of_json
from helpers.names import short_names
from helpers.quantised import dequantise

KINDS = ("patches", "thresholds", "moves")
# Claim -> what shows what it asks, and the heading of this on its page.
PLACES = {
    **dict.fromkeys(
        ("nr1-artifacts", "nr7-block-maps", "tt3-attention-patterns"), ("patches", "Patch by patch")
    ),
    "xx4-threshold-sensitivity": ("thresholds", "At every threshold"),
    "xx2-corner-outliers": ("moves", "In every condition"),
}
STATES = {
    "before": "as it is",
    "set to zero": "unit set to zero",
    "moved": "unit moved to an extra token",
    "empty token": "empty extra token",
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
RULES = {
    "median": "3 × median",
    "mad": "10 MAD",
    "percentile": "98th percentile",
    "fixed": "norm 150",
}
DEFAULT = 3  # medians
NOTHING = "Nothing has been measured here yet."
# What is done, in a word and in a sentence; {} are the places where outliers usually are.
CONDITIONS = {
    "as it is": ("as it is", "The picture and the positions as they are."),
    "constant": ("grey", "Every pixel has the picture's mean grey: there is no content left."),
    "noise": ("noise", "Every pixel is drawn on its own."),
    "rolled": (
        "rolled",
        "The picture is rolled by half of both sides: what was in its corners meets in the centre.",
    ),
    "padded": ("framed", "The picture is half as large, in a grey frame."),
    "flipped": ("flipped", "The picture is flipped, left to right."),
    "cropped": ("cropped", "The centre of the picture, half of each side, is enlarged."),
    "swapped": (
        "swapped",
        "The picture stays. The {} patches and the four central ones have each other's position "
        "embedding.",
    ),
    "permuted": (
        "permuted",
        "The picture stays. All patches have each other's position embedding, at random.",
    ),
    "zeroed": ("zeroed", "The picture stays. The {} patches have no position embedding."),
}


def fragments(root: Path, registry: Registry) -> dict[str, str]:
    """What to include in pages, by name.

    `explore-patches`, `explore-thresholds` and `explore-moves`, or a sentence where nothing was
    measured.

    Raises:
        ValueError: a file was changed after it was written.
    """
    found = {
        kind: [read(path) for path in sorted((root / "book" / "explore").glob(f"{kind}-*.json"))]
        for kind in KINDS
    }
    draw = {
        "patches": lambda own: raw(render("explore_patches.html.j2", **patches(own))),
        "thresholds": lambda own: raw(
            render("explore_thresholds.html.j2", **thresholds(own, registry))
        ),
        "moves": lambda own: render("explore_moves.md.j2", **moves(own)),
    }
    return {f"explore-{kind}": draw[kind](own) if own else NOTHING for kind, own in found.items()}


def beside(id: str) -> str:
    """What shows what a claim asks, for its page in `book/runs/<run>/`; '' where nothing does."""
    if id not in PLACES:
        return ""
    kind, heading = PLACES[id]
    measured = "Measured apart from this run; [Touch it](../../explore.md) says on what."
    return f"## {heading}\n\n{measured}\n\n```{{include}} ../../_generated/explore-{kind}.md\n```"


def read(path: Path) -> dict:
    """One file of measurements, as it was written.

    Raises:
        ValueError: it is not whole, or was changed since.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        intact = data.pop("sha256") == digest_of_json(data)
    except (ValueError, KeyError, AttributeError):
        intact = False
    if not intact:
        raise ValueError(
            f"{path.name}: was changed after it was written; measure it again with "
            "`scripts/explore.py`"
        )
    return data


def patches(models: Sequence[Mapping]) -> dict:
    """Template values: norm and [CLS] attention of each patch, by block and state of the model.

    A model with outliers comes first, at the block where they begin.
    """
    models = sorted(models, key=lambda one: one["neuron"] is None)
    first, norms = models[0], [dequantise(one["norms"]) for one in models]
    counts = np.array(first["outliers"])[0, 0]
    block = int((counts > 0).argmax()) if counts.any() else len(counts) - 1
    over = np.flatnonzero(norms[0][0, 0, block] > 3 * first["medians"][0][block])
    data = {
        "scales": {
            "norms": _scale(norms),
            "attention": _scale([dequantise(one["attention"]) for one in models]),
        },
        "photographs": [one["jpeg"] for one in first["photographs"]],
        "states": STATES,
        "patch": int(norms[0][0, 0, block].argmax()),
        "models": [
            {
                **{key: one[key] for key in ("grid", "states", "medians", "outliers")},
                **{key: one[key] for key in ("norms", "attention")},
                "largest": _largest(one, own),
            }
            for one, own in zip(models, norms, strict=True)
        ],
    }
    return {
        "name": _names(models)[0],
        "choices": _choices(models),
        "first": first,
        "states": STATES,
        "block": block,
        "largest": norms[0][:, 0].max(-1),
        "corners": over.tolist() == first["corners"],
        "data": data,
    }


def _scale(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    """The ends of a logarithmic scale: all but the lowest hundredth of what is positive."""
    values = np.concatenate([array.ravel() for array in arrays])
    positive = values[values > 0]
    return float(f"{np.quantile(positive, 0.01):.2g}"), float(f"{positive.max():.3g}")


def _largest(one: Mapping, norms: np.ndarray) -> list[list[list[str]]]:
    """By photograph and block: the median norm, and the largest in each of STATES, in print."""
    largest = {state: norms[i].max(-1) for i, state in enumerate(one["states"])}
    return [
        [
            [
                f"{median:.1f}",
                *(f"{largest[s][i, block]:.1f}" if s in largest else "–" for s in STATES),
            ]
            for block, median in enumerate(medians)
        ]
        for i, medians in enumerate(one["medians"])
    ]


def thresholds(models: Sequence[Mapping], registry: Registry) -> dict:
    """Template values: which patches a threshold takes, what is measured of them, and verdicts.

    The model with most outliers at the default comes first.
    """
    models = sorted(models, key=lambda one: -_at_default(one, "outlier_images"))
    first = models[0]
    at = first["multiples"].index(DEFAULT)
    labels = {name: term(id, name) for name, id in MEASURES.items()}
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
    low, high = _unchanged(first, at)
    return {
        "name": _names(models)[0],
        "choices": _choices(models),
        "first": first,
        "labels": [labels[name] for name in first["measures"]],
        "titles": {id: registry[id].title for id in first["verdicts"]},
        "at": at,
        "low": low,
        "high": high,
        "data": data,
    }


def _at_default(one: Mapping, name: str) -> float:
    return one["measures"][name][one["multiples"].index(DEFAULT)][0]


def _unchanged(one: Mapping, at: int) -> tuple[float, float]:
    """The multiples between which every verdict is that at the default."""
    verdicts = [*zip(*one["verdicts"].values(), strict=True)]
    low = high = at
    while low > 0 and verdicts[low - 1] == verdicts[at]:
        low -= 1
    while high < len(verdicts) - 1 and verdicts[high + 1] == verdicts[at]:
        high += 1
    return one["multiples"][low], one["multiples"][high]


def _measured(row: Sequence, share: bool) -> str:
    """A value with its interval, a dash where there is none."""
    value, low, high, _ = row
    if value is None:
        return "–"
    value, low, high = (
        x if x is None else f"{100 * x:.1f}" if share else f"{x:.2f}" for x in (value, low, high)
    )
    interval = "" if low is None or low == high else f" [{low}, {high}]"
    return f"{value}{interval}{' %' if share else ''}"


def _rules(one: Mapping) -> list[tuple[str, float]]:
    """[label, place] of each rule, as a share of the width of a strip."""
    logs = np.log(one["multiples"])
    places = {
        RULES[rule.partition(":")[0]]: np.interp(math.log(multiple), logs, np.arange(len(logs)))
        for rule, multiple in one["rules"]
    }
    marks = ((label, round((float(place) + 0.5) / len(logs), 4)) for label, place in places.items())
    return sorted(marks, key=lambda mark: mark[1])


def moves(models: Sequence[Mapping]) -> dict:
    """Template values: where outliers are when the picture changes, and when positions do."""
    one = models[0]
    rows, columns = one["grid"]
    corners = {0, columns - 1, (rows - 1) * columns, rows * columns - 1}
    places = "corner" if {*one["usual"]} == corners else "usual"
    lines = {}
    for kind, own in one["conditions"].items():
        word, what = CONDITIONS[kind]
        shares = {key: _percent(own[key]) for key in ("images", "share", "filled")}
        shares["count"] = f"{own['count'][0]:.2f}"
        lines[kind] = {"word": word, "what": what.format(places), **shares}
    return {"name": _names(models)[0], "one": one, "places": places, "lines": lines}


def _percent(row: Sequence) -> str:
    return "–" if row[0] is None else f"{100 * row[0]:.1f}".removesuffix(".0")


def _names(models: Sequence[Mapping]) -> list[str]:
    return short_names([one["model"] for one in models])


def _choices(models: Sequence[Mapping]) -> dict[str, list[tuple]]:
    """What a reader can choose: (value, label, longer name) of each."""
    photographs = [one["title"] for one in models[0]["photographs"]]
    return {
        "models": [(i, name, models[i]["model"]) for i, name in enumerate(_names(models))],
        "photographs": [(i, title, title) for i, title in enumerate(photographs)],
        "states": [(state, label, label) for state, label in STATES.items()],
    }
