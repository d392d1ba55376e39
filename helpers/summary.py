"""Numbers as JSON data: rounded, and arrays summarised where they are long.

Figures carry theirs so, and tests compare them.
"""

import json
import math

import numpy as np
from numpy.typing import ArrayLike

# the type of a figure's numbers among what a notebook's cell displays
FIGURE = "application/vnd.registers.figure+json"
LONG = 100  # numbers up to which an array is kept as it is


def summary(values: ArrayLike, whole: bool = True) -> list | dict:
    """An array as JSON data: its numbers, or its moments where they are many or it is not to be
    kept `whole`.

    What is not finite becomes None, and what is below 1e-9 of the largest number 0.

    Returns:
        A list for a short vector; else a dict of shape and numbers, or of shape, finite (how many
        are), mean, sd, min, max, the deciles q10 to q90 and order, the mean weighted with the place
        in the array, which another order changes.
    """
    x = np.ma.filled(np.ma.asarray(values, dtype=np.float64), np.nan)
    shape, flat = "x".join(map(str, x.shape)), x.ravel()
    finite = flat[np.isfinite(flat)]
    flat = np.where(np.abs(flat) < 1e-9 * np.abs(finite).max(initial=0), 0.0, flat)
    if whole and x.size <= LONG:
        numbers = [rounded(number) for number in flat]
        return numbers if x.ndim == 1 else {"shape": shape, "numbers": numbers}
    moments = (
        {"finite": finite.size, "mean": finite.mean(), "sd": finite.std()}
        if finite.size
        else {"finite": 0}
    )
    if whole and finite.size:
        moments |= {"min": finite.min(), "max": finite.max()}
        moments |= {f"q{q}": np.quantile(finite, q / 100) for q in range(10, 100, 10)}
        moments["order"] = np.nanmean(
            np.where(np.isfinite(flat), flat, np.nan) * np.arange(1, flat.size + 1) / flat.size
        )
    return {"shape": shape, **{name: rounded(number) for name, number in moments.items()}}


def figure_text(axes: list[dict]) -> str:
    """The numbers of a figure as a notebook holds them: one string, since nbformat gives each
    number of a list a line.
    """
    return json.dumps(axes, sort_keys=True, ensure_ascii=False, allow_nan=False)


def rounded(number: float | None) -> float | int | None:
    """A number with six significant digits; None for what is not finite, which JSON cannot hold."""
    if number is None or not math.isfinite(number):
        return None
    number = float(f"{number:.6g}")
    return int(number) if number.is_integer() and abs(number) < 1e15 else number
