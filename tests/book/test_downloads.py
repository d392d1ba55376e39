"""What can be taken away is what was published: the CSV holds the values of the results to the last
digit; files are whole."""

import csv
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


@pytest.fixture(scope="module")
def runs():
    """run -> claim -> result and notebook, of this checkout."""
    return published(PROJECT)


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory):
    """What is written for the published runs; one of their results stands for the calibration."""
    folder = tmp_path_factory.mktemp("data")
    run = next(iter(runs))
    downloads.write(folder, PROJECT, runs, dict(list(runs[run].items())[:1]))
    return folder


def rows(folder):
    """The rows of the CSV as a reader has them, with None for an empty cell."""
    table = pd.read_csv(folder / "values.csv", na_values=[""], keep_default_na=False)
    return table.astype(object).where(table.notna(), None).to_dict("records")


def test_the_csv_holds_every_value_to_the_last_digit(runs, folder):
    read = [row for row in rows(folder) if row["run"] != CONTROLS]
    stored = [
        (run, id, data, value)
        for run, own in runs.items()
        for id, (data, _) in own.items()
        for value in data["values"]
    ]
    assert len(read) == len(stored) > 1000
    for row, (run, id, data, value) in zip(read, stored, strict=True):
        assert (row["run"], row["claim"], row["model"], row["name"]) == (
            run,
            id,
            value["model"],
            value["name"],
        )
        assert [row[key] for key in ("value", "low", "high", "n")] == [
            value[key] for key in ("value", "low", "high", "n")
        ]
        assert row["dataset"] == (value["dataset"] or None) and (
            not value["unit"] or row["unit"] == value["unit"]
        )
        verdicts = {one["model"]: one["verdict"] for one in data["verdicts"]}
        assert (
            row["verdict"] == verdicts.get(value["model"])
            and row["verdict_claim"] == data["verdict"]
        )
        assert row["label"]


def test_the_csv_says_whether_each_verdict_agrees_with_the_paper(runs, folder):
    of_row = {(row["run"], row["claim"]): row["agreement"] for row in rows(folder)}
    for run, own in runs.items():
        for id, (data, _) in own.items():
            assert of_row[run, id] == Result.from_json(PROJECT.registry[id], data).agreement.answer


def test_the_dictionaries_explain_every_column_and_every_name(folder):
    with (folder / "values.csv").open(encoding="utf-8", newline="") as stream:
        head = next(csv.reader(stream))
    with (folder / "values.dictionary.csv").open(encoding="utf-8", newline="") as stream:
        explained = {line["name"]: line["meaning"] for line in csv.DictReader(stream)}
    with (folder / "values.names.csv").open(encoding="utf-8", newline="") as stream:
        named = {(line["claim"], line["name"]) for line in csv.DictReader(stream)}
    assert list(explained) == head and all(explained.values())
    assert named == {(row["claim"], row["name"]) for row in rows(folder)}


def test_results_and_notebooks_are_copied_byte_for_byte(runs, folder):
    for run, own in runs.items():
        for id, (data, _) in own.items():
            assert (folder / run / f"{id}.json").read_bytes() == (
                PROJECT.runs / run / f"{id}.json"
            ).read_bytes()
            assert (
                digest_of((folder / run / f"{id}.ipynb").read_bytes())
                == data["provenance"]["notebook"]
            )


