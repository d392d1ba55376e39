"""What can be taken away is what was published: the CSV holds the values of the results to the last
digit; files are whole."""

import json
import re
from zipfile import ZipFile

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from helpers.book import downloads
from helpers.book.build import published
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Result
from helpers.files import digest_of

PROJECT = Project()
RUNS = published(PROJECT)  # run -> claim -> result and notebook, of this checkout
RESULTS = [(run, id, *both) for run, own in RUNS.items() for id, both in own.items()]
RUN, ID, DATA, NOTEBOOK = RESULTS[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What is written for the published runs; one of their results stands for the calibration."""
    folder = tmp_path_factory.mktemp("data")
    downloads.write(folder, PROJECT, RUNS, {ID: (DATA, NOTEBOOK)}, {})
    return folder


def table(folder, name):
    """The rows of a CSV as a reader has them, with None for an empty cell."""
    read = pd.read_csv(folder / name, na_values=[""], keep_default_na=False)
    return read.astype(object).where(read.notna(), None).to_dict("records")


def test_the_csv_holds_every_value_to_the_last_digit_and_explains_it(folder):
    rows, expected = table(folder, "values.csv"), []
    same = ("model", "name", "value", "low", "high", "n")
    for run, id, data, _ in RESULTS:
        verdicts = {one["model"]: one["verdict"] for one in data["verdicts"]}
        answer = Result.from_json(PROJECT.registry[id], data).agreement.answer
        for value in data["values"]:
            about = {"run": run, "claim": id, "dataset": value["dataset"] or None}
            about |= {"verdict": verdicts.get(value["model"]), "verdict_claim": data["verdict"]}
            about["trainings"] = " ".join(str(x) for x, *_ in value.get("trainings", ())) or None
            unit = {"unit": value["unit"]} if value["unit"] else {}
            expected.append({**about, "agreement": answer, **unit, **{k: value[k] for k in same}})
    found = [row for row in rows if row["run"] != CONTROLS]
    assert len(expected) > 1000 and all(row["label"] for row in found)
    picked = [{k: row[k] for k in own} for row, own in zip(found, expected, strict=True)]
    assert picked == expected
    for row in found:
        told = {None} if row["low"] is None else {"images", "classes", "trainings"}
        assert row["over"] in told
        assert not row["trainings"] or row["n_of"] == "trainings"
    columns = {row["name"]: row["meaning"] for row in table(folder, "values.dictionary.csv")}
    assert list(columns) == list(rows[0]) and all(columns.values())
    named = {(row["claim"], row["name"]) for row in table(folder, "values.names.csv")}
    assert named == {(row["claim"], row["name"]) for row in rows}


def test_results_and_notebooks_are_copied_byte_for_byte(folder):
    for run, id, data, _ in RESULTS:
        stored, notebook = PROJECT.runs / run / f"{id}.json", folder / run / f"{id}.ipynb"
        assert (folder / run / f"{id}.json").read_bytes() == stored.read_bytes()
        assert digest_of(notebook.read_bytes()) == data["provenance"]["notebook"]


@pytest.mark.parametrize("count", [0, 2])
def test_files_of_a_result_are_there_with_a_link(tmp_path, count):
    svgs = [b"<svg>1</svg>", b"<svg>2</svg>"][:count]
    drawn = [new_output("display_data", {"image/svg+xml": svg.decode()}) for svg in svgs]
    origin = {name: x for name, x in DATA["provenance"].items() if name != "images"}
    own = {ID: (DATA | {"provenance": origin}, new_notebook(cells=[new_code_cell("draw()", outputs=drawn)]))}  # noqa: E501  # fmt: skip
    downloads.write(tmp_path, PROJECT, {RUN: own}, own, {})
    names = [f"{ID}-1.svg", f"{ID}-2.svg"][:count]
    for place, members, files in ((RUN, names, 3 + bool(count)), (CONTROLS, [f"{ID}.ipynb", *names], 3)):  # noqa: E501  # fmt: skip
        text = downloads.on_page(place, ID, *own[ID], "../")
        links = re.findall("href='([^']*)'", text)
        assert len(links) == files
        assert all((tmp_path / link.removeprefix("../data/")).is_file() for link in links)
        if members:
            with ZipFile(tmp_path / place / f"{ID}.zip") as archive:
                assert archive.namelist() == sorted(members)
                assert [archive.read(name) for name in names] == svgs


def test_a_page_leads_to_the_notebook_that_it_shows(folder):
    for page in (f"book/notebooks/{RUN}/{ID}", f"notebooks/paper/{ID}"):
        name = downloads.notebook_of(page).removeprefix(f"{downloads.FOLDER}/")
        assert (folder / name).is_file()
    assert downloads.notebook_of(f"book/notebooks/own/mine/{ID}") == f"data/own/mine/{ID}.ipynb"
    others = ("book/data", f"book/runs/{RUN}/index", f"book/claims/{ID}")
    assert {*map(downloads.notebook_of, others)} == {None}


def test_a_notebook_of_the_calibration_is_written_too(folder):
    with ZipFile(folder / CONTROLS / f"{ID}.zip") as archive:
        assert nbformat.reads(archive.read(f"{ID}.ipynb").decode(), 4).cells
    assert json.loads((folder / CONTROLS / f"{ID}.json").read_text())["id"] == ID


def parsed(text):
    (entry,) = parse_string(text, "bibtex").entries.values()
    return entry.fields
