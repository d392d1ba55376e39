"""A value that a notebook gives as one number an image is estimated as its term asks for."""

import numpy as np
import pytest

from helpers.claims.registry import term
from helpers.claims.values import KINDS, estimated
from helpers.measures.stats import over_images, share

# claim/value -> how the mean over images was estimated when it was first published: of each unit,
# of each kind of term, and of names with endings and place-holders.
ESTIMATORS = {
    "nr1-artifacts/outlier_images": "share",
    "xx9-frozen-registers/taken_over_moved": "share",
    "xx5-offered-registers/register_first_4_beside": "share",
    "nr1-artifacts/attention_share": {"limits": (0, 1), "continuous": True},
    "tt3-attention-patterns/max_attention_before": {"limits": (0, 1), "continuous": True},
    "nr4-global/accuracy_cls": {"limits": (0, 100)},
    "so5-register-ablation/corloc_with_bias-0.5_k100": {"limits": (0, 100)},
    "nr5-registers/top1_gain": {"limits": (-100, 100)},
    "la8-jiang-original/accuracy_change_tokens_2": {"limits": (-100, 100)},
    "nr4-local/distance_outlier": {},
    "so8-attention-entropy/entropy_last": {},
    "tt4-domains/max_norm_10": {},
    "nr1-artifacts/spearman": KINDS["cosine"],
    "de7-cls-convergence/penultimate_cosine_centred": KINDS["cosine"],
    "nr1-artifacts/iou_penultimate_large": KINDS["overlap"],
    "de1-attention-mass/former_share_plain": KINDS["fraction"],
    "xx6-regrowth/register_attention_4_beside": KINDS["fraction"],
    "nr2-model-size/outlier_tokens": KINDS["counts"],
    "de7-cls-convergence/settled_depth": KINDS["counts"],
    "nr2-model-size/family_slope": KINDS["unlimited"],
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_term_gives_the_estimator(name):
    how, rng = ESTIMATORS[name], np.random.default_rng(0)
    if how == "share":
        answers = rng.random(40) < 0.3
        assert estimated(answers, term(*name.split("/"))) == share(answers)
        return
    low, high = how.get("limits") or (-1, 3)
    for numbers in (
        rng.uniform(low, high, 40),
        np.full(40, high, dtype=float),
        np.where(rng.random(40) < 0.5, low, high).astype(float),
    ):
        assert estimated(numbers, term(*name.split("/"))) == over_images(numbers, **how)
