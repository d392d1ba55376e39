"""What a capture keeps, on disk: shards of a fixed number of images that outlive an interruption, a
full disk, a damaged file; and the long captures of a run, which go on from there when it was
killed.

A folder holds one safetensors file a shard, and `shards.json` with the inputs and the SHA-256 of
each file. A file is written under another name and renamed, and enters the list after that. To
capture into the same folder again computes only what is missing or damaged.
"""

import dis
import errno
import json
import math
import shutil
import sysconfig
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from helpers.capture.engine import capture, store
from helpers.capture.reducers import Reducer
from helpers.files import Workspace, digest_of, locked, written_whole
from helpers.models import Backbone

LIST = "shards.json"
IMAGES = 256  # in a shard of a run, more where a batch has more: what is lost when it is killed
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
        self._list = json.loads((self.folder / LIST).read_text(encoding="utf-8"))
        self.images, self.size = self._list["images"], self._list["size"]
        self.inputs: dict[str, Any] = self._list["inputs"]

    def __len__(self) -> int:
        """Number of shards when it is finished."""
        return -(-self.images // self.size)

    def name(self, index: int) -> str:
        """The file of shard `index`."""
        return f"{index:06d}.safetensors"

    def read(self, index: int) -> dict[str, Tensor]:
        """Key -> tensor (image, ...) of shard `index`.

        Raises ValueError where it is missing or damaged.
        """
        if (data := self.data(index)) is None:
            raise ValueError(
                f"shard {self.folder / self.name(index)} is missing or damaged; the same call of "
                "capture_shards makes it again"
            )
        return load(data)

    def data(self, index: int) -> bytes | None:
        """Shard `index` as it was written; None where it is missing or damaged."""
        path = self.folder / self.name(index)
        data = path.read_bytes() if path.is_file() else b""
        return data if self._list["files"].get(path.name) == digest_of(data) else None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """The shards in order, one at a time in memory."""
        return (self.read(index) for index in range(len(self)))

    def write(self, index: int, tensors: Mapping[str, Tensor]) -> None:
        """Put shard `index` in its place.

        Raises OSError where the disk is full; then nothing of it is left.
        """
        name = self.name(index)
        data = save({key: value.contiguous() for key, value in tensors.items()})
        try:
            with written_whole(self.folder / name) as new:
                new.write_bytes(data)
            self._list["files"][name] = digest_of(data)
            _write_list(self.folder, self._list)
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
    pixels = isinstance(images, Tensor)
    if not pixels and not hasattr(images, "describe"):
        raise ValueError(
            f"shards of a {type(images).__name__} cannot tell their images from others; give "
            "load_images(...) or pixels"
        )
    folder = Path(folder)
    inputs = {
        "model": backbone.describe() | {"configuration": backbone.configuration},
        "interventions": _identity(backbone.interventions),
        "images": _digest(images) if pixels else _told(images),
        "keep": [_describe(reducer) for reducer in reducers],
        "dtype": str(options.get("dtype", torch.float32)),
    }
    inputs = json.loads(json.dumps(inputs))
    try:
        # Each writes the list whole, and would strike out what the other has entered.
        with locked(folder, wait=False):
            shards = _begun(folder, inputs, len(images), size)
            report = options.get("report", lambda done: None)
            for index in range(len(shards)):
                if shards.data(index) is not None:
                    continue
                start, stop = index * size, min((index + 1) * size, len(images))
                part = images[start:stop] if pixels else images.select(range(start, stop))
                own = [reducer.of(start, stop) for reducer in reducers]
                options["report"] = lambda done, start=start: report(start + done)
                shards.write(index, capture(backbone, part, own, first=start, **options))
            return shards
    except BlockingIOError:
        raise BlockingIOError(
            f"another process captures into {folder} just now; wait for it, or choose another "
            "folder"
        ) from None


class OtherCapture(ValueError):
    """A folder holds the capture of something else."""


def _told(images: Any) -> dict[str, Any]:
    """What tells images from others: of `Images` their pixels, too, whatever they are called."""
    return images.describe() | {"pixels": getattr(images, "pixel_digest", None)}


def _begun(folder: Path, inputs: dict[str, Any], images: int, size: int) -> Shards:
    """The shards in `folder`, of which there may be none.

    Raises ValueError where they are those of something else.
    """
    if not (folder / LIST).is_file():
        begun = {"images": images, "size": size, "inputs": inputs, "files": {}}
        _write_list(folder, begun)
    shards = Shards(folder)
    here = {**inputs, "images in all": images, "images a shard": size}
    there = {**shards.inputs, "images in all": shards.images, "images a shard": shards.size}
    if differ := [key for key in here if here[key] != there.get(key)]:
        raise OtherCapture(
            f"{folder} holds the capture of something else ({', '.join(differ)}); choose another "
            "folder"
        )
    return shards


def _write_list(folder: Path, contents: dict[str, Any]) -> None:
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
    wrapped = getattr(value, "__wrapped__", None)  # of a cache or a dispatcher around a function
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor() | np.ndarray():
            return _digest(torch.as_tensor(value))
        case list() | tuple() | range():
            return [identity(item) for item in value]
        case set() | frozenset():
            return sorted((identity(item) for item in value), key=json.dumps)
        case dict():
            return [[identity(key), identity(item)] for key, item in value.items()]
        case partial():
            parts = {"partial": value.func, "arguments": value.args, "keywords": value.keywords}
            return {name: identity(part) for name, part in parts.items()}
        case FunctionType():
            return _of_function(value, seen)
        case CodeType():  # with the code of functions inside it; not the lines where it stands
            names, constants = list(value.co_names), identity(value.co_consts)
            return [digest_of(value.co_code, length=16), names, constants]
        case ModuleType():
            return value.__name__
        case np.generic() | complex() | bytes() | torch.dtype() | torch.device() | EllipsisType():
            return repr(value)
        case type() | np.ufunc() | MethodDescriptorType() | BuiltinFunctionType():
            # Not a method that is bound to an object with values of its own.
            if isinstance(getattr(value, "__self__", None), type | ModuleType | None):
                name = getattr(value, "__qualname__", value.__name__)
                return f"{getattr(value, '__module__', None)}.{name}"
    if isinstance(wrapped, FunctionType):
        return identity(wrapped)
    raise ValueError(
        f"a {type(value).__qualname__} in what is captured cannot be told from another when the "
        "shards go on; give a function, or a functools.partial of one with plain arguments"
    )


def _of_function(function: Callable, seen: tuple[int, ...]) -> Any:
    """A library's function by its name, any other by its code and all that this refers to."""
    code, name = function.__code__, f"{function.__module__}.{function.__qualname__}"
    if code.co_filename.startswith(LIBRARIES):
        # A library may also have put its wrapper around a function.
        wrapped = getattr(function, "__wrapped__", None)
        return name if wrapped is None else [name, _identity(wrapped, seen)]
    if id(function) in seen:
        return name
    names = function.__globals__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    read = {key: names[key] for key in _names(code) if key in names}
    refers = (code, function.__defaults__, function.__kwdefaults__, cells, read)
    return [name, *(_identity(part, (*seen, id(function))) for part in refers)]


def _names(code: CodeType) -> list[str]:
    """The global names that a piece of code reads, those of functions inside it too."""
    # A function reads them by LOAD_GLOBAL, a class within it by LOAD_NAME.
    reads = ("LOAD_GLOBAL", "LOAD_NAME")
    own = {step.argval for step in dis.get_instructions(code) if step.opname in reads}
    return sorted(
        own.union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))
    )


