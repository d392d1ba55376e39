"""The threshold slider: which patches are outliers, what is measured of them, and six verdicts, at every threshold."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from helpers.names import short_names
from helpers.publish.registry import Registry
from helpers.publish.site.explore_parts import (
    controls,
    credited,
    figure,
    fixed,
    folded,
    panel,
    photo,
    radios,
    readout,
    slider,
    table,
)
from helpers.publish.site.marks import badge, html
from helpers.publish.terms import term

# Measure -> the claim that defines it.
MEASURES = {
    "outlier_tokens": "nr6-qkv-maps",
    "outlier_images": "nr2-model-size",
    "auc": "nr3-redundancy",
    "iou_top": "nr1-artifacts",
    "onset_depth": "nr7-block-maps",
}
SHARES = ("outlier_tokens", "outlier_images", "onset_depth")  # printed in %
RULES = {"median": "3 × median", "mad": "10 MAD", "percentile": "98th percentile", "fixed": "norm 150"}
DEFAULT = 3  # medians


def draw(models: Sequence[Mapping], registry: Registry) -> str:
    """The figure, of each model's file; the one with most outliers is shown first."""
    models = sorted(models, key=lambda one: -_at_default(one, "outlier_images")[0])
    first, names = models[0], short_names([one["model"] for one in models])
    at, multiples = first["multiples"].index(DEFAULT), first["multiples"]
    titles = {id: registry[id].title for id in first["verdicts"]}
    photographs = first["photographs"]
    data = {
        "shares": [name in SHARES for name in first["measures"]],
        "photographs": {one["id"]: one["jpeg"] for one in photographs},
        "titles": titles,
        "models": [
            {
                **{key: one[key] for key in ("grid", "multiples", "median", "verdicts")},
                "measures": [*one["measures"].values()],
                "rules": _marks(one),
                "passed": [photograph["passed"] for photograph in one["photographs"]],
            }
            for one in models
        ],
    }
    measures = [
        [_label(name), f"<span data-measure='{i}'>{_measured(values[at], name in SHARES)}</span>"]
        for i, (name, values) in enumerate(first["measures"].items())
    ]
    strips = "".join(
        f"<div class='explore-claim'><span>{html(titles[id])}</span> <span data-verdict-of='{id}'>{badge(verdicts[at])}</span>"
        "</div>" + strip(id, verdicts, multiples)
        for id, verdicts in first["verdicts"].items()
    )
    body = [
        controls(
            radios("thresholds-model", "Model", {str(i): name for i, name in enumerate(names)}, [one["model"] for one in models]),
            radios("thresholds-photograph", "Photograph", {str(i): one["title"] for i, one in enumerate(photographs)}),
        ),
        "<div class='explore-columns'><div>",
        panel("patches above the threshold", _lit(photographs[0], first["grid"], at)),
        f"<p data-count>{_lit_told(photographs[0]['passed'], at)}</p>",
        f"</div><div class='explore-strips' style='--n:{len(multiples)};--at:{at}'>",
        slider("thresholds-multiple", "Threshold", len(multiples) - 1, at, _threshold_told(first, at)),
        _rule_marks(first),
        strips,
        "</div></div>",
        "<div class='explore-scroll'>" + table(["Over the images", "Value"], measures, escape=False) + "</div>",
        readout(f"{_threshold_told(first, at)}. {_verdicts_told(first['verdicts'], titles, at)}"),
        folded("Verdicts as a table", _verdict_table(first, titles)),
    ]
    dataset = first["sources"][1]
    caption = (
        f"Measured: {dataset['n']} images of <code>{html(dataset['name'])}</code>. A strip is one claim, judged anew at every "
        "threshold by its own criterion; the marks show where other rules have their threshold. The threshold alone says which "
        "patches are outliers, whether there are any, and from which block on. Intervals are over the images. "
        f"{credited(photographs)}"
    )
    return figure("thresholds", _lead(first, names[0]), body, caption, data)


