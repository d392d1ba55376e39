"""All that was measured, to take away: every value in one CSV, what its columns and names mean,
each result and its files.

Everything lies in `data/` of the built book. What is published lies there as it was published; the
figures, which the notebooks hold as well, and the notebooks of the calibration, which the
repository holds, are archives. The CSV is RFC 4180 with a head, in UTF-8, with numbers in full:
what is read from it is what the results hold, to the last digit. An empty cell is a number that is
not there.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
import pandas as pd
from nbformat import NotebookNode

from helpers.book.render import Runs, counted, over, render
from helpers.claims import per_image
from helpers.claims.criteria import OUTCOMES
from helpers.claims.project import CONTROLS, Project
from helpers.claims.registry import Registry, term
from helpers.claims.result import IMAGES_SUFFIX, Result
from helpers.claims.statistics import Judgement
from helpers.files import read_content, write_zip

FOLDER = "data"  # of the built book
VALUES, COLUMNS_FILE, NAMES_FILE = "values.csv", "values.dictionary.csv", "values.names.csv"
IMAGES_FILE = "images.dictionary.csv"
TESTS = "tests.csv"
# Claim -> its result, and the notebook that displays it.
Executed = Mapping[str, tuple[dict, NotebookNode]]
# The columns of the CSV: name, type of the cells, and what they say.
COLUMNS = (
    (
        "run",
        "text",
        f"The published run; `{CONTROLS}` is the validation on models whose answers are known.",
    ),
    ("claim", "text", "The claim for which the value was measured."),
    ("model", "text", "The model, by the name under which it is loaded."),
    ("dataset", "text", "The images on which it was measured; empty where no image is behind it."),
    (
        "name",
        "text",
        f"What was measured, as criteria and code name it; `{NAMES_FILE}` says what each is.",
    ),
    ("label", "text", "The same in words."),
    ("value", "number", "The measured number; empty where it is not defined."),
    (
        "low",
        "number",
        "Lower end of the 95 % interval, over what `over` says; empty where there is none.",
    ),
    ("high", "number", "Upper end of the same interval."),
    (
        "n",
        "whole number",
        "How many images, or what `n_of` says, are behind the value; empty for a plain number.",
    ),
    ("unit", "text", "The unit of value, low and high; empty for a plain ratio or index."),
    ("verdict", "text", "The verdict on this model; empty for a model that was not judged."),
    (
        "agreement",
        "text",
        "Whether the verdict of this claim in this run agrees with what the paper says.",
    ),
    ("n_of", "text", "What n counts."),
    ("verdict_claim", "text", "The verdict on all models of this claim and run together."),
    (
        "revision",
        "text",
        "The git revision of the code that measured it, marked where it had local changes.",
    ),
    ("weights", "text", "Digest of the model's weights, where the result names it."),
    (
        "state",
        "text",
        "How a model was changed: `with a test-time register`. Empty for a model as it is, and "
        "where the label tells the state.",
    ),
    (
        "over",
        "text",
        "What the interval is over; empty where there is none. Over `images` where n counts "
        "trainings: it speaks of these trainings alone.",
    ),
    (
        "trainings",
        "text",
        "Of a mean over trainings, the value of each, with spaces between; else empty.",
    ),
)


def values(registry: Registry, runs: Runs) -> pd.DataFrame:
    """A row by COLUMNS for every value of the results (run -> claim -> result), in their order."""
    rows = []
    for run, results in runs.items():
        for id, data in results.items():
            result = Result.from_json(registry[id], data)
            origin = data.get("provenance")  # none of the calibration
            changed = "-dirty" if origin and origin["git_dirty"] else ""
            revision = origin and origin["git_revision"] and origin["git_revision"] + changed
            weights = {source["name"]: source.get("weights_hash") for source in result.sources}
            for value in result.values:
                words = term(id, value.name)
                rows.append((
                    run, id, value.model, value.dataset, value.name, words.label, value.value,
                    value.low, value.high, value.n, value.unit or words.unit,
                    result.models.get(value.model), result.agreement.answer,
                    counted(value, words), result.verdict, revision, weights.get(value.model),
                    result.state(value), over(value, words),
                    " ".join(str(one) for one, *_ in value.trainings),
                ))  # fmt: skip
    return pd.DataFrame(rows, columns=[name for name, *_ in COLUMNS], dtype=object)


def names(table: pd.DataFrame) -> pd.DataFrame:
    """What each name of each claim is: label, unit, and what a higher value means."""
    found = table[["claim", "name", "label", "unit"]].drop_duplicates(["claim", "name"])
    pairs = zip(found["claim"], found["name"], strict=True)
    return found.assign(higher=[term(*pair).higher for pair in pairs])


def write(
    target: Path,
    project: Project,
    runs: Mapping[str, Executed],
    calibration: Executed,
    own: Mapping[str, Executed],
) -> None:
    """Write into `target` the CSV with its dictionaries, and a folder for each run with the result,
    the numbers of its images, the notebook and the figures of each claim; of runs that are not
    published, `own`, the folders alone.
    """
    target.mkdir(parents=True, exist_ok=True)
    results = {
        run: {id: data for id, (data, _) in executed.items()}
        for run, executed in {**runs, CONTROLS: calibration}.items()
    }
    table = values(project.registry, results)
    columns = pd.DataFrame(COLUMNS, columns=["name", "type", "meaning"])
    images = pd.DataFrame(per_image.COLUMNS.items(), columns=["name", "meaning"])
    tables = {VALUES: table, COLUMNS_FILE: columns, NAMES_FILE: names(table), IMAGES_FILE: images}
    for name, frame in tables.items():
        frame.to_csv(target / name, index=False, lineterminator="\r\n")
    for kind, stored, executed in (("runs", project.runs, runs), ("own", project.own, own)):
        for run, claims in executed.items():
            place = target / folder(run, kind)
            place.mkdir(parents=True)
            for id, (data, notebook) in claims.items():
                for suffix in filter(None, (".json", images_of(data))):
                    shutil.copy(stored / run / f"{id}{suffix}", place)
                executed = f"{id}.ipynb"
                (place / executed).write_bytes(read_content(stored / run / executed))
                if drawings := _drawings(id, notebook):
                    write_zip(place / f"{id}.zip", drawings)
    (place := target / CONTROLS).mkdir()
    for id, (data, notebook) in calibration.items():
        text = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        (place / f"{id}.json").write_text(text, encoding="utf-8")
        members = {f"{id}.ipynb": (nbformat.writes(notebook) + "\n").encode()}
        write_zip(place / f"{id}.zip", members | _drawings(id, notebook))


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
            "distance": row.distance, "p": _told(row.p), "bonferroni": _told(bonferroni),
            "benjamini_hochberg": _told(hochberg), "effect": row.effect, "holds_from": holds_from,
            "fails_from": fails_from, "n_decides": row.images_needed, "verdict": row.verdict,
        })  # fmt: skip
    whole = {"n": "Int64", "n_decides": "Int64"}
    return pd.DataFrame(found).astype(whole) if found else pd.DataFrame()


def _told(p: float | None) -> float | None:
    """A p-value, none below 1e-9: an interval says nothing of tails."""
    return p if p is None else max(p, 1e-9)


def write_more(target: Path, known: Mapping) -> None:
    """Write into `target` every test, which pages only sum up."""
    table = tests(known["rows"], known["corrected"])
    table.to_csv(target / TESTS, index=False, lineterminator="\r\n")


def images_of(data: Mapping) -> str:
    """How the name of the file with the numbers of a result's images ends; '' where it has none."""
    return IMAGES_SUFFIX if "images" in data.get("provenance", {}) else ""


