"""capture: one pass over the images, any set of reducers, memory independent of the number of images.

The model runs as it always does, with fused attention; hooks look at what passes by, reduce it at once on the device, and
one copy a batch brings the result to the CPU. No matrix of all queries by all keys outlives the hook that needed it.

A reducer is a small class: the `point` of a block it watches (see Backbone.watch), the `keys` it returns, and `reduce`,
which turns what it sees in one block into one tensor a key. `blocks` is "all", a sequence of block indices (negative ones
count from the end), or one index, which leaves the block dimension away.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from helpers.backbone import Attention, Backbone
from helpers.models import ModelUnavailable, load_backbone
from helpers.tokens import TokenLayout

Blocks = str | int | Sequence[int]
ROWS = 2**22  # numbers in one chunk of attention rows: 16 MB in float32


class Reducer:
    """What to keep of a forward pass."""

    point: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    needs_cls: ClassVar[bool] = False
    blocks: Blocks

    def reduce(self, x: Any, layout: TokenLayout) -> tuple[Tensor, ...]:
        """One tensor (image, ...) for each key, from what passes `point` in one block."""
        raise NotImplementedError


@dataclass(frozen=True)
class PatchNorms(Reducer):
    """'patch_norms' (image, block, patch): L2 norm of the residual stream after each block, before the final LayerNorm."""

    blocks: Blocks = "all"
    point = "residual"
    keys = ("patch_norms",)

    def reduce(self, x: Float[Tensor, "image token width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        return (_norm(layout.patch_tokens(x)),)


@dataclass(frozen=True)
class TokenNorms(Reducer):
    """'token_norms' (image, block, token): the same for every token, in the order of the layout."""

    blocks: Blocks = "all"
    point = "residual"
    keys = ("token_norms",)

    def reduce(self, x: Float[Tensor, "image token width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        return (_norm(x),)


@dataclass(frozen=True)
class ClsAttention(Reducer):
    """'cls_attention' (image, block[, head], token): softmax over all tokens of the [CLS] row, each head or their mean.

    The rows sum to one over all tokens; `layout.patch_tokens(a, dim=-1)` keeps the patches, not renormalised.
    """

    blocks: Blocks = (-1,)
    heads: str = "mean"
    point = "attention"
    keys = ("cls_attention",)
    needs_cls = True

    def __post_init__(self) -> None:
        if self.heads not in ("mean", "all"):
            raise ValueError(f"heads is '{self.heads}'; choose 'mean' or 'all'")

    def reduce(self, x: Attention, layout: TokenLayout) -> tuple[Tensor, ...]:
        row = x.cls_row(layout)
        return (row.mean(dim=1) if self.heads == "mean" else row,)


@dataclass(frozen=True)
class AttentionEntropy(Reducer):
    """'attention_entropy' (image, block): entropy of the attention of patch queries to all tokens, in nats, mean over heads
    and patches. At most ln(tokens). Queries go in chunks, so a batch never holds all its rows."""

    blocks: Blocks = "all"
    point = "attention"
    keys = ("attention_entropy",)

    def reduce(self, x: Attention, layout: TokenLayout) -> tuple[Tensor, ...]:
        images, heads, tokens, _ = x.k.shape
        keys, total = x.k.transpose(-1, -2).contiguous(), 0.0
        for query in layout.patch_tokens(x.q).split(max(1, ROWS // (images * heads * tokens)), dim=-2):
            log = (query @ keys).mul_(x.scale).log_softmax(dim=-1)
            total = total - torch.linalg.vecdot(log.exp(), log).sum(dim=(1, 2))
        return (total / (heads * layout.patches),)


@dataclass(frozen=True)
class FinalTokens(Reducer):
    """'final_tokens' (image, token, width): the last block's output, `norm=True` after the final LayerNorm."""

    norm: bool = False
    keys = ("final_tokens",)
    blocks = -1

    @property
    def point(self) -> str:
        return "final" if self.norm else "residual"

    def reduce(self, x: Float[Tensor, "image token width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        return (x,)


@dataclass(frozen=True)
class QKVNorms(Reducer):
    """'q_norms', 'k_norms', 'v_norms' (image, block, patch): L2 norms over the whole width, heads concatenated."""

    blocks: Blocks = (-1,)
    point = "attention"
    keys = ("q_norms", "k_norms", "v_norms")

    def reduce(self, x: Attention, layout: TokenLayout) -> tuple[Tensor, ...]:
        return tuple(_norm(_concatenated(part, layout)) for part in (x.q, x.k, x.v))


@dataclass(frozen=True)
class QKV(Reducer):
    """'q', 'k', 'v' (image, block, patch, width): queries, keys and values of the patches, heads concatenated."""

    blocks: Blocks = (-1,)
    point = "attention"
    keys = ("q", "k", "v")

    def reduce(self, x: Attention, layout: TokenLayout) -> tuple[Tensor, ...]:
        return tuple(_concatenated(part, layout) for part in (x.q, x.k, x.v))


@dataclass(frozen=True)
class MlpNeuronMax(Reducer):
    """'mlp_neuron_max' (image, block, hidden): each neuron's value of largest magnitude over the patches, with its sign."""

    blocks: Blocks = "all"
    point = "neurons"
    keys = ("mlp_neuron_max",)

    def reduce(self, x: Float[Tensor, "image token hidden"], layout: TokenLayout) -> tuple[Tensor, ...]:
        patches = layout.patch_tokens(x)
        low, high = patches.amin(dim=1), patches.amax(dim=1)
        return (torch.where(high >= -low, high, low),)


@dataclass(frozen=True)
class OnPatches(Reducer):
    """`name` (image, ...): `function` of the patches as a grid (image, row, column, width), at the patch embedding (before the
    position embedding) or after the block with the index `at`."""

    name: str
    function: Callable[[Tensor], Tensor]
    at: str | int = "embedding"

    @property
    def point(self) -> str:
        return "embedding" if self.at == "embedding" else "residual"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def blocks(self) -> Blocks:
        return 0 if self.at == "embedding" else self.at

    def reduce(self, x: Tensor, layout: TokenLayout) -> tuple[Tensor, ...]:
        return (self.function(x if self.at == "embedding" else layout.to_grid(layout.patch_tokens(x), dim=1)),)


def capture(
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    *,
    batch_size: int = 32,
    device: Any = None,
    dtype: torch.dtype = torch.float32,
    progress: bool | None = None,
) -> dict[str, Tensor]:
    """Run `images` through `backbone` once and return what the reducers keep.

    Args:
        images: a sequence of PIL images, or pixels (image, 3, height, width) that are ready for this model.
        reducers: what to keep; two reducers must not share a key.
        batch_size: images in one forward pass; the result does not depend on it (beyond float rounding).
        device: the model is moved there and stays; where it is now unless given.
        dtype: float32, or bfloat16 or float16 for mixed precision (autocast). What is returned is float32.
        progress: show a progress bar; only in a terminal unless given.

    Returns:
        key -> float32 CPU tensor, first dimension image.

    Raises:
        ValueError: no images, an unfit image size, block or reducer, a [CLS] row asked of a model without [CLS], or NaN or
            infinity in what a reducer returns.
    """
    layout, total = backbone.layout, len(images)
    wanted = _plan(backbone, reducers)
    if total == 0 or batch_size < 1:
        raise ValueError(f"{total} images in batches of {batch_size}; both numbers must be at least 1")
    if isinstance(images, Tensor) and tuple(images.shape[1:]) != (3, *backbone.image_size):
        raise ValueError(
            f"pixels {tuple(images.shape[1:])} do not fit {(3, *backbone.image_size)} of '{backbone.name}'; resize "
            f"them, or load it with their image_size (a multiple of its patch size {backbone.patch_size})"
        )
    if isinstance(images, Tensor) and not images.is_floating_point():
        raise ValueError(f"pixels of type {images.dtype}; capture takes normalised floats, or PIL images to normalise by itself")
    backbone.model.to(device)
    device, seen, handles = backbone.device, {}, []

    def watcher(block: int, group: list[Reducer]) -> Callable[[Any], None]:
        def see(x: Any) -> None:
            with torch.autocast(device.type, enabled=False):  # softmax and norms in float32 whatever the model runs in
                for reducer in group:
                    seen[reducer.keys, block] = reducer.reduce(x, layout)

        return see

    results: dict[str, Tensor] = {}
    try:
        for (point, block), group in wanted.items():
            handles.append(backbone.watch(point, block, watcher(block, group)))
        for start in tqdm(range(0, total, batch_size), disable=None if progress is None else not progress, unit="batch"):
            stop = min(start + batch_size, total)
            with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                backbone(_pixels(backbone, images, start, stop).to(device, torch.float32))
            for reducer in reducers:
                for key, value in _gather(backbone, reducer, seen).items():
                    if key not in results:  # here, outside inference mode, so that a probe may train on it
                        results[key] = torch.empty(total, *value.shape[1:])
                    results[key][start:stop] = value
                    if not results[key][start:stop].isfinite().all():
                        raise ValueError(
                            f"{reducer} returned NaN or infinity in '{key}' for images {start} to {stop - 1} "
                            f"of '{backbone.name}'; look at the images and the precision ({dtype})"
                        )
            seen.clear()
    finally:
        for handle in handles:
            handle.remove()
    return results


@dataclass(frozen=True)
class Captured:
    """What `capture` kept of one model, by key, and what is needed to read it once the model is gone."""

    tensors: dict[str, Tensor]
    layout: TokenLayout
    image_size: tuple[int, int]
    parameters: int
    depth: int
    source: dict[str, Any]

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    @property
    def resolution(self) -> str:
        """For figures, such as '224 x 224 px'."""
        return f"{self.image_size[0]} x {self.image_size[1]} px"


def capture_each(
    names: Sequence[str], images: Any, reducers: Sequence[Reducer], *, image_size: int | None = None, **options: Any
) -> tuple[dict[str, Captured], dict[str, str]]:
    """`capture` for one model after another, so that no more than one is in memory.

    Args:
        image_size: side in pixels, rounded down to a multiple of the model's patch; its own size unless given.
        options: as in `capture`.

    Returns:
        name -> what was kept, and name -> reason for the models whose weights cannot be had here.

    Raises ModelUnavailable where none can be had, and what `load_backbone` and `capture` raise.
    """
    captured, not_run = {}, {}
    for name in names:
        try:
            backbone = load_backbone(name)
        except ModelUnavailable as error:
            not_run[name] = str(error)
            continue
        if image_size is not None:
            rows, columns = (max(1, image_size // patch) * patch for patch in backbone.patch_size)
            backbone = load_backbone(name, image_size=(rows, columns))
        captured[name] = Captured(
            capture(backbone, images, reducers, **options),
            backbone.layout,
            backbone.image_size,
            backbone.parameters,
            backbone.depth,
            backbone.describe(),
        )
    if not captured:
        raise ModelUnavailable("; ".join(not_run.values()) or "no model was named; give at least one")
    return captured, not_run


def _plan(backbone: Backbone, reducers: Sequence[Reducer]) -> dict[tuple[str, int], list[Reducer]]:
    """(point, block) -> the reducers that look there, so that one hook serves them all."""
    wanted, keys = defaultdict(list), set()
    for reducer in reducers:
        if reducer.needs_cls:
            backbone.layout.require_cls()
        if clash := keys.intersection(reducer.keys):
            raise ValueError(f"two reducers return '{min(clash)}'; capture them in two passes or rename one")
        keys.update(reducer.keys)
        for block in set(_indices(backbone, reducer)):
            wanted[reducer.point, block].append(reducer)
    return wanted


def _indices(backbone: Backbone, reducer: Reducer) -> list[int]:
    """The blocks of a reducer, counted from 0."""
    depth, blocks = backbone.depth, reducer.blocks
    chosen = range(depth) if blocks == "all" else [blocks] if isinstance(blocks, int) else list(blocks)
    for block in chosen:
        if not isinstance(block, int) or not -depth <= block < depth:
            raise ValueError(f"no block {block!r} in '{backbone.name}'; choose 'all' or from -{depth} to {depth - 1}")
    return [block % depth for block in chosen]


def _gather(backbone: Backbone, reducer: Reducer, seen: dict[Any, tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """What a reducer saw in one batch, its blocks stacked."""
    missing = [block for block in _indices(backbone, reducer) if (reducer.keys, block) not in seen]
    if missing:
        raise ValueError(f"{reducer} saw nothing in blocks {missing} of '{backbone.name}': the forward pass went around its hook")
    per_block = zip(*(seen[reducer.keys, block] for block in _indices(backbone, reducer)), strict=True)
    return {
        key: values[0] if isinstance(reducer.blocks, int) else torch.stack(values, dim=1)
        for key, values in zip(reducer.keys, per_block, strict=True)
    }


def _pixels(backbone: Backbone, images: Any, start: int, stop: int) -> Tensor:
    if isinstance(images, Tensor):
        return images[start:stop]
    return torch.stack([backbone.preprocess(images[i]) for i in range(start, stop)])


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)


def _concatenated(x: Float[Tensor, "image head token dim"], layout: TokenLayout) -> Float[Tensor, "image patch width"]:
    return layout.patch_tokens(x).transpose(1, 2).flatten(-2)
