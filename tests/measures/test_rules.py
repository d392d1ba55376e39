import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from helpers.measures.norms import threshold
from helpers.measures.outliers import under_rule

RNG = np.random.default_rng(0)
RULES = ("percentile:98", "fixed:40", "median:3", "mad:10")


@pytest.fixture(scope="module")
def planted():
    """Two outliers of norm 60 in 30 of 40 images of 100 patches, from the fourth of six blocks on:
    most attended, more alike than their neighbours, with short keys and long values."""
    norms = RNG.uniform(8, 12, (40, 6, 100))
    attention, alike, key, value = (RNG.uniform(1, 2, (40, 100)) for _ in range(4))
    at = np.zeros((40, 100), dtype=bool)
    for image in range(30):
        at[image, RNG.choice(100, 2, replace=False)] = True
    norms[:, 3:][np.broadcast_to(at[:, None], (40, 3, 100))] = 60
    attention[at], alike[at] = 9, 1.6
    key[at], value[at] = 0.5, 5
    tensors = [torch.from_numpy(x).float() for x in (norms, attention, alike, key, value)]
    return torch.from_numpy(at), *tensors


@pytest.mark.parametrize("rule", RULES)
def test_planted_outliers_under_every_rule_that_finds_them(planted, rule):
    at, norms, attention, alike, key, value = planted
    found = under_rule(rule, norms, attention, {"": alike, "_8": -alike}, {"k": key, "v": value})
    extra = norms[:, -1] > threshold(norms[:, -1], rule)
    if rule == "percentile:98":  # 2 % are 80, of which 60 were planted
        assert extra.sum() == 80 and found["outlier_images"].value > 0.75
        assert found["onset_depth"].value < 4 / 6
        return
    assert torch.equal(extra, at)
    assert found["outlier_images"].value == 0.75 and found["outlier_tokens"] == pytest.approx(0.015)
    assert found["iou_top"].value == 1 and found["iou_top"].n == 30
    assert found["onset_depth"].value == pytest.approx(4 / 6) and found["onset_depth"].n == 30
    reference = roc_auc_score(at.flatten(), alike.flatten())
    assert found["auc"].value == pytest.approx(reference, abs=1e-4) and found[
        "auc_8"
    ].value == pytest.approx(1 - reference, abs=1e-4)
    assert 0.3 < found["auc_matched"].value < 0.9 and found["auc_matched_8"].value == pytest.approx(
        1 - found["auc_matched"].value
    )
    assert found["k_auc"].value == 0 and found["v_auc"].value == 1


def test_attention_is_put_to_the_same_rule_or_to_as_many_patches(planted):
    """The attention stands out by less than three medians where it is 4 and not 9, but the same
    patches are the most attended."""
    at, norms, attention, alike, key, _ = planted
    faint = torch.where(at, 4.0, attention)
    found = under_rule("median:3", norms, faint, {}, {})
    assert found["iou"].value == 0 and found["iou_top"].value == 1
    assert under_rule("median:3", norms, attention, {}, {})["iou"].value == 1
    assert not {"auc", "k_auc"} & found.keys()


def test_a_rule_that_finds_nothing_has_nothing_to_say(planted):
    _, norms, attention, alike, key, _ = planted
    found = under_rule("fixed:100", norms, attention, {"": alike}, {"k": key})
    assert found["outlier_images"].value == 0 and found["outlier_tokens"] == 0
    assert all(
        found[name].n == 0 for name in ("iou_top", "onset_depth", "auc", "auc_matched", "k_auc")
    )
