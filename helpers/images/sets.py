"""Images by name: embedded scenes and photographs, Hugging Face data sets, local parquet files and folders; corruptions.

`load_images` turns a name into an `Images`, a sequence of PIL RGB images that are decoded when they are asked for, with
whatever ground truth the data set carries. Apart from the scenes every source is a `datasets.Dataset`, so there is one way
from rows to images. `load_train_test` loads two sets that share no image, to learn on one and to test on the other.
"""

import difflib
import hashlib
import math
import os
import re
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from io import BytesIO
from itertools import zip_longest
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Float32, Int64
from PIL import Image, ImageChops, ImageOps, ImageStat
from torchvision.transforms import v2

from helpers.images.scenes import CLASS_NAMES, draw_scene, scene_label

_FORMS = {
    "scenes": "scenes",
    "photographs": "photographs",
    "hf": "hf:OWNER/NAME/SPLIT",
    "data": "data:NAME/SPLIT",
    "folder": "folder:PATH",
    "parquet": "parquet:PATH",
}
# The photographs among the images that scikit-image installs with itself (the others are drawings, logos and test patterns).
_PHOTOGRAPHS = (
    "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png",
    "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png", "microaneurysms.png", "moon.png", "motorcycle_left.png",
    "page.png", "retina.jpg", "rocket.jpg", "text.png",
)  # fmt: skip
# What a reader without the local folder can take from the hub in its place: the same images, or the nearest.
ON_THE_HUB = {
    "data:imagenet-1per-class/train": "hf:ILSVRC/imagenet-1k/train",
    "data:imagenet-1per-class/validation": "hf:ILSVRC/imagenet-1k/validation",
    "data:cifar10-jpeg/train": "hf:uoft-cs/cifar10/train",
    "data:cifar10-jpeg/test": "hf:uoft-cs/cifar10/test",
    "data:photos-with-boxes/validation": "hf:detection-datasets/coco/val",
}
SCENES_KEPT = 1024  # drawn scenes in memory, 150 kB each
_ID_COLUMNS = ("id", "image_id", "file_name", "filename", "path", "image_path")
# Strength for severity 1 to 5. All but occlusion: Hendrycks and Dietterich 2019 (ImageNet-C), as in their code.
_SEVERITIES = {
    "gaussian-noise": (0.08, 0.12, 0.18, 0.26, 0.38),  # standard deviation, of pixels in [0, 1]
    "blur": (1, 2, 3, 4, 6),  # standard deviation of the Gaussian, in pixels
    "jpeg": (25, 18, 15, 10, 7),  # quality
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),  # factor
    "occlusion": (0.1, 0.2, 0.3, 0.4, 0.5),  # share of the area under one grey rectangle
}
_CHANGES = ("constant", "noise", "rolled", "padded", "flipped", "cropped")
_GREY = 128  # of the frame of a padded image
_UNDECODABLE = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)


class _NoWhite(ValueError):
    """Numbers in a file that are no brightness, as nobody says which of them is white."""


