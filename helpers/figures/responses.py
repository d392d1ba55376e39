"""Curves with their intervals, one panel a model."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from helpers.figures.curves import response
from helpers.figures.style import write


def curve(estimates: Iterable, x: Sequence[float] | None = None) -> tuple:
    """A curve for `response`: what each estimate has as value, low and high, against `x`, or against 0, 1, ... unless given."""
    estimates = list(estimates)
    ends = ([getattr(estimate, end) for estimate in estimates] for end in ("value", "low", "high"))
    return range(len(estimates)) if x is None else x, *ends


def responses(curves: Mapping[str, Mapping[str, tuple]], axes: np.ndarray, xlabel: str = "", ylabel: str = "") -> np.ndarray:
    """`response`, one panel a model under its name.

    Args:
        curves: model -> name -> (x, values, low, high), as in `response`.
        axes: one a model, any shape.
    """
    for ax, (model, drawn) in zip(np.ravel(axes), curves.items(), strict=True):
        write(response(drawn, ax, xlabel, ylabel).title, model, 60)
    return axes
