"""Further statements of a paper, judged on the values of another claim's notebook."""

from dataclasses import replace

import pytest
import yaml

from helpers.claims import Value
from helpers.claims.registry import load_registry
from helpers.claims.result import judge

STATEMENT = {
    "measured_by": "aa1-first",
    "statement": "The score is large.",
    "where": "Section 9",
    "criterion": {
        "quantifier": "all",
        "tests": [{"value": "score", "op": ">", "margin": 5}],
        "why": "Five is large.",
    },
    "paper_says": {"verdict": "supported", "why": "Section 9 says so."},
    "expected": {"control-clean": "refuted"},
}


@pytest.fixture
def registry(project):
    """That of a small project, in which a paper makes the statement."""
    path = next(project.root.glob("notebooks/claims/*.yml"))
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    data["statements"] = {"aa9-large": STATEMENT}
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return load_registry(path.parents[1])


def test_a_statement_is_judged_on_the_values_of_its_claim(registry):
    claim, statement = registry["aa1-first"], registry.statements["aa9-large"]
    assert registry.statements_of("aa1-first") == [statement] and "aa9-large" not in registry.claims
    assert (statement.notebook, statement.values_of) == (claim.notebook, "aa1-first")
    assert statement.criterion.digest != claim.criterion.digest
    result = judge(claim, [Value("score", "vit-a", "scenes", 2.0, 1.5, 2.5, 9)])
    assert replace(result, claim=statement).rejudged().verdict == "refuted"