@dataclass(frozen=True, repr=False, eq=False)
class Images(Sequence[Image.Image]):
    """A sequence of PIL RGB images with ground truth, one entry per image in the same order everywhere.

    An image is read and decoded each time it is asked for: EXIF orientation applied, grey, palette, CMYK and 16-bit images made
    8-bit RGB, alpha dropped. A slice is the Images of its indices, as `select` gives them.

    Attributes:
        name: the name it was loaded by, with '+KIND:SEVERITY' for each corruption and '+KIND' for each change; 'A and B' for two
            sets joined.
        ids: a stable name per image.
        read: index -> image.
        labels: class per image, -1 where the data set has none for it; None for data sets without labels.
        class_names: name per label.
        boxes: per image (objects, 4) xmin, ymin, xmax, ymax in pixels (0-based, xmax - xmin is the width).
        masks: per image (objects, height, width) bool.
        columns: the data set's other columns, one value per image.
        seed: of the choice of images (scenes: of the drawing).
        skipped: ids of chosen images that do not decode and were left out.
        contents: what tells the pictures apart as they were loaded, before any corruption or change: digests of their pixels;
            None where nobody looked at them.
    """

    name: str
    ids: list[str]
    read: Callable[[int], Image.Image]
    labels: Int64[np.ndarray, " image"] | None = None
    class_names: list[str] | None = None
    boxes: Sequence[np.ndarray] | None = None
    masks: Sequence[np.ndarray] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    seed: int = 0
    skipped: list[str] = field(default_factory=list)
    contents: list[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int | slice) -> "Image.Image | Images":
        return self.select(range(len(self))[index]) if isinstance(index, slice) else self.read(range(len(self))[index])

    def __repr__(self) -> str:
        return f"Images({self.name!r}, {len(self)} images, seed {self.seed}, digest {self.digest})"

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 over name and ids, in order."""
        return hashlib.sha256("\n".join([self.name, *self.ids]).encode()).hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """Name, number, seed, digest, skipped ids and the nearest data set on the hub, for the provenance of a result."""
        return {
            "name": self.name,
            "n": len(self),
            "seed": self.seed,
            "digest": self.digest,
            "skipped": list(self.skipped),
            "hub": ON_THE_HUB.get(self.name.partition("+")[0]),
        }

    def corrupted(self, kind: str, severity: int) -> "Images":
        """The same images, each corrupted when it is read, at its own resolution and in the same way every time.

        Args:
            kind: 'gaussian-noise', 'blur', 'jpeg', 'contrast' or 'occlusion'.
            severity: 1 (weakest) to 5; strengths as in ImageNet-C (Hendrycks and Dietterich 2019), occlusion 10 to 50 % of
                the area.

        Raises:
            ValueError: unknown kind or severity.
        """
        if kind not in _SEVERITIES:
            nearest = _nearest(kind, _SEVERITIES)
            raise ValueError(f"unknown corruption {kind!r}; did you mean {nearest!r}? Known: {', '.join(_SEVERITIES)}")
        if severity not in range(1, 6):
            raise ValueError(f"severity {severity!r} of {kind!r} is not one of 1, 2, 3, 4, 5")

        def read(index: int) -> Image.Image:
            return _corrupt(self[index], kind, severity, key=f"{self.seed}:{self.ids[index]}:{kind}:{severity}")

        return replace(self, name=f"{self.name}+{kind}:{severity}", read=read)

    def changed(self, kind: str) -> "Images":
        """The same images with their content taken away or moved when they are read, each at its own resolution.

        What stays where it was in spite of that, was put there by position.

        Boxes and masks are left out, since they would say where things were.

        Args:
            kind: 'constant' (the picture's mean grey everywhere), 'noise' (every pixel drawn on its own, uniformly), 'rolled' (by
                half of both sides, so that the corners meet in the centre), 'padded' (half as large, in a grey frame), 'flipped'
                (left to right) or 'cropped' (the centre, half of each side, enlarged).

        Raises:
            ValueError: unknown kind.
        """
        if kind not in _CHANGES:
            raise ValueError(f"unknown change {kind!r}; did you mean {_nearest(kind, _CHANGES)!r}? Known: {', '.join(_CHANGES)}")

        def read(index: int) -> Image.Image:
            return _change(self[index], kind, key=f"{self.seed}:{self.ids[index]}:{kind}")

        return replace(self, name=f"{self.name}+{kind}", read=read, boxes=None, masks=None)

    def select(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> "Images":
        """The images at `indices`, in that order and with their ground truth; nothing is decoded here.

        Args:
            indices: indices, or one bool per image (True is kept).

        Raises:
            ValueError: an index that is none, or a mask of another length.
        """
        index = np.asarray(indices)
        if index.size == 0 and index.dtype != bool:
            index = index.astype(np.int64)  # an empty list has no integers to tell its type by
        try:
            kept = np.arange(len(self))[index].tolist()
        except IndexError as error:
            raise ValueError(f"cannot select from {len(self)} images of {self.name!r}: {error}") from None
        return replace(
            self,
            ids=[self.ids[index] for index in kept],
            read=_at(self, kept).__getitem__,
            labels=None if self.labels is None else self.labels[kept],
            boxes=None if self.boxes is None else _at(self.boxes, kept),
            masks=None if self.masks is None else _at(self.masks, kept),
            columns={key: [values[index] for index in kept] for key, values in self.columns.items()},
            contents=None if self.contents is None else [self.contents[index] for index in kept],
        )

    def __add__(self, other: "Images") -> "Images":
        """The images of both, one set after the other; class names, boxes, masks and columns where both have them.

        Raises:
            ValueError: only one of them has labels, their classes differ, or they were chosen with different seeds.
        """
        both = f"{self.name!r} and {other.name!r}"
        if (self.labels is None) != (other.labels is None):
            raise ValueError(f"only one of {both} has labels; join two sets that both have them, or neither")
        _check_classes(self, other)
        if self.seed != other.seed:
            raise ValueError(f"{both} were chosen with the seeds {self.seed} and {other.seed}; load both with the same seed")
        return Images(
            name=self.name if self.name == other.name else f"{self.name} and {other.name}",
            ids=[*self.ids, *other.ids],
            read=_joined(self, other).__getitem__,
            labels=None if self.labels is None else np.concatenate([self.labels, other.labels]),
            class_names=self.class_names and other.class_names,
            boxes=None if self.boxes is None or other.boxes is None else _joined(self.boxes, other.boxes),
            masks=None if self.masks is None or other.masks is None else _joined(self.masks, other.masks),
            columns={key: [*self.columns[key], *other.columns[key]] for key in self.columns if key in other.columns},
            seed=self.seed,
            skipped=list(dict.fromkeys([*self.skipped, *other.skipped])),
            contents=None if self.contents is None or other.contents is None else [*self.contents, *other.contents],
        )

    def require_labels(self) -> Int64[np.ndarray, " image"]:
        """The labels, for what cannot do without one for each image.

        Raises:
            ValueError: no labels, a column 'label' that holds none, or images without one.
        """
        if self.labels is None and (others := [value for value in self.columns.get("label", ()) if value is not None]):
            held = {list: "lists", float: "numbers with a fraction"}.get(type(others[0]), "no labels")
            raise ValueError(
                f"the column 'label' of {self.name!r} holds {held}, such as {others[0]!r}; give whole numbers from 0, or text"
            )
        if self.labels is None:
            raise ValueError(f"data set {self.name!r} has no labels; choose one that has them, such as 'scenes'")
        missing = np.flatnonzero(self.labels == -1)
        if len(missing):
            raise ValueError(
                f"data set {self.name!r} has no labels for {len(missing)} of {len(self)} images, such as "
                f"{self.ids[missing[0]]!r}; leave them out with images.select(images.labels >= 0), or choose another data set"
            )
        return self.labels

    @cached_property
    def relative_boxes(self) -> list[np.ndarray]:
        """Per image (objects, 4) float32 xmin, ymin, xmax, ymax in [0, 1] of the picture's width and height.

        What lies outside the picture is cut off. The first use decodes every image for its size.

        Raises:
            ValueError: no boxes.
        """
        if self.boxes is None:
            raise ValueError(f"data set {self.name!r} has no boxes; choose one that has them, such as 'scenes'")
        pairs = zip(self, self.boxes, strict=True)
        return [(boxes / np.float32([*image.size, *image.size])).clip(0, 1) for image, boxes in pairs]


def check_name(name: str) -> None:
    """Raise ValueError, with the nearest form, where `name` is not one that `load_images` understands. Touches no file."""
    kind, _, rest = name.partition(":")
    known = name in ("scenes", "photographs") or (kind in ("hf", "folder", "parquet") and rest)
    if known or (kind == "data" and re.fullmatch(r"(?!\.)[^/*?[\]]+/[^/*?[\]]+", rest)):
        return
    nearest = _FORMS[_nearest(kind, _FORMS)]
    raise ValueError(f"unknown data set {name!r}; did you mean {nearest!r}? Known: {', '.join(_FORMS.values())}")


def require(name: str) -> None:
    """Raise FileNotFoundError where the local files of data set `name` are not there. None is read, and no hub is asked."""
    kind, _, rest = name.partition(":")
    if kind == "folder" and not Path(rest).is_dir():
        raise FileNotFoundError(f"there is no folder {rest!r}")
    if kind == "parquet" and not Path(rest).exists():
        raise FileNotFoundError(f"there is no parquet file {rest!r}")
    if kind == "data":
        _data_files(rest)


def load_images(name: str, n: int | None = None, seed: int = 0) -> Images:
    """Load `n` images of the data set `name` (all where n is None).

    The images are the `n` with the smallest sha256('SEED:ID'), in that order: the choice does not depend on how the data set
    lists them, and a smaller choice is the beginning of a larger one. Each is decoded once here; those that fail are left out.

    The id of an image is its path below the folder; in a table, the first column of `_ID_COLUMNS` or else the image's own
    file name, where that is given and different in every row; else the first 16 hex digits of the SHA-1 of its bytes.
    Boxes come from a column 'boxes', labels from the column 'label' (whole numbers, text, or true and false) or else the first of
    type `ClassLabel`; class names from that type, the labels themselves (text), or a column 'name'.

    Args:
        name: 'scenes' (endless, so it needs n), 'photographs' (those that scikit-image carries), 'hf:OWNER/NAME/SPLIT' (without
            SPLIT: validation, else test, else train), 'data:NAME/SPLIT' (NAME/SPLIT.parquet, or its shards
            NAME/SPLIT-*.parquet, in the folder that the environment variable REGISTERS_DATA names), 'folder:PATH' (all images
            below; where all lie in subfolders, these are the classes), or 'parquet:PATH' (a file, or a folder of them).
        n: number of images.
        seed: of the choice; for scenes, of the drawing.

    Raises:
        ValueError: unknown name, n below 1 or above the size of the set, no images, more than 1 % of the chosen ones undecodable,
            boxes that are none, a label below -1.
        FileNotFoundError: folder, file, or hub data set that cannot be had; REGISTERS_DATA not set.
    """
    check_name(name)
    if n is not None and n < 1:
        raise ValueError(f"n = {n} images of {name!r}: n must be at least 1")
    kind, _, rest = name.partition(":")
    if kind == "scenes":
        return _scenes(n, seed)
    sources = {"photographs": _photographs, "hf": _from_hub, "data": _from_data, "folder": _from_folder, "parquet": _from_parquet}
    return _choose(sources[kind](rest), name, n, seed)


def load_train_test(train: str, test: str, n_train: int, n: int, seed: int = 0, by: str | None = None) -> tuple[Images, Images]:
    """Load images to learn on and images to test on: two sets that share no picture, every image with a label.

    Two images are the same picture where all their pixels are, whatever their names and files.

    Where both names are the same, one choice of n_train + n images is divided: the first n_train are for training, and copies of
    a picture stay with the first of them. With `by` whole groups of images stay together; the groups are taken in a seeded order,
    and the cut is where the number of training images comes nearest to n_train. Two data sets are each loaded with the seed.
    Images that do not decode are missing from their set (from the test set, where one choice is divided).

    Args:
        train, test: names as for `load_images`.
        n_train, n: numbers of training and test images.
        seed: of the choice.
        by: a column whose values must not lie in both sets, such as 'patient'.

    Raises:
        ValueError: what `load_images` refuses; n_train or n below 1; images without labels; different classes; no such column,
            a row without a value in it, or a value in both data sets; one group only; the same picture in both data sets, or
            under two values of `by`.
        FileNotFoundError: as `load_images`.
    """
    if min(n_train, n) < 1:
        raise ValueError(f"n_train = {n_train} and n = {n} images of {train!r} and {test!r}: both must be at least 1")
    if train == test:
        images = load_images(train, n_train + n, seed)
        images.require_labels()
        in_train = _first_groups(images, by, n_train)
        return images.select(in_train), images.select(~in_train)

    learnt, tested = load_images(train, n_train, seed), load_images(test, n, seed)
    for images in (learnt, tested):
        images.require_labels()
    _check_classes(learnt, tested)
    there = set(tested.contents)
    if same := [id for id, content in zip(learnt.ids, learnt.contents, strict=True) if content in there]:
        raise ValueError(f"{len(same)} images lie in both {train!r} and {test!r}, such as {min(same)!r}; give one name for both")
    if by is not None and (groups := set(_groups(learnt, by)) & set(_groups(tested, by))):
        raise ValueError(f"{by} {min(groups)!r} lies in both {train!r} and {test!r}; choose data sets that share no {by}")
    return learnt, tested


def _first_groups(images: Images, by: str | None, n: int) -> Bool[np.ndarray, " image"]:
    """True for about the first `n` images, whole groups of the column `by` in a seeded order; neither side is empty."""
    first: dict[str, int] = {}  # of each picture
    copied = [first.setdefault(content, index) for index, content in enumerate(images.contents)]
    group = np.unique(copied, return_inverse=True)[1]
    if by is not None:
        values = _groups(images, by)
        for index, original in enumerate(copied):
            if values[index] != values[original]:
                raise ValueError(
                    f"{images.name!r} has the same picture as {images.ids[original]!r} and {images.ids[index]!r} with different "
                    f"values of {by!r}; remove one of them, or choose another column"
                )
        hashes = [hashlib.sha256(f"{images.seed}:{value}".encode()).hexdigest() for value in values]
        group = np.unique(hashes, return_inverse=True)[1]
    ends = np.bincount(group).cumsum()  # the number of images in the first 1, 2, ... groups
    if len(ends) < 2:
        raise ValueError(f"the {len(images)} images of {images.name!r} are one group by {by!r}; ask for more, or leave out 'by'")
    return group <= np.abs(ends[:-1] - n).argmin()


def _groups(images: Images, by: str) -> list[str]:
    """The value of the column `by` for each image."""
    if by not in images.columns:
        known = ", ".join(images.columns) or "none"
        raise ValueError(f"{images.name!r} has no column {by!r} to divide by; its columns: {known}")
    values = images.columns[by]
    if None in values:
        raise ValueError(f"{images.name!r} has no {by!r} for {values.count(None)} of {len(images)} images; choose another column")
    return [str(value) for value in values]


def _check_classes(first: Images, second: Images) -> None:
    """Raise ValueError where both sets name their classes, and not alike."""
    if first.class_names and second.class_names and first.class_names != second.class_names:
        pairs = zip_longest(first.class_names, second.class_names)
        label, (one, other) = next((label, pair) for label, pair in enumerate(pairs) if pair[0] != pair[1])
        raise ValueError(
            f"{first.name!r} and {second.name!r} have different classes (label {label}: {one!r} and {other!r}); "
            "choose two with the same"
        )


class _Lazy(Sequence):
    """`length` values that are computed when they are asked for."""

    def __init__(self, length: int, compute: Callable[[int], Any]):
        self.length, self.compute = length, compute

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int | slice) -> Any:
        return _at(self, range(self.length)[index]) if isinstance(index, slice) else self.compute(range(self.length)[index])


def _at(values: Sequence, kept: Sequence[int]) -> _Lazy:
    return _Lazy(len(kept), lambda index: values[kept[index]])


def _joined(first: Sequence, second: Sequence) -> _Lazy:
    def compute(index: int) -> Any:
        return first[index] if index < len(first) else second[index - len(first)]

    return _Lazy(len(first) + len(second), compute)


def _scenes(n: int | None, seed: int) -> Images:
    if n is None:
        raise ValueError("'scenes' has no end; give the number of images n")
    ids = [f"scene-{seed}-{index:05d}" for index in range(n)]
    return Images(
        name="scenes",
        ids=ids,
        # Models are run one after another over the same scenes; drawing one takes as long as a small model.
        read=lru_cache(SCENES_KEPT)(lambda index: Image.fromarray(draw_scene(seed, index).pixels)),
        labels=np.array([scene_label(seed, index) for index in range(n)], dtype=np.int64),
        class_names=CLASS_NAMES,
        boxes=_Lazy(n, lambda index: draw_scene(seed, index).boxes),
        masks=_Lazy(n, lambda index: draw_scene(seed, index).masks),
        seed=seed,
        contents=ids,  # each is another one
    )


def _choose(dataset: datasets.Dataset, name: str, n: int | None, seed: int) -> Images:
    """The `n` rows of `dataset` with the smallest hashes that decode, as Images."""
    image = _image_column(dataset, name)
    dataset = dataset.cast_column(image, datasets.Image(decode=False))  # {'bytes', 'path'}, for `_decode`
    if name.startswith(("parquet:", "data:", "hf:")):
        _check_paths(dataset, image, name)
    if n is not None and n > len(dataset):
        raise ValueError(f"{n} images asked of {name!r}, which has {len(dataset)}; ask for at most that many")
    ids = _ids(dataset, image)
    order = sorted(range(len(ids)), key=lambda row: hashlib.sha256(f"{seed}:{ids[row]}".encode()).digest())[:n]
    pixels = dataset.select_columns(image)
    contents, skipped, reason = {}, [], ""
    for row in order:
        try:
            contents[row] = _content(_decode(pixels[row][image]))
        except _UNDECODABLE as error:
            skipped.append(ids[row])
            reason = reason or (f"{error}; " if isinstance(error, _NoWhite) else "")
    if skipped:
        named = ", ".join(skipped[:10]) + (", ..." if len(skipped) > 10 else "")
        message = f"{len(skipped)} of {len(order)} images of {name!r} do not decode: {named}; {reason}"
        if len(skipped) > len(order) / 100:
            raise ValueError(f"{message}more than 1 % is too many, repair or remove them")
        warnings.warn(f"{message}they are skipped", stacklevel=3)
    order = list(contents)

    labels, class_names, label_column = _labels(dataset)
    chosen = dataset.select(order)
    pixels = chosen.select_columns(image)
    images = [key for key, feature in chosen.features.items() if isinstance(feature, datasets.Image)]
    boxes = None
    if "boxes" in chosen.features:
        boxes = [_boxes(corners, ids[row]) for row, corners in zip(order, chosen["boxes"], strict=True)]
    return Images(
        name=name,
        ids=[ids[row] for row in order],
        read=lambda index: _decode(pixels[index][image]),
        labels=None if labels is None else labels[order],
        class_names=class_names,
        boxes=boxes,
        columns={key: list(chosen[key]) for key in chosen.features if key not in (*images, label_column, "boxes")},
        seed=seed,
        skipped=skipped,
        contents=list(contents.values()),
    )


def _boxes(corners: list | None, id: str) -> Float32[np.ndarray, "object 4"]:
    """The boxes of one image. Raises ValueError where they are none."""
    if shapes := {np.shape(box) for box in corners or ()} - {(4,)}:
        wrong = f"hold something of shape {min(shapes)}"
    else:
        boxes = np.array(corners or np.empty((0, 4)), dtype=np.float32)
        bad = boxes[~(np.isfinite(boxes).all(axis=1) & (boxes[:, :2] <= boxes[:, 2:]).all(axis=1))]
        if not len(bad):
            return boxes
        wrong = f"hold {bad[0].tolist()}"
    raise ValueError(f"the boxes of {id!r} {wrong}; give [xmin, ymin, xmax, ymax] in pixels for each object")


def _image_column(dataset: datasets.Dataset, name: str) -> str:
    """The column called 'image' or 'img', else the first one that holds images or file bytes."""

    def holds_images(feature: Any) -> bool:
        file = isinstance(feature, dict) and set(feature) == {"bytes", "path"}
        return isinstance(feature, datasets.Image) or file or feature == datasets.Value("binary")

    columns = [key for key, feature in dataset.features.items() if holds_images(feature)]
    if not columns:
        raise ValueError(f"{name!r} has no image column; its columns are {', '.join(dataset.features)}")
    if not len(dataset):
        raise ValueError(f"{name!r} has no images")
    return next((key for key in ("image", "img") if key in columns), columns[0])


def _check_paths(dataset: datasets.Dataset, image: str, name: str) -> None:
    """Raise ValueError where a table names a file of this machine in place of an image; the library's own downloads aside."""
    column, cache = dataset.data.column(image), Path(datasets.config.HF_DATASETS_CACHE).resolve()
    named = column.filter(pc.and_(pc.is_null(pc.struct_field(column, "bytes")), pc.is_valid(pc.struct_field(column, "path"))))
    for path in pc.struct_field(named, "path").to_pylist():
        if not (name.startswith("hf:") and Path(path).resolve().is_relative_to(cache)):
            raise ValueError(
                f"{name!r} names the file {path!r} of this machine in place of an image; put the bytes into the table"
            )


