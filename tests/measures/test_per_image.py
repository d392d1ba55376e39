"""What an estimate takes of each image: the estimate follows from it, whatever made it."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from helpers.measures.similarity import cka_over_images
from helpers.measures.stats import (
    PerImage,
    auc_over_images,
    bootstrap,
    bootstrap_spread,
    cohens_d_over_images,
    enrichment_over_images,
    jackknife,
    matched_auc_over_images,
    over_images,
    over_seeds,
    paired,
    position_share,
    ratio_of_means,
    share,
    share_at,
)

RNG = np.random.default_rng(5)
X = RNG.random((40, 12))
X[3] = np.nan  # an image without numbers
MASK = RNG.random((40, 12)) > 0.8
PLACED = np.zeros((40, 12), bool)
PLACED[:, 2] = True  # the same patch in all images
TRAININGS = [over_images(X[:, i], (0, 1)) for i in range(5)]

ESTIMATES = {
    "mean": over_images(X[:, 0]),
    "within": over_images(X[:, 0], (0, 1)),
    "answers": over_images(100.0 * (X[:, 0] > 0.3), (0, 100)),
    "changes": over_images(np.sign(X[:, 0] - X[:, 1]) * 100.0, (-100, 100)),
    "counts": over_images(MASK.sum(1)),
    "alike": over_images(np.full(40, 4), (0, 12)),
    "continuous": over_images(np.full(40, 1.0), (0, 1), continuous=True),
    "share": share(X[:, 0] > 0.5),
    "auc": auc_over_images(X, MASK),
    "matched": matched_auc_over_images(X, MASK),
    "d": cohens_d_over_images(X, MASK),
    "enriched": enrichment_over_images(X, MASK),
    "places": position_share(MASK),
    "one place": position_share(PLACED),
    "ratio": bootstrap(X[:, :2], ratio_of_means),
    "median": bootstrap(X[:, 0], np.nanmedian, seed=3),
    "percentile": bootstrap(X[4:, 0], partial(np.percentile, q=50), 300),
    "tables": bootstrap(X[:, :4].reshape(-1, 2, 2), partial(np.nanquantile, q=0.5)),
    "spread": bootstrap_spread([X[4:12, 0], X[12:, 1]])[0],
    "trainings": over_seeds(TRAININGS, (0, 1)),
    "alike trainings": over_seeds(TRAININGS[:1] * 3),
    "CKA": cka_over_images(torch.from_numpy(X[4:, :5]), torch.from_numpy(X[4:, 5:])),
    "undefined without one": jackknife(0.5, np.array([np.nan, *np.full(9, 0.5)]), (0, 1)),
    "few": over_images(X[4:7, 0]),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_the_estimate_follows_from_its_images(name):
    estimate = ESTIMATES[name]
    again = estimate.per_image.estimate()
    np.testing.assert_allclose(again[:3], estimate[:3], rtol=2e-6, atol=1e-7)
    assert again.over == estimate.over and (again.step is None) == (estimate.step is None)


@pytest.mark.parametrize("name", ["mean", "auc", "d", "enriched", "places"])
def test_another_image_gives_another_estimate(name):
    """So that no estimate is told, and none recomputed from what does not matter."""
    own = ESTIMATES[name].per_image
    (row,) = own.pieces
    index = np.flatnonzero(~np.isnan(row))[np.nanargmax(np.abs(row[~np.isnan(row)]))]
    changed = row.copy()
    changed[index] = -2 * row[index]
    again = PerImage(own.how, own.options, (changed,)).estimate()
    assert again[1:3] != pytest.approx(ESTIMATES[name][1:3], rel=1e-6)


def test_images_stay_at_their_places():
    assert np.isnan(ESTIMATES["mean"].per_image.pieces[0][3])
    assert np.isnan(ESTIMATES["auc"].per_image.pieces[0][3])
    assert len(ESTIMATES["auc"].per_image.pieces[0]) == 40
    (half,) = ESTIMATES["places"].per_image.pieces  # learnt on one half, tested on the other
    assert len(half) == 40 and np.isnan(half).sum() == 20


def test_what_has_too_many_numbers_or_no_name_keeps_none():
    assert bootstrap(X, np.nanmedian).per_image is None
    assert bootstrap(X[:, 0], lambda x: np.nanmean(x)).per_image is None
    assert jackknife(math.nan, np.full(9, 0.5), (0, 1)).per_image is None
    assert bootstrap(X[:, 0], mine).per_image is None  # of no package
    assert bootstrap(X[:, 0], partial(np.nanquantile, q=np.float32(0.5))).per_image is None
    assert bootstrap(X[:, 0], Callable()).value == pytest.approx(np.nanmean(X[:, 0]))
    assert over_seeds([*TRAININGS, bootstrap(X, np.nanmedian)]).per_image is None
    assert bootstrap(X[:, 0], np.nanmedian).per_image.options["statistic"] == {
        "function": "numpy:nanmedian"
    }


def mine(rows):
    return float(np.nanmean(rows))


class Callable:
    def __call__(self, rows):
        return mine(rows)


def test_a_pair_at_a_limit_is_not_certain():
    """No image changes a statistic at its limit, but another image could."""
    one, other = (share_at(PLACED, places) for places in ([2], [3]))
    assert (one.value, other.value) == (1, 0)
    assert paired(one.per_image, other.per_image) is None
    assert paired(one.per_image, one.per_image) is None


def test_a_pair_is_of_the_same_images():
    mean, gain = (ESTIMATES[name].per_image for name in ("mean", "within"))
    assert paired(mean, over_images(X[:, 1]).per_image).n == 39
    assert paired(mean, gain) is None  # other limits
    assert paired(mean, over_images(X[:20, 1]).per_image) is None
    assert paired(mean, over_images(np.nan_to_num(X[:, 1])).per_image) is None
    assert paired(mean, ESTIMATES["auc"].per_image) is None
    assert paired(ESTIMATES["trainings"].per_image, ESTIMATES["trainings"].per_image) is None


@pytest.mark.parametrize("name", ["os:getcwd", "numpy:load", "helpers.cli:main", "numpy:save"])
def test_what_is_no_statistic_is_not_called(name):
    own = ESTIMATES["median"].per_image
    told = {**own.options, "statistic": {"function": name}}
    with pytest.raises(ValueError, match=f"{name} is no statistic of this package or NumPy"):
        PerImage("bootstrap", told, own.pieces).estimate()


def test_equal_estimates_need_not_have_the_same_images():
    one = over_images(X[:, 0])
    two = one._replace(per_image=over_images(X[:, 1]).per_image)
    assert one == two == one._replace(per_image=None)
    assert one._replace(per_image=None) == two != over_images(X[:, 1])
