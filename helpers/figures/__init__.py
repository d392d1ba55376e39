"""One function per figure: (data, axes) -> axes; nothing is measured here.

In a notebook, importing this package makes every figure carry its numbers (see data.py).
"""
# ruff: noqa: F401

from helpers.figures.comparisons import (
    compared,
    compared_settings,
    forest,
    heat_maps,
    verdict_tables,
)
from helpers.figures.curves import (
    block_curves,
    block_norms,
    curve,
    response,
    responses,
    sorted_images,
    trainings,
)
from helpers.figures.data import drawn
from helpers.figures.distributions import (
    norm_histogram,
    norm_histograms,
    onset_histogram,
    similarity_densities,
)
from helpers.figures.maps import (
    block_strips,
    map_rows,
    marked_patches,
    model_maps,
    panels,
    share_maps,
    twin_maps,
)
from helpers.figures.style import COLOURS, STYLE, VERDICTS, name_beside, rows
