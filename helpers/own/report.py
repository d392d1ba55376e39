"""A diagnosis in words, as JSON, as figures and as one page that needs no network."""

import io
import shlex
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from math import isfinite, isnan
from typing import Any

import matplotlib.pyplot as plt
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.figure import Figure

from helpers import figures
from helpers.claims.checkpoints import VERSION
from helpers.measures.stats import Estimate
from helpers.own.diagnose import FEW, Diagnosis

ONLY = 1e5  # times as active at outliers: elsewhere is rounding
MOST_LOST = 0.9  # agreement with the unedited model below which moving neurons costs too much
DETAILS = {  # as they are called in JSON -> the part of a diagnosis
    "source": "model",
    "images": "images",
    "tested": "tested",
    "images_with_outliers": "images_with_outliers",
    "rules": "rules",
    "outliers_per_image": "per_image",
    "largest_over_median": "ratio",
    "channels": "channels",
    "sinks": "sinks",
    "by_image": "by_image",
    "place": "place",
    "neurons": "neurons",
    "states": "states",
    "left_out": "left_out",
}
COLUMNS = {
    "largest norm": "largest",
    "images with outliers": "images_with_outliers",
    "images with a sink of patches": "sinks",
    "[CLS] attention on former outliers": "outlier_attention",
    "norm of the appended token": "register_norm",
    "same answer": "agreement",
    "right answer": "accuracy",
    "cosine of the feature": "cosine",
}


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The numbers of a diagnosis; estimates as value, low, high and n.

    What is not defined is null.
    """
    d, states = diagnosis, diagnosis.states
    return {
        "model": d.model["name"],
        "version": VERSION,
        "outliers": d.outliers,
        "sinks": d.has_sinks,
        "cell": d.cell,
        "outliers_per_image": d.per_image.value,
        "images_with_outliers": d.images_with_outliers.value,
        "corner_share": d.place.corners.value if d.place else None,
        "onset_block": d.onset,
        "neurons": [[x.neuron.block, x.neuron.unit, x.firing.ratio.value] for x in d.neurons],
        "max_norm_before": d.norms[-1].value if not states else states["before"].largest.value,
        "max_norm_after": states["moved"].largest.value if "moved" in states else None,
        "n": d.n,
        "moved": [list(x[:2]) for x in d.moved],
        "details": {name: _plain(getattr(d, part)) for name, part in DETAILS.items()},
        "advice": advice(d),
    }


def advice(diagnosis: Diagnosis, model: str = "") -> list[str]:
    """What was seen and what follows, in sentences; the first says whether there are outliers.

    Args:
        diagnosis: what is told.
        model: its name where the command to edit it is to run; that of the diagnosis, which holds
            no folder and may be handed on, unless given.
    """
    template = _environment().get_template("advice.txt.j2")
    model = shlex.quote(model or diagnosis.model["name"])
    return template.render(d=diagnosis, few=FEW, most_lost=MOST_LOST, model=model).splitlines()


def page(diagnosis: Diagnosis, pictures: Mapping[str, tuple[str, str]]) -> str:
    """The page, which opens from disk.

    Args:
        diagnosis: what is shown.
        pictures: name -> SVG and what it shows.
    """
    states = diagnosis.states.values()
    columns = {
        name: field
        for name, field in COLUMNS.items()
        if any(getattr(state, field) is not None for state in states)
    }
    template = _environment().get_template("page.html.j2")
    words = advice(diagnosis)
    return template.render(d=diagnosis, advice=words, pictures=pictures, columns=columns)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("helpers.own"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "short": lambda estimate: f"{estimate.value:,.3g}",
        "percent": "{:.0%}".format,
        "times": _times,
        "images": lambda state, d: round(state.images_with_outliers.value * d.tested),
        # A share beyond that of as many random places: 0 there, and 1 where all are.
        "beyond": lambda share, chance: (share.value - chance) / (1 - chance),
        "interval": _interval,
        "units": lambda units, between="": between.join(f"{x.block}:{x.unit}" for x in units),
        "cells": lambda state, columns: [_interval(getattr(state, c)) for c in columns.values()],
        "undefined": isnan,
    }
    return environment


def _times(ratio: Estimate) -> str:
    """The activation of a neuron at outliers against that elsewhere."""
    if isnan(ratio.value):
        return "silent at both"
    if ratio.value >= ONLY:
        return "active at outliers alone"
    return f"{ratio.value:,.3g} times as active at outliers as elsewhere"


def _interval(x: Estimate | None, factor: float = 1, unit: str = "") -> str:
    if x is None or x.n == 0:
        return "-"
    value, low, high = (f"{factor * y:,.3g}" for y in x[:3])
    return f"{value}{unit}" if isnan(x.low) else f"{value}{unit} [{low}, {high}]"


def _plain(value: Any) -> Any:
    """As JSON: estimates and dataclasses by name, tuples as lists, NaN and infinity as null."""
    if isinstance(value, Estimate):
        value = {name: getattr(value, name) for name in ("value", "low", "high", "n")}
    elif is_dataclass(value):
        value = vars(value)
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
    return None if isinstance(value, float) and not isfinite(value) else value


_MAPS = {
    "norm": ("patch L2 norm", "Patch norms after the last block, before the final LayerNorm"),
    "attention": (
        "[CLS] attention",
        "Attention of [CLS] on the patches in the last block, mean over heads",
    ),
    "received": (
        "attention received",
        "Attention that a patch gets from all queries in the block where it gets most, mean over "
        "heads",
    ),
}


def drawn(d: Diagnosis) -> dict[str, tuple[Figure, str]]:
    """Name -> figure and what it shows, in the order of the page. Close them after use."""
    with plt.rc_context(figures.STYLE):
        made = {}
        for kind, (label, what) in _MAPS.items():
            maps = [
                {k.partition("\n")[2]: v for k, v in row.items() if k.startswith(kind)}
                for row in d.pictures
            ]
            if maps[0]:
                axes = figures.rows(len(maps), 1 + len(maps[0]), 2.1, 0.4)
                figures.twin_maps([row["image"] for row in d.pictures], maps, axes, label)
                states = " and ".join(state or "as it is" for state in maps[0])
                made[f"{kind}-maps"] = plt.gcf(), f"{what}, {states}; one colour scale a row."
        axis = figures.rows(1, each=3.3)[0, 0]
        curves = {name: state.norms for name, state in d.states.items()} or {"as it is": d.norms}
        figures.block_curves(curves, axis, "largest patch L2 norm\nafter the block")
        what = "The largest patch norm after each block, with its interval. Curves may coincide."
        made["norms-by-block"] = plt.gcf(), what
        if d.sinks:
            axis = figures.rows(1, each=3.3)[0, 0]
            figures.block_curves(d.sinks.received, axis, "share of all attention\nin the block")
            what = "Which tokens the queries attend to, mean over heads, with intervals."
            made["received-by-block"] = plt.gcf(), what
        if d.outliers:
            figures.share_maps({d.model["name"]: d.share_map}, figures.rows(1, each=3.6))
            what = "Where outliers stand: the share of the images with one at each patch."
            made["where"] = plt.gcf(), what
    return made


def svg(figure: Figure, name: str) -> str:
    """A figure as SVG whose identifiers are its own, so that several fit on one page."""
    file = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