def _ids(dataset: datasets.Dataset, image: str) -> list[str]:
    """A name for each row that survives reordering; see `load_images`."""
    candidates = [dataset.data.column(key).to_pylist() for key in _ID_COLUMNS if key in dataset.features]
    paths = pc.struct_field(dataset.data.column(image), "path").to_pylist()
    if not any(path and os.path.isabs(path) for path in paths):  # an absolute path says where a file lies, not what it is
        candidates.append(paths)
    for values in candidates:
        if None not in values and len(set(values)) == len(values):
            return [str(value) for value in values]
    digests = [hashlib.sha1(_file_bytes(row[image])).hexdigest()[:16] for row in dataset.select_columns(image)]
    seen: dict[str, int] = {}
    for row, digest in enumerate(digests):  # the same image again: number the copies
        seen[digest] = seen.get(digest, 0) + 1
        if seen[digest] > 1:
            digests[row] = f"{digest}-{seen[digest]}"
    return digests


def _labels(dataset: datasets.Dataset) -> tuple[np.ndarray | None, list[str] | None, str | None]:
    """Labels of all rows, class names, and the column they come from (None, None, None where there is none)."""
    features = {
        key: feature for key, feature in dataset.features.items() if isinstance(feature, datasets.Value | datasets.ClassLabel)
    }
    column = next((key for key, feature in features.items() if isinstance(feature, datasets.ClassLabel)), None)
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
        names = [pairs[label] for label in range(len(pairs))] if set(pairs) == set(range(len(pairs))) else None
    labels = np.array([-1 if value is None else value for value in values], dtype=np.int64)
    if labels.min() < -1:
        raise ValueError(f"label {labels.min()} in the column {column!r}: labels count from 0, with -1 for an image without one")
    return labels, names, column


