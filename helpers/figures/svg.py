"""A figure as a small SVG: what a page shows and the repository keeps."""

import base64
import io
import re
from collections import Counter
from itertools import groupby

from IPython.core.pylabtools import print_figure
from matplotlib.figure import Figure
from PIL import Image

from helpers.files import digest_of

COLOURS = 256  # of a colour map: a picture with more, or in greys, is a photograph
QUALITY = 80  # of photographs
# What holds lengths in points. Texts hold numbers too, and keep their digits.
_LENGTHS = re.compile(
    r'( (?:d|x|y|x1|x2|y1|y2|cx|cy|r|width|height|transform|points|viewBox)=")([^"]*)(")'
)
# What lies at a place of the drawing. A marker, which has an id, is small and keeps more digits.
_PLACED = re.compile(r'<(?:path|use|text)(?![^>]* id=")[^>]*>')
_FONT, _FAMILY = re.compile(r"(font: [\d.]+px) '[^;\"]*"), re.compile(r"(font-family:) '[^;\"]*")
_PICTURE = re.compile(r"data:image/png;base64,([^\"]*)")
# What draws nothing: a shape without a line and a filling, or without points; an empty group.
_NOTHING = (
    re.compile(r'\s*<path(?![^>]* id=")(?:(?![^>]* d="[^"])|[^>]* style="fill: none")[^>]*/>'),
    re.compile(r"\s*<g(?: [^>]*)?(?:/>|>\s*</g>)"),
)
# What several marks or lines in a row share.
_SHARED = re.compile(r' (?:clip-path|style)="[^"]*"')


def drawn_small(figure: Figure) -> str:
    """The figure as small SVG: the same figure is the same text.

    It has no date, lengths to a tenth of a point, photographs as WebP, and no names of fonts, since
    the page has its own.
    """
    options = {"bbox_inches": "tight", "metadata": {"Date": None, "Creator": None}}
    return small(print_figure(figure, "svg", **options))


def small(svg: str) -> str:
    """The same drawing in less text. What is small already stays as it is.

    Its ids, and the rules of its styles, hang on the drawing: several of them may stand in one
    page.
    """
    if '<svg id="' in svg:
        return svg
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<!--.*?-->|\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns:xlink="[^"]*"| version="1.1"| type="text/css"', "", svg)
    svg = svg.replace(" xlink:href=", " href=")
    svg = _PLACED.sub(lambda found: _shortened(found[0], 1), svg)
    svg = _shortened(svg, 2)
    svg = _FAMILY.sub(r"\1 sans-serif", _FONT.sub(r"\1 sans-serif", svg))
    svg = _PICTURE.sub(lambda found: _picture(found[1]), svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    # Ids are numbered: some of Matplotlib's tell where an object lay in memory.
    numbers = {
        name: str(number)
        for number, name in enumerate(dict.fromkeys(re.findall(r'(?:href="|url\()#([\w.-]+)', svg)))
    }
    svg = re.sub(
        r' id="([^"]*)"',
        lambda found: f' id="{numbers[found[1]]}"' if found[1] in numbers else "",
        svg,
    )
    svg = re.sub(r'((?:href="|url\()#)([\w.-]+)', lambda found: found[1] + numbers[found[2]], svg)
    for nothing in _NOTHING:
        svg = nothing.sub("", svg)
    svg = re.sub(r">\s*\n\s*<", "><", _ungrouped(svg))
    own = f"i{digest_of(svg)[:4]}"
    svg = re.sub(r'( id="|(?:href="|url\()#)(?=\d)', rf"\g<1>{own}", svg)
    return _styled(_grouped(svg), own)


def _ungrouped(svg: str) -> str:
    """Without the groups that have no attribute, and so do nothing."""
    bare: list[bool] = []

    def kept(tag: re.Match) -> str:
        if tag[0] != "</g>":
            bare.append(tag[0] == "<g>")
            return "" if bare[-1] else tag[0]
        return "" if bare.pop() else tag[0]

    return re.sub(r"<g>|<g [^>]*(?<!/)>|</g>", kept, svg)


def _grouped(svg: str) -> str:
    """With marks and lines in a row that look alike in a group, which has their look.

    What is transformed is cut off where it was drawn before, and stays by itself.
    """

    def look(tag: str) -> str:
        alone = re.search(r'^<(?!use |path )|^[^<]| (?:id|transform)="|[ "]opacity: ', tag)
        return "" if alone else "".join(_SHARED.findall(tag))

    parts = []
    for shared, tags in groupby(re.findall(r"[^<]*<[^>]*>|[^<]+$", svg), look):
        run = list(tags)
        if shared and run[1:]:
            run = [f"<g{shared}>", *(_SHARED.sub("", tag) for tag in run), "</g>"]
        parts += run
    return "".join(parts)


def _styled(svg: str, own: str) -> str:
    """With one rule for each style that is there several times; `own` is the drawing's id.

    What has an id itself is drawn where it is used, which rules need not reach, and keeps its
    style. What holds for all is a rule of the drawing, so that a group may say otherwise.
    """
    tags = re.compile(r'<(?![^>]* id=")([^>]*) style="([^"]*)"')
    several = [
        style
        for style, times in Counter(style for _, style in tags.findall(svg)).items()
        if times > 1
    ]
    names = {style: f"c{number}" for number, style in enumerate(several)}
    svg = tags.sub(
        lambda found: f'<{found[1]} class="{names[found[2]]}"' if found[2] in names else found[0],
        svg,
    )
    rules = "".join(f"#{own} .{name}{{{style}}}" for style, name in names.items())
    svg = svg.replace("<style>*{", f"<style>#{own}{{", 1).replace("</style>", f"{rules}</style>", 1)
    return svg.replace("<svg ", f'<svg id="{own}" ', 1)


def _shortened(svg: str, digits: int) -> str:
    """With lengths of so many decimals, and each command of a path once where it goes on."""

    def number(found: re.Match) -> str:
        text = f"{float(found[0]):.{digits}f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text

    def short(found: re.Match) -> str:
        lengths = re.sub(r"-?\d+\.\d+", number, found[2])
        return found[1] + (_path(lengths) if found[1] == ' d="' else lengths) + found[3]

    return _LENGTHS.sub(short, svg)


def _path(commands: str) -> str:
    """The same path; after M come lines, and any other command goes on until the next."""
    before, parts = "", []
    for command, numbers in re.findall(r"([A-Za-z])([^A-Za-z]*)", commands):
        goes_on = command == before != "M" or (before, command) == ("M", "L")
        parts += [" " if goes_on else command, " ".join(numbers.split())]
        before = command
    return "".join(parts)


def _picture(text: str) -> str:
    """The data of a picture within the SVG as WebP: a map exactly, a photograph nearly."""
    picture, file = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGBA"), io.BytesIO()
    colours = picture.getcolors(COLOURS)
    a_map = colours is not None and any(len({*colour[:3]}) > 1 for _, colour in colours)
    picture.save(
        file, "webp", lossless=a_map, exact=a_map, quality=100 if a_map else QUALITY, method=6
    )
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"