@pytest.mark.parametrize("count", [0, 2])
def test_files_of_a_result_are_there_with_a_link(tmp_path, runs, count):
    drawings = [new_output("display_data", {"image/svg+xml": f"<svg>{k}</svg>"}) for k in (1, 2)]
    notebook = new_notebook(cells=[new_code_cell("draw()", outputs=drawings[:count])])
    run, own = next(iter(runs.items()))
    id, (data, _) = next(iter(own.items()))
    downloads.write(tmp_path, PROJECT, {run: {id: (data, notebook)}}, {id: (data, notebook)})
    drawn = [f"{id}-1.svg", f"{id}-2.svg"][:count]
    for place, members, files in (
        (run, drawn, 3 + bool(count)),
        (CONTROLS, [f"{id}.ipynb", *drawn], 3),
    ):
        text = downloads.on_page(place, id, data, notebook, "../")
        links = re.findall("href='([^']*)'", text)
        assert len(links) == files and ("@misc{" in text) == (place == run)
        assert all((tmp_path / link.removeprefix("../data/")).is_file() for link in links)
        if members:
            with ZipFile(tmp_path / place / f"{id}.zip") as archive:
                assert archive.namelist() == sorted(members)
                assert [archive.read(name) for name in drawn] == [b"<svg>1</svg>", b"<svg>2</svg>"][
                    :count
                ]


def test_a_page_leads_to_the_notebook_that_it_shows(folder, runs):
    run, own = next(iter(runs.items()))
    id = next(iter(own))
    for page in (f"book/runs/{run}/{id}", f"notebooks/paper/{id}"):
        assert (
            folder.parent / downloads.notebook_of(page).replace("data", folder.name, 1)
        ).is_file()
    assert downloads.notebook_of(f"book/own/mine/{id}") == f"data/own/mine/{id}.ipynb"
    assert {
        downloads.notebook_of(page)
        for page in ("book/faq", f"book/runs/{run}/index", "book/claims/sorts")
    } == {None}


def test_a_citation_names_the_revision_and_the_hash_of_the_result(runs):
    for run, own in runs.items():
        for id, (data, _) in own.items():
            (entry,) = parse_string(cite.bibtex(data), "bibtex").entries.values()
            stored = json.loads((PROJECT.runs / run / f"{id}.json").read_text())
            assert (
                stored["sha256"] in entry.fields["note"]
                and data["provenance"]["git_revision"] in entry.fields["note"]
            )
            assert (
                entry.fields["year"] == data["provenance"]["started"][:4]
                and id in entry.fields["howpublished"]
            )
            assert cite.bibtex(stored) == cite.bibtex(data)


def test_the_whole_is_cited_with_a_hash_that_every_result_changes(runs):
    results = {run: {id: data for id, (data, _) in own.items()} for run, own in runs.items()}
    (entry,) = parse_string(cite.bibtex_whole(results, "0123abc"), "bibtex").entries.values()
    assert (
        "revision 0123abc" in entry.fields["note"]
        and "Registers, reproduced" in entry.fields["title"]
    )
    run, id = next((run, id) for run, own in results.items() for id in own)
    other = {**results, run: {**results[run], id: {**results[run][id], "verdict": "other"}}}
    assert cite.bibtex_whole(other, "0123abc") != cite.bibtex_whole(results, "0123abc")
    assert (
        digest_of_json([]) not in cite.bibtex_whole({})
        and parse_string(cite.bibtex_whole({}), "bibtex").entries
    )


def test_what_a_name_holds_is_no_tex(tmp_path, monkeypatch):
    (tmp_path / "CITATION.cff").write_text(
        'title: "100 % & more_"\nauthors:\n  - {family-names: A, given-names: B}\n'
    )
    monkeypatch.setattr(cite, "CITATION", tmp_path / "CITATION.cff")
    (entry,) = parse_string(cite.bibtex_whole({}), "bibtex").entries.values()
    assert entry.fields["title"] == r"{100 \% \& more\_}" and "note" not in entry.fields
    assert "{A, B}" in cite.bibtex_whole({})


def test_a_notebook_of_the_calibration_is_written_too(folder, runs):
    (path,) = (folder / CONTROLS).glob("*.json")
    with ZipFile(path.with_suffix(".zip")) as archive, archive.open(f"{path.stem}.ipynb") as stream:
        assert json.loads(path.read_text())["id"] == path.stem and nbformat.read(stream, 4).cells
