import inspect
import json
import math
from functools import partial
from pathlib import Path

import intervals
import numpy as np
import pytest
import torch
from by_hand import without_each
from scipy import stats as scipy_stats
from scipy.special import logit
from scipy.special import softmax as scipy_softmax
from sklearn.metrics import roc_auc_score

from helpers.measures import stats
from helpers.measures._arrays import settled
from helpers.measures.stats import (
    Estimate,
    auc,
    auc_over_images,
    bootstrap,
    bootstrap_spread,
    cohens_d_over_images,
    contradictions,
    disagreement,
    enrichment_over_images,
    falls_in_two,
    jackknife,
    macro_auc,
    matched_auc_over_images,
    mcnemar,
    mean_ratio,
    over_images,
    over_seeds,
    ratio_of_means,
    share,
)

FIVE = np.array([0.5, 1.0, 0.25, 0.125, 0.75])
OVER_PATCHES = [
    auc_over_images,
    matched_auc_over_images,
    cohens_d_over_images,
    enrichment_over_images,
]


def matched_auc(scores, mask):
    """Over all pairs of patches at the same position."""
    at = zip(scores.T, mask.T, strict=True)
    pairs = np.array([(a, b) for s, m in at for a in s[m] for b in s[~m]])
    return ((np.sign(pairs[:, 0] - pairs[:, 1]) + 1) / 2).mean()


POINT = {
    auc_over_images: lambda s, m: auc(s[m], s[~m]),
    matched_auc_over_images: matched_auc,
    cohens_d_over_images: lambda s, m: (
        (s[m].mean() - s[~m].mean()) / math.sqrt(pooled_variance(s[m], s[~m]))
    ),
    enrichment_over_images: lambda s, m: (
        s[m].mean() / s[~m].mean()
    ),  # of what is above the threshold
}


LIMITS_OF = {cohens_d_over_images: None, enrichment_over_images: (0, math.inf)}


def pooled_variance(a, b):
    return (len(a) * a.var() + len(b) * b.var()) / (len(a) + len(b) - 2)


def planted(images=60, patches=40, share=0.1, effect=1.0, image_spread=0.0, digits=None, seed=0):
    rng = np.random.default_rng(seed)
    mask = rng.random((images, patches)) < share
    scores = (
        rng.normal(size=(images, patches))
        + effect * mask
        + image_spread * rng.normal(size=(images, 1)) * (2 * mask - 1)
    )
    return (scores if digits is None else scores.round(digits)), mask


def test_bootstrap_has_the_textbook_interval():
    values = np.random.default_rng(0).normal(5, 2, 400)
    estimate = bootstrap(values, np.mean, resamples=4000)
    expected = scipy_stats.t.interval(0.95, 399, loc=values.mean(), scale=scipy_stats.sem(values))
    options = {"method": "percentile", "n_resamples": 4000, "rng": 1}
    reference = scipy_stats.bootstrap((values,), np.mean, **options).confidence_interval
    for interval in (expected, reference):
        assert estimate[:4] == pytest.approx((values.mean(), *interval, 400), abs=0.02)


def test_bootstrap_leaves_nan_images_out_and_takes_any_statistic():
    values = np.array([1.0, np.nan, 3.0, 8.0, 5.0, 2.0])
    assert bootstrap(values, np.mean) == bootstrap(values[~np.isnan(values)], np.mean)
    assert bootstrap(torch.from_numpy(values), np.median)[:4:3] == (3, 5)  # value and n
    rows = np.array([[1.0, 5.0], [np.nan, 2.0], [np.nan, np.nan]])
    assert bootstrap(rows, np.nanmean)[:4:3] == pytest.approx((8 / 3, 2))


def test_mean_ratio():
    """A ratio of means, not a mean of ratios."""
    a, b = np.random.default_rng(0).lognormal(size=(2, 40))
    found, expected = mean_ratio(a, torch.from_numpy(b), seed=1), a.mean() / b.mean()
    assert found.value == pytest.approx(expected) and found.low < expected < found.high
    assert mean_ratio(3 * a, a)[:3] == pytest.approx((3, 3, 3))


def test_a_mean_of_symmetric_values_has_students_interval():
    half = np.random.default_rng(0).normal(size=40)
    values = 3 + np.concatenate([half, -half])  # no skewness at all
    estimate = over_images(values)
    reference = scipy_stats.t.interval(0.95, 79, loc=values.mean(), scale=scipy_stats.sem(values))
    assert estimate[:4] == pytest.approx((3, *reference, 80), rel=1e-6) and estimate.step is None


def test_hall_s_cubic_maps_the_ends_to_students_quantiles():
    """g(T) = T + a T^2 / 3 + a^2 T^3 / 27 + a / 6n, with a the skewness, at T = (mean - end) / sd
    (Hall 1992)."""
    values = np.random.default_rng(1).exponential(size=30)
    estimate, sd = over_images(values), values.std(ddof=1)
    a = ((values - values.mean()) ** 3).mean() / sd**3
    for end, sign in ((estimate.low, 1), (estimate.high, -1)):
        T = (values.mean() - end) / sd
        g = T + a * T**2 / 3 + a**2 * T**3 / 27 + a / (6 * 30)
        assert g * np.sqrt(30) == pytest.approx(sign * scipy_stats.t.ppf(0.975, 29))


