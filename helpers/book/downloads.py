"""All that was measured, to take away: every value and every test in one CSV each, and each result
with its files, in `data/` of the built book; and the diagnoses of checkpoints.

A CSV is RFC 4180 with a head, in UTF-8, with numbers in full. An empty cell is a number that is not
there. `book/_static/values.dictionary.csv` says what the columns of the values mean.
"""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import nbformat
import pandas as pd

from helpers.book.book import Book
from helpers.book.finding import Finding
from helpers.book.render import counted, interval_over
from helpers.claims import history
from helpers.claims.checkpoints import stored
from helpers.claims.criteria import INTERVAL, OUTCOMES
from helpers.claims.project import CONTROLS
from helpers.claims.registry import term
from helpers.claims.statistics import Judgement
from helpers.files import read_content

DATA_FOLDER = "data"  # of the built book
DICTIONARIES = ("values.dictionary.csv", "images.dictionary.csv")  # of book/_static
CSV = {"index": False, "lineterminator": "\r\n"}
NUMBERS = (*INTERVAL, "n")


def revision(found: Finding, mark: str) -> str | None:
    """The revision of the code that measured a result, with a `mark` where it had local changes."""
    origin = found.data.get("provenance", {})  # none of the calibration
    name = origin.get("git_revision")
    return name and name + (mark if origin["git_dirty"] else "")


def values(results: Iterable[Finding]) -> pd.DataFrame:
    """A row for every value of the results, in their order."""
    rows = []
    for found in results:
        claim, result = found.claim.id, found.stored
        weights = {source["name"]: source.get("weights_hash") for source in result.sources}
        about = {"verdict_claim": result.verdict, "revision": revision(found, "-dirty")}
        for value in result.values:
            words = term(claim, value.name)
            rows.append({
                "run": found.run, "claim": claim, "model": value.model, "dataset": value.dataset,
                "name": value.name, "label": words.label,
                **{part: getattr(value, part) for part in NUMBERS},
                "unit": words.unit, "verdict": result.models.get(value.model),
                "status": result.compared.status, "mark": found.mark,
                "n_of": counted(value, words), **about,
                "weights": weights.get(value.model), "state": result.state(value),
                "over": interval_over(value, words),
                "trainings": " ".join(str(one) for one, *_ in value.trainings),
            })  # fmt: skip
    return pd.DataFrame(rows, dtype=object)


def tests(rows: Sequence[Judgement], corrected: Mapping) -> pd.DataFrame:
    """A row for every test that was put to a model: its value, outcome and p-values; `corrected`
    has both corrected p-values of a test with one.
    """
    none, p_values = (None, None), ["p", "bonferroni", "benjamini_hochberg"]
    table = pd.DataFrame([
        {
            "run": row.run, "claim": row.id, "model": row.model, "test": str(row.test),
            **{part: getattr(row.value, part, None) for part in NUMBERS},
            "outcome": OUTCOMES[row.outcome], "distance": row.distance,
            **dict(zip(p_values, (row.p, *corrected.get(row, none)), strict=True)),
            "verdict": row.verdict,
        }
        for row in rows
    ])  # fmt: skip
    if rows:  # an interval says nothing of tails
        table[p_values] = table[p_values].astype(float).clip(lower=1e-9)
    return table.astype({"n": "Int64"}) if rows else table


def criteria(book: Book) -> pd.DataFrame:
    """A row for every entry of the log: the criterion, what had been seen, the reason, and the
    verdict by it on the values of the first result.
    """
    rows = []
    for id, entries in book.log.items():
        first = next(iter(book.counted_of(id)), None)
        for entry in entries:
            parts = entry.criterion.items()
            said = (f"{kind}: {'; '.join(x) if isinstance(x, list) else x}" for kind, x in parts)
            rows.append({
                "claim": id, "date": entry.date, "commit": entry.commit, "seen": entry.seen,
                "criterion": ". ".join(said), "reason": entry.reason,
                "run": first and first.run,
                "verdict": first and history.first_verdict([entry], first.stored),
            })  # fmt: skip
    return pd.DataFrame(rows, dtype=object)


def write(target: Path, book: Book) -> None:
    """Write into `target` the values with their dictionaries, the log of criteria, and a folder for
    each run with the result, the numbers of its images and the notebook of each claim.
    """
    target.mkdir(parents=True, exist_ok=True)
    runs = [*book.runs.values(), book.controls]
    table = values(found for own in runs for found in own.values())
    table.to_csv(target / "values.csv", **CSV)
    names = table[["claim", "name", "label", "unit"]].drop_duplicates(["claim", "name"])
    higher = [term(row.claim, row.name).higher for row in names.itertuples()]
    names.assign(higher=higher).to_csv(target / "values.names.csv", **CSV)
    text = json.dumps(stored(book.project.root), ensure_ascii=False, allow_nan=False)
    (target / "checkpoints.json").write_text(text + "\n", encoding="utf-8")
    criteria(book).to_csv(target / "criteria.csv", **CSV)
    for name in DICTIONARIES:
        shutil.copy(book.project.root / "book" / "_static" / name, target)
    for found in (x for own in (*book.runs.values(), *book.own.values()) for x in own.values()):
        (folder := target / found.folder).mkdir(parents=True, exist_ok=True)
        for path in found.files:
            shutil.copy(path, folder)
        notebook = read_content(found.path.with_suffix(".ipynb"))
        (folder / f"{found.claim.id}.ipynb").write_bytes(notebook)
    (folder := target / CONTROLS).mkdir()
    for id, found in book.controls.items():
        text = json.dumps(found.data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        (folder / f"{id}.json").write_text(text, encoding="utf-8")
        nbformat.write(found.notebook, folder / f"{id}.ipynb")


def notebook_page(found: Finding) -> str:
    """The page of an executed notebook, from the root of the book."""
    return f"book/notebooks/{found.folder}/{found.claim.id}"


def notebook_of(page: str) -> str | None:
    """Where the notebook that a page shows lies below the root of the book, None of other pages."""
    place = page.removeprefix("book/notebooks/")
    return f"{DATA_FOLDER}/{place}.ipynb" if place != page else None
