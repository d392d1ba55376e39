"""All that was measured, to take away: every value and every test in one CSV each, and each result
with its files, in `data/` of the built book.

A CSV is RFC 4180 with a head, in UTF-8, with numbers in full. An empty cell is a number that is not
there. `book/_static/values.dictionary.csv` says what the columns of the values mean.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
import pandas as pd

from helpers.book.book import Book, Runs
from helpers.book.finding import Finding
from helpers.book.render import counted, over, render
from helpers.claims.criteria import OUTCOMES
from helpers.claims.project import CONTROLS
from helpers.claims.registry import term
from helpers.claims.statistics import Judgement
from helpers.files import read_content

FOLDER = "data"  # of the built book
DICTIONARIES = ("values.dictionary.csv", "images.dictionary.csv")  # of book/_static
COLUMNS = (
    "run", "claim", "model", "dataset", "name", "label", "value", "low", "high", "n", "unit",
    "verdict", "agreement", "n_of", "verdict_claim", "revision", "weights", "state", "over",
    "trainings",
)  # fmt: skip


def revision(found: Finding, mark: str) -> str | None:
    """The revision of the code that measured a result, with a `mark` where it had local changes."""
    origin = found.data.get("provenance", {})  # none of the calibration
    changed = mark if origin.get("git_dirty") else ""
    return origin and origin["git_revision"] and origin["git_revision"] + changed or None


def values(runs: Runs) -> pd.DataFrame:
    """A row by COLUMNS for every value of the results, in their order."""
    rows = []
    for run, own in runs.items():
        for id, found in own.items():
            result = found.stored
            weights = {source["name"]: source.get("weights_hash") for source in result.sources}
            for value in result.values:
                words = term(id, value.name)
                rows.append((
                    run, id, value.model, value.dataset, value.name, words.label, value.value,
                    value.low, value.high, value.n, value.unit or words.unit,
                    result.models.get(value.model), result.agreement.answer,
                    counted(value, words), result.verdict, revision(found, "-dirty"),
                    weights.get(value.model), result.state(value), over(value, words),
                    " ".join(str(one) for one, *_ in value.trainings),
                ))  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object)


def names(table: pd.DataFrame) -> pd.DataFrame:
    """What each name of each claim is: label, unit, and what a higher value means."""
    found = table[["claim", "name", "label", "unit"]].drop_duplicates(["claim", "name"])
    pairs = zip(found["claim"], found["name"], strict=True)
    return found.assign(higher=[term(*pair).higher for pair in pairs])


def tests(rows: Sequence[Judgement], corrected: Mapping) -> pd.DataFrame:
    """A row for every test that was put to a model: its value, outcome, p-values, and what it could
    have decided; `corrected` has both corrected p-values of a test with one.
    """
    found = []
    for row in rows:
        value, (bonferroni, hochberg) = row.value, corrected.get(row, (None, None))
        holds_from, fails_from = row.thresholds or (None, None)
        found.append({
            "run": row.run, "claim": row.id, "model": row.model, "test": str(row.test),
            "value": value and value.value, "low": value and value.low,
            "high": value and value.high, "n": value and value.n,
            "outcome": OUTCOMES[row.outcome],
            "distance": row.distance, "p": _at_least(row.p), "bonferroni": _at_least(bonferroni),
            "benjamini_hochberg": _at_least(hochberg), "effect": row.effect,
            "holds_from": holds_from, "fails_from": fails_from, "n_decides": row.images_needed,
            "verdict": row.verdict,
        })  # fmt: skip
    whole = {"n": "Int64", "n_decides": "Int64"}
    return pd.DataFrame(found).astype(whole) if found else pd.DataFrame()


def _at_least(p: float | None) -> float | None:
    """A p-value, none below 1e-9: an interval says nothing of tails."""
    return p if p is None else max(p, 1e-9)


def write(target: Path, book: Book) -> None:
    """Write into `target` the values with their dictionaries, and a folder for each run with the
    result, the numbers of its images and the notebook of each claim.
    """
    target.mkdir(parents=True, exist_ok=True)
    table = values({**book.runs, CONTROLS: book.controls})
    write_table(table, target / "values.csv")
    write_table(names(table), target / "values.names.csv")
    for name in DICTIONARIES:
        shutil.copy(book.project.root / "book" / "_static" / name, target)
    for own in (*book.runs.values(), *book.own.values()):
        for id, found in own.items():
            (place := target / found.place).mkdir(parents=True, exist_ok=True)
            for suffix in filter(None, (".json", found.images)):
                shutil.copy(found.path.with_suffix(suffix), place)
            notebook = read_content(found.path.with_suffix(".ipynb"))
            (place / f"{id}.ipynb").write_bytes(notebook)
    (place := target / CONTROLS).mkdir()
    for id, found in book.controls.items():
        text = json.dumps(found.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        (place / f"{id}.json").write_text(text, encoding="utf-8")
        nbformat.write(found.notebook, place / f"{id}.ipynb")


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a CSV."""
    table.to_csv(path, index=False, lineterminator="\r\n")


def notebook_of(page: str) -> str | None:
    """Where the notebook that a page shows lies below the root of the book, None of other pages."""
    match page.split("/"):
        case ["notebooks", _, id]:
            return f"{FOLDER}/{CONTROLS}/{id}.ipynb"
        case ["book", "notebooks", *place, id]:
            return f"{FOLDER}/{'/'.join(place)}/{id}.ipynb"
    return None


def links(found: Finding, up: str) -> str:
    """What ends the page of a result, as Markdown: its files; `up` leads to the book's root."""
    file = f"{up}{FOLDER}/{found.place}/{found.claim.id}"
    values = f"{up}{FOLDER}/values.csv"
    return render("downloads.html.j2", file=file, values=values, images=found.images)
