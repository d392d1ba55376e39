"""What the figures that can be touched are made of, as HTML: maps of patches, controls, tables.

A number has its colour from one list (viridis), on one scale a figure; explore.js has the same list, scale and rounding, so that
what it draws first is what stands there already.
"""

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from io import BytesIO

import numpy as np
from PIL import Image

from helpers.publish.site.marks import html

COLOURS = 64


def figure(kind: str, lead: str, body: Iterable[str], caption: str, data: Mapping) -> str:
    """The whole figure: what it shows, in a sentence, comes first; last the data from which explore.js changes it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    inside = "\n".join(body)
    return (
        f"<figure class='explore explore-{kind}' data-explore='{kind}'>\n<p class='explore-lead'>{lead}</p>\n{inside}\n"
        f"<figcaption><span class='caption-text'>{caption}</span></figcaption>\n"
        f"<script type='application/json'>{text}</script>\n</figure>"
    )


def controls(*parts: str) -> str:
    """What needs JavaScript stays hidden until it is there."""
    return f"<div class='explore-controls' hidden>{''.join(parts)}</div>"


def radios(name: str, legend: str, choices: Mapping[str, str], titles: Sequence[str] = ()) -> str:
    """One of `choices`, value -> label, each with the longer name of `titles`; nothing to choose where there is one."""
    if len(choices) < 2:
        return ""
    buttons = "".join(
        f"<label title='{html(title)}'><input type='radio' name='{name}' value='{html(value)}'{' checked' if i == 0 else ''}/> "
        f"{html(label)}</label>"
        for i, ((value, label), title) in enumerate(zip(choices.items(), titles or choices.values(), strict=True))
    )
    return f"<fieldset><legend>{html(legend)}</legend>{buttons}</fieldset>"


def slider(name: str, label: str, most: int, value: int, told: str) -> str:
    """A slider from 0 to `most`, whose place is `told` in words."""
    return (
        f"<div class='explore-range'><label for='{name}'>{html(label)}: <output for='{name}'>{html(told)}</output></label>"
        f"<input type='range' id='{name}' name='{name}' min='0' max='{most}' step='1' value='{value}' "
        f"aria-valuetext='{html(told)}' autocomplete='off' hidden/></div>"
    )


def panel(title: str, inside: str) -> str:
    """A picture or map under its title."""
    return f"<div class='explore-panel'><div class='explore-title'>{html(title)}</div>{inside}</div>"


def readout(told: str) -> str:
    """What a screen reader is told when it changes."""
    return f"<p class='explore-readout' aria-live='polite'>{html(told)}</p>"


def folded(summary: str, inside: str) -> str:
    """A table behind a click."""
    return f"<details><summary>{html(summary)}</summary><div class='explore-scroll'>{inside}</div></details>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], escape: bool = True) -> str:
    """A table whose first column names the rows; texts are HTML already where they need no `escape`."""
    cell = html if escape else str
    names = "".join(f"<th scope='col'>{html(name)}</th>" for name in head)
    lines = "".join(
        f"<tr><th scope='row'>{cell(first)}</th>{''.join(f'<td>{cell(text)}</td>' for text in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<table class='explore-table'><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"


def photo(jpeg: str, grid: Sequence[int], name: str, told: str, patch: int = 0, over: str = "") -> str:
    """A picture as wide as the grid of its patches, with a cursor over the patch `patch`, or something else drawn `over` it."""
    rows, columns = grid
    return (
        f"<svg class='explore-map' data-map='{name}' viewBox='0 0 {columns} {rows}' role='img' aria-label='{html(told)}'>"
        f"<image href='data:image/jpeg;base64,{jpeg}' width='{columns}' height='{rows}' preserveAspectRatio='none'/>"
        f"{over or _cursor(patch, columns)}</svg>"
    )


def patch_map(
    values: np.ndarray, grid: Sequence[int], scale: tuple[float, float], name: str, told: str, patch: int = 0,
    framed: Sequence[int] = (), linear: bool = False,
) -> str:  # fmt: skip
    """A map of the patches, a path each in their order, with frames around some and a cursor over the patch `patch`."""
    rows, columns = grid
    own = colours()
    cells = "".join(
        f"<path d='M{i % columns} {i // columns}h1v1h-1z' fill='{own[level(value, scale, linear)]}'/>"
        for i, value in enumerate(values)
    )
    frames = "".join(_square(i, columns) for i in framed)
    return (
        f"<svg class='explore-map' data-map='{name}' viewBox='0 0 {columns} {rows}' role='img' aria-label='{html(told)}'>"
        f"<g shape-rendering='crispEdges'>{cells}</g><g class='explore-frames'>{frames}</g>{_cursor(patch, columns)}</svg>"
    )


def _cursor(patch: int, columns: int) -> str:
    """Black around white, which is seen on every colour."""
    return f"<g class='explore-cursor'>{_square(patch, columns) * 2}</g>"


def _square(patch: int, columns: int) -> str:
    return f"<rect x='{patch % columns}' y='{patch // columns}' width='1' height='1'/>"


def small_map(values: np.ndarray, grid: Sequence[int], scale: tuple[float, float], told: str, linear: bool = False) -> str:
    """A small map as a picture, a pixel for each patch."""
    palette = [int(colour[i : i + 2], 16) for colour in colours() for i in (1, 3, 5)]
    levels = np.array([level(value, scale, linear) for value in values], dtype=np.uint8).reshape(grid)
    image, file = Image.fromarray(levels, "P"), BytesIO()
    image.putpalette(palette)
    image.save(file, "PNG", optimize=True)
    address = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return f"<img src='{address}' alt='{html(told)}' width='{grid[1]}' height='{grid[0]}'/>"


def colour_bar(scale: tuple[float, float], label: str, factor: float = 1, linear: bool = False) -> str:
    """What the colours mean: a bar with its ends and a few values between them."""
    low, high = scale
    middle = [low + (high - low) * share if linear else low * (high / low) ** share for share in (0, 1 / 3, 2 / 3, 1)]
    ends = "".join(f"<span>{float(f'{factor * x:.2g}'):g}</span>" for x in middle)
    ramp = f"linear-gradient(90deg,{','.join(colours()[::9])})"
    return (
        f"<div class='explore-bar'><div>{html(label)}</div><div class='explore-ramp' style='background:{ramp}'></div>"
        f"<div class='explore-ends'>{ends}</div></div>"
    )


def credited(photographs: Sequence[Mapping]) -> str:
    """Who took the photographs that are shown, and on what terms."""
    named = "; ".join(f"{html(p['title'])}: {html(p['by'])}, {html(p['licence'])}" for p in photographs)
    return f"Photograph{'s' if len(photographs) > 1 else ''} from scikit-image: {named}."


def fixed(number: float, digits: int) -> str:
    """A number with so many decimals, a tie away from zero: as JavaScript's toFixed, where Python takes the even digit."""
    return str(Decimal(float(number)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def scale_of(values: np.ndarray) -> tuple[float, float]:
    """The ends of a logarithmic scale: all but the lowest hundredth of what is positive."""
    positive = values[values > 0]
    return float(f"{np.quantile(positive, 0.01):.2g}"), float(f"{positive.max():.3g}")


def level(value: float, scale: tuple[float, float], linear: bool = False) -> int:
    """Which colour a number has. As `level` in explore.js."""
    low, high = scale
    share = (value - low) / (high - low) if linear else math.log(max(value, low) / low) / math.log(high / low)
    return int(min(max(share, 0), 1) * (COLOURS - 1) + 0.5)


@cache
def colours() -> list[str]:
    """Viridis, from the lowest to the highest."""
    from matplotlib import colormaps  # here, since it takes seconds to import
    from matplotlib.colors import to_hex

    return [to_hex(colour) for colour in colormaps["viridis"](np.linspace(0, 1, COLOURS))]
