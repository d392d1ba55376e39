"""A Sphinx extension: parallel builds, API pages that list what docstrings describe, buttons that
download a notebook as it was run and open its source, what a shared link shows, pages without the
theme's script of all icons, and a search that puts claims first and leaves notebooks out.
"""

import inspect
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from fontTools.subset import Subsetter
from fontTools.ttLib import TTFont
from markupsafe import Markup, escape
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from helpers.book.downloads import notebook_of
from helpers.claims.registry import load_registry

# It keeps nothing from one page to the next while pages are read and written, and omits to say so.
PARALLEL = "sphinx_multitoc_numbering"
SCORER = Path(__file__).with_name("templates") / "search.js"
PREVIEW = "_static/preview.png"  # what a shared link shows
SHORT, LONG = 40, 200  # letters, at least and at most, of the description of a page
# The theme's icons are in a font, too. Only the page of the search searches, and no other marks its
# words: of "DINOv2-L" it would mark every l.
ICONS_SCRIPT = re.compile(r'\s*<script[^>]* src="[^"]*/fontawesome\.js[^"]*"></script>')
SEARCH = re.compile(
    r'\s*<script src="[^"]*(?:searchtools|language_data|searchindex|sphinx_highlight)\.js'
    r'[^"]*"></script>'
)
# Around each word of a signature: a quarter of the reference's weight.
WORD = re.compile(r'<span class="(?:pre|w)">([^<]*)</span>')
ICON = re.compile(r"\bfa-([\w-]+)")
ICON_RULE = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"\\(\w+)"\}')


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with Sphinx."""
    parallel = {"parallel_read_safe": True, "parallel_write_safe": True}
    if PARALLEL in app.extensions:
        vars(app.extensions[PARALLEL]).update(parallel)
    app.add_html_math_renderer("mathml", (_math, None), (_math, None))
    app.config.html_search_scorer = str(SCORER)  # claims come first
    app.connect("autodoc-skip-member", _skip)
    app.connect("env-updated", _searched)
    app.connect("html-page-context", _page, priority=900)
    app.connect("build-finished", _lighten)
    return parallel


def _math(translator: Any, node: nodes.math | nodes.math_block) -> None:
    """A formula as MathML, which browsers draw without a script."""
    is_block = isinstance(node, nodes.math_block)
    tag = "div" if is_block else "span"
    formula = tex2mathml(node.astext(), as_block=is_block)
    translator.body.append(f"<{tag} class='math'>{formula}</{tag}>")
    raise nodes.SkipNode


def _searched(app: Sphinx, env: BuildEnvironment) -> None:
    """Leave notebooks out of the search: the pages of their claims say what they found."""
    for page in filter(notebook_of, env.found_docs):
        env.metadata[page]["nosearch"] = True


def _skip(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Whether to leave out a member: the fields of a class, which its docstring lists."""
    listed = inspect.isroutine(member) or isinstance(member, property | cached_property)
    return True if what == "class" and not listed else None


def _page(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """Before a page is written: its buttons, its neighbours, which are no notebooks, and what a
    shared link shows.
    """
    notebook = notebook_of(pagename)
    for group in context.get("header_buttons", ()) if notebook else ():
        for button in group.get("buttons", ()):
            if button.get("label") == "download-source-button":
                button |= {"url": context["pathto"](notebook, 1), "text": Path(notebook).suffix}
            elif group.get("label") == "launch-buttons":
                source = load_registry()[Path(notebook).stem].notebook
                button["url"] = button["url"].replace(f"{pagename}.ipynb", source)
    if doctree:
        preview = context["pathto"](PREVIEW, 1)
        if base := app.config.html_baseurl:
            preview = f"{base.rstrip('/')}/{PREVIEW}"
        context["metatags"] = context.get("metatags", "") + str(_shared(context, doctree, preview))
    for at, name in ((1, "prev"), (2, "next")):
        page = app.builder.relations.get(pagename, (None,) * 3)[at]
        while page and notebook_of(page):
            page = app.builder.relations[page][at]
        context[name] = None
        if page and not notebook:
            title = app.builder.render_partial(app.env.titles[page])["title"]
            context[name] = {"link": context["pathto"](page), "title": title}
    # The theme's heading for print, which it fills in without escaping it.
    context["pagetitle"] = escape(context.get("pagetitle", ""))


def _shared(context: dict, doctree: nodes.document, preview: str) -> Markup:
    """The tags by which a link to a page shows its title, its first paragraph and a picture."""
    texts = (" ".join(one.astext().split()) for one in doctree.findall(nodes.paragraph))
    text = next((text for text in texts if len(text) >= SHORT), "")
    text = text if len(text) <= LONG else f"{text[:LONG].rpartition(' ')[0]} ..."
    title = Markup(context["title"]).striptags()
    tags = {"og:title": title, "og:description": text, "og:type": "article", "og:image": preview}
    lines = [Markup('<meta name="description" content="{}">').format(text)]
    lines += [Markup('<meta property="{}" content="{}">').format(*one) for one in tags.items()]
    return Markup("\n").join(lines)


def _lighten(app: Sphinx, error: Exception | None) -> None:
    """Take from the pages the scripts that they do not need, and from the font of icons and its
    style sheet the icons that no page shows.
    """
    if error:
        return
    shown = set[str]()
    for path in Path(app.outdir).rglob("*.html"):
        text = ICONS_SCRIPT.sub("", path.read_text(encoding="utf-8"))
        text = WORD.sub(r"\1", text) if 'class="sig ' in text else text
        path.write_text(text if path.name == "search.html" else SEARCH.sub("", text), "utf-8")
        shown.update(ICON.findall(text))
    codes = []

    def kept(rule: re.Match) -> str:
        if shown.isdisjoint(ICON.findall(rule[1])):
            return ""
        codes.append(int(rule[2], 16))
        return rule[0]

    sheet = Path(app.outdir, "_static", "styles", "pydata-sphinx-theme.css")
    style = ICON_RULE.sub(kept, sheet.read_text(encoding="utf-8"))
    sheet.write_text(re.sub(r'url\([^)]*\.woff2\) format\("woff2"\),', "", style), "utf-8")
    for path in Path(app.outdir, "_static", "vendor", "fontawesome").rglob("*.woff2"):
        path.unlink()
        font = TTFont(path.with_suffix(".ttf"))
        subset = Subsetter()
        subset.populate(unicodes=codes)
        subset.subset(font)
        font.save(path.with_suffix(".ttf"))
