"""The scoreboard says of every claim and model what the results say, and marks what says little."""

import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace

import pytest

from helpers.book import fragments
from helpers.book.board import Entry, board, column_of, entries, models_of
from helpers.claims.criteria import Criterion, Test, Value
from helpers.claims.project import Project
from helpers.claims.registry import Registry
from helpers.claims.result import Claim, Paper, Result

REGISTRY = Project().registry
ABOVE = (Test("auc", ">", 0.5),)
PAPER = Paper("p", "A paper", "a", 2026, None, "a2026", {"ViT-B": "vit-b", "ViT-C": "vit-c"}, [])


def whole(text):
    """The table, read as XML."""
    return ET.fromstring(f"<div>{text.splitlines()[1]}</div>").find(".//table")


def claim(tests=ABOVE, applies=(), quantifier="all"):
    about = dict.fromkeys(("title", "statement", "where", "measure", "headline"), "x")
    about |= {"reported": [], "source": PAPER, "expected": {"control-clean": "supported"}}
    about["profiles"] = {"paper": {"models": ["vit-b", "vit-c"]}}
    return Claim("aa1-first", "p", criterion=Criterion(quantifier, tests, applies), **about)


def of(name, model, value):
    return Value(name, model, "scenes", value, value - 0.1, value + 0.1, 9)


def entry(one, numbers, positive=True, **extra):
    """What decided a claim: model -> its AUC, and name -> what else was measured of model m."""
    values = [of("auc", model, value) for model, value in numbers.items()]
    values += [of(name, "m", value) for name, value in extra.items()]
    return Entry(one, one.judge(values).to_json() | {"run": "mine"}, positive)


def test_rows_cells_and_bars_say_what_the_results_say(runs, calibration):
    text, found = (x(REGISTRY, runs, calibration) for x in (board, entries))
    table = whole(text)
    captions = [one.find("caption").text for one in table.iterfind(".//table")]
    assert captions == [f"Tests of {id}, {REGISTRY[id].title}" for id, own in found.items() if own]
    known = fragments.values(Project(), runs, calibration)
    kinds = sum(int(text.split()[0]) for text in known["trained"])
    assert f"all {len(known['others']) + kinds} models<" in text  # as the landing page counts them
    bodies = {body.get("data-claim"): body for body in table.findall("tbody[@class='claim']")}
    assert list(bodies) == list(REGISTRY.claims)
    distances = []
    for id, own in found.items():
        bars = bodies[id].findall(".//svg/line[@class='margin']")
        assert len(bars) == sum(len(one.rows) for one in own)
        far = [one.rows[0].distance for one in own if one.rows and one.rows[0].decides]
        distances.append(min((one for one in far if one is not None), default=None))
        shown = bodies[id].get("data-distance")
        assert shown and float(shown) == pytest.approx(distances[-1], rel=1e-4) or shown is None
        assert (shown is None) == (distances[-1] is None)
    assert len(set(distances)) > 10
    cells = 0
    for run, id, data in ((run, *one) for run, own in runs.items() for one in own.items()):
        kind = "again" if run in REGISTRY.replicates else "whole"
        (one,) = bodies[id].findall(f"tr/td[@class='{kind}']/div[@data-run='{run}']")
        shown = Result.from_json(REGISTRY[id], data).shown
        assert one.get("data-verdict") == shown[""]
        kinds = [span.get("class").split()[0] for span in one.findall("span")]
        assert kinds == ["verdict", "agreement"][: 2 if REGISTRY[id].source.bib else 1]
        alone = Counter(column_of(one["model"]) for one in data["verdicts"])
        for model in (one["model"] for one in data["verdicts"]):
            # It shares its column with no other seed.
            if alone[model] == 1 and run not in REGISTRY.replicates:
                (cell,) = bodies[id].findall(f"tr/td[@data-model='{model}']/div[@data-run='{run}']")
                assert cell.get("data-verdict") == shown[model] == cell.find("span").text
                cells += 1
    assert cells > 50


@pytest.mark.parametrize(
    ("one", "numbers", "folded"),
    [
        (claim(), {"twin": 0.9, "twin-seed1": 0.2, "other": 0.9}, ("refuted", ["twin-seed1"])),
        (claim(), {"twin": 0.9, "twin-seed1": 0.5}, ("inconclusive", ["twin-seed1"])),
        (claim(quantifier="any"), {"twin": 0.9, "twin-seed1": 0.2}, ("supported", ["twin"])),
        # A model to which no test is put stays aside.
        (claim((Test("auc", ">", 0.5, "twin"),)), {"twin": 0.9, "twin-seed1": 0.2}, ("supported", ["twin"])),  # noqa: E501
    ],
)  # fmt: skip
def test_seeds_share_a_column_and_are_folded_as_the_claim_folds_models(one, numbers, folded):
    found = entry(one, numbers)
    assert found.folded("twin") == folded
    assert list(found.columns["twin"]) == [model for model in numbers if model != "other"]
    assert models_of(["m", "m-seed1", "other", "control-clean", "m-seed12"]) == ["m", "other"]
    assert column_of("control-clean") == column_of("control-content") == "controls"


def test_the_value_of_a_cell_is_that_of_the_test_that_decided():
    tests = (*ABOVE, Test("iou", ">", 0.5), Test("share", ">", 0.5))
    refuted = entry(claim(tests), {"m": 0.9}, iou=0.3, share=0.1)
    assert refuted.deciding(["m"], "refuted").test.value == "share"
    supported = entry(claim(tests[:2]), {"m": 0.9}, iou=0.7)
    assert supported.deciding(["m"], "supported").test.value == "iou"


