"""Markdown of what papers, registry and results say."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

# Where HTML, the address of a Markdown link or a MyST role begins.
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])|(?<=])\(|\{(?=[\w:+-]+\}`)")


def inert(text: object) -> str:
    """A text from data as one line of Markdown that shows it, with no HTML, link or role in it."""
    return _MARKUP.sub(lambda match: f"&#{ord(match[0])};", " ".join(str(text).split()))


def table(
    header: Sequence[str], rows: Iterable[Sequence[object]], shown: Callable[[object], str] = inert
) -> str:
    """A GitHub Markdown table.

    `shown` is `str` where the registry alone wrote the cells, in Markdown.
    """
    cells = (
        [" ".join(shown(cell).split()).replace("|", "\\|") for cell in row]
        for row in (header, ["---"] * len(header), *rows)
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def table_of(lines: Sequence[Mapping], shown: Callable[[object], str] = inert) -> str:
    """A table with a column for every key of the lines, empty where a line does not have it."""
    names = list(dict.fromkeys(name for line in lines for name in line))
    return table(names, ([line.get(name, "") for name in names] for line in lines), shown)


def pivot(cells: Sequence[tuple[str, str, str, str]]) -> str:
    """A table of (source, model, name, text); '' without cells.

    A row for each source and model, a column for each name.
    """
    if not cells:
        return ""
    names = sorted(
        dict.fromkeys(name for _, _, name, _ in cells), key=lambda name: name != "n"
    )  # n first, the rest as they come
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for source, model, name, text in cells:
        texts = rows.setdefault((source, model), {}).setdefault(name, [])
        texts += [text] if text not in texts else []
    lines = [(*key, *("; ".join(row.get(name, ())) for name in names)) for key, row in rows.items()]
    return table(("source", "model", *names), lines)
