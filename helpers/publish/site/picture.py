"""The picture of the first screen: an image, its norms and its attention, before and after, each pair on one colour scale.

Drawn from the numbers that `python -m helpers explore patches` wrote to book/explore; each map is a picture of one pixel a patch,
which the browser enlarges without smoothing.
"""

import base64
import json
from io import BytesIO
from pathlib import Path

import numpy as np

from helpers.names import short_name
from helpers.packed import unpack
from helpers.publish.site.marks import html

PHOTOGRAPH = "chelsea.png"
STATES = ("before", "moved")


def picture(folder: Path) -> str:
    """The figure as HTML in Markdown, of the first model in `folder` whose outliers have a unit that writes them; '' where there
    is none."""
    for path in sorted(folder.glob("patches-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["neuron"] and set(STATES) <= set(data["states"]):
            return _figure(data)
    return ""


def _figure(data: dict) -> str:
    which = [one["id"] for one in data["photographs"]].index(PHOTOGRAPH)
    states = [data["states"].index(state) for state in STATES]
    maps = {name: unpack(data[name])[states, which, -1].reshape(2, *data["grid"]) for name in ("norms", "attention")}
    photograph, (block, unit) = data["photographs"][which], data["neuron"]
    model = f"<span title='{html(data['model'])}'>{html(short_name(data['model']))}</span>"
    tiles = [_tile("image", f"data:image/jpeg;base64,{photograph['jpeg']}", f"The picture: {photograph['title']}.")]
    for name, word, digits in (("norms", "patch norm", 0), ("attention", "[CLS] attention", 2)):
        most, pair = float(maps[name].max()), maps[name]
        for state, values in zip(("as trained", "unit moved"), pair, strict=True):
            alt = f"Map of the {word}, {state}: largest {values.max():.{digits}f}, in a corner {_corner(values):.{digits}f}."
            tiles.append(_tile(f"{word},<br>{state}", _png(values / most), alt))
        tiles.append(
            f"<div class='scale' aria-hidden='true'><span>{most:.{digits}f}</span><i style='background:{_gradient()}'></i>"
            "<span>0</span></div>"
        )
    caption = (
        f"{photograph['title'].capitalize()} in {model}. Moved: unit {unit} of block {block} acts at an appended token in place "
        "of the patches. Norm after the last block, before LayerNorm; attention in the last block, mean over heads; each pair on "
        f"one colour scale. Photograph: {html(photograph['by'])}, {html(photograph['licence'])}, from scikit-image."
    )
    return f"```{{raw}} html\n<figure class='first'><div>{''.join(tiles)}</div><figcaption>{caption}</figcaption></figure>\n```"


def _tile(title: str, source: str, alt: str) -> str:
    return f"<div class='tile'><span>{title}</span><img src='{source}' alt='{html(alt)}'></div>"


def _corner(values: np.ndarray) -> float:
    """The largest of the four corners."""
    return float(values[[0, 0, -1, -1], [0, -1, 0, -1]].max())


def _png(shares: np.ndarray) -> str:
    """A map of numbers from 0 to 1 in colours, a pixel a patch, as a data address."""
    from matplotlib import colormaps  # here, since it takes a second to import
    from PIL import Image

    file = BytesIO()
    Image.fromarray(colormaps["viridis"](shares, bytes=True)[..., :3]).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _gradient() -> str:
    """The colours of the scale, from the largest value down to 0, in CSS."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return f"linear-gradient({','.join(to_hex(colormaps['viridis'](share)) for share in np.linspace(1, 0, 6))})"
