"""A Sphinx extension: parallel builds, API pages that list what docstrings describe, and figures
and tables that are finished when a page is written.

Figures get a number to refer to, and a frame that scrolls on a phone rather than shrink text below
9 pixels; SVG becomes a part of the page, whose colour and font its text then has. Tables get a
number, a caption and the scope of their heads. The header's button downloads a notebook as it was
run, and not the page's source. The search puts claims first and leaves notebooks out.
"""

import inspect
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from bs4.element import PreformattedString, Tag
from markupsafe import escape
from PIL import Image
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from helpers.book.downloads import notebook_of

# Neither keeps anything from one page to the next while pages are read and written; both only omit
# to say so.
PARALLEL = ("sphinx_multitoc_numbering", "sphinx-mathjax-offline")
SCORER = Path(__file__).with_name("templates") / "search.js"
API = "book/api/"
PHONE = 350  # pixels that a phone has for a figure
LEAST = 9  # pixels of text on a phone
STORED = 11.1  # pixels of the smallest text in a stored picture: 8 points at 100 dots an inch
INKS = re.compile(r"#767676|#666666")  # of text and axes in our figures (helpers.figures.style)
PAPER = "#fefefe"  # what a drawing fills with the colour of the page
CODE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
TITLE = 90  # characters up to which a line in bold above a table is its title


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with Sphinx."""
    parallel = {"parallel_read_safe": True, "parallel_write_safe": True}
    for name in PARALLEL:
        if name in app.extensions:
            vars(app.extensions[name]).update(parallel)
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-skip-member", _skip)
    app.connect("config-inited", _search)
    app.connect("env-updated", _searched)
    app.connect("html-page-context", _page, priority=900)
    return parallel


def _search(app: Sphinx, config: Config) -> None:
    """Let the search put claims first."""
    config.html_search_scorer = config.html_search_scorer or str(SCORER)


def _searched(app: Sphinx, env: BuildEnvironment) -> None:
    """Leave notebooks out of the search: the pages of their claims say what they found."""
    for page in filter(notebook_of, env.found_docs):
        env.metadata[page]["nosearch"] = True


def _skip(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Whether to leave out a member: the fields of a class, which its docstring lists."""
    listed = inspect.isroutine(member) or isinstance(member, property | cached_property)
    return True if what == "class" and not listed else None


