import numpy as np
import pytest
import torch
from by_hand import BOTH

from helpers.measures.blocks import (
    Largest,
    growth,
    largest,
    largest_before,
    median_onset,
    medians,
    outlier_attention,
    peak_block,
    reduction,
    register_medians,
    thirds,
    under_conditions,
)


def test_thirds_are_numpys():
    x = torch.from_numpy(np.random.default_rng(0).lognormal(size=(5, 11)))
    for got, part in zip(thirds(x), np.array_split(x.numpy(), 3, axis=1), strict=True):
        np.testing.assert_allclose(got, part.mean(axis=1), rtol=1e-12)
    assert [part.shape[1] for part in np.array_split(x.numpy(), 3, axis=1)] == [4, 4, 3]


def test_planted_growth():
    """Twice as large in the second third and five times in the last block: only that block is
    growth."""
    x = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 5.0]).repeat(4, 1) * torch.tensor(
        [[1.0], [2.0], [3.0], [10.0]]
    )
    assert growth(x).tolist() == [5.0] * 4
    assert thirds(x)[1].tolist() == [2.0, 4.0, 6.0, 20.0]
    assert growth(torch.ones(2, 12)).tolist() == [1.0, 1.0]


def test_what_each_condition_takes_away():
    """Of the unchanged model in its own block, under the ending that it has or its own name."""
    norms = torch.tensor([[1.0, 4.0]]).repeat(3, 1)
    top = {"plain": 1.0, "moved": 0.25, "_2": 2.0}
    tops = {
        x: Largest(norms * scale, norms * scale / 8, norms * scale / 4) for x, scale in top.items()
    }
    found = under_conditions(tops, {"moved": ""})
    for kind in ("norm_reduction", "attention_reduction", "attention_reduction_heads"):
        assert (found[kind].value, found[f"{kind}_2"].value) == (75.0, -100.0)
    assert (
        found["max_norm_before"].tolist() == [4.0] * 3 and found["max_attention_after"][0] == 0.125
    )


def planted():
    """Twenty images, six blocks: a peak in block 3 for most, a larger one elsewhere in a single
    image."""
    values = np.random.default_rng(0).uniform(1, 2, (20, 6)).astype(np.float32)
    values[:, 3] += 5
    values[7, 1] = 40
    return values


@BOTH
def test_peak_is_that_of_the_mean(convert):
    assert peak_block(convert(planted())) == 3
    assert peak_block(convert(np.ones((4, 3)))) == 0
    assert peak_block(convert(planted()[:, ::-1].copy())) == 2


@BOTH
@pytest.mark.parametrize(
    ("onset", "expected"),
    [([5, 2, -1, 9, -1], 5), ([4, 8], 4), ([-1, -1], 0), ([], 0), ([0, 0, 7], 0)],
)
def test_median_onset_leaves_out_images_without(convert, onset, expected):
    assert median_onset(convert(np.array(onset, dtype=np.int64))) == expected


@BOTH
def test_largest_before_a_block(convert):
    early = largest_before(convert(planted()), 3)
    assert early.value == pytest.approx(planted()[:, :3].max(axis=1).mean()) and early.n == 20
    assert largest_before(convert(planted()), 1).value == pytest.approx(
        planted()[:, 0].mean(), rel=1e-6
    )
    assert largest_before(convert(planted()), 0).n == 0


def test_largest_are_maxima_over_patches_and_heads():
    rng = np.random.default_rng(0)
    norms, attention = (rng.random(shape) for shape in ((3, 4, 9), (3, 4, 2, 9)))
    found = largest(torch.from_numpy(norms), torch.from_numpy(attention))
    expected = norms.max(2), attention.mean(2).max(2), attention.max(2).max(2)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, want)


def planted_of_suppression(images=40, share=0.2, block=2):
    """Largest norms before with their peak in `block`, and after with `share` of them left
    there."""
    rng = np.random.default_rng(0)
    before = rng.uniform(9, 11, (images, 5))
    before[:, block] = rng.uniform(80, 120, images)
    after = before.copy()
    after[:, block] *= share
    after[:, 0] *= 7  # what happens elsewhere does not count
    return after, before


@BOTH
@pytest.mark.parametrize("share", [0.2, 1.0, 1.5])
def test_reduction_finds_what_is_gone_at_the_peak(convert, share):
    found = reduction(*(convert(x) for x in planted_of_suppression(share=share)))
    assert found[:3] == pytest.approx(
        (100 * (1 - share),) * 3, abs=0.011
    )  # the same in all images: no width
    assert found.n == 40 and str(found.value)[:2] != "-0"


def test_reduction_is_that_of_the_means_of_the_same_images():
    after, before = planted_of_suppression()
    after[:20, 2] *= 2
    found = reduction(after, before, seed=3)
    assert found.value == pytest.approx(
        100 * (1 - after[:, 2].sum() / before[:, 2].sum()), abs=0.005
    )
    weights = np.random.default_rng(0).multinomial(40, np.full(40, 1 / 40), 4000)
    draws = 100 * (1 - (weights @ after[:, 2]) / (weights @ before[:, 2]))
    assert (found.low, found.high) == pytest.approx(np.quantile(draws, [0.0225, 0.9775]), abs=0.6)
    assert found == reduction(after, before, seed=3) != reduction(after, before, seed=4)


def test_reduction_below_its_decimals_is_none():
    before = planted_of_suppression()[1]
    assert reduction(before * (1 - 4e-4), before, decimals=1)[:3] == (0, 0, 0)
    assert str(reduction(before * (1 + 1e-7), before).value) == "0.0"
    assert reduction(before * (1 - 4e-4), before)[:3] == (0.04,) * 3


def test_attention_on_planted_outliers():
    attention = torch.full((3, 2, 10), 0.01)
    outlier = torch.zeros(3, 10, dtype=torch.bool)
    attention[0, 0, 4], attention[0, 1, 5], attention[2, 1, 0] = 0.5, 0.3, 0.9
    outlier[0, [4, 5]], outlier[1, 3] = True, True  # and none in the last image
    found = outlier_attention(attention, outlier)
    assert found.tolist() == pytest.approx([0.82 / 2, 0.01, np.nan], nan_ok=True)


def test_the_ratio_pairs_patches_and_register_of_an_image():
    scale = np.linspace(1, 3, 25)
    found = medians("attention", scale[:, None], 6 * scale[:, None])
    assert found["attention_ratio"][:3] == pytest.approx((6, 6, 6))
    # Of several registers each counts: the median of 5, 6 and 8 times as much.
    found = medians("attention", scale[:, None], np.outer(scale, [5, 8, 6]))
    middle = np.sort(np.outer(scale, [5, 8, 6]), axis=None)[37]
    assert found["register_attention"].value == pytest.approx(middle)
    assert found["attention_ratio"].value == pytest.approx(
        middle / 2
    )  # over that of the patches, which is 2


def test_medians_of_the_most_attended_patch_of_any_head():
    norms = torch.full((8, 3), 2.0), torch.full((8, 2), 9.0), torch.full((8, 1), 6.0)
    attention, register = torch.full((8, 2, 3), 0.1), torch.full((8, 2, 1), 0.2)
    attention[:, 1, 2], register[:, 0] = 0.25, 0.5
    found = register_medians(norms, (attention, torch.ones(8, 2, 2), register))
    expected = {"patch_norm": 2, "register_norm": 6, "norm_ratio": 3}
    expected |= {"patch_attention": 0.25, "register_attention": 0.5, "attention_ratio": 2}
    assert {name: x.value for name, x in found.items()} == expected
