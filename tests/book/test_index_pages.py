"""The first screen and the counts: each claim counts once, each square is a verdict, and what is
left out is counted beside it."""

import re

import pytest
from test_template_values import result

from helpers.book.index_pages import scope, standing, strip, summary, together


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
    stands = {id: standing(claim, found)[0] for id, claim in project.registry.claims.items()}
    assert stands == {"aa1-first": expected, "aa2-second": "not run", "aa3-later": "not run"}


def test_a_verdict_with_controls_beside_it_is_that_without_them(project):
    both, control = result(2.0, 1.5, 2.5), result(0.2, 0.1, 0.3, "control-clean", verdict="refuted")
    for key in ("values", "verdicts"):
        both[key] += control[key]
    both["verdict"] = "refuted"
    found = standing(project.registry["aa1-first"], {"mine": {"aa1-first": both}})
    assert found[0] == "supported"


def test_the_sum_is_the_registry(project):
    text = summary(project.registry, runs("refuted", "refuted"))
    assert "Of 3 claims and experiments, 1 were put to trained models" in text
    assert "refuted</span> 1" in text and "Not counted: 2 were not run." in text


def test_the_scope_counts_models_and_what_rests_on_one(project):
    weights = [
        {"name": model, "weights_hash": model}
        for model in ("vit-a", "scratch-reg0", "scratch-reg1")
    ]
    stored = {
        "aa1-first": result() | {"sources": weights},
        "aa2-second": result() | {"id": "aa2-second", "sources": weights},
    }
    twins = result(model="scratch-reg0", verdict="refuted")
    twins["verdicts"] += [{"model": "scratch-reg1", "verdict": "refuted", "reason": ""}]
    found = {"mine": stored, "twins": {"aa1-first": twins | {"sources": weights}}}
    text = scope(project.registry, found)
    assert (
        "No checkpoint of the papers could be had." in text
        and "vit-a</span> and 2 small twins trained here." in text
    )
    assert "2 of 3 decided verdicts rest on <span title='vit-a'>vit-a</span> alone." in text
    assert scope(project.registry, {}) == ""


def test_the_strip_has_a_square_for_each_claim_and_model(project):
    runs = {
        "mine": {"aa1-first": result()},
        "twins": {"aa1-first": result(model="scratch-reg0", verdict="refuted")},
    }
    text = strip(project.registry, runs)
    assert re.findall(r"class='square (\S+)' href='(\S+)'", text) == [
        ("supported", "runs/mine/aa1-first.html"),
        ("refuted", "runs/twins/aa1-first.html"),
    ]
    assert (
        "1 supported" in text and "Twins trained here" in text and strip(project.registry, {}) == ""
    )