def test_answers_on_images_are_a_share():
    for right in (np.arange(80) < 76, np.ones(80, bool), np.zeros(80, bool)):
        for unit in (1, 100):
            estimate = over_images(unit * right.astype(float), (0, unit))
            np.testing.assert_allclose(estimate[:3], unit * np.array(share(right)[:3]), atol=1e-12)
            assert estimate.step == (pytest.approx(unit / 80) if right.any() else None)


def test_changed_answers_have_bonett_and_prices_interval():
    """Their example's formula: p12 = (f12 + 1) / (n + 2), and so on; none changed is not certainly
    no change."""
    change = np.repeat([1.0, -1.0, 0.0], [9, 3, 68])
    up, down = 10 / 82, 4 / 82
    half = scipy_stats.norm.ppf(0.975) * np.sqrt((up + down - (up - down) ** 2) / 82)
    estimate = over_images(100 * change, (-100, 100))
    expected = 7.5, 100 * (up - down - half), 100 * (up - down + half), 80, 100 / 80
    assert estimate[:5] == pytest.approx(expected)
    none = over_images(np.zeros(80), (-100, 100))
    assert -4 < none.low < 0 < none.high < 4
    # Three gained and none lost: McNemar's exact test says p = 0.25, and so the interval holds 0.
    assert over_images(np.repeat([1.0, 0.0], [3, 77]), (-1, 1)).low < 0


def test_what_is_continuous_is_at_its_limits_by_construction():
    alike = over_images(np.ones(80), (-1, 1), continuous=True)
    assert alike == Estimate(1, 1, 1, 80) and over_images(np.ones(80), (-1, 1)).low < 0.95
    near = np.r_[np.ones(40), np.full(40, 0.96)]
    assert over_images(near, (0, 1), continuous=True)[:3] == over_images(near, (0, 1))[:3]
    assert over_images(near[::40], (0, 1), continuous=True).step is None


@pytest.mark.parametrize("n", [5, 60])
@pytest.mark.parametrize(("value", "limits"), [(4, (0, 196)), (0.375, (0, 1)), (30, (-100, 100))])
def test_what_could_have_varied_has_an_interval_though_it_is_the_same_on_all_images(
    value, limits, n
):
    """Wilson's upper end for 0 of n in closed form: z^2 / (n + z^2)."""
    z2 = scipy_stats.norm.ppf(0.975) ** 2
    missed = z2 / (n + z2)
    found = over_images(np.full(n, value), limits, counts=True)
    low, high = (value + missed * (limit - value) for limit in limits)
    assert found[:4] == pytest.approx((value, low, high, n)) and found.step is None
    exact = over_images(np.full(n, float(value)), limits, continuous=True)
    assert exact[:3] == (value,) * 3


@pytest.mark.parametrize("kind", [np.int64, np.uint8, bool])
def test_a_count_without_limits_that_is_the_same_on_all_images_has_no_interval(kind):
    alike, other = np.ones(20, kind), np.r_[np.ones(19, kind), kind(0)]
    assert over_images(alike).value == 1 and np.isnan(over_images(alike)[1:3]).all()
    assert over_images(alike.astype(float)) == Estimate(1, 1, 1, 20)
    assert over_images(other) == over_images(other.astype(float))


def test_a_share_of_the_outliers_that_is_the_same_in_all_images_is_not_certain():
    mask = np.tile([True, True, True, False], (40, 1))
    z2 = scipy_stats.norm.ppf(0.975) ** 2
    low, high = (2 / 3 + z2 / (40 + z2) * (limit - 2 / 3) for limit in (0, 1))
    assert stats.share_at(mask, [0, 1])[:3] == pytest.approx((2 / 3, low, high))


def test_parts_of_answers_have_agresti_and_coulls_interval():
    """z^2 / 2 successes and as many failures more; one part of an answer makes no certainty."""
    values, z2 = np.repeat([0.0, 0.2, 1.0], [20, 30, 30]), scipy_stats.norm.ppf(0.975) ** 2
    estimate, n, mean = over_images(values, (0, 1)), 80 + z2, (36 + z2 / 2) / (80 + z2)
    half = np.sqrt(z2 * ((30 * 0.04 + 30 + z2 / 2) / n - mean**2) / n)
    assert (estimate.low, estimate.high) == pytest.approx((mean - half, mean + half))
    part = np.r_[100 / 3, np.zeros(79)]
    none, parted = over_images(np.zeros(80), (-100, 100)), over_images(part, (-100, 100))
    assert parted.high - parted.low == pytest.approx(none.high - none.low, rel=0.4)


def test_the_interval_of_a_mean_ends_at_the_limits():
    rare = np.r_[np.zeros(78), 0.4, 0.9]
    bounded = over_images(rare, (0, 1))
    assert over_images(rare).low < 0 == bounded.low < bounded.high < 0.2
    assert over_images(1 - rare, (0, 1)).high == 1
    assert over_images(np.full(80, 7.0))[:3] == (7, 7, 7)
    low, high = over_images(np.full(80, 0.47), (0, 1))[1:3]
    assert low == high


