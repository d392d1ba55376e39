"""From the rows of a table to ids, labels, boxes, masks and upright RGB pictures."""

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int32
from PIL import Image, ImageOps

from helpers.files import digest_of

if TYPE_CHECKING:  # takes seconds to import, and drawn images need it not
    import datasets

note = partial(warnings.warn, stacklevel=2)
ID_COLUMNS = ("id", "image_id", "file_name", "filename", "path", "image_path")
MASK_COLUMNS = ("mask", "annotation", "segmentation")
# Data sets whose 'bbox' of the column 'objects' holds corners. Elsewhere it may be a corner, width
# and height, and is left.
CORNERS = ("hf:detection-datasets/coco",)


def image_column(features: "datasets.Features", name: str) -> str:
    """The column called 'image' or 'img', else the first one that holds pictures or file bytes."""
    columns = [key for key, kind in features.items() if _holds_files(kind)]
    pictures = [key for key in columns if key not in MASK_COLUMNS]
    if not pictures:
        raise ValueError(f"{name!r} has no column of images; its columns are {dict(features)}")
    image = next((key for key in ("image", "img") if key in pictures), pictures[0])
    if unread := {*columns} - {image, mask_column(features, image)}:
        note(f"{image!r} is read, and not the pictures in {', '.join(sorted(unread))}")
    return image


def mask_column(features: "datasets.Features", image: str) -> str | None:
    """The column of class pictures, the first of `MASK_COLUMNS` that holds files."""
    keys = (key for key in MASK_COLUMNS if key in features and key != image)
    return next((key for key in keys if _holds_files(features[key])), None)


def _holds_files(kind: Any) -> bool:
    import datasets

    if isinstance(kind, dict):
        return _holds_files(kind.get("bytes"))
    binary = isinstance(kind, datasets.Value) and kind.dtype in ("binary", "large_binary")
    return binary or isinstance(kind, datasets.Image)


def ids_of(dataset: "datasets.Dataset", image: str) -> list[str]:
    """A name for each row, from the first of these that differs in every row: a column of
    `ID_COLUMNS`, the name of the file, the SHA-1 of the bytes (numbered where files are equal).
    """
    import pyarrow.compute

    columns = [_whole(dataset[key][:]) for key in ID_COLUMNS if key in dataset.features]
    paths = pyarrow.compute.struct_field(dataset.data.column(image), "path").to_pylist()
    if not any(path and os.path.isabs(path) for path in paths):  # which says where a file lies
        columns.append(paths)
    for values in columns:
        named = all(isinstance(value, str | int) for value in values)
        if named and len(set(values)) == len(values):
            return [str(value) for value in values]
    ids, copies = [], Counter()
    for row in dataset.select_columns(image):
        digest = hashlib.sha1(_content(row[image])).hexdigest()[:16]
        copies[digest] += 1
        ids.append(digest if copies[digest] == 1 else f"{digest}-{copies[digest]}")
    return ids


def id_of(row: dict[str, Any], image: str) -> str:
    """The name of one row, as `ids_of` gives it where the first column of names differs by row."""
    values = [*_whole([row[key] for key in ID_COLUMNS if key in row]), row[image]["path"]]
    if not isinstance(values[0], str | int):
        raise ValueError(f"{values[0]!r} is no name of an image; load the whole data set")
    return str(values[0])


def _whole(values: Sequence[Any]) -> list[Any]:
    """Values with NaN as None, and whole numbers as such that pandas stored as floats."""
    values = [None if value != value else value for value in values]
    return [int(x) if isinstance(x, float) and x.is_integer() else x for x in values]


