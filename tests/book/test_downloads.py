"""What can be taken away is what was published: the CSV holds the values of the results to the last
digit; files are whole."""

import pandas as pd
import pytest

from helpers.book import downloads
from helpers.book.render import macro
from helpers.claims.project import CONTROLS
from helpers.claims.result import IMAGES_SUFFIX


@pytest.fixture(scope="module")
def folder(tmp_path_factory, book):
    folder = tmp_path_factory.mktemp("data")
    downloads.write(folder, book)
    return folder


def table(folder, name):
    """The rows of a CSV as a reader has them, with None for an empty cell."""
    read = pd.read_csv(folder / name, na_values=[""], keep_default_na=False)
    return read.astype(object).where(read.notna(), None).to_dict("records")


def test_the_csv_holds_every_value_to_the_last_digit_and_explains_it(folder, book):
    rows, expected = table(folder, "values.csv"), []
    same = ("model", "name", "value", "low", "high", "n")
    for run, id, one in ((run, *pair) for run, own in book.runs.items() for pair in own.items()):
        verdicts = {own["model"]: own["verdict"] for own in one.data["verdicts"]}
        for value in one.data["values"]:
            about = {"run": run, "claim": id, "dataset": value.get("dataset")}
            about |= {"verdict": verdicts.get(value["model"]), "verdict_claim": one.data["verdict"]}
            about["trainings"] = " ".join(str(x) for x, *_ in value.get("trainings", ())) or None
            about |= {"status": one.stored.compared.status, "mark": one.mark}
            expected.append({**about, **{k: value.get(k) for k in same}})
    found = [row for row in rows if row["run"] != CONTROLS]
    assert len(expected) > 1000 and all(row["label"] for row in found)
    picked = [{k: row[k] for k in own} for row, own in zip(found, expected, strict=True)]
    assert picked == expected
    for row in found:
        units = {"images", "classes", "trainings", "pairs of trainings", "transformers"}
        over = {None} if row["low"] is None else units
        assert row["over"] in over and (not row["trainings"] or row["n_of"] == "trainings")
    columns = {row["name"]: row["meaning"] for row in table(folder, "values.dictionary.csv")}
    assert list(columns) == list(rows[0]) and all(columns.values())
    named = {(row["claim"], row["name"]) for row in table(folder, "values.names.csv")}
    assert named == {(row["claim"], row["name"]) for row in rows}


def test_the_files_of_a_result_are_those_that_were_published(folder, book):
    for one in (one for own in book.runs.values() for one in own.values()):
        id = one.claim.id
        links = macro("downloads", one, "../../")
        for end in (".json", IMAGES_SUFFIX):
            stored = one.path.with_suffix(end)
            assert (folder / one.run / f"{id}{end}").read_bytes() == stored.read_bytes()
            assert f"href='../../data/{one.run}/{id}{end}'" in links
        page = downloads.notebook_of(downloads.notebook_page(one))
        assert (folder.parent / folder.name / page.removeprefix("data/")).is_file()
        assert f"href='../../{page}'" in links
    assert downloads.notebook_of("book/index") is None


def test_the_log_of_criteria_has_every_entry_and_the_verdict_by_it(folder, book):
    rows = table(folder, "criteria.csv")
    entries = {id: [row for row in rows if row["claim"] == id] for id in book.log}
    assert {id: len(own) for id, own in entries.items()} == {
        id: len(own) for id, own in book.log.items()
    }
    for id, found in ((one.claim.id, one) for own in book.runs.values() for one in own.values()):
        if entries[id][0]["run"] == found.run:
            assert entries[id][0]["verdict"] == found.first_verdict
            today = found.stored.today or found.stored
            assert entries[id][-1]["verdict"] == today.verdict