@pytest.mark.parametrize("n", [1, 4, 5])
def test_fewer_than_five_images_have_no_interval(n):
    values, (scores, mask) = FIVE[:n], planted(images=40)
    mask[n:] = False
    spread, p = bootstrap_spread([values, FIVE + 1])
    found = [
        over_images(values),
        over_images(values > 0.3, (0, 1)),
        over_images(np.r_[values[1:] > 0.3, 1 / 3], (0, 1)),
        bootstrap(values, np.median),
        share(values > 0.3),
        jackknife(values.mean(), values),
        jackknife(0.5, np.arange(9) / 9, n_counted=n),
        stats.share_at(mask, range(20)),
        *(function(scores, mask) for function in OVER_PATCHES),
        spread,
    ]
    for estimate in found:
        ends = np.array([estimate.low, estimate.high])
        assert np.isfinite(estimate.value), estimate
        assert np.isnan(ends).all() if n < 5 else ends[0] < estimate.value < ends[1], estimate
    assert p < 0.05 if n == 5 else np.isnan(p)


def test_the_jackknife_of_a_mean_is_students_interval():
    values = np.random.default_rng(0).normal(5, 2, 60)
    without = (values.sum() - values) / 59
    estimate = jackknife(values.mean(), without)
    reference = scipy_stats.t.interval(0.95, 59, loc=values.mean(), scale=scipy_stats.sem(values))
    assert (estimate.low, estimate.high) == pytest.approx(tuple(reference)) and estimate.n == 60
    few = jackknife(values.mean(), without, n_counted=6)
    ratio = scipy_stats.t.ppf(0.975, 5) / scipy_stats.t.ppf(0.975, 59)
    assert few.high - few.low == pytest.approx(ratio * (estimate.high - estimate.low))


def test_the_jackknife_stays_in_its_limits():
    without = 0.99 + 0.002 * np.random.default_rng(0).normal(size=60)
    half = scipy_stats.t.ppf(0.975, 59) * np.sqrt(59 / 60 * ((without - without.mean()) ** 2).sum())
    assert 0.99 + half > 1
    bounded, positive = jackknife(0.99, without, (0, 1)), jackknife(0.99, without, (0, math.inf))
    reach = half / (0.99 * 0.01)  # the delta method
    ends = logit(bounded[1:3]) - logit(0.99)
    assert bounded.high < 1 and ends == pytest.approx([-reach, reach])
    assert np.log(positive.high / 0.99) == pytest.approx(half / 0.99) == np.log(0.99 / positive.low)
    wider = jackknife(2 * 0.99 - 1, 2 * without - 1, (-1, 1))
    assert (wider.low, wider.high) == pytest.approx((2 * bounded.low - 1, 2 * bounded.high - 1))
    # At a limit: as if every carrier were right, or wrong; what may be anything above 0 has no
    # interval, nor has what overflows.
    for value in (0.0, 1.0):
        found = jackknife(value, np.full(60, value), (0, 1), n_counted=20)
        expected = share(np.full(20, value == 1))
        assert found[:3] == pytest.approx(expected[:3], abs=1e-12)
    for value, values in ((0.0, np.zeros(60)), (1e-3, np.tile([0.0, 2.0], 30))):
        assert np.isnan(jackknife(value, values, (0, math.inf))[1:3]).all()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("case", intervals.CASES, ids=lambda case: case.name)
def test_intervals_cover_at_their_level(case):
    """What book/intervals.json shows was simulated with many more repetitions; a broken estimator
    is far off in some, too."""
    found = intervals.covered(case, 80, 60, seed=1)
    assert found["covered"] >= 88 and found["without_interval"] == 0


@pytest.mark.usefixtures("unchecked_shapes")
def test_where_intervals_cover_too_little_is_told_as_it_is():
    """Of data that hide their spread, by the same simulation with fewer repetitions."""
    rows = json.loads(Path("book/intervals-awkward.json").read_text(encoding="utf-8"))
    for row, (case, n) in zip(rows, intervals.AWKWARD, strict=True):
        assert (row["case"], row["n"]) == (case.name, n)
        found = intervals.covered(case, n, 200)
        assert row["covered"] == pytest.approx(found["covered"], abs=9)
        assert row["without_width"] == pytest.approx(found["without_width"], abs=9)
    hidden, *others = rows
    assert hidden["without_width"] > 30 and not any(row["without_width"] for row in others)
    assert all(row["covered"] > 95 for row in rows if "count" in row["case"])
    shown, not_shown = (row for row in rows if "samples that" in row["case"])
    assert not_shown["covered"] < 70 < 90 < shown["covered"]


