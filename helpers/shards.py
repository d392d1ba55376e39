"""What a capture keeps, on disk: shards of a fixed number of images that outlive an interruption, a full disk, a damaged file.

A folder holds one safetensors file a shard, and `shards.json` with the inputs and the SHA-256 of each file. A file is written
under another name and renamed, and enters the list after that. To capture into the same folder again computes only what is
missing or damaged.
"""

import errno
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from helpers.backbone import Backbone
from helpers.capture import Reducer, capture
from helpers.files import written_whole

LIST = "shards.json"


class Shards:
    """A finished or half-finished capture on disk.

    Attributes:
        folder: where it lies.
        images: number of images in all; `size`: images in one shard, the last one may have fewer.
        inputs: what it was made from.
    """

    def __init__(self, folder: str | Path):
        """Raises FileNotFoundError where no capture was begun there."""
        self.folder = Path(folder)
        if not (self.folder / LIST).is_file():
            raise FileNotFoundError(f"{self.folder} holds no {LIST}; capture_shards writes one")
        told = json.loads((self.folder / LIST).read_text(encoding="utf-8"))
        self.images: int = told["images"]
        self.size: int = told["size"]
        self.inputs: dict[str, Any] = told["inputs"]
        self._files: dict[str, str] = told["files"]

    def __len__(self) -> int:
        """Number of shards when it is finished."""
        return -(-self.images // self.size)

    def name(self, index: int) -> str:
        """The file of shard `index`."""
        return f"{index:06d}.safetensors"

    def intact(self, index: int) -> bool:
        """Whether shard `index` is there as it was written."""
        path = self.folder / self.name(index)
        return path.is_file() and self._files.get(path.name) == hashlib.sha256(path.read_bytes()).hexdigest()

    def read(self, index: int) -> dict[str, Tensor]:
        """key -> tensor (image, ...) of shard `index`. Raises ValueError where it is missing or damaged."""
        path = self.folder / self.name(index)
        data = path.read_bytes() if path.is_file() else b""
        if self._files.get(path.name) != hashlib.sha256(data).hexdigest():
            raise ValueError(f"shard {path} is missing or damaged; the same call of capture_shards makes it again")
        return load(data)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The shards in order, one at a time in memory."""
        return (self.read(index) for index in range(len(self)))

    def write(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Put shard `index` in its place. Raises OSError where the disk is full; then nothing of it is left."""
        data, name = save({key: value.contiguous() for key, value in tensors.items()}), self.name(index)
        try:
            with written_whole(self.folder / name) as new:
                new.write_bytes(data)
            self._files[name] = hashlib.sha256(data).hexdigest()
            _write_list(self.folder, self.images, self.size, self.inputs, self._files)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            told = f"shard {index + 1} of {len(self)} ({len(data) / 1e6:.0f} MB) does not fit; the {index} before it are whole"
            raise OSError(errno.ENOSPC, f"the disk is full: {told}, and the same call goes on there", str(self.folder)) from None


def capture_shards(
    folder: str | Path, backbone: Backbone, images: Any, reducers: Sequence[Reducer], *, size: int = 1024, **options: Any
) -> Shards:
    """`capture` onto disk, `size` images a shard; memory holds one shard. What is there and intact is not computed again.

    Args:
        folder: made if need be.
        backbone, images, reducers, options: as in `capture`.

    Raises:
        ValueError: the folder holds a capture of something else, size below 1, and what `capture` raises.
        OSError: the disk is full.
    """
    if size < 1:
        raise ValueError(f"{size} images a shard; take at least one")
    folder = Path(folder)
    inputs = {
        "model": backbone.describe(),
        "images": images.describe() if hasattr(images, "describe") else _hash(images),
        "keep": [_describe(reducer) for reducer in reducers],
        "dtype": str(options.get("dtype", torch.float32)),
    }
    inputs = json.loads(json.dumps(inputs))
    if (folder / LIST).is_file():
        shards = Shards(folder)
        here, there = ({**told, "images in all": n, "images a shard": k} for told, n, k in (
            (inputs, len(images), size), (shards.inputs, shards.images, shards.size)
        ))  # fmt: skip
        if differ := [key for key in here if here[key] != there.get(key)]:
            raise ValueError(f"{folder} holds the capture of something else ({', '.join(differ)}); choose another folder")
    else:
        _write_list(folder, len(images), size, inputs, {})
        shards = Shards(folder)
    for index in range(len(shards)):
        if not shards.intact(index):
            start, stop = index * size, min((index + 1) * size, len(images))
            part = images[start:stop] if isinstance(images, Tensor) else images.select(range(start, stop))
            shards.write(index, capture(backbone, part, [reducer.of(start, stop) for reducer in reducers], **options))
    return shards


def _write_list(folder: Path, images: int, size: int, inputs: dict, files: Mapping[str, str]) -> None:
    told = {"images": images, "size": size, "inputs": inputs, "files": files}
    with written_whole(folder / LIST) as new:
        new.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _describe(reducer: Reducer) -> dict[str, Any]:
    """What tells one reducer from another, as JSON."""

    def told(value: Any) -> Any:
        if isinstance(value, Tensor):
            return _hash(value)
        if callable(value):
            return getattr(value, "__qualname__", repr(value))
        return list(value) if isinstance(value, tuple) else value

    return {"reducer": type(reducer).__name__, **{field.name: told(getattr(reducer, field.name)) for field in fields(reducer)}}


def _hash(x: Tensor) -> str:
    return hashlib.sha256(x.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:16]
