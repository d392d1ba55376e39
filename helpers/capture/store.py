"""What captures keep, on disk, and found again by what it is.

A file holds what one reducer keeps of up to 256 images. Its name is a digest of all that decides
these numbers: the weights as they are, how the model is built, how it is shown an image, the
interventions in force, the pictures in their order, the reducer with its arguments, the precision,
the kind of device, the versions of libraries and our own code. So another notebook finds it, a pass
runs for the reducers and images that are missing alone, and a run that was killed goes on where it
was. Batch size and threads are no part of it: they change rounding alone.

What cannot be told from something else is computed as ever, and not stored.
"""

import dis
import inspect
import json
import os
import re
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from importlib.metadata import version
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    EllipsisType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import PIL
import timm
import torch
import torchvision
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from helpers.capture.listed import listed
from helpers.capture.reducers import Reducer
from helpers.files import CACHE, DAY, Workspace, digest_of, written_whole
from helpers.images import Images
from helpers.models import Backbone

IMAGES = 256  # in one file, and so what a killed pass loses at most
FEWEST = 32  # images of a pass that is stored without being asked for: fewer are soon made again
GIGABYTES, LIMIT = 20.0, "REGISTERS_CACHE_GB"
SHARE = 0.5  # of the limit, for one reducer of one pass: more would push out all else
OURS = re.compile(r"\.?[0-9a-f]{64}\.safetensors(\.[0-9a-f]{32}\.new)?")
HELPERS = Path(__file__).parents[1]
# What a pass runs through.
CODE = ("models", "images", "interventions", "capture")
CODE += ("measures/attention.py", "measures/norms.py")  # that reducers call
LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
# Of these an object is what its attributes are; they make the pixels of a model.
TRANSFORMS = ("torchvision.transforms.", "timm.data.", "open_clip.")


class Untold(ValueError):
    """Something in a capture cannot be told from something else."""


