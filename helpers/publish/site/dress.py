"""A Sphinx extension that dresses the figures and tables of each page, when the page is written.

Figures: a number to refer to, SVG in the page itself (its text in the page's colour and font), and a frame that scrolls on a
phone rather than shrink text below 9 pixels.
Tables: a number, a caption, and heads that say what they are the head of.
Buttons: a notebook is downloaded as it was run, from where it lies once, and not as the page's source.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import Tag
from PIL import Image

from helpers.publish.site.downloads import notebook_of

PHONE = 350  # pixels that a phone has for a figure
LEAST = 9  # pixels of text on a phone
STORED = 11.1  # pixels of the smallest text in a stored picture at its own size: 8 points at 100 dots an inch
INKS = re.compile(r"#767676|#666666")  # of text and axes in our figures (helpers.figures.style)
PAPER = "#fefefe"  # what a drawing fills with the colour of the page
AUTOMATIC = re.compile(r"id\d+")
HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]

Find = Callable[[str], Path | None]


def setup(app: Any) -> dict[str, bool]:
    """Connect with Sphinx."""
    app.connect("html-page-context", _page, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def dressed(body: str, find: Find) -> str:
    """The body of a page with its figures and tables dressed.

    Args:
        find: the file of a picture by the name of it in the page, None where it is unknown.
    """
    soup, drawings = BeautifulSoup(body, "html.parser"), dict[str, str]()
    # Those that Sphinx made; a page's own drawings look after themselves.
    captioned = (figure for figure in soup.find_all("figure") if figure.select_one("figcaption .caption-text") is not None)
    made = [figure for figure in captioned if not figure.has_attr("data-explore")]
    for number, figure in enumerate(made, 1):
        _figure(soup, figure, number, find, drawings)
    number = 0
    for table in soup.find_all("table"):
        if table.find_parent("figure") is None and table.find("caption", recursive=False) is None:
            number += 1
            _table(soup, table, number)
    text = str(soup)
    for place, drawing in drawings.items():  # afterwards, since the parser would write SVG in lower case
        text = text.replace(place, drawing)
    return text


def inline(svg: str, number: int, label: str) -> str:
    """An SVG file as a part of a page: ids of its own, the page's colour for its ink, text no smaller than 9 pixels on a phone.

    Raises ValueError where the file is no SVG.
    """
    if (start := svg.find("<svg")) < 0:
        raise ValueError("a figure is no SVG; draw it anew")
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg[start:], flags=re.DOTALL)
    if own := re.match(r'<svg id="([^"]*)" ', svg):  # of a small drawing, whose rules name it
        svg = svg.replace(own[0], "<svg ", 1).replace(f"#{own[1]} .", ".")
    used = set(re.findall(r"(?:#|url\(#)([\w.-]+)", svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: f' id="f{number}-{found[1]}"' if found[1] in used else "", svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>f{number}-", svg)
    svg = INKS.sub("currentColor", svg).replace(PAPER, "var(--pst-color-background)")
    svg = re.sub(r"(?<=[>}])([*]|\.\w+)(?=\{)", rf"#f{number} \1", svg)
    svg = re.sub(r"font-family: [^;\"}]*;?\s*", "", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"}]*", r"font-size: \1", svg)
    width = float(re.search(r'viewBox="[\d.-]+ [\d.-]+ ([\d.]+)', svg)[1])
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    least = LEAST * width / min(sizes) if sizes else 0
    head = (
        f'<svg id="f{number}" class="drawn" role="img" aria-label="{_attribute(label)}" '
        f'style="width:min(100%,{width * 4 / 3:.0f}px);min-width:{_least(least)}"'
    )
    return re.sub(r'^<svg(.*?) width="[^"]*" height="[^"]*"', rf"{head}\1", svg, count=1, flags=re.DOTALL)


def _figure(soup: BeautifulSoup, figure: Tag, number: int, find: Find, drawings: dict[str, str]) -> None:
    """Number a figure and dress its picture."""
    own = figure.get("id") or ""
    if not own or AUTOMATIC.fullmatch(own):
        figure["id"] = f"figure-{number}"
        for link in figure.select("a.headerlink"):
            link["href"] = f"#figure-{number}"
    caption = figure.select_one("figcaption .caption-text")
    caption.insert_before(_element(soup, "span", "caption-number", f"Our figure {number}. "))
    image = figure.find("img")
    if image is None:
        return
    name = image.get("src", "").rpartition("/")[2]
    path = find(name)
    frame = _element(soup, "div", "figure-frame")
    frame["aria-label"] = f"Our figure {number}"
    image.replace_with(frame)
    if path is not None and path.suffix == ".svg":
        place = f"[[drawing-{number}]]"
        drawings[place] = inline(path.read_text(encoding="utf-8"), number, image.get("alt", ""))
        frame.string = place
        return
    frame.append(image)
    if path is None or path.suffix != ".png":
        return
    with Image.open(path) as stored:
        width, height = stored.size
    image["width"], image["height"] = str(width), str(height)  # so that nothing moves when it arrives
    image["style"] = f"width:min(100%,{width}px);min-width:{_least(LEAST * width / STORED)}"


def _table(soup: BeautifulSoup, table: Tag, number: int) -> None:
    """Number a table, call it by the heading that it stands under, and say what its heads are the heads of."""
    if "genindextable" in table.get("class", ()):
        return
    # A short line in bold right above a table is its title; else the heading is that it stands under.
    above = table.find_previous_sibling()
    bold = above is not None and above.name == "p" and above.find("strong") is not None and len(above.get_text()) < 90
    heading = above if bold else table.find_previous(HEADINGS)
    called = " ".join(heading.get_text().split()).rstrip("# ") if heading else "Table"
    table.insert(0, _element(soup, "caption", "table-caption", f"Our table {number}. {called}"))
    table["id"] = table.get("id") or f"table-{number}"
    head = table.find("thead", recursive=False)
    heads = head.find_all("th") if head else []
    if heads and not any(cell.get_text().strip() for cell in heads):  # a Markdown table cannot do without a head
        head.decompose()
        heads = []
        for row in table.find_all("tr"):
            if (first := row.find(["td", "th"], recursive=False)) is not None:
                first.name, first["scope"] = "th", "row"
    for cell in heads:
        cell["scope"] = cell.get("scope") or "col"
    for cell in table.select("tbody th"):
        cell["scope"] = cell.get("scope") or "row"
    if table.find_parent(class_="scoreboard-frame") is None:
        frame = _element(soup, "div", "table-frame")
        frame["aria-label"] = f"Our table {number}"
        table.wrap(frame)


def _element(soup: BeautifulSoup, name: str, class_: str, text: str = "") -> Tag:
    element = soup.new_tag(name, attrs={"class": class_})
    if text:
        element.string = text
    return element


def _least(pixels: float) -> str:
    """The width below which a picture's text would be too small, 0 where a phone is as wide as that."""
    return "0" if pixels <= PHONE else f"{pixels:.0f}px"


def _attribute(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def _page(app: Any, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """What Sphinx calls for each page before it is written."""
    if notebook := notebook_of(pagename):
        for button in (button for group in context.get("header_buttons", ()) for button in group.get("buttons", ())):
            if button["label"] == "download-source-button":
                button |= {"url": context["pathto"](notebook, 1), "text": Path(notebook).suffix}
    if not context.get("body") or doctree is None:
        return
    files = {name: Path(app.srcdir, source) for source, name in app.builder.images.items()}
    context["body"] = dressed(context["body"], files.get)
