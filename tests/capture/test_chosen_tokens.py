"""Tokens of outliers, of as many normal patches, and on objects: those of their places, read model
by model, and let go."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from helpers.capture import (
    FinalTokens,
    PatchNorms,
    Pooled,
    SelectedPixels,
    capture,
    capture_each,
    object_tokens,
    paired_tokens,
    tokens_at,
)
from helpers.images import load_images
from helpers.interventions import appended_registers
from helpers.measures.norms import paired_positions, random_positions, threshold
from helpers.measures.one_token import mean_colour
from helpers.measures.registers import object_places
from helpers.models import ModelUnavailable, load_backbone

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


def test_models_that_cannot_be_had(images, monkeypatch):
    def load(name, **options):
        if name == "gone":
            raise ModelUnavailable("'gone' is gated")
        return load_backbone(name, **options)

    monkeypatch.setattr("helpers.capture.passes.load_backbone", load)
    calls = {
        "pairs": lambda names: paired_tokens(names, images, LEARNT, 1, rule="median:3"),
        "objects": lambda names: object_tokens(names, images, images, 3),
        "at": lambda names: tokens_at(names, images, places, 1, {"": nullcontext}),
    }
    places = torch.zeros(8, 196, dtype=torch.bool)
    for call in calls.values():
        with pytest.raises(ModelUnavailable, match="no model was named"):
            call([])
        with pytest.raises(ModelUnavailable, match="'gone' is gated"):
            call(["gone"])
        kept, not_run = call([MODEL, "gone"])
        assert [*kept.get("", kept)] == [MODEL] and [*not_run] == ["gone"]


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


HOW = {"rule": "median:3", "random": 2, "seed": 1, "pixels": True}


def test_what_is_read_is_what_would_be_kept():
    images, seen = load_images("scenes", 6, 3), []
    kept, _ = paired_tokens(["control-content"], images, 4, 2, **HOW)
    read, _ = paired_tokens(
        ["control-content"],
        images,
        4,
        2,
        **HOW,
        read=lambda c: seen.append(c) or c.outlier.tokens.sum(),
    )
    own, whole = read["control-content"], kept["control-content"]
    assert own.read == whole.outlier.tokens.sum() and whole.read is None
    assert (own.outlier, own.normal, own.random, own.tensors) == (None, None, None, {})
    assert torch.equal(own.norms, whole.norms) and torch.equal(
        seen[0].random.pixels, whole.random.pixels
    )


def test_tokens_of_a_model_are_let_go_before_the_next_is_captured(monkeypatch):
    tokens, alive = [], []

    def watched(*args, **options):
        kept = capture(*args, **options)
        alive.append([not one.expired() for one in tokens])
        tokens.extend(
            StorageWeakRef(kept[key].untyped_storage())
            for key in kept.keys() & {"tokens", "pixels"}
        )
        return kept

    monkeypatch.setattr(import_module("helpers.capture.chosen_tokens"), "capture", watched)
    paired_tokens(
        ["control-content", "control-clean"],
        load_images("scenes", 6, 3),
        4,
        2,
        **HOW,
        read=lambda c: 0,
    )
    assert alive == [[], [], [False, False], [False, False]]


# Objects
# --------------------------------------------------------------------------------------------------


TWIN = "control-registers"


@pytest.fixture(scope="module")
def sets():
    images = load_images("scenes", 7, seed=4)
    return images.select(range(4)), images.select(range(4, 7))


def test_tokens_are_those_of_the_places_in_each_set(sets):
    kept, not_run = object_tokens(
        [MODEL, TWIN], *sets, 3, lambda b: [PatchNorms(-1)], seed=2, whole=True, batch_size=2
    )
    assert [*kept] == [MODEL, TWIN] and not not_run
    for images, group in zip(sets, ("learnt", "tested"), strict=True):
        captured, _ = capture_each(
            [MODEL, TWIN], images, [PatchNorms(-1), FinalTokens(norm=True)], whole=True
        )
        for model, own in kept.items():
            c, tokens = captured[model], getattr(own, group)
            grid = c.layout.grid
            assert torch.equal(tokens.positions, object_places(images.masks, [grid], 3, 2)[grid])
            every = c.layout.patch_tokens(c["final_tokens"])
            expected = torch.stack(
                [every[i, p] * (p >= 0)[:, None] for i, p in enumerate(tokens.positions)]
            )
            torch.testing.assert_close(tokens.tokens, expected)
            if group == "tested":
                assert [*own.tensors] == ["patch_norms"]
                torch.testing.assert_close(own["patch_norms"], c["patch_norms"])
                assert (own.layout, own.source, own.depth) == (c.layout, c.source, c.depth)


def test_each_model_is_loaded_once_and_what_is_kept_may_differ(sets, monkeypatch):
    loaded = []

    def load(name, **options):
        loaded.append(name)
        return load_backbone(name, **options)

    monkeypatch.setattr("helpers.capture.passes.load_backbone", load)
    kept, _ = object_tokens(
        [MODEL, TWIN], *sets, 2, lambda b: [PatchNorms(-1)] * (b.layout.registers == 0)
    )
    assert loaded == [MODEL, TWIN] and [[*c.tensors] for c in kept.values()] == [
        ["patch_norms"],
        [],
    ]


def test_without_masks_there_are_no_tokens(sets):
    learnt, tested = (replace(images, masks=None) for images in sets)
    kept, _ = object_tokens([MODEL], learnt, tested, 3, lambda b: [PatchNorms(-1)])
    assert (
        kept[MODEL].learnt is None
        and kept[MODEL].tested is None
        and [*kept[MODEL].tensors] == ["patch_norms"]
    )
