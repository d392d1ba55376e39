"""The page that compares runs and models: verdicts claim by run, and any two models of any two runs value by value.

The first pair of models stands in the page as HTML. `_static/comparison.js` shows the others by the same rules from the numbers
that lie in the page; a test holds it to what is computed here.
"""

import json
import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Context
from itertools import combinations
from typing import Any

from helpers.names import short_names
from helpers.publish.claims import Claim, Result
from helpers.publish.compare import Comparison, Pair, compared, excludes_zero, lists, settings, weights
from helpers.publish.criteria import Value
from helpers.publish.registry import Registry
from helpers.publish.site.amounts import SHARE, amount
from helpers.publish.site.marks import agreement_badge, badge, html
from helpers.publish.terms import Term, term

Runs = Mapping[str, Mapping[str, dict]]
_THREE = Context(prec=3, rounding=ROUND_HALF_UP)
Side = tuple[str, str]  # a run and a model in it


def matrix(registry: Registry, runs: Runs) -> str:
    """Claim by run: each verdict beside its agreement with the paper, and whether the runs say the same. Markdown."""
    shared = [id for id in registry.claims if sum(id in own for own in runs.values()) > 1]
    if not shared:
        return "No claim has been published in two runs yet."
    lines = []
    for id in shared:
        results = {run: Result.from_json(registry[id], own[id]) for run, own in runs.items() if id in own}
        cells = [
            f"<a href='runs/{run}/{id}.html'>{badge(results[run].verdict, results[run].reason)}</a> "
            f"{agreement_badge(results[run].agreement)}"
            if run in results
            else ""
            for run in runs
        ]
        same = "the same" if len({result.verdict for result in results.values()}) == 1 else "<b>differ</b>"
        about = "".join(f"<td>{cell}</td>" for cell in (*cells, same))
        lines.append(f"<tr><th scope='row'>{id}<small>{html(registry[id].title)}</small></th>{about}</tr>")
    heads = "".join(f"<th scope='col'>{html(name)}</th>" for name in ("Claim", *runs, "Verdicts"))
    table = f"<table class='compared'><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    alone = sum(len(own) for own in runs.values()) - sum(id in own for id in shared for own in runs.values())
    more = f"\n\n{alone} more claims were measured in one run only." if alone else ""
    return f"```{{raw}} html\n<div class='board-frame'>{table}</div>\n```{more}"


