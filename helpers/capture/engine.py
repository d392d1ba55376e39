"""One pass over the images, any set of reducers, memory independent of the number of images.

The model runs as it always does, with fused attention; hooks look at what passes by, reduce it at
once on the device, and one copy a batch brings the result to the CPU. No matrix of all queries by
all keys outlives the hook that needed it.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from tqdm import tqdm

from helpers.capture.inputs import as_images, batches_of, check_pixels
from helpers.capture.reducers import Reducer
from helpers.capture.store import Store, put, through
from helpers.files import Workspace
from helpers.models import Backbone

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 2**22  # bytes of an activation on a CPU; beyond them a layer waits for the memory

# called as `capture`, with all its options but `engine`, `report` and `store`
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
    store: Store | Literal["machine"] | None = "machine",
) -> dict[str, Tensor]:
    """Run `images` through `backbone` once and return what the reducers keep.

    Args:
        images: a sequence of PIL images, paths or arrays (height, width, 3) of uint8; or pixels
            (image, 3, height, width) that are ready for this model. Also a data set whose items are
            one of these, a tuple that begins with one (torchvision's ImageFolder), or a dictionary
            with one as 'pixel_values', 'image' or 'img'; of a DataLoader its data set, in order.
        reducers: what to keep, a list; two reducers must not share a key.
        batch_size: images in one forward pass; on a CPU it passes in parts that its cache holds.
            The result does not depend on it (beyond float rounding). Where they do not fit into
            memory it is halved, with a warning.
        device: the model is moved there and stays; where it is now unless given.
        dtype: float32, or bfloat16 or float16 for mixed precision (autocast), also as text; no
            other. What is returned is float32.
        workers: processes that load images, 0 for this one; on a GPU unless given as many as this
            process computes with threads, at most 16 and one a batch, else none.
        progress: show a progress bar; only in a terminal unless given.
        into: key -> summaries, of which each has an `update` that gets each batch of it, in
            order. Such a key is not returned, so memory does not grow with the images, and such a
            pass is not stored.
        engine: what computes instead of this process, such as `capture_ray` of
            helpers/capture/cluster.py.
        first: where the first of the images stands in a larger set that is captured in parts, for
            interventions that treat each image in its own way.
        report: called after each batch with the number of images that are done. Unless given, a
            run's workspace hears of it (helpers/files.py).
        store: where what was captured before is read, and the rest is stored (`Store`); None for
            nowhere. Unless given, what the variable REGISTERS_CACHE names.

    Returns:
        key -> float32 CPU tensor, first dimension image.

    Raises:
        MemoryError: one image does not fit.
        RuntimeError: a process that loads images died.
        ValueError: no images or what is none, an unfit image size, block or reducer, what a reducer
            needs and the model has not (a [CLS] token, MLP neurons, rows of attention), positions
            that do not fit the images or the grid, or NaN or infinity in what a reducer returns.
    """
    dtype, images, reducers = _precision(dtype), as_images(images), _listed(reducers)
    plan = _plan(backbone, reducers, len(images))
    into = {key: list(summaries) for key, summaries in into.items()}
    if unknown := into.keys() - {key for reducer in reducers for key in reducer.keys}:
        raise ValueError(
            f"no reducer returns '{min(unknown)}', which a summary waits for; add one that does"
        )
    if len(images) == 0 or batch_size < 1 or (workers or 0) < 0:
        raise ValueError(
            f"{len(images)} images in batches of {batch_size} with {workers} workers; take at "
            "least 1, 1 and 0"
        )
    if isinstance(images, Tensor):
        check_pixels(backbone, images)
    options = {
        "batch_size": batch_size,
        "device": device,
        "dtype": dtype,
        "workers": workers,
        "progress": progress,
        "into": into,
        "first": first,
    }
    store = Store.of_machine() if store == "machine" else store
    workspace = Workspace.of_this_run() if report is None else None
    if store is not None or workspace is not None:
        one_pass = partial(capture, backbone, **options, engine=engine, store=None)
        return through(store, workspace, one_pass, images, reducers, report)
    if engine is not None:
        return engine(backbone, images, reducers, **options)
    backbone.model.eval().to(device)
    batches = tqdm(
        batches_of(backbone, images, batch_size, workers),
        total=-(-len(images) // batch_size),
        disable=None if progress is None else not progress,
        unit="batch",
    )
    with ExitStack() as hooks:
        one = _Pass(backbone, plan, dtype, into, len(images), first)
        for (point, block), watched in one.watched().items():
            hooks.callback(backbone.watch(point, block, one.watcher(block, watched)).remove)
        return one.run(batches, batch_size, report or (lambda done: None))


def keep(
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
    put({key: value for key, value in values.items() if key not in into}, start, total, results)


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


def _plan(
    backbone: Backbone, reducers: Sequence[Reducer], images: int
) -> list[tuple[Reducer, list[int]]]:
    """Each reducer and its blocks, counted from 0.

    Raises ValueError for one that has nothing to read, or whose key another one has.
    """
    keys = [key for reducer in reducers for key in reducer.keys]
    if len({*keys}) < len(keys):
        twice = min(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"two reducers return '{twice}'; capture them in two passes or rename one")
    plan = [(reducer, _indices(backbone, reducer)) for reducer in reducers]
    for reducer, blocks in plan:
        reducer.check(images, backbone.layout)
        for block in blocks:
            try:
                backbone.require(reducer.point, block)
            except ValueError as error:
                raise ValueError(f"{type(reducer).__name__} has nothing to read: {error}") from None
    return plan


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


class _Output:
    """What one reducer keeps of one batch: for each of its keys one float32 tensor
    (image, [block,] ...) on the device.

    It is made in the first batch and used again in all others. Small tensors that live as long as a
    batch would lie between the large ones of the model, and keep the memory of these from being
    used again.
    """

    def __init__(self, reducer: Reducer, blocks: list[int]):
        self.reducer, self.blocks = reducer, blocks
        self.tensors: list[Tensor] = []
        self.missing = {*blocks}  # of which it has seen nothing yet

    def put(self, block: int, values: tuple[Tensor, ...]) -> None:
        """Take what the reducer made of one block."""
        alone = isinstance(self.reducer.blocks, int)
        if not self.tensors:
            extent = () if alone else (len(self.blocks),)
            self.tensors = [
                torch.empty(v.shape[:1] + extent + v.shape[1:], device=v.device) for v in values
            ]
        for whole, value in zip(self.tensors, values, strict=True):
            part = whole[: len(value)]
            for i, own in enumerate(self.blocks):
                if own == block:
                    (part if alone else part[:, i]).copy_(value)
        self.missing.discard(block)


class _Pass:
    """One pass of a model, where it is now, over images.

    What is kept gathers in `results` and `into`.
    """

    def __init__(
        self,
        backbone: Backbone,
        plan: list[tuple[Reducer, list[int]]],
        dtype: torch.dtype,
        into: Mapping[str, Sequence[Accumulator]],
        total: int,
        first: int,
    ):
        self.backbone, self.dtype, self.into = backbone, dtype, into
        self.total, self.first = total, first
        self.device, self.mixed = backbone.device, dtype != torch.float32
        self.outputs = [_Output(reducer, blocks) for reducer, blocks in plan]
        self.results: dict[str, Tensor] = {}
        self.span = 0, 0  # of the images in the present forward pass

    def watched(self) -> dict[tuple[str, int], list[_Output]]:
        """(point, block) -> what looks there, so that one hook serves them all."""
        places = defaultdict(list)
        for output in self.outputs:
            for block in {*output.blocks}:
                places[output.reducer.point, block].append(output)
        return places

    def watcher(self, block: int, outputs: Sequence[_Output]) -> Callable[[Any], None]:
        """What is called with what passes one point of `block`."""
        layout = self.backbone.layout

        def see(x: Any) -> None:
            # Softmax and norms in float32 whatever the model runs in.
            with torch.autocast(self.device.type, enabled=False) if self.mixed else nullcontext():
                for output in outputs:
                    reducer = output.reducer.of(*self.span)
                    output.put(block, reducer.reduce(x, layout))

        return see

    def run(
        self,
        batches: tqdm,
        batch_size: int,
        report: Callable[[int], object],
    ) -> dict[str, Tensor]:
        """The results of all batches.

        A batch that does not fit into memory passes in parts, and so do those after it.
        """
        waiting: list[tuple] = []
        most, done = _at_once(self.backbone, batch_size), 0
        for start, pixels in batches:
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
            report(done)
        for last in waiting:
            self.keep(*last)
        return self.results

    def forward(self, start: int, pixels: Tensor) -> dict[str, Tensor]:
        """What the reducers keep of these images, on the device, until the next call.

        Raises ValueError where a reducer saw nothing of a block.
        """
        self.span = start, start + len(pixels)
        for output in self.outputs:
            output.missing.update(output.blocks)
        mixed = torch.autocast(self.device.type, self.dtype, enabled=self.mixed)
        with torch.inference_mode(), mixed:
            self.backbone.next_image = self.first + start
            self.backbone(pixels.to(self.device, torch.float32, non_blocking=True))
        kept = {}
        for output in self.outputs:
            if output.missing:
                raise ValueError(
                    f"{output.reducer} saw nothing in blocks {sorted(output.missing)} of "
                    f"'{self.backbone.name}': the forward pass went around its hook"
                )
            for key, tensor in zip(output.reducer.keys, output.tensors, strict=True):
                kept[key] = tensor[: len(pixels)]
        return kept

    def keep(self, start: int, values: dict[str, Tensor], ready: Callable[[], object]) -> None:
        """Put what has come to the CPU into its place."""
        ready()
        for key, value in values.items():
            # The sum, which may overflow, spares a look at each value.
            if not value.sum().isfinite() and not value.isfinite().all():
                reducer = next(o.reducer for o in self.outputs if key in o.reducer.keys)
                raise ValueError(
                    f"{reducer} returned NaN or infinity in '{key}' for images {start} to "
                    f"{start + len(value) - 1} of '{self.backbone.name}'; look at the images and "
                    f"the precision ({self.dtype})"
                )
        keep(values, start, self.total, self.into, self.results)


def _at_once(backbone: Backbone, batch_size: int) -> int:
    """The images of a batch that pass together: all on a GPU, on a CPU as many as its cache holds
    between the layers of an MLP, taken as four times as wide as the stream.
    """
    image = 4 * 4 * backbone.width * backbone.layout.tokens  # bytes in float32
    return batch_size if backbone.device.type == "cuda" else min(batch_size, WIDEST // image or 1)


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
