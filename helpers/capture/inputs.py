"""What may be given as images, and one sentence for what may not."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from helpers.models import Backbone

FORMS = "a list of PIL images, paths or uint8 arrays, or pixels (image, 3, height, width)"


def as_images(images: Any, backbone: Backbone) -> Any:
    """`images` as something that has a length and an item for each index.

    Raises ValueError where it is no such thing, in one sentence.
    """
    if isinstance(images, DataLoader):
        images = images.dataset
    if isinstance(images, str | os.PathLike):
        raise ValueError(
            f"images are the path {os.fspath(images)!r}; give {FORMS}, or "
            "load_images('folder:PATH', n)"
        )
    if isinstance(images, Image.Image):
        raise ValueError(
            f"images are one picture; give a list, [image], or {FORMS.partition(' or ')[2]}"
        )
    if isinstance(images, IterableDataset | Iterator) or not (
        hasattr(images, "__len__") and hasattr(images, "__getitem__")
    ):
        raise ValueError(
            f"images are a {type(images).__name__}, which has no length and no order to go by; "
            f"give {FORMS}"
        )
    if isinstance(images, dict):
        raise ValueError(f"images are a dict; give {FORMS}")
    if isinstance(images, np.ndarray) and images.ndim == 3:
        raise ValueError(
            f"images are one array {images.shape}; give a list, [array], or an array (image, "
            "height, width, 3)"
        )
    if isinstance(images, Tensor) and images.dim() != 4:
        raise ValueError(
            f"pixels have the shape {tuple(images.shape)}; give (image, 3, *{backbone.image_size})"
        )
    return images


def pixels_of(
    item: Any, index: int, preprocess: Callable[[Image.Image], Tensor], size: tuple[int, int]
) -> Float[Tensor, "3 height width"]:
    """One item of a list or a data set, of index `index`, as the model takes it.

    Raises ValueError where it is no image.
    """
    if isinstance(item, tuple | list) and item:  # an image and its label
        item = item[0]
    if isinstance(item, str | os.PathLike):
        try:
            with Image.open(item) as image:
                return preprocess(image)
        except (OSError, UnidentifiedImageError, SyntaxError) as error:
            told = (
                "there is no such file"
                if isinstance(error, FileNotFoundError)
                else "it is no picture that can be read"
            )
            raise ValueError(
                f"image {index}, {os.fspath(item)!r}: {told}; correct the path, or leave it out"
            ) from None
    if isinstance(item, Image.Image):
        return preprocess(item)
    if isinstance(item, np.ndarray):
        if (
            item.dtype != np.uint8
            or item.ndim not in (2, 3)
            or (item.ndim == 3 and item.shape[2] not in (1, 3, 4))
        ):
            raise ValueError(
                f"image {index} is an array {item.shape} of {item.dtype}; give (height, width, 3) "
                "or (height, width) of uint8, "
                "from 0 to 255"
            )
        return preprocess(Image.fromarray(item.squeeze(2) if item.shape[2:] == (1,) else item))
    if isinstance(item, Tensor) and item.is_floating_point() and tuple(item.shape) == (3, *size):
        return item.to(torch.float32)
    told = (
        f"a tensor {tuple(item.shape)} of {item.dtype}"
        if isinstance(item, Tensor)
        else f"a {type(item).__name__}"
    )
    raise ValueError(
        f"image {index} is {told}; give a PIL image, a path, a uint8 array, or normalised pixels "
        f"{(3, *size)}"
    )
