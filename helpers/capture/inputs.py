"""Images as a model takes them, and one sentence for what are none."""

import os
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.datasets import DatasetFolder

from helpers.images import Images
from helpers.models import Backbone

MOST_WORKERS = 16  # processes that load images for one GPU, unless given
MOST_PIXEL = 50  # normalised pixels are within some units of zero, raw ones reach 255
NAMES = ("pixel_values", "image", "img")  # of the image in an item that is a dictionary
FORMS = (
    "a list of PIL images, paths or uint8 arrays, pixels (image, 3, height, width), or "
    "load_images('folder:PATH', n)"
)


def as_images(images: Any) -> Any:
    """`images` as something that has a length and an item for each index.

    Raises ValueError where it is no such thing, in one sentence.
    """
    if isinstance(images, DataLoader):
        images = images.dataset
    shape = getattr(images, "shape", ())
    listed = hasattr(images, "__len__") and hasattr(images, "__getitem__")
    if not listed or isinstance(images, str | dict | IterableDataset) or len(shape) in (2, 3):
        what = f"of shape {tuple(shape)}" if shape else reprlib.repr(images)
        raise ValueError(f"images are one {type(images).__name__}, {what}; give {FORMS}")
    return images


def check_pixels(backbone: Backbone, pixels: Tensor) -> None:
    """Raise ValueError for pixels of another size than the model takes, or none that are
    normalised.
    """
    wanted = (3, *backbone.image_size)
    if tuple(pixels.shape[1:]) != wanted:
        raise ValueError(
            f"pixels {tuple(pixels.shape[1:])} do not fit {wanted} of '{backbone.name}'; resize "
            "them, or load it with their image_size (a multiple of its patch size "
            f"{backbone.patch_size})"
        )
    if not pixels.is_floating_point():
        raise ValueError(
            f"pixels of type {pixels.dtype}; capture takes normalised floats, or PIL images to "
            "normalise by itself"
        )
    _check_normalised(pixels)


def _check_normalised(pixels: Tensor) -> None:
    low, high = pixels.amin(), pixels.amax()  # `aminmax` copies what is not contiguous
    if (reach := max(-low, high)) > MOST_PIXEL:
        raise ValueError(
            f"pixels reach {reach:.4g}; give them normalised as the model was trained, or PIL "
            "images to normalise by itself"
        )


class PixelSet(Dataset):
    """The items of a list or a data set as a model takes them.

    With another `preprocess` pictures become what it makes of them; pixels stay as they are.
    """

    def __init__(
        self,
        backbone: Backbone,
        images: Any,
        preprocess: Callable[[Image.Image], Any] | None = None,
    ):
        self.preprocess = preprocess or backbone.preprocess
        self.images, self.size = images, backbone.image_size

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Float[Tensor, "3 height width"] | Image.Image:
        """Raises ValueError where the item is no image."""
        item, wanted = self.images[index], (3, *self.size)
        if isinstance(item, Mapping):  # as rows of the library datasets are
            item = next((item[key] for key in NAMES if key in item), item)
        if isinstance(item, tuple | list) and item:  # an image and its label
            item = item[0]
        if isinstance(item, str | os.PathLike):
            try:
                with Image.open(item) as image:
                    return self.preprocess(image)
            except (OSError, SyntaxError) as error:
                reason = " ".join(str(error).split())
                raise ValueError(
                    f"image {index}, {os.fspath(item)!r}, cannot be read ({reason}); correct the "
                    "path, or leave it out"
                ) from None
        if isinstance(item, Image.Image):
            return self.preprocess(item)
        shape, dtype = tuple(getattr(item, "shape", ())), getattr(item, "dtype", None)
        if isinstance(item, Tensor) and item.is_floating_point() and shape == wanted:
            _check_normalised(item)
            return item.to(torch.float32)
        colours = shape[2:] in ((), (1,), (3,), (4,))
        if isinstance(item, np.ndarray) and dtype == np.uint8 and item.ndim > 1 and colours:
            return self.preprocess(Image.fromarray(item.squeeze(2) if shape[2:] == (1,) else item))
        what = f" {shape} of {dtype}" if dtype else ""
        raise ValueError(
            f"image {index} is a {type(item).__name__}{what}; give a PIL image, a path, an array "
            f"(height, width, 3) or (height, width) of uint8, or normalised pixels {wanted}"
        )


def images_of(backbone: Backbone, images: Any) -> Images:
    """What `capture` takes, as Images: of pictures these, of pixels that are ready for the model
    (3, height, width) themselves.

    An image is called by its path below the folder of torchvision's ImageFolder, by the name of its
    file in a list of paths, and else by its number. Labels are those of an ImageFolder.

    Raises ValueError where they are no images, and where one that is read is none.
    """
    if isinstance(images, Images):
        return images
    images, labels, classes, ids = as_images(images), None, None, []
    if isinstance(images, DatasetFolder):
        ids = [Path(path).relative_to(images.root).as_posix() for path, _ in images.samples]
        labels, classes = np.array(images.targets, dtype=np.int64), [*images.classes]
    elif isinstance(images, list | tuple) and all(isinstance(x, str | Path) for x in images):
        ids = [Path(path).name for path in images]
    if len({*ids}) < len(images):
        ids = [str(index) for index in range(len(images))]
    read = PixelSet(backbone, images, lambda image: image.convert("RGB")).__getitem__
    return Images(type(images).__name__, ids, read, labels, classes)


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
    items = PixelSet(backbone, images)
    # Forked, since hooks of a model cannot be sent to another process; a notebook's kernel, and
    # Python from 3.14 on, would send it.
    how = "fork" if workers and sys.platform == "linux" else None
    loader = DataLoader(
        items, batch_size, num_workers=workers, pin_memory=pinned, multiprocessing_context=how
    )
    try:
        for index, pixels in enumerate(loader):
            yield index * batch_size, pixels
    except RuntimeError as error:
        # Torch says the first where it waits for the process, the second where the signal comes
        # before.
        if not any(said in str(error) for said in ("exited unexpectedly", "is killed by signal")):
            raise
        raise RuntimeError(
            f"one of {workers} processes that load images died (was it killed, or out of memory?); "
            "take fewer workers, or 0 to load in this process"
        ) from None
