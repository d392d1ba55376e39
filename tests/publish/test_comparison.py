"""The page that compares: what it says of two runs and of two models is what their results say."""

import re

import pytest

from helpers.publish.criteria import Value
from helpers.publish.project import Project
from helpers.publish.site.comparison import matrix, pair_of, scaled, shift, side_by_side, sides_of

PROJECT = Project()


def test_claims_of_two_runs_stand_side_by_side(runs):
    rows = re.findall("<tr><th scope='row'>([^<]*)<.*?</th>(.*?)</tr>", matrix(PROJECT.registry, runs))
    shared = [id for id in PROJECT.registry.claims if sum(id in own for own in runs.values()) > 1]
    assert [id for id, _ in rows] == shared and shared
    for id, cells in rows:
        verdicts = [own[id]["verdict"] for own in runs.values() if id in own]
        assert re.findall("class='verdict [^>]*>([^<]*)<", cells) == verdicts
        assert ("<b>differ</b>" in cells) == (len(set(verdicts)) > 1)
    alone = sum(sum(id in own for own in runs.values()) == 1 for id in PROJECT.registry.claims)
    assert f"\n\n{alone} more claims were measured in one run only." in matrix(PROJECT.registry, runs)


def test_one_run_alone_is_not_compared(runs):
    run = next(iter(runs))
    assert matrix(PROJECT.registry, {run: runs[run]}) == "No claim has been published in two runs yet."
    assert side_by_side(PROJECT.registry, {}).startswith("Two models are needed")


def test_models_are_compared_on_the_claims_that_both_were_judged_on(runs):
    first, second = sides_of({"vit-tiny": runs["vit-tiny"]})[:2]
    found = pair_of(PROJECT.registry, runs, first, second)
    for one in found:
        assert {first[1], second[1]} <= {verdict["model"] for verdict in runs["vit-tiny"][one.id]["verdicts"]}
    text = side_by_side(PROJECT.registry, runs, (first, second))
    assert re.findall("<tbody data-claim='([^']*)'", text) == [one.id for one in found]
    assert "weights of" in text and "</script>" in text and text.count("<script") == 1


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (Value("a", "m", value=0.123, low=0.05, high=0.2, n=9), "share of images", "+12.3 [+5, +20] points *"),
        (Value("a", "m", value=-1.5, low=-4.0, high=1.0, n=9), "%", "-1.5 [-4, +1] points"),
        (Value("a", "m", value=1234.5), "count", "+1,235"),
        (Value("a", "m", value=0.0), "", "0"),
        (Value("a", "m", value=0.2), "p-value", ""),
        (None, "", ""),
    ],
)
def test_differences_are_told_in_points(value, unit, text):
    assert shift(value, unit) == text


def test_other_units_stay():
    assert scaled("px") == (1.0, " px") and scaled("share of 12 heads") == (100.0, " points")
