"""A Sphinx extension: the search index of the book holds what pages say, and not their Python.

A reader who searches for a finding must not be led to a line that imports it.
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

CODE = ("python", "ipython", "ipython3")  # the languages that are not searched; commands for a shell are


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", _index_no_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _index_no_code(app: Sphinx) -> None:
    if hasattr(app.builder, "index_page"):  # builders of HTML
        index = app.builder.index_page

        def index_page(pagename: str, doctree: nodes.document, title: str) -> None:
            found = [node for node in doctree.findall(nodes.literal_block) if node.get("language") in CODE]
            code = [(node, node.children) for node in found]
            for node, _ in code:
                node.children = []
            try:
                index(pagename, doctree, title)
            finally:  # the page itself is written from the same tree
                for node, children in code:
                    node.children = children

        app.builder.index_page = index_page