def _photographs(_: str) -> datasets.Dataset:
    folder = Path(str(files("skimage.data")))
    missing = [name for name in _PHOTOGRAPHS if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"this scikit-image does not carry {', '.join(missing)}; install the version in requirements.lock"
        )
    return _from_files(folder, [Path(name) for name in _PHOTOGRAPHS])


def _from_folder(path: str) -> datasets.Dataset:
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {path!r}")
    suffixes = Image.registered_extensions()
    found = sorted(file.relative_to(root) for file in root.rglob("*") if file.suffix.lower() in suffixes and file.is_file())
    found = [file for file in found if not any(part.startswith(".") for part in file.parts)]
    if not found:
        raise ValueError(f"there are no images in the folder {path!r}")
    return _from_files(root, found)


def _from_files(root: Path, relative: list[Path]) -> datasets.Dataset:
    table = {"id": [path.as_posix() for path in relative], "image": [str(root / path) for path in relative]}
    if all(len(path.parts) > 1 for path in relative):
        table["label"] = [path.parts[0] for path in relative]
    return datasets.Dataset.from_dict(table).cast_column("image", datasets.Image(decode=False))


def _from_parquet(path: str) -> datasets.Dataset:
    if Path(path).is_dir():
        return _read_parquet(sorted(Path(path).glob("*.parquet")), path)
    return _read_parquet([Path(path)] if Path(path).is_file() else [], path)


