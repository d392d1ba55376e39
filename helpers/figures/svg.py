"""A figure as a small SVG: what a page shows and the repository keeps."""

import base64
import io
import re

from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure
from PIL import Image

COLOURS = 256  # of a colour map: a picture with more is a photograph
QUALITY = 80  # of photographs, in WebP
# What holds lengths in points. Texts hold numbers too, and keep their digits.
_LENGTHS = re.compile(r'( (?:d|x|y|x1|x2|y1|y2|cx|cy|r|width|height|transform|points|viewBox)=")([^"]*)(")')
_FONT, _FAMILY = re.compile(r"(font: [\d.]+px) '[^;\"]*"), re.compile(r"(font-family:) '[^;\"]*")
_PICTURE = re.compile(r"data:image/png;base64,([^\"]*)")


def drawn_small(figure: Figure) -> str:
    """The figure as SVG without a date, so that the same figure is the same text: lengths to a hundredth of a point, photographs
    as WebP, and no names of fonts, since it is the page that has one."""
    options = {"bbox_inches": "tight", "metadata": {"Date": None, "Creator": None}}
    return small(print_figure(figure, "svg", **options))


def small(svg: str) -> str:
    """The same drawing in less text."""
    svg = re.sub(r"\s*<!--.*?-->|\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _LENGTHS.sub(lambda found: found[1] + _short(found[2]) + found[3], svg)
    svg = _FAMILY.sub(r"\1 sans-serif", _FONT.sub(r"\1 sans-serif", svg))
    svg = _PICTURE.sub(lambda found: _picture(found[1]), svg)
    # Ids are numbered: some of Matplotlib's tell where an object lay in memory.
    used = dict.fromkeys(re.findall(r'(?:href="|url\()#([\w.-]+)', svg))
    ids = {name: f"i{number}" for number, name in enumerate(used)}
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="{ids[found[1]]}"' if found[1] in ids else "", svg)
    svg = re.sub(r'((?:href="|url\()#)([\w.-]+)', lambda found: found[1] + ids[found[2]], svg)
    return re.sub(r">\s*\n\s*<", ">\n<", svg)


def _short(lengths: str) -> str:
    return re.sub(r"\s*\n\s*", "", re.sub(r"(\.\d\d)\d+", r"\1", lengths))


def _picture(text: str) -> str:
    """The data of a picture within the SVG: a photograph as WebP, a map as it is, to the last of its colours."""
    picture, photograph = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGBA"), io.BytesIO()
    if picture.getcolors(COLOURS) is not None or picture.getextrema()[3][0] < 255:
        return f"data:image/png;base64,{text}"
    picture.convert("RGB").save(photograph, "webp", quality=QUALITY, method=6)
    return f"data:image/webp;base64,{base64.b64encode(photograph.getvalue()).decode()}"
