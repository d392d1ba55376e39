"""Images by name: scenes, photographs, Hugging Face data sets, Parquet files and folders.

`load_images` turns a name into an `Images`, a sequence of PIL RGB images that are decoded when they
are asked for, with whatever ground truth the data set carries.
"""

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image

from helpers.extras import extra
from helpers.files import digest_of
from helpers.images.changes import CHANGES, SEVERITIES, change, corrupt
from helpers.images.rows import (
    UNDECODABLE,
    NoWhite,
    boxes_of,
    check_paths,
    corners_of,
    decode,
    ids_of,
    image_column,
    labels_of,
    pixel_digest,
)
from helpers.images.scenes import SCENES, draw_scene, scene_label
from helpers.images.sources import DRAWN, ON_THE_HUB, Fetch, check_name, closest, opened
from helpers.images.triggers import draw_pictures, read_pictures, trigger_masks
from helpers.names import STUB

if TYPE_CHECKING:
    import datasets

SCENES_KEPT = 1024  # drawn scenes in memory, 150 kB each
HERE = (*DRAWN, "photographs")  # what needs no download and has no stub
STUB_CLASSES = 3


@dataclass(frozen=True, repr=False, eq=False)
class Images(Sequence[Image.Image]):
    """A sequence of PIL RGB images with ground truth, in the same order everywhere.

    An image is read and decoded each time it is asked for: EXIF orientation applied, grey, palette,
    CMYK and 16-bit images made 8-bit RGB, alpha dropped. A slice is the Images of its indices, as
    `select` gives them.

    Attributes:
        name: the name it was loaded by, with '+KIND:SEVERITY' for each corruption and '+KIND' for
            each change; 'A and B' for two sets joined.
        ids: a stable name per image.
        read: index -> image.
        labels: class per image, -1 where the data set has none for it; None for data sets without
            labels.
        class_names: name per label.
        boxes: per image (objects, 4) xmin, ymin, xmax, ymax in pixels (0-based, xmax - xmin is the
            width).
        masks: per image (objects, height, width) bool.
        columns: the data set's other columns, one value per image.
        seed: of the choice of images (scenes: of the drawing).
        skipped: ids of chosen images that do not decode and were left out.
        contents: what tells the pictures apart as they were loaded, before any corruption or
            change: digests of their pixels; None where nobody looked at them.
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
        return (
            self.select(range(len(self))[index])
            if isinstance(index, slice)
            else self.read(range(len(self))[index])
        )

    def __repr__(self) -> str:
        return f"Images({self.name!r}, {len(self)} images, seed {self.seed}, digest {self.digest})"

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 over name and ids, in order."""
        return digest_of("\n".join([self.name, *self.ids]), length=16)

    def describe(self) -> dict[str, Any]:
        """Name, number, seed, digest, skipped ids and the nearest data set on the hub.

        For the provenance of a result.
        """
        return {
            "name": self.name,
            "n": len(self),
            "seed": self.seed,
            "digest": self.digest,
            "skipped": list(self.skipped),
            "hub": ON_THE_HUB.get(self.name.partition("+")[0]),
        }

    def corrupted(self, kind: str, severity: int) -> "Images":
        """The same images, each corrupted when it is read.

        At its own resolution and in the same way every time.

        Args:
            kind: 'gaussian-noise', 'blur', 'jpeg', 'contrast' or 'occlusion'.
            severity: 1 (weakest) to 5; strengths as in ImageNet-C (Hendrycks and Dietterich 2019),
                occlusion 10 to 50 % of the area.

        Raises:
            ValueError: unknown kind or severity.
        """
        if kind not in SEVERITIES:
            nearest = closest(kind, SEVERITIES)
            raise ValueError(
                f"unknown corruption {kind!r}; did you mean {nearest!r}? Known: "
                f"{', '.join(SEVERITIES)}"
            )
        if severity not in range(1, 6):
            raise ValueError(f"severity {severity!r} of {kind!r} is not one of 1, 2, 3, 4, 5")

        def read(index: int) -> Image.Image:
            return corrupt(
                self[index], kind, severity, key=f"{self.seed}:{self.ids[index]}:{kind}:{severity}"
            )

        return replace(self, name=f"{self.name}+{kind}:{severity}", read=read)

    def changed(self, kind: str) -> "Images":
        """The same images with their content taken away or moved when they are read.

        Each at its own resolution.

        What stays where it was in spite of that, was put there by position.

        Boxes and masks are left out, since they would say where things were.

        Args:
            kind: 'constant' (the picture's mean grey everywhere), 'noise' (every pixel drawn on its
                own, uniformly), 'rolled' (by half of both sides, so that the corners meet in the
                centre), 'padded' (half as large, in a grey frame), 'flipped' (left to right) or
                'cropped' (the centre, half of each side, enlarged).

        Raises:
            ValueError: unknown kind.
        """
        if kind not in CHANGES:
            raise ValueError(
                f"unknown change {kind!r}; did you mean {closest(kind, CHANGES)!r}? Known: "
                f"{', '.join(CHANGES)}"
            )

        def read(index: int) -> Image.Image:
            return change(self[index], kind, key=f"{self.seed}:{self.ids[index]}:{kind}")

        return replace(self, name=f"{self.name}+{kind}", read=read, boxes=None, masks=None)

    def select(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> "Images":
        """The images at `indices`, in that order and with their ground truth.

        Nothing is decoded here.

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
            raise ValueError(
                f"cannot select from {len(self)} images of {self.name!r}: {error}"
            ) from None
        return replace(
            self,
            ids=[self.ids[index] for index in kept],
            read=_at(self, kept).__getitem__,
            labels=None if self.labels is None else self.labels[kept],
            boxes=None if self.boxes is None else _at(self.boxes, kept),
            masks=None if self.masks is None else _at(self.masks, kept),
            columns={
                key: [values[index] for index in kept] for key, values in self.columns.items()
            },
            contents=None if self.contents is None else [self.contents[index] for index in kept],
        )

    def __add__(self, other: "Images") -> "Images":
        """The images of both, one set after the other.

        Class names, boxes, masks and columns where both have them.

        Raises:
            ValueError: only one of them has labels, their classes differ, or they were chosen with
                different seeds.
        """
        both = f"{self.name!r} and {other.name!r}"
        if (self.labels is None) != (other.labels is None):
            raise ValueError(
                f"only one of {both} has labels; join two sets that both have them, or neither"
            )
        check_classes(self, other)
        if self.seed != other.seed:
            raise ValueError(
                f"{both} were chosen with the seeds {self.seed} and {other.seed}; load both with "
                "the same seed"
            )
        return Images(
            name=self.name if self.name == other.name else f"{self.name} and {other.name}",
            ids=[*self.ids, *other.ids],
            read=_joined(self, other).__getitem__,
            labels=None if self.labels is None else np.concatenate([self.labels, other.labels]),
            class_names=self.class_names and other.class_names,
            boxes=None
            if self.boxes is None or other.boxes is None
            else _joined(self.boxes, other.boxes),
            masks=None
            if self.masks is None or other.masks is None
            else _joined(self.masks, other.masks),
            columns={
                key: [*self.columns[key], *other.columns[key]]
                for key in self.columns
                if key in other.columns
            },
            seed=self.seed,
            skipped=list(dict.fromkeys([*self.skipped, *other.skipped])),
            contents=None
            if self.contents is None or other.contents is None
            else [*self.contents, *other.contents],
        )

    def require_labels(self) -> Int64[np.ndarray, " image"]:
        """The labels, for what cannot do without one for each image.

        Raises:
            ValueError: no labels, a column 'label' that holds none, or images without one.
        """
        if self.labels is None and (
            others := [value for value in self.columns.get("label", ()) if value is not None]
        ):
            held = {list: "lists", float: "numbers with a fraction"}.get(
                type(others[0]), "no labels"
            )
            raise ValueError(
                f"the column 'label' of {self.name!r} holds {held}, such as {others[0]!r}; give "
                "whole numbers from 0, or text"
            )
        if self.labels is None:
            raise ValueError(
                f"data set {self.name!r} has no labels; choose one that has them, such as 'scenes'"
            )
        missing = np.flatnonzero(self.labels == -1)
        if len(missing):
            raise ValueError(
                f"data set {self.name!r} has no labels for {len(missing)} of {len(self)} images, "
                "such as "
                f"{self.ids[missing[0]]!r}; leave them out with images.select(images.labels >= 0), "
                "or choose another data set"
            )
        return self.labels

    @cached_property
    def relative_boxes(self) -> list[np.ndarray] | None:
        """Per image (objects, 4) float32 xmin, ymin, xmax, ymax in [0, 1] of width and height.

        What lies outside the picture is cut off. The first use decodes every image for its size.
        None where no boxes are known.
        """
        if self.boxes is None:
            return None
        pairs = zip(self, self.boxes, strict=True)
        return [
            (boxes / np.float32([*image.size, *image.size])).clip(0, 1) for image, boxes in pairs
        ]

    def with_objects(self) -> "Images":
        """The images with a true box, or all where no boxes are known.

        Without an object, a method that finds objects cannot be right.
        """
        if self.boxes is None:
            return self
        return self.select([len(boxes) > 0 for boxes in self.boxes])


def load_images(name: str, n: int | None = None, seed: int = 0) -> Images:
    """Load `n` images of the data set `name` (all where n is None).

    The images are the `n` with the smallest sha256('SEED:ID'), in that order: the choice does not
    depend on how the data set lists them, and a smaller choice is the beginning of a larger one.
    Each is decoded once here; those that fail are left out.

    The id of an image is its path below the folder; in a table, the first column of
    `rows.ID_COLUMNS` or else the image's own file name, where that is given and different in every
    row; else the first 16 hex digits of the SHA-1 of its bytes. Boxes come from a column 'boxes' or
    by `rows.corners_of`, labels from the column 'label' (whole numbers, text, or true and false) or
    else the first of type `ClassLabel`; class names from that type, the labels themselves (text),
    or a column 'name'.

    Args:
        name: 'scenes', 'scenes-hard', 'quiet' and 'broadcast' (drawn without end, so they need n),
            'photographs' (those that scikit-image carries), 'hf:OWNER/NAME/SPLIT' (without SPLIT:
            validation, else test, else train), 'data:NAME/SPLIT' (NAME/SPLIT.parquet, or its shards
            `NAME/SPLIT-*.parquet`, in the folder that the environment variable REGISTERS_DATA names),
            'folder:PATH' (all images below; where all lie in subfolders, these are the classes), or
            'parquet:PATH' (a file, or a folder of them).
        n: number of images.
        seed: of the choice; for what is drawn, of the drawing.

    Raises:
        ValueError: unknown name, n below 1 or above the size of the set, no images, more than 1 %
            of the chosen ones undecodable, boxes that are none, a label below -1.
        FileNotFoundError: folder, file, or hub data set that cannot be had; REGISTERS_DATA not set.
    """  # noqa: E501
    check_name(name.removeprefix(STUB))
    if n is not None and n < 1:
        raise ValueError(f"n = {n} images of {name!r}: n must be at least 1")
    if name.startswith(STUB):
        return _stub(name, n, seed)
    if name not in DRAWN:
        return _choose(*opened(name), name, n, seed)
    if n is None:
        raise ValueError(f"{name!r} has no end; give the number of images n")
    return (_scenes if name in SCENES else _triggers)(name, n, seed)


def stub_name(name: str) -> str:
    """What a dry run loads in place of the data set `name`: its stub, where it needs files."""
    return name if not name or name in HERE else STUB + name


def _stub(name: str, n: int | None, seed: int) -> Images:
    """`n` scenes that no other set has, one for each class where n is None.

    They have labels, boxes and masks. The classes have no names, since a published head refuses
    images of other classes than its own.
    """
    n = STUB_CLASSES if n is None else n
    own = name.removeprefix(STUB)
    scenes = _scenes("scenes", n, zlib.crc32(f"{seed}:{own}".encode()))
    labels, columns = np.arange(n, dtype=np.int64) % STUB_CLASSES, _AnyColumn(scenes.ids)
    return replace(scenes, name=name, seed=seed, labels=labels, class_names=[], columns=columns)


def check_classes(first: Images, second: Images) -> None:
    """Raise ValueError where both sets name their classes, and not alike."""
    if first.class_names and second.class_names and first.class_names != second.class_names:
        pairs = zip_longest(first.class_names, second.class_names)
        label, (one, other) = next(
            (label, pair) for label, pair in enumerate(pairs) if pair[0] != pair[1]
        )
        raise ValueError(
            f"{first.name!r} and {second.name!r} have different classes (label {label}: {one!r} "
            f"and {other!r}); "
            "choose two with the same"
        )


class _AnyColumn(dict):
    """Every column that is asked of a stub, with another value for each image.

    So it can be divided by any.
    """

    def __init__(self, ids: list[str]):
        super().__init__()
        self.ids = ids

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> list[str]:
        return self.ids


class _Lazy(Sequence):
    """`length` values that are computed when they are asked for."""

    def __init__(self, length: int, compute: Callable[[int], Any]):
        self.length, self.compute = length, compute

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int | slice) -> Any:
        return (
            _at(self, range(self.length)[index])
            if isinstance(index, slice)
            else self.compute(range(self.length)[index])
        )


def _at(values: Sequence, kept: Sequence[int]) -> _Lazy:
    return _Lazy(len(kept), lambda index: values[kept[index]])


def _joined(first: Sequence, second: Sequence) -> _Lazy:
    def compute(index: int) -> Any:
        return first[index] if index < len(first) else second[index - len(first)]

    return _Lazy(len(first) + len(second), compute)


def _scenes(name: str, n: int, seed: int) -> Images:
    ids = [f"{name.replace('scenes', 'scene')}-{seed}-{index:05d}" for index in range(n)]
    return Images(
        name=name,
        ids=ids,
        # Models are run one after another over the same scenes; drawing one takes as long as a
        # small model.
        read=lru_cache(SCENES_KEPT)(
            lambda index: Image.fromarray(draw_scene(seed, index, name).pixels)
        ),
        labels=np.array([scene_label(seed, index) for index in range(n)], dtype=np.int64),
        class_names=SCENES[name],
        boxes=_Lazy(n, lambda index: draw_scene(seed, index, name).boxes),
        masks=_Lazy(n, lambda index: draw_scene(seed, index, name).masks),
        seed=seed,
        contents=ids,  # each is another one
    )


def _triggers(task: str, n: int, seed: int) -> Images:
    ids, pixels = (
        [f"{task}-{seed}-{index:05d}" for index in range(n)],
        draw_pictures(task, (0, seed), range(n)),
    )
    trigger = read_pictures(pixels)[1]
    return Images(
        name=task,
        ids=ids,
        read=lambda index: Image.fromarray(pixels[index]),
        labels=trigger.any(1).astype(np.int64),
        class_names=["no trigger", "trigger"],
        masks=trigger_masks(trigger),
        seed=seed,
        contents=ids,
    )


def _choose(
    dataset: "datasets.Dataset", fetch: Fetch, name: str, n: int | None, seed: int
) -> Images:
    """The `n` rows of `dataset` with the smallest digests that decode, as Images.

    `fetch` gives rows in full.
    """
    datasets, image = extra("datasets"), image_column(dataset.features, name)
    if not len(dataset):
        raise ValueError(f"{name!r} has no images")
    if n is not None and n > len(dataset):
        raise ValueError(
            f"{n} images asked of {name!r}, which has {len(dataset)}; ask for at most that many"
        )

    def as_files(rows: "datasets.Dataset") -> "datasets.Dataset":
        rows = rows.cast_column(
            image, datasets.Image(decode=False)
        )  # {'bytes', 'path'}, for `decode`
        if name.startswith(("parquet:", "data:", "hf:")):
            check_paths(rows, image, name)
        return rows

    ids = ids_of(as_files(dataset), image)
    order = sorted(range(len(ids)), key=lambda row: digest_of(f"{seed}:{ids[row]}"))[:n]
    rows = as_files(fetch(order))
    pixels = rows.select_columns(image)
    contents, skipped, reason = {}, [], ""
    for index, row in enumerate(order):
        try:
            contents[index] = pixel_digest(decode(pixels[index][image]))
        except UNDECODABLE as error:
            skipped.append(ids[row])
            reason = reason or (f"{error}; " if isinstance(error, NoWhite) else "")
    if skipped:
        named = ", ".join(skipped[:10]) + (", ..." if len(skipped) > 10 else "")
        message = (
            f"{len(skipped)} of {len(order)} images of {name!r} do not decode: {named}; {reason}"
        )
        if len(skipped) > len(order) / 100:
            raise ValueError(f"{message}more than 1 % is too many, repair or remove them")
        warnings.warn(f"{message}they are skipped", stacklevel=3)

    labels, class_names, label_column = labels_of(dataset)
    chosen, order = rows.select(list(contents)), [order[index] for index in contents]
    pixels = chosen.select_columns(image)
    images = [
        key for key, feature in chosen.features.items() if isinstance(feature, datasets.Image)
    ]
    corners = corners_of(chosen, name)
    boxes = (
        None
        if corners is None
        else [boxes_of(own, ids[row]) for row, own in zip(order, corners, strict=True)]
    )
    return Images(
        name=name,
        ids=[ids[row] for row in order],
        read=lambda index: decode(pixels[index][image]),
        labels=None if labels is None else labels[order],
        class_names=class_names,
        boxes=boxes,
        columns={
            key: list(chosen[key])
            for key in chosen.features
            if key not in (*images, label_column, "boxes")
        },
        seed=seed,
        skipped=skipped,
        contents=list(contents.values()),
    )
