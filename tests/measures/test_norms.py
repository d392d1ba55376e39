import numpy as np
import pytest
import torch
from by_hand import BOTH
from scipy.stats import median_abs_deviation

from helpers.measures.norms import (
    bimodality,
    modes,
    norm_ratio,
    onset_block,
    outliers,
    paired_positions,
    random_positions,
    threshold,
)


def mixture(share, shift, spread, tokens=64 * 196, seed=0):
    """Norms around 33, and a `share` of them around exp(shift) times that."""
    rng = np.random.default_rng(seed)
    upper = round(tokens * share)
    return np.exp(
        np.concatenate(
            [rng.normal(3.5, 0.15, tokens - upper), rng.normal(3.5 + shift, spread, upper)]
        )
    )


@pytest.mark.parametrize(
    "rule, expected",
    [
        ("percentile:98", 98.0),
        ("percentile:0", 0.0),
        ("percentile:100", 100.0),
        ("fixed:37.5", 37.5),
        ("median:3", 150.0),
    ],
)
def test_threshold_closed_forms(rule, expected):
    norms = np.arange(101.0)
    assert threshold(norms, rule) == expected
    assert threshold(torch.from_numpy(norms.reshape(1, 101)), rule) == expected


def test_threshold_mad_is_scipys():
    norms = np.random.default_rng(0).lognormal(3, 0.5, (8, 196))
    expected = np.median(norms) + 10 * median_abs_deviation(norms, axis=None, scale="normal")
    assert threshold(norms, "mad:10") == pytest.approx(expected, rel=1e-4)


BAD = "98 percentile percentile: percentile:101 percentile:-1 quantile:9 median:nan fixed:inf mad:x"


@pytest.mark.parametrize("rule", BAD.split())
def test_threshold_refuses_another_rule_and_no_norms(rule):
    with pytest.raises(ValueError, match=rule):
        threshold(np.ones(3), rule)
    with pytest.raises(ValueError):
        threshold(np.ones(0), "percentile:98")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_norms_that_are_no_numbers_are_refused(wrong):
    """One would hide the outliers of all other images."""
    norms = np.ones((4, 49))
    norms[1, 2] = wrong
    with pytest.raises(ValueError, match="1 of 196 norms"):
        outliers(norms, "median:3")


@BOTH
def test_outliers_share_one_threshold(convert):
    norms = np.full((2, 50), 10.0)
    norms[1, :2] = [40.0, 29.0]
    found = outliers(convert(norms), "median:3")
    assert type(found) is type(convert(norms))
    assert np.argwhere(np.asarray(found)).tolist() == [[1, 0]]
    # A percentile finds its share even where all images are alike.
    assert (
        np.asarray(outliers(convert(np.arange(100.0).reshape(2, 50)), "percentile:98")).sum() == 2
    )
    assert not outliers(convert(np.full((2, 50), 7.0)), "percentile:98").any()


def test_norm_ratio_closed_form():
    assert norm_ratio(np.arange(1.0, 1002.0)) == pytest.approx(1000 / 501)
    assert norm_ratio(torch.full((4, 9), 3.0)) == 1.0


@pytest.mark.parametrize("share", [0.005, 0.01, 0.02, 0.2, 0.45])
def test_bimodality_finds_a_separated_upper_mode(share):
    assert bimodality(mixture(share, shift=2.5, spread=0.3)) == 1.0


def test_bimodality_is_the_valley_depth():
    # Uniform blocks of log norms: 8000 tokens a unit, then 2000 in the valley, then 4000.
    logs = np.concatenate(
        [np.linspace(a, a + 1, n, endpoint=False) for a, n in ((0, 8000), (1, 2000), (2, 4000))]
    )
    assert bimodality(np.exp(logs)) == pytest.approx(1 - 2000 / 4000, abs=0.02)


def depth_by_loops(norms):
    """`bimodality` around every edge of 0.025 in turn, with as many bins below it as above."""
    bins = ((np.log(norms) - np.log(norms).min()) / 0.025).astype(int)
    edges, depth = range(bins.max() + 2), 0.0
    for half in (2, 4, 8, 16):
        near = [((edge - half <= bins) & (bins < edge + half)).sum() for edge in edges]
        for edge in edges:
            valley, peak = near[edge], min(max(near[: edge + 1]), max(near[edge:]))
            if 0.0005 <= (bins >= edge).mean() <= 0.5 and peak - valley > 3.5 * np.sqrt(
                peak + valley
            ):
                depth = max(depth, 1 - valley / peak)
    return depth


