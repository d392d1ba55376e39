"""How many claims stand how: each counts once, and every page says the same numbers."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from helpers.book import counts, fragments
from helpers.book.board import entries, line
from helpers.claims.criteria import Criterion, Test, Value
from helpers.claims.project import Project
from helpers.claims.result import Result

REGISTRY = Project().registry
PAPER, ADDED = Test("score", ">", 1), Test("score", ">", 0, extension="not in this setting")


def claim(*tests, bib="p", waiting=None):
    """A claim of the registry with other tests, of a paper or of ours."""
    one = REGISTRY["nr1-artifacts"]
    source = replace(one.source, bib=bib)
    return replace(one, criterion=Criterion("all", tests), source=source, waiting=waiting)


def result(claim, scores):
    """A result: model -> score, each with an interval over 50 images."""
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
        ([{"control-clean": 3}, {"vit-a": -3}], "refuted"),
        ([], "not run"),
    ],
)
def test_a_claim_counts_once_and_controls_do_not(runs, expected):
    found = [result(claim(PAPER), scores) for scores in runs]
    assert counts.standing(claim(PAPER), found).verdict == expected


def test_a_claim_on_controls_alone_is_validated_by_its_own_notebook():
    """It has no run, for each of its tests names the control on which it is made."""
    on_control = replace(PAPER, model="control-clean")
    for tests, waiting, expected in (
        ([on_control], None, "validation only"),
        ([on_control], "needs probes", "not run"),
        ([on_control, PAPER], None, "not run"),
    ):
        assert counts.standing(claim(*tests, waiting=waiting), []).verdict == expected


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
        # Of the paper is only the test that holds, or the one that a control fails.
        ("p", (ADDED, replace(PAPER, margin=-9)), [-3], "extension"),
        ("p", (ADDED, replace(PAPER, model="control-clean")), [-3], "extension"),
    ],
)
def test_what_refutes_a_claim(bib, tests, scores, expected):
    own = claim(*tests, bib=bib)
    models = {f"vit-{x}": y for x, y in zip("ab", scores, strict=False)} | {"control-clean": -3}
    assert counts.standing(own, [result(own, models)]).refuted_by == expected
    own = claim(*tests, bib=bib)
    alone = [result(own, {model: score}) for model, score in models.items()]
    assert counts.standing(own, alone).refuted_by == expected


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([3, 4], "agrees"),
        ([3, 1], "agrees"),  # the interval of 1 holds the margin
        ([3, -3], "mixed"),
        ([1], "not stated"),
    ],
)
def test_whether_several_runs_agree_with_the_paper(scores, expected):
    others = {"why": "it says so of any model.", "tests": {"score": "holds"}}
    own = replace(claim(PAPER), paper_says={"verdict": "supported", "why": "", "others": others})
    found = [result(own, {"vit-a": score}) for score in scores]
    assert counts.standing(own, found).agreement == expected


def test_what_is_counted():
    """Two claims of one paper, one of another, one of ours; and two that are not tested."""
    at = counts.Standing
    counted = counts.count(
        REGISTRY,
        {
            "nr1-artifacts": at("supported", "agrees"),
            "nr2-model-size": at("refuted", "disagrees", "paper"),
            "tt4-domains": at("refuted", "agrees", "extension"),
            "xx5-offered-registers": at("runs differ", "not stated", "ours"),
            "nr3-redundancy": at("not applicable", "disagrees"),
            "xx1-controls": at("validation only"),
        },
    )
    assert counted == counts.Counts(
        claims=6,
        tested=4,
        ours=1,
        papers=2,
        verdicts={
            "supported": 1,
            "refuted": 2,
            "runs differ": 1,
            "not applicable": 1,
            "validation only": 1,
        },
        agreements={"agrees": 2, "disagrees": 1, "not stated": 1},
        refuted_by={"paper": 1, "extension": 1, "ours": 1},
    )


def test_every_page_of_the_built_book_says_the_same_numbers(site, runs):
    known = fragments.values(Project(), runs, {})
    counted = known["counts"]
    expected = {"tested": counted.tested, "claims": counted.claims, **counted.verdicts}
    expected["first"] = len({row[1] for row in known["moved_verdicts"]})
    assert sum(counted.verdicts.values()) == counted.claims == len(REGISTRY.claims)
    refuted = (counted.verdicts.get(kind, 0) for kind in ("refuted", "runs differ"))  # in some run
    assert sum(counted.refuted_by.values()) == sum(refuted)
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