@dataclass(frozen=True)
class Store:
    """A folder with what was captured.

    Several processes may use it at once: a file is there as a whole or not at all.

    Attributes:
        gigabytes: that its files may take; what was not used for the longest time goes first.
        fewest: images of a pass that it takes.
    """

    folder: Path
    gigabytes: float = GIGABYTES
    fewest: int = 0

    @classmethod
    def of_machine(cls, folder: str | None = None) -> "Store | None":
        """The one in `folder`, unless given what REGISTERS_CACHE names; None for '' and 'none'.

        Raises ValueError where REGISTERS_CACHE_GB is no positive number.
        """
        folder = os.environ.get(CACHE, "") if folder is None else folder
        text = os.environ.get(LIMIT) or str(GIGABYTES)
        if folder in ("", "none"):
            return None
        if not re.fullmatch(r"\d+(\.\d*)?", text) or not float(text):
            raise ValueError(f"{LIMIT} is {text!r}; give the gigabytes that captures may take")
        return cls(Path(folder).expanduser(), float(text), FEWEST)

    def path(self, name: str) -> Path:
        """Where what is called so lies."""
        return self.folder / f"{name}.safetensors"

    def read(self, name: str) -> dict[str, Tensor] | None:
        """Key -> tensor (image, ...); None where it is missing or damaged."""
        try:
            data = self.path(name).read_bytes()
            tensors = load(data)
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            if header["__metadata__"]["sha256"] != _sum(name, tensors):
                return None
            os.utime(self.path(name))  # what is used stays
        except (OSError, SafetensorError, ValueError, KeyError):
            return None
        return tensors

    def write(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Put it there. Raises OSError where it cannot be; then nothing of it is left."""
        data = save({**tensors}, {"sha256": _sum(name, tensors)})
        with written_whole(self.path(name)) as new:
            new.write_bytes(data)

    def files(self) -> list[tuple[float, int, Path]]:
        """When it was last used, bytes and path of each of its files, the oldest first."""
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if OURS.fullmatch(path.name):
                with suppress(FileNotFoundError):  # another process has removed it just now
                    found.append(((state := path.stat()).st_mtime, state.st_size, path))
        return sorted(found)

    def trim(self, gigabytes: float | None = None) -> None:
        """Remove what is above the limit, and what killed writers left a day ago."""
        limit = self.gigabytes if gigabytes is None else gigabytes
        files = self.files()
        excess = sum(size for _, size, _ in files) - limit * 1e9
        for used, size, path in files:
            if excess > 0 or (path.suffix == ".new" and used < time.time() - DAY):
                path.unlink(missing_ok=True)
                excess -= size


# ---- A pass through the store
# --------------------------------------------------------------------------------------------------


def through(
    store: Store | None,
    workspace: Workspace | None,
    one_pass: partial,
    images: Any,
    reducers: Sequence[Reducer],
    report: Callable[[int], object] | None,
) -> dict[str, Tensor]:
    """What `one_pass`, a `capture` but for its images and reducers, gives of these.

    What is in the store is read, and the rest stored; the workspace hears of it. A pass with
    summaries is not stored: what they sum up is too large to be kept.
    """
    (backbone,), options = one_pass.args, one_pass.keywords
    size, stub, names, read = options["batch_size"], backbone.stands_for is not None, [()], False
    if workspace is not None:
        batches = -(-len(images) // size)
        report = lambda done: workspace.report(-(-done // size), batches)  # noqa: E731
    report = report or (lambda done: None)
    if not options["into"] and (stub or store is not None and len(images) >= store.fewest):
        kind = torch.device(options["device"] or backbone.device).type
        # Of a stub's images there are few; the first one tells which they stand for.
        shown = (images[:1], [x.of(0, 1) for x in reducers]) if stub else (images, reducers)
        try:
            names = names_of(backbone, *shown, options["dtype"], kind, options["first"])
        except Untold as error:
            warnings.warn(f"{error} cannot be told from another: not stored", stacklevel=3)
    if names[0] and not stub:
        kept, read = stored(store, names, one_pass, images, reducers, report)
    else:
        kept = one_pass(images, reducers, report=report)
    if workspace is not None:
        workspace.end_pass()
        told = {"names": [*names[0]] if stub else [], "read": read}
        listed(workspace, backbone, len(images), reducers, kept, told)
    return kept


def stored(
    store: Store,
    names: Sequence[Sequence[str]],
    one_pass: partial,
    images: Any,
    reducers: Sequence[Reducer],
    report: Callable[[int], object],
) -> tuple[dict[str, Tensor], bool]:
    """What the reducers keep of the images: what is there is read, the rest computed and stored.

    A full disk, or a folder that cannot be written, costs the storing alone, with a warning.

    Args:
        names: from `names_of`; one_pass, images, reducers, report: as in `through`.

    Returns:
        key -> tensor (image, ...), and whether any of it was read.
    """
    results: dict[str, Tensor] = {}
    total, missing, offset = len(images), [], one_pass.keywords["first"]
    for index, own in enumerate(names):
        read = [store.read(name) for name in own]
        for tensors in filter(None, read):
            put(tensors, index * IMAGES, total, results)
        missing.append(tuple(i for i, tensors in enumerate(read) if tensors is None))
    shelves = []
    # Beside the pass: to write what is large takes as long as a batch.
    with ThreadPoolExecutor(1) as writer:
        for absent, group in groupby(range(len(names)), missing.__getitem__):
            if not absent:
                continue
            shards = [*group]
            start, stop = shards[0] * IMAGES, min((shards[-1] + 1) * IMAGES, total)
            into = {}
            for i in absent:
                write = partial(writer.submit, store.write)
                files = [names[index][i] for index in shards]
                shelf = _Shelf(store, write, files, reducers[i].keys, start, total, results)
                shelves.append(shelf)
                into |= {
                    key: [SimpleNamespace(update=partial(shelf.take, key))] for key in shelf.keys
                }
            one_pass(
                _part(images, start, stop),
                [reducers[i].of(start, stop) for i in absent],
                into=into,
                first=offset + start,
                report=lambda done, before=start: report(before + done),
            )
    backbone = one_pass.args[0]
    if one_pass.keywords["engine"] is None:  # as after a pass
        backbone.model.eval().to(one_pass.keywords["device"])
        backbone.next_image = offset + total
    errors = [error for shelf in shelves for one in shelf.writing if (error := one.exception())]
    if errors:
        told = getattr(errors[0], "strerror", None) or errors[0]
        warnings.warn(f"{len(errors)} parts of a capture were not stored: {told}", stacklevel=4)
    if shelves:
        with suppress(OSError):
            store.trim()
    whole = {key: results[key] for reducer in reducers for key in reducer.keys}
    return whole, any(len(own) < len(reducers) for own in missing)


def put(values: Mapping[str, Tensor], start: int, total: int, results: dict[str, Tensor]) -> None:
    """Put what was kept of the images from `start` on, of `total`, into its place."""
    for key, value in values.items():
        if key not in results:  # outside inference mode, so that a probe may train on it
            results[key] = torch.empty(total, *value.shape[1:])
        results[key][start : start + len(value)] = value


@dataclass
class _Shelf:
    """What one reducer keeps of the images from `start` on, batch after batch.

    Attributes:
        write: writes a file some time later.
        files: a name for each shard of these images.
        writing: what `write` gave.
    """

    store: Store
    write: Callable[[str, Mapping[str, Tensor]], Future]
    files: Sequence[str]
    keys: Sequence[str]
    start: int
    total: int
    results: dict[str, Tensor]
    done: dict[str, int] = field(default_factory=dict)
    writing: list[Future] = field(default_factory=list)

    def take(self, key: str, values: Tensor) -> None:
        """Take a batch (image, ...) of `key`; the keys of a batch come in their order."""
        at = self.done.get(key, self.start)
        put({key: values}, at, self.total, self.results)
        self.done[key] = at = at + len(values)
        if key != self.keys[-1] or self._is_large():
            return
        while len(self.writing) < len(self.files):
            start = self.start + len(self.writing) * IMAGES
            stop = min(start + IMAGES, self.total)
            if at < stop:
                break
            part = {key: self.results[key][start:stop] for key in self.keys}
            self.writing.append(self.write(self.files[len(self.writing)], part))

    def _is_large(self) -> bool:
        size = sum(self.results[key].nbytes for key in self.keys)
        return size > SHARE * self.store.gigabytes * 1e9


def _part(images: Any, start: int, stop: int) -> Any:
    if (start, stop) == (0, len(images)):
        return images
    return images.select(range(start, stop)) if isinstance(images, Images) else images[start:stop]


# ---- What a capture is
# --------------------------------------------------------------------------------------------------


def names_of(
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    dtype: torch.dtype,
    kind: str,
    first: int,
) -> list[list[str]]:
    """For each shard of images the name of what each reducer keeps of it.

    Args:
        backbone: inside the interventions that change it.
        kind: of the device that computes, such as "cuda".
        first: as in `capture`.

    Raises Untold where anything cannot be told from something else.
    """
    versions = {
        package.__name__: package.__version__ for package in (torch, torchvision, timm, np, PIL)
    }
    if backbone.family == "open_clip":
        versions["open_clip"] = version("open_clip_torch")
    settings = [str(dtype), kind, str(torch.get_default_dtype())]
    settings += [torch.get_float32_matmul_precision(), versions]
    common = digest_of(json.dumps([SOURCES, settings, _told_model(backbone, kind)]))
    names = []
    for start in range(0, len(images), IMAGES):
        stop = min(start + IMAGES, len(images))
        shown = _pictures(images, start, stop)
        # An intervention may treat each image in its own way, by its place.
        place = first + start if backbone.interventions else None
        own = [_describe(reducer.of(start, stop)) for reducer in reducers]
        names.append([digest_of(json.dumps([common, shown, place, one])) for one in own])
    return names


def _sum(name: str, tensors: Mapping[str, Tensor]) -> str:
    return digest_of(name, json.dumps({key: _digest(tensors[key]) for key in sorted(tensors)}))


def _digest(x: Tensor) -> str:
    content = x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    return digest_of(f"{x.dtype} {tuple(x.shape)}", content, length=32)


def _sources(places: Sequence[str]) -> str:
    """A digest of our code, as it was imported."""
    files = [path for place in places for path in sorted((HELPERS / place).rglob("*.py"))]
    files += [HELPERS / place for place in places if place.endswith(".py")]
    return digest_of(*(path.read_bytes() for path in files), length=32)


# What a pass runs through, and what functions that are given to a reducer may be.
SOURCES, MEASURES = _sources(CODE), _sources(["measures"])


def _told_model(backbone: Backbone, kind: str) -> Any:
    """What tells a model from another, as it is now and as it is shown images."""
    model = backbone.model
    if not _is_fixed(type(backbone).__module__):
        raise Untold(f"a model of the class {type(backbone).__qualname__}")
    unknown = backbone.hooks - backbone.own_hooks
    if unknown or torch_modules._global_forward_hooks or torch_modules._global_forward_pre_hooks:
        raise Untold("a hook that no intervention of helpers has set")
    if (
        torch.is_autocast_enabled(kind)
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
    ):
        raise Untold("a mode of torch around the capture")
    tensors, functions = {**dict(model.named_parameters()), **dict(model.named_buffers())}, []
    for name, part in model.named_modules():
        if not _is_fixed(type(part).__module__):
            raise Untold(f"a {type(part).__qualname__} in the model")
        for key, value in vars(part).items():
            if isinstance(value, Tensor):
                tensors[f"{name} {key}"] = value
            elif isinstance(value, FunctionType | MethodType | partial):  # as a `forward` set here
                functions.append([name, key, _identity(value)])
    for kind in {kind for part in model.modules() for kind in type(part).__mro__}:
        for value in [x for x in vars(kind).values() if isinstance(x, FunctionType)]:
            file = inspect.unwrap(value).__code__.co_filename
            if not file.startswith((*LIBRARIES, str(HELPERS), "<string>")):
                raise Untold(f"{value.__qualname__}, which took a method's place,")
    weights = [[key, _digest(value)] for key, value in sorted(tensors.items())]
    return [
        type(backbone).__qualname__,
        weights,
        functions,
        backbone.configuration,
        _identity(backbone.transform),
        repr(backbone.layout),
        list(backbone.image_size),
        _identity(backbone.interventions),
    ]


def _pictures(images: Any, start: int, stop: int) -> Any:
    """What tells the images from `start` to before `stop` from others: their pixels."""
    if isinstance(images, Tensor):
        return _digest(images[start:stop])
    if isinstance(images, Images):
        if images.contents is not None:
            found = [*images.contents[start:stop]]
            if "+" not in images.name:
                return found
            # Changed by what the name says, with chance drawn from seed and id. Of two sets that
            # were joined it does not say which is changed.
            if " and " not in images.name:
                return [images.name, images.seed, found, images.ids[start:stop]]
        return [_picture(images[index]) for index in range(start, stop)]
    if isinstance(images, list | tuple):
        return [_picture(one) for one in images[start:stop]]
    raise Untold(f"images in a {type(images).__qualname__}")


def _picture(one: Any) -> str:
    if isinstance(one, Image.Image):
        return digest_of(f"{one.mode} {one.size}", one.convert("RGBA").tobytes(), length=32)
    if isinstance(one, Tensor | np.ndarray):
        return _identity(one)
    if isinstance(one, str | os.PathLike):
        with suppress(OSError):  # the pass says what is wrong with it
            return digest_of(Path(one).read_bytes(), length=32)
    raise Untold(f"an image that is a {type(one).__qualname__}")


def _describe(reducer: Reducer) -> Any:
    """What tells one reducer from another, as JSON."""
    told: list[Any] = []
    for kind in type(reducer).__mro__[:-1]:
        told.append(f"{kind.__module__}.{kind.__qualname__}")
        if _is_fixed(kind.__module__):
            continue
        for name, value in vars(kind).items():
            value = getattr(value, "fget", value)  # of a property
            made = getattr(getattr(value, "__code__", None), "co_filename", "") == "<string>"
            if not made and (name[:2] != "__" or isinstance(value, FunctionType)):
                told.append([name, _identity(value, (id(kind),))])
    return [told, *([one.name, _identity(getattr(reducer, one.name))] for one in fields(reducer))]


def _is_fixed(module: str) -> bool:
    """Whether versions or digests of sources tell what is in a module."""
    if module.startswith("helpers."):
        return module.split(".")[1] in (*CODE, "measures")
    if module in sys.builtin_module_names:
        return True
    return (getattr(sys.modules.get(module), "__file__", None) or "").startswith(LIBRARIES)


def _name(module: str, name: str) -> Any:
    """What tells something in a fixed module."""
    return [module, name, MEASURES if module.startswith("helpers.measures") else None]


def _identity(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """What tells a value from another of its kind, as JSON that is the same in every process.

    `seen` are functions and classes around it, by `id`.

    Raises Untold for an object that gives nothing to tell it by.
    """
    identity = partial(_identity, seen=seen)
    wrapped = getattr(value, "__wrapped__", None)  # of a cache or a dispatcher around a function
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor() | np.ndarray():
            return _digest(torch.tensor(value) if isinstance(value, np.ndarray) else value)
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
        case ModuleType() if _is_fixed(value.__name__):
            return _name(value.__name__, "")
        case Enum():
            return repr(value)
        case np.ufunc() if getattr(np, value.__name__, None) is value:
            return value.__name__
        case type() if _is_fixed(value.__module__) or id(value) in seen:
            return _name(value.__module__, value.__qualname__)
        case np.generic() | complex() | bytes() | torch.dtype() | torch.device() | EllipsisType():
            return repr(value)
        case MethodDescriptorType() | BuiltinFunctionType():
            # Not a method that is bound to an object with values of its own.
            if isinstance(getattr(value, "__self__", None), type | ModuleType | None):
                name = getattr(value, "__qualname__", value.__name__)
                return f"{getattr(value, '__module__', None)}.{name}"
    if isinstance(wrapped, FunctionType):
        return identity(wrapped)
    kind, held = type(value), getattr(value, "__dict__", {})
    state = isinstance(value, nn.Module) and (value.state_dict() or [*value.children()])
    if kind.__module__.startswith(TRANSFORMS) and not state:
        own = {key: identity(item) for key, item in held.items() if key[0] != "_"}
        return [f"{kind.__module__}.{kind.__qualname__}", own]
    raise Untold(f"a {kind.__qualname__}")


def _of_function(function: Callable, seen: tuple[int, ...]) -> Any:
    """By its name where a fixed module has it, else by its code and all that this refers to."""
    code, name = function.__code__, f"{function.__module__}.{function.__qualname__}"
    if _is_fixed(module := function.__module__ or ""):
        with suppress(AttributeError):
            if attrgetter(function.__qualname__)(sys.modules[module]) is function:
                return _name(module, function.__qualname__)
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
    steps = [*dis.get_instructions(code)]
    if any(step.opname == "IMPORT_NAME" for step in steps):
        raise Untold("a function that imports when it is called")
    own = {step.argval for step in steps if step.opname in reads}
    return sorted(
        own.union(*(_names(part) for part in code.co_consts if isinstance(part, CodeType)))
    )
