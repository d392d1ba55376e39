"""What a capture keeps, on disk: shards of a fixed number of images that outlive an interruption, a
full disk, a damaged file.

A folder holds one safetensors file a shard, and `shards.json` with the inputs and the SHA-256 of
each file. A file is written under another name and renamed, and enters the list after that. To
capture into the same folder again computes only what is missing or damaged.
"""

import dis
import errno
import json
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.reducers import Reducer
from helpers.files import digest_of, locked, written_whole
from helpers.models import Backbone

LIST = "shards.json"
LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


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
        contents = json.loads((self.folder / LIST).read_text(encoding="utf-8"))
        self.images: int = contents["images"]
        self.size: int = contents["size"]
        self.inputs: dict[str, Any] = contents["inputs"]
        self._files: dict[str, str] = contents["files"]

    def __len__(self) -> int:
        """Number of shards when it is finished."""
        return -(-self.images // self.size)

    def name(self, index: int) -> str:
        """The file of shard `index`."""
        return f"{index:06d}.safetensors"

    def intact(self, index: int) -> bool:
        """Whether shard `index` is there as it was written."""
        path = self.folder / self.name(index)
        return path.is_file() and self._files.get(path.name) == digest_of(path.read_bytes())

    def read(self, index: int) -> dict[str, Tensor]:
        """Key -> tensor (image, ...) of shard `index`.

        Raises ValueError where it is missing or damaged.
        """
        path = self.folder / self.name(index)
        data = path.read_bytes() if path.is_file() else b""
        if self._files.get(path.name) != digest_of(data):
            raise ValueError(
                f"shard {path} is missing or damaged; the same call of capture_shards makes it "
                "again"
            )
        return load(data)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The shards in order, one at a time in memory."""
        return (self.read(index) for index in range(len(self)))

    def write(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Put shard `index` in its place.

        Raises OSError where the disk is full; then nothing of it is left.
        """
        data, name = (
            save({key: value.contiguous() for key, value in tensors.items()}),
            self.name(index),
        )
        try:
            with written_whole(self.folder / name) as new:
                new.write_bytes(data)
            self._files[name] = digest_of(data)
            _write_list(self.folder, self.images, self.size, self.inputs, self._files)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            shard = f"shard {index + 1} of {len(self)} ({len(data) / 1e6:.0f} MB)"
            remedy = (
                f"the disk is full: {shard} does not fit; the {index} before it are whole, and "
                "the same call goes on there"
            )
            raise OSError(errno.ENOSPC, remedy, str(self.folder)) from None


def capture_shards(
    folder: str | Path,
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    *,
    size: int = 1024,
    **options: Any,
) -> Shards:
    """`capture` onto disk, `size` images a shard; memory holds one shard.

    What is there and intact is not computed again.

    Args:
        folder: made if need be.
        backbone, images, reducers, options: as in `capture`. A function in a reducer is known by
            its code and by what it reads.

    Raises:
        ValueError: the folder holds a capture of something else (another model, intervention,
            image, reducer or precision), a reducer with an object that cannot be told from another,
            size below 1, and what `capture` raises.
        OSError: the disk is full.
        BlockingIOError: another process or thread captures into the folder just now.
    """
    if size < 1:
        raise ValueError(f"{size} images a shard; take at least one")
    if not isinstance(images, Tensor) and not (
        hasattr(images, "describe") and hasattr(images, "select")
    ):
        raise ValueError(
            f"shards of a {type(images).__name__} cannot tell their images from others; give "
            "load_images(...) or pixels"
        )
    folder = Path(folder)
    inputs = {
        "model": backbone.describe(),
        "interventions": _identity(backbone.interventions),
        "images": images.describe() if hasattr(images, "describe") else _digest(images),
        "keep": [_describe(reducer) for reducer in reducers],
        "dtype": str(options.get("dtype", torch.float32)),
    }
    inputs = json.loads(json.dumps(inputs))
    try:
        with locked(
            folder, wait=False
        ):  # each writes the list whole, and would strike out what the other has entered
            return _completed(folder, inputs, backbone, images, reducers, size, options)
    except BlockingIOError:
        raise BlockingIOError(
            f"another process captures into {folder} just now; wait for it, or choose another "
            "folder"
        ) from None


def _completed(
    folder: Path,
    inputs: dict,
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    size: int,
    options: dict[str, Any],
) -> Shards:
    """The shards of `capture_shards`, all of them there."""
    if (folder / LIST).is_file():
        shards = Shards(folder)
        here, there = ({**of, "images in all": n, "images a shard": k} for of, n, k in (
            (inputs, len(images), size), (shards.inputs, shards.images, shards.size)
        ))  # fmt: skip
        if differ := [key for key in here if here[key] != there.get(key)]:
            raise ValueError(
                f"{folder} holds the capture of something else ({', '.join(differ)}); choose "
                "another folder"
            )
    else:
        _write_list(folder, len(images), size, inputs, {})
        shards = Shards(folder)
    report = options.get("report", lambda done: None)
    for index in range(len(shards)):
        if not shards.intact(index):
            start, stop = index * size, min((index + 1) * size, len(images))
            part = (
                images[start:stop]
                if isinstance(images, Tensor)
                else images.select(range(start, stop))
            )
            parts = [reducer.of(start, stop) for reducer in reducers]
            own = options | {"report": lambda done, start=start: report(start + done)}
            shards.write(index, capture(backbone, part, parts, first=start, **own))
    return shards


def _write_list(
    folder: Path, images: int, size: int, inputs: dict, files: Mapping[str, str]
) -> None:
    contents = {"images": images, "size": size, "inputs": inputs, "files": files}
    with written_whole(folder / LIST) as new:
        new.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")


def _describe(reducer: Reducer) -> dict[str, Any]:
    """What tells one reducer from another, as JSON."""
    own = {field.name: _identity(getattr(reducer, field.name)) for field in fields(reducer)}
    kind = type(reducer)
    code = {} if kind.__module__.startswith("helpers.") else {"code": _identity(kind.reduce)}
    return {"reducer": kind.__name__, **own, **code}


def _identity(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """What tells a value from another of its kind, as JSON that is the same in every process.

    `seen` are functions around it.

    Raises ValueError for an object that gives nothing to tell it by.
    """
    identity = partial(_identity, seen=seen)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return _digest(torch.as_tensor(value))
    if isinstance(value, list | tuple | range):
        return [identity(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((identity(item) for item in value), key=json.dumps)
    if isinstance(value, dict):
        return [[identity(key), identity(item)] for key, item in value.items()]
    if isinstance(value, partial):
        return {
            "partial": identity(value.func),
            "arguments": identity(value.args),
            "keywords": identity(value.keywords),
        }
    if isinstance(value, FunctionType):
        return _of_function(value, seen)
    if isinstance(
        value, CodeType
    ):  # names and numbers, with the code of functions inside it; not the lines where it stands
        return [
            digest_of(value.co_code, length=16),
            list(value.co_names),
            identity(value.co_consts),
        ]
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(
        value, type | np.ufunc | MethodDescriptorType | BuiltinFunctionType
    ) and not _bound(value):
        return (
            f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value.__name__)}"
        )
    if (
        isinstance(value, np.generic | complex | bytes | torch.dtype | torch.device)
        or value is Ellipsis
    ):
        return repr(value)
    if isinstance(
        getattr(value, "__wrapped__", None), FunctionType
    ):  # a cache or a dispatcher around a function
        return identity(value.__wrapped__)
    raise ValueError(
        f"a {type(value).__qualname__} in what is captured cannot be told from another when the "
        "shards go on; "
        "give a function, or a functools.partial of one with plain arguments"
    )


def _bound(function: Any) -> bool:
    """Whether a function that is not written in Python belongs to an object with values of its
    own.
    """
    return not isinstance(getattr(function, "__self__", None), type | ModuleType | None)


def _of_function(function: Callable, seen: tuple[int, ...]) -> Any:
    """A library's function by its name, any other by its code and all that this refers to."""
    code, name = function.__code__, f"{function.__module__}.{function.__qualname__}"
    wrapped = getattr(function, "__wrapped__", None)
    if code.co_filename.startswith(
        LIBRARIES
    ):  # a library may also have put its wrapper around a function
        return name if wrapped is None else [name, _identity(wrapped, seen)]
    if id(function) in seen:
        return name
    names, cells = function.__globals__, function.__closure__ or ()
    read = {key: names[key] for key in _names(code) if key in names}
    refers = [
        function.__defaults__,
        function.__kwdefaults__,
        [cell.cell_contents for cell in cells],
        read,
    ]
    return [name, *(_identity(part, (*seen, id(function))) for part in (code, *refers))]


def _names(code: CodeType) -> list[str]:
    """The global names that a piece of code reads, those of functions inside it too."""
    own = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    return sorted(
        own.union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))
    )


def _digest(x: Tensor) -> str:
    content = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return digest_of(f"{x.dtype} {tuple(x.shape)}", content, length=16)