def test_the_published_coverage_is_near_its_level():
    rows = json.loads(Path("book/intervals.json").read_text(encoding="utf-8"))
    assert {(row["case"], row["n"]) for row in rows} == {
        (case.name, n) for case in intervals.CASES for n in intervals.SIZES
    }
    for row in rows:
        assert 93 <= row["covered"] <= intervals.CAUTIOUS.get(row["case"], 97), row


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ([0, 100, 100, 0, 0], 20), ([-100, 0, 0, 100], 25), ([100, 100], 50), ([0, -100, 0], 100 / 3),  # noqa: E501
        ([0, 100 / 3, 200 / 3, 100], 25 / 3), ([50, np.nan, 100, 0], 50 / 3), ([0, 0, 0], None), ([12.34, 50, 100], None),  # noqa: E501
        ([45.3, 45.4], None),
    ],
)  # fmt: skip
def test_the_mean_of_what_was_right_tells_its_step(values, step):
    estimate = over_images(np.float32(values), (-100, 100))
    assert estimate.step == (step and pytest.approx(step))
    assert over_images(np.float32(values)).step is None
    if step is not None:
        one_more = np.float32(values)
        one_more[np.nanargmin(one_more)] += step * np.isfinite(one_more).sum()
        assert over_images(one_more).value - estimate.value == pytest.approx(step)


def test_share_and_its_mean_over_seeds_tell_their_step():
    few, more, other = (share(np.arange(n) < k) for n, k in ((4, 1), (4, 2), (2, 1)))
    assert few.step == over_seeds([few]).step == 1 / 4
    assert over_seeds([few, more]).step == 1 / 8
    assert over_seeds([few, other]).step is None
    assert over_seeds([few, over_images(np.array([0.3, 0.4]))]).step is None


@pytest.mark.parametrize("digits", [None, 0])
def test_auc_against_sklearn(digits):
    scores, mask = planted(digits=digits)
    assert auc(scores[mask], scores[~mask]) == pytest.approx(
        roc_auc_score(mask.ravel(), scores.ravel()), rel=1e-4
    )
    tensors = torch.from_numpy(scores[mask]), torch.from_numpy(scores[~mask])
    assert auc(*tensors) == auc(scores[mask], scores[~mask])


def test_auc_closed_forms():
    assert auc(np.array([3, 4]), np.array([1, 2])) == 1
    assert auc(np.array([1.0, np.nan]), np.array([2.0])) == 0
    assert auc(np.ones(3), np.ones(5)) == 0.5
    for nothing in (np.array([]), np.array([np.nan])):
        assert math.isnan(auc(nothing, np.ones(1))) and math.isnan(auc(np.ones(1), nothing))


@pytest.mark.parametrize("function", OVER_PATCHES)
@pytest.mark.parametrize("digits", [None, 1])
def test_intervals_are_those_of_the_jackknife_by_hand(function, digits):
    """Leave whole images out, pool the others' patches, compute again."""
    scores, mask = planted(patches=30, digits=digits, image_spread=0.5)
    estimate, statistic = function(scores, mask), POINT[function]
    limits = LIMITS_OF.get(function, (0, 1))
    if function is enrichment_over_images:  # its threshold stays that of all images
        scores = scores > np.quantile(settled(scores), 0.75)
    without = without_each(statistic, scores, mask)
    value = statistic(scores, mask)
    bearing = int(mask.any(axis=1).sum())
    assert estimate.value == pytest.approx(value)
    assert estimate.n == (bearing if function is matched_auc_over_images else len(scores))
    reference = jackknife(value, without, limits, n_counted=bearing)
    np.testing.assert_allclose(estimate[:3], reference[:3], rtol=1e-5)


@pytest.mark.parametrize("function", OVER_PATCHES)
@pytest.mark.parametrize("kind", ["all nan", "no positive", "no negative", "no image"])
def test_empty_groups_give_nan_and_do_not_crash(function, kind, recwarn):
    scores, mask = planted(images=5)
    scores = {"all nan": np.full_like(scores, np.nan), "no image": scores[:0]}.get(kind, scores)
    mask = {
        "no positive": np.zeros_like(mask),
        "no negative": np.ones_like(mask),
        "no image": mask[:0],
    }.get(kind, mask)
    estimate = function(torch.from_numpy(scores), torch.from_numpy(mask))
    assert all(map(math.isnan, estimate[:3])) and estimate.n == 0
    assert not list(recwarn)


@pytest.mark.parametrize("function", OVER_PATCHES)
def test_nan_scores_are_left_out(function):
    """As if there were neither the patches nor the images without one."""
    scores, mask = planted(images=30)
    holed = np.r_[scores, np.full((2, 40), np.nan)]
    holed[:, :5] = np.nan
    found = function(holed, np.r_[mask, mask[:2]])
    assert found[:3] == pytest.approx(function(scores[:, 5:], mask[:, 5:])[:3])


def test_matched_auc_removes_position():
    rng = np.random.default_rng(0)
    # Outliers sit where scores are high on every image: position explains all of it.
    position = np.linspace(-3, 3, 40)
    scores = position + rng.normal(size=(200, 40))
    mask = rng.random((200, 40)) < scipy_stats.norm.cdf(position - 1)
    assert auc(scores[mask], scores[~mask]) > 0.85
    estimate = matched_auc_over_images(torch.from_numpy(scores), torch.from_numpy(mask))
    assert estimate.low < 0.5 < estimate.high and estimate.high - estimate.low < 0.08
    # Outliers that nearly always stand still: all rests on the three images in which a patch there
    # is none.
    still = np.broadcast_to(position > 1, scores.shape).copy()
    still[[3, 7, 8], -1] = False
    assert matched_auc_over_images(scores, still).n == 3 and auc_over_images(scores, still).n == 200
    # Outliers at fixed positions leave nothing to compare.
    fixed = np.broadcast_to(position > 1, scores.shape)
    assert math.isnan(matched_auc_over_images(scores, fixed).value)


