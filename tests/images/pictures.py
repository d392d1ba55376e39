"""Small pictures that can be told apart, and files of them."""

import io
import os

import datasets
import numpy as np
import pytest
from PIL import Image

from helpers.images import load_images

real_data = pytest.mark.skipif(
    "REGISTERS_DATA" not in os.environ, reason="REGISTERS_DATA does not name a folder of data sets"
)


def picture(value: int, size: tuple[int, int] = (12, 8)) -> Image.Image:
    """A picture that its top left pixel tells apart."""
    pixels = np.full((size[1], size[0], 3), 90, dtype=np.uint8)
    pixels[0, 0] = value
    return Image.fromarray(pixels)


def png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def table(rows, **columns):
    """A data set with one picture for each of `rows`, without file names."""
    return datasets.Dataset.from_dict(
        {"image": [{"bytes": png(picture(row)), "path": None} for row in rows]} | columns
    )


def write(path, dataset):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # the library takes some paths for addresses
        dataset.to_parquet(file)
    return f"parquet:{path}"


def values(images):
    return [image.getpixel((0, 0))[0] for image in images]


def numbered(tmp_path, file, rows, **columns):
    """Images whose top left pixel is their row, all of them, in the order of their digests."""
    return load_images(
        write(tmp_path / file, table(rows, id=[f"image-{row}" for row in rows], **columns))
    )
