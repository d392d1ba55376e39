"""Positions that are moved, and changes at a few patches, against the forward pass of tests/zoo.py,
in float64, without a hook."""

from contextlib import ExitStack, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from zoo import assert_by_hand, bounds, entering, hooks, looks, models, pixels

from helpers.capture import Lab, PatchNorms, capture
from helpers.images import load_images
from helpers.interventions import (
    ablated_neurons,
    appended_registers,
    averaged_neurons,
    dropped_patches,
    expected_at,
    moved_positions,
    moved_sources,
    neurons_off_at,
    patches_carrying,
    position_conditions,
    removed_patches,
    rolled_content,
    unit_treatments,
)
from helpers.interventions import neurons as module
from helpers.models import TokenLayout, load_backbone

LAYOUT = TokenLayout((4, 6))  # its centre: 8, 9, 14 and 15
CORNERS = [23, 0, 5, 18]
MODEL = "control-position"


def test_swapped_patches_have_each_others_embeddings():
    sources = moved_sources(LAYOUT, CORNERS, "swapped")
    assert sources[CORNERS].tolist() == LAYOUT.centre and sources[LAYOUT.centre].tolist() == CORNERS
    rest = [i for i in range(24) if i not in (*CORNERS, *LAYOUT.centre)]
    assert sources[rest].tolist() == rest
    assert patches_carrying(sources, CORNERS) == LAYOUT.centre


def test_a_permutation_gives_every_embedding_to_one_patch():
    sources = moved_sources(LAYOUT, CORNERS, "permuted", seed=3)
    assert sorted(sources.tolist()) == list(range(24)) and sources.tolist() != list(range(24))
    at = patches_carrying(sources, CORNERS)
    assert at == sorted(sources.tolist().index(p) for p in CORNERS)
    assert not torch.equal(sources, moved_sources(LAYOUT, CORNERS, "permuted", seed=4))


def test_zeroed_patches_have_no_embedding():
    sources = moved_sources(LAYOUT, CORNERS, "zeroed")
    assert sources.tolist() == [-1 if i in CORNERS else i for i in range(24)]
    assert patches_carrying(sources, CORNERS) == []


def test_conditions_move_what_each_model_has():
    images, positions = load_images("scenes", 3), [0, 13, 182, 195]
    conditions = position_conditions({MODEL: positions}, seed=2)
    passes = Lab([MODEL, "control-clean"]).passes(images, [PatchNorms(-1)], conditions)
    assert list(passes) == ["swapped", "permuted", "zeroed"] and all(
        list(kept) == [MODEL] for kept in passes.values()
    )
    backbone = load_backbone(MODEL)
    for move, kept in passes.items():
        with moved_positions(backbone, moved_sources(backbone.layout, positions, move, 2)):
            expected = capture(backbone, images, [PatchNorms(-1)])
        assert torch.equal(kept[MODEL]["patch_norms"], expected["patch_norms"])


@pytest.mark.parametrize("name", ["control-content", "control-registers", MODEL])
def test_rolled_content_is_that_of_rolled_pixels(name):
    backbone, images = load_backbone(name), load_images("scenes", 3)
    pixels = torch.stack([backbone.preprocess(image) for image in images])
    reducers = [PatchNorms("all")]
    expected = capture(backbone, pixels.roll((112, 112), (2, 3)), reducers)["patch_norms"]
    before = capture(backbone, pixels, reducers)["patch_norms"]
    with rolled_content(backbone):
        found = capture(backbone, pixels, reducers)["patch_norms"]
    assert torch.allclose(found, expected, rtol=1e-5) and not torch.allclose(
        found, before, rtol=1e-3
    )
    assert torch.equal(capture(backbone, pixels, reducers)["patch_norms"], before)
    assert backbone.interventions == ()


@pytest.mark.parametrize(
    "condition, expected", [("swapped", [8, 9, 14, 15]), ("zeroed", CORNERS), ("rolled", CORNERS)]
)
def test_where_outliers_are_expected(condition, expected):
    assert expected_at(LAYOUT, CORNERS, condition, seed=3) == expected