def test_cohens_d_of_what_was_planted_and_of_nothing():
    scores = np.random.default_rng(0).normal(size=(2, 20_000)) + [[1], [0]]  # one deviation apart
    mask = np.repeat([[True], [False]], 20_000, axis=1)
    t = scipy_stats.ttest_ind(*scores).statistic
    found = cohens_d_over_images(scores, mask).value
    assert found == pytest.approx(t * np.sqrt(2 / 20_000)) and found == pytest.approx(1, abs=0.05)
    assert np.isnan(cohens_d_over_images(np.ones((6, 4)), np.eye(6, 4) > 0).value)


def test_enrichment_planted_and_closed():
    scores = np.arange(100.0).reshape(10, 10)
    mask = scores >= 80
    # Above the 75th percentile: 25 tokens, all 20 masked ones and 5 of the 80 others.
    assert enrichment_over_images(scores, mask).value == pytest.approx(1 / (5 / 80))
    assert math.isnan(
        enrichment_over_images(scores, scores >= 75).value
    )  # no other token is above: infinite
    rng = np.random.default_rng(0)
    high = rng.random((400, 100)) < 0.25
    mask = rng.random((400, 100)) < np.where(high, 0.05, 0.02)
    estimate = enrichment_over_images(high + rng.random((400, 100)), mask, quantile=1 - high.mean())
    masked, others = 0.25 * 0.05 + 0.75 * 0.02, 0.25 * 0.95 + 0.75 * 0.98
    truth = (0.25 * 0.05 / masked) / (0.25 * 0.95 / others)
    assert estimate.low < truth < estimate.high and estimate.value == pytest.approx(truth, abs=0.15)


def test_mcnemar_is_the_exact_binomial():
    a, b = np.zeros((2, 20), dtype=bool)
    a[:8], b[8:10] = True, True
    assert mcnemar(a, b) == pytest.approx(2 * scipy_stats.binom.cdf(2, 10, 0.5))
    assert mcnemar(torch.from_numpy(b), torch.from_numpy(a)) == mcnemar(a, b)
    assert mcnemar(a, a) == 1


def test_share_has_wilsons_interval():
    """Wilson (1927); of none it is [0, z^2 / (n + z^2)], where a bootstrap would say [0, 0]."""
    z2 = scipy_stats.norm.ppf(0.975) ** 2
    for k in (0, 20):
        p = k / 80
        centre, half = p + z2 / 160, np.sqrt(z2 * (p * (1 - p) / 80 + z2 / 25600))
        expected = p, *((centre + np.array([-half, half])) / (1 + z2 / 80)), 80, 1 / 80
        np.testing.assert_allclose(share(np.arange(80) < k)[:5], expected, atol=1e-12)
    assert np.isnan(share(np.zeros(0, dtype=bool)).value)


def test_position_share_of_fixed_and_of_moving_patches():
    rng = np.random.default_rng(0)
    fixed = np.zeros((400, 100), dtype=bool)
    fixed[:, [3, 17, 50]] = True
    assert stats.position_share(fixed)[:3] == share(np.ones(200, dtype=bool))[:3]
    moving = stats.position_share(rng.random((400, 100)) < 0.03)
    assert moving.low < 0.03 < moving.high and moving.n == 200
    # Half of the patches stand still: 2 of the 4 that an image has on average.
    half = rng.random((400, 100)) < 0.02
    half[:, [3, 17]] = True
    found = stats.position_share(half)
    assert 0.45 < found.low < found.value < found.high < 0.56
    assert np.isnan(stats.position_share(np.zeros((10, 5), dtype=bool)).value)


def test_share_at_given_positions():
    mask = np.array([[1, 1, 0, 0], [1, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=bool)
    assert stats.usual_positions(torch.from_numpy(mask), 4) == [0, 1, 3, 2]
    assert stats.usual_positions(mask, 2) == [0, 1]
    assert stats.usual_positions(mask) == [0]  # 5 in 4 images
    found = stats.share_at(torch.from_numpy(mask), [0])
    assert found.value == 3 / 5 and np.isnan(found.low) and found.n == 4
    assert stats.share_at(mask, [2, 3]).value == 1 / 5
    assert np.isnan(stats.share_at(mask & False, [0]).value)


def test_macro_auc_against_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(60) % 4)
    scores = scipy_softmax(rng.normal(size=(60, 4)) + 1.5 * np.eye(4)[labels], axis=1)
    assert macro_auc(scores, labels) == pytest.approx(
        roc_auc_score(labels, scores, multi_class="ovr")
    )
    two = scipy_softmax(scores[:, :2], axis=1)
    assert macro_auc(two, labels % 2) == pytest.approx(roc_auc_score(labels % 2, two[:, 1]))
    # A class that no image has counts for nothing.
    assert macro_auc(np.c_[scores, np.zeros(60)], labels) == macro_auc(scores, labels)


def test_bootstrap_spread():
    rng = np.random.default_rng(0)
    groups = [rng.normal(mean, 1, 200) for mean in (0.0, 1.0, 0.4)]
    estimate, p = bootstrap_spread(groups, resamples=4000)
    half = 1.96 * np.sqrt(groups[0].var() / 200 + groups[1].var() / 200)
    assert estimate.value == pytest.approx(groups[1].mean() - groups[0].mean())
    assert estimate.n == 600 and p < 0.001
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.05)
    # Student's range of three: 3.31 standard deviations of a mean, not 1.96 of a difference.
    assert estimate.value - estimate.low == pytest.approx(
        scipy_stats.studentized_range.ppf(0.95, 3, 597) / np.sqrt(200), rel=0.1
    )
    assert np.isnan([*bootstrap_spread(groups[:1])[0][:3], bootstrap_spread(groups[:1])[1]]).all()
    estimate, p = bootstrap_spread([np.zeros(10), np.zeros(20)])
    assert estimate.value == 0 and np.isnan(estimate[1:3]).all() and p == 1
    # The lower end is above 0 where p < 0.05, also of a few images.
    for n in (6, 40):
        means = np.array([[0], [0], [2.5 / np.sqrt(n)]])
        drawn = [bootstrap_spread([*rng.normal(means, size=(3, n))], seed=i) for i in range(60)]
        above = np.array([estimate.low > 0 for estimate, _ in drawn])
        ps = np.array([p for _, p in drawn])
        sure = abs(ps - 0.05) > 0.005
        assert (above == (ps < 0.05))[sure].all() and 5 < above.sum() < len(above) - 5


