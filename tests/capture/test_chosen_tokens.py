"""Tokens of outliers, of as many normal patches, and on objects: those of their places, read model
by model, and let go."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch

from helpers.capture import (
    FinalTokens,
    Lab,
    PatchNorms,
    Pooled,
    SelectedPixels,
    object_tokens,
    paired_tokens,
    tokens_at,
)
from helpers.images import load_images
from helpers.interventions import appended_registers
from helpers.measures.norms import paired_positions, random_positions, threshold
from helpers.measures.registers import object_places

MODEL, LEARNT = "control-content", 4


@pytest.fixture(scope="module")
def images():
    return load_images("scenes", 8, seed=4)


HOW = {"random": 3, "pixels": True, "reducers": [Pooled()]}
KINDS = ("outlier", "normal", "random")


def paired(images, names=(MODEL,), **options):
    options = {"rule": "percentile:98", **HOW, **options}
    return paired_tokens(Lab(names, 1, batch_size=3), images, LEARNT, 2, **options)[MODEL]


@pytest.fixture(scope="module")
def kept(images):
    return paired(images)


def at(patches, positions):
    """The rows of (image, patch, width) at the positions, zeros at -1."""
    rows = [patches[i, own] * (own >= 0)[:, None] for i, own in enumerate(positions)]
    return torch.stack(rows)


def test_tokens_are_those_of_outliers_and_of_as_many_normal_patches(images, kept):
    """And so are the pixels, or their mean colours."""
    reducers = [PatchNorms(-1), FinalTokens(norm=True), Pooled()]
    captured = Lab([MODEL]).capture(images, reducers)[MODEL]
    norms = captured["patch_norms"]
    torch.testing.assert_close(kept.norms, norms[LEARNT:])
    assert torch.equal(kept.outliers, norms > threshold(norms[:LEARNT], "percentile:98"))
    drawn = *paired_positions(kept.outliers, 2, 1), random_positions(8, 196, 3, 1)
    assert kept.outliers.any() and (drawn[0] < 0).any()
    tokens, mean = kept.layout.patch_tokens(captured["final_tokens"]), paired(images, pixels="mean")
    for kind, positions in zip(KINDS, drawn, strict=True):
        group, colours = getattr(kept, kind), getattr(mean, kind)
        assert torch.equal(group.positions, positions)
        torch.testing.assert_close(group.tokens, at(tokens, positions))
        pixels = Lab([MODEL]).capture(images, [SelectedPixels(positions)])[MODEL]["pixels"]
        assert torch.equal(group.pixels, pixels) and torch.equal(group.tokens, colours.tokens)
        torch.testing.assert_close(colours.pixels, pixels.unflatten(-1, (3, -1)).mean(-1))
        assert colours.pixels.shape[-1] == 3
    torch.testing.assert_close(kept["cls"], captured["cls"])
    assert kept.source == captured.source


def test_neither_pixels_nor_random_tokens_unless_asked_for(images):
    lab = Lab([MODEL, "control-clean"])
    kept = paired_tokens(lab, images, LEARNT, 1, rule="fixed:1e9")
    assert list(kept) == lab.models
    alone = kept[MODEL]
    assert alone.random.positions.shape == (8, 0) and not alone.tensors
    assert alone.outlier.pixels is None and not alone.outlier.tokens.any()
    assert (alone.outlier.positions == -1).all()


def test_tokens_at_the_places_of_another_models_outliers(images, kept):
    models, conditions = [MODEL, "control-registers"], {"plain": nullcontext}
    lab = Lab(models, 1, batch_size=3)
    found = tokens_at(lab, images, kept.outliers, 2, 3, conditions)
    own, twin = (found["plain"][model] for model in models)
    for kind in KINDS:
        a, b = getattr(own, kind), getattr(kept, kind)
        for part in ("positions", "tokens", "pixels"):
            assert torch.equal(getattr(a, part), getattr(b, part))
    assert torch.equal(own.norms[LEARNT:], kept.norms)
    assert torch.equal(twin.outlier.positions, kept.outlier.positions)
    assert twin.norms.max() < kept.norms.max() / 2 and twin["registers"].shape[1] == 4


def test_tokens_at_places_under_conditions(images, kept):
    conditions = {"none": lambda backbone: None, "appended": partial(appended_registers, count=1)}
    asked = kept.outliers, 2, 0, conditions
    found = tokens_at(Lab([MODEL]), images, *asked, read=lambda c: c["registers"].shape[1])
    assert found["none"] == {} and found["appended"][MODEL].read == 1
    assert found["appended"][MODEL].outlier is None


def test_what_is_read_is_what_would_be_kept_and_is_let_go(images, kept):
    own = paired(images, [MODEL, "control-clean"], read=lambda c: float(c.random.pixels.sum()))
    assert own.read == float(kept.random.pixels.sum()) and kept.read is None
    assert (own.outlier, own.normal, own.random, own.tensors) == (None, None, None, {})
    assert torch.equal(own.norms, kept.norms)


# Objects
# --------------------------------------------------------------------------------------------------


TWIN = "control-registers"


@pytest.fixture(scope="module")
def sets():
    images = load_images("scenes", 7, seed=4)
    return images.select(range(4)), images.select(range(4, 7))


def test_tokens_are_those_of_the_places_in_each_set(sets):
    """What else is kept is of the tested images."""
    reducers = [PatchNorms(-1), FinalTokens(norm=True)]

    def norms(backbone):
        return [PatchNorms(-1)] * (backbone.layout.registers == 0)

    kept = object_tokens(Lab([MODEL, TWIN], 2, batch_size=2), *sets, 3, norms, whole=True)
    assert [*kept] == [MODEL, TWIN]
    assert [[*own.tensors] for own in kept.values()] == [["patch_norms"], []]
    for images, group in zip(sets, ("learnt", "tested"), strict=True):
        captured = Lab([MODEL, TWIN]).capture(images, reducers, whole=True)
        for model, own in kept.items():
            c, tokens = captured[model], getattr(own, group)
            grid = c.layout.grid
            assert torch.equal(tokens.positions, object_places(images.masks, [grid], 3, 2)[grid])
            every = c.layout.patch_tokens(c["final_tokens"])
            torch.testing.assert_close(tokens.tokens, at(every, tokens.positions))
            assert (own.layout, own.source, own.depth) == (c.layout, c.source, c.depth)
    tested = captured[MODEL]["patch_norms"]
    torch.testing.assert_close(kept[MODEL]["patch_norms"], tested)


def test_without_masks_there_are_no_tokens(sets):
    learnt, tested = (replace(images, masks=None) for images in sets)
    kept = object_tokens(Lab([MODEL]), learnt, tested, 3, lambda b: [PatchNorms(-1)])
    own = kept[MODEL]
    assert (own.learnt, own.tested, [*own.tensors]) == (None, None, ["patch_norms"])
