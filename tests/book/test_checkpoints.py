"""The page of checkpoints: a row for each file, narrowed by choices, and what was not run."""

import json
import shutil
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from helpers.book import checkpoints
from helpers.book.render import render
from helpers.claims.checkpoints import FOLDER

ROOT = Path(__file__).parents[2]
VIT, OTHERS = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", ("scratch-reg0", "control-content")


@pytest.fixture
def known(tmp_path):
    """Of three files."""
    (tmp_path / FOLDER).mkdir(parents=True)
    for model in (VIT, *OTHERS):
        shutil.copy(ROOT / FOLDER / f"{model}.json", tmp_path / FOLDER)
    return checkpoints.values(tmp_path)


def test_a_row_says_what_its_file_does(known):
    page = render("fragments/checkpoints.html.j2", **known)
    heads, *rows = BeautifulSoup(page, "html.parser").select("table.sortable tr")
    titles = [head.get_text() for head in heads.find_all("th")]
    found = [dict(zip(titles, row.find_all("td"), strict=True)) for row in rows]
    assert [row["Checkpoint"].get_text() for row in found] == [VIT, *OTHERS]
    for row in found:
        path = ROOT / FOLDER / f"{row['Checkpoint'].get_text()}.json"
        stored = json.loads(path.read_text())
        assert row["Outliers"].get_text() == ("yes" if stored["outliers"] else "no")
        assert row["Cell"].get_text() == stored["cell"]
        assert float(row["Outliers an image"]["data-number"]) == stored["outliers_per_image"]
        if stored["outliers"]:
            assert float(row["In the corners"]["data-number"]) == stored["corner_share"]
            assert row["Unit"].get_text() == "{}:{}".format(*stored["neurons"][0][:2])