@pytest.mark.parametrize("spread", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("seed", range(2))
def test_bimodality_of_mixtures_against_loops(seed, spread):
    norms = mixture(0.2, shift=0.9, spread=spread, tokens=4000, seed=seed)
    assert bimodality(norms) == pytest.approx(depth_by_loops(norms))


@pytest.mark.parametrize("width", [0.25, 0.5, 1.0, 2.0])
def test_bimodality_of_a_valley_of_any_width_against_loops(width):
    # Few tokens, evenly spread: the wider the valley, the wider the windows that tell it from
    # noise.
    logs = [
        np.linspace(i * width, (i + 1) * width, n, endpoint=False)
        for i, n in enumerate((200, 60, 150))
    ]
    norms = np.exp(np.concatenate(logs))
    assert bimodality(norms) == pytest.approx(depth_by_loops(norms)) and bimodality(norms) > 0.4


def test_bimodality_of_two_values():
    assert bimodality(np.repeat([10.0, 30.0], 5000)) == 1, "half of the tokens may be above"
    assert bimodality(np.repeat([10.0, 30.0], [4999, 5001])) == 0, "but no more"
    assert bimodality(np.repeat([10.0, 30.0], [25_987, 13])) == 1, "0.05 % are enough"
    assert bimodality(np.repeat([10.0, 30.0], [25_988, 13])) == 0
    assert bimodality(np.repeat([10.0, 30.0], [400, 12])) == 0, (
        "12 may be noise: 3.5 standard errors are 12.1"
    )
    assert bimodality(np.repeat([10.0, 30.0], [400, 13])) == 1
    for gap, depth in ((0.09, 0), (0.11, 0), (0.13, 1)):  # bins 3, 4 and 5
        assert bimodality(10 * np.exp(np.repeat([0, gap], 500))) == depth


ONE_MODE = {
    "normal": lambda rng, n: np.abs(rng.normal(40, 6, n)),
    "wide log-normal": lambda rng, n: rng.lognormal(3, 1.0, n),
    "pareto": lambda rng, n: 20 * (1 + rng.pareto(3, n)),
    "t3": lambda rng, n: np.exp(3 + 0.2 * rng.standard_t(3, n)),
    "uniform": lambda rng, n: rng.uniform(10, 100, n),
}


@pytest.mark.parametrize("tokens", [196, 64 * 196, 200_000])
@pytest.mark.parametrize("kind", ONE_MODE)
def test_bimodality_of_one_mode_is_zero(kind, tokens):
    for seed in range(5):
        assert bimodality(ONE_MODE[kind](np.random.default_rng(seed), tokens)) == 0


def test_bimodality_ignores_what_is_no_upper_mode():
    assert bimodality(torch.full((4, 196), 7.0)) == 0
    assert bimodality(np.zeros((4, 196))) == 0
    assert bimodality(1 / mixture(0.02, 2.5, 0.3)) == 0  # a lower mode
    assert bimodality(np.repeat([10.0, 10.5], 5000)) == 0  # closer than 10 %
    assert bimodality(mixture(0.0004, 2.5, 0.1, tokens=100_000)) == 0  # fewer than 0.05 %


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_modes_lie_where_they_were_planted(share):
    """Whatever the share of the upper one. Bimodality does not count an upper mode of most tokens,
    which are no outliers."""
    rng = np.random.default_rng(1)
    upper = rng.random(20_000) < share
    norms = np.where(upper, 22.0, 11.0) * np.exp(0.05 * rng.standard_normal(20_000))
    found = modes(norms)
    assert found == (
        pytest.approx(11, rel=0.02),
        pytest.approx(22, rel=0.02),
        pytest.approx(upper.mean(), abs=1e-9),
    )
    assert (bimodality(norms) == 1) == (upper.mean() <= 0.5)


def test_modes_are_medians_of_the_fullest_windows():
    """A skewed mode: 60 tokens at 10, 40 at 10.5 (in the same window), 30 at 12; and 120 at 40.
    Both gaps are empty."""
    norms = np.repeat([10.0, 10.5, 12.0, 40.0], [60, 40, 30, 120])
    assert modes(norms) == (pytest.approx(10), pytest.approx(40), pytest.approx(120 / 250))


def test_the_deepest_valley_parts_the_modes():
    """Three modes; the valley between the upper two is empty, that between the lower two is not."""
    rng = np.random.default_rng(2)
    logs = np.concatenate([rng.normal(at, 0.15, 4000) for at in (2.0, 2.7, 4.5)])
    found = modes(np.exp(logs))
    assert found.upper_share == pytest.approx(1 / 3) and found.high == pytest.approx(
        np.exp(4.5), rel=0.05
    )


def test_one_mode_has_no_valley():
    assert np.isnan(modes(np.ones((6, 9)))).all()


def test_onset_block_against_a_loop():
    rng = np.random.default_rng(0)
    norms = rng.lognormal(2, 0.1, (6, 5, 20)).astype(np.float32)
    norms[0, 3:, 7] *= 10
    norms[1, 1, 0] *= 10  # only passing
    norms[2, 4, 19] *= 10
    norms[5] *= np.float32(1.5)  # a whole image a little higher is no onset
    norms[3, 3, 5] = 3.1 * np.median(norms[:, 3])  # what stands out raises the mean above a third
    blocks = range(5)
    reference = [
        next((b for b in blocks if image[b].max() > 3 * np.median(norms[:, b])), -1)
        for image in norms
    ]
    assert onset_block(norms).tolist() == reference == [3, 1, 4, 3, -1, -1]
    assert onset_block(torch.from_numpy(norms)).tolist() == reference
    assert onset_block(norms, rule_factor=20.0).tolist() == [-1] * 6
    exactly = np.array([[[1.0, 1, 1, 3]]])
    assert onset_block(exactly).tolist() == [-1], "three times the median does not exceed it"


@BOTH
def test_paired_positions_are_of_the_same_image(convert):
    mask = np.random.default_rng(0).random((200, 12)) < np.linspace(0, 1, 200)[:, None]
    mask[0], mask[1], mask[2], mask[3] = False, True, np.arange(12) < 1, np.arange(12) < 11
    abnormal, normal = paired_positions(convert(mask), 5)
    for positions in (abnormal, normal):
        assert positions.dtype == torch.int64 and positions.shape == (200, 5)
    wanted = np.minimum(5, np.minimum(mask.sum(axis=1), (~mask).sum(axis=1)))
    for row, pairs, a, b in zip(mask, wanted, abnormal, normal, strict=True):
        for chosen, group in ((a, row), (b, ~row)):
            assert (chosen[pairs:] == -1).all() and group[chosen[:pairs]].all()
            assert len(set(chosen[:pairs].tolist())) == pairs
    assert (abnormal[:2] == -1).all()


def test_paired_positions_are_uniform_and_seeded():
    mask = np.tile(np.arange(8) < 3, (6000, 1))
    abnormal, normal = paired_positions(mask, 1)
    assert np.bincount(abnormal[:, 0], minlength=8)[:3] == pytest.approx(2000, abs=200)
    assert np.bincount(normal[:, 0], minlength=8)[3:] == pytest.approx(1200, abs=200)
    assert not torch.equal(paired_positions(mask, 1, seed=1)[0], abnormal)
    assert torch.equal(paired_positions(mask[:10], 1)[1], normal[:10])  # whatever images follow


def test_random_positions_without_replacement():
    positions = random_positions(4000, 10, 3)
    assert positions.dtype == torch.int64 and positions.shape == (4000, 3)
    assert all(len(set(row)) == 3 for row in positions.tolist())
    assert np.bincount(positions.flatten(), minlength=10) == pytest.approx(1200, abs=150)
    assert torch.equal(random_positions(4000, 10, 3), positions)
    assert not torch.equal(random_positions(4000, 10, 3, seed=1), positions)
    assert torch.equal(random_positions(5, 10, 3, first=3995), positions[3995:])
    assert random_positions(2, 5, 1).shape == (2, 1)
    assert random_positions(2, 5, 5).sort().values.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_a_percentile_finds_the_largest_norms_though_they_are_equal():
    norms = np.ones((10, 100))
    norms[:, :5], norms[:, 5] = 7.0, 2.0
    for rule in ("percentile:99.5", "percentile:98", "percentile:95"):
        assert np.array_equal(outliers(norms, rule), norms == 7)
    assert not outliers(norms, "percentile:100").any(), "nothing exceeds the largest"
    assert not outliers(np.ones((3, 9)), "percentile:98").any(), (
        "nothing stands out where all are the same"
    )
