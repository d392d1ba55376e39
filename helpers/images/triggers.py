"""Pictures of flat patches, one of which may carry a trigger: two tasks that need attention sinks.

A picture is a grid of 8 x 8 patches, each of one colour; the colours share a random mean. The
trigger is a checkerboard on top of a patch's colour, which it leaves as it is in the mean. The
answer of each patch is its own colour and, in `quiet`, the mean colour of the picture if it has a
trigger (half do); in `broadcast`, the colour of the patch with the trigger, channels permuted.
After the two small tasks of arXiv:2606.08105.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float32, UInt8

from helpers.settings import check_choice

TRIGGERED = {"quiet": 0.5, "broadcast": 1.0}
"""How often a picture has a trigger, by task."""
SIDE, GRID = 64, 8
PATCH = SIDE // GRID
# of the mean colour of a picture, and of the colours around it: uniform, from -1 (black) to 1
# (white)
_SPREAD = 0.35
_CHECKERBOARD = np.int16(32) * (1 - 2 * (np.indices((PATCH, PATCH)).sum(0) % 2)).astype(np.int16)
_LEVEL = np.float32(127.5)  # grey levels a unit of colour


def draw_pictures(
    task: str, series: tuple[int, ...], indices: Iterable[int]
) -> UInt8[np.ndarray, "image 64 64 3"]:
    """Pictures of the endless series, each a function of series and index alone; RGB."""
    check_choice("task", task, TRIGGERED)
    chance = np.stack(
        [np.random.default_rng((*series, index)).random(5 + 3 * GRID**2) for index in indices]
    )
    mean, offsets = chance[:, None, 2:5], chance[:, 5:].reshape(len(chance), -1, 3)
    colours = _SPREAD * (2 * mean - 1 + 2 * offsets - 1)
    levels = np.rint((colours + 1) * _LEVEL).astype(np.int16).reshape(-1, GRID, GRID, 3)
    pixels = levels.repeat(PATCH, axis=1).repeat(PATCH, axis=2)
    places = (GRID**2 * chance[:, 1]).astype(int)
    for image in np.flatnonzero(chance[:, 0] < TRIGGERED[task]):
        row, column = np.array(divmod(places[image], GRID)) * PATCH
        pixels[image, row : row + PATCH, column : column + PATCH] += _CHECKERBOARD[..., None]
    return pixels.astype(np.uint8)


def read_pictures(
    pixels: UInt8[np.ndarray, "image 64 64 3"],
) -> tuple[Float32[np.ndarray, "image patch 3"], Bool[np.ndarray, "image patch"]]:
    """The colour of each patch, from -1 to 1, and whether it carries the trigger, from pixels."""
    patches = (
        pixels.reshape(-1, GRID, PATCH, GRID, PATCH, 3)
        .transpose(0, 1, 3, 2, 4, 5)
        .reshape(-1, GRID**2, PATCH**2, 3)
    )
    return patches.mean(2, dtype=np.float32) / _LEVEL - 1, np.ptp(patches, axis=2).any(-1)


def answers(
    task: str, pixels: UInt8[np.ndarray, "image 64 64 3"]
) -> Float32[np.ndarray, "image patch 3"]:
    """What the task asks of each patch."""
    check_choice("task", task, TRIGGERED)
    colours, trigger = read_pictures(pixels)
    if task == "quiet":
        return colours + colours.mean(1, keepdims=True) * trigger.any(1)[:, None, None]
    return colours + np.roll((colours * trigger[..., None]).sum(1, keepdims=True), 1, axis=2)


def trigger_masks(trigger: Bool[np.ndarray, "image patch"]) -> list[Bool[np.ndarray, "_ 64 64"]]:
    """For each picture the pixels of its trigger, or none: (1, 64, 64) or (0, 64, 64)."""
    grids = trigger.reshape(-1, 1, GRID, GRID).repeat(PATCH, axis=2).repeat(PATCH, axis=3)
    return [grid[: int(grid.any())] for grid in grids]
