"""A Sphinx extension: parallel builds, API pages that list what docstrings describe, a button that
downloads a notebook as it was run, and a search that puts claims first and leaves notebooks out.
"""

import inspect
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import escape
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from helpers.book.downloads import notebook_of

# Neither keeps anything from one page to the next while pages are read and written; both only omit
# to say so.
PARALLEL = ("sphinx_multitoc_numbering", "sphinx-mathjax-offline")
SCORER = Path(__file__).with_name("templates") / "search.js"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with Sphinx."""
    parallel = {"parallel_read_safe": True, "parallel_write_safe": True}
    for name in PARALLEL:
        if name in app.extensions:
            vars(app.extensions[name]).update(parallel)
    app.config.html_search_scorer = str(SCORER)  # claims come first
    app.connect("autodoc-skip-member", _skip)
    app.connect("env-updated", _searched)
    app.connect("html-page-context", _page, priority=900)
    return parallel


def _searched(app: Sphinx, env: BuildEnvironment) -> None:
    """Leave notebooks out of the search: the pages of their claims say what they found."""
    for page in filter(notebook_of, env.found_docs):
        env.metadata[page]["nosearch"] = True


def _skip(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Whether to leave out a member: the fields of a class, which its docstring lists."""
    listed = inspect.isroutine(member) or isinstance(member, property | cached_property)
    return True if what == "class" and not listed else None


def _page(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: Any) -> None:
    """Before a page is written: its download button, and its neighbours, which are no notebooks."""
    notebook = notebook_of(pagename)
    for group in context.get("header_buttons", ()) if notebook else ():
        for button in group.get("buttons", ()):
            if button["label"] == "download-source-button":
                button |= {"url": context["pathto"](notebook, 1), "text": Path(notebook).suffix}
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
