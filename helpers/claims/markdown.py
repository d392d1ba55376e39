"""Text of what papers, registry and results say: templates, and cells of Markdown tables."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

# Where HTML, the address of a Markdown link or a MyST role begins.
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|(?<=])\(|\{(?=[\w:+-]+\}`)")


def inert(text: object) -> str:
    """A text from data as one line of Markdown that shows it, with no HTML, link or role in it."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", " ".join(str(text).split()))


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
    """The template `template` of `templates/` filled in with `data`; blank lines come alone."""
    text = _environment().get_template(template).render(data)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


@cache
def _environment() -> "jinja2.Environment":
    import jinja2  # here, since `list` need not wait for it

    loader = jinja2.PackageLoader("helpers.claims")
    environment = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": cell, "inert": inert, "pivot": pivot}
    return environment
