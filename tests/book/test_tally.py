"""The tally counts claims, and everything that it leaves out is counted beside it."""

from collections import Counter

import pytest
from test_template_values import result

from helpers.book.tally import ANSWERED, UNTESTED, standings, tally, together


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
    assert together(verdicts) == expected


def runs(*verdicts, model="vit-a"):
    return {
        f"run{i}": {"aa1-first": result(model=model, verdict=verdict)}
        for i, verdict in enumerate(verdicts)
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (runs("supported", "supported"), "supported"),
        (runs("supported", "refuted"), "runs differ"),
        (runs("not applicable"), "not applicable"),
        (runs("supported", model="control-clean"), "calibration only"),
        ({}, "not run"),
    ],
)
def test_a_claim_counts_once_and_controls_do_not(project, found, expected):
    standing = {one.claim.id: one.verdict for one in standings(project.registry, found)}
    assert standing == {"aa1-first": expected, "aa2-second": "not run", "aa3-later": "not run"}


def test_a_verdict_with_controls_beside_it_is_that_without_them(project):
    both, control = result(2.0, 1.5, 2.5), result(0.2, 0.1, 0.3, "control-clean", verdict="refuted")
    for key in ("values", "verdicts"):
        both[key] += control[key]
    both["verdict"] = "refuted"
    assert standings(project.registry, {"mine": {"aa1-first": both}})[0].verdict == "supported"


def test_the_sum_is_the_registry(project):
    found = runs("refuted", "refuted")
    standing = standings(project.registry, found)
    counts = Counter(one.verdict for one in standing)
    assert sum(counts[verdict] for verdict in (*ANSWERED, *UNTESTED)) == len(
        project.registry.claims
    )
    text = tally(project.registry, found)
    assert "Of 3 claims and experiments, 1 were put to trained models" in text
    assert "refuted</span> 1" in text and "Not counted: 2 were not run." in text