def test_over_seeds_is_students_interval_where_the_images_are_certain():
    values = [3.0, 4.5, 4.0, 7.0]
    estimate = over_seeds([Estimate(value, value, value, 500) for value in values])
    reference = scipy_stats.t.interval(0.95, 3, loc=4.625, scale=scipy_stats.sem(values))
    assert estimate[:4] == pytest.approx((4.625, *reference, 4))


def test_over_seeds_keeps_the_chance_of_the_images():
    both, alone = (
        over_seeds([Estimate(v, v - below, v + above, 50) for v in (1.0, 2.0, 6.0)])
        for below, above in ((3, 4), (0, 0))
    )
    assert both.value - both.low == pytest.approx(np.hypot(alone.value - alone.low, 3))
    assert both.high - both.value == pytest.approx(np.hypot(alone.high - alone.value, 4))
    assert both.over == "trainings" and both.trainings == ((1, -2, 5), (2, -1, 6), (6, 3, 10))


def test_trainings_that_are_alike_have_an_interval_over_images():
    """Three models without an outlier in 50 images leave as much open as one, of these models."""
    none = share(np.zeros(50, dtype=bool))
    of_each = (none[:3],) * 3
    assert over_seeds([none] * 3) == none._replace(n=3, step=none.step / 3, trainings=of_each)
    assert over_seeds([none] * 3).over == "images" and none.high > 0.05
    for other, over in ((1 + 1e-9, "images"), (1 + 1.05e-6, "trainings")):  # rounding, and a change
        values = [Estimate(x, x - 0.1, x + 0.2, 50) for x in (1.0, other, 1.0)]
        assert over_seeds(values).over == over
    assert over_seeds([Estimate(1.0, 0.9, 1.2, 50), Estimate(1.0, 0.5, 1.1, 50)])[:4] == (
        (1.0, 0.5, 1.2, 2)
    )


def test_trainings_in_two_clusters_have_the_interval_of_all_of_them():
    found = [Estimate(x, x - 0.5, x + 0.25, 50) for x in (27.0, 1.0, 26.0, 1.5, 25.0)]
    two = over_seeds(found, limits=(0, np.inf))
    assert two[:4] == pytest.approx((16.1, 0.5, 27.25, 5)) and two.over == "images"
    assert [value for value, *_ in two.trainings] == [27, 1, 26, 1.5, 25]
    one_odd = over_seeds([Estimate(x, x, x, 50) for x in (0.0, 1.0, 1.0, 1.0, 1.0)])
    assert one_odd[:3] == (0.8, 0, 1) and one_odd.over == "images"
    for one_hump in ((1.0, 9.0, 20.0, 26.0, 27.0), (1.0, 1.0, 27.0)):
        values = over_seeds([Estimate(x, x, x, 50) for x in one_hump])
        assert values.over == "trainings"


@pytest.mark.parametrize("n", [4, 5, 8])
def test_what_is_no_two_clusters_is_rarely_taken_for_two(n):
    """In 5 % of evenly spread samples, by the rule; about as often in normal ones."""
    rng = np.random.default_rng(n)
    evenly, normal = rng.random((4000, n)), rng.normal(size=(4000, n))
    assert np.mean([falls_in_two(x) for x in evenly]) == pytest.approx(0.05, abs=0.012)
    assert 0.02 < np.mean([falls_in_two(x) for x in normal]) < 0.07
    apart = np.arange(n) % 2 + 0.02 * normal
    assert np.mean([falls_in_two(x) for x in apart]) > 0.99
    assert not falls_in_two(np.arange(3.0) ** 9)


def test_over_seeds_ends_where_values_do():
    shares = [Estimate(v, v, v, 50) for v in (0.0, 0.0, 0.2)]
    assert over_seeds(shares).low < 0 and over_seeds(shares, limits=(0, 1)).low == 0
    assert over_seeds(shares, limits=(0, 1)).high == over_seeds(shares).high


