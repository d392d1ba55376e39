"""What the intervals do at their edges: five images, the last bit of a limit, a few images only,
defaults."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from helpers.measures import stats
from helpers.measures.stats import (
    bootstrap,
    bootstrap_spread,
    cohens_d_over_images,
    jackknife,
    over_images,
    share,
)

FIVE = np.array([0.5, 1.0, 0.25, 0.125, 0.75])


def t_of(n, level=0.95):
    """Student's quantile for percentiles of resamples, which know the spread of n images as if it
    were that of all."""
    return scipy_stats.t.ppf((1 + level) / 2, n - 1) * np.sqrt(n / (n - 1))


def test_five_images_have_an_interval():
    right = FIVE > 0.3
    estimates = [
        over_images(FIVE),
        over_images(right, (0, 1)),
        over_images(np.r_[right[:4], 1 / 3], (0, 1)),
        share(right),
    ]
    estimates += [
        bootstrap(FIVE, np.mean),
        jackknife(1.0, FIVE),
        jackknife(0.5, np.arange(9) / 9, carriers=5),
    ]
    spread, p = bootstrap_spread([FIVE, FIVE + 1])
    estimates.append(spread)
    assert p < 0.05
    for estimate in estimates:
        assert estimate.low < estimate.value < estimate.high, estimate


def test_up_to_twelve_repetitions_have_a_step():
    assert over_images(np.arange(13) / 12, (0, 1)).step == pytest.approx(1 / 12 / 13)
    assert over_images(np.arange(14) / 13, (0, 1)).step is None
    assert (
        over_images(np.r_[0.500007, 0, 1, 1, 0], (0, 1)).step is None
    )  # as near as no rounding of float32 leaves a half


def test_a_zero_among_other_numbers_makes_no_answers_of_them():
    values = np.r_[0, np.random.default_rng(0).random(30)]
    assert over_images(values, (0, 1))[:3] == over_images(values)[:3]


def test_a_limit_holds_to_a_millionth():
    """What float32 leaves of it."""
    for limits, outside in (((0, 1), 1e-6), ((-1, 1), 2e-6), ((0, 100), 1e-4)):
        lowest, highest = limits
        least, most = (np.full(9, float(end)) for end in limits)
        for values, sign in ((least, -1), (most, 1)):
            values[0] += sign * 0.999 * outside
            assert (
                lowest
                <= over_images(values, limits).low
                <= over_images(values, limits).high
                <= highest
            )
            values[0] += sign * 0.5 * outside
            with pytest.raises(ValueError, match="do not lie in the limits"):
                over_images(values, limits)
    assert (
        over_images(np.r_[-1e-6, FIVE], (0, 1)).n
        == over_images(np.r_[1 + 1e-6, FIVE], (0, 1)).n
        == 6
    )
    with pytest.raises(ValueError, match="values from -0.5 to 1 do not lie"):
        over_images(np.r_[-0.5, FIVE], (0, 1))


def test_a_statistic_keeps_its_limits_to_a_millionth():
    assert jackknife(1 + 1e-6, np.ones(9), (0, 1)).high == pytest.approx(1)
    assert jackknife(-1e-6, np.ones(9), (0, 1)).low == pytest.approx(0)
    for value in (-1.5e-6, 1 + 1.5e-6):
        with pytest.raises(ValueError, match="does not lie in the limits"):
            jackknife(value, np.ones(9), (0, 1))


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


def test_defaults_are_what_the_docstrings_say():
    values = np.random.default_rng(0).normal(size=30)
    mask = np.random.default_rng(0).random((40, 10)) < 0.2
    assert bootstrap(values, np.median) == bootstrap(
        values, np.median, resamples=1000, level=0.95, seed=0
    )
    groups = [values, values[:20] + 0.3]
    assert bootstrap(values, np.median, resamples=1).n == 30
    assert bootstrap_spread(groups) == bootstrap_spread(groups, resamples=1000, seed=0)
    assert (
        stats.position_share(mask)
        == stats.position_share(mask, seed=0)
        != stats.position_share(mask, seed=1)
    )


def test_the_interval_of_a_share_at_positions_is_the_jackknife_by_hand():
    mask = np.random.default_rng(0).random((30, 10)) < 0.12
    value = mask[:, [4, 7]].sum() / mask.sum()
    without = [
        np.delete(mask, i, 0)[:, [4, 7]].sum() / np.delete(mask, i, 0).sum() for i in range(30)
    ]
    carriers = int(mask.any(axis=1).sum())
    assert carriers < 30 and (mask.sum(axis=1) == 1).any()
    expected = jackknife(value, np.array(without), (0, 1), carriers=carriers)
    np.testing.assert_allclose(stats.share_at(mask, [4, 7])[:4], expected[:4], rtol=1e-9)


def test_rare_patches_have_one_usual_position():
    mask = np.zeros((40, 10), dtype=bool)
    mask[::4, 2] = True  # a quarter of a patch an image
    assert stats.position_share(mask).value == 1


def test_images_without_numbers_are_none():
    assert bootstrap(np.zeros((3, 0)), np.mean).n == bootstrap(np.zeros((0, 3)), np.mean).n == 0


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


@pytest.mark.parametrize(
    ("group", "has"),
    [
        (np.r_[FIVE, np.nan, np.nan], "for 5 of 7 images"),
        (np.full(20, np.nan), "for 0 of 20 images"),
        (np.zeros(0), "for 0 of 0 images"),
    ],
)
def test_a_group_without_numbers_is_named(group, has):
    with pytest.raises(
        ValueError, match=f"group 1 of 2 has numbers {has}; give one for each image"
    ):
        bootstrap_spread([FIVE, group])


def test_what_differs_by_rounding_alone_is_exact(recwarn):
    rounded = 1e6 + 1e-10 * np.tile([0.0, 1.0], 10)
    assert len(np.unique(rounded)) == 2
    low, high = over_images(rounded)[1:3]
    assert low == high == rounded.mean()
    assert over_images(np.zeros(9))[:3] == (0, 0, 0) and over_images(np.ones(1)).n == 1
    low, high = over_images(1 + 1.5e-12 * np.tile([-1.0, 1.0], 10))[1:3]
    assert low < 1 < high and not list(recwarn)
