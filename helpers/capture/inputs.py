"""Images as a model takes them."""

import os
import sys
import warnings
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.utils import data
from torchvision.datasets.folder import DatasetFolder, default_loader

from helpers.images import Images, decode
from helpers.images.tables import decode_row
from helpers.models import Backbone

MOST_WORKERS = 16  # processes that load images for one GPU, unless given
MOST_PIXEL = 50  # normalised pixels are within some units of zero, raw ones reach 255


def check_pixels(backbone: Backbone, pixels: Tensor) -> None:
    """Raise ValueError for pixels of another size than the model takes, or not normalised."""
    wanted = (3, *backbone.image_size)
    if tuple(pixels.shape[1:]) != wanted or not pixels.is_floating_point():
        raise ValueError(
            f"pixels {tuple(pixels.shape)} of {pixels.dtype}; '{backbone.name}' takes floats "
            f"(image, *{wanted}), or PIL images, which it resizes and normalises"
        )
    low, high = pixels.amin(), pixels.amax()  # `aminmax` copies what is not contiguous
    if 0 <= low < high - 0.5 and high <= 1 and max(backbone.normalisation[0]) > 0:
        warnings.warn("pixels lie from 0 to 1, as if they were not normalised", stacklevel=2)
    if max(-low, high) > MOST_PIXEL:
        form = "normalised as the model was trained, or PIL images to normalise by itself"
        raise ValueError(f"pixels reach {max(-low, high):.4g}; give them {form}")


class PixelSet(data.Dataset):
    """The items of a list as pixels (3, height, width) that a model takes."""

    def __init__(self, backbone: Backbone, images: Any):
        self.backbone, self.images = backbone, images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Float[Tensor, "3 height width"]:
        item = picture(self.images[index])
        if not isinstance(item, Tensor):
            return self.backbone.preprocess(item)
        check_pixels(self.backbone, item[None])
        return item.to(torch.float32)


def picture(item: Any) -> Image.Image | Tensor:
    """What `decode` takes, or an array (height, width[, 3]), as upright RGB; pixels as they are. Of
    a row of a data set the picture, by its name or as the first of (picture, label).
    """
    match item:
        case {"image": one} | {"img": one} | {"pixel_values": one}:
            return picture(one)
        case [one, *others] if not any(getattr(x, "ndim", 0) == 3 for x in others):
            return picture(one)
        case {"bytes": _, "path": _}:
            return decode_row(item)
        case np.ndarray():
            return decode(Image.fromarray(item))
        case Image.Image() | str() | os.PathLike() | bytes():
            return decode(item)
        case Tensor():
            return item
    forms = "PIL images, paths, arrays (height, width, 3), normalised pixels, or rows with 'image'"
    raise ValueError(f"an image is a {type(item).__name__}; give {forms}")


def images_of(images: Any) -> Images:
    """What `capture` takes, as Images: of pictures these, of pixels themselves.

    An image is called by the name of its file in a list of paths, and else by its number.
    """
    if isinstance(images, Images):
        return images
    rows = rows_of(images)
    ids = [str(index) for index in range(len(rows))]
    if isinstance(rows, list | tuple) and all(isinstance(one, str | Path) for one in rows):
        names = [Path(one).name for one in rows]
        ids = names if len({*names}) == len(names) else ids
    return Images(type(images).__name__, ids, lambda index: picture(rows[index]))


def rows_of(images: Any) -> Any:
    """What `picture` takes, by index: of a batch its column, of a DataLoader its data set."""
    match images:
        case {"image": rows} | {"img": rows} | {"pixel_values": rows}:
            return rows
        case data.DataLoader():
            whole = images.collate_fn is data.default_collate and not images.drop_last
            if not (whole and isinstance(images.batch_sampler.sampler, data.SequentialSampler)):
                raise ValueError("the DataLoader draws, drops or collates: give its dataset")
            return rows_of(images.dataset)
        case data.Subset():
            images = copy(images)
            images.dataset = rows_of(images.dataset)
        case DatasetFolder() if images.loader is default_loader:
            images = copy(images)
            images.loader = decode  # its own clips 16 bits
    return images


def batches_of(
    backbone: Backbone, images: Any, batch_size: int, workers: int | None
) -> Iterator[tuple[int, Tensor]]:
    """The first index and the pixels of each batch, on the CPU, in memory that a GPU can read by
    itself if there is one.
    """
    pinned = backbone.device.type == "cuda"
    if isinstance(images, Tensor):
        for start in range(0, len(images), batch_size):
            pixels = images[start : start + batch_size]
            yield start, pixels.pin_memory() if pinned and not pixels.is_cuda else pixels
        return
    if workers is None:
        batches = -(-len(images) // batch_size)
        workers = min(MOST_WORKERS, torch.get_num_threads(), batches) if pinned else 0
    # Forked, since hooks of a model cannot be sent to another process.
    how = "fork" if workers and sys.platform == "linux" else None
    loader = data.DataLoader(
        PixelSet(backbone, images),
        batch_size,
        num_workers=workers,
        pin_memory=pinned,
        multiprocessing_context=how,
    )
    for index, pixels in enumerate(loader):
        yield index * batch_size, pixels
