"""Images: a sequence of PIL RGB images, decoded when they are asked for, with ground truth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image
from torch.nn import functional as F

from helpers.files import digest_of
from helpers.images.changes import CHANGES, SEVERITIES, change, corrupt
from helpers.settings import check_choice

# What a reader without the local folder can take from the hub in its place: the same images, or the
# nearest.
ON_THE_HUB = {
    "data:imagenet-1per-class/train": "hf:ILSVRC/imagenet-1k/train",
    "data:imagenet-1per-class/validation": "hf:ILSVRC/imagenet-1k/validation",
    "data:cifar10-jpeg/train": "hf:uoft-cs/cifar10/train",
    "data:cifar10-jpeg/test": "hf:uoft-cs/cifar10/test",
    "data:photos-with-boxes/validation": "hf:detection-datasets/coco/val",
}


TRUTH = ("boxes", "masks", "segments")  # where things are in a picture


@dataclass(frozen=True, repr=False, eq=False)
class Images(Sequence[Image.Image | torch.Tensor]):
    """A sequence of PIL RGB images with ground truth, each read and decoded when it is asked for.

    Of pixels that a model takes as they are (`capture.images_of`) an item is (3, height, width).
    """

    name: str  #: with '+KIND:SEVERITY' for each corruption and '+KIND' for each change
    ids: list[str]  #: stable names
    read: Callable[[int], Image.Image | torch.Tensor]
    labels: Int64[np.ndarray, " image"] | None = None  #: -1 where the data set has none for it
    class_names: list[str] | None = None
    boxes: Sequence[np.ndarray] | None = None  #: (objects, 4): xmin, ymin, xmax, ymax in pixels
    masks: Sequence[np.ndarray] | None = None  #: (objects, height, width) bool
    segments: Sequence[np.ndarray] | None = None  #: (height, width), the class of each pixel
    columns: dict[str, list[Any]] = field(default_factory=dict)  #: the others of the data set
    seed: int = 0  #: of the choice of images; of scenes, of the drawing
    skipped: list[str] = field(default_factory=list)  #: ids of images that do not decode
    notes: list[str] = field(default_factory=list)  #: of what was left out, or may be another
    contents: Sequence[str] | None = None  #: digests of the pixels as they were loaded

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int | slice) -> "Image.Image | torch.Tensor | Images":
        chosen = range(len(self))[index]
        return self.select(chosen) if isinstance(index, slice) else self.read(chosen)

    def __repr__(self) -> str:
        return f"Images({self.name!r}, {len(self)} images, seed {self.seed}, digest {self.digest})"

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 over name and ids, in order."""
        return digest_of("\n".join([self.name, *self.ids]), length=16)

    @property
    def pixel_digest(self) -> str:
        """As `digest`, over the name and the pixels as they were loaded."""
        loaded = self.contents
        if loaded is None:
            loaded = [digest_of(str(one.size), one.tobytes(), length=32) for one in self]
        return digest_of("\n".join([self.name, *loaded]), length=16)

    def describe(self) -> dict[str, Any]:
        """Name, number, seed, digest, skipped ids, the nearest data set on the hub, and notes."""
        return {
            "name": self.name,
            "n": len(self),
            "seed": self.seed,
            "digest": self.digest,
            "skipped": list(self.skipped),
            "hub": ON_THE_HUB.get(self.name.partition("+")[0]),
        } | ({"notes": self.notes} if self.notes else {})

    def corrupted(self, kind: str, severity: int) -> "Images":
        """The same images, each corrupted when it is read, by a kind of `changes.SEVERITIES`."""
        check_choice("corruption", kind, SEVERITIES)
        if severity not in range(1, 6):
            raise ValueError(f"severity {severity!r} of {kind!r} is not one of 1, 2, 3, 4, 5")

        def read(index: int) -> Image.Image:
            key = f"{self.seed}:{self.ids[index]}:{kind}:{severity}"
            return corrupt(self[index], kind, severity, key)

        return replace(self, name=f"{self.name}+{kind}:{severity}", read=read)

    def changed(self, kind: str) -> "Images":
        """The same images with their content taken away or moved, and no truth of where it was.

        `kind`: 'constant' (the picture's mean grey), 'noise' (every pixel drawn on its own),
        'rolled' (by half of both sides), 'padded' (half as large, in a grey frame), 'flipped' (left
        to right) or 'cropped' (the centre, half of each side, enlarged).
        """
        check_choice("change", kind, CHANGES)

        def read(index: int) -> Image.Image | torch.Tensor:
            return change(self[index], kind, f"{self.seed}:{self.ids[index]}:{kind}")

        return replace(self, name=f"{self.name}+{kind}", read=read, **dict.fromkeys(TRUTH))

    def select(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> "Images":
        """The images at `indices`, or where one bool per image is True, with their truth."""
        index = np.asarray(indices)
        if index.size == 0 and index.dtype != bool:
            index = index.astype(np.int64)  # an empty list has no integers to tell its type by
        kept = np.arange(len(self))[index].tolist()
        optional = {
            name: _at(values, kept)
            for name in (*TRUTH, "contents")
            if (values := getattr(self, name)) is not None
        }
        return replace(
            self,
            ids=[self.ids[index] for index in kept],
            read=_at(self, kept).__getitem__,
            labels=None if self.labels is None else self.labels[kept],
            columns={
                key: [values[index] for index in kept] for key, values in self.columns.items()
            },
            **optional,
        )

    def __add__(self, other: "Images") -> "Images":
        """The images of both, one set after the other, with the ground truth that both have."""
        both = f"{self.name!r} and {other.name!r}"
        if (self.labels is None) != (other.labels is None):
            raise ValueError(f"only one of {both} has labels")
        check_classes(self, other)
        if self.seed != other.seed:
            raise ValueError(f"{both} were chosen with the seeds {self.seed} and {other.seed}")
        optional = {
            name: _joined(mine, theirs)
            for name in (*TRUTH, "contents")
            if (mine := getattr(self, name)) is not None
            and (theirs := getattr(other, name)) is not None
        }
        return Images(
            name=self.name if self.name == other.name else f"{self.name} and {other.name}",
            ids=[*self.ids, *other.ids],
            read=_joined(self, other).__getitem__,
            labels=None if self.labels is None else np.concatenate([self.labels, other.labels]),
            class_names=self.class_names and other.class_names,
            columns={
                key: [*values, *other.columns[key]]
                for key, values in self.columns.items()
                if key in other.columns
            },
            seed=self.seed,
            skipped=list(dict.fromkeys([*self.skipped, *other.skipped])),
            notes=list(dict.fromkeys([*self.notes, *other.notes])),
            **optional,
        )

    def require_labels(self) -> Int64[np.ndarray, " image"]:
        """The labels; ValueError unless there is one for each image."""
        if self.labels is None:
            raise ValueError(f"{self.name!r} has no labels; subfolders or a column give classes")
        missing = np.flatnonzero(self.labels == -1)
        if len(missing):
            number = f"{len(missing)} of {len(self)} images"
            raise ValueError(f"data set {self.name!r} has no labels for {number}")
        return self.labels

    def require_segments(self) -> Sequence[np.ndarray]:
        """The segments; ValueError where there are none."""
        if self.segments is None:
            raise ValueError(f"data set {self.name!r} has no segments")
        return self.segments

    def segments_at(self, grid: tuple[int, int]) -> Int64[torch.Tensor, "image row column"]:
        """The class at the middle of each cell of a `grid` (rows, columns) of a `whole` picture."""
        rows = [torch.from_numpy(x.astype(np.float32)) for x in self.require_segments()]
        cells = [F.interpolate(x[None, None], grid, mode="nearest-exact")[0, 0] for x in rows]
        return torch.stack(cells).long()

    @cached_property
    def relative_boxes(self) -> list[np.ndarray] | None:
        """Per image (objects, 4) float32 xmin, ymin, xmax, ymax in [0, 1] of width and height, what
        lies outside cut off; None without boxes. The first use decodes every image for its size.
        """
        if self.boxes is None:
            return None
        pairs = zip(self, self.boxes, strict=True)
        return [
            (boxes / np.float32([*image.size, *image.size])).clip(0, 1) for image, boxes in pairs
        ]

    def with_objects(self) -> "Images":
        """The images with a true box, or all where no boxes are known."""
        if self.boxes is None:
            return self
        return self.select([len(boxes) > 0 for boxes in self.boxes])


def check_classes(first: Images, second: Images) -> None:
    """Raise ValueError where both sets name their classes, and not alike."""
    if first.class_names and second.class_names and first.class_names != second.class_names:
        pairs = zip_longest(first.class_names, second.class_names)
        one, other = next(pair for pair in pairs if pair[0] != pair[1])
        sets = f"{first.name!r} and {second.name!r}"
        raise ValueError(f"{sets} have different classes, {one!r} and {other!r}")


class Lazy(Sequence):
    """`length` values that are computed when they are asked for."""

    def __init__(self, length: int, compute: Callable[[int], Any]):
        self.length, self.compute = length, compute

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int | slice) -> Any:
        chosen = range(self.length)[index]
        return _at(self, chosen) if isinstance(index, slice) else self.compute(chosen)


def _at(values: Sequence, kept: Sequence[int]) -> Lazy:
    return Lazy(len(kept), lambda index: values[kept[index]])


def _joined(first: Sequence, second: Sequence) -> Lazy:
    def compute(index: int) -> Any:
        return first[index] if index < len(first) else second[index - len(first)]

    return Lazy(len(first) + len(second), compute)
