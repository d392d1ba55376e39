"""A diagnosis in words, as JSON, as figures and as one page that needs no network; and two beside
each other.
"""

import base64
import html
import io
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache, partial
from math import floor, isfinite, isnan, log10
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from matplotlib.colors import LogNorm, PowerNorm
from matplotlib.figure import Figure
from PIL import Image

from helpers import figures
from helpers.claims.checkpoints import VERSION
from helpers.measures.stats import Estimate, share
from helpers.models.family import nameless, parts_of
from helpers.names import short_names
from helpers.own.diagnose import FEW, UNNAMED, Diagnosis

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
    "register_norm": "register_norm",
    "answers": "answers",
    "unwritable": "unwritable",
    "made": "made",
}
COLUMNS = {
    "largest norm": "largest",
    "images with outliers": "images_with_outliers",
    "images with a sink of patches": "sinks",
    "[CLS] attention on former outliers": "outlier_attention",
    "attention of all queries on them, in the block with most": "most_received",
    "norm of the appended token": "register_norm",
    "same answer": "agreement",
    "right answer": "accuracy",
    "cosine of the feature": "cosine",
}
NUMBERS = ("largest", "register_norm", "cosine")  # of these columns; the others are shares
RULES = {  # as they are called in JSON
    "median:3": "a norm above 3 times the median of all patches, as everywhere on this page",
    "mad:10": "a norm more than 10 median absolute deviations above the median",
    "percentile:98": "one of the highest 2 % of all norms, whatever these are",
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
    return _told(diagnosis, remedy(diagnosis, model))


def remedy(d: Diagnosis, model: str = "") -> str:
    """What moves the neurons: the command, or where `edit` does not write the model three lines of
    Python; '' where none are to be moved. `model`: as in `advice`.
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
        "from helpers.interventions import model_with_test_time_registers\n"
        "from helpers.models import load_backbone\n"
        f"model = model_with_test_time_registers(load_backbone({given}), {units})"
    )


def _told(d: Diagnosis, remedy: str) -> list[str]:
    """The sentences; that which a remedy follows ends with a colon where it is left out."""
    template = _environment().get_template("advice.txt.j2")
    lines = template.render(d=d, few=FEW, most_lost=MOST_LOST, remedy=remedy).splitlines()
    return [line.rstrip() for line in lines if line.strip()]


def page(diagnosis: Diagnosis, pictures: Mapping[str, tuple[str, str]], model: str = "") -> str:
    """The page, which opens from disk.

    Args:
        diagnosis: what is shown.
        pictures: name -> SVG and what it shows.
        model: its name where the command to edit it is to run; of an absolute path the page, which
            may be handed on, has the last part alone.
    """
    d, states = diagnosis, diagnosis.states.values()
    columns = {
        name: field
        for name, field in COLUMNS.items()
        if any(getattr(state, field) is not None for state in states)
    }
    away = os.path.isabs(os.path.expanduser(parts_of(model)[1]))
    return _page(
        "page.html.j2",
        d=d,
        advice=_told(d, ""),
        remedy=remedy(d, nameless(model) if away else model),
        away=away,
        pictures=pictures,
        columns=columns,
        rules=RULES,
        thumbnails=_thumbnails([d]),
    )


def framed(diagnosis: Diagnosis) -> str:
    """The page as a notebook shows it: in a frame of its own, where it can reach nothing else."""
    text = html.escape(page(diagnosis, pictures(drawn(diagnosis))), quote=True)
    look = "width: 100%; height: 48rem; border: 0"
    return f'<iframe title="Diagnosis" sandbox srcdoc="{text}" style="{look}"></iframe>'


# ---- Two beside each other


def against(a: Diagnosis, b: Diagnosis) -> dict[str, Any]:
    """The numbers of two models on the same images; `same_answer` is null where they have no
    classes in common.
    """
    return {
        "version": VERSION,
        "models": [to_json(a), to_json(b)],
        "same_answer": _plain(_same(a, b)),
    }


def beside(a: Diagnosis, b: Diagnosis) -> dict[str, tuple[str, str]]:
    """What is measured of both -> what of the first and what of the second."""
    second = _rows(b)
    rows = {name: (value, second[name]) for name, value in _rows(a).items()}
    rows["same answer as the first"] = "-", _interval(_same(a, b), True)
    return {name: pair for name, pair in rows.items() if {*pair} != {"-"}}


def page_of_two(a: Diagnosis, b: Diagnosis) -> str:
    """One page of both, with maps of the same images."""
    names = [d.model["name"] for d in (a, b)]
    with plt.rc_context(figures.STYLE):
        axis = figures.rows(1, each=3.3)[0, 0]
        curves = {f"1. {names[0]}": a.norms, f"2. {names[1]}": b.norms}
        figures.block_curves(curves, axis, "largest patch L2 norm\nafter the block")
        what = "The largest patch norm after each block, with its interval."
        curve = pictures({"norms-by-block": (plt.gcf(), what)})
    return _page(
        "against.html.j2",
        both=[a, b],
        names=names,
        short=short_names(names),
        rows=beside(a, b),
        pictures=curve,
        thumbnails=_thumbnails([a, b]),
        first=[_told(d, "")[0] for d in (a, b)],
    )


def _rows(d: Diagnosis) -> dict[str, str]:
    sinks, registers = d.sinks, d.model["registers"]
    last = "norm of a patch, largest of an image"
    return {
        "images with an outlier": _interval(d.images_with_outliers, True),
        "outliers an image": _interval(d.per_image),
        "first block with one": "-" if d.onset is None else str(d.onset),
        f"{last}, after the last block": _interval(d.norms[-1]),
        "the same over the median of all patches": _interval(d.ratio),
        "registers": str(registers),
        "norm of a register, largest of an image": _interval(d.register_norm),
        "images with a sink of patches": _interval(sinks and sinks.patches, True),
        "images with a sink of registers": _interval(sinks and sinks.registers, True),
        "images with a sink of [CLS]": _interval(sinks and sinks.cls, True),
        "right answer": _interval(d.answers and d.answers.right, True),
        "image size": " x ".join(map(str, d.model["image_size"])),
    }


def _same(a: Diagnosis, b: Diagnosis) -> Estimate | None:
    """How often both name the same class; None where they have no classes, or others."""
    pairs = [(x["answer"], y["answer"]) for x, y in zip(a.by_image, b.by_image, strict=True)]
    if any(None in pair for pair in pairs) or a.classes != b.classes:
        return None
    return share(np.array([x == y for x, y in pairs]))


# ---- Pictures on a page


def pictures(drawn: Mapping[str, tuple[Figure, str]]) -> dict[str, tuple[str, str]]:
    """Each figure as SVG with what it shows; the figures are closed."""
    found = {name: (svg(figure, name), caption) for name, (figure, caption) in drawn.items()}
    for figure, _ in drawn.values():
        plt.close(figure)
    return found


def _thumbnails(diagnoses: Sequence[Diagnosis]) -> dict[str, Any] | None:
    """The images of the first with its maps and those of the others, on one scale a kind."""
    all_of = [d.thumbnails for d in diagnoses]
    if None in all_of:
        return None
    norms = np.concatenate([np.ravel(x.norms) for x in all_of]).clip(1e-6)
    kinds = {"patch norms": ("norms", "viridis", LogNorm(norms.min(), norms.max()))}
    if all(x.received is not None for x in all_of):
        most = max(float(x.received.max()) for x in all_of)
        kinds["attention received"] = ("received", "magma", PowerNorm(0.5, 0, most))
    rows = []
    for place, i in enumerate(all_of[0].index):
        maps = []
        for kind, (field, colours, scale) in kinds.items():
            for number, shown in enumerate(all_of):
                if i in shown.index:
                    values = np.asarray(getattr(shown, field)[shown.index.index(i)])
                    picture = mpl.colormaps[colours](scale(values.clip(1e-6)), bytes=True)[..., :3]
                    maps.append((kind, number, _data(picture, "PNG")))
        told = diagnoses[0].by_image[i] | {"by_norm": place, "by_name": i}
        others = [d.by_image[i] for d in diagnoses]
        seen = _data(all_of[0].pictures[place], "JPEG")
        rows.append(told | {"picture": seen, "maps": maps, "each": others})
    ends = {kind: (scale.vmin, scale.vmax) for kind, (_, _, scale) in kinds.items()}
    return {"rows": rows, "ends": ends, "all": len(diagnoses[0].by_image)}


def _data(pixels: np.ndarray, kind: str) -> str:
    """A picture as an address that holds it."""
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def _page(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("helpers.own"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "short": lambda estimate: _number(estimate.value),
        "number": _number,
        "percent": _percent,
        "times": _times,
        "images": lambda state, d: round(state.images_with_outliers.value * d.tested),
        # A share beyond that of as many random places: 0 there, and 1 where all are.
        "beyond": lambda share, chance: (share.value - chance) / (1 - chance),
        "interval": _interval,
        "ratio": _ratio,
        "share": partial(_interval, share=True),
        "units": lambda units, between="": between.join(f"{x.block}:{x.unit}" for x in units),
        "cells": lambda state, columns: [
            _interval(getattr(state, c), c not in NUMBERS) for c in columns.values()
        ],
        "undefined": isnan,
        "zip": zip,
    }
    return environment


def _number(x: float) -> str:
    """With three significant digits, and never as a power of ten."""
    if x == 0 or not isfinite(x):
        return f"{x:g}"
    x = float(f"{x:.3g}")
    text = f"{x:,.{max(0, 2 - floor(log10(abs(x))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _percent(x: float) -> str:
    return f"{_number(100 * x)} %"


def _times(ratio: Estimate) -> str:
    """The activation of a neuron at outliers against that elsewhere."""
    if isnan(ratio.value):
        return "silent at both"
    if ratio.value >= ONLY:
        return "active at outliers alone"
    return f"{_number(ratio.value)} times as active at outliers as elsewhere"


def _ratio(ratio: Estimate) -> str:
    """The same as a number with its interval, where there is activation elsewhere."""
    return _interval(ratio) if ratio.value < ONLY else _times(ratio)


def _interval(x: Estimate | None, share: bool = False) -> str:
    """An estimate with its interval; a `share` in per cent."""
    if x is None or x.n == 0:
        return "-"
    value, low, high = (_number(100 * y if share else y) for y in x[:3])
    value += " %" if share else ""
    return value if isnan(x.low) else f"{value} [{low}, {high}]"


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
            curves, what = dict(d.sinks.received), "Which tokens the queries attend to"
            if "moved" in d.states and d.states["moved"].received:
                curves["former outliers, moved"] = d.states["moved"].received
                what += ", and what the outliers together get once the neurons are moved"
            figures.block_curves(curves, axis, "share of all attention\nin the block")
            what += ": mean over heads, with intervals."
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
