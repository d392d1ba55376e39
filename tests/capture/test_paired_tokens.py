from contextlib import nullcontext
from functools import partial

import pytest
import torch

from helpers.capture import (
    FinalTokens,
    PatchNorms,
    Pooled,
    SelectedPixels,
    capture_each,
    paired_tokens,
    tokens_at,
)
from helpers.images import load_images
from helpers.interventions import appended_registers
from helpers.measures.norms import paired_positions, random_positions, threshold
from helpers.measures.one_token import mean_colour
from helpers.models import ModelUnavailable

MODEL, LEARNT = "control-content", 4


@pytest.fixture(scope="module")
def images():
    return load_images("scenes", 8, seed=4)


@pytest.fixture(scope="module")
def kept(images):
    extra = {"random": 3, "pixels": True, "reducers": [Pooled()], "batch_size": 3}
    return paired_tokens([MODEL], images, LEARNT, 2, rule="percentile:98", seed=1, **extra)[0][
        MODEL
    ]


def test_tokens_are_those_of_outliers_and_of_as_many_normal_patches(images, kept):
    captured = capture_each([MODEL], images, [PatchNorms(-1), FinalTokens(norm=True), Pooled()])[0][
        MODEL
    ]
    norms = captured["patch_norms"]
    torch.testing.assert_close(kept.norms, norms[LEARNT:])
    assert (
        torch.equal(kept.outliers, norms > threshold(norms[:LEARNT], "percentile:98"))
        and kept.outliers.any()
    )
    outlier, normal = paired_positions(kept.outliers, 2, 1)
    assert torch.equal(kept.outlier.positions, outlier) and torch.equal(
        kept.normal.positions, normal
    )
    assert torch.equal(kept.random.positions, random_positions(8, kept.layout.patches, 3, 1))
    tokens = kept.layout.patch_tokens(captured["final_tokens"])
    for group in (kept.outlier, kept.normal, kept.random):
        expected = torch.stack(
            [tokens[i, p] * (p >= 0)[:, None] for i, p in enumerate(group.positions)]
        )
        torch.testing.assert_close(group.tokens, expected)
    torch.testing.assert_close(kept["cls"], captured["cls"])
    assert (outlier < 0).any() and kept.source == captured.source


def test_pixels_are_those_of_the_same_patches(images, kept):
    for group in (kept.outlier, kept.normal, kept.random):
        expected = capture_each([MODEL], images, [SelectedPixels(group.positions)])[0][MODEL][
            "pixels"
        ]
        assert torch.equal(group.pixels, expected)


def test_mean_colours_are_those_of_the_pixels(images, kept):
    extra = {"random": 3, "pixels": "mean", "batch_size": 3}
    mean = paired_tokens([MODEL], images, LEARNT, 2, rule="percentile:98", seed=1, **extra)[0][
        MODEL
    ]
    for group, whole in ((mean.outlier, kept.outlier), (mean.random, kept.random)):
        assert torch.equal(group.tokens, whole.tokens) and group.pixels.shape[-1] == 3
        torch.testing.assert_close(group.pixels, mean_colour(whole.pixels))


def test_neither_pixels_nor_random_tokens_unless_asked_for(images):
    kept, not_run = paired_tokens([MODEL, "control-clean"], images, LEARNT, 1, rule="fixed:1e9")
    assert list(kept) == [MODEL, "control-clean"] and not not_run
    alone = kept[MODEL]
    assert (
        alone.random.positions.shape == (8, 0)
        and alone.outlier.pixels is None
        and not alone.tensors
    )
    assert (alone.outlier.positions == -1).all() and not alone.outlier.tokens.any()


def test_models_that_cannot_be_had(images, tmp_path):
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    with pytest.raises(ModelUnavailable, match="no model was named"):
        paired_tokens([], images, LEARNT, 1, rule="median:3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        kept, not_run = paired_tokens([name, MODEL], images, LEARNT, 1, rule="median:3")
    assert list(kept) == [MODEL] and list(not_run) == [name]


def test_tokens_at_the_places_of_another_models_outliers(images, kept):
    how = {"random": 3, "seed": 1, "pixels": True, "reducers": [Pooled()], "batch_size": 3}
    own, _ = tokens_at([MODEL], images, kept.outliers, 2, {"plain": nullcontext}, **how)
    for kind in ("outlier", "normal", "random"):
        a, b = getattr(own["plain"][MODEL], kind), getattr(kept, kind)
        assert (
            torch.equal(a.positions, b.positions)
            and torch.equal(a.tokens, b.tokens)
            and torch.equal(a.pixels, b.pixels)
        )
    assert torch.equal(own["plain"][MODEL].norms[LEARNT:], kept.norms)
    twin, not_run = tokens_at(
        ["control-registers"], images, kept.outliers, 2, {"plain": nullcontext}, **how
    )
    c = twin["plain"]["control-registers"]
    assert torch.equal(c.outlier.positions, kept.outlier.positions) and not not_run
    assert c.norms.max() < kept.norms.max() / 2 and c["registers"].shape[1] == 4


def test_tokens_at_places_under_conditions(images, kept):
    conditions = {"none": lambda backbone: None, "appended": partial(appended_registers, count=1)}
    read = {"reducers": [Pooled()], "read": lambda c: c["registers"].shape[1]}
    found, _ = tokens_at([MODEL], images, kept.outliers, 2, conditions, **read)
    assert (
        found["none"] == {}
        and found["appended"][MODEL].read == 1
        and found["appended"][MODEL].outlier is None
    )
    with pytest.raises(ModelUnavailable, match="no model was named"):
        tokens_at([], images, kept.outliers, 2, conditions)
