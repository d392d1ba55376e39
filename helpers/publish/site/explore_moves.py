"""The intervention switch: where outliers are when the picture changes, and when the positions do."""

from collections.abc import Mapping, Sequence

import numpy as np

from helpers.names import short_names
from helpers.packed import unpack
from helpers.publish.site.explore_parts import (
    colour_bar,
    colours,
    credited,
    figure,
    fixed,
    folded,
    panel,
    patch_map,
    photo,
    readout,
    scale_of,
    small_map,
    table,
)
from helpers.publish.site.marks import html

# What is done, in a word and in a sentence; {} are the places where outliers usually are.
CONDITIONS = {
    "as it is": ("as it is", "The picture and the positions as they are."),
    "constant": ("grey", "Every pixel has the picture's mean grey: there is no content left."),
    "noise": ("noise", "Every pixel is drawn on its own."),
    "rolled": ("rolled", "The picture is rolled by half of both sides: what was in its corners meets in the centre."),
    "padded": ("framed", "The picture is half as large, in a grey frame."),
    "flipped": ("flipped", "The picture is flipped, left to right."),
    "cropped": ("cropped", "The centre of the picture, half of each side, is enlarged."),
    "swapped": ("swapped", "The picture stays. The {} patches and the four central ones have each other's position embedding."),
    "permuted": ("permuted", "The picture stays. All patches have each other's position embedding, at random."),
    "zeroed": ("zeroed", "The picture stays. The {} patches have no position embedding."),
}


def draw(models: Sequence[Mapping]) -> str:
    """The figure, of the first model's file."""
    one = models[0]
    grid, conditions, n = one["grid"], one["conditions"], one["n"]
    (rows, columns), first = grid, next(iter(one["conditions"]))
    corners = {0, columns - 1, (rows - 1) * columns, rows * columns - 1}
    places = "corner" if {*one["usual"]} == corners else "usual"
    norms = {kind: unpack(own["norms"]) for kind, own in conditions.items()}
    scale, whole = scale_of(np.concatenate([*norms.values()])), (0.0, 1.0)
    data = {
        "colours": colours(),
        "scale": scale,
        "grid": grid,
        "n": n,
        "conditions": {
            kind: {
                "told": _moved_told(own, CONDITIONS[kind][1].format(places)),
                **{key: own[key] for key in ("frequency", "expected", "picture", "norms")},
            }
            for kind, own in conditions.items()
        },
    }
    default = conditions[first]
    choices = "".join(
        f"<label class='explore-choice' title='{html(CONDITIONS[kind][1].format(places))}'>"
        f"<input type='radio' name='moves-condition' value='{html(kind)}'{' checked' if kind == first else ''} hidden/>"
        + small_map(np.array(own["frequency"]) / n, grid, whole, f"{CONDITIONS[kind][0]}: {_where(own)}", linear=True)
        + f"<span><b>{html(CONDITIONS[kind][0])}</b><br/>{own['count'][0]:.1f} an image</span></label>"
        for kind, own in conditions.items()
    )
    told = _frequency_told(default, norms[first], n, 0, columns)
    lines = [
        [CONDITIONS[kind][0], f"{own['count'][0]:.2f}", _percent(own["images"]), _percent(own["share"]), _percent(own["filled"])]
        for kind, own in conditions.items()
    ]
    body = [
        f"<fieldset class='explore-choices'><legend>Where the outliers are, in {n} images each</legend>{choices}</fieldset>",
        f"<p data-told>{html(data['conditions'][first]['told'])}</p>",
        "<div class='explore-panels'>",
        panel("example", photo(default["picture"], grid, "photograph", one["photograph"]["title"])),
        panel(
            "its patch norms", patch_map(norms[first], grid, scale, "norms", "Patch norms of the example after the last block")
        ),
        panel(
            "how often an outlier",
            patch_map(
                np.array(default["frequency"]) / n,
                grid,
                whole,
                "frequency",
                _where(default),
                framed=default["expected"],
                linear=True,
            ),
        ),
        f"<div class='explore-told'>{readout(told)}</div></div>",
        colour_bar(scale, "patch L2 norm after the last block, before the final LayerNorm"),
        colour_bar(whole, "images in which the patch is an outlier (%)", 100, linear=True),
        folded(
            "All conditions as a table",
            table(
                [
                    "Condition",
                    "Outliers an image",
                    "Images with one (%)",
                    "Of the outliers, where expected (%)",
                    "Of these places, with one (%)",
                ],
                lines,
            ),
        ),
    ]
    dataset = one["sources"][1]
    caption = (
        f"Measured: {n} images of <code>{html(dataset['name'])}</code> in each condition. An outlier is a norm above "
        f"{one['limit']:.0f}, 3 × the median of {dataset['n']} unchanged ones. White frames: where outliers are that follow "
        f"position. {credited([one['photograph']])}"
    )
    return figure("moves", _lead(one, places), body, caption, data)


def _lead(one: Mapping, places: str) -> str:
    grey, rolled, swapped = (_percent(one["conditions"][kind]["share"]) for kind in ("constant", "rolled", "swapped"))
    return (
        f"{html(short_names([one['model']])[0])}: of the outliers {grey} % on grey pictures and {rolled} % on rolled ones are at "
        f"the {places} patches. After a swap of position embeddings {swapped} % are where these went."
    )


def _where(own: Mapping) -> str:
    return (
        f"{own['count'][0]:.1f} outliers an image, {_percent(own['share'])} % of them where position puts them"
        if own["share"][0] is not None
        else "no outlier in any image"
    )


def _moved_told(own: Mapping, what: str) -> str:
    return f"{what} {_where(own).capitalize()}; {_percent(own['filled'])} % of these places have one."


def _frequency_told(own: Mapping, norms: np.ndarray, n: int, patch: int, columns: int) -> str:
    place = f"Row {patch // columns + 1}, column {patch % columns + 1}"
    return f"{place}: an outlier in {own['frequency'][patch]} of {n} images; norm {fixed(norms[patch], 1)} in the example"


def _percent(row: Sequence) -> str:
    return "–" if row[0] is None else f"{100 * row[0]:.1f}".removesuffix(".0")
