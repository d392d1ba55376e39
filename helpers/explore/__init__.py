"""What readers can touch in the book, measured: patches through the blocks, the threshold of an
outlier, and moved positions.
"""

from helpers.explore.moves import moves
from helpers.explore.patches import patches
from helpers.explore.photographs import PHOTOGRAPHS, Photograph, shown
from helpers.explore.thresholds import JUDGED, MULTIPLES, thresholds

__all__ = [
    "JUDGED",
    "MULTIPLES",
    "PHOTOGRAPHS",
    "Photograph",
    "moves",
    "patches",
    "shown",
    "thresholds",
]
