"""One pass over the images, any set of reducers, memory independent of the number of images.

The model runs as it always does, with fused attention; hooks look at what passes by, reduce it at
once on the device, and one copy a batch brings the result to the CPU. No matrix of all queries by
all keys outlives the hook that needed it.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from tqdm import tqdm

from helpers.capture.inputs import as_images, batches_of
from helpers.capture.reducers import Reducer
from helpers.files import Workspace
from helpers.models import Backbone

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# called as `capture`, with all its options but `engine` and `report`
Engine = Callable[..., dict[str, Tensor]]


@runtime_checkable
class Accumulator(Protocol):
    """A summary that takes one batch (image, ...) after another."""

    def update(self, values: Tensor) -> object: ...


def capture(
    backbone: Backbone,
    images: Any,
    reducers: Any,
    *,
    batch_size: int = 32,
    device: Any = None,
    dtype: torch.dtype | str = torch.float32,
    workers: int | None = None,
    progress: bool | None = None,
    into: Mapping[str, Iterable[Accumulator]] = MappingProxyType({}),
    engine: Engine | None = None,
    first: int = 0,
    report: Callable[[int], object] | None = None,
) -> dict[str, Tensor]:
    """Run `images` through `backbone` once and return what the reducers keep.

    Args:
        images: a sequence of PIL images, paths or arrays (height, width, 3) of uint8; or pixels
            (image, 3, height, width) that are ready for this model. Also a data set whose items are
            one of these, or a tuple that begins with one (torchvision's ImageFolder); of a
            DataLoader its data set, in order.
        reducers: what to keep, a list; two reducers must not share a key.
        batch_size: images in one forward pass; the result does not depend on it (beyond float
            rounding). Where they do not fit into memory it is halved, with a warning.
        device: the model is moved there and stays; where it is now unless given.
        dtype: float32, or bfloat16 or float16 for mixed precision (autocast), also as text; no
            other. What is returned is float32.
        workers: processes that load images, 0 for this one; on a GPU one a core unless given, at
            most 16, else none.
        progress: show a progress bar; only in a terminal unless given.
        into: key -> summaries, of which each has an `update` that gets each batch of it, in
            order. Such a key is not returned, so memory does not grow with the images;
            helpers/capture/shards.py keeps what is to be kept on disk.
        engine: what computes instead of this process, such as `capture_ray` of
            helpers/capture/cluster.py.
        first: where the first of the images stands in a larger set that is captured in parts, for
            interventions that treat each image in its own way.
        report: called after each batch with the number of images that are done. Unless given, a
            run's workspace hears of it and keeps long captures (helpers/files.py).

    Returns:
        key -> float32 CPU tensor, first dimension image.

    Raises:
        MemoryError: one image does not fit.
        RuntimeError: a process that loads images died.
        ValueError: no images or what is none, an unfit image size, block or reducer, what a reducer
            needs and the model has not (a [CLS] token, MLP neurons, rows of attention), positions
            that do not fit the images or the grid, or NaN or infinity in what a reducer returns.
    """
    into = {key: list(summaries) for key, summaries in into.items()}
    dtype, images, reducers = _precision(dtype), as_images(images), _listed(reducers)
    wanted = _plan(backbone, reducers, len(images))
    _check(backbone, images, reducers, batch_size, workers, into)
    options = {
        "batch_size": batch_size,
        "device": device,
        "dtype": dtype,
        "workers": workers,
        "progress": progress,
        "into": into,
        "first": first,
    }
    if engine is not None:
        return engine(backbone, images, reducers, **options)
    if report is None and (workspace := Workspace.of_this_run()):
        from helpers.capture.shards import resumable  # here, since that module imports this one

        return resumable(workspace, backbone, images, reducers, **options)
    backbone.model.eval().to(device)
    batches = batches_of(backbone, images, batch_size, workers)
    with ExitStack() as hooks:
        one = _Pass(backbone, reducers, dtype, into, len(images), first)
        for (point, block), group in wanted.items():
            hooks.callback(backbone.watch(point, block, one.watcher(block, group)).remove)
        return one.run(batches, batch_size, progress, report)


def store(
    values: Mapping[str, Tensor],
    start: int,
    total: int,
    into: Mapping[str, Sequence[Accumulator]],
    results: dict[str, Tensor],
) -> None:
    """Put what was kept of the images from `start` on, of `total`, into its place."""
    for key, value in values.items():
        for summary in into.get(key, ()):
            summary.update(value.clone())  # a summary may hold on to what it gets
        if key not in into:
            if key not in results:  # outside inference mode, so that a probe may train on it
                results[key] = torch.empty(total, *value.shape[1:])
            results[key][start : start + len(value)] = value


def _listed(reducers: Any) -> Sequence[Reducer]:
    """The reducers. Raises ValueError where they are none, in one sentence."""
    listed = isinstance(reducers, Iterable) and not isinstance(reducers, str)
    reducers = list(reducers) if listed else [reducers]
    for reducer in reducers:
        if not listed or not isinstance(reducer, Reducer):
            raise ValueError(
                f"reducers: {reducer!r} is {'no reducer' if listed else 'no list'}; give a list of "
                "those of helpers.capture, such as [PatchNorms()]"
            )
    return reducers


def _precision(dtype: torch.dtype | str) -> torch.dtype:
    """The dtype, or the one that a text such as 'bfloat16' names.

    Raises ValueError for another than DTYPES.
    """
    named = getattr(torch, str(dtype).removeprefix("torch."), None)
    if named not in DTYPES:
        raise ValueError(
            f"capture does not run in dtype {dtype}; choose one of {', '.join(map(str, DTYPES))}"
        )
    return named


def _check(
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    batch_size: int,
    workers: int | None,
    into: Mapping[str, Sequence[Accumulator]],
) -> None:
    """Raise ValueError for arguments of `capture` that do not fit one another."""
    if unknown := into.keys() - {key for reducer in reducers for key in reducer.keys}:
        raise ValueError(
            f"no reducer returns '{min(unknown)}', which a summary waits for; add one that does"
        )
    if len(images) == 0 or batch_size < 1 or (workers or 0) < 0:
        raise ValueError(
            f"{len(images)} images in batches of {batch_size} with {workers} workers; take at "
            "least 1, 1 and 0"
        )
    if not isinstance(images, Tensor):
        return
    if tuple(images.shape[1:]) != (3, *backbone.image_size):
        raise ValueError(
            f"pixels {tuple(images.shape[1:])} do not fit {(3, *backbone.image_size)} of "
            f"'{backbone.name}'; resize them, or load it with their image_size (a multiple of its "
            f"patch size {backbone.patch_size})"
        )
    if not images.is_floating_point():
        raise ValueError(
            f"pixels of type {images.dtype}; capture takes normalised floats, or PIL images to "
            "normalise by itself"
        )


@dataclass
class _Pass:
    """One pass of a model, where it is now, over images.

    What is kept gathers in `results` and `into`.
    """

    backbone: Backbone
    reducers: Sequence[Reducer]
    dtype: torch.dtype
    into: Mapping[str, Sequence[Accumulator]]
    total: int
    first: int
    results: dict[str, Tensor] = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)  # of the images in the present forward pass

    def __post_init__(self) -> None:
        self.device, self.mixed = self.backbone.device, self.dtype != torch.float32
        self.outputs = _Outputs(self.backbone, self.reducers)
        off = torch.autocast(self.device.type, enabled=False) if self.mixed else nullcontext()
        self.exact = off  # softmax and norms in float32 whatever the model runs in

    def run(
        self,
        batches: Iterator[tuple[int, Tensor]],
        batch_size: int,
        progress: bool | None,
        report: Callable[[int], object] | None,
    ) -> dict[str, Tensor]:
        """The results of all batches.

        A batch that does not fit into memory passes in parts, and so do those after it.
        """
        waiting: list[tuple] = []
        most, done, hide = batch_size, 0, None if progress is None else not progress
        total = -(-self.total // batch_size)
        for start, pixels in tqdm(batches, total=total, disable=hide, unit="batch"):
            while done < start + len(pixels):
                part = pixels[done - start :][:most]
                values = _or_none(self.forward, done, part)
                if values is None:
                    most = -(-len(part) // 2)
                    warnings.warn(
                        f"{len(part)} images do not fit into memory at once; going on with {most}",
                        stacklevel=3,
                    )
                    continue
                waiting.append((done, *_to_cpu(values)))
                done += len(part)
                # On a GPU the copy of one batch goes on while the next one is computed.
                if len(waiting) > (self.device.type == "cuda"):
                    self.keep(*waiting.pop(0))
            if report is not None:
                report(done)
        for last in waiting:
            self.keep(*last)
        return self.results

    def watcher(self, block: int, group: Sequence[Reducer]) -> Callable[[Any], None]:
        """What is called with what passes one point of `block`."""
        layout = self.backbone.layout

        def see(x: Any) -> None:
            with self.exact:
                for reducer in group:
                    self.outputs.put(reducer, block, reducer.of(*self.span).reduce(x, layout))

        return see

    def forward(self, start: int, pixels: Tensor) -> dict[str, Tensor]:
        """What the reducers keep of these images, on the device, until the next call."""
        self.span = start, start + len(pixels)
        mixed = torch.autocast(self.device.type, self.dtype, enabled=self.mixed)
        with torch.inference_mode(), mixed:
            self.outputs.seen.clear()
            self.backbone.next_image = self.first + start
            self.backbone(pixels.to(self.device, torch.float32, non_blocking=True))
        return self.outputs.of(len(pixels))

    def keep(self, start: int, values: dict[str, Tensor], ready: Callable[[], object]) -> None:
        """Put what has come to the CPU into its place."""
        ready()
        for key, value in values.items():
            # The sum, which may overflow, spares a look at each value.
            if not value.sum().isfinite() and not value.isfinite().all():
                reducer = next(reducer for reducer in self.reducers if key in reducer.keys)
                raise ValueError(
                    f"{reducer} returned NaN or infinity in '{key}' for images {start} to "
                    f"{start + len(value) - 1} of '{self.backbone.name}'; look at the images and "
                    f"the precision ({self.dtype})"
                )
        store(values, start, self.total, self.into, self.results)


def _plan(
    backbone: Backbone, reducers: Sequence[Reducer], images: int
) -> dict[tuple[str, int], list[Reducer]]:
    """(point, block) -> the reducers that look there, so that one hook serves them all."""
    wanted, keys = defaultdict(list), set()
    for reducer in reducers:
        reducer.check(images, backbone.layout)
        if clash := keys.intersection(reducer.keys):
            raise ValueError(
                f"two reducers return '{min(clash)}'; capture them in two passes or rename one"
            )
        keys.update(reducer.keys)
        for block in set(_indices(backbone, reducer)):
            try:
                backbone.require(reducer.point, block)
            except ValueError as error:
                raise ValueError(f"{type(reducer).__name__} has nothing to read: {error}") from None
            wanted[reducer.point, block].append(reducer)
    return wanted


def _indices(backbone: Backbone, reducer: Reducer) -> list[int]:
    """The blocks of a reducer, counted from 0."""
    depth, blocks = backbone.depth, reducer.blocks
    chosen = range(depth) if blocks == "all" else [blocks] if isinstance(blocks, int) else blocks
    wrong = [block for block in chosen if block not in range(-depth, depth)]
    if wrong or not len(chosen):
        what = f"no block {wrong[0]!r}" if wrong else f"{reducer} looks at no block"
        raise ValueError(
            f"{what} in '{backbone.name}'; choose 'all' or from -{depth} to {depth - 1}"
        )
    return [block % depth for block in chosen]


class _Outputs:
    """What the reducers keep of one batch: for each key one float32 tensor (image, [block,] ...) on
    the device.

    It is made in the first batch and used again in all others. Small tensors that live as long as a
    batch would lie between the large ones of the model, and keep the memory of these from being
    used again.
    """

    def __init__(self, backbone: Backbone, reducers: Sequence[Reducer]):
        self.name, self.reducers = backbone.name, reducers
        self.blocks = {reducer.keys: _indices(backbone, reducer) for reducer in reducers}
        self.tensors: dict[str, Tensor] = {}
        self.places: dict[tuple[str, int], list[Tensor]] = {}  # key, block -> parts of these
        self.seen: set[tuple[tuple[str, ...], int]] = set()

    def put(self, reducer: Reducer, block: int, values: tuple[Tensor, ...]) -> None:
        """Take what a reducer made of one block."""
        for key, value in zip(reducer.keys, values, strict=True):
            if key not in self.tensors:
                self._make(key, reducer, value)
            for place in self.places[key, block]:
                place[: len(value)].copy_(value)
        self.seen.add((reducer.keys, block))

    def _make(self, key: str, reducer: Reducer, like: Tensor) -> None:
        blocks, alone = self.blocks[reducer.keys], isinstance(reducer.blocks, int)
        shape = like.shape[:1] + (() if alone else (len(blocks),)) + like.shape[1:]
        self.tensors[key] = whole = torch.empty(shape, device=like.device)
        for i, block in enumerate(blocks):
            self.places.setdefault((key, block), []).append(whole if alone else whole[:, i])

    def of(self, images: int) -> dict[str, Tensor]:
        """Key -> tensor of so many images.

        Raises ValueError where a reducer saw nothing of a block.
        """
        for reducer in self.reducers:
            if missing := [
                block
                for block in self.blocks[reducer.keys]
                if (reducer.keys, block) not in self.seen
            ]:
                raise ValueError(
                    f"{reducer} saw nothing in blocks {missing} of '{self.name}': the forward pass "
                    "went around its hook"
                )
        return {key: value.narrow(0, 0, images) for key, value in self.tensors.items()}


def _or_none(
    forward: Callable[[int, Tensor], dict[str, Tensor]], start: int, pixels: Tensor
) -> dict[str, Tensor] | None:
    """`forward` of a batch; None where it does not fit into memory.

    Raises MemoryError where one image is too much.
    """
    try:
        return forward(start, pixels)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(
            error
        ):
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(pixels) == 1:
        size = " x ".join(map(str, pixels.shape[-2:]))
        raise MemoryError(
            f"not even one image of {size} px fits into memory; take a smaller model or image size"
        )
    return None


def _to_cpu(values: dict[str, Tensor]) -> tuple[dict[str, Tensor], Callable[[], object]]:
    """The values on the CPU, and what to call before they are read: the copies of a GPU are only
    begun here.
    """
    if not any(value.is_cuda for value in values.values()):
        return {key: value.cpu() for key, value in values.items()}, lambda: None
    copies = {
        key: torch.empty(v.shape, pin_memory=True).copy_(v, non_blocking=True)
        for key, v in values.items()
    }
    return copies, torch.cuda.current_stream().record_event().synchronize