def _from_data(rest: str) -> datasets.Dataset:
    return _read_parquet(_data_files(rest), f"data:{rest}")


def _data_files(rest: str) -> list[Path]:
    """The Parquet files of NAME/SPLIT in REGISTERS_DATA. Raises FileNotFoundError where they are not there."""
    name, split = rest.split("/")
    root = os.environ.get("REGISTERS_DATA")
    if not root:
        instead = ON_THE_HUB.get(f"data:{rest}")
        raise FileNotFoundError(
            f"'data:{rest}' is a local data set: set the environment variable REGISTERS_DATA to the folder that holds {name}/"
            + (f", or use the nearest on the hub, {instead!r}" if instead else "")
        )
    folder = Path(root) / name
    if not folder.is_dir():
        there = sorted(entry.name for entry in Path(root).glob("*/"))
        hint = f"did you mean {_nearest(name, there)!r}?" if there else "it is empty or missing"
        raise FileNotFoundError(f"there is no data set {name!r} in REGISTERS_DATA = {root}; {hint}")
    found = sorted([*folder.glob(f"{split}.parquet"), *folder.glob(f"{split}-*.parquet")])
    if not found:
        splits = sorted({file.stem.split("-")[0] for file in folder.glob("*.parquet")})
        raise FileNotFoundError(f"data set {name!r} has no split {split!r}; it has {', '.join(splits) or 'no parquet files'}")
    return found


