"""What holds of any input: of each image alone, of ranks, of similarities, of outliers, and of
stored numbers."""

import math
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from conftest import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_auc_score
from zoo import KINDS, OF_CLS, REDUCERS, models, pixels

from helpers.capture import RandomPixels, RandomTokens, capture
from helpers.measures._arrays import settled
from helpers.measures.similarity import linear_cka
from helpers.measures.stats import auc, matched_auc_over_images

IMAGES = 7  # of the examples of reducers
close = {"rtol": 1e-4, "atol": 1e-5}


# ---- What is kept of an image depends on that image alone
# ---------------------------------------------------------------


@lru_cache(maxsize=1)
def kept(backbone):
    """Every reducer that the model can have, and what they keep of all images in one batch."""
    torch.manual_seed(0)  # of an example's choice of patches
    # Which patches the last two draw depends on the place of an image among the others; they have
    # tests of their own.
    left = (RandomTokens, RandomPixels, *(() if backbone.layout.cls else OF_CLS))
    reducers = [make(backbone) for kind, make in REDUCERS.items() if kind not in left]
    return reducers, capture(backbone, pixels(backbone, IMAGES), reducers, batch_size=IMAGES)


def rows(reducer, order):
    """The reducer for these images in this order: what it holds of each image goes with the
    image."""
    own = {field.name: getattr(reducer, field.name) for field in fields(reducer)}
    return replace(
        reducer,
        **{name: value[order] for name, value in own.items() if isinstance(value, torch.Tensor)},
    )


@models(*KINDS)
@examples(1)
@given(
    order=st.lists(st.integers(0, IMAGES - 1), min_size=1, max_size=IMAGES),
    batch=st.integers(3, IMAGES),
)
@example(order=list(range(IMAGES))[::-1], batch=1)
@example(order=[3, 0, 6, 1, 5, 2, 4], batch=2)
def test_every_reducer_keeps_the_same_of_an_image_in_any_order_and_batch(backbone, order, batch):
    reducers, whole = kept(backbone)
    got = capture(
        backbone,
        pixels(backbone, IMAGES)[order],
        [rows(one, order) for one in reducers],
        batch_size=batch,
    )
    assert got.keys() == whole.keys()
    for key, value in whole.items():
        torch.testing.assert_close(
            got[key], value[order], **close, msg=lambda told, key=key: f"{key}: {told}"
        )


# ---- Ranks
# --------------------------------------------------------------------------------------------------

FINITE = st.floats(-8e307, 8e307)
ANY = st.lists(FINITE | st.sampled_from([math.inf, -math.inf, math.nan]), max_size=30)


@examples(100)
@given(st.lists(FINITE, min_size=1, max_size=30), st.lists(FINITE, min_size=1, max_size=30))
@example([8e307], [-8e307])
@example([5e-324], [0.0])
def test_auc_of_any_scores_is_scikit_learns_of_settled_ones(positive, negative):
    positive, negative = np.array(positive), np.array(negative)
    answers = np.arange(len(positive) + len(negative)) < len(positive)
    assert auc(positive, negative) == pytest.approx(
        roc_auc_score(answers, settled(np.concatenate([positive, negative]))), abs=1e-12
    )


@examples(100)
@given(ANY, ANY)
def test_two_groups_share_one(positive, negative):
    """Mann and Whitney's U of one group and of the other add up to the number of pairs, with
    infinity and without nan."""
    positive, negative = np.array(positive, dtype=np.float64), np.array(negative, dtype=np.float64)
    together = auc(positive, negative) + auc(negative, positive)
    undefined = np.isnan(positive).all() or np.isnan(negative).all()
    assert math.isnan(together) if undefined else together == pytest.approx(1, abs=1e-12)


@examples(100)
@given(st.data())
def test_matched_auc_counts_pairs(data):
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 4)))
    scores = data.draw(
        arrays(
            np.float64, shape, elements=st.one_of(st.integers(-3, 3).map(float), st.just(math.nan))
        )
    )
    mask = data.draw(arrays(bool, shape))
    wins = [
        (scores[i, p] > scores[j, p]) + (scores[i, p] == scores[j, p]) / 2
        for i, p in np.argwhere(mask & ~np.isnan(scores))
        for j in np.flatnonzero(~mask[:, p] & ~np.isnan(scores[:, p]))
    ]
    assert matched_auc_over_images(scores, mask).value == pytest.approx(
        np.mean(wins) if wins else math.nan, abs=1e-12, nan_ok=True
    )


# ---- Linear CKA
# --------------------------------------------------------------------------------------------------


@st.composite
def features(draw):
    """Two representations of the same images, and a generator for what is done to them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, width, other = draw(st.integers(5, 30)), draw(st.integers(1, 8)), draw(st.integers(1, 8))
    x = rng.normal(size=(n, width))
    return (
        x,
        draw(st.floats(0, 1)) * x @ rng.normal(size=(width, other)) + rng.normal(size=(n, other)),
        rng,
    )


def alike(value):
    return pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True)


@examples(60)
@given(features(), st.booleans(), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_cka_ignores_rotation_scale_origin_and_order(pair, debiased, scale, shift):
    x, y, rng = pair
    value = linear_cka(x, y, debiased)
    rotation, order = (
        np.linalg.qr(rng.normal(size=(x.shape[1], x.shape[1])))[0],
        rng.permutation(len(x)),
    )
    assert linear_cka(x @ rotation, y, debiased) == alike(value)
    assert linear_cka(-scale * x, y, debiased) == alike(value)
    assert linear_cka(x + shift, y - shift, debiased) == alike(value)
    assert linear_cka(x[order], y[order], debiased) == alike(value)
    assert linear_cka(y, x, debiased) == alike(value)


@examples(60)
@given(features(), st.booleans())
def test_cka_of_a_representation_with_itself_is_one(pair, debiased):
    x, y, _ = pair
    assert linear_cka(x, x) == pytest.approx(1) and 0 <= linear_cka(x, y) <= 1 + 1e-12
    assume(
        not math.isnan(own := linear_cka(x, x, debiased))
    )  # debiased, a few images may have no positive variance
    assert own == pytest.approx(1)
