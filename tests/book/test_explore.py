"""The explorer: what is stored agrees with the first page, and a browser shows what is stored."""

import re
from pathlib import Path

import numpy as np
import pytest
from page_rules import NAMED, PHONE

from helpers.book import explore
from helpers.book.explore import dequantise

ROOT = Path(__file__).parents[2]
REAL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def stored():
    """What is stored of the model with outliers."""
    return explore.read(ROOT / "book" / "explore" / f"patches-{REAL}.json")


def test_one_unit_makes_the_outliers_of_the_corners():
    data = stored()
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


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page with the figure and nothing else."""
    static, figure = ROOT / "book" / "_static", explore.fragment(ROOT).split("\n")[1]
    styles = "".join((static / name).read_text() for name in ("book.css", "explore.css"))
    page = tmp_path_factory.mktemp("explore") / "page.html"
    page.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'/><title>t</title>"
        "<meta name='viewport' content='width=device-width'/><style>body { margin: 0 } "
        f"{styles}</style><script>{(static / 'explore.js').read_text()}</script>"
        f"<body><article class='bd-content'>{figure}</article></body></html>",
        encoding="utf-8",
    )
    return page.as_uri()


def test_the_keys_and_the_controls_choose_what_is_shown(opened, address):
    data, page = stored(), opened(address)
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
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate(PHONE) == [] and page.evaluate(NAMED) == []


def test_without_javascript_there_are_tables_and_no_controls(opened, address):
    page = opened(address, java_script_enabled=False)
    assert page.locator("input:visible, svg:visible").count() == 0
    assert page.locator("figure table").count() == 1
