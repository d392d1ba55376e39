"""One pass over the images, any set of reducers, memory independent of the number of images.

The model runs as it always does, with fused attention; hooks look at what passes by, reduce it at
once on the device, and one copy a batch brings the result to the CPU.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from helpers.capture import cache
from helpers.capture.inputs import batches_of, check_pixels, rows_of
from helpers.capture.reducers import AttentionReceived, Blocks, ClsAttention, Reducer
from helpers.models import Backbone, backbone_of

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CACHED_BYTES = 2**22  # bytes of an activation on a CPU; beyond them a layer waits for the memory


def capture(
    model: str | nn.Module | Backbone,
    images: Any,
    reducers: Iterable[Reducer],
    *,
    batch_size: int = 32,
    device: Any = None,
    dtype: torch.dtype | str = torch.float32,
    workers: int | None = None,
    progress: bool | None = None,
    into: Mapping[str, Callable[[Tensor], object]] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Run `images` through the model once and return what the reducers keep.

    Where the variable REGISTERS_CACHE names a folder, it is kept there, and read again.

    Args:
        model: what `load_backbone` takes, or a Backbone with the interventions that are active.
        images: a sequence of PIL images, paths or arrays (height, width, 3), such as `Images`, or
            of rows with one; or pixels (image, 3, height, width) that are ready for this model.
        reducers: what to keep; two must not share a key.
        batch_size: images in one forward pass; on a CPU it passes in parts that its cache holds.
            Where they do not fit into memory it is halved, with a warning.
        device: the model is moved there and stays; where it is now unless given.
        dtype: float32, or bfloat16 or float16 for mixed precision (autocast), also as text.
        workers: processes that load images, 0 for this one; on a GPU unless given as many as this
            process computes with threads, at most 16 and one a batch, else none.
        progress: show a progress bar; only in a terminal unless given.
        into: key -> what is called with each batch (image, ...) of it, in order, such as a sum.
            Such a key is not returned, so that memory does not grow with the images.

    Returns:
        key -> float32 CPU tensor, first dimension image.

    Raises ValueError for what a reducer needs and the model has not (a [CLS] token, MLP neurons,
    rows of attention), and NaN or infinity in what a reducer returns.
    """
    dtype, reducers = _precision(dtype), list(reducers)
    backbone, images = backbone_of(model), rows_of(images)
    plan = _plan(backbone, reducers, len(images))
    if isinstance(images, Tensor):
        check_pixels(backbone, images)
    backbone.model.eval().to(device)
    path = None if into else cache.path_of(backbone, images, reducers, dtype)
    if path is not None and path.exists():
        kept = cache.read(path)
        return {key: kept[key] for reducer in reducers for key in reducer.keys}
    batches = tqdm(
        batches_of(backbone, images, batch_size, workers),
        total=-(-len(images) // batch_size),
        disable=None if progress is None else not progress,
        unit="batch",
    )
    with ExitStack() as hooks:
        one = _Pass(backbone, plan, dtype, into, len(images))
        for (point, block), outputs in one.outputs_by_place().items():
            hooks.callback(backbone.watch(point, block, one.hook(block, outputs)).remove)
        kept = one.run(batches, batch_size)
    if path is not None:
        cache.write(path, kept)
    return kept


def cls_attention(
    model: str | nn.Module | Backbone,
    images: Any,
    *,
    blocks: Blocks = -1,
    heads: str = "mean",
    **options: Any,
) -> Float[Tensor, "image *block_head token"]:
    """The attention of [CLS] to each token, as `ClsAttention` has it. Options as in `capture`."""
    return capture(model, images, [ClsAttention(blocks, heads)], **options)["cls_attention"]


def attention_received(
    model: str | nn.Module | Backbone,
    images: Any,
    *,
    blocks: Blocks = -1,
    heads: str = "mean",
    **options: Any,
) -> Float[Tensor, "image *block_head token"]:
    """As `cls_attention`, what `AttentionReceived` keeps: no [CLS] is needed."""
    reducers = [AttentionReceived(blocks, heads)]
    return capture(model, images, reducers, **options)["attention_received"]


def _precision(dtype: torch.dtype | str) -> torch.dtype:
    """The dtype, or the one that a text such as 'bfloat16' names."""
    named = getattr(torch, str(dtype).removeprefix("torch."), None)
    if named not in DTYPES:
        raise ValueError(f"dtype {dtype}; choose one of {', '.join(map(str, DTYPES))}")
    return named


def _plan(
    backbone: Backbone, reducers: Sequence[Reducer], images: int
) -> list[tuple[Reducer, list[int]]]:
    """Each reducer and its blocks, counted from 0."""
    keys = [key for reducer in reducers for key in reducer.keys]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise ValueError(f"two reducers return '{min(twice)}'; capture them in two passes")
    if not images:
        raise ValueError("no images; give at least 1")
    plan = [(reducer, _indices(backbone, reducer)) for reducer in reducers]
    for reducer, _ in plan:
        reducer.check(images, backbone.layout)
    return plan


def _indices(backbone: Backbone, reducer: Reducer) -> list[int]:
    """The blocks of a reducer, counted from 0."""
    depth, blocks = backbone.depth, reducer.blocks
    chosen = range(depth) if blocks == "all" else [blocks] if isinstance(blocks, int) else blocks
    wrong = [block for block in chosen if block not in range(-depth, depth)]
    if wrong or not len(chosen):
        raise ValueError(
            f"{reducer}: blocks {wrong} are not in '{backbone.name}'; choose 'all' or from "
            f"-{depth} to {depth - 1}"
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

    def put(self, block: int, values: Any) -> None:
        """Take what the reducer made of one block.

        Raises TypeError where that is no tuple with a tensor for each key.
        """
        if not isinstance(values, tuple) or len(values) != len(self.reducer.keys):
            keys = ", ".join(self.reducer.keys)
            name = type(self.reducer).__name__
            raise TypeError(f"{name}.reduce must return a tuple with a tensor for {keys}")
        is_one = isinstance(self.reducer.blocks, int)
        if not self.tensors:
            extent = () if is_one else (len(self.blocks),)
            self.tensors = [
                torch.empty(v.shape[:1] + extent + v.shape[1:], device=v.device) for v in values
            ]
        for whole, value in zip(self.tensors, values, strict=True):
            part = whole[: len(value)]
            for i, wanted in enumerate(self.blocks):
                if wanted == block:
                    (part if is_one else part[:, i]).copy_(value)
        self.missing.discard(block)


class _Pass:
    """One pass of a model, where it is now, over images; what is kept gathers in `results`."""

    def __init__(
        self,
        backbone: Backbone,
        plan: list[tuple[Reducer, list[int]]],
        dtype: torch.dtype,
        into: Mapping[str, Callable[[Tensor], object]],
        total: int,
    ):
        self.backbone, self.dtype, self.into, self.total = backbone, dtype, into, total
        self.device, self.mixed = backbone.device, dtype != torch.float32
        self.outputs = [_Output(reducer, blocks) for reducer, blocks in plan]
        self.results: dict[str, Tensor] = {}
        self.image_range = 0, 0  # of the images in the present forward pass

    def outputs_by_place(self) -> dict[tuple[str, int], list[_Output]]:
        """(point, block) -> what looks there, so that one hook serves them all."""
        places = defaultdict(list)
        for output in self.outputs:
            for block in {*output.blocks}:
                places[output.reducer.point, block].append(output)
        return places

    def hook(self, block: int, outputs: Sequence[_Output]) -> Callable[[Any], None]:
        """What is called with what passes one point of `block`."""
        layout = self.backbone.layout

        def reduce(x: Any) -> None:
            # Softmax and norms in float32 whatever the model runs in.
            with torch.autocast(self.device.type, enabled=False) if self.mixed else nullcontext():
                for output in outputs:
                    reducer = output.reducer.of(*self.image_range)
                    output.put(block, reducer.reduce(x, layout))

        return reduce

    def run(self, batches: tqdm, batch_size: int) -> dict[str, Tensor]:
        """The results of all batches.

        A batch that does not fit into memory passes in parts, and so do those after it.
        """
        waiting: list[tuple] = []
        most, done = batch_size, 0
        if self.device.type != "cuda":  # as many as the cache holds between the layers of an MLP
            image_bytes = 4 * 4 * self.backbone.width * self.backbone.layout.tokens  # in float32
            most = min(batch_size, CACHED_BYTES // image_bytes or 1)
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
        for last in waiting:
            self.keep(*last)
        return self.results

    def forward(self, start: int, pixels: Tensor) -> dict[str, Tensor]:
        """What the reducers keep of these images, on the device, until the next call."""
        self.image_range = start, start + len(pixels)
        for output in self.outputs:
            output.missing.update(output.blocks)
        mixed = torch.autocast(self.device.type, self.dtype, enabled=self.mixed)
        with torch.inference_mode(), mixed:
            self.backbone.next_image = start
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
            if key in self.into:
                self.into[key](value)
                continue
            if key not in self.results:  # outside inference mode, so that a probe may train on it
                self.results[key] = torch.empty(self.total, *value.shape[1:])
            self.results[key][start : start + len(value)] = value


def _or_none(
    forward: Callable[[int, Tensor], dict[str, Tensor]], start: int, pixels: Tensor
) -> dict[str, Tensor] | None:
    """`forward` of a batch; None where it does not fit into memory."""
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
