"""How many claims stand how: each counts once, and every page says the same numbers."""

import re
from collections import Counter
from dataclasses import replace

import pytest
from books import PROJECT, book_of, claim_of, scores

from helpers.book import book as counts
from helpers.book.fragments import values
from helpers.claims.claim import DIFFERENT, NOT_COMPARED, OURS, SAME
from helpers.claims.criteria import REFUTING, Test

PAPER, ADDED = Test("score", ">", 1), Test("score", ">", 0, extension="not in this setting")


def standing(claim, *runs):
    return counts.standing(claim, [scores(claim, **models).stored for models in runs])


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([{"vit_a": 3}, {"vit_a": 3}], "supported"),
        ([{"vit_a": 3}, {"vit_a": -3}], "runs differ"),
        ([{"vit_a": 1}, {"vit_a": -3}], "refuted"),
        ([{"vit_a": 3, "control_clean": -3}], "supported"),
        ([{"control_clean": 3}], "validation only"),
        ([{"control_clean": 3}, {"vit_a": -3}], "refuted"),
        ([], "not run"),
    ],
)
def test_a_claim_counts_once_and_controls_do_not(runs, expected):
    assert standing(claim_of(PAPER), *runs).verdict == expected


def test_a_claim_on_controls_alone_is_validated_by_its_own_notebook():
    on_control = replace(PAPER, model="control-clean")
    assert standing(claim_of(on_control)).verdict == "validation only"
    assert standing(claim_of(on_control, PAPER)).verdict == "not run"


@pytest.mark.parametrize(
    ("bib", "tests", "models", "expected"),
    [
        (None, (PAPER,), {"vit_a": -3}, "refuted"),
        ("p", (PAPER,), {"vit_a": -3}, "refuted"),
        ("p", (ADDED,), {"vit_a": -3}, "does not extend"),
        ("p", (PAPER, ADDED), {"vit_a": -3}, "refuted"),
        ("p", (PAPER, ADDED), {"vit_a": 3}, "supported"),
        # Of the paper is only the test that holds, or the one that a control fails.
        ("p", (ADDED, replace(PAPER, margin=-9)), {"vit_a": -3}, "does not extend"),
        ("p", (ADDED, replace(PAPER, model="control-clean")), {"vit_a": -3}, "does not extend"),
    ],
)
def test_what_refutes_a_claim(bib, tests, models, expected):
    claim = claim_of(*tests, bib=bib)
    assert standing(claim, models | {"control_clean": -3}).verdict == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [([3, 4], SAME), ([3, 1], SAME), ([3, -3], DIFFERENT), ([1], NOT_COMPARED)],
)
def test_several_runs_beside_the_paper(found, expected):
    others = {"why": "it says so of any model.", "tests": {"score": "holds"}}
    says = {"verdict": "supported", "why": "", "others": others}
    claim = claim_of(PAPER, paper_says=says)
    assert standing(claim, *({"vit_a": score} for score in found)).status == expected


def test_what_is_counted():
    """Two claims of one paper, one of another, one of ours; and two that are not tested."""
    at = counts.Standing
    standings = {
        "nr1-artifacts": at("supported", SAME),
        "nr2-model-size": at("refuted", DIFFERENT),
        "tt4-domains": at("does not extend", SAME),
        "xx5-offered-registers": at("runs differ", OURS),
        "nr3-redundancy": at("not applicable", NOT_COMPARED),
        "xx1-controls": at("validation only", OURS),
    }
    book = book_of(registry=PROJECT.registry)
    vars(book)["standings"] = standings
    assert book.counts == {
        **{"claims": 6, "tested": 4, "ours": 1, "papers": 2},
        "verdicts": Counter(one.verdict for one in standings.values()),
        "statuses": {SAME: 2, DIFFERENT: 1, NOT_COMPARED: 1, OURS: 2},
    }


def test_every_page_of_the_built_book_says_the_same_numbers(site, book):
    known, counted = values(book), book.counts
    expected = {**{name: counted[name] for name in ("tested", "claims")}, **counted["verdicts"]}
    expected["first"] = len({found.claim.id for found in known["changed_verdicts"]})
    assert sum(counted["verdicts"].values()) == counted["claims"] == len(PROJECT.registry.claims)
    decided = (counted["verdicts"][kind] for kind in ("supported", *REFUTING, "runs differ"))
    assert sum(decided) == known["shared"].decided
    for name in ("index", "claims"):
        text = (site / "book" / f"{name}.html").read_text(encoding="utf-8")
        said = dict(re.findall(r"<b data-count=.([\w ]+).>(\d+)</b>", text))
        assert {key: int(n) for key, n in said.items()} == expected, name
        for n in re.findall(r"\d+ of (?:the )?(\d+)\s+(?:decided )?claims (?:that are|rest)", text):
            assert int(n) == known["shared"].decided, name
