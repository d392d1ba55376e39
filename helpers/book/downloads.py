"""All that was measured, to take away: every value in one CSV, what its columns and names mean,
each result and its files.

Everything lies in `data/` of the built book. What is published lies there as it was published; the
figures, which the notebooks hold as well, and the notebooks of the calibration, which the
repository holds, are packed. The CSV is RFC 4180 with a head, in UTF-8, with numbers in full: what
is read from it is what the results hold, to the last digit. An empty cell is a number that is not
there.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import nbformat
from nbformat import NotebookNode

from helpers.book import cite
from helpers.book.render import html
from helpers.claims.markdown import table_of
from helpers.claims.project import CONTROLS
from helpers.claims.registry import Registry, term
from helpers.claims.result import Result
from helpers.files import digest_of_json, write_zip

FOLDER = "data"  # of the built book
VALUES, COLUMNS_FILE, NAMES_FILE = "values.csv", "values.dictionary.csv", "values.names.csv"
Executed = Mapping[
    str, tuple[dict, NotebookNode]
]  # claim -> its result, and the notebook that displays it


class Column(NamedTuple):
    """A column of the CSV: its name, the type of its cells, and what they say."""

    name: str
    type: str
    meaning: str


COLUMNS = (
    Column(
        "run",
        "text",
        f"The published run; `{CONTROLS}` is the calibration on models whose answers are known.",
    ),
    Column("claim", "text", "The claim for which the value was measured."),
    Column("model", "text", "The model, by the name under which it is loaded."),
    Column(
        "dataset", "text", "The images on which it was measured; empty where no image is behind it."
    ),
    Column(
        "name",
        "text",
        f"What was measured, as criteria and code name it; `{NAMES_FILE}` says what each is.",
    ),
    Column("label", "text", "The same in words."),
    Column("value", "number", "The measured number; empty where it is not defined."),
    Column(
        "low", "number", "Lower end of the 95 % interval over images; empty where there is none."
    ),
    Column("high", "number", "Upper end of the same interval."),
    Column(
        "n",
        "whole number",
        "How many images, or what `n_of` says, are behind the value; empty for a plain number.",
    ),
    Column("unit", "text", "The unit of value, low and high; empty for a plain ratio or index."),
    Column("verdict", "text", "The verdict on this model; empty for a model that was not judged."),
    Column(
        "agreement",
        "text",
        "Whether the verdict of this claim in this run agrees with what the paper says.",
    ),
    Column("n_of", "text", "What n counts."),
    Column("verdict_claim", "text", "The verdict on all models of this claim and run together."),
    Column(
        "revision",
        "text",
        "The git revision of the code that measured it, marked where it had local changes.",
    ),
    Column("weights", "text", "Digest of the model's weights, where the result names it."),
)


def rows(registry: Registry, runs: Mapping[str, Mapping[str, dict]]) -> Iterator[dict[str, Any]]:
    """A row by COLUMNS for every value of the results (run -> claim -> result), in their order."""
    for run, results in runs.items():
        for id, data in results.items():
            result = Result.from_json(registry[id], data)
            verdicts = {one["model"]: one["verdict"] for one in result.verdicts}
            weights = {source["name"]: source.get("weights_hash") for source in result.sources}
            for value in result.values:
                words = term(id, value.name)
                row = {
                    "run": run, "claim": id, "model": value.model, "dataset": value.dataset, "name": value.name,  # noqa: E501
                    "label": words.label, "value": value.value, "low": value.low, "high": value.high, "n": value.n,  # noqa: E501
                    "unit": value.unit or words.unit, "verdict": verdicts.get(value.model),
                    "agreement": result.agreement.answer,
                    "n_of": words.of, "verdict_claim": result.verdict,
                    "revision": _revision(data), "weights": weights.get(value.model),
                }  # fmt: skip
                yield {name: None if cell == "" else cell for name, cell in row.items()}


def read_values(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV as `rows` gives them: numbers as numbers, and None for what is not
    there.
    """
    types = {
        column.name: {"number": float, "whole number": int, "text": str}[column.type]
        for column in COLUMNS
    }
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            {name: types[name](text) if text else None for name, text in row.items()}
            for row in csv.DictReader(stream)
        ]


def folder(run: str, kind: str) -> str:
    """Where the files of a run lie below `data/`: those of one that is not published (kind "own")
    apart.
    """
    return run if kind == "runs" else f"{kind}/{run}"


