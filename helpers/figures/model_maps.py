"""The same example images through several models."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from helpers.figures.maps import token_maps


def model_maps(images: Iterable, maps: Mapping[str, tuple[ArrayLike, ArrayLike]], axes: np.ndarray) -> np.ndarray:
    """`token_maps` with one row a model and image, the images of one model after another.

    Args:
        images: PIL or (height, width, 3).
        maps: label, such as the model -> (patch norms, [CLS] attention), each (image, patch row, patch column).
        axes: (row, 3).
    """
    images = list(images)
    rows = [
        (label, image, *pair) for label, both in maps.items() for image, pair in zip(images, zip(*both, strict=True), strict=True)
    ]
    labels, *columns = zip(*rows, strict=True)
    return token_maps(*columns, axes, labels=labels)
