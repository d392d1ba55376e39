"""Summaries against NumPy on everything at once, however the images are divided."""

import numpy as np
import pytest
import torch

from helpers.capture import PatchNorms, capture
from helpers.images import load_images
from helpers.measures.accumulators import Histogram, Moments, Quantiles, TopK
from helpers.models import load_backbone, planted

EDGES = np.linspace(0.5, 8, 31)
KINDS = {"moments": Moments, "histogram": lambda: Histogram(EDGES), "quantiles": Quantiles, "top": lambda: TopK(7)}
DIVISIONS = ([40], [1, 39], [13, 0, 20, 7], [1] * 40)


@pytest.fixture(scope="module")
def values():
    """(40 images, 3 blocks, 5 patches): heavy-tailed, with zeros and ties."""
    drawn = np.random.default_rng(0).lognormal(0.5, 1.0, (40, 3, 5)).round(2)
    drawn[3, 1] = 0
    drawn[[5, 20], 2, 4] = 99.5
    return drawn.astype(np.float32)


def summary(kind, values, division, merged):
    """The summary of `values` from parts, one merged into the next, or one updated with all."""
    parts = np.split(values, np.cumsum(division)[:-1])
    if not merged:
        whole = KINDS[kind]()
        for part in parts:
            assert whole.update(torch.from_numpy(part)) is whole
        return whole
    whole, *others = [KINDS[kind]().update(part) for part in parts]
    for other in others:
        assert whole.merge(other) is whole
    return whole


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("division", DIVISIONS, ids=str)
class TestEqualsNumpy:
    def test_moments(self, values, division, merged):
        found, wanted = summary("moments", values, division, merged), values.astype(np.float64)
        assert found.n == 40
        np.testing.assert_allclose(found.mean, wanted.mean(0), rtol=1e-13)
        np.testing.assert_allclose(found.variance, wanted.var(0, ddof=1), rtol=1e-12)
        np.testing.assert_array_equal(found.smallest, wanted.min(0))
        np.testing.assert_array_equal(found.largest, wanted.max(0))

    def test_histogram(self, values, division, merged):
        found = summary("histogram", values, division, merged)
        wanted = np.histogram(values[values < EDGES[-1]].astype(np.float64), EDGES)[0]  # NumPy closes its last bin
        np.testing.assert_array_equal(found.counts, wanted)
        assert found.below == (values < EDGES[0]).sum() and found.above == (values >= EDGES[-1]).sum()
        assert found.below + found.above + found.counts.sum() == values.size

    def test_quantiles(self, values, division, merged):
        found = summary("quantiles", values, division, merged)
        assert found.n == values.size
        for q in (0, 0.001, 0.01, 0.25, 0.5, 0.9, 0.98, 0.999, 1):
            wanted = np.quantile(values.astype(np.float64), q, method="inverted_cdf")
            assert found(q) == pytest.approx(wanted, rel=0.005 + 1e-9), q

    def test_largest(self, values, division, merged):
        found = summary("top", values, division, merged).largest
        flat = values.reshape(40, -1)
        order = sorted(np.ndindex(flat.shape), key=lambda at: (-flat[at], at))[:7]
        assert found == [(flat[at], *at) for at in order]
        assert [one.image for one in found[:2]] == [5, 20]  # equal values, in order of images


@pytest.mark.parametrize("kind", ["histogram", "quantiles", "top"])
def test_any_division_gives_the_same_to_the_bit(kind, values):
    states = [vars(summary(kind, values, division, merged)) for division in DIVISIONS for merged in (False, True)]
    for state in states[1:]:
        np.testing.assert_equal(state, states[0])


@pytest.mark.parametrize("kind", KINDS)
def test_parts_from_elsewhere_give_the_same_to_the_bit(kind, values):
    """To merge one that was empty and has one batch is to update with this batch."""
    here, there = KINDS[kind](), KINDS[kind]()
    for part in np.array_split(values, 6):
        here.update(part)
        empty = there.empty()
        np.testing.assert_equal(vars(empty), vars(KINDS[kind]()))
        there.merge(empty.update(part))
        np.testing.assert_equal(vars(there), vars(here))


def test_moments_keep_their_precision_beside_a_large_mean():
    values = 1e8 + np.random.default_rng(0).standard_normal((1000, 1))
    found = Moments()
    for part in np.array_split(values, 10):
        found.update(part)
    assert found.variance.item() == pytest.approx(values.var(ddof=1), rel=1e-7)


def test_nothing_and_one_image():
    assert np.isnan(Moments().mean) and Moments().merge(Moments()).n == 0
    one = Moments().update(np.array([[2.0, 3.0]]))
    with np.errstate(all="raise"):  # not a division of nothing by nothing
        assert np.isnan(one.variance).all() and one.merge(Moments()).n == 1
    assert TopK(3).update(np.zeros((0, 4))).largest == []
    assert TopK(1).update(np.array([[2.0, 3.0]])).largest == [(3.0, 0, 1)]