def test_what_float32_cannot_tell_apart_is_equal():
    """Cosines of flat patches are 1 but for their last bits; who is larger among them is no
    finding."""
    rng = np.random.default_rng(0)
    flat = rng.random((40, 50)) < 0.5
    scores, mask = np.where(flat, 1.0, rng.random((40, 50))), rng.random((40, 50)) < 0.1
    noisy = np.where(flat, 1 + 3e-7 * rng.integers(-1, 2, (40, 50)), scores)
    halves = partial(enrichment_over_images, quantile=0.5)
    for measure in (auc_over_images, matched_auc_over_images, halves):
        assert measure(noisy, mask) == measure(scores, mask)
    expected = auc(scores[mask], scores[~mask])
    assert auc(noisy[mask], noisy[~mask]) == expected
    assert roc_auc_score(mask.ravel(), noisy.ravel()) != pytest.approx(expected, rel=1e-4)


RIGHT = np.ones(5, bool)
REFUSED = [
    (mcnemar, RIGHT, RIGHT[:4]),
    (mcnemar, np.ones(5), RIGHT),
    (mcnemar, np.ones((5, 2), bool), RIGHT),
    (share, np.array([np.nan, 1])),
    (share, np.array([1, 0, 2])),
    (bootstrap, np.arange(9.0), np.mean, 1),
    (bootstrap_spread, [FIVE, np.r_[FIVE, np.nan]]),
    (bootstrap_spread, [FIVE, np.zeros(0)]),
    (jackknife, -1.5e-6, FIVE, (0, 1)),
    (jackknife, 1 + 1.5e-6, FIVE, (0, 1)),
    (over_images, np.array([0.0, 100]), (0, 1)),
    (over_images, np.zeros((2, 3))),
    *((over_images, FIVE, ends) for ends in ((0, math.inf), (0, 0), (0.5, 1), (-1, 2), (-1, 0))),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0].__name__)
def test_what_has_no_estimate_is_refused(case):
    """As users have the measures: without the check of types, which exists in tests alone."""
    function, *arguments = case
    with pytest.raises(ValueError):
        inspect.unwrap(function)(*arguments)


def t_of(n, level=0.95):
    """Student's quantile for percentiles of resamples, which know the spread of n images as if it
    were that of all."""
    return scipy_stats.t.ppf((1 + level) / 2, n - 1) * np.sqrt(n / (n - 1))


def test_up_to_twelve_repetitions_have_a_step():
    assert over_images(np.arange(13) / 12, (0, 1)).step == pytest.approx(1 / 12 / 13)
    assert over_images(np.arange(14) / 13, (0, 1)).step is None
    assert (
        over_images(np.r_[0.500007, 0, 1, 1, 0], (0, 1)).step is None
    )  # as near as no rounding of float32 leaves a half


@pytest.mark.parametrize("limits, outside", [((0, 1), 1e-6), ((-1, 1), 2e-6), ((0, 100), 1e-4)])
def test_a_limit_holds_to_a_millionth(limits, outside):
    """What float32 leaves of it."""
    for end, sign in zip(limits, (-1, 1), strict=True):
        values = np.full(9, float(end))
        values[0] += sign * 0.999 * outside
        found = over_images(values, limits)
        assert limits[0] <= found.low <= found.high <= limits[1]
        values[0] += sign * 0.5 * outside
        with pytest.raises(ValueError):
            over_images(values, limits)


def test_a_statistic_is_at_its_limit_within_a_billionth_of_the_way():
    zeros = share(np.zeros(9, bool))
    assert jackknife(1.5e-9, np.full(9, 0.5), (0, 1)).high == pytest.approx(1.5e-9)
    assert jackknife(0.5e-9, np.full(9, 0.5), (0, 1)).high == pytest.approx(zeros.high)
    at_limit = jackknife(-1 + 1.5e-9, np.full(9, 0.5), (-1, 1))
    assert at_limit.high == pytest.approx(2 * zeros.high - 1)


def test_a_log_scale_begins_at_the_lower_limit():
    without = 2 + 0.1 * np.random.default_rng(0).normal(size=30)
    one, two = jackknife(2.0, without, (0, math.inf)), jackknife(3.0, without + 1, (1, math.inf))
    assert (two.low, two.high) == pytest.approx((one.low + 1, one.high + 1))


def test_the_interval_of_a_share_at_positions_is_the_jackknife_by_hand():
    mask = np.random.default_rng(0).random((30, 10)) < 0.12

    def of(mask):
        return mask[:, [4, 7]].sum() / mask.sum()

    n_counted = int(mask.any(axis=1).sum())
    assert n_counted < 30 and (mask.sum(axis=1) == 1).any()
    expected = jackknife(of(mask), without_each(of, mask), (0, 1), n_counted=n_counted)
    np.testing.assert_allclose(stats.share_at(mask, [4, 7])[:4], expected[:4], rtol=1e-9)