@pytest.mark.parametrize(("first", "shown"), [("refuted", "other"), ("supported", "same")])
def test_a_verdict_as_first_written_stands_beside_another_one(first, shown):
    one = claim()
    stored = one.judge([of("auc", "m", 0.9)]).to_json() | {"first_verdict": first}
    stored["after_the_fact"] = True
    table = whole(board(Registry({"p": PAPER}, {one.id: one}), {"mine": {one.id: stored}}, {}))
    cells = table.findall("tbody[@class='claim']/tr/td/div[@class='one']")
    assert [cell.get("data-first") for cell in cells] == [shown] * 2
    earlier = [div.find("span").text for div in cells[0].findall("div[@class='earlier']")]
    assert earlier == (["refuted"] if shown == "other" else [])
    said = [div.text for div in cells[0].findall("div[@class='earlier']")]
    assert said == ["after the fact; as first written: "] * len(earlier)


def test_a_run_that_repeats_another_has_a_column_of_its_own_and_counts_nowhere_else():
    one = claim()
    runs = {
        run: {one.id: one.judge([of("auc", "m", auc)]).to_json() | {"run": run}}
        for run, auc in {"mine": 0.9, "mine-2": 0.2}.items()
    }
    registry = Registry({"p": PAPER}, {one.id: one}, {"mine-2": "mine"})
    assert [x.run for x in entries(registry, runs, {})[one.id]] == ["mine"]
    table = whole(board(registry, runs, {}))
    cells = table.findall("tbody[@class='claim']/tr/td/div[@class='one']")
    assert [(x.get("data-run"), x.get("data-verdict")) for x in cells] == [
        ("mine", "supported"),
        ("mine-2", "refuted"),
        ("mine", "supported"),
    ]
    widths = [
        sum(int(cell.get("colspan", 1)) for cell in row)
        for row in table.findall(".//tr")
        if row.find("td/div") is not None or row.get("class") == "tests"
    ]
    # On its own page, or without the run that it repeats, it stands as any other.
    for alone, known in (
        (runs["mine-2"], registry),
        (runs["mine-2"], replace(registry, replicates={})),
    ):
        text = board(known, {"mine-2": alone}, {})
        assert "td class='again'" not in text and "data-run='mine-2'" in text
    heads = table.find("thead/tr").findall("th")
    assert [head.text for head in heads][1:3] == ["Verdict, and with the paper", "On other images"]
    assert len({len(heads), *(width for width in widths if width > 1)}) == 1


ROOM, OUTLIERS = (Test("auc", ">", 0.5, baseline="top1"),), (Test("outlier_images", ">", 0.2),)


@pytest.mark.parametrize(
    ("found", "verdict", "models", "signs"),
    [
        (entry(claim(ROOM), {"m": 0.2}, top1=99.9), "inconclusive", ["m"], ["ceiling"]),
        (entry(claim(ROOM), {"m": 0.9}, top1=99.9), "supported", ["m"], []),
        (entry(claim(ROOM), {"m": 0.2}, top1=50.0), "refuted", ["m"], []),
        (entry(claim(applies=OUTLIERS), {"m": 0.9}, outlier_images=0.0), "not applicable", ["m"], []),  # noqa: E501
        (entry(claim(), {"control-clean": 0.9}), "supported", ["control-clean"], ["controls only"]),
        (entry(claim(), {"m": 0.2}, False), "refuted", ["m"], ["control never positive"]),
        (entry(claim(), {"m": 0.2}, False), "inconclusive", ["m"], ["control never positive"]),
        (entry(claim(), {"m": 0.9}, False), "supported", ["m"], []),
    ],
)  # fmt: skip
def test_what_says_little_is_marked(found, verdict, models, signs):
    assert found.little(verdict, models) == signs


def test_a_claim_of_no_paper_speaks_of_none():
    one = replace(claim(), source=replace(PAPER, bib=None))
    stored = {one.id: one.judge([of("auc", "m", 0.9)]).to_json()}
    text = board(Registry({"p": one.source}, {one.id: one}), {"mine": stored}, {})
    assert "class='agreement" not in text and "with the paper" not in text


@pytest.mark.parametrize(("auc", "positive"), [(0.9, True), (0.2, False)])
def test_a_control_that_is_never_positive_is_read_from_the_calibration(auc, positive):
    one, registry = claim(), Registry({"p": PAPER}, {"aa1-first": claim()})
    runs, calibration = (
        {one.id: one.judge([of("auc", model, value)]).to_json()}
        for model, value in (("m", 0.9), ("control-clean", auc))
    )
    (found,) = entries(registry, {"mine": runs}, calibration)[one.id]
    assert found.positive is positive


def test_checkpoints_of_the_paper_that_were_not_run_are_folded_and_nothing_is_markup():
    one = claim()
    stored = one.judge([of("auc", "<b>m", 0.9)], not_run={"vit-c": "no <network>"}).to_json()
    text = board(Registry({"p": PAPER}, {one.id: one}), {"mine": {one.id: stored}}, {})
    assert "<b>m" not in text and "&lt;b&gt;m" in text
    details = whole(text).find(".//td[@class='missing']/details")
    items = {item.text: item.get("title") for item in details.iter("li")}
    assert items["ViT-C"] == "vit-c: no <network>" and details.get("open") is None
