"""Massive activations found on some images and changed on others, in controls that plant them."""

import pytest
import torch

from helpers.capture import FinalTokens, Lab, massive_study
from helpers.capture.lab import Captured
from helpers.capture.replacements import Massive, _massive_of
from helpers.images import load_images
from helpers.models import PLANTED_BLOCK, TokenLayout

MODELS = ["control-position", "control-registers", "control-clean"]


@pytest.fixture(scope="module")
def study():
    learn, images = load_images("scenes", 6, 1), load_images("scenes", 4, 2)
    return massive_study(Lab(MODELS, 3), learn, images, [FinalTokens()])


def test_what_is_planted_is_found(study):
    planted, _ = study
    assert [*planted] == MODELS[:2]
    for model, found in planted.items():
        assert found.onset == PLANTED_BLOCK[model]
        assert found.channels == [2, 3] and len({*found.others} - {2, 3}) == 2
        assert found.means[0] == pytest.approx(286, abs=2) == -found.means[1]


@pytest.mark.parametrize("seed", range(8))
def test_channels_means_and_as_many_others(seed):
    """Of four channels two are massive in two of three images, in six tokens together; so the
    others are the other two, each once, whatever is drawn.
    """
    counts = torch.tensor([[0.0, 2, 1, 0], [0, 3, 0, 0], [1, 0, 1, 0]])
    sums = torch.tensor([[1.0, 30, -6, 0], [1, 60, -6, 0], [1, 30, -6, 3]])
    kept = {
        "massive_counts": counts,
        "massive_sum": sums,
        "massive_tokens": torch.tensor([2, 3, 1]),
    }
    captured = Captured(kept, TokenLayout((2, 2)), 0, 4, {})
    assert _massive_of(captured, 1, seed) == Massive(1, [1, 2], [20.0, -3.0], [0, 3])


def test_each_condition_changes_what_it_names(study):
    """At zero the load is gone, at its mean it is there, on patches and on registers alike; random
    channels leave it, and so do the patches in the centre."""
    _, passes = study
    assert [*passes] == ["plain", "zeroed", "mean", "others", "centre"]
    plain = passes["plain"]
    assert [*plain] == MODELS
    assert plain["control-clean"]["magnitudes"].shape == (4, 6, 4)
    assert "massive_counts" not in plain["control-clean"].tensors
    for model in MODELS[:2]:
        assert plain[model]["massive_tokens"].tolist() == [4] * 4
        tokens = {name: own[model]["final_tokens"] for name, own in passes.items()}
        moved = {name: (x - tokens["plain"]).abs().max() for name, x in tokens.items()}
        assert 20 * moved["mean"] < moved["zeroed"]
        assert moved["others"] > 0.01 and moved["centre"] == 0  # no load there, nothing to set