def write(
    target: Path,
    registry: Registry,
    runs: Mapping[str, Executed],
    calibration: Executed,
    own: Mapping[str, Executed] = MappingProxyType({}),
) -> None:
    """Write into `target` the CSV with its dictionaries, and a folder for each run with the files
    of each claim (`files`); of runs that are not published, `own`, the folders alone.
    """
    everything = {**runs, CONTROLS: calibration}
    found = list(
        rows(
            registry,
            {
                run: {id: data for id, (data, _) in results.items()}
                for run, results in everything.items()
            },
        )
    )
    _write_csv(target / VALUES, [column.name for column in COLUMNS], found)
    _write_csv(target / COLUMNS_FILE, Column._fields, [column._asdict() for column in COLUMNS])
    _write_csv(target / NAMES_FILE, ["claim", "name", "label", "unit", "higher"], names(found))
    for run, results in {
        **everything,
        **{folder(run, "own"): results for run, results in own.items()},
    }.items():
        for id, (data, notebook) in results.items():
            content = data if run == CONTROLS else {**data, "sha256": digest_of_json(data)}
            texts = {
                f"{id}.json": json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
                + "\n",
                f"{id}.ipynb": nbformat.writes(notebook) + "\n",
                **{f"{id}-{k}.svg": svg for k, svg in enumerate(figures(notebook), 1)},
            }
            (target / run).mkdir(parents=True, exist_ok=True)
            for name, (_, packed) in files(run, id, notebook).items():
                if packed:
                    write_zip(
                        target / run / name, {member: texts[member].encode() for member in packed}
                    )
                else:
                    (target / run / name).write_text(texts[name], encoding="utf-8")


def files(place: str, id: str, notebook: NotebookNode) -> dict[str, tuple[str, list[str]]]:
    """The files of one result in the folder `place`: name -> what it is, in words, and the members
    of an archive.
    """
    drawn = [f"{id}-{k}.svg" for k, _ in enumerate(figures(notebook), 1)]
    found: dict[str, tuple[str, list[str]]] = {f"{id}.json": ("result (JSON)", [])}
    if place == CONTROLS:
        what = "notebook and figures (ZIP)" if drawn else "notebook (ZIP)"
        return found | {f"{id}.zip": (what, [f"{id}.ipynb", *drawn])}
    found[f"{id}.ipynb"] = ("notebook", [])
    return found | ({f"{id}.zip": ("figures (SVG, ZIP)", drawn)} if drawn else {})


def notebook_of(page: str) -> str | None:
    """Where the notebook that a page shows lies below the root of the book, packed or not.

    None for a page of no notebook.
    """
    match page.split("/"):
        case ["notebooks", _, id]:
            return f"{FOLDER}/{CONTROLS}/{id}.zip"
        case ["book", ("runs" | "own") as kind, run, id] if id != "index":
            return f"{FOLDER}/{folder(run, kind)}/{id}.ipynb"
    return None


def names(found: Sequence[Mapping]) -> list[dict]:
    """What each name of each claim is: label, unit, and what a higher value means."""
    lines = {}
    for row in found:
        words = term(row["claim"], row["name"])
        line = {name: row[name] for name in ("claim", "name", "label", "unit")} | {
            "higher": words.higher
        }
        lines.setdefault((row["claim"], row["name"]), line)
    return list(lines.values())


def figures(notebook: NotebookNode) -> list[str]:
    """The figures that an executed notebook shows as SVG, in its order."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [
        output["data"]["image/svg+xml"]
        for output in outputs
        if "image/svg+xml" in output.get("data", ())
    ]


def links(place: str, id: str, notebook: NotebookNode, up: str) -> str:
    """Links to the files of one result, as HTML.

    `up` leads from its page to the root of the book.
    """
    paths = [(what, f"{place}/{name}") for name, (what, _) in files(place, id, notebook).items()]
    paths += [("all values (CSV)", VALUES)]
    found = [
        f"<a href='{up}{FOLDER}/{html(path)}' download>{html(what)}</a>" for what, path in paths
    ]
    return f"<p class='downloads'>Download: {' · '.join(found)}</p>"


def on_page(place: str, id: str, data: Mapping, notebook: NotebookNode, up: str) -> str:
    """What ends the page of a result, as Markdown: its files, which lie in `place`, and how to cite
    it where it was published.
    """
    published = place != CONTROLS and "/" not in place
    return "\n\n".join(
        [links(place, id, notebook, up), *([cite.block(cite.bibtex(data))] if published else [])]
    )


def fragments(
    registry: Registry, runs: Mapping[str, Mapping[str, dict]], revision: str | None
) -> dict[str, str]:
    """What the page on data shows: `data-columns`, `data-files` and `data-cite`."""
    counts = [
        {
            "run": f"`{run}`",
            "results": len(own),
            "values": f"{sum(len(data['values']) for data in own.values()):,}",
        }
        for run, own in runs.items()
    ]
    columns = [
        {"column": f"`{column.name}`", "type": column.type, "meaning": column.meaning}
        for column in COLUMNS
    ]
    entry = cite.bibtex_whole(runs, revision)
    return {
        "data-columns": table_of(columns, str),
        "data-files": table_of(counts, str) if counts else "No run has been published yet.",
        "data-cite": f"```bibtex\n{entry}\n```",
    }


def _revision(data: Mapping) -> str | None:
    origin = data.get("provenance", {})
    revision = origin.get("git_revision")
    return revision and revision + ("-dirty" if origin.get("git_dirty") else "")


def _write_csv(path: Path, columns: Sequence[str], lines: Sequence[Mapping]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(lines)
