"""From the rows of a table to ids, labels, boxes, masks and upright RGB pictures."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int32
from PIL import Image, ImageOps

from helpers.files import digest_of

if TYPE_CHECKING:  # takes seconds to import, and drawn images need it not
    import datasets

ID_COLUMNS = ("id", "image_id", "file_name", "filename", "path", "image_path")
MASK_COLUMNS = ("mask", "annotation", "segmentation")
# Data sets whose 'bbox' of the column 'objects' holds corners. Elsewhere it may be a corner, width
# and height, and is left.
CORNERS = ("hf:detection-datasets/coco",)


def image_column(features: "datasets.Features", name: str) -> str:
    """The column called 'image' or 'img', else the first one that holds pictures or file bytes."""
    columns = [key for key, kind in features.items() if _holds_files(kind)]
    if not columns:
        raise ValueError(f"{name!r} has no column of images; its columns are {dict(features)}")
    return next((key for key in ("image", "img") if key in columns), columns[0])


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
    """A name for each row that survives reordering: of the first column of `ID_COLUMNS`, else the
    file's own name, where these differ in every row; else from the SHA-1 of the bytes.
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
    """The name of one row by its first column of names, as `ids_of` where each row has another."""
    values = [*_whole([row[key] for key in ID_COLUMNS if key in row]), row[image]["path"]]
    if not isinstance(values[0], str | int):
        raise ValueError(f"{values[0]!r} is no name of an image; load the whole data set")
    return str(values[0])


def _whole(values: Sequence[Any]) -> list[Any]:
    """Values with NaN as None, and whole numbers as such that were stored as floats, as pandas does
    where one of them is missing.
    """
    values = [None if value != value else value for value in values]
    return [int(x) if isinstance(x, float) and x.is_integer() else x for x in values]


def labels_of(
    dataset: "datasets.Dataset",
) -> tuple[np.ndarray | None, list[str] | None, str | None]:
    """Labels of all rows, class names, and the column they come from; None for what is not there.

    Raises ValueError for a label below -1 or beyond the class names.
    """
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
    dataset: "datasets.Dataset", name: str, ids: Sequence[str]
) -> list[Float32[np.ndarray, "object 4"]] | None:
    """The boxes of each row, from the column 'boxes', or 'bbox' of the column 'objects' in one of
    `CORNERS`; None where there is neither. Raises ValueError where a box is none.
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
    return [_boxes(corners, id) for corners, id in zip(rows, ids, strict=True)]


def _boxes(corners: list | None, id: str) -> Float32[np.ndarray, "object 4"]:
    for box in corners or ():
        ordered = len(box) == 4 and box[0] <= box[2] and box[1] <= box[3]
        if not (ordered and np.isfinite(box).all()):
            raise ValueError(f"{box} is no box of {id!r}; give [xmin, ymin, xmax, ymax] in pixels")
    return np.array(corners or np.empty((0, 4)), dtype=np.float32)


# ---- Pictures


def decode(source: Image.Image | str | os.PathLike | bytes) -> Image.Image:
    """A picture, a path or the bytes of a file as upright 8-bit RGB.

    EXIF orientation is applied, 16 bits are scaled to 8, alpha is dropped.
    Raises ValueError for 32 bits a pixel, since nobody says which of these numbers is white.
    """
    if not isinstance(source, Image.Image):
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as opened:
            return decode(opened)
    image = ImageOps.exif_transpose(source)
    deep = image.mode == "I" and source.format in ("PPM", "PNG")  # Pillow would clip at 255
    if deep or image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("it has 32 bits a pixel; save it with 8 or 16 bits")
    if image.mode == "P":  # a palette's transparency is understood by RGBA only
        image = image.convert("RGBA")
    return image.convert("RGB")


def decode_row(file: dict[str, Any] | None) -> Image.Image:
    """The picture of a row of a table, {'bytes', 'path'}."""
    return decode(_content(file))


def decode_segments(
    file: dict[str, Any] | None, id: str, size: tuple[int, int]
) -> Int32[np.ndarray, "row column"]:
    """The class of each pixel, from a picture of one number a pixel; of a palette it is the index.

    Raises ValueError for colours, and for another `size` (width, height) than that of the upright
    image.
    """
    with Image.open(BytesIO(_content(file))) as opened:
        classes, mode = np.asarray(opened), opened.mode
    if classes.ndim != 2 or mode == "F":
        raise ValueError(f"the mask of {id!r} has colours or fractions ({mode}), not class numbers")
    if classes.shape[::-1] != size:
        raise ValueError(
            f"the mask of {id!r} is {classes.shape[::-1]}, and its image {size} pixels"
        )
    return classes.astype(np.int32)


def pixel_digest(image: Image.Image) -> str:
    """What identifies a picture, whatever its file: the digest of its size and its pixels."""
    return digest_of(str(image.size).encode() + image.tobytes(), length=32)


def _content(file: dict[str, Any] | None) -> bytes:
    """The content of an image file as a data set gives it: bytes, an absolute path, or nothing.

    A relative path would be another file in another folder.
    """
    if file is None or (file["bytes"] is None and not os.path.isabs(file["path"] or "")):
        return b""
    return Path(file["path"]).read_bytes() if file["bytes"] is None else file["bytes"]