def _read_parquet(paths: list[Path], name: str) -> datasets.Dataset:
    """All rows of some parquet files, memory-mapped from the cache folder of the `datasets` library."""
    if not paths:
        raise FileNotFoundError(f"there is no parquet file {name!r}")
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()  # reading local files is quick
    try:
        return datasets.load_dataset("parquet", data_files=[str(path) for path in paths], split="train")
    except (ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise ValueError(f"{name!r} is not a readable parquet file: {error.__cause__ or error}") from error
    finally:
        if not bars:
            datasets.enable_progress_bars()


def _from_hub(rest: str) -> datasets.Dataset:
    repository, split = ("/".join(rest.split("/")[:2]), rest.split("/")[2]) if rest.count("/") == 2 else (rest, None)
    try:
        if split is None:
            splits = datasets.get_dataset_split_names(repository)
            split = next((known for known in ("validation", "test", "train") if known in splits), splits[0])
        return datasets.load_dataset(repository, split=split)
    except (OSError, ValueError) as error:  # no such data set or split, gated, no network
        reason = str(error).splitlines()[0]
        raise FileNotFoundError(f"the hub data set 'hf:{rest}' cannot be had here: {reason}") from error


def _file_bytes(file: dict[str, Any] | None) -> bytes:
    """The content of an image file as a data set gives it: bytes, a path, or nothing."""
    if file is None or file["bytes"] is file["path"] is None:
        return b""
    return file["bytes"] if file["bytes"] is not None else Path(file["path"]).read_bytes()


def _decode(file: dict[str, Any] | None) -> Image.Image:
    """An image file as upright 8-bit RGB."""
    with Image.open(BytesIO(_file_bytes(file))) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode.startswith("I;16") or (image.mode == "I" and opened.format in ("PPM", "PNG")):  # Pillow would clip at 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode in ("I", "F"):
            raise _NoWhite("it holds 32 bits a pixel, of which no white is known; save it with 8 or 16 bits")
        if image.mode == "P":  # a palette's transparency is understood by RGBA only
            image = image.convert("RGBA")
        return image.convert("RGB")


def _content(image: Image.Image) -> str:
    return hashlib.sha256(str(image.size).encode() + image.tobytes()).hexdigest()[:32]


def _corrupt(image: Image.Image, kind: str, severity: int, key: str) -> Image.Image:
    """`image` corrupted, with chance drawn from `key` and torch's own random state left as it was."""
    strength = _SEVERITIES[kind][severity - 1]
    if kind == "jpeg":  # by Pillow, as ImageNet-C does; torchvision's own encoder is deprecated
        file = BytesIO()
        image.save(file, "JPEG", quality=strength)
        return _decode({"bytes": file.getvalue(), "path": None})
    pixels = v2.functional.to_dtype(v2.functional.to_image(image), torch.float32, scale=True)
    height, width = pixels.shape[-2:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(key))
        match kind:
            case "gaussian-noise":
                pixels = v2.GaussianNoise(sigma=strength)(pixels)
            case "blur":
                reach = min(math.ceil(3 * strength), min(height, width) - 1)  # the padding reflects, and cannot exceed the image
                pixels = v2.GaussianBlur(2 * reach + 1, sigma=strength)(pixels)
            case "contrast":
                pixels = v2.functional.adjust_contrast(pixels, strength)
            case "occlusion":  # a rectangle of the image's own proportions always fits
                pixels = v2.RandomErasing(p=1, scale=(strength, strength), ratio=(height / width,) * 2, value=0.5)(pixels)
    return v2.functional.to_pil_image(v2.functional.to_dtype(pixels, torch.uint8, scale=True))


def _change(image: Image.Image, kind: str, key: str) -> Image.Image:
    """`image` with its content taken away or moved; 'noise' is drawn from `key`."""
    width, height = image.size
    match kind:
        case "constant":
            return Image.new("RGB", image.size, (round(ImageStat.Stat(image.convert("L")).mean[0]),) * 3)
        case "noise":
            pixels = np.random.default_rng(_seed(key)).integers(0, 256, (height, width, 3), dtype=np.uint8)
            return Image.fromarray(pixels)
        case "rolled":
            return ImageChops.offset(image, width // 2, height // 2)
        case "padded":
            small = image.resize((max(1, width // 2), max(1, height // 2)))
            framed = Image.new("RGB", image.size, (_GREY,) * 3)
            framed.paste(small, ((width - small.width) // 2, (height - small.height) // 2))
            return framed
        case "flipped":
            return ImageOps.mirror(image)
        case _:  # cropped
            return image.resize(image.size, box=(width / 4, height / 4, 3 * width / 4, 3 * height / 4))


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) >> 1


def _nearest(name: str, known: Any) -> str:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0)[0]
