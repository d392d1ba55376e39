"""A Sphinx extension: parallel builds, and API pages that list what docstrings describe."""

import inspect
from functools import cached_property
from typing import Any

from sphinx.application import Sphinx

# Neither keeps anything from one page to the next while pages are read and written; both only omit
# to say so.
PARALLEL = ("sphinx_multitoc_numbering", "sphinx-mathjax-offline")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect with Sphinx."""
    for name in PARALLEL:
        app.extensions[name].parallel_read_safe = True
        app.extensions[name].parallel_write_safe = True
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _skip(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Whether to leave out a member: the fields of a class, which its docstring lists."""
    listed = inspect.isroutine(member) or isinstance(member, property | cached_property)
    return True if what == "class" and not listed else None
