"""A figure as SVG: what a page shows and the repository keeps."""

import base64
import io
import re

from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure
from PIL import Image

COLOURS = 256  # of a colour map: a picture with more, or in greys, is a photograph
QUALITY = 80  # of photographs
_LENGTHS = re.compile(r'( (?:d|x|y|width|height|points)=")([^"]*)(")')
_CLIP = re.compile(r"\bp[0-9a-f]{10}\b")  # the id of a clip, which tells where it lay in memory
_PICTURE = re.compile(r"data:image/png;base64,([^\"]*)")


def drawn_small(figure: Figure) -> str:
    """The figure as SVG without a date, lengths to a tenth of a point, pictures as WebP.

    The same figure is the same text.
    """
    options = {"bbox_inches": "tight", "metadata": {"Date": None, "Creator": None}}
    svg = print_figure(figure, "svg", **options)
    clips = [*dict.fromkeys(_CLIP.findall(svg))]
    svg = _CLIP.sub(lambda found: f"clip{clips.index(found[0])}", svg)
    svg = _LENGTHS.sub(lambda found: found[1] + _rounded(found[2]) + found[3], svg)
    return _PICTURE.sub(lambda found: _as_webp(found[1]), svg)


def _rounded(lengths: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda found: f"{round(float(found[0]), 1):g}", lengths)


def _as_webp(text: str) -> str:
    """A picture's data URI: a map exactly, a photograph nearly."""
    picture, file = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGBA"), io.BytesIO()
    colours = picture.getcolors(COLOURS)
    is_map = colours is not None and any(len({*colour[:3]}) > 1 for _, colour in colours)
    picture.save(
        file, "webp", lossless=is_map, exact=is_map, quality=100 if is_map else QUALITY, method=6
    )
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
