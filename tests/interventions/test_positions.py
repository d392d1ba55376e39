import pytest
import torch

from helpers.capture import PatchNorms, capture, capture_conditions
from helpers.images import load_images
from helpers.interventions import (
    carriers,
    expected_at,
    moved_positions,
    moved_sources,
    position_conditions,
    rolled_content,
)
from helpers.models import TokenLayout, load_backbone

LAYOUT = TokenLayout((4, 6))  # its centre: 8, 9, 14 and 15
CORNERS = [23, 0, 5, 18]
MODEL = "control-position"


def test_swapped_patches_have_each_others_embeddings():
    sources = moved_sources(LAYOUT, CORNERS, "swapped")
    assert sources[CORNERS].tolist() == LAYOUT.centre and sources[LAYOUT.centre].tolist() == CORNERS
    rest = [i for i in range(24) if i not in (*CORNERS, *LAYOUT.centre)]
    assert sources[rest].tolist() == rest
    assert carriers(sources, CORNERS) == LAYOUT.centre


def test_a_permutation_gives_every_embedding_to_one_patch():
    sources = moved_sources(LAYOUT, CORNERS, "permuted", seed=3)
    assert sorted(sources.tolist()) == list(range(24)) and sources.tolist() != list(range(24))
    at = carriers(sources, CORNERS)
    assert at == sorted(sources.tolist().index(p) for p in CORNERS)
    assert not torch.equal(sources, moved_sources(LAYOUT, CORNERS, "permuted", seed=4))


def test_zeroed_patches_have_no_embedding():
    sources = moved_sources(LAYOUT, CORNERS, "zeroed")
    assert sources.tolist() == [-1 if i in CORNERS else i for i in range(24)]
    assert carriers(sources, CORNERS) == []


def test_another_move():
    with pytest.raises(ValueError, match="'turned'; choose one of swapped, permuted, zeroed"):
        moved_sources(LAYOUT, CORNERS, "turned")


def test_conditions_move_what_each_model_has():
    images, positions = load_images("scenes", 3), [0, 13, 182, 195]
    passes, _ = capture_conditions(
        [MODEL, "control-clean"],
        images,
        [PatchNorms(-1)],
        position_conditions({MODEL: positions}, seed=2),
    )
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
