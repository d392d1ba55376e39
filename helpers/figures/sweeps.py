"""Heat maps side by side."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from helpers.figures.comparisons import sweep
from helpers.figures.style import SMALL, write


def sweeps(
    tables: Mapping[str, Mapping[str, ArrayLike]],
    rows: Sequence,
    columns: Sequence,
    axes: np.ndarray,
    label: str = "",
    xlabel: str = "",
) -> np.ndarray:
    """`sweep` for the same tables of several models, one model a row, on one colour scale from 0 a model.

    Args:
        tables: model -> title -> (row, column), nan where there is no number.
        rows, columns, label, xlabel: as in `sweep`, for every table.
        axes: (model, title).
    """
    for line, (model, own) in zip(axes, tables.items(), strict=True):
        numbers = np.concatenate([np.ravel(table) for table in own.values()])
        numbers = numbers[np.isfinite(numbers)]
        largest = float(numbers.max()) if numbers.size else 1.0
        for ax, (title, table) in zip(line, own.items(), strict=True):
            sweep(table, rows, columns, ax, label, xlabel, largest=largest).set_title(title)
        line[0].set_ylabel("", fontsize=SMALL)
        write(line[0].yaxis.label, model.replace(".", ".\n"))
    return axes
