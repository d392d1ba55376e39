"""Text of what papers, registry and results say: templates, and cells of Markdown tables."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from helpers.foreign import printable

if TYPE_CHECKING:
    import jinja2

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
    return _MARKUP.sub(
        lambda match: match["kept"] or f"&#{ord(match[0])};", printable(" ".join(str(text).split()))
    )


def code(value: object) -> str:
    """A value in Markdown's code font, '' of an empty text."""
    text = printable(" ".join(str(value).split())) or "''"
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " if "`" in text[:1] + text[-1:] else ""
    return fence + space + text + space + fence


def cell(text: object) -> str:
    """A text from data as a cell of a Markdown table."""
    return inert(text).replace("|", "\\|")


def table(
    header: Iterable[object],
    rows: Iterable[Iterable[object]],
    shown: Callable[[object], str] = inert,
) -> str:
    """A GitHub Markdown table.

    `shown` is `str` where the registry alone wrote the cells, in Markdown.
    """
    lines = []
    for row in (header, ["---"] * len(header), *rows):
        cells = (" ".join(shown(one).split()).replace("|", "\\|") for one in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of(lines: Sequence[Mapping], shown: Callable[[object], str] = inert) -> str:
    """A table with a column for every key of the lines, empty where a line does not have it."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    return table(names, ([line.get(name, "") for name in names] for line in lines), shown)


def pivot(cells: Sequence[tuple[str, str, str, str]]) -> str:
    """A table of (source, model, name, text); '' without cells.

    A row for each source and model, a column for each name, n first.
    """
    import pandas as pd  # here, since `list` need not wait for it

    keys = ["source", "model"]
    frame = pd.DataFrame(cells, columns=[*keys, "name", "text"]).drop_duplicates()
    if frame.empty:
        return ""
    wide = frame.pivot_table("text", keys, "name", "; ".join, "", sort=False)
    wide = wide[sorted(wide, key=lambda name: name != "n")]
    wide = frame[keys].drop_duplicates().join(wide, on=keys)  # rows as they come
    return table(wide.columns, wide.itertuples(index=False))


def render(template: str, **data: Any) -> str:
    """The template `template` of `templates/` filled in with `data`; blank lines come alone.

    Text for a terminal, `.txt.j2`, is printable whatever the data hold.
    """
    text = _environment(template.endswith(".txt.j2")).get_template(template).render(data)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


@cache
def _environment(terminal: bool) -> "jinja2.Environment":
    import jinja2  # here, since `list` need not wait for it

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("helpers.claims"),
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=(lambda value: printable(str(value))) if terminal else None,
    )
    environment.filters |= {"cell": cell, "code": code, "inert": inert, "pivot": pivot}
    return environment
