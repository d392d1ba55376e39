"""The log of criteria on the pages of claims, and as a table to download."""

from collections.abc import Mapping

import pandas as pd

from helpers.book.book import Book
from helpers.claims import history
from helpers.claims.history import Entry
from helpers.claims.markdown import code

KINDS = {"applies": "applies when", "needs": "needs a model with", "quantifier": "models"}


def difference(before: Entry | None, after: Entry) -> list[str]:
    """What an entry says that the one before did not, a line for each kind; all where none is."""
    lines = []
    for kind, (gone, new) in history.changes(before, after).items():
        word = KINDS.get(kind, kind)
        if kind == "expected":
            lines.append(f"{word}: {_expected(before.expected if before else {}, after.expected)}")
            continue
        for how, criteria in ((", gone", gone), (", new" if before else "", new)):
            if criteria:
                lines.append(f"{word}{how}: {', '.join(map(code, criteria))}")
    return lines or ["the same criterion, measured otherwise"]


def _expected(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The expected verdicts that differ: `supported, before refuted, on control-clean`."""
    groups: dict[str, list[str]] = {}
    for control, verdict in after.items():
        if (old := before.get(control)) != verdict:
            groups.setdefault(f"{verdict}, before {old}," if old else verdict, []).append(control)
    return "; ".join(f"{verdict} on {', '.join(controls)}" for verdict, controls in groups.items())


def table(book: Book) -> pd.DataFrame:
    """A row for every entry of the log: the criterion, what had been seen, the reason, and the
    verdict by it on the values of the first result.
    """
    rows = []
    for id, entries in book.log.items():
        first = next(iter(book.of(id)), None)
        for entry in entries:
            parts = entry.criterion.items()
            said = (f"{kind}: {'; '.join(x) if isinstance(x, list) else x}" for kind, x in parts)
            rows.append({
                "claim": id, "date": entry.date, "commit": entry.commit, "seen": entry.seen,
                "criterion": ". ".join(said), "reason": entry.reason,
                "run": first and first.run,
                "verdict": first and history.first_verdict({id: [entry]}, first.stored),
            })  # fmt: skip
    return pd.DataFrame(rows, dtype=object)
