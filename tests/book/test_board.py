"""The scoreboard says of every claim and model what the results say, and marks what says little."""

import xml.etree.ElementTree as ET

import pytest

from helpers.book.board import Entry, board, column_of, entries, line
from helpers.claims.criteria import Criterion, Test, Value
from helpers.claims.project import Project
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Paper

PROJECT = Project()
ABOVE = (Test("auc", ">", 0.5),)
PAPER = Paper("p", "A paper", "a", 2026, None, None, {"ViT-B": "vit-b", "ViT-C": "vit-c"}, [])


@pytest.fixture(scope="module")
def table(runs, calibration):
    """The table, read as XML."""
    return whole(board(PROJECT.registry, runs, calibration))


def whole(text):
    inside = "".join(text.splitlines()[1:-1])
    return ET.fromstring(f"<div>{inside}</div>".replace(" download>", ">")).find(".//table")


def claim(tests=ABOVE, applies=(), quantifier="all"):
    about = dict.fromkeys(("title", "statement", "where", "measure", "headline"), "x") | {
        "reported": [],
        "source": PAPER,
    }
    expected = {f"control-{name}": "supported" for name in ("content", "clean")}
    profiles = {"paper": {"models": ["vit-b", "vit-c"]}}
    criterion = Criterion(quantifier, tests, applies)
    return Claim(
        "aa1-first", "p", **about, criterion=criterion, expected=expected, profiles=profiles
    )


def entry(one, numbers, positive=True, name="auc", extra=()):
    values = [
        Value(name, model, "scenes", value, value - 0.1, value + 0.1, 9)
        for model, value in numbers.items()
    ]
    result = one.judge([*values, *extra]).to_json()
    return Entry(one, {**result, "run": "mine"}, positive)


def test_every_cell_says_what_the_result_says(table, runs):
    cells = {
        (cell.get("data-claim"), cell.get("data-model")): cell
        for cell in table.iter("td")
        if cell.get("data-claim")
    }
    found = 0
    for run, own in runs.items():
        for id, data in own.items():
            for one in data["verdicts"]:
                if column_of(one["model"]) == one["model"]:
                    cell = cells[id, one["model"]]
                    (inner,) = [div for div in cell.findall("div") if div.get("data-run") == run]
                    seeds = [
                        other
                        for other in data["verdicts"]
                        if column_of(other["model"]) == one["model"]
                    ]
                    if len(seeds) == 1:
                        assert (
                            inner.get("data-verdict") == one["verdict"] == inner.find("span").text
                        )
                        assert cell.get("data-verdict") == cell.find("div").get("data-verdict")
                        found += 1
    assert found > 50
    assert all(cell.get("data-verdict") and cell.get("data-model") for cell in cells.values())


def test_every_claim_has_a_row_with_its_verdict_and_agreement(table, runs):
    bodies = {
        body.get("data-claim"): body for body in table.iter("tbody") if body.get("class") == "claim"
    }
    assert list(bodies) == list(PROJECT.registry.claims)
    for run, own in runs.items():
        for id, data in own.items():
            (one,) = [
                div
                for div in bodies[id].find("tr/td[@class='whole']")
                if div.get("data-run") == run
            ]
            kinds = [span.get("class").split()[0] for span in one.findall("span")]
            assert one.get("data-verdict") == data["verdict"] and kinds == ["verdict", "agreement"]


def test_a_row_opens_to_a_bar_for_each_test(table, runs, calibration):
    for id, own in entries(PROJECT.registry, runs, calibration).items():
        body = next(body for body in table.iter("tbody") if body.get("data-claim") == id)
        rows = [row for one in own for row in one.rows]
        bars = [svg for svg in body.iter("svg") if svg.get("class") == "interval-bar"]
        assert len(bars) == len(rows) and all(
            "margin" in [part.get("class") for part in bar] for bar in bars
        )


def test_seeds_share_a_column_and_are_folded_as_the_claim_folds_models():
    one = entry(claim(), {"twin": 0.9, "twin-seed1": 0.2, "twin-seed2": 0.9, "other": 0.9})
    assert list(one.columns) == ["twin", "other"] and list(one.columns["twin"]) == [
        "twin",
        "twin-seed1",
        "twin-seed2",
    ]
    assert one.folded("twin") == ("refuted", ["twin-seed1"]) and one.folded("other") == (
        "supported",
        ["other"],
    )
    assert (
        entry(claim(quantifier="any"), {"twin": 0.9, "twin-seed1": 0.2}).folded("twin")[0]
        == "supported"
    )
    assert entry(claim(), {"twin": 0.9, "twin-seed1": 0.5}).folded("twin")[0] == "inconclusive"
    assert column_of("control-clean") == column_of("control-content") == "controls"


