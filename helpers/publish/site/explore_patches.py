"""The patch explorer: norm and [CLS] attention of each patch, by block and state of the model."""

from collections.abc import Mapping, Sequence

import numpy as np

from helpers.names import short_names
from helpers.packed import unpack
from helpers.publish.site.explore_parts import (
    colour_bar,
    colours,
    controls,
    credited,
    figure,
    fixed,
    folded,
    panel,
    patch_map,
    photo,
    radios,
    readout,
    scale_of,
    slider,
    small_map,
    table,
)
from helpers.publish.site.marks import html

STATES = {
    "before": "as it is",
    "set to zero": "unit set to zero",
    "moved": "unit moved to an extra token",
    "empty token": "empty extra token",
}


def draw(models: Sequence[Mapping]) -> str:
    """The figure, of each model's file; the first one that has outliers is shown first."""
    models = sorted(models, key=lambda one: one["neuron"] is None)
    first = models[0]
    norms, attention = unpack(first["norms"]), unpack(first["attention"])
    scales = {
        "norms": scale_of(np.concatenate([unpack(one["norms"]).ravel() for one in models])),
        "attention": scale_of(np.concatenate([unpack(one["attention"]).ravel() for one in models])),
    }
    photographs = {one["id"]: one for model in models for one in model["photographs"]}
    ids = [one["id"] for one in first["photographs"]]
    blocks, names = norms.shape[2], short_names([one["model"] for one in models])
    counts = np.array(first["outliers"])[0, 0]
    block = int((counts > 0).argmax()) if counts.any() else blocks - 1
    values, seen, (rows, columns) = norms[0, 0, block], attention[0, 0, block], first["grid"]
    patch = int(values.argmax())
    data = {
        "colours": colours(),
        "scales": scales,
        "photographs": {id: photographs[id]["jpeg"] for id in ids},
        "states": STATES,
        "patch": patch,
        "models": [
            {key: one[key] for key in ("grid", "corners", "neuron", "states", "norms", "attention", "medians", "outliers")}
            for one in models
        ],
    }
    told = (
        f"Row {patch // columns + 1}, column {patch % columns + 1}: norm {fixed(values[patch], 1)}, "
        f"{fixed(values[patch] / first['medians'][0][block], 1)} × the median, "
        f"rank {1 + int((values > values[patch]).sum())} of {rows * columns}; [CLS] attention {fixed(100 * seen[patch], 2)} %"
    )
    film = "".join(
        f"<div class='explore-state'>{html(STATES[state])}</div><div class='explore-film-row' data-state='{html(state)}'>"
        + "".join(small_map(norms[i, 0, b], first["grid"], scales["norms"], f"after block {b}") for b in range(blocks))
        + "</div>"
        for i, state in _shown(first)
    )
    body = [
        controls(
            radios("patches-model", "Model", {str(i): name for i, name in enumerate(names)}, [one["model"] for one in models]),
            radios("patches-photograph", "Photograph", {str(i): photographs[id]["title"] for i, id in enumerate(ids)}),
            radios("patches-state", "Model state", STATES),
            slider("patches-block", "After block", blocks - 1, block, str(block)),
        ),
        "<div class='explore-panels'>",
        panel(
            "what the model sees",
            photo(photographs[ids[0]]["jpeg"], first["grid"], "photograph", photographs[ids[0]]["title"], patch),
        ),
        panel(
            "patch norm",
            patch_map(values, first["grid"], scales["norms"], "norms", f"Patch norms after block {block}: {told}", patch),
        ),
        panel(
            "[CLS] attention",
            patch_map(
                seen, first["grid"], scales["attention"], "attention", f"[CLS] attention to the patches in block {block}", patch
            ),
        ),
        f"<div class='explore-told'>{readout(told)}<p data-count>{_counted(int(counts[block]), block)}</p></div></div>",
        f"<div class='explore-film' role='img' aria-label='{html(_film_told(first, norms))}'>{film}<div></div>"
        f"<div class='explore-ends'><span>after block 0</span><span>after block {blocks - 1}</span></div></div>",
        colour_bar(scales["norms"], "patch L2 norm, before the final LayerNorm"),
        colour_bar(scales["attention"], "[CLS] attention to a patch, mean over heads (%)", 100),
        folded("The largest norms as a table", _norm_table(first, norms)),
    ]
    caption = (
        "Colours mean the same in every block, state and model (logarithmic). The median is that of the same photograph and "
        f"block in the model as it is. {credited(first['photographs'])}"
    )
    return figure("patches", _lead(first, names[0], norms, block), body, caption, data)


def _shown(one: Mapping) -> list[tuple[int, str]]:
    """The states of a model with their places in its file, in the order of the page."""
    return [(one["states"].index(state), state) for state in STATES if state in one["states"]]


def _lead(first: Mapping, name: str, norms: np.ndarray, block: int) -> str:
    """What the default view shows, of the first photograph."""
    largest, unit = norms[:, 0].max(-1), first["neuron"]
    if not unit or not block:
        return f"{html(name)}, block by block: the largest patch norm is {largest[0].max():.0f}."
    off = first["states"].index("set to zero")
    corners = [*np.flatnonzero(norms[0, 0, block] > 3 * first["medians"][0][block])] == first["corners"]
    return (
        f"{html(name)}: after block {block} {'the four corners' if corners else 'a few patches'} glow. The largest patch norm "
        f"jumps from {largest[0, block - 1]:.0f} to {largest[0, block]:.0f}. With one unit set to zero (unit {unit[1]} of block "
        f"{unit[0]}) it is {largest[off, block]:.0f}."
    )


def _film_told(first: Mapping, norms: np.ndarray) -> str:
    """The small maps in words, by state."""
    largest = norms[:, 0].max(-1)
    return "Largest patch norm by block. " + " ".join(
        f"{STATES[state]}: {', '.join(fixed(x, 0) for x in largest[i])}." for i, state in _shown(first)
    )


def _norm_table(first: Mapping, norms: np.ndarray) -> str:
    head = ["After block", "Median norm", *(f"Largest, {STATES[state]}" for _, state in _shown(first))]
    rows = [
        [str(b), fixed(first["medians"][0][b], 1), *(fixed(norms[i, 0, b].max(), 1) for i, _ in _shown(first))]
        for b in range(norms.shape[2])
    ]
    return table(head, rows)


def _counted(count: int, block: int) -> str:
    patches = "no patch is" if count == 0 else "1 patch is" if count == 1 else f"{count} patches are"
    return f"After block {block}, {patches} above 3 × the median."