def side_by_side(registry: Registry, runs: Runs, shown: tuple[Side, Side] | None = None) -> str:
    """Two models value by value as Markdown: those to be shown as HTML (else those with most values in common), and the numbers
    of all."""
    sides = sides_of(runs)
    if len(sides) < 2:
        return "Two models are needed to compare them; publish another result."
    if shown is None:
        shown = max(combinations(sides, 2), key=lambda pair: sum(len(_rows(one)) for one in pair_of(registry, runs, *pair)))
    first, second = shown
    body = "".join(_claim(registry[one.id], one) for one in pair_of(registry, runs, first, second))
    heads = "".join(f"<th scope='col'>{name}</th>" for name in ("Quantity", "A", "B", "B − A", "Images"))
    data = json.dumps(_data(registry, runs, sides, shown), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return "\n".join([
        "```{raw} html",
        "<div class='comparison'>",
        f"<p class='pair'><b>A</b> {_side(first)} <b>B</b> {_side(second)}</p>",
        f"<div class='board-frame'><table class='compared'><thead><tr>{heads}</tr></thead>{body}</table></div>",
        f"<script type='application/json'>{data}</script>",
        "</div>",
        "```",
    ])  # fmt: skip


def sides_of(runs: Runs) -> list[Side]:
    """Every run with every model that was judged in it."""
    found = [(run, one["model"]) for run, own in runs.items() for data in own.values() for one in data["verdicts"]]
    return list(dict.fromkeys(found))


def pair_of(registry: Registry, runs: Runs, first: Side, second: Side) -> list[Comparison]:
    """The claims that were judged on both."""
    found = []
    for id, claim in registry.claims.items():
        both = [_judged(runs, id, side) for side in (first, second)]
        if all(both):
            found.append(compared(claim, *both, [(first[1], second[1])]))
    return found


def _judged(runs: Runs, id: str, side: Side) -> dict | None:
    """The result of a claim in which this model was judged in this run."""
    data = runs[side[0]].get(id)
    return data if data and any(one["model"] == side[1] for one in data["verdicts"]) else None


def shift(value: Value | None, unit: str) -> str:
    """A difference in words: `+12.3 [+10.1, +14.5] points *`, with a star where its interval leaves out 0.

    Shares differ by points; of p-values no difference is told.
    """
    if value is None or value.value is None or unit == "p-value":
        return ""
    scale, suffix = scaled(unit)
    text = _signed(scale * value.value)
    if None not in (value.low, value.high):
        text += f" [{_signed(scale * value.low)}, {_signed(scale * value.high)}]"
    return text + suffix + (" *" if excludes_zero(value) else "")


def scaled(unit: str) -> tuple[float, str]:
    """By what a difference is multiplied to be told, and its unit as text."""
    if unit.startswith(SHARE):
        return 100.0, " points"
    return 1.0, {"%": " points", "count": "", "": ""}.get(unit, f" {unit}")


def _rows(one: Comparison) -> list[Pair]:
    """What the page shows of a claim: what its criterion names, where both have it."""
    return [pair for pair in one.pairs if pair.judged and pair.a is not None and pair.b is not None]


def _claim(claim: Claim, one: Comparison) -> str:
    """The rows of one claim."""
    ((a, b),) = one.of_models
    told = "<b>differ</b>" if a != b else "the same"
    head = f"<th scope='rowgroup' colspan='5'>{claim.id} <span>{html(claim.title)}</span> A {badge(a)} B {badge(b)} {told}</th>"
    lines = []
    for pair in _rows(one):
        words = term(claim.id, pair.name)
        cells = (
            f"{html(words.label)}<small><code>{html(pair.name)}</code></small>",
            html(amount(pair.a, words)),
            html(amount(pair.b, words)),
            html(shift(pair.difference, words.unit)),
            pair.images,
        )
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    other = "".join(f"<li>{html(what)}: {html(a)} → {html(b)}</li>" for what, (a, b) in one.settings.items())
    folded = f"<details><summary>Settings that differ: {len(one.settings)}</summary><ul>{other}</ul></details>"
    more = f"<tr><td colspan='5'>{folded}</td></tr>"
    return f"<tbody data-claim='{claim.id}'><tr>{head}</tr>{''.join(lines)}{more if other else ''}</tbody>"


def _data(registry: Registry, runs: Runs, sides: list[Side], shown: tuple[Side, Side]) -> dict[str, Any]:
    """The numbers of all sides, as JSON data: for a claim what it names, and for each side verdict and values."""
    models = list(dict.fromkeys(model for _, model in sides))
    names = dict(zip(models, short_names(models), strict=True))
    claims = []
    for id, claim in registry.claims.items():
        wanted = dict.fromkeys(test.value for test in (*claim.criterion.tests, *claim.criterion.applies, *claim.criterion.needs))
        judged = {place: (data, sides[place][1]) for place in range(len(sides)) if (data := _judged(runs, id, sides[place]))}
        cells = {place: _cell(id, data, model, wanted) for place, (data, model) in judged.items()}
        named = [name for name in wanted if any(name in cell["values"] for cell in cells.values())]
        if cells:
            claims.append({
                "id": id,
                "title": claim.title,
                "names": [_name(name, term(id, name)) for name in named],
                "settings": {run: settings(own[id]) for run, own in runs.items() if id in own},
                "cells": cells,
            })  # fmt: skip
    return {
        "sides": [{"run": run, "model": model, "name": names[model]} for run, model in sides],
        "shown": [sides.index(side) for side in shown],
        "claims": claims,
    }


def _cell(id: str, data: Mapping, model: str, wanted: Iterable[str]) -> dict[str, Any]:
    """A claim on a model in JSON: verdict, weights, and of each value the numbers, their text and the list of images."""
    values, drawn = {}, lists(data)
    for one in data["values"]:
        if one["model"] == model and one["name"] in wanted:
            value = Value(**one)
            text = amount(value, term(id, value.name))
            numbers = [value.value, value.low, value.high, value.n]
            values[value.name] = [*numbers, text, " ".join(drawn.get(value.dataset, []))]
    verdict = next(one["verdict"] for one in data["verdicts"] if one["model"] == model)
    return {"verdict": verdict, "weights": weights(data).get(model, "unknown"), "values": values}


def _name(name: str, words: Term) -> list:
    """A value's name, its label, and how a difference of it is told."""
    return [name, words.label, *scaled(words.unit), words.unit != "p-value"]


def _side(side: Side) -> str:
    return f"<code>{html(side[1])}</code> in run {html(side[0])}"


def _signed(x: float) -> str:
    """Three significant digits with a sign; whole numbers above 999 in full, nothing below 1e-9."""
    if abs(x) < 1e-9:
        return "0"
    # As JavaScript rounds, for which half a digit is up.
    rounded = math.floor(abs(x) + 0.5) if abs(x) >= 1000 else float(_THREE.create_decimal(abs(x)))
    return ("+" if x > 0 else "-") + f"{rounded:,.10g}"
