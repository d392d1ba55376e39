"""Scenes: known exactly, the same for a seed, and without a trace of position."""

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

from helpers.images import CLASS_NAMES, draw_scene, scene_label
from helpers.images.scenes import SIZE

SCENES = 400
GRID = SIZE // 16


@pytest.fixture(scope="module")
def scenes():
    return [draw_scene(0, index) for index in range(SCENES)]


@pytest.fixture(scope="module")
def flat(scenes):
    """(scene, row, column): whether all pixels of a 16x16 patch are the same."""
    patches = _patches(np.stack([scene.pixels for scene in scenes]))
    return (patches == patches[..., :1, :]).all(axis=(-1, -2))


def _patches(pixels: np.ndarray) -> np.ndarray:
    """(n, 224, 224, c) -> (n, row, column, pixel, c)"""
    n, channels = len(pixels), pixels.shape[-1]
    return pixels.reshape(n, GRID, 16, GRID, 16, channels).swapaxes(2, 3).reshape(n, GRID, GRID, 256, channels)


def test_a_scene_depends_on_seed_and_index_alone(scenes):
    again = draw_scene(0, 7)
    assert (again.pixels == scenes[7].pixels).all() and (again.masks == scenes[7].masks).all()
    assert (draw_scene(1, 7).pixels != again.pixels).any()
    assert (scenes[8].pixels != again.pixels).any()
    assert [scene_label(0, index) for index in range(50)] == [scene.label for scene in scenes[:50]]


def test_masks_and_boxes_agree(scenes):
    for scene in scenes[:100]:
        assert 1 <= len(scene.masks) <= 3
        assert scene.masks.sum(axis=0).max() == 1, "each pixel belongs to one object at most"
        for mask, box in zip(scene.masks, scene.boxes, strict=True):
            assert Image.fromarray(mask).getbbox() == tuple(box)


def test_objects_are_the_saturated_pixels(scenes):
    """Masks are exact: background colours are muted (HSV saturation up to 0.2), object colours vivid (0.85 and more)."""
    for scene in scenes[:100]:
        pixels = scene.pixels.astype(float)
        saturation = 1 - pixels.min(axis=-1) / pixels.max(axis=-1)
        assert ((saturation > 0.5) == scene.masks.any(axis=0)).all()


def test_flat_share_leaves_room_for_contrast(flat):
    assert 0.25 < flat.mean() < 0.42
    per_scene = flat.mean(axis=(1, 2))
    assert ((per_scene > 0.02) & (per_scene < 0.98)).mean() > 0.7


def test_flat_patches_lie_in_one_background_region(scenes, flat):
    """Two regions of different kinds: at most one of them is flat, and objects are never flat."""
    for scene, where in zip(scenes, flat, strict=True):
        colours = _patches(scene.pixels[None])[0][where][:, 0]
        assert len(np.unique(colours, axis=0)) <= 1
        touched = _patches(scene.masks.any(axis=0)[None, ..., None])[0].any(axis=(-1, -2))
        assert not (touched & where).any()


def test_position_says_nothing_about_flatness(flat):
    share = flat.mean(axis=0)
    error = np.sqrt(share.mean() * (1 - share.mean()) / SCENES)
    assert np.abs(share - share.mean()).max() < 4 * error  # 196 cells, each a binomial share
    assert abs(_border_excess(flat)) < 3
    rows = np.arange(GRID) - (GRID - 1) / 2
    for slope in ((flat.mean(axis=2) * rows).mean(axis=1), (flat.mean(axis=1) * rows).mean(axis=1)):
        assert abs(slope.mean()) < 3 * slope.std(ddof=1) / np.sqrt(SCENES)


def test_objects_cover_the_border_as_often_as_the_middle(scenes):
    covered = _patches(np.stack([scene.masks.any(axis=0)[..., None] for scene in scenes])).mean(axis=(-1, -2))
    assert abs(_border_excess(covered)) < 3


def _border_excess(maps: np.ndarray) -> float:
    """Mean of (scene, row, column) maps on the border minus that inside, in standard errors over scenes."""
    border = np.ones((GRID, GRID), dtype=bool)
    border[2:-2, 2:-2] = False
    excess = maps[:, border].mean(axis=1) - maps[:, ~border].mean(axis=1)
    return excess.mean() / (excess.std(ddof=1) / np.sqrt(len(maps)))


def test_class_is_linearly_decodable_from_colour(scenes):
    def histogram(scene):
        return np.sqrt(np.histogramdd(scene.pixels[::3, ::3].reshape(-1, 3), bins=(6, 6, 6), range=[(0, 256)] * 3)[0].ravel())

    features, labels = np.stack([histogram(scene) for scene in scenes]), np.array([scene.label for scene in scenes])
    assert len(np.unique(labels)) == len(CLASS_NAMES) == len(set(CLASS_NAMES)) == 10
    probe = LogisticRegression(max_iter=500).fit(features[:250], labels[:250])
    assert probe.score(features[250:], labels[250:]) > 0.9
