"""Every source notebook's code, cell by cell in this process, where a kernel would be too slow:
input that leaves nothing to measure."""

import pytest
from conftest import run_notebook

from helpers.claims.project import Project

PROJECT = Project()
CLAIMS = [
    claim
    for claim in PROJECT.registry.claims.values()
    if claim.paper.bib and "outlier_tokens > 0" in map(str, claim.criterion.applies)
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_no_outlier_by_the_rule_is_not_applicable(claim):
    few = {name: n for name, n in (("n", 6), ("n_train", 12)) if name in claim.parameters}
    high = {"rule": "fixed:1e9", "by_model": ["control-content rule=fixed:1e9"]}
    few |= {name: x for name, x in high.items() if name in claim.parameters}
    result = run_notebook(claim, {"models": ["control-content"]} | few)
    assert result.verdict == "not applicable", result.reason


def test_no_more_registers_than_one_leaves_their_gain_open():
    """None and one are measured whatever is asked for, and a gain of more that nobody measured
    decides nothing."""
    claim = PROJECT.registry["so6-multi-register"]
    small = {"models": ["scratch-reg0"], "classifier": "published", "counts": [1], "n": 12}
    values = {value.name: value.value for value in run_notebook(claim, small).values}
    assert values["gain_one"] == 0 and {"accuracy_0", "accuracy_1"} <= values.keys()
    assert values["gain_more"] is None