def test_cohens_d_far_from_zero():
    rng = np.random.default_rng(0)
    mask = rng.random((60, 40)) < 0.1
    scores = (rng.normal(size=mask.shape) + mask).round(3)
    expected = cohens_d_over_images(scores, mask)
    np.testing.assert_allclose(
        cohens_d_over_images(scores + 1e8, mask)[:3], expected[:3], rtol=1e-5
    )


@pytest.mark.parametrize("n", [5, 6, 12])
def test_percentiles_of_few_images_are_taken_as_far_out_as_students_t(n):
    values = np.random.default_rng(n).normal(size=n)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=1000) @ values / n
    expected = np.quantile(draws, scipy_stats.norm.cdf([-t_of(n), t_of(n)]))
    assert bootstrap(values, np.mean)[1:3] == pytest.approx(tuple(expected))


def test_the_chance_of_a_spread_is_as_much_wider_as_students_t():
    """Other resamples than its own, as wide as the smallest group asks for."""
    rng = np.random.default_rng(0)
    groups = [rng.normal(size=6), rng.normal(size=9) + 4]
    estimate, _ = bootstrap_spread(groups, resamples=20_000)
    drawn = [
        rng.choice(group, (20_000, len(group))).mean(axis=1) - group.mean() for group in groups
    ]
    range_of_chance = np.quantile(np.ptp(drawn, axis=0), 0.95)
    wider = t_of(6) / scipy_stats.norm.ppf(0.975)
    assert estimate.value - estimate.low == pytest.approx(wider * range_of_chance, rel=0.02)


def test_groups_of_one_mean_that_vary_have_an_upper_end():
    alike = [np.tile([0.0, 1.0], 5), np.tile([1.0, 0.0], 5)]
    estimate, p = bootstrap_spread(alike)
    assert estimate.value == 0 == estimate.low and 0 < estimate.high < 1 and p == 1


def test_what_differs_by_rounding_alone_is_exact(recwarn):
    rounded = 1e6 + 1e-10 * np.tile([0.0, 1.0], 10)
    assert len(np.unique(rounded)) == 2
    low, high = over_images(rounded)[1:3]
    assert low == high == rounded.mean()
    assert over_images(np.zeros(9))[:3] == (0, 0, 0) and over_images(np.ones(1)).n == 1
    low, high = over_images(1 + 1.5e-12 * np.tile([-1.0, 1.0], 10))[1:3]
    assert low < 1 < high and not list(recwarn)


def test_only_decided_verdicts_contradict():
    verdicts = {
        "one": ("supported", "inconclusive", "not applicable"),
        "two": ("refuted", "not run", ""),
        "three": ("supported", "inconclusive", "refuted"),
        "four": ("refuted", "inconclusive", "refuted"),
    }
    table = {row: dict(zip("abc", own, strict=True)) for row, own in verdicts.items()}
    assert contradictions(table, "abc") == 0.5 and disagreement(table, "abc") == 1
    assert math.isnan(contradictions({row: table[row] for row in ("one", "two")}, "abc"))


def test_groups_are_drawn_before_the_images_within_them():
    """Of groups whose images are all alike, a mean varies as a mean of the groups does."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(40), 5)
    values = rng.normal(size=40)[groups]
    plain, grouped = bootstrap(values, np.mean), bootstrap(values, np.mean, groups=[*groups])
    reach = values[::5].std() / np.sqrt(40)
    assert (grouped.high - grouped.low) == pytest.approx(2 * 1.97 * reach, rel=0.1)
    assert grouped.high - grouped.low > 2 * (plain.high - plain.low)
    assert (grouped.value, grouped.n) == (plain.value, 200) and grouped.per_image is None


def test_images_vary_within_one_group_as_without_any():
    values = np.random.default_rng(2).normal(size=300)
    plain, grouped = bootstrap(values, np.mean), bootstrap(values, np.mean, groups=["a"] * 300)
    assert (grouped.low, grouped.high) == pytest.approx((plain.low, plain.high), abs=0.03)


def test_groups_of_unequal_size_keep_their_images_and_nan_is_left_out():
    values = np.array([1.0, 1.0, 1.0, 5.0, np.nan, 5.0, 5.0])
    found = bootstrap(values, np.mean, groups=["a", "a", "a", "b", "b", "b", "b"])
    assert found.n == 6 and (found.low, found.high) == (1, 5), "a or b may be drawn twice"


def test_what_an_estimate_takes_of_each_image_stays_at_its_place():
    rows = np.random.default_rng(5).random((40, 2))
    rows[3] = np.nan
    mean, ratio = over_images(rows[:, 0]), bootstrap(rows, ratio_of_means)
    for found, columns in ((mean, rows.T[:1]), (ratio, rows.T)):
        np.testing.assert_array_equal(found.per_image.pieces, columns.astype(np.float32))
    answers = share(rows[:, 0] > 0.5)
    assert answers.per_image.pieces[0].sum() == (rows[:, 0] > 0.5).sum()
    together = over_seeds([mean, over_images(rows[:, 1])]).per_image
    np.testing.assert_array_equal(together.pieces, rows.T.astype(np.float32))
    wide = bootstrap(np.ones((9, 9)), np.mean)
    assert wide.per_image is None and over_seeds([mean, wide]).per_image is None
    assert mean == mean._replace(per_image=answers.per_image) == mean._replace(per_image=None)
