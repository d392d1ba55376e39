"""The explorers: what is stored agrees with the published results, and what a browser shows is what
is stored."""

import re
from pathlib import Path

import numpy as np
import pytest
from page_rules import NAMED, PHONE

from helpers.book import explore
from helpers.book.explore import dequantise
from helpers.claims import load_registry

ROOT = Path(__file__).parents[2]
REAL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def stored(kind):
    """The files of one kind, by model."""
    found = map(explore.read, sorted((ROOT / "book" / "explore").glob(f"{kind}-*.json")))
    return {data["model"]: data for data in found}


def test_one_unit_makes_the_outliers_of_the_corners():
    data = stored("patches")[REAL]
    counts, norms = np.array(data["outliers"]), dequantise(data["norms"])
    before, *off = (data["states"].index(state) for state in ("before", "set to zero", "moved"))
    assert data["neuron"] == [7, 417]
    assert (counts[before, :, 7:] == 4).all() and (counts[before, :, :6] == 0).all()
    assert (counts[off, :, 7:] == 0).all()
    assert all({*row.argsort()[-4:].tolist()} == {*data["corners"]} for row in norms[before, :, -1])
    shown = [one["id"] for one in data["photographs"]].index("coffee.png")
    page = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
    norms = norms[[before, off[1]], shown, -1].max(-1)
    attention = dequantise(data["attention"])[[before, off[1]], shown, -1][:, data["corners"]]
    shares = attention.sum(-1)
    said = [*(f"<b>largest {x:.0f}<" for x in norms), *(f"<b>corners {x:.0%}<" for x in shares)]
    said.append(f"Here they keep {shares[1] / shares[0]:.0%}.")
    assert [text for text in said if text.replace("%", " %") not in page] == []


def test_thresholds_agree_with_the_published_run(book):
    """The same images under the same rule, and the verdicts of every other page."""
    published = book.runs["vit-tiny"]["xx4-threshold-sensitivity"].stored.by_model
    for model, data in stored("thresholds").items():
        own, at = published[model], data["multiples"].index(3)
        if data["sources"][1]["n"] == own["outlier_images"].n:
            for name in ("outlier_images", "auc", "iou_top"):
                value = data["measures"][name][at][0]
                assert value is None or value == pytest.approx(
                    own[f"{name}_median"].value, abs=2e-3
                )
        for id, verdicts in data["verdicts"].items():
            assert verdicts[at] == book.runs["vit-tiny"][id].stored.models[model]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with the two figures and nothing else."""
    static, found = ROOT / "book" / "_static", explore.fragments(ROOT, load_registry())
    figures = "".join(text.split("\n")[1] for text in found.values())
    styles = "".join((static / name).read_text() for name in ("book.css", "explore.css"))
    page = tmp_path_factory.mktemp("explore") / "page.html"
    page.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'/><title>t</title>"
        "<meta name='viewport' content='width=device-width'/><style>body { margin: 0 } "
        f"{styles}</style><script>{(static / 'explore.js').read_text()}</script>"
        f"<body><article class='bd-content'>{figures}</article></body></html>",
        encoding="utf-8",
    )
    return page.as_uri()


def test_the_keys_and_the_controls_choose_what_is_shown(opened, address):
    data, page = stored("patches")[REAL], opened(address)
    figure = page.locator("figure[data-explore=patches]")
    norms, states = dequantise(data["norms"]), data["states"]
    figure.locator("input[name=patches-state][value='set to zero']").check()
    figure.locator("[data-map=norms]").focus()
    for key, patch in {"Home": 182, "ArrowUp": 168, "ArrowRight": 169, "End": 181}.items():
        page.keyboard.press(key)
        said = figure.locator(".explore-readout").inner_text()
        row, column, norm, *_ = map(float, re.findall(r"\d+(?:\.\d+)?", said))
        assert (row, column) == (patch // 14 + 1, patch % 14 + 1)
        assert norm == pytest.approx(norms[states.index("set to zero"), 0, 7, patch], abs=0.051)
    slider = page.locator("figure[data-explore=thresholds] input[type=range]")
    slider.focus()
    page.keyboard.press("Home")
    passed = np.array(stored("thresholds")[REAL]["photographs"][0]["passed"])
    assert page.locator("[data-map=lit] path.lit").count() == (passed > 0).sum()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(PHONE) == [] and page.evaluate(NAMED) == []


def test_without_javascript_there_are_tables_and_no_controls(opened, address):
    page = opened(address, java_script_enabled=False)
    assert page.locator("input:visible, svg:visible").count() == 0
    assert page.locator("figure table").count() == 3
