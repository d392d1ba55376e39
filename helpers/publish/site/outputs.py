"""Stored outputs of a notebook as a page shows them: what a figure's numbers tell goes into its alternative text.

A figure carries its numbers (`helpers.figures.drawn`), so this can be said of notebooks that ran long ago, too.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence

from nbformat import NotebookNode
from nbformat.v4 import new_output

from helpers.condensed import FIGURE
from helpers.names import shortened
from helpers.publish.markdown import inert, table
from helpers.publish.terms import load_terms

PICTURES = ("image/svg+xml", "image/png")
SAID = 4  # axes of a figure whose numbers its alternative text tells


def improve(notebook: NotebookNode, claim: str = "") -> NotebookNode:
    """The notebook with figures that say what they show, a sentence for one that shows a number or none, and tables for dicts.

    Args:
        claim: whose values these are, by whose terms the axes are explained.
    """
    for cell in notebook.cells:
        for i, output in enumerate(cell.get("outputs", ())):
            data = output.get("data", {})
            if FIGURE in data and any(kind in data for kind in PICTURES):
                axes = json.loads(data[FIGURE])
                look = cell.metadata.get("mystnb", {})
                if "figure" in look and (meaning := explained(axes, claim)):
                    look["figure"]["caption"] = f"{look['figure'].get('caption', '')} {inert(meaning)}".strip()
                if sentence := instead(axes):
                    caption = look.get("figure", {}).get("caption", "")
                    cell.outputs[i] = _markdown(f"{sentence} {caption}".strip())
                elif "image" in look and (result := said(axes)):
                    look["image"]["alt"] = f"{look['image'].get('alt', '').rstrip('. ')}. {result}".removeprefix(". ")
            elif set(data) == {"text/plain"} and (text := tabled(data["text/plain"])):
                cell.outputs[i] = _markdown(text)
    return notebook


def instead(axes: Sequence[Mapping]) -> str:
    """The sentence that says as much as a figure with one number, or with none; '' for any other figure. Markdown."""
    if len(axes) != 1 or any(axes[0].get(kind) for kind in ("points", "steps", "boxes", "images", "meshes")):
        return ""
    (ax,) = axes
    lines = ax.get("lines", [])
    margins = [line["x"][0] for line in lines if _upright(line)]
    marks = [line for line in lines if not _upright(line) and not _level(line)]
    label = inert(" ".join((ax["axis"]["x"] or "its value").split()))
    if not marks:
        undefined = [text for text in ax.get("texts", ()) if text == "undefined"]
        return f"No figure: {label} is undefined for {len(undefined)} of the models." if undefined and not margins[1:] else ""
    if len(marks) > 1 or not isinstance(marks[0]["x"], list) or len(marks[0]["x"]) != 1:
        return ""
    ends = [end for part in ax.get("segments", ()) for end in part["x"]] if _short(ax.get("segments", ())) else []
    if len(ends) not in (0, 2):
        return ""
    interval = f" [{ends[0]:.3g}, {ends[1]:.3g}]" if ends else ""
    margin = f", beside the margin {margins[0]:.3g}" if margins else ""
    return f"One number needs no figure. {label[:1].upper()}{label[1:]}: **{marks[0]['x'][0]:.3g}**{interval}{margin}."


def said(axes: Sequence[Mapping]) -> str:
    """What a figure's numbers say in words, an axis after the other: how many values, from where to where, the largest where."""
    told = [text for ax in axes if (text := _of_axis(ax))]
    rest = len(told) - SAID
    return " ".join(told[:SAID]) + (f" {rest} more panels." if rest > 0 else "")


def explained(axes: Sequence[Mapping], claim: str) -> str:
    """What the axes mean that are called by the name of a value: its label, its unit and what a higher value means."""
    told = {}
    for ax in axes:
        called = " ".join(ax["axis"]["x"].split())
        known = load_terms().of(claim, re.sub(r" \(.*\)$", "", called).replace(" ", "_")) if called else None
        if known is not None:
            unit = f", {known.unit}" if known.unit else ""
            higher = f"; further right: {known.higher}" if known.higher else ""
            told[called] = f"{called}: {known.label}{unit}{higher}."
    return " ".join(f"{text[:1].upper()}{text[1:]}" for text in told.values())