def test_a_model_to_which_no_test_is_put_stays_aside():
    one = entry(claim((Test("auc", ">", 0.5, "twin"),)), {"twin": 0.9, "twin-seed1": 0.2})
    assert one.folded("twin") == ("supported", ["twin"])


def test_the_value_of_a_cell_is_that_of_the_test_that_decided():
    tests = (Test("auc", ">", 0.5), Test("iou", ">", 0.5), Test("share", ">", 0.5))
    extra = [
        Value(name, "m", "scenes", x, x - 0.1, x + 0.1, 9)
        for name, x in (("iou", 0.3), ("share", 0.1))
    ]
    refuted = entry(claim(tests), {"m": 0.9}, extra=extra)
    assert refuted.deciding(["m"], "refuted").test.value == "share"
    supported = entry(
        claim(tests[:2]), {"m": 0.9}, extra=[Value("iou", "m", "scenes", 0.7, 0.6, 0.8, 9)]
    )
    assert supported.deciding(["m"], "supported").test.value == "iou"


def test_what_says_little_is_marked():
    room = (Test("accuracy_0", "<", 95),)
    near = entry(
        claim(applies=room),
        {"m": 0.9},
        extra=[Value("accuracy_0", "m", "scenes", 99.0, 98.0, 99.5, 9)],
    )
    assert near.little("not applicable", ["m"]) == ["ceiling"]
    far = entry(
        claim(applies=room),
        {"m": 0.9},
        extra=[Value("accuracy_0", "m", "scenes", 50.0, 40.0, 60.0, 9)],
    )
    assert far.little("supported", ["m"]) == []
    absent = entry(
        claim(applies=(Test("outlier_images", ">", 0.05),)),
        {"m": 0.9},
        extra=[Value("outlier_images", "m", value=0.0)],
    )
    assert absent.little("not applicable", ["m"]) == []
    alone = entry(claim(), {"control-clean": 0.9})
    assert alone.little("supported", ["control-clean"]) == ["controls only"]
    blind = entry(claim(), {"m": 0.2}, positive=False)
    assert (
        blind.little("refuted", ["m"]) == ["control never positive"]
        and blind.little("inconclusive", ["m"]) == []
    )


def test_a_control_that_is_never_positive_is_read_from_the_calibration(runs, calibration):
    found = entries(PROJECT.registry, runs, calibration)
    for id, own in found.items():
        own_values = [Value(**value) for value in calibration.get(id, {"values": []})["values"]]
        controls = [
            [value for value in own_values if value.model == control]
            for control in PROJECT.registry[id].expected
        ]
        says = {PROJECT.registry[id].judge(values).verdict for values in controls if values}
        assert all(one.positive is ("supported" in says) for one in own)
    assert {one.positive for own in found.values() for one in own} == {True, False}


def test_checkpoints_of_the_paper_that_were_not_run_are_folded():
    one = claim()
    result = one.judge(
        [Value("auc", "vit-b", "scenes", 0.9, 0.8, 1.0, 9)], not_run={"vit-c": "no <network>"}
    ).to_json()
    table = whole(
        board(
            Registry({"p": PAPER}, {one.id: one}), {"mine": {one.id: {**result, "run": "mine"}}}, {}
        )
    )
    (item,) = list(table.iter("li"))
    assert (
        item.text == "ViT-C"
        and item.get("data-verdict") == "not run"
        and item.get("title") == "vit-c: no <network>"
    )
    assert next(table.iter("details")).get("open") is None


def test_the_distance_by_which_rows_sort_is_that_of_what_decided(table, runs, calibration):
    for id, own in entries(PROJECT.registry, runs, calibration).items():
        body = next(body for body in table.iter("tbody") if body.get("data-claim") == id)
        least = line(PROJECT.registry[id], own)["distance"]
        firsts = [one.rows[0].distance for one in own if one.rows and one.rows[0].decides]
        assert least == min((far for far in firsts if far is not None), default=None)
        assert (body.get("data-distance") is None) == (least is None)
        assert least is None or float(body.get("data-distance")) == pytest.approx(least, rel=1e-4)
    assert len({body.get("data-distance") for body in table.iter("tbody")}) > 10


def test_what_results_hold_is_no_markup_of_the_board():
    one = claim()
    stored = one.judge([Value("auc", "<b>m", "scenes", 0.9, 0.8, 1.0, 9)]).to_json()
    runs = {"mine": {one.id: {**stored, "run": "mine"}}}
    text = board(Registry({"p": PAPER}, {one.id: one}), runs, {})
    assert "<b>m" not in text and "&lt;b&gt;m" in text