def _lead(one: Mapping, name: str) -> str:
    """How far the threshold may move from the default before any verdict changes."""
    multiples, at = one["multiples"], one["multiples"].index(DEFAULT)
    same = [all(own[i] == own[at] for own in one["verdicts"].values()) for i in range(len(multiples))]
    low = next((i + 1 for i in range(at, -1, -1) if not same[i]), 0)
    high = next((i - 1 for i in range(at, len(same)) if not same[i]), len(same) - 1)
    return (
        f"{html(name)}: between {multiples[low]:g} and {multiples[high]:g} × the median norm none of {len(one['verdicts'])} "
        "verdicts changes with the threshold."
    )


def _at_default(one: Mapping, name: str) -> list:
    return one["measures"][name][one["multiples"].index(DEFAULT)]


def _threshold_told(one: Mapping, at: int) -> str:
    multiple = one["multiples"][at]
    return f"{multiple:g} × the median, a norm of {fixed(multiple * one['median'], 0)}"


def _verdicts_told(verdicts: Mapping[str, Sequence[str]], titles: Mapping[str, str], at: int) -> str:
    return " ".join(f"{titles[id].rstrip('.?')}: {own[at]}." for id, own in verdicts.items())


def _measured(row: Sequence, share: bool) -> str:
    """A value with its interval, a dash where there is none. As `measured` in explore.js."""
    value, low, high, _ = row
    if value is None:
        return "–"
    value, low, high = (x if x is None else fixed(100 * x, 1) if share else fixed(x, 2) for x in (value, low, high))
    interval = "" if low is None or low == high else f" [{low}, {high}]"
    return f"{value}{interval}{' %' if share else ''}"


def _label(name: str) -> str:
    found = term(MEASURES[name], name)
    return f"<span title='{html(found.higher)}'>{html(found.label)}</span>" if found.higher else html(found.label)


def _marks(one: Mapping) -> list[list]:
    """[label, place] of each rule, as a share of the width of a strip."""
    logs = np.log(one["multiples"])
    marks = []
    for rule, multiple in one["rules"]:
        place = float(np.interp(math.log(multiple), logs, np.arange(len(logs)))) + 0.5
        marks.append([RULES[rule.partition(":")[0]], round(place / len(logs), 4)])
    return sorted(marks, key=lambda mark: mark[1])


def _rule_marks(one: Mapping) -> str:
    marks = "".join(f"<span style='left:{100 * place:.2f}%'>{html(label)}</span>" for label, place in _marks(one))
    return f"<div class='explore-marks' data-marks>{marks}</div>"


def strip(id: str, verdicts: Sequence[str], multiples: Sequence[float]) -> str:
    """The verdicts on one claim from the lowest threshold to the highest."""
    runs: list[list] = []
    for multiple, verdict in zip(multiples, verdicts, strict=True):
        if not runs or runs[-1][0] != verdict:
            runs.append([verdict, multiple, multiple, 0])
        runs[-1][2:] = [multiple, runs[-1][3] + 1]
    told = "; ".join(f"{verdict} from {low:g} to {high:g} medians" for verdict, low, high, _ in runs)
    parts = "".join(f"<span class='{v.replace(' ', '-')}' style='flex:{count}'></span>" for v, _, _, count in runs)
    return f"<div class='explore-strip' data-strip='{id}' role='img' aria-label='{html(told)}'>{parts}</div>"


def _lit(photograph: Mapping, grid: Sequence[int], at: int) -> str:
    """The photograph with the patches above the threshold bright and the others dark."""
    columns = grid[1]
    cells = "".join(
        f"<path d='M{i % columns} {i // columns}h1v1h-1z' class='{'lit' if at < count else 'unlit'}'/>"
        for i, count in enumerate(photograph["passed"])
    )
    return photo(photograph["jpeg"], grid, "lit", _lit_told(photograph["passed"], at), over=cells)


def _lit_told(passed: Sequence[int], at: int) -> str:
    return f"{sum(at < count for count in passed)} of {len(passed)} patches of this photograph are above the threshold."


def _verdict_table(one: Mapping, titles: Mapping[str, str]) -> str:
    head = ["Threshold (medians)", *(titles[id] for id in one["verdicts"])]
    rows = [[f"{multiple:g}", *(own[i] for own in one["verdicts"].values())] for i, multiple in enumerate(one["multiples"])]
    return table(head, rows)
