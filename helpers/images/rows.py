"""From the rows of a table to ids, labels, boxes and upright RGB pictures."""

import hashlib
import os
import re
import struct
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32
from PIL import Image, ImageOps

from helpers.extras import extra
from helpers.files import digest_of

if TYPE_CHECKING:
    import datasets

ID_COLUMNS = ("id", "image_id", "file_name", "filename", "path", "image_path")
# Data sets whose 'bbox' of the column 'objects' holds corners. Elsewhere it may be a corner, width
# and height, and is left.
CORNERS = ("hf:detection-datasets/coco",)
UNDECODABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    struct.error,
    Image.DecompressionBombError,
)


class NoWhite(ValueError):
    """Numbers in a file that are no brightness, as nobody says which of them is white."""


def image_column(features: "datasets.Features", name: str) -> str:
    """The column called 'image' or 'img', else the first one that holds images or file bytes."""
    datasets = extra("datasets")

    def holds_images(feature: Any) -> bool:
        file = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
        return isinstance(feature, datasets.Image) or file or feature == datasets.Value("binary")

    columns = [key for key, feature in features.items() if holds_images(feature)]
    if not columns:
        raise ValueError(f"{name!r} has no image column; its columns are {', '.join(features)}")
    return next((key for key in ("image", "img") if key in columns), columns[0])


def check_paths(dataset: "datasets.Dataset", image: str, name: str) -> None:
    """Raise ValueError where a table names a file of this machine in place of an image.

    The library's own downloads aside.
    """
    datasets, pc = extra("datasets"), extra("pyarrow.compute")
    column, cache = dataset.data.column(image), Path(datasets.config.HF_DATASETS_CACHE).resolve()
    named = column.filter(
        pc.and_(
            pc.is_null(pc.struct_field(column, "bytes")),
            pc.is_valid(pc.struct_field(column, "path")),
        )
    )
    for path in pc.struct_field(named, "path").to_pylist():
        if not (name.startswith("hf:") and Path(path).resolve().is_relative_to(cache)):
            raise ValueError(
                f"{name!r} names the file {path!r} of this machine in place of an image; put the "
                "bytes into the table"
            )


def ids_of(dataset: "datasets.Dataset", image: str) -> list[str]:
    """A name for each row that survives reordering; see `sets.load_images`."""
    if (names := named(dataset, image)) is not None:
        return names
    digests = [
        hashlib.sha1(_file_bytes(row[image])).hexdigest()[:16]
        for row in dataset.select_columns(image)
    ]
    seen: dict[str, int] = {}
    for row, digest in enumerate(digests):  # the same image again: number the copies
        seen[digest] = seen.get(digest, 0) + 1
        if seen[digest] > 1:
            digests[row] = f"{digest}-{seen[digest]}"
    return digests


def named(dataset: "datasets.Dataset", image: str) -> list[str] | None:
    """What the table itself calls each row; None where no column has another name for each."""
    pc = extra("pyarrow.compute")
    candidates = [
        dataset.data.column(key).to_pylist() for key in ID_COLUMNS if key in dataset.features
    ]
    paths = pc.struct_field(dataset.data.column(image), "path").to_pylist()
    if not any(
        path and os.path.isabs(path) for path in paths
    ):  # an absolute path says where a file lies, not what it is
        candidates.append(paths)
    for values in candidates:
        if None not in values and len(set(values)) == len(values):
            return [str(value) for value in values]
    return None


def labels_of(
    dataset: "datasets.Dataset",
) -> tuple[np.ndarray | None, list[str] | None, str | None]:
    """Labels of all rows, class names, and the column they come from.

    (None, None, None) where there is none.
    """
    datasets = extra("datasets")
    features = {
        key: feature
        for key, feature in dataset.features.items()
        if isinstance(feature, datasets.Value | datasets.ClassLabel)
    }
    column = next(
        (key for key, feature in features.items() if isinstance(feature, datasets.ClassLabel)), None
    )
    if "label" in features and re.match("u?int|string|bool", features["label"].dtype):
        column = "label"
    if column is None:
        return None, None, None
    values, names = dataset.data.column(column).to_pylist(), None
    if isinstance(features[column], datasets.ClassLabel):
        names = features[column].names
    elif features[column].dtype == "string":
        names = sorted(set(values) - {None})
        values = [None if value is None else names.index(value) for value in values]
    elif "name" in features:
        pairs = dict(zip(values, dataset.data.column("name").to_pylist(), strict=True))
        names = (
            [pairs[label] for label in range(len(pairs))]
            if set(pairs) == set(range(len(pairs)))
            else None
        )
    labels = np.array([-1 if value is None else value for value in values], dtype=np.int64)
    if labels.min() < -1:
        raise ValueError(
            f"label {labels.min()} in the column {column!r}: labels count from 0, with -1 for an "
            "image without one"
        )
    return labels, names, column


def corners_of(dataset: "datasets.Dataset", name: str) -> list | None:
    """[xmin, ymin, xmax, ymax] of the objects of each row.

    From the column 'boxes', or 'bbox' of the column 'objects' in one of `CORNERS`; None where there
    is neither.
    """
    if "boxes" in dataset.features:
        return list(dataset["boxes"])
    if "objects" not in dataset.features or not name.startswith(CORNERS):
        return None
    # A sequence of structures comes as a structure of lists, or as a list of structures, by how the
    # column was declared.
    return [
        x["bbox"] if isinstance(x, dict) else [one["bbox"] for one in x] for x in dataset["objects"]
    ]


def boxes_of(corners: list | None, id: str) -> Float32[np.ndarray, "object 4"]:
    """The boxes of one image. Raises ValueError where they are none."""
    if shapes := {np.shape(box) for box in corners or ()} - {(4,)}:
        wrong = f"hold something of shape {min(shapes)}"
    else:
        boxes = np.array(corners or np.empty((0, 4)), dtype=np.float32)
        bad = boxes[~(np.isfinite(boxes).all(axis=1) & (boxes[:, :2] <= boxes[:, 2:]).all(axis=1))]
        if not len(bad):
            return boxes
        wrong = f"hold {bad[0].tolist()}"
    raise ValueError(
        f"the boxes of {id!r} {wrong}; give [xmin, ymin, xmax, ymax] in pixels for each object"
    )


def decode(file: dict[str, Any] | None) -> Image.Image:
    """An image file as upright 8-bit RGB."""
    with Image.open(BytesIO(_file_bytes(file))) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16") or (
            image.mode == "I" and opened.format in ("PPM", "PNG")
        ):  # Pillow would clip at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise NoWhite(
                "it holds 32 bits a pixel, of which no white is known; save it with 8 or 16 bits"
            )
        if image.mode == "P":  # a palette's transparency is understood by RGBA only
            image = image.convert("RGBA")
        return image.convert("RGB")


def pixel_digest(image: Image.Image) -> str:
    """What identifies a picture, whatever its file: the digest of its size and its pixels."""
    return digest_of(str(image.size).encode() + image.tobytes(), length=32)


def _file_bytes(file: dict[str, Any] | None) -> bytes:
    """The content of an image file as a data set gives it: bytes, a path, or nothing."""
    if file is None or file["bytes"] is file["path"] is None:
        return b""
    return file["bytes"] if file["bytes"] is not None else Path(file["path"]).read_bytes()
