"""From intervals to p-values, and what published verdicts are worth together."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, t, ttest_1samp

from helpers.claims.criteria import Criterion, Test, Value
from helpers.claims.registry import load_registry
from helpers.claims.result import Result, judge
from helpers.claims.statistics import (
    ALPHA,
    Judgement,
    at_level,
    corrected,
    judgements,
    levels,
    p_value,
    rejudged,
    shared,
)
from helpers.measures import stats


def value(estimate, name="score", model="vit-a"):
    return Value.of(name, estimate, model=model)


def interval(at=None, low=None, high=None, n=None):
    return Value("score", "vit-a", None, at, low, high, n)


def row(value, op=">", margin=0.0):
    return Judgement("aa1-first", "mine", "vit-a", Test("score", op, margin), value, "supported")


def jackknife(at, by, limits=(0, 1), n=50):
    """An estimate of a statistic that is spread by so much where one of n images is left out."""
    return stats.jackknife(at, at + np.linspace(-1, 1, n) * by, limits)


# No skewness, so that its interval is plain Student's.
SYMMETRIC = np.concatenate([x := np.linspace(0.1, 3, 20) ** 2, -x]) + 0.7


def test_the_p_value_of_a_mean_is_that_of_students_test():
    estimate = stats.over_images(SYMMETRIC)
    for margin in (-1.0, 0.0, 0.7, 2.5):
        reference = ttest_1samp(SYMMETRIC, margin).pvalue
        assert p_value(value(estimate), margin) == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize(("k", "n"), [(0, 80), (3, 80), (40, 80), (80, 80), (721, 1000)])
def test_the_p_value_of_a_share_is_that_of_the_score_test(k, n):
    estimate = stats.share(np.arange(n) < k)
    for margin in (0.05, 0.5, 0.9):
        reference = chisquare([k, n - k], [n * margin, n * (1 - margin)]).pvalue
        assert p_value(value(estimate), margin) == pytest.approx(reference, rel=1e-6, abs=1e-300)
    assert p_value(value(estimate), 0.0) == (1.0 if k == 0 else 0.0)


def test_the_p_value_of_a_bounded_statistic_is_taken_on_its_own_scale():
    """An AUC of 0.98: on the plain scale a margin of 0.9 would lie as far as one of 1.06."""
    without = 0.98 + np.linspace(-1, 1, 100) * 2e-4
    estimate = stats.jackknife(0.98, without, (0, 1))
    error = math.sqrt(99 / 100 * ((without - without.mean()) ** 2).sum()) / (0.98 * 0.02)
    distance = math.log(0.98 / 0.02) - math.log(0.9 / 0.1)
    two_sided = 2 * t.sf(distance / error, 99)
    assert p_value(value(estimate), 0.9) == pytest.approx(two_sided, rel=1e-6)
    assert p_value(value(estimate), 1.2) == 0.0


@pytest.mark.parametrize("alpha", [0.2, 0.01, 0.001])
@pytest.mark.parametrize(
    "estimate",
    [
        lambda: stats.over_images(SYMMETRIC),
        lambda: stats.share(np.arange(60) < 7),
        lambda: stats.share(np.arange(60) < 0),
        lambda: jackknife(0.9, 1e-3),
        lambda: jackknife(0.4, 1e-2, (0, math.inf)),
        lambda: jackknife(7.0, 1e-1, (0, math.inf)),
    ],
)
def test_an_interval_at_another_level_is_the_estimators(estimate, alpha, monkeypatch):
    usual = estimate()
    other = at_level(value(usual), alpha)
    assert at_level(value(usual), ALPHA).low == pytest.approx(usual.low)
    monkeypatch.setattr(stats, "LEVEL", 1 - alpha)
    assert (other.low, other.high) == pytest.approx(estimate()[1:3], rel=1e-6)


def test_what_has_no_interval_has_no_p_value_and_stays_as_it_is():
    plain, undefined, exact = interval(3.0), interval(n=9), interval(1.0, 1.0, 1.0, 9)
    without, uncounted = interval(1.0, n=3), interval(1.0, 0.0, 2.0)
    for one in (plain, undefined, exact, without, uncounted, interval(None, 0.0, 2.0, 9)):
        assert p_value(one, 0.5) is None and at_level(one, 1e-6) == one
        assert row(one).distance is None
    assert row(None).p is None
    on = row(interval(1.0, 0.9, 1.1, 50), ">", 1.0)  # on the margin
    assert (on.p, on.distance) == (1.0, 0)


def test_corrections_by_hand():
    bonferroni, hochberg = corrected([0.01, 0.02, 0.03, 0.04, 0.9])
    assert bonferroni == pytest.approx([0.05, 0.1, 0.15, 0.2, 1.0])
    assert hochberg == pytest.approx([0.05, 0.05, 0.05, 0.05, 0.9])
    lowered = levels([0.01, 0.02, 0.03, 0.04, 0.9])
    assert lowered == pytest.approx({"Bonferroni": 0.01, "Benjamini-Hochberg": 0.04})
    assert corrected([]) == ([], []) and set(levels([]).values()) == {0.05}
    # No test below its step: that of the first.
    assert levels([0.5, 0.6])["Benjamini-Hochberg"] == 0.025


def stored(id, verdict, models, images=("photographs", "d1", 50)):
    """A result: the whole verdict, `model: verdict; ...` in text, its images (name, digest, n); the
    weights of `copy` are those of vit-a."""
    verdicts = dict(one.split(": ") for one in models.split("; "))
    names = {model: model.replace("copy", "vit-a") for model in verdicts}
    sources = [{"name": x, "weights_hash": f"weights of {name}"} for x, name in names.items()]
    sources.append(dict(zip(("name", "digest", "n"), images, strict=True)))
    models = [{"model": model, "verdict": own} for model, own in verdicts.items()]
    return Result(SimpleNamespace(id=id), verdict, "", models, [], {}, sources, "")


def test_shared_checkpoints_and_images_are_counted():
    longer = ("photographs", "d2", 80)
    results = [
        stored("aa3", "not applicable", "vit-b: not applicable"),
        stored("aa1", "refuted", "vit-a: supported; vit-b: refuted"),
        stored("aa2", "refuted", "vit-b: refuted"),
        # The same weights under another name are the same checkpoint.
        stored("aa1", "supported", "vit-a: supported; copy: supported"),
        stored("aa2", "inconclusive", "vit-a: inconclusive", longer),
        stored("aa4", "supported", "vit-a: supported; vit-b: supported", longer),
    ]
    found = shared(results)
    # A claim counts once: aa1 rests on the checkpoints of both runs.
    assert found.decided == 3 and found.checkpoint == ("vit-b", 1)
    assert found.images == ("photographs", 50, 2)
    assert shared(results[:1]) == (0, None, None)


def test_the_tests_of_models_to_which_the_claim_applies_are_put():
    tests = (Test("score", ">", 1), Test("other", ">", 0, "vit-b"))
    criterion = Criterion("all", tests, applies=(Test("score", ">", -5),))
    claim = replace(load_registry()["nr3-redundancy"], id="aa1", criterion=criterion)
    values = {"vit-a": (2.0, 1.4, 2.6), "vit-b": (3.0, 2.5, 3.5), "vit-c": (-9.0, -9.5, -8.5)}
    measured = [Value("score", model, None, *numbers, 20) for model, numbers in values.items()]
    found = judge(claim, measured)
    rows = judgements([("mine", found)])
    about = ("aa1", "mine", "vit-b")
    assert rows == [
        Judgement("aa1", "mine", "vit-a", tests[0], measured[0], "supported"),
        Judgement(*about, tests[0], measured[1], "inconclusive"),
        Judgement(*about, tests[1], None, "inconclusive"),
    ]
    # Judged again at another level: a test of 1.67 half-widths is undecided where intervals are
    # twice as wide.
    alphas = {ALPHA: "supported", 0.04: "supported", 1e-4: "inconclusive"}
    for alpha, verdict in alphas.items():
        assert rejudged(found, alpha).models["vit-a"] == verdict


NUMBERS, WIDTHS = st.floats(-3, 3).map(lambda x: round(x, 3)), st.floats(1e-3, 2)


@examples(200)
@given(middle=NUMBERS, below=WIDTHS, above=WIDTHS, margin=NUMBERS, n=st.integers(2, 500))
def test_p_is_below_alpha_where_that_interval_excludes_the_margin(middle, below, above, margin, n):
    measured = Value("score", "vit-a", None, middle, middle - below, middle + above, n)
    p = p_value(measured, margin)
    for alpha in (0.3, ALPHA, 0.002):
        if abs(p - alpha) > 1e-6:
            wider = at_level(measured, alpha)
            assert (p < alpha) == (not wider.low <= margin <= wider.high)


def test_a_planted_effect_remains_and_chance_does_not(project):
    """One true effect among 40 models without any: their values spread about the margin as the
    interval says."""
    rng, error = np.random.default_rng(0), float(1 / t.ppf(0.975, 49))
    scores = {f"null-{i}": 1 + error * x for i, x in enumerate(rng.standard_normal(40).tolist())}
    scores["planted"] = 1 + 6 * error
    values = [Value("score", x, None, at, at - 1, at + 1, 50) for x, at in scores.items()]
    found = judge(project.registry["aa1-first"], values)
    rows = judgements([("mine", found)])
    p_values = [one.p for one in rows]

    def below(corrected):
        return [one.model for one, p in zip(rows, corrected, strict=True) if p < ALPHA]

    assert len(rows) == 41 and "planted" in below(p_values) and len(below(p_values)) > 1
    for alpha in levels(p_values).values():
        models = rejudged(found, alpha).models
        assert models.pop("planted") == "supported" and {*models.values()} == {"inconclusive"}
    for corrected_ones in corrected(p_values):
        assert below(corrected_ones) == ["planted"]


def test_every_published_p_value_says_what_its_test_says(book):
    results = [(run, found.result) for run, own in book.runs.items() for found in own.values()]
    rows = [one for one in judgements(results) if one.p is not None]
    assert rows
    for one in rows:
        undecided = one.test.outcome(one.value, one.baseline) is None
        assert undecided == (one.p >= ALPHA) == (one.distance <= 1), one
