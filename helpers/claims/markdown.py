"""Text of what papers, registry and results say: templates, and cells of Markdown tables."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import jinja2
import pandas as pd

Cells = list[tuple[str, str, str, str]]  # as `pivot` takes them: source, model, name, text
# What may stay: code, in which nothing is markup, and brackets such as those of intervals that are
# no link. Or else where mathematics, an escape, HTML, a link, a role, an entity or emphasis begins.
_MARKUP = re.compile(
    r"(?P<kept>(?<!`)(`+)(?!`).+?(?<!`)\2(?!`)|\[[A-Za-z0-9 ,.?%+-]+](?![(\[:]))"
    r"|[`$\\{*~\[\]]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])"
)


def inert(text: object) -> str:
    """A text from data as one line of MyST Markdown that shows it as it was typed.

    It has no mathematics, HTML, link or role in it. What stands in code stays code.
    """
    line = " ".join(str(text).split())
    return _MARKUP.sub(lambda match: match["kept"] or f"&#{ord(match[0])};", line)


def code(value: object) -> str:
    """A value in Markdown's code font, '' of an empty text."""
    text = " ".join(str(value).split()) or "''"
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text[:1] + text[-1:] else ""
    return fence + space + text + space + fence


def cell(text: object) -> str:
    """A text from data as a cell of a Markdown table."""
    return inert(text).replace("|", "\\|")


def table(header: Sequence[object], rows: Iterable[Iterable[object]]) -> str:
    """A GitHub Markdown table."""
    cells = [map(cell, header), ["---"] * len(header), *(map(cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def pivot(cells: Cells) -> str:
    """A table of (source, model, name, text); '' without cells.

    A row for each source and model, a column for each name, n first.
    """
    keys = ["source", "model"]
    frame = pd.DataFrame(cells, columns=[*keys, "name", "text"]).drop_duplicates()
    if frame.empty:
        return ""
    wide = frame.pivot_table("text", keys, "name", "; ".join, "", sort=False)
    wide = wide[sorted(wide, key=lambda name: name != "n")]
    wide = frame[keys].drop_duplicates().join(wide, on=keys)  # rows as they come
    return table(wide.columns, wide.itertuples(index=False))


def render(template: str, **data: Any) -> str:
    """The template `template` of `templates/` filled in with `data`; blank lines come alone."""
    text = _ENVIRONMENT.get_template(template).render(data)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("helpers.claims"), trim_blocks=True, lstrip_blocks=True
)
_ENVIRONMENT.filters |= {"cell": cell, "code": code, "inert": inert, "pivot": pivot}
