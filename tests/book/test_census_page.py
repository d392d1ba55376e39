"""The page of checkpoints: a row for each file, sortable by its numbers, and what was not run."""

import json
import re
import shutil
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from helpers.book import checkpoints
from helpers.book.render import render
from helpers.claims.checkpoints import FOLDER
from helpers.files import digest_of_json

ROOT = Path(__file__).parents[2]
VIT, SHOWN = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", ("scratch-reg0", "control-content")


@pytest.fixture
def few(tmp_path):
    (tmp_path / FOLDER).mkdir(parents=True)
    for model in (VIT, *SHOWN):
        shutil.copy(ROOT / FOLDER / f"{model}.json", tmp_path / FOLDER)
    return tmp_path


def table(known):
    page = render("fragments/checkpoints.html.j2", **known)
    rows = BeautifulSoup(page, "html.parser").select("table.sortable tr")
    heads, *rows = [row.find_all(["th", "td"]) for row in rows]
    titles = [head.get_text() for head in heads]
    return {row[0].get_text(): dict(zip(titles, row, strict=True)) for row in rows}


def test_a_row_says_what_its_file_does(few):
    rows = table(checkpoints.values(few))
    assert [*rows] == [VIT, *SHOWN]  # by family, and synthetic ones last
    for model, row in rows.items():
        found = json.loads((few / FOLDER / f"{model}.json").read_text())
        assert row["Outliers"].get_text() == ("yes" if found["outliers"] else "no")
        assert row["Cell"].get_text() == found["cell"]
        parameters = found["details"]["source"]["parameters"]
        assert float(row["Parameters"]["data-number"]) == pytest.approx(parameters, rel=1e-5)
        assert float(row["Outliers an image"]["data-number"]) == found["outliers_per_image"]
        corners, presence = row["In the corners"], found["details"]["images_with_outliers"]
        if found["outliers"]:
            assert float(corners["data-number"]) == found["corner_share"]
            assert row["Unit"].get_text() == "{}:{}".format(*found["neurons"][0][:2])
        else:
            assert corners.get_text() == row["Unit"].get_text() == "–"
        low = f"{100 * presence['low']:.3g}".removesuffix(".0")
        assert low in row["Images with outliers"].get_text()
    assert "synthetic" in rows["control-content"]["Family"].get_text()


def test_lists_that_were_not_run_are_counts_and_no_rows(few):
    known = checkpoints.values(few)
    text = render("fragments/checkpoint-lists.md.j2", **known)
    assert "| `@augreg` | 28 | 1 | 27 |" in text and "| `@papers` | 29 | 0 | 29 |" in text
    assert text.startswith(
        "3 checkpoints were measured: 1 published ones, 1 that this project trained, and 1 "
    )
    outliers = sum(row["outliers"] for row in known["census"] if not row["synthetic"])
    assert f"{outliers} of 2 have outliers" in text


def test_the_figure_leaves_controls_out(few):
    sizes = checkpoints.sizes(checkpoints.values(few)["census"])
    assert [value.model for _, value in sizes] == [
        "AugReg, ImageNet-21k, then 1k",
        "trained from scratch here, scenes, labels",
    ]
    assert sizes[0][0] == 5_717_416 and sizes[0][1].value == 1


def test_where_nothing_was_measured_the_page_says_so(tmp_path):
    known = checkpoints.values(tmp_path)
    assert known["census"] == [] and known["census_lists"] == {}
    assert "No checkpoint has been measured here yet." in render(
        "fragments/checkpoints.html.j2", **known
    )


def test_an_edited_file_ends_the_build(few):
    path = few / FOLDER / f"{VIT}.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"outliers": False}))
    with pytest.raises(ValueError, match=f"^{re.escape(path.name)}: was changed after"):
        checkpoints.values(few)
    data = {key: x for key, x in data.items() if key != "sha256"} | {"model": "gone-reg0"}
    path.write_text(json.dumps(data | {"sha256": digest_of_json(data)}))
    with pytest.raises(ValueError, match="nobody knows a model 'gone-reg0'"):
        checkpoints.values(few)


def test_every_file_is_a_row_of_the_book():
    rows = table(checkpoints.values(ROOT))
    paths = (ROOT / FOLDER).glob("*.json")
    assert rows.keys() == {json.loads(path.read_text())["model"] for path in paths}


def test_the_table_is_narrowed_by_choices_and_search(few, opened, tmp_path):
    """In Chromium, from disk."""
    static, path = ROOT / "book" / "_static" / "sortable.js", tmp_path / "page.html"
    text = render("fragments/checkpoints.html.j2", **checkpoints.values(few))
    head = "<!doctype html><html lang='en'><meta charset='utf-8'><body>"
    path.write_text(f"{head}{text}<script src='{static.as_uri()}'></script>", encoding="utf-8")
    page = opened(path.as_uri())

    def shown():
        return page.locator("tbody tr:visible td:first-child").all_inner_texts()

    assert shown() == [VIT, *SHOWN]
    choose = {x: page.locator(f"select[name={x}]") for x in ("family", "size", "cell")}
    assert choose["size"].locator("option").all_inner_texts() == ["all", "0 to 10 M"]
    choose["family"].select_option("AugReg")
    assert shown() == [VIT]
    choose["family"].select_option("all")
    choose["cell"].select_option("sinks alone")
    assert shown() == [SHOWN[0]]
    page.get_by_label("Search this table").fill("augreg")
    assert shown() == []
    choose["cell"].select_option("all")
    assert shown() == [VIT]