def labels_of(
    dataset: "datasets.Dataset",
) -> tuple[np.ndarray | None, list[str] | None, str | None]:
    """Labels of all rows, class names, and their column; None for what is not there."""
    import datasets

    kinds = dataset.features
    classed = [key for key, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    for column in (key for key in ("label", *classed) if key in kinds):
        values = _whole(dataset[column][:])
        if all(isinstance(value, str | int | None) for value in values):
            break
    else:
        return None, None, None
    names = None
    if column in classed:
        names = list(kinds[column].names)
    elif any(isinstance(value, str) for value in values):
        names = sorted(set(values) - {None})
        if all(map(str.isdecimal, names)) and names != sorted(names, key=int):
            note(f"the numbers in {column!r} are names, and {names[2]!r} is label 2")
        values = [None if value is None else names.index(value) for value in values]
    elif "name" in kinds:
        pairs = set(zip(values, map(str, dataset["name"][:]), strict=True))
        named = dict(pairs)  # as many as pairs, where each label has one name
        if named.keys() == set(range(len(pairs))):
            names = [named[label] for label in range(len(named))]
    values = [-1 if value is None else value for value in values]
    most = len(names) - 1 if names else np.iinfo(np.int64).max
    if wrong := [value for value in values if not -1 <= value <= most]:
        raise ValueError(
            f"label {wrong[0]} in the column {column!r}; labels count from 0 to {most}"
        )
    return np.array(values, dtype=np.int64), names, column


def boxes_of(
    dataset: "datasets.Dataset", name: str, ids: Sequence[str], sizes: Sequence[tuple[int, int]]
) -> list[Float32[np.ndarray, "object 4"]] | None:
    """The boxes of each row, from the column 'boxes', or 'bbox' of the column 'objects' in one of
    `CORNERS`; None where there is neither. Raises ValueError where they are none in these `sizes`.
    """
    if "boxes" in dataset.features:
        rows = dataset["boxes"][:]
    elif "objects" in dataset.features and name.startswith(CORNERS):
        # A sequence of structures comes as a structure of lists, or as a list of structures.
        rows = [
            row["bbox"] if isinstance(row, dict) else [one["bbox"] for one in row]
            for row in dataset["objects"][:]
        ]
    else:
        return None
    boxes = [_boxes(*one) for one in zip(rows, ids, sizes, strict=True)]
    if any(map(len, boxes)) and (most := max(own.max(initial=0) for own in boxes)) <= 1:
        raise ValueError(f"the boxes of {name!r} reach {most:g} at most; give them in pixels")
    return boxes


def _boxes(corners: list | None, id: str, size: tuple[int, int]) -> Float32[np.ndarray, "object 4"]:
    boxes = []
    for box in corners or ():
        if len(box) == 4 and (box[0] == box[2] or box[1] == box[3]):
            note("a box without an area is left out")
            continue
        ordered = len(box) == 4 and box[0] < box[2] and box[1] < box[3]
        inside = ordered and box[0] < size[0] and box[1] < size[1] and min(box[2:]) > 0
        if not (inside and np.isfinite(box).all()):
            form = f"[xmin, ymin, xmax, ymax] in pixels of the upright {size[0]} x {size[1]}"
            raise ValueError(f"{box} is no box of {id!r}; give {form}")
        if min(box) < -1 or (np.subtract(box[2:], size) > 1).any():
            note("a box reaches beyond its picture")
        boxes.append(box)
    return np.array(boxes or np.empty((0, 4)), dtype=np.float32)


# ---- Pictures


def decode(source: Image.Image | str | os.PathLike | bytes) -> Image.Image:
    """A picture, a path or the bytes of a file as upright 8-bit RGB.

    EXIF orientation is applied, 16 bits are scaled to 8, with a note where they are not filled;
    alpha is dropped, and of several pictures the first is taken, with a note. ValueError for 32
    bits a pixel, since nobody says which of these numbers is white.
    """
    if not isinstance(source, Image.Image):
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as opened:
            return decode(opened)
    if getattr(source, "is_animated", False) and source.format != "MPO" and not source.tell():
        note("of a file of several pictures the first is taken")
    sixteen = ";16" in str(getattr(source, "tile", ""))  # of colours, which Pillow scales itself
    image = ImageOps.exif_transpose(source)
    deep = image.mode == "I" and source.format in ("PPM", "PNG")  # Pillow would clip at 255
    if deep := deep or image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("its numbers have 32 bits or a sign; save it with 8 or 16 bits")
    if image.mode == "P":  # a palette's transparency is understood by RGBA only
        image = image.convert("RGBA")
    image = image.convert("RGB")
    bits = 8 + max(high for _, high in image.getextrema()).bit_length()
    if bits < 15 and (deep or sixteen):
        note(f"nearly black: 16 bits that hold no number above {2**bits - 1} of 65535")
    return image


def decode_row(file: dict[str, Any] | None) -> Image.Image:
    """The picture of a row of a table, {'bytes', 'path'}."""
    return decode(_content(file))


def decode_segments(
    file: dict[str, Any] | None, id: str, size: tuple[int, int]
) -> Int32[np.ndarray, "row column"]:
    """The class of each pixel: its one number, or the index in a palette. ValueError for colours,
    JPEG, several pictures, and another `size` (width, height) than that of the upright image.
    """
    image = opened(file)
    classes = np.asarray(ImageOps.exif_transpose(image))
    lossy = image.format in ("JPEG", "MPO") or getattr(image, "is_animated", False)
    if classes.ndim != 2 or image.mode == "F" or lossy:
        kind = f"{image.format}, {image.mode}"
        raise ValueError(f"the mask of {id!r} holds not one class number a pixel ({kind})")
    if classes.shape[::-1] != size:
        raise ValueError(
            f"the mask of {id!r} is {classes.shape[::-1]}, and its image {size} pixels"
        )
    return classes.astype(np.int32)


def opened(file: dict[str, Any] | None) -> Image.Image:
    """The picture of a row as its file has it."""
    return Image.open(BytesIO(_content(file)))


def pixel_digest(image: Image.Image) -> str:
    """What identifies a picture, whatever its file: the digest of its size and its pixels."""
    return digest_of(str(image.size).encode() + image.tobytes(), length=32)


def _content(file: dict[str, Any] | None) -> bytes:
    """The bytes of an image file of a data set; none of a relative path, which may be another."""
    if file is None or (file["bytes"] is None and not os.path.isabs(file["path"] or "")):
        return b""
    return Path(file["path"]).read_bytes() if file["bytes"] is None else file["bytes"]
