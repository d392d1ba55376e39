"""Procedural scenes: images made from a seed, with known class, boxes, masks and flat regions.

A random line splits the background into two regions of different kinds; one to three textured
objects of one class lie on it. Every 16x16 patch is flat with the same probability, so that
outliers that follow content and those that follow position can be told apart. In `scenes` colour
tells the class; in `scenes-hard` hues are by chance, and neither texture nor shape tells it alone.
"""

import colorsys
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, UInt8
from PIL import Image

SIZE = 224
_HUES = {  # in degrees
    "red": 0, "orange": 26, "yellow": 52, "lime": 84, "green": 135, "cyan": 180, "blue": 215,
    "violet": 262, "magenta": 300, "pink": 338,
}  # fmt: skip
# The classes: ten combinations of a colour of its own, a texture and a shape; or of a texture and a
# shape alone: who knows but one of the two names four of the ten at best.
SCENES = {
    "scenes": [
        "red striped disc", "orange checked square", "yellow dotted star", "lime speckled hexagon",
        "green striped triangle", "cyan checked gear", "blue dotted disc",
        "violet speckled square", "magenta striped star", "pink checked hexagon",
    ],
    "scenes-hard": [
        "striped disc", "checked disc", "dotted disc", "striped triangle", "checked triangle",
        "speckled triangle", "striped square", "dotted square", "checked star", "speckled star",
    ],
}  # fmt: skip
"""The names of the classes, ten in each data set of scenes."""
CLASS_NAMES = SCENES["scenes"]
_CORNERS = {"disc": 120, "triangle": 3, "square": 4, "hexagon": 6, "star": 5, "gear": 10}
_INNER_RADIUS = {"star": 0.45, "gear": 0.75}  # of an outer radius of 1; the others are polygons
_TEXTURES = ("striped", "checked", "dotted", "speckled")
# Pairs of background kinds. Nearly every scene has a flat region, and patches that are not flat to
# compare it with.
_KINDS = [("flat", "gradient"), ("flat", "textured"), ("gradient", "textured")]
_KIND_WEIGHTS = (0.47, 0.47, 0.06)
_ROWS, _COLUMNS = np.mgrid[:SIZE, :SIZE].astype(np.float32) + 0.5


@dataclass(frozen=True)
class Scene:
    """One picture with its ground truth."""

    pixels: UInt8[np.ndarray, "224 224 3"]
    label: int  #: of all objects
    masks: Bool[np.ndarray, "object 224 224"]  #: visible pixels; the main object comes first

    @property
    def boxes(self) -> Float32[np.ndarray, "object 4"]:
        """xmin, ymin, xmax, ymax in pixels; xmax - xmin is the width of the mask."""
        return np.array([Image.fromarray(mask).getbbox() for mask in self.masks], dtype=np.float32)

    @property
    def segments(self) -> UInt8[np.ndarray, "224 224"]:
        """The class of each pixel: 0 the background, and one more than the label an object."""
        return ((self.label + 1) * self.masks.any(axis=0)).astype(np.uint8)


def scene_label(seed: int, index: int) -> int:
    """The label of scene `index` without drawing it, in either set."""
    return int(np.random.default_rng((seed, index)).integers(len(CLASS_NAMES)))


def draw_scene(seed: int, index: int, name: str = "scenes") -> Scene:
    """Scene `index` (0, 1, ...) of the endless series `seed` of the data set `name`."""
    rng = np.random.default_rng((seed, index))
    label = int(rng.integers(len(CLASS_NAMES)))
    pixels = _background(rng)
    masks = []
    for centre in reversed(_centres(rng)):  # the main object is drawn last, on top
        visible = _draw_object(pixels, rng, SCENES[name][label], centre)
        masks = [visible, *(mask & ~visible for mask in masks)]
    return Scene(pixels, label, np.stack([mask for mask in masks if mask.any()]))


def _background(rng: np.random.Generator) -> np.ndarray:
    """(224, 224, 3) uint8: two regions of different kinds on the sides of a line, of uniform
    direction and offset, so that a patch is cut with probability 1/14 wherever it lies.
    """
    kinds = rng.permutation(_KINDS[rng.choice(len(_KINDS), p=_KIND_WEIGHTS)])
    values = rng.permutation([rng.uniform(0.3, 0.5), rng.uniform(0.6, 0.8)])  # dark and light
    regions = [_region(rng, kind, value) for kind, value in zip(kinds, values, strict=True)]
    across = _ramp(rng.uniform(0, 2 * np.pi))
    return np.where((across < rng.uniform())[..., None], *regions)


