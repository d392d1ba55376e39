"""How many claims stand how: each counts once, and every page says the same numbers."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from helpers.book import counts, fragments
from helpers.book.board import entries, line
from helpers.claims.criteria import Test, Value
from helpers.claims.project import Project
from helpers.claims.result import Result

REGISTRY = Project().registry


def result(claim, scores):
    """A result of the small project: model -> score, each with an interval over 50 images."""
    values = [Value("score", model, None, x, x - 1, x + 1, 50) for model, x in scores.items()]
    return Result.from_json(claim, claim.judge(values).to_json())


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["supported", "not applicable"], "supported"),
        (["supported", "refuted", "inconclusive"], "runs differ"),
        (["inconclusive", "refuted"], "refuted"),
        (["inconclusive", "not applicable"], "inconclusive"),
        (["not applicable"], "not applicable"),
    ],
)
def test_several_verdicts_on_one_claim(verdicts, expected):
    assert counts.together(verdicts) == expected


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([{"vit-a": 3}, {"vit-a": 3}], "supported"),
        ([{"vit-a": 3}, {"vit-a": -3}], "runs differ"),
        ([{"vit-a": 3, "control-clean": -3}], "supported"),
        ([{"control-clean": 3}], "validation only"),
        ([], "not run"),
    ],
)
def test_a_claim_counts_once_and_controls_do_not(project, runs, expected):
    claim = project.registry["aa1-first"]
    found = [result(claim, scores) for scores in runs]
    assert counts.standing(claim, found).verdict == expected


PAPER, ADDED = Test("score", ">", 1), Test("score", ">", 0, extension="not in this setting")


@pytest.mark.parametrize(
    ("bib", "tests", "scores", "expected"),
    [
        (None, (PAPER,), [-3], "ours"),
        ("p", (PAPER,), [-3], "paper"),
        ("p", (ADDED,), [-3], "extension"),
        ("p", (PAPER, ADDED), [-3], "paper"),
        ("p", (PAPER, ADDED), [3], ""),
        # One run fails the test that we added alone, another that of the paper.
        ("p", (ADDED, replace(PAPER, model="vit-b")), [-3, -3], "paper"),
    ],
)
def test_what_refutes_a_claim(project, bib, tests, scores, expected):
    claim = project.registry["aa1-first"]
    source = replace(claim.source, bib=bib)
    claim = replace(claim, source=source, criterion=replace(claim.criterion, tests=tests))
    found = [result(claim, {f"vit-{x}": y}) for x, y in zip("ab", scores, strict=False)]
    assert counts.standing(claim, found).refuted_by == expected


def test_every_page_of_the_built_book_says_the_same_numbers(site, runs):
    known = fragments.values(Project(), runs, {})
    counted = known["counts"]
    expected = {"tested": counted.tested, "claims": counted.claims, **counted.verdicts}
    expected["first"] = len({row[1] for row in known["moved_verdicts"]})
    assert sum(counted.verdicts.values()) == counted.claims == len(REGISTRY.claims)
    assert sum(counted.refuted_by.values()) == counted.verdicts["refuted"]
    decided = (counted.verdicts.get(kind, 0) for kind in ("supported", "refuted", "runs differ"))
    assert sum(decided) == known["decided"]
    pages = {
        path.name: path.read_text(encoding="utf-8")
        for path in (site / "book").glob("*.html")
        if "<b data-count" in path.read_text(encoding="utf-8")
    }
    assert {"index.html", "scoreboard.html"} <= pages.keys()
    for name, text in pages.items():
        found = dict(re.findall(r"<b data-count=.([\w ]+).>(\d+)</b>", text))
        assert {key: int(n) for key, n in found.items()} == expected, name
    # What the filter of the scoreboard counts.
    standing = re.findall(r'data-standing="([\w ]+)"', pages["scoreboard.html"])
    assert Counter(standing) == counted.verdicts
    # Which of the models the verdicts rest on, by the same claims.
    for name in ("index.html", "scoreboard.html", "limits.html"):
        text = (site / "book" / name).read_text(encoding="utf-8")
        for n in re.findall(r"\d+ of (?:the )?(\d+)\s+(?:decided )?claims (?:that are|rest)", text):
            assert int(n) == known["decided"], name


def test_a_board_counts_as_the_first_page_does(runs, calibration):
    known = fragments.values(Project(), runs, calibration)["counts"]
    lines = (line(REGISTRY[id], own) for id, own in entries(REGISTRY, runs, calibration).items())
    assert Counter(one["standing"] for one in lines) == known.verdicts
