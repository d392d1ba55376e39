"""One function per figure: (data, axes) -> axes.

Nothing is measured here; the same functions serve notebooks and figure tests.

    plt.rcParams.update(figures.STYLE)
    figures.norm_histogram(norms, thresholds, figures.lines(len(norms)))

Blocks are counted from 0. A figure grows in height where the names of its models need the room. A
model keeps its colour where figures get the models in the same order.

In a notebook, importing this package makes every figure carry its numbers beside its picture (see
data.py).
"""

from helpers.figures.comparisons import (
    compared,
    compared_settings,
    forest,
    part_shares,
    size_prevalence,
    sweep,
    sweeps,
    verdict_table,
)
from helpers.figures.curves import (
    block_cosines,
    block_curves,
    block_norms,
    curve,
    response,
    responses,
    sorted_images,
    trainings,
)
from helpers.figures.data import drawn
from helpers.figures.distributions import norm_histogram, onset_histogram, similarity_densities
from helpers.figures.maps import (
    block_maps,
    block_strips,
    box_rows,
    found_boxes,
    map_rows,
    marked_patches,
    model_maps,
    panels,
    share_maps,
    token_maps,
    twin_maps,
)
from helpers.figures.style import (
    COLOURS,
    DASHES,
    FLAT,
    GREY,
    MARKERS,
    NORM,
    PLAIN,
    STYLE,
    TICKS,
    VERDICTS,
    lines,
    rows,
)

__all__ = [
    "COLOURS",
    "DASHES",
    "FLAT",
    "GREY",
    "MARKERS",
    "NORM",
    "PLAIN",
    "STYLE",
    "TICKS",
    "VERDICTS",
    "block_cosines",
    "block_curves",
    "block_maps",
    "block_norms",
    "block_strips",
    "box_rows",
    "compared",
    "compared_settings",
    "curve",
    "drawn",
    "forest",
    "found_boxes",
    "lines",
    "map_rows",
    "marked_patches",
    "model_maps",
    "norm_histogram",
    "onset_histogram",
    "panels",
    "part_shares",
    "response",
    "responses",
    "rows",
    "share_maps",
    "similarity_densities",
    "size_prevalence",
    "sorted_images",
    "sweep",
    "sweeps",
    "token_maps",
    "trainings",
    "twin_maps",
    "verdict_table",
]