def _region(rng: np.random.Generator, kind: str, value: float) -> np.ndarray:
    """A background of one kind around a brightness (HSV value), broadcastable to the picture."""
    hue, saturation = rng.uniform(), rng.uniform(0.05, 0.2)
    if kind == "flat":
        return _rgb(hue, saturation, value).astype(np.uint8)
    spread = 0.2 if kind == "gradient" else rng.uniform(0.08, 0.14)
    dark, light = (_rgb(hue, saturation, value + sign * spread) for sign in (-1, 1))
    if kind == "gradient":  # at least 80 levels, hence several in each patch: never flat
        return _mix(dark, light, _ramp(rng.uniform(0, 2 * np.pi)))
    return _mix(dark, light, _texture(rng, rng.choice(_TEXTURES), _ROWS, _COLUMNS))


def _centres(rng: np.random.Generator) -> list[np.ndarray]:
    """Centres (row, column) of the objects, the main one first, uniform in the picture.

    Borders would be emptier than the middle, so a second one is uniform in a frame around it of the
    same area. In half of the scenes a third one lies anywhere in picture and frame.
    """
    side = SIZE * np.sqrt(2)
    main, third = rng.uniform(0, SIZE, 2), rng.uniform(-side / 2, side / 2, 2) + SIZE / 2
    second = main
    while ((0 <= second) & (second < SIZE)).all():
        second = rng.uniform(-side / 2, side / 2, 2) + SIZE / 2
    return [main, second, third] if rng.uniform() < 0.5 else [main, second]


def _draw_object(
    pixels: np.ndarray, rng: np.random.Generator, class_name: str, centre: np.ndarray
) -> np.ndarray:
    """Draw one object into `pixels` and return its mask (224, 224)."""
    *colour, texture, shape = class_name.split()
    radius = rng.uniform(26, 46)  # at most 0.2 x 224, the width of the frame in `_centres`
    top, left = np.clip(np.floor(centre - radius), 0, SIZE).astype(int)
    bottom, right = np.clip(np.ceil(centre + radius), 0, SIZE).astype(int)
    window = np.s_[top:bottom, left:right]
    rows, columns = _ROWS[window] - centre[0], _COLUMNS[window] - centre[1]
    mask = np.zeros((SIZE, SIZE), dtype=bool)
    angle = np.arctan2(rows, columns) + rng.uniform(0, 2 * np.pi)
    mask[window] = np.hypot(rows, columns) < radius * _outline(angle, shape)

    value = rng.uniform(0.85, 1)
    hue = _HUES[colour[0]] / 360 if colour else rng.uniform()
    tones = _rgb(hue, 0.95, 0.55 * value), _rgb(hue, 0.85, value)
    drawn = _mix(*tones, _texture(rng, texture, rows, columns))
    pixels[window][mask[window]] = drawn[mask[window]]
    return mask


def _outline(angle: np.ndarray, shape: str) -> np.ndarray:
    """Distance from centre to outline of a regular polygon or star with corners at distance 1."""
    half = np.pi / _CORNERS[shape]
    inner = _INNER_RADIUS.get(shape, np.cos(half))
    angle = np.abs(np.mod(angle, 2 * half) - half)  # from an inner point (0) to a corner (half)
    return inner * np.sin(half) / (inner * np.sin(angle) + np.sin(half - angle))


def _texture(
    rng: np.random.Generator, texture: str, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """A pattern in [0, 1] with a period of at most 12 pixels, so no 16x16 patch of it is flat."""
    if texture == "speckled":  # random 2x2 blocks
        height, width = rows.shape
        blocks = rng.random((height // 2 + 1, width // 2 + 1), dtype=np.float32)
        return blocks.repeat(2, 0).repeat(2, 1)[:height, :width]
    angle = rng.uniform(0, np.pi)
    frequency = 2 * np.pi / rng.uniform(7, 12)
    phase = rng.uniform(0, 2 * np.pi)
    cos, sin = np.float32(frequency * np.cos(angle)), np.float32(frequency * np.sin(angle))
    first = np.sin(cos * columns + sin * rows + np.float32(phase))
    if texture == "striped":
        return (first > 0).astype(np.float32)
    second = np.sin(cos * rows - sin * columns)
    return (first * second > (0.35 if texture == "dotted" else 0)).astype(np.float32)


def _ramp(angle: float) -> np.ndarray:
    """A linear ramp over the picture, from 0 at the first corner to 1 at the last."""
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    across = cos * (_COLUMNS - SIZE / 2) + sin * (_ROWS - SIZE / 2)
    return across / (SIZE * (abs(cos) + abs(sin))) + np.float32(0.5)


def _rgb(hue: float, saturation: float, value: float) -> np.ndarray:
    return 255 * np.array(colorsys.hsv_to_rgb(hue, saturation, value), dtype=np.float32)


def _mix(dark: np.ndarray, light: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return (dark + (light - dark) * weight[..., None]).astype(np.uint8)
