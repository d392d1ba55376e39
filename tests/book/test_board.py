"""The scoreboard says of every claim and model what the results say, and marks what says little."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from books import book_of, claim_of, found, of, scores

from helpers.book.board import (
    board,
    column_of,
    deciding,
    entries,
    folded,
    line,
    little,
)
from helpers.claims.criteria import Test

STATIC = Path(__file__).parents[2] / "book" / "_static"
SCORE = Test("score", ">", 1)


def table_of(text):
    """The table, read as XML."""
    return ET.fromstring(f"<div>{text.splitlines()[1]}</div>").find(".//table")


def test_cells_say_what_the_results_say(book):
    bodies = table_of(board(book)).findall("tbody[@class='claim']")
    assert [body.get("data-claim") for body in bodies] == list(book.registry.claims)
    bodies, cells = {body.get("data-claim"): body for body in bodies}, 0
    for run, id, one in ((run, *pair) for run, own in book.runs.items() for pair in own.items()):
        kind, shown = "whole" if one in book.counted else "again", one.stored.shown
        (cell,) = bodies[id].findall(f"tr/td[@class='{kind}']/div[@data-run='{run}']")
        said = [span.text for span in cell.findall("span")]
        assert said[:2] == [one.stored.compared.status, shown[""]]
        assert [cell.get("data-status"), cell.get("data-verdict")] == said[:2]
        columns = [column_of(model) for model in one.stored.models]
        for model in (model for model in one.stored.models if one in book.counted):
            if columns.count(model) == 1:  # it shares its column with no other seed
                (cell,) = bodies[id].findall(f"tr/td[@data-model='{model}']/div[@data-run='{run}']")
                assert cell.get("data-verdict") == shown[model] == cell.find("span").text
                cells += 1
    assert cells > 50


@pytest.mark.parametrize(
    ("claim", "models", "expected"),
    [
        (claim_of(), {"m": 3, "m_seed1": -3, "other": 3}, ("refuted", ["m-seed1"])),
        (claim_of(), {"m": 3, "m_seed1": 1}, ("inconclusive", ["m-seed1"])),
        (claim_of(quantifier="any"), {"m": 3, "m_seed1": -3}, ("supported", ["m"])),
        # A model to which no test is put stays aside.
        (claim_of(Test("score", ">", 1, "m")), {"m": 3, "m_seed1": -3}, ("supported", ["m"])),
    ],
)
def test_seeds_share_a_column_and_are_folded_as_the_claim_folds_models(claim, models, expected):
    assert folded(scores(claim, **models), "m") == expected


def test_the_value_of_a_cell_is_that_of_the_test_that_decided():
    claim = claim_of(SCORE, Test("iou", ">", 1), Test("share", ">", 1))
    refuted = found(claim, [of("score", "m", 9), of("iou", "m", -2), of("share", "m", -5)])
    assert deciding(refuted, ["m"], "refuted").test.value == "share"
    supported = found(claim, [of("score", "m", 9), of("iou", "m", 5), of("share", "m", 7)])
    assert deciding(supported, ["m"], "supported").test.value == "iou"


ROOM = claim_of(Test("score", ">", 1, baseline="top1"))


@pytest.mark.parametrize(
    ("claim", "values", "doubtful", "signs"),
    [
        (ROOM, {"score": 0.2, "top1": 99.9}, False, ["1"]),
        (ROOM, {"score": 3, "top1": 99.9}, False, []),
        (claim_of(), {"score": -3}, True, ["3"]),
        (claim_of(), {"score": 1}, True, ["3"]),
        (claim_of(), {"score": 3}, True, []),
    ],
)
def test_what_says_little_is_marked(claim, values, doubtful, signs):
    one = found(claim, [of(name, "m", value, 0.1) for name, value in values.items()])
    assert little(one, one.stored.verdict, ["m"], doubtful) == signs
    on_control = scores(claim_of(), control_clean=3)
    assert little(on_control, "supported", ["control-clean"], False) == ["2"]


def test_a_run_that_repeats_another_has_a_column_of_its_own_and_counts_nowhere_else():
    claim = claim_of()
    runs = scores(claim, "mine", {"first_verdict": "refuted"}, m=3), scores(claim, "mine-2", m=-3)
    runs[0].mark = "after the fact"
    book = book_of(*runs, replicates={"mine-2": "mine"})
    assert [one.run for one in entries(book)[claim.id]] == ["mine"]
    table = table_of(board(book))
    cells = table.findall("tbody[@class='claim']/tr/td/div[@class='one']")
    said = [(x.get("data-run"), x.get("data-verdict")) for x in cells]
    assert said == [("mine", "supported"), ("mine-2", "refuted"), ("mine", "supported")]
    seen = [link.text for link in cells[0].findall("small/a[@class='seen']")]
    assert seen == ["after the fact (as first written: refuted)"]
    # On its own page it stands as any other.
    assert "td class='again'" not in board(book, runs[1:])


def test_a_claim_about_controls_stands_by_its_calibration():
    claim = claim_of(Test("score", ">", 1, "control-clean"), bib=None)
    text = board(book_of(controls=[scores(claim, "controls", control_clean=3)]))
    assert "data-run='controls' data-verdict='supported'" in text


def test_the_form_chooses_and_sorts_and_the_address_keeps_it(opened, book, tmp_path):
    """In headless Chromium, from disk."""
    path = tmp_path / "board.html"
    look, own, script = ((STATIC / name).as_uri() for name in ("book.css", "board.css", "board.js"))
    path.write_text(
        f"<!doctype html><link rel='stylesheet' href='{look}'><link rel='stylesheet' href='{own}'>"
        f"<article>{board(book).splitlines()[1]}</article><script src='{script}'></script>",
        encoding="utf-8",
    )
    page = opened(path.as_uri())

    def claims():
        shown = page.locator("tbody.claim:visible")
        return shown.evaluate_all("bodies => bodies.map((body) => body.dataset.claim)")

    assert claims() == list(book.registry.claims)
    page.locator("select[name=verdict]").select_option("refuted")
    assert len(claims()) == book.counts["verdicts"]["refuted"]
    page.locator("select[name=run]").select_option("scratch")
    refuted = {id for id, one in book.runs["scratch"].items() if one.stored.verdict == "refuted"}
    assert {*claims()} == refuted
    page.reload()
    assert {*claims()} == refuted and "verdict=refuted" in page.url
    page.get_by_role("button", name="show all").click()
    page.wait_for_function("!location.hash")
    page.locator("select[name=sort]").select_option("distance")
    found = entries(book)
    far = [line(book.registry[id], found[id])["distance"] for id in claims()]
    known = [distance for distance in far if distance is not None]
    assert known == sorted(known) == far[: len(known)] and len(known) > 10
