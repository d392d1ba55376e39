"""The table of claims by runs says what their results say."""

import re

from helpers.book.comparison import matrix
from helpers.claims.project import Project

PROJECT = Project()


def test_claims_of_two_runs_stand_side_by_side(runs):
    text = matrix(PROJECT.registry, runs)
    rows = re.findall("<tr><th scope='row'>([^<]*)<.*?</th>(.*?)</tr>", text)
    shared = [id for id in PROJECT.registry.claims if sum(id in own for own in runs.values()) > 1]
    assert [id for id, _ in rows] == shared and shared
    for id, cells in rows:
        own = [results[id] for results in runs.values() if id in results]
        verdicts = [result["verdict"] for result in own]
        assert re.findall("class='verdict [^>]*>([^<]*)<", cells) == verdicts
        assert ("<b>differ</b>" in cells) == (len(set(verdicts)) > 1)
        of_models = [one["verdict"] for r in own if len(r["verdicts"]) > 1 for one in r["verdicts"]]
        assert re.findall("<small>[^<]*: ([^<:]*)</small>", cells) == of_models
    alone = sum(sum(id in own for own in runs.values()) == 1 for id in PROJECT.registry.claims)
    assert f"\n\n{alone} more claims were measured in one run only." in text


def test_one_run_alone_is_not_compared(runs):
    run = next(iter(runs))
    alone = matrix(PROJECT.registry, {run: runs[run]})
    assert alone == "No claim has been published in two runs yet."
