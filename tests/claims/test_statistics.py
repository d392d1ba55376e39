"""What published verdicts are worth together, on results of the small project and on those of this
one."""

from dataclasses import replace

import numpy as np
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from helpers.claims.criteria import Test, Value
from helpers.claims.project import Project
from helpers.claims.statistics import (
    ALPHA,
    at_level,
    corrected,
    judged,
    judgements,
    levels,
    p_value,
)

NUMBERS = st.floats(-3, 3).map(lambda x: round(x, 3))


@examples(200)
@given(
    middle=NUMBERS,
    below=st.floats(1e-3, 2),
    above=st.floats(1e-3, 2),
    margin=NUMBERS,
    n=st.integers(2, 500),
)
def test_p_is_below_alpha_where_the_interval_at_that_level_excludes_the_margin(
    middle, below, above, margin, n
):
    measured = Value("score", "vit-a", None, middle, middle - below, middle + above, n)
    p = p_value(measured, margin)
    for alpha in (0.3, ALPHA, 0.002):
        if abs(p - alpha) > 1e-6:
            wider = at_level(measured, alpha)
            assert (p < alpha) == (not wider.low <= margin <= wider.high)


def result(claim, scores, half=1.0):
    """A result of the small project: model -> score, with intervals of this half-width over 50
    images."""
    values = [
        Value("score", model, None, score, score - half, score + half, 50)
        for model, score in scores.items()
    ]
    return claim.judge(values).to_json()


def test_a_planted_effect_remains_and_chance_does_not(project):
    """One true effect among 40 models without any: their values spread about the margin as the
    interval says."""
    rng, error = np.random.default_rng(0), float(1 / t.ppf(0.975, 49))
    scores = {f"null-{i}": 1 + error * x for i, x in enumerate(rng.standard_normal(40).tolist())}
    claim = project.registry["aa1-first"]
    data = result(claim, scores | {"planted": 1 + 6 * error})
    rows = judgements(project.registry, {"mine": {"aa1-first": data}})
    p_values = [one.p for one in rows]

    def below(corrected):
        return [one.model for one, p in zip(rows, corrected, strict=True) if p < ALPHA]

    assert len(rows) == 41 and "planted" in below(p_values) and len(below(p_values)) > 1
    for alpha in levels(p_values).values():
        models = judged(claim, data, alpha).models
        assert models.pop("planted") == "supported" and {*models.values()} == {"inconclusive"}
    for corrected_ones in corrected(p_values):
        assert below(corrected_ones) == ["planted"]


def test_models_to_which_a_claim_does_not_apply_are_no_tests(project):
    claim = project.registry["aa1-first"]
    applies = replace(claim.criterion, applies=(Test("score", ">", 4),))
    restricted = replace(claim, criterion=applies)
    registry = replace(project.registry, claims={"aa1-first": restricted})
    runs = {"mine": {"aa1-first": result(restricted, {"vit-a": 9.0, "vit-b": 0.0})}}
    assert [one.model for one in judgements(registry, runs)] == ["vit-a"]


def test_every_published_p_value_says_what_its_test_says(runs):
    rows = [one for one in judgements(Project().registry, runs) if one.p is not None]
    assert rows
    for one in rows:
        undecided = one.test.outcome(one.value, one.baseline) is None
        assert undecided == (one.p >= ALPHA) == (one.distance <= 1), one
