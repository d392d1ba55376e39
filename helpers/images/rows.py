"""From the rows of a table to ids, labels, boxes and upright RGB pictures.

The table of a large split on the hub is a `Split`, of which only the rows are fetched that are
asked for. ImageNet's training images are 294 Parquet files of half a gigabyte. What names and
labels an image are small columns, which are read of all rows; of the images themselves only the
groups of rows are fetched that hold a chosen one, and only the chosen ones are kept, in the cache
of the `datasets` library.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int32
from PIL import Image, ImageOps

from helpers.extras import extra
from helpers.files import digest_of
from helpers.foreign import one_line, reading

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

ID_COLUMNS = ("id", "image_id", "file_name", "filename", "path", "image_path")
# What is read alike of Arrow's types, by their tests in `pyarrow.types`.
KINDS = {
    "text": ("string", "large_string", "string_view"),
    "bytes": ("binary", "large_binary"),
    "whole number": ("integer",),
    "number": ("floating",),
    "true or false": ("boolean",),
    "nothing": ("null",),
}
# What a column holds where it is there. Of the numbers that are ids only whole ones are taken.
WANTED = dict.fromkeys(ID_COLUMNS, ("text", "whole number", "number")) | {
    "boxes": ("list of list of number", "list of list of whole number"),
}
MASK_COLUMNS = (
    "mask",
    "annotation",
    "segmentation",
)  # of pictures of classes, the first that is there
LIFTED = ID_COLUMNS[-1]  # where the images' own file names stand in `Split.names`
_GENERATES = RLock()  # held while the `datasets` library reads or writes a table
AT_ONCE = 8  # files of a split that are read at a time
# Data sets whose 'bbox' of the column 'objects' holds corners. Elsewhere it may be a corner, width
# and height, and is left.
CORNERS = ("hf:detection-datasets/coco",)


class NoWhite(ValueError):
    """Numbers in a file that are no brightness, as nobody says which of them is white."""


def check_columns(schema: "pa.Schema", name: str) -> None:
    """Raise ValueError where a column of `WANTED` is of another type."""
    for field in schema:
        wanted = WANTED.get(field.name, ())
        # Of what is empty everywhere Arrow knows no type, and it may be anything.
        kind = kind_of(field.type).removesuffix("nothing")
        if wanted and not any(one.startswith(kind) for one in wanted):
            raise ValueError(
                f"the column {field.name!r} of {name!r} holds {one_line(field.type)}, where "
                f"{wanted[0]} is wanted; save it so, or under another name"
            )


def kind_of(type: "pa.DataType") -> str:
    """What a column of this type holds, however much room the type has for it: one of `KINDS`, a
    list of one, or else the type's own name.
    """
    types = extra("pyarrow.types")
    if any(getattr(types, f"is_{test}list")(type) for test in ("", "large_", "fixed_size_")):
        return f"list of {kind_of(type.value_type)}"
    found = (
        kind for kind, tests in KINDS.items() if any(getattr(types, f"is_{t}")(type) for t in tests)
    )
    return next(found, str(type))


def image_column(features: "datasets.Features", name: str) -> str:
    """The column called 'image' or 'img', else the first one that holds images or file bytes."""
    datasets = extra("datasets")

    def holds_images(key: str) -> bool:
        held = schema.field(key).type
        if isinstance(features[key], dict):
            parts = {"path": "text"} | {own.name: kind_of(own.type) for own in held}
            wanted = {"bytes": "bytes", "path": "text"}
            return all(parts.get(key) in (kind, "nothing") for key, kind in wanted.items())
        return isinstance(features[key], datasets.Image) or kind_of(held) == "bytes"

    schema = features.arrow_schema
    columns = list(filter(holds_images, features))
    if not columns:
        told = one_line(", ".join(f"{key} ({schema.field(key).type})" for key in features))
        raise ValueError(
            f"{name!r} has no column of images, as bytes or struct<bytes: binary, path: string>; "
            f"its columns are {told}"
        )
    return next((key for key in ("image", "img") if key in columns), columns[0])


def mask_column(features: "datasets.Features", image: str) -> str | None:
    """The column of class pictures, one of `MASK_COLUMNS`; None where there is none."""
    datasets, schema = extra("datasets"), features.arrow_schema
    for key in MASK_COLUMNS:
        if key in features and key != image:
            picture = isinstance(features[key], datasets.Image)
            if picture or kind_of(schema.field(key).type) == "bytes":
                return key
    return None


def values_of(dataset: "datasets.Dataset", key: str) -> list[Any]:
    """The column of the rows, as values of Python. Raises ValueError where there are none."""
    with reading(f"the column {key!r}", "save it in another type, or leave it out"):
        return dataset.select_columns(key)[:][key]


def _whole(values: Sequence[Any]) -> list[Any]:
    """Values with NaN as None, and with whole numbers as such that were stored as floats.

    So whole numbers are stored by many where one of them is missing.
    """
    values = [None if value != value else value for value in values]
    return [int(x) if isinstance(x, float) and x.is_integer() else x for x in values]


def check_paths(dataset: "datasets.Dataset", image: str, name: str) -> None:
    """Raise ValueError where a table names a file of this machine in place of an image.

    The library's own downloads aside.
    """
    datasets, pc = extra("datasets"), extra("pyarrow.compute")
    column, cache = dataset.data.column(image), Path(datasets.config.HF_DATASETS_CACHE).resolve()
    bytes_, paths = pc.struct_field(column, "bytes"), pc.struct_field(column, "path")
    for path in paths.filter(pc.and_(pc.is_null(bytes_), pc.is_valid(paths))).to_pylist():
        if not (name.startswith("hf:") and Path(path).resolve().is_relative_to(cache)):
            raise ValueError(
                f"{name!r} names the file {path!r} of this machine in place of an image; put the "
                "bytes into the table"
            )


def ids_of(dataset: "datasets.Dataset", image: str) -> list[str]:
    """A name for each row that survives reordering; see `sets.load_images`."""
    if (names := named(dataset, image)) is not None:
        return names
    ids, seen = [], Counter()
    for row in dataset.select_columns(image):
        digest = hashlib.sha1(_file_bytes(row[image])).hexdigest()[:16]
        seen[digest] += 1  # the same image again: number the copies
        ids.append(digest if seen[digest] == 1 else f"{digest}-{seen[digest]}")
    return ids


def named(dataset: "datasets.Dataset", image: str) -> list[str] | None:
    """What the table itself calls each row; None where no column has another name for each."""
    candidates = []
    for key in ID_COLUMNS:
        if key in dataset.features:
            candidates.append(_whole(values_of(dataset, key)))
            if parts := [value for value in candidates[-1] if isinstance(value, float)]:
                raise ValueError(f"{parts[0]} in the column {key!r} is no id; give whole numbers")
    paths = extra("pyarrow.compute").struct_field(dataset.data.column(image), "path").to_pylist()
    if not _absolute(paths):
        candidates.append(paths)
    for values in candidates:
        if None not in values and len(set(values)) == len(values):
            return [str(value) for value in values]
    return None


def _absolute(paths: list[str | None]) -> bool:
    """Whether one of them is absolute, which says where a file lies, and not what it is."""
    return any(path and os.path.isabs(path) for path in paths)


def labels_of(
    dataset: "datasets.Dataset",
) -> tuple[np.ndarray | None, list[str] | None, str | None]:
    """Labels of all rows, class names, and the column they come from.

    (None, None, None) where there is none.
    """
    datasets, kinds = extra("datasets"), {x.name: kind_of(x.type) for x in dataset.data.schema}
    named = [key for key, own in dataset.features.items() if isinstance(own, datasets.ClassLabel)]
    for column in ("label", *named):
        if kinds.get(column) in ("text", "whole number", "number", "true or false"):
            values, names = _whole(values_of(dataset, column)), None
            if not any(isinstance(value, float) for value in values):
                break
    else:
        return None, None, None
    if column in named:
        names = list(dataset.features[column].names)
    elif kinds[column] == "text":
        names = sorted(set(values) - {None})
        values = [None if value is None else names.index(value) for value in values]
    elif kinds.get("name") == "text":
        pairs = set(zip(values, values_of(dataset, "name"), strict=True))
        own = dict(pairs)  # as many as pairs, where each label has one name
        if set(own) == set(range(len(pairs))) and None not in own.values():
            names = [own[label] for label in range(len(own))]
    values = [-1 if value is None else value for value in values]
    most = len(names) - 1 if column in named else np.iinfo(np.int64).max
    if wrong := [value for value in values if not -1 <= value <= most]:
        raise ValueError(
            f"label {wrong[0]} in the column {column!r}: labels count from 0 to {most}, with -1 "
            "for an image without one"
        )
    return np.array(values, dtype=np.int64), names, column


def corners_of(dataset: "datasets.Dataset", name: str) -> list | None:
    """[xmin, ymin, xmax, ymax] of the objects of each row.

    From the column 'boxes', or 'bbox' of the column 'objects' in one of `CORNERS`; None where there
    is neither.
    """
    if "boxes" in dataset.features:
        return values_of(dataset, "boxes")
    if "objects" not in dataset.features or not name.startswith(CORNERS):
        return None
    # A sequence of structures comes as a structure of lists, or as a list of structures, by how the
    # column was declared.
    return [
        own["bbox"] if isinstance(own, dict) else [one["bbox"] for one in own]
        for own in dataset["objects"]
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
        deep = image.mode == "I" and opened.format in ("PPM", "PNG")  # Pillow would clip at 255
        if deep or image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise NoWhite(
                "it holds 32 bits a pixel, of which no white is known; save it with 8 or 16 bits"
            )
        if image.mode == "P":  # a palette's transparency is understood by RGBA only
            image = image.convert("RGBA")
        return image.convert("RGB")


def decode_segments(
    file: dict[str, Any] | None, id: str, size: tuple[int, int]
) -> Int32[np.ndarray, "row column"]:
    """The class of each pixel, from a picture of one number a pixel.

    Of a palette it is the index. The picture has the `size` (width, height) of its image, as it
    stands after its EXIF orientation.

    Raises ValueError where there is none, or it is another one.
    """
    try:
        with Image.open(BytesIO(_file_bytes(file))) as opened:
            classes, mode = np.asarray(opened), opened.mode
    except Exception as error:  # of the kinds of Pillow's errors there is no end
        raise ValueError(
            f"the mask of {id!r} cannot be read ({one_line(error)}); give each image one, as PNG"
        ) from None
    if classes.ndim != 2 or mode == "F":
        raise ValueError(
            f"the mask of {id!r} has colours or fractions ({mode}); save the number of the class "
            "of each pixel, as grey or palette PNG"
        )
    if classes.shape[::-1] != size:
        raise ValueError(
            f"the mask of {id!r} is {classes.shape[1]} x {classes.shape[0]} and its image "
            f"{size[0]} x {size[1]} pixels; save both at one size"
        )
    return classes.astype(np.int32)


def pixel_digest(image: Image.Image) -> str:
    """What identifies a picture, whatever its file: the digest of its size and its pixels."""
    return digest_of(str(image.size).encode() + image.tobytes(), length=32)


@contextmanager
def generating() -> Iterator[None]:
    """Raise what the `datasets` library met while it wrote a table into its cache, and not its own
    error, which has no reason.

    One at a time: its bars share a lock that each call of it makes and deletes, and whether they
    are shown is a switch of the whole process.
    """
    with _GENERATES:
        try:
            yield
        except extra("datasets").exceptions.DatasetGenerationError as error:
            raise error.__cause__ or error from None


def _file_bytes(file: dict[str, Any] | None) -> bytes:
    """The content of an image file as a data set gives it: bytes, a path, or nothing."""
    if file is None or file["bytes"] is file["path"] is None:
        return b""
    return file["bytes"] if file["bytes"] is not None else Path(file["path"]).read_bytes()


# ---- A large split on the hub
# --------------------------------------------------------------------------------------------------


class Split:
    """The rows of some Parquet files, in their order.

    Attributes:
        names: a table of all rows with all that is a number or a text; in place of the images,
            nothing.
    """

    def __init__(self, files: Sequence[str], features: "datasets.Features | None", name: str):
        """`files` as fsspec opens them: 'hf://...' or a path.

        `features` of the data set where they are known.

        Raises ValueError where there is no image column in `name`.
        """
        datasets, pa = extra("datasets"), extra("pyarrow")
        self.files, self.name = list(files), name
        with _parquet(self.files[0]) as first:
            self.features = features or datasets.Features.from_arrow_schema(first.schema_arrow)
        image = image_column(self.features, name)
        kinds = {
            key: kind
            for key, kind in self.features.items()
            if isinstance(kind, datasets.Value | datasets.ClassLabel) and key != image
        }
        parts = list(_together(lambda file: _columns(file, [*kinds, f"{image}.path"]), self.files))
        self._ends = np.cumsum([len(part) for part in parts])
        table = pa.concat_tables(parts)
        paths = pa.nulls(len(table), pa.string())
        if image in table.column_names:  # which a column of bytes alone is not
            paths = extra("pyarrow.compute").struct_field(table.column(image), "path")
        columns = {key: table.column(key) for key in kinds}
        if LIFTED not in columns and not _absolute(paths.to_pylist()):
            columns[LIFTED], kinds[LIFTED] = paths.cast(pa.string()), datasets.Value("string")
        kinds[image] = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
        columns[image] = pa.nulls(
            len(table), pa.struct({"bytes": pa.binary(), "path": pa.string()})
        )
        self.names = datasets.Dataset(
            pa.table(columns), info=datasets.DatasetInfo(features=datasets.Features(kinds))
        )

    def select(self, rows: Sequence[int]) -> "datasets.Dataset":
        """These rows in full, in their order here: fetched, or as they were fetched before."""
        order, parts = np.argsort(rows), []
        ascending = np.asarray(rows)[order]
        file = np.searchsorted(self._ends, ascending, side="right")
        starts = np.concatenate([[0], self._ends])
        for index in np.unique(file).tolist():
            own = ascending[file == index] - starts[index]
            parts.append((self.files[index], own.tolist()))
        with reading(f"the chosen rows of {self.name!r}", "choose another data set"), generating():
            fetched = extra("datasets").Dataset.from_generator(
                _rows, features=self.features, gen_kwargs={"parts": parts}
            )
        return fetched.select(np.argsort(order))


def _rows(parts: Sequence[tuple[str, list[int]]]) -> Iterator[dict[str, Any]]:
    """The rows of each file whose indices there are given, ascending."""
    for table in _together(_chosen, parts):
        yield from table.to_pylist()


def _chosen(part: tuple[str, list[int]]) -> "pa.Table":
    """Rows of one file, of which only the groups are read that hold one of them."""
    path, rows = part
    found, first = [], 0
    with _parquet(path) as file:
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            own = [row - first for row in rows if first <= row < last]
            if own:
                found.append(file.read_row_group(group).take(own))
            first = last
    return extra("pyarrow").concat_tables(found)


def _columns(path: str, columns: list[str]) -> "pa.Table":
    with _parquet(path) as file:
        return file.read(columns=columns).replace_schema_metadata(None)


def _together(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
    """The answers in the order of the items, with at most AT_ONCE of them in memory."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(items), AT_ONCE):
            yield from pool.map(function, items[start : start + AT_ONCE])


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """A Parquet file, here or on the hub, of which no more is read than what is asked for."""
    files, place = extra("fsspec.core").url_to_fs(path)
    with files.open(place, "rb", cache_type="none") as opened:
        yield extra("pyarrow.parquet").ParquetFile(opened, pre_buffer=True)
