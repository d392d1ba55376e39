import numpy as np
import pytest
import torch

from helpers.measures.stats import bootstrap
from helpers.measures.suppression import (
    Largest,
    at_register,
    attention_on,
    largest,
    medians,
    peaks,
    reduction,
    reductions,
)

BOTH = pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


def test_largest_are_maxima_over_patches_and_heads():
    rng = np.random.default_rng(0)
    norms, attention = (
        rng.random((3, 4, 9)).astype(np.float32),
        rng.random((3, 4, 2, 9)).astype(np.float32),
    )
    found = largest(torch.from_numpy(norms), torch.from_numpy(attention))
    for image in range(3):
        for block in range(4):
            heads = attention[image, block]
            expected = (
                max(norms[image, block]),
                max((heads[0] + heads[1]) / 2),
                max(map(max, heads)),
            )
            assert [float(x[image, block]) for x in found] == pytest.approx(expected)


def planted(images=40, share=0.2, block=2):
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
    found = reduction(*(convert(x) for x in planted(share=share)))
    assert found[:3] == pytest.approx(
        (100 * (1 - share),) * 3, abs=0.011
    )  # the same in all images: no width
    assert found.n == 40 and str(found.value)[:2] != "-0"


def test_reduction_is_that_of_the_means_of_the_same_images():
    after, before = planted()
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
    before = planted()[1]
    assert reduction(before * (1 - 4e-4), before, decimals=1)[:3] == (0, 0, 0)
    assert reduction(before * (1 - 4e-4), before)[:3] == (0.04,) * 3


def test_reductions_are_each_at_their_own_peak():
    before = Largest(*(planted(block=block)[1] for block in (1, 2, 4)))
    after = Largest(
        *(planted(share=share, block=block)[0] for share, block in ((0.5, 1), (0.1, 2), (0.9, 4)))
    )
    found = reductions(after, before)
    assert list(found) == ["norm_reduction", "attention_reduction", "attention_reduction_heads"]
    assert [x.value for x in found.values()] == pytest.approx([50, 90, 10], abs=0.011)
    assert found["attention_reduction"] == reduction(after[1], before[1])


def test_attention_on_planted_outliers():
    attention = torch.full((3, 2, 10), 0.01)
    outlier = torch.zeros(3, 10, dtype=torch.bool)
    attention[0, 0, 4], attention[0, 1, 5], attention[2, 1, 0] = 0.5, 0.3, 0.9
    outlier[0, [4, 5]], outlier[1, 3] = True, True
    found = attention_on(attention, outlier)
    assert (
        found[:2].tolist() == pytest.approx([(0.5 + 0.01 + 0.01 + 0.3) / 2, 0.01])
        and found[2].isnan()
    )


@BOTH
def test_medians_of_patches_of_a_register_and_their_ratio(convert):
    rng = np.random.default_rng(1)
    patches, register = (
        rng.lognormal(2, 0.2, (30, 16)).astype(np.float32),
        rng.lognormal(4, 0.1, (30, 1)).astype(np.float32),
    )
    patches[:, 0] = 1000  # a median does not see one outlier in sixteen
    found = medians("norm", convert(patches), convert(register), 100, seed=2)
    assert list(found) == ["patch_norm", "register_norm", "norm_ratio"]
    of_patches, of_register, ratio = found.values()
    middle = np.sort(patches, axis=None)
    assert of_patches.value == pytest.approx((middle[239] + middle[240]) / 2)
    middle = np.sort(register[:, 0])
    assert of_register.value == pytest.approx((middle[14] + middle[15]) / 2)
    assert ratio.value == pytest.approx(of_register.value / of_patches.value)
    assert all(e.low < e.value < e.high and e.n == 30 for e in (of_patches, of_register, ratio))
    assert of_patches == bootstrap(patches, np.median, 100, seed=2) and of_register == bootstrap(
        register, np.median, seed=2
    )


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


def test_a_reduction_that_rounds_to_nothing_has_no_sign():
    _, before = planted()
    assert str(reduction(before * (1 + 1e-7), before).value) == "0.0"


def test_peaks_are_means_where_it_was_largest_before():
    before = Largest(
        *(
            torch.from_numpy(planted(block=block)[1]) / scale
            for block, scale in ((1, 1), (3, 200), (4, 200))
        )
    )
    after = Largest(*(0.5 * x for x in before))
    found = peaks(after, before)
    assert list(found) == ["max_norm", "max_attention"]
    assert found["max_norm"].value == pytest.approx(float(before.norm[:, 1].mean() / 2))
    assert found["max_attention"].value == pytest.approx(float(before.attention[:, 3].mean() / 2))
    assert peaks(before, before)["max_norm"].value == pytest.approx(2 * found["max_norm"].value)


def test_at_register_takes_the_largest_over_heads_and_patches():
    rng = np.random.default_rng(1)
    norms, register = rng.uniform(1, 2, (30, 9)), rng.uniform(8, 9, (30, 2))
    attention, on_register = rng.uniform(0, 0.1, (30, 3, 9)), rng.uniform(0.2, 0.3, (30, 3, 2))
    found = at_register(*map(torch.from_numpy, (norms, attention, register, on_register)), seed=2)
    largest_on_patch = [max(map(max, heads)) for heads in attention.tolist()]
    largest_on_register = [
        list(map(max, zip(*heads, strict=True))) for heads in on_register.tolist()
    ]
    expected = {
        "patch_norm": np.median(norms),
        "register_norm": np.median(register),
        "norm_ratio": np.median(register) / np.median(norms),
        "patch_attention": np.median(largest_on_patch),
        "register_attention": np.median(largest_on_register),
        "attention_ratio": np.median(largest_on_register) / np.median(largest_on_patch),
    }
    assert {name: x.value for name, x in found.items()} == pytest.approx(expected)
    assert found["norm_ratio"] == medians("norm", norms, register, 200, 2)["norm_ratio"]