def _page(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """What Sphinx calls for each page before it is written."""
    notebook = notebook_of(pagename)
    for group in context.get("header_buttons", ()) if notebook else ():
        for button in group.get("buttons", ()):
            if button["label"] == "download-source-button":
                button |= {"url": context["pathto"](notebook, 1), "text": Path(notebook).suffix}
    for at, name in ((1, "prev"), (2, "next")):  # past what is no page of its own in the order
        beside = app.builder.relations.get(pagename, (None,) * 3)[at]
        while beside and notebook_of(beside):
            beside = app.builder.relations[beside][at]
        if beside and context.get(name) and not notebook:
            title = app.builder.render_partial(app.env.titles[beside])["title"]
            context[name] = {"link": context["pathto"](beside), "title": title}
        else:
            context[name] = None
    # The theme's heading for print, which it fills in without escaping it.
    context["pagetitle"] = escape(context.get("pagetitle", ""))
    if context.get("body") and doctree is not None:
        files = {name: Path(app.srcdir, source) for source, name in app.builder.images.items()}
        context["body"] = finished(context["body"], files.get)
        if pagename.startswith(API):
            context["body"] = folded(context["body"])


def finished(body: str, find: Callable[[str], Path | None]) -> str:
    """The body of a page with its figures and tables finished.

    Args:
        find: the file of a picture by the name of it in the page, None where it is unknown.
    """
    code = iter(CODE.findall(body))  # put aside: its spans are most of a notebook's tags
    soup = BeautifulSoup(CODE.sub("<pre></pre>", body), "html.parser")
    # Those that Sphinx made; a page's own drawings look after themselves.
    captions = soup.select("figure:not([data-explore]) > figcaption .caption-text")
    for number, caption in enumerate(captions, 1):
        caption.insert_before(_element(soup, "span", "caption-number", f"Our figure {number}. "))
        figure = caption.find_parent("figure")
        if re.fullmatch(r"(id\d+)?", figure.get("id", "")):
            figure["id"] = f"figure-{number}"
            for link in figure.select("a.headerlink"):
                link["href"] = f"#figure-{number}"
        if (image := figure.find("img")) is not None:
            path = find(image.get("src", "").rpartition("/")[2])
            frame = image.wrap(_element(soup, "div", "figure-frame"))
            frame["aria-label"] = f"Our figure {number}"
            if path is not None and path.suffix == ".svg":
                drawing = inline(path.read_text(encoding="utf-8"), number, image.get("alt", ""))
                frame["style"] = re.search(r"--own:\d+px;--tall:[\d.]+", drawing)[0]
                # As it is, since the parser writes SVG in lower case.
                frame.string = PreformattedString(drawing)
            elif path is not None and path.suffix == ".png":
                _size(image, path)
    tables = soup.select("table:not(figure table):not(:has(> caption))")
    for number, table in enumerate(tables, 1):
        _table(soup, table, number)
    return CODE.sub(lambda _: next(code), str(soup))


def folded(body: str) -> str:
    """A page of the API as a summary: of what each object does, all but the first paragraph is
    folded.
    """
    soup = BeautifulSoup(body, "html.parser")
    for part in soup.select("dl.py > dd"):
        more = part.find_all(True, recursive=False)[1:]
        if more:
            details = _element(soup, "details", "api-more")
            details.append(_element(soup, "summary", "api-more", "arguments, shapes, sources"))
            more[0].insert_before(details)
            for one in more:
                details.append(one)
    return str(soup)


def inline(svg: str, number: int, label: str) -> str:
    """An SVG file as a part of a page: ids of its own, ink in the page's colour, legible text.

    Args:
        number: of the figure on its page.
        label: what is said to who cannot see it.

    Raises:
        ValueError: the file is no SVG.
    """
    if (start := svg.find("<svg")) < 0:
        raise ValueError("a figure is no SVG; draw it anew")
    own = f"f{number}"
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[start:], flags=re.DOTALL)
    svg = re.sub(r'( id="|href="#|url\(#|[>}]#(?=\w+(?: \.\w+)?\{))', rf"\g<1>{own}-", svg)
    svg = re.sub(r"(?<=[>}])\*(?=\{)", f".{own} *", svg)
    svg = INKS.sub("currentColor", svg).replace(PAPER, "var(--pst-color-background)")
    svg = re.sub(r"font-family: [^;\"}]*;?\s*", "", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"}]*", r"font-size: \1", svg)
    box = re.search(r'viewBox="[\d.-]+ [\d.-]+ ([\d.]+) ([\d.]+)', svg)
    width, height = map(float, box.groups())
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
    look = _look(width * 4 / 3, height / width, LEAST * width / min(sizes) if sizes else 0)
    head = f'<svg class="drawn {own}" role="img" aria-label="{escape(label)}" style="{look}"'
    return re.sub(r'^<svg(.*?) width="[^"]*" height="[^"]*"', rf"{head}\1", svg, flags=re.DOTALL)


def _size(image: Tag, path: Path) -> None:
    """Say how large a stored picture is, so that nothing moves when it arrives."""
    with Image.open(path) as stored:
        width, height = stored.size
    look = _look(width, height / width, LEAST * width / STORED)
    image.attrs |= {"width": str(width), "height": str(height), "style": look}


def _look(width: float, tall: float, least: float) -> str:
    """The style of a picture `width` pixels wide and `tall` times as high, whose text is too small
    below `least`.
    """
    least = f"{least:.0f}px" if least > PHONE else 0
    own = f"--own:{width:.0f}px;--tall:{tall:.2f}"
    return f"{own};width:min(100%,{width:.0f}px);min-width:{least}"


def _table(soup: BeautifulSoup, table: Tag, number: int) -> None:
    """Number a table, name it by the bold line or the heading above it, and scope its heads."""
    title = table.find_previous_sibling()
    is_bold = title is not None and title.name == "p" and title.find("strong") is not None
    if not is_bold or len(title.get_text()) >= TITLE:
        title = table.find_previous(re.compile("^h[1-6]$"))
    name = " ".join(title.get_text().split()).rstrip("# ") if title else "Table"
    table.insert(0, _element(soup, "caption", "table-caption", f"Our table {number}. {name}"))
    table["id"] = table.get("id") or f"table-{number}"
    if table.thead and not table.thead.get_text().strip():
        table.thead.decompose()  # a Markdown table cannot do without a head
        for cell in table.select("tr > :first-child"):
            cell.name = "th"
    for part, scope in (("thead", "col"), ("tbody", "row")):
        for cell in table.select(f"{part} th:not([scope])"):
            cell["scope"] = scope
    if table.find_parent(class_="scoreboard-frame") is None:
        frame = table.wrap(_element(soup, "div", "table-frame"))
        frame["aria-label"] = f"Our table {number}"


def _element(soup: BeautifulSoup, name: str, class_: str, text: str | None = None) -> Tag:
    return soup.new_tag(name, attrs={"class": class_}, string=text)
