"""What can be taken away is what was published: the CSV holds the values of the results to the last
digit; files are whole."""

import json
import re
from zipfile import ZipFile

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from pybtex.database import parse_string

from helpers.book import cite, downloads
from helpers.book.build import published
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Result
from helpers.files import digest_of, digest_of_json

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
        assert len(links) == files and ("@misc{" in text) == (place == RUN)
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


def test_a_citation_names_the_revision_and_the_hash_of_the_result():
    for run, id, data, _ in RESULTS:
        stored = json.loads((PROJECT.runs / run / f"{id}.json").read_text())
        fields = parsed(cite.bibtex(data))
        assert stored["sha256"] in fields["note"]
        assert data["provenance"]["git_revision"] in fields["note"]
        assert fields["year"] == data["provenance"]["started"][:4] and id in fields["howpublished"]
        assert cite.bibtex(stored) == cite.bibtex(data)


def test_the_whole_is_cited_with_a_hash_that_every_result_changes():
    results = {run: {id: data for id, (data, _) in own.items()} for run, own in RUNS.items()}
    whole = cite.bibtex_whole(results, "0123abc")
    assert "revision 0123abc" in parsed(whole)["note"]
    assert "Registers, reproduced" in parsed(whole)["title"]
    results[RUN] |= {ID: DATA | {"verdict": "other"}}
    assert cite.bibtex_whole(results, "0123abc") != whole
    assert digest_of_json([]) not in cite.bibtex_whole({}) and parsed(cite.bibtex_whole({}))


def test_what_a_name_holds_is_no_tex(tmp_path, monkeypatch):
    (tmp_path / "CITATION.cff").write_text(
        'title: "100 % & more_"\nauthors:\n  - {family-names: A, given-names: B}\n'
    )
    monkeypatch.setattr(cite, "CITATION", tmp_path / "CITATION.cff")
    fields = parsed(cite.bibtex_whole({}))
    assert fields["title"] == r"{100 \% \& more\_}" and "note" not in fields
    assert "{A, B}" in cite.bibtex_whole({})
