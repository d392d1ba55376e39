"""A diagnosis in words, as JSON, as figures and as one page that needs no network."""

import io
import shlex
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from math import isfinite, isnan
from typing import Any

import matplotlib.pyplot as plt
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.figure import Figure

from helpers import figures
from helpers.claims.checkpoints import VERSION
from helpers.measures.outliers import FEW
from helpers.measures.stats import Estimate
from helpers.own.diagnose import UNNAMED
from helpers.own.diagnosis import Diagnosis

ONLY = 1e5  # times as active at outliers: elsewhere is rounding
MOST_LOST = 0.9  # agreement with the unedited model below which shifting neurons costs too much
DETAILS = (  # fields of a diagnosis that its JSON gives in full
    "images", "tested", "images_with_outliers", "rules", "outliers_per_image",
    "largest_over_median", "channels", "sinks", "by_image", "place", "neurons", "states",
    "left_out", "register_norm", "unwritable",
)  # fmt: skip
COLUMNS = {  # of the table of states -> field of a `State`
    "largest norm": "largest",
    "images with outliers": "images_with_outliers",
    "images with a sink of patches": "sinks",
    "[CLS] attention on former outliers": "outlier_attention",
    "attention of all queries on them, in the block with most": "most_received",
    "norm of the appended token": "register_norm",
    "same answer": "agreement",
    "cosine of the feature": "cosine",
}
NUMBERS = ("largest", "register_norm", "cosine")  # of these columns; the others are shares
RULES = {
    "median:3": "a norm above 3 times the median of all patches, as everywhere on this page",
    "mad:10": "a norm more than 10 median absolute deviations above the median",
    "percentile:98": "one of the highest 2 % of all norms, whatever these are",
}
MAPS = {  # kind in `Diagnosis.pictures` -> label and caption
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


def to_json(d: Diagnosis) -> dict[str, Any]:
    """The numbers of a diagnosis, in the form of the files in book/checkpoints.

    Estimates are value, low, high and n; what is not defined is null.
    """
    return {
        "model": d.model["name"],
        "version": VERSION,
        "outliers": d.outliers,
        "sinks": d.has_sinks,
        "cell": d.cell,
        "outliers_per_image": d.outliers_per_image.value,
        "images_with_outliers": d.images_with_outliers.value,
        "corner_share": d.place.corners.value if d.place else None,
        "onset_block": d.onset,
        "neurons": [[x.neuron.block, x.neuron.unit, x.firing.ratio.value] for x in d.neurons],
        "max_norm_before": (d.states["before"].largest if d.states else d.norms[-1]).value,
        "max_norm_after": d.states["moved"].largest.value if "moved" in d.states else None,
        "n": d.n,
        "moved": [list(x[:2]) for x in d.moved],
        "details": {"source": _plain(d.model)}
        | {name: _plain(getattr(d, name)) for name in DETAILS},
        "advice": advice(d),
        "seed": d.seed,
        "provenance": d.provenance,
    }


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


# ---- In words


def advice(d: Diagnosis, model: str = "") -> list[str]:
    """What was seen and what follows, in sentences; the first says whether there are outliers.

    `model`: as in `remedy`.
    """
    return _sentences(d, remedy(d, model))


def remedy(d: Diagnosis, model: str = "") -> str:
    """The command that shifts the neurons, or four lines of Python where `edit` cannot write the
    model; '' where none are to be moved.

    `model` is its name with the folder in which it lies; the diagnosis has the name alone.
    """
    model = model or d.model["name"]
    if not d.remedy:
        return ""
    if not d.unwritable:
        units = ",".join(f"{x.block}:{x.unit}" for x in d.moved)
        return f"python -m helpers edit {shlex.quote(model)} --neurons {units} --out edited"
    units = [(x.block, x.unit) for x in d.moved]
    given = "module" if d.unwritable == UNNAMED else repr(model)
    return (
        "from helpers.interventions import test_time_registers\n"
        "from helpers.models import load_backbone\n"
        f"with test_time_registers(load_backbone({given}), {units}) as model:\n"
        "    output = model(pixels)"
    )


def _sentences(d: Diagnosis, remedy: str) -> list[str]:
    template = TEMPLATES.get_template("advice.txt.j2")
    lines = template.render(d=d, few=FEW, most_lost=MOST_LOST, remedy=remedy).splitlines()
    return [line.rstrip() for line in lines if line.strip()]


# ---- As one page


def page(d: Diagnosis, pictures: Mapping[str, tuple[str, str]]) -> str:
    """The page, which opens from disk and names no folder of this machine.

    `pictures`: name -> SVG and caption, as `pictures` gives them.
    """
    shown = {x for state in d.states.values() for x in COLUMNS.values() if getattr(state, x)}
    columns = {name: field for name, field in COLUMNS.items() if field in shown}
    said = {"advice": _sentences(d, ""), "remedy": remedy(d), "pictures": pictures}
    return TEMPLATES.get_template("page.html.j2").render(d=d, **said, columns=columns, rules=RULES)


def pictures(d: Diagnosis) -> dict[str, tuple[str, str]]:
    """Name -> figure as SVG and its caption, in the order of the page."""
    found = {}
    for name, (figure, caption) in draw(d).items():
        file = io.StringIO()  # with identifiers of the figure, so that several fit on one page
        with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
            figure.savefig(file, format="svg", metadata={"Date": None})
        found[name] = file.getvalue()[file.getvalue().index("<svg") :], caption
        plt.close(figure)
    return found


def draw(d: Diagnosis) -> dict[str, tuple[Figure, str]]:
    """Name -> figure and caption, in the order of the page. Close them after use."""
    found = {}
    with plt.rc_context(figures.STYLE):
        for kind, (label, caption) in MAPS.items():
            maps = [row[kind] for row in d.pictures if kind in row]
            if maps:
                axes = figures.rows(len(maps), 1 + len(maps[0]), 2.1, 0.4)
                figures.twin_maps([row["image"] for row in d.pictures], maps, axes, label)
                states = " and ".join(state or "as it is" for state in maps[0])
                found[f"{kind}-maps"] = plt.gcf(), f"{caption}, {states}; one colour scale a row."
        curves = {name: state.norms for name, state in d.states.items()} or {"as it is": d.norms}
        figures.block_curves(curves, ylabel="largest patch L2 norm\nafter the block")
        caption = "The largest patch norm after each block, with its interval. Curves may coincide."
        found["norms-by-block"] = plt.gcf(), caption
        if d.sinks:
            curves, caption = dict(d.sinks.received), "Which tokens the queries attend to"
            if "moved" in d.states and d.states["moved"].received:
                curves["former outliers, shifted"] = d.states["moved"].received
                caption += ", and what the outliers together get once the neurons are shifted"
            figures.block_curves(curves, ylabel="share of all attention\nin the block")
            caption += ": mean over heads, with intervals."
            found["received-by-block"] = plt.gcf(), caption
        if d.outliers:
            figures.share_maps({d.model["name"]: d.share_map}, columns=1, each=3.6)
            caption = "Where outliers stand: the share of the images with one at each patch."
            found["where"] = plt.gcf(), caption
    return found


# ---- Numbers as text


def _number(x: float) -> str:
    """With three significant digits, at most ten decimals, and never as a power of ten."""
    text = f"{float(f'{x:.3g}'):,.10f}"
    return text.rstrip("0").rstrip(".") if isfinite(x) else text


def _times(ratio: Estimate) -> str:
    """The activation of a neuron at outliers against that elsewhere."""
    if isnan(ratio.value):
        return "silent at both"
    if ratio.value >= ONLY:
        return "active at outliers alone"
    return f"{_number(ratio.value)} times as active at outliers as elsewhere"


def _interval(x: Estimate | None, share: bool = False) -> str:
    """An estimate with its interval; a `share` in per cent."""
    if x is None or x.n == 0:
        return "-"
    value, low, high = (_number(100 * y if share else y) for y in x[:3])
    value += " %" if share else ""
    return value if isnan(x.low) else f"{value} [{low}, {high}]"


TEMPLATES = Environment(
    loader=PackageLoader("helpers.own"),
    autoescape=select_autoescape(["html.j2"]),
    undefined=StrictUndefined,
    trim_blocks=True,
)
TEMPLATES.filters |= {
    "short": lambda estimate: _number(estimate.value),
    "number": _number,
    "percent": lambda x: f"{_number(100 * x)} %",
    "times": _times,
    "images": lambda state, d: round(state.images_with_outliers.value * d.tested),
    # A share beyond that of as many random places: 0 there, and 1 where all are.
    "beyond": lambda share, chance: (share.value - chance) / (1 - chance),
    "interval": _interval,
    "ratio": lambda ratio: _interval(ratio) if ratio.value < ONLY else _times(ratio),
    "share": partial(_interval, share=True),
    "units": lambda units, between="": between.join(f"{x.block}:{x.unit}" for x in units),
    "cells": lambda state, columns: [
        _interval(getattr(state, c), c not in NUMBERS) for c in columns.values()
    ],
    "undefined": isnan,
}