def test_zeros_and_tiny_values_are_quantiles_too():
    found = Quantiles().update(np.array([0.0, 0.0, 1e-20, 5.0]))
    assert found(0.75) == 0 and found(1) == pytest.approx(5, rel=0.005)
    assert Quantiles().update(np.array([3.0, 5.0]))(0) == pytest.approx(3, rel=0.005), "the smallest, where none is zero"
    # What is below 1e-12 counts as zero.
    assert Quantiles().update(np.array([0.9e-12]))(1) == 0
    least = [Quantiles().update(np.array([value]))(1) / 1e-12 for value in (1e-12, 1.5e-12)]
    assert least == pytest.approx([1, 1.5], rel=0.005)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: Histogram([1.0]), "at least two"),
        (lambda: Histogram([1.0, 1.0]), "must increase"),
        (lambda: Histogram([0.0, 1.0, 1.0]), "must increase"),
        (lambda: Histogram([0.0, 1.0]).merge(Histogram([0.0, 2.0])), "different edges"),
        (lambda: Histogram([0.0, 1.0]).update(np.array([np.nan])), "not a number"),
        (lambda: Quantiles(error=1.0), "error 1.0 must lie between 0 and 1"),
        (lambda: Quantiles(error=0.0), "error 0.0 must lie between 0 and 1"),
        (lambda: Quantiles(smallest=0.0), "smallest 0.0 be positive"),
        (lambda: Quantiles(smallest=np.inf), "smallest inf be positive"),
        (lambda: Quantiles().merge(Quantiles(0.1)), "different errors"),
        (lambda: Quantiles().update(np.array([2.0, -1.0])), "not negative; got -1.0 to 2.0"),
        (lambda: Quantiles().update(np.array([1.0, np.inf])), "finite values that are not negative; got 1.0 to inf"),
        (lambda: Quantiles()(0.5), "no quantile 0.5 of 0 values"),
        (lambda: Quantiles().update(np.ones(2))(1.1), "no quantile 1.1"),
        (lambda: Quantiles().update(np.ones(2))(-0.1), "no quantile -0.1"),
        (lambda: TopK(0), "at least one"),
        (lambda: TopK(2).merge(TopK(3)), "keep the same number"),
        (lambda: TopK(2).update(np.full((1, 2), np.nan)), "not a number"),
        (lambda: Moments().update(np.ones((2, 3))).update(np.ones((2, 4))), r"shape \(4,\) do not go with those of shape \(3,\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class TestIntoSummaries:
    """`capture` hands its batches on, and keeps nothing of them."""

    def test_equals_what_is_kept_otherwise(self):
        backbone, images = load_backbone("control-content"), load_images("scenes", 7, seed=3)
        kept = capture(backbone, images, [PatchNorms()])["patch_norms"].numpy()
        into = {"patch_norms": [Moments(), Quantiles(), TopK(5), Histogram(np.arange(0, 500, 10))]}
        assert capture(backbone, images, [PatchNorms()], batch_size=3, into=into) == {}
        moments, quantiles, top, histogram = into["patch_norms"]
        np.testing.assert_allclose(moments.mean, kept.mean(0), rtol=1e-5)
        assert quantiles(0.98) == pytest.approx(np.quantile(kept, 0.98, method="inverted_cdf"), rel=0.0051)
        assert histogram.counts.sum() + histogram.above == kept.size
        assert top.largest[0].value == pytest.approx(kept.max(), rel=1e-5)

    def test_the_largest_are_the_planted_ones(self):
        backbone, images = load_backbone("control-content"), load_images("scenes", 4, seed=3)
        mask = planted("control-content", torch.stack([backbone.preprocess(image) for image in images]))
        top = TopK(int(mask.sum()))
        capture(backbone, images, [PatchNorms((-1,))], batch_size=2, into={"patch_norms": [top]})
        assert {(one.image, one.place) for one in top.largest} == set(map(tuple, mask.nonzero().tolist()))

    def test_other_keys_are_kept(self):
        images = torch.zeros(3, 3, 224, 224)
        both = [PatchNorms((-1,)), PatchNorms()]
        with pytest.raises(ValueError, match="two reducers"):
            capture(load_backbone("control-clean"), images, both)

    def test_a_key_that_nothing_returns(self):
        with pytest.raises(ValueError, match="no reducer returns 'norms'"):
            capture(load_backbone("control-clean"), torch.zeros(1, 3, 224, 224), [PatchNorms()], into={"norms": [Moments()]})