def _digest(x: Tensor) -> str:
    content = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return digest_of(f"{x.dtype} {tuple(x.shape)}", content, length=16)


def resumable(
    workspace: Workspace,
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    *,
    batch_size: int,
    into: Mapping[str, Any],
    first: int,
    **options: Any,
) -> dict[str, Tensor]:
    """As `capture` with these arguments, to the bit.

    Captures are told apart by their place among those of the notebook, which are the same each time
    it runs with the same inputs. What lies there of something else, as of pictures that were
    replaced since, gives way; what `capture_shards` refuses is computed as if nothing had been
    kept.
    """
    batches = -(-len(images) // batch_size)
    options["batch_size"] = batch_size
    options["report"] = lambda done: workspace.report(-(-done // batch_size), batches)
    size = max(1, IMAGES // batch_size) * batch_size
    kept = None
    if not into and not first and len(images) > size:
        place = workspace.folder / f"{workspace.finished + 1:04d}"
        keep = partial(capture_shards, place, backbone, images, reducers, size=size, **options)
        try:
            try:
                shards = keep()
            except OtherCapture:
                shutil.rmtree(place)
                shards = keep()
            whole: dict[str, Tensor] = {}
            for index, part in enumerate(shards):
                store(part, index * size, len(images), {}, whole)
            kept = whole
        except (ValueError, OSError):
            pass  # it cannot be kept, or cannot be computed: then the next line says why
    if kept is None:
        kept = capture(backbone, images, reducers, into=into, first=first, **options)
    workspace.end_pass()
    _list(workspace, backbone, len(images), reducers, kept)
    return kept


def _list(
    workspace: Workspace,
    backbone: Backbone,
    images: int,
    reducers: Sequence[Reducer],
    kept: Mapping[str, Tensor],
) -> None:
    """Add a capture to the list, and later an entry for each of its tensors that is let go.

    By a stub as many numbers of one image are kept as by the model that it stands for: where a
    dimension is the blocks, tokens, patches or side of the stub, it is taken as that of the model.
    """
    number, of, whole = workspace.finished, backbone.layout, backbone.stands_for
    shapes = {key: [*tensor.shape[1:]] for key, tensor in kept.items()}
    facts = {}
    if whole is not None:
        to, names = whole.layout, ("depth", "width", "widest", "parameters", "flops")
        # What one image costs in the model that the stub stands for.
        facts = {name: getattr(whole, name) for name in names} | {"tokens": to.tokens}
        lengths = {of.tokens: to.tokens, of.patches: to.patches, of.grid[0]: to.grid[0]}
        blocks = {key for reducer in reducers if reducer.blocks == "all" for key in reducer.keys}
        for key, shape in shapes.items():
            shape[:] = [lengths.get(length, length) for length in shape]
            if key in blocks and shape:
                shape[0] = whole.depth
    sizes = {key: math.prod(shape) for key, shape in shapes.items()}
    workspace.add({"model": backbone.name, "images": images, "kept": sizes} | facts)
    for key, tensor in kept.items():
        release = {"released": [number, key]}
        weakref.finalize(tensor.untyped_storage(), workspace.add, release).atexit = False
