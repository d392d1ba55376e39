"""What holds of any input: of each image alone, and of ranks."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from conftest import examples
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from zoo import KINDS, OF_CLS, REDUCERS, models, pixels

from helpers.capture import RandomPixels, RandomTokens, capture
from helpers.measures._arrays import settled
from helpers.measures.stats import auc

# Of seven images; batches do not divide them.
ORDERS = (([6, 5, 4, 3, 2, 1, 0], 1), ([3, 0, 6, 1, 5, 2, 4], 2), ([5, 0, 5, 2], 3))


def rows(reducer, order):
    """The reducer for these images in this order: what it holds of each image goes with the
    image."""
    own = {field.name: getattr(reducer, field.name) for field in fields(reducer)}
    held = {name: x[order] for name, x in own.items() if isinstance(x, torch.Tensor)}
    return replace(reducer, **held)


@models(*KINDS)
def test_every_reducer_keeps_the_same_of_an_image_in_any_order_and_batch(backbone):
    # Which patches two of them draw depends on the place of an image among the others; they have
    # tests of their own.
    left = (RandomTokens, RandomPixels, *(() if backbone.layout.cls else OF_CLS))
    torch.manual_seed(0)  # of an example's choice of patches
    reducers = [make(backbone) for kind, make in REDUCERS.items() if kind not in left]
    images = pixels(backbone, 7)
    whole = capture(backbone, images, reducers, batch_size=7)
    for order, batch in ORDERS:
        own = [rows(one, order) for one in reducers]
        got = capture(backbone, images[order], own, batch_size=batch)
        assert got.keys() == whole.keys()
        for key, value in whole.items():
            told = f"{key}: {{}}".format
            torch.testing.assert_close(got[key], value[order], rtol=1e-4, atol=1e-5, msg=told)


# ---- Ranks

FINITE = st.floats(-8e307, 8e307)
ANY = st.lists(FINITE | st.sampled_from([math.inf, -math.inf, math.nan]), max_size=30)


@examples(100)
@given(st.lists(FINITE, min_size=1, max_size=30), st.lists(FINITE, min_size=1, max_size=30))
@example([8e307], [-8e307])
@example([5e-324], [0.0])
def test_auc_of_any_scores_is_scikit_learns_of_settled_ones(positive, negative):
    positive, negative = np.array(positive), np.array(negative)
    answers = np.arange(len(positive) + len(negative)) < len(positive)
    reference = roc_auc_score(answers, settled(np.concatenate([positive, negative])))
    assert auc(positive, negative) == pytest.approx(reference, abs=1e-12)


@examples(100)
@given(ANY, ANY)
def test_two_groups_share_one(positive, negative):
    """Mann and Whitney's U of one group and of the other add up to the number of pairs, with
    infinity and without nan."""
    positive, negative = np.array(positive, dtype=np.float64), np.array(negative, dtype=np.float64)
    together = auc(positive, negative) + auc(negative, positive)
    undefined = np.isnan(positive).all() or np.isnan(negative).all()
    assert math.isnan(together) if undefined else together == pytest.approx(1, abs=1e-12)
