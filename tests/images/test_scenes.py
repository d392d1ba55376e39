"""Scenes: known exactly, the same for a seed, and without a trace of position."""

import colorsys
import hashlib
from collections import Counter

import numpy as np
import pytest
from scipy import ndimage
from scipy.stats import chi2_contingency, chisquare

from helpers.images import draw_scene, scene_label
from helpers.images.scenes import SCENES as SETS
from helpers.images.scenes import SIZE

SCENES = 400
GRID = SIZE // 16


@pytest.fixture(scope="module")
def scenes():
    return [draw_scene(0, index) for index in range(SCENES)]


@pytest.fixture(scope="module")
def hard():
    return [draw_scene(0, index, "scenes-hard") for index in range(SCENES // 2)]


@pytest.fixture(scope="module")
def flat(scenes):
    """(scene, row, column): whether all pixels of a 16x16 patch are the same."""
    patches = _patches(np.stack([scene.pixels for scene in scenes]))
    return (patches == patches[..., :1, :]).all(axis=(-1, -2))


def _patches(pixels):
    """(n, 224, 224, c) -> (n, row, column, pixel, c)"""
    n, channels = len(pixels), pixels.shape[-1]
    blocks = pixels.reshape(n, GRID, 16, GRID, 16, channels).swapaxes(2, 3)
    return blocks.reshape(n, GRID, GRID, 256, channels)


def test_a_scene_depends_on_seed_and_index_alone(scenes):
    again = draw_scene(0, 7)
    assert (again.pixels == scenes[7].pixels).all() and (again.masks == scenes[7].masks).all()
    assert (draw_scene(1, 7).pixels != again.pixels).any()
    assert (scenes[8].pixels != again.pixels).any()
    assert [scene_label(0, index) for index in range(50)] == [scene.label for scene in scenes[:50]]


def test_scenes_are_what_they_always_were(scenes, hard):
    """Stored numbers hang on every pixel: digests of pixels and masks."""
    for drawn, digest in ((scenes, "3183877d04c9ef8b"), (hard, "ceb47e725f0d19ba")):
        parts = (part.tobytes() for scene in drawn[:20] for part in (scene.pixels, scene.masks))
        assert hashlib.sha256(b"".join(parts)).hexdigest().startswith(digest)


def test_masks_and_boxes_agree(scenes, hard):
    for scene in [*scenes[:100], *hard[:100]]:
        assert 1 <= len(scene.masks) <= 3
        assert scene.masks.sum(axis=0).max() == 1, "each pixel belongs to one object at most"
        for mask, box in zip(scene.masks, scene.boxes, strict=True):
            ((rows, columns),) = ndimage.find_objects(mask.astype(int))
            assert box.tolist() == [columns.start, rows.start, columns.stop, rows.stop]


def test_objects_are_the_saturated_pixels(scenes, hard):
    """Masks are exact: background colours are muted (HSV saturation up to 0.2), object colours
    vivid (0.85 and more)."""
    for scene in [*scenes[:100], *hard[:100]]:
        pixels = scene.pixels.astype(float)
        saturation = 1 - pixels.min(axis=-1) / pixels.max(axis=-1)
        assert ((saturation > 0.5) == scene.masks.any(axis=0)).all()


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
    objects = np.stack([scene.masks.any(axis=0)[..., None] for scene in scenes])
    assert abs(_border_excess(_patches(objects).mean(axis=(-1, -2)))) < 3


def _border_excess(maps):
    """Mean of (scene, row, column) maps on the border minus that inside, in standard errors over
    scenes."""
    border = np.ones((GRID, GRID), dtype=bool)
    border[2:-2, 2:-2] = False
    excess = maps[:, border].mean(axis=1) - maps[:, ~border].mean(axis=1)
    return excess.mean() / (excess.std(ddof=1) / np.sqrt(len(maps)))


# The hard ones


def hue_of(scene):
    """Of the main object, in [0, 1): that of its brightest pixel."""
    pixels = scene.pixels[scene.masks[0]].astype(int)
    return colorsys.rgb_to_hsv(*pixels[pixels.max(-1).argmax()] / 255)[0]


def test_a_hard_scene_has_label_background_and_places_of_the_plain_one(scenes, hard):
    again = draw_scene(0, 7, "scenes-hard")
    assert (again.pixels == hard[7].pixels).all() and (again.masks == hard[7].masks).all()
    for plain, other in zip(scenes, hard, strict=False):
        assert plain.label == other.label
        behind = ~(plain.masks.any(0) | other.masks.any(0))
        assert (plain.pixels[behind] == other.pixels[behind]).all()
        assert (plain.pixels != other.pixels).any()


def test_neither_texture_nor_shape_tells_the_class():
    names = [name.split() for name in SETS["scenes-hard"]]
    assert len({*map(tuple, names)}) == 10 and {len(name) for name in names} == {2}
    for part in zip(*names, strict=True):
        assert len(set(part)) == 4 and min(Counter(part).values()) >= 2


def test_hue_tells_nothing(scenes, hard):
    """The tenth of the circle that an object's hue lies in, beside its class: as if drawn apart; of
    plain scenes never."""

    def dependence(drawn):
        table = np.zeros((10, 10))
        for scene in drawn:
            table[scene.label, int(10 * hue_of(scene))] += 1
        return chi2_contingency(table[:, table.any(0)]).pvalue

    assert dependence(hard) > 0.01 and dependence(scenes) < 1e-100
    count = np.bincount([int(10 * hue_of(scene)) for scene in hard], minlength=10)
    assert chisquare(count).pvalue > 0.01
