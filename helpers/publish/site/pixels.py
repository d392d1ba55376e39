"""Stored pictures for dark pages: figures that were drawn on white, without their plate."""

from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

SIDE, FULL = 24, 0.6  # pixels of a picture's shorter side in a figure, and the share of its rectangle that has a colour
BAR, SHADES = 6, 24  # a colour bar is narrower, and has more colours than ink has
BRIGHT = 0.88  # of what was black


def size_of(path: Path) -> tuple[int, int]:
    """A picture's width and height in pixels."""
    with Image.open(path) as image:
        return image.size


def for_dark_pages(path: Path, target: Path) -> None:
    """Write the picture at `path` for a dark page (`turned`), as WebP without loss: a quarter of what it is as PNG."""
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    Image.fromarray(turned(pixels)).save(target, "WEBP", lossless=True)


def turned(pixels: np.ndarray) -> np.ndarray:
    """A figure on white as one on nothing: white is transparent, dark ink light and of the same hue; pictures in it stay.

    A picture is what fills its rectangle: a photograph, a map, a heat map, a colour bar.

    Args:
        pixels: (height, width, 3), uint8.

    Returns:
        (height, width, 4), uint8.
    """
    colour = pixels.astype(np.float32)
    cover = 255 - colour.min(axis=-1)  # how much ink lies over the white
    keep = np.zeros(cover.shape, dtype=bool)
    parts, _ = ndimage.label(cover > 5, structure=np.ones((3, 3)))
    for i, box in enumerate(ndimage.find_objects(parts), 1):
        inside = parts[box] == i
        if min(inside.shape) >= SIDE and inside.mean() >= FULL:
            keep[box] = True
        elif min(inside.shape) >= BAR and inside.mean() >= FULL - 0.1 and _colours(pixels[box][inside]) > SHADES:
            keep[box] |= np.outer(inside.mean(axis=1) >= FULL, inside.mean(axis=0) >= FULL)  # without its ticks
    alpha = np.maximum(cover, 1)[..., None]
    ink = ((colour - 255) * 255 / alpha + 255).clip(0, 255)  # its own colour, taken off the white
    light = (ink + 255 - ink.max(axis=-1, keepdims=True) - ink.min(axis=-1, keepdims=True)) * BRIGHT
    turned = np.concatenate([np.where(keep[..., None], colour, light), np.where(keep, 255, cover)[..., None]], axis=-1)
    return turned.round().clip(0, 255).astype(np.uint8)


def _colours(pixels: np.ndarray) -> int:
    """How many colours there are, of 4,096."""
    coarse = pixels.astype(np.int32) >> 4
    return np.unique(coarse @ (256, 16, 1)).size
