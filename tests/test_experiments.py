"""Every source notebook's code, cell by cell in this process, where a kernel would be too slow:
input that leaves nothing to measure. Their other profiles run in publish/test_dry.py."""

import matplotlib.pyplot as plt
import nbformat
import pytest

from helpers.claims.project import Project
from helpers.claims.result import Result

PROJECT = Project()
CLAIMS = [claim for claim in PROJECT.registry.claims.values() if claim.source.bib]
TESTED = "outlier_tokens > 0"


def run(claim, parameters) -> Result:
    """The verdict that the notebook ends with when it is run with these parameters."""
    names = {"plt": plt}
    with plt.rc_context({"backend": "agg"}):
        for cell in nbformat.read(PROJECT.root / claim.notebook, 4).cells:
            if "parameters" in cell.metadata.get("tags", ()):
                names |= {**claim.parameters, **parameters}
            elif cell.cell_type == "code":
                exec(compile(cell.source, claim.notebook, "exec"), names)
        plt.close("all")
    return names["result"]


@pytest.mark.parametrize(
    "claim",
    [c for c in CLAIMS if TESTED in map(str, c.criterion.applies)],
    ids=lambda claim: claim.id,
)
def test_no_outlier_by_the_rule_is_not_applicable(claim):
    few = {
        name: value for name, value in {"n": 6, "n_train": 12}.items() if name in claim.parameters
    }
    result = run(claim, {"models": ["control-content"], "rule": "fixed:1e9"} | few)
    assert result.verdict == "not applicable", result.reason


def test_no_more_registers_than_one_leaves_their_gain_open():
    """None and one are measured whatever is asked for, and a gain of more that nobody measured
    decides nothing."""
    claim = PROJECT.registry["so6-multi-register"]
    small = {"models": ["scratch-reg0"], "classifier": "published", "counts": [1], "n": 12}
    values = {value.name: value.value for value in run(claim, small).values}
    assert values["gain_one"] == 0 and {"accuracy_0", "accuracy_1"} <= values.keys()
    assert values["gain_more"] is None
