"""Pages from templates: one Jinja environment over `templates/`.

What ends in `.html.j2` is HTML: whatever is filled in is escaped, unless a template made it. What
ends in `.md.j2` is MyST Markdown: data go through the filter `inert`, HTML through `raw`.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from helpers.book.amounts import amount, asked, behind, drawn_numbers, number, place, span_of
from helpers.claims.criteria import OUTCOMES, in_words
from helpers.claims.markdown import inert
from helpers.claims.registry import term
from helpers.names import short_name


def render(template: str, **data: Any) -> str:
    """The template `template` of `templates/` filled in with `data`.

    Returns:
        Markup for a template of HTML, so that another template takes it as it is, else a string.

    Raises:
        jinja2.UndefinedError: the template names what `data` does not have.
    """
    text = environment().get_template(template).render(**data)
    return Markup(text) if template.endswith(".html.j2") else text


def macro(name: str, *args: Any, **data: Any) -> Markup:
    """What the macro `name` of `macros.html.j2` makes of its arguments."""
    return getattr(environment().get_template("macros.html.j2").module, name)(*args, **data)


def one_line(text: str) -> str:
    """A text without line breaks and repeated spaces, escaped or not as it was."""
    return type(text)(" ".join(text.split()))


def distinct(items: Iterable) -> list:
    """The items without repetitions, in order; they need not be hashable."""
    return list({str(item): item for item in items}.values())


def raw(html: str) -> str:
    """HTML as a block of Markdown; on one line, so that nothing in it can end the block."""
    return f"```{{raw}} html\n{one_line(html)}\n```"


def cell(text: object) -> str:
    """A text from data as a cell of a Markdown table."""
    return inert(text).replace("|", "\\|")


def code(value: object) -> str:
    """A value in Markdown's code font, '' of an empty text."""
    return "`" + (inert(value).replace("`", "'") or "''") + "`"


@cache
def environment() -> Environment:
    """The environment of all templates, with its filters."""
    env = Environment(
        loader=PackageLoader("helpers.book"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (
        amount,
        asked,
        behind,
        cell,
        code,
        distinct,
        in_words,
        inert,
        number,
        one_line,
        place,
        raw,
    )
    env.filters |= {function.__name__: function for function in (*filters, short_name)}
    env.globals |= {function.__name__: function for function in (drawn_numbers, span_of, term)}
    env.globals["OUTCOMES"] = OUTCOMES
    return env