def folder(run: str, kind: str) -> str:
    """Where the files of a run lie below `data/`: those of one that is not published (kind "own")
    apart.
    """
    return run if kind == "runs" else f"{kind}/{run}"


def notebook_of(page: str) -> str | None:
    """Where the notebook that a page shows lies below the root of the book, in an archive or not.

    None for a page of no notebook.
    """
    match page.split("/"):
        case ["notebooks", _, id]:
            return f"{FOLDER}/{CONTROLS}/{id}.zip"
        case ["book", "notebooks", *place, id]:
            return f"{FOLDER}/{'/'.join(place)}/{id}.ipynb"
    return None


def _drawings(id: str, notebook: NotebookNode) -> dict[str, bytes]:
    """The figures that an executed notebook shows as SVG, in its order, as files."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    drawn = [x["data"]["image/svg+xml"] for x in outputs if "image/svg+xml" in x.get("data", ())]
    return {f"{id}-{number}.svg": svg.encode() for number, svg in enumerate(drawn, 1)}


def on_page(place: str, id: str, data: Mapping, notebook: NotebookNode, up: str) -> str:
    """What ends the page of a result, as Markdown: its files, which lie in `place`.

    `up` leads from the page to the root of the book.
    """
    text = render(
        "downloads.md.j2",
        is_control=place == CONTROLS,
        images=images_of(data),
        has_figures=bool(_drawings(id, notebook)),
        file=f"{up}{FOLDER}/{place}/{id}",
        values=f"{up}{FOLDER}/{VALUES}",
    )
    return text.rstrip()