def tabled(text: str) -> str:
    """The printed dict of one entry a model as a table; '' for any other text. Markdown."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not isinstance(value, dict):
        return ""
    if not value:
        return "None."
    lines = []
    for model, entry in value.items():
        found = entry if isinstance(entry, list) else [entry]
        parts = [one if isinstance(one, tuple) else (one,) for one in found]
        lines.append((f"`{model}`", "; ".join(", ".join(_number(x) for x in part) for part in parts)))
    return table(("model", "found"), lines)


def _markdown(text: str) -> NotebookNode:
    return new_output("display_data", data={"text/markdown": text})


def _number(x: object) -> str:
    return f"{x:.3g}" if isinstance(x, float) else str(x)


def _of_axis(ax: Mapping) -> str:
    """What the numbers of one axis say; '' where they say nothing, as those of a photograph."""
    title, x, y = (shortened([_joined(ax["axis"][which])])[0] for which in ("title", "x", "y"))
    curves = [line for line in ax.get("lines", ()) if not _upright(line) and not _level(line)]
    if (large := [line for line in curves if _count(line["y"]) > 1 and y]) and y:
        low, high = _ends(line["y"] for line in large)
        top = max(large, key=lambda line: _ends([line["y"]])[1] if _known(line["y"]) else float("-inf"))
        at = _place(top, high) if isinstance(top["x"], list) and isinstance(top["y"], list) else None
        where = f", the largest at {x} {at:.3g}" if at is not None and x else ""
        return _sentence(title, y, low, high, f"{len(large)} curve{'s' * (len(large) > 1)}", where)
    if curves and x and not y:
        low, high = _ends(line["x"] for line in curves)
        count = sum(_count(line["x"]) for line in curves)
        margin = next((f", beside a line at {line['x'][0]:.3g}" for line in ax.get("lines", ()) if _upright(line)), "")
        return _sentence(title, x, low, high, f"{count} value{'s' * (count > 1)}", margin)
    if ax.get("meshes"):
        low, high = _ends(ax["meshes"])
        return _sentence(title or y, "cells", low, high)
    maps = [picture for picture in ax.get("images", ()) if str(picture.get("shape", "")).count("x") < 2]
    if maps and (title or y):
        low, high = _ends(maps)
        return _sentence(" ".join(filter(None, (title, y))), "map", low, high)
    if ax.get("boxes") and y:
        low, high = _ends([ax["boxes"]["height"]])
        return _sentence(title, y, low, high)
    return ""


def _joined(text: str) -> str:
    """A text in one line: a long name was broken after its own marks, other text at spaces."""
    return " ".join(re.sub(r"(?<=\w[_./-])\n", "", text).split())


def _sentence(title: str, what: str, low: float, high: float, how_many: str = "", more: str = "") -> str:
    if low != low or high != high:  # nothing in it is finite
        return ""
    ends = f"is {low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"from {low:.3g} to {high:.3g}"
    return f"{f'{title}: ' if title else ''}{what} {ends}{f' ({how_many})' if how_many else ''}{more}."


def _upright(line: Mapping) -> bool:
    """Whether a line is a margin across the axes: `axvline` has the data 0 to 1."""
    x, y = line["x"], line["y"]
    return isinstance(x, list) and len(x) == 2 and x[0] == x[1] and y == [0, 1]


def _level(line: Mapping) -> bool:
    x, y = line["x"], line["y"]
    return isinstance(y, list) and len(y) == 2 and y[0] == y[1] and x == [0, 1]


def _short(parts: Sequence[Mapping]) -> bool:
    return all(isinstance(part["x"], list) for part in parts)


def _numbers(values: object) -> Iterator[float]:
    """What is known of an array as `helpers.condensed` holds it: its finite numbers, or its ends."""
    if isinstance(values, Mapping):
        values = values.get("numbers") or [values.get("min"), values.get("max")]
    yield from (number for number in values if number is not None)


def _known(values: object) -> bool:
    return next(_numbers(values), None) is not None


def _count(values: object) -> int:
    return values.get("finite", 0) or len(values.get("numbers", ())) if isinstance(values, Mapping) else len(values)


def _ends(arrays: object) -> tuple[float, float]:
    numbers = [number for values in arrays for number in _numbers(values)]
    return (min(numbers), max(numbers)) if numbers else (float("nan"), float("nan"))


def _place(line: Mapping, value: float) -> float | None:
    return next((x for x, y in zip(line["x"], line["y"], strict=True) if y == value), None)