def test_outliers_are_expected_where_a_permutation_puts_the_embeddings():
    sources = moved_sources(LAYOUT, CORNERS, "permuted", seed=3).tolist()
    assert [sources[p] for p in expected_at(LAYOUT, CORNERS, "permuted", seed=3)] == sorted(
        CORNERS, key=sources.index
    )


# Changes at a few patches
# --------------------------------------------------------------------------------------------------


KINDS = ("small", "registers", "swiglu", "pooled", "open_clip", "dinov3-reg4", "rope-mixed")
every = models(*KINDS)
vit = models("small")
NEURONS = [(2, 7), (0, 3)]
PLACES = [5, 0, 3]
dropped = partial(dropped_patches, rate=0.5)


@every
def test_patches_are_removed_where_they_stand(backbone):
    x, (start, end), layout = pixels(backbone), bounds(backbone), backbone.layout
    plain = entering(backbone, x)
    with removed_patches(backbone, PLACES) as same:
        assert same is backbone and backbone.layout == layout.with_kept(end - start - 3)
        entered, got = entering(backbone, x), looks(backbone, x, batch_size=2)
    rest = [t for t in range(plain.shape[1]) if t - start not in PLACES]
    assert torch.equal(entered, plain[:, rest])
    left = [patch for patch in range(end - start) if patch not in PLACES]
    assert_by_hand(backbone, got, plain[:, rest], moved=lambda rotation: rotation[..., left, :])
    assert backbone.layout is layout and hooks(backbone.model) == 0


@vit
def test_nothing_to_change(backbone):
    x, layout = pixels(backbone), backbone.layout
    plain = looks(backbone, x)
    for nothing in (
        removed_patches(backbone, []),
        neurons_off_at(backbone, NEURONS, []),
        neurons_off_at(backbone, [], PLACES),
    ):
        with nothing:
            assert backbone.layout == layout
            same = looks(backbone, x)
        assert all(torch.equal(value, plain[key]) for key, value in same.items())


@vit
@pytest.mark.parametrize("order", [1, -1])
def test_beside_appended_tokens(backbone, order):
    x, (start, end), layout = pixels(backbone), bounds(backbone), backbone.layout
    plain = entering(backbone, x)
    rest = [t for t in range(plain.shape[1]) if t - start not in PLACES]
    with ExitStack() as both:
        for change in [
            lambda: appended_registers(backbone, 2, "normal"),
            lambda: removed_patches(backbone, PLACES),
        ][::order]:
            both.enter_context(change())
        assert backbone.layout == layout.with_kept(end - start - 3).with_appended(2)
        assert torch.equal(entering(backbone, x)[:, :-2], plain[:, rest])
        looks(backbone, x)


def test_treatments_are_those_of_each_model():
    images, model, places = load_images("scenes", 3), "control-position", [90, 91, 104, 105]
    unit = SimpleNamespace(neuron=(1, 0), matched=(1, 3), usual=places)
    backbone = load_backbone(model)
    changes = {
        "plain": nullcontext,
        "ablated": lambda: ablated_neurons(backbone, [(1, 0)]),
        "ablated_there": lambda: neurons_off_at(backbone, [(1, 0)], places),
        "averaged": lambda: averaged_neurons(backbone, [(1, 0)]),
        "matched": lambda: ablated_neurons(backbone, [(1, 3)]),
        "shifted": lambda: module.test_time_registers(backbone, [(1, 0)]),
        "dropped": lambda: removed_patches(backbone, places),
        "dropped_centre": lambda: removed_patches(backbone, backbone.layout.centre),
    }
    passes = Lab([model]).passes(images, [PatchNorms(-1)], unit_treatments({model: unit}))
    assert [*passes] == [*changes]
    for name, change in changes.items():
        with change():
            expected = capture(backbone, images, [PatchNorms(-1)])["patch_norms"]
        assert torch.equal(passes[name][model]["patch_norms"], expected)
