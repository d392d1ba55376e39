"""capture: one pass over the images, any set of reducers, memory independent of the number of images.

The model runs as it always does, with fused attention; hooks look at what passes by, reduce it at once on the device, and
one copy a batch brings the result to the CPU. No matrix of all queries by all keys outlives the hook that needed it.

A reducer is a small class: the `point` of a block it watches (see Backbone.watch), the `keys` it returns, and `reduce`,
which turns what it sees in one block into one tensor a key. `blocks` is "all", a sequence of block indices (negative ones
count from the end), or one index, which leaves the block dimension away. A reducer that treats every image in its own way
says by `of` what it is for one batch. It keeps nothing between batches: a batch that does not fit into memory passes again in
parts, after hooks have seen it. What adds up is a summary, which gets each image once (`into` of `capture`).
"""

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from helpers.models import Attention, Backbone, TokenLayout, Update

Blocks = str | int | Sequence[int]
ROWS = 2**20  # numbers in one chunk of attention rows: 4 MB in float32, which a cache holds
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_WORKERS = 16  # processes that load images for one GPU, unless given
PARTS = ("patches", "registers", "cls", "bias", "skip")  # of [CLS] after an attention layer; the first three are attended to


@runtime_checkable
class Accumulator(Protocol):
    """A summary that takes one batch (image, ...) after another."""

    def update(self, values: Tensor) -> object: ...


class Reducer:
    """What to keep of a forward pass."""

    point: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    needs_cls: ClassVar[bool] = False
    blocks: Blocks

    def reduce(self, x: Any, layout: TokenLayout) -> tuple[Tensor, ...]:
        """One tensor (image, ...) for each key, from what passes `point` in one block, and from nothing else: the same images may
        pass more than once."""
        raise NotImplementedError

    def check(self, images: int, layout: TokenLayout) -> None:
        """Raise ValueError where this cannot be had of so many images with this layout."""
        if self.needs_cls:
            layout.require_cls()

    def of(self, start: int, stop: int) -> "Reducer":
        """The reducer for the images from `start` to before `stop`; itself where it treats all images alike."""
        return self


class LastBlock(Reducer):
    """Looks at the last block's output (image, token, width), `norm=True` after the final LayerNorm (fc_norm in a timm model that
    pools before it normalises)."""

    norm: bool
    blocks = -1

    @property
    def point(self) -> str:
        return "final" if self.norm else "residual"


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
    and patches. At most ln(tokens).

    With logits s and weights p = softmax(s), it is logsumexp(s) - sum p s, and sum p s is the query times the mean of the keys
    under p. Fused attention gives both when the keys take the place of the values, and holds no row of attention.
    """

    blocks: Blocks = "all"
    point = "attention"
    keys = ("attention_entropy",)

    def reduce(self, x: Attention, layout: TokenLayout) -> tuple[Tensor, ...]:
        queries = layout.patch_tokens(x.q)
        mean, total = _fused(queries, x.k, x.scale)
        entropy = total - torch.linalg.vecdot(queries, mean) * x.scale
        return (entropy.clamp(min=0).mean(dim=(1, 2)),)  # rounding may take a row that attends to one token below zero


@dataclass(frozen=True)
class FinalTokens(LastBlock):
    """'final_tokens' (image, token, width): the last block's output, `norm=True` after the final LayerNorm."""

    norm: bool = False
    keys = ("final_tokens",)

    def reduce(self, x: Float[Tensor, "image token width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        return (x,)


@dataclass(frozen=True)
class Pooled(LastBlock):
    """'cls' (image, width), 'patch_mean' (image, width) and 'registers' (image, register, width), trained registers before
    appended ones (none: length 0), of the last block, `norm=True` after the final LayerNorm."""

    norm: bool = True
    keys = ("cls", "patch_mean", "registers")
    needs_cls = True

    def reduce(self, x: Float[Tensor, "image token width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        registers = torch.cat([layout.register_tokens(x), layout.appended_tokens(x)], dim=1)
        return layout.cls_token(x), layout.patch_tokens(x).mean(dim=1, dtype=torch.float32), registers


@dataclass(frozen=True)
class ClsTokens(Reducer):
    """'cls_tokens' (image, block, width): [CLS] after each block, before the final LayerNorm (decoupling, Fig. 5b)."""

    blocks: Blocks = "all"
    point = "residual"
    keys = ("cls_tokens",)
    needs_cls = True

    def reduce(self, x: Float[Tensor, "image token width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        return (layout.cls_token(x),)


@dataclass(frozen=True)
class HighestToken(Reducer):
    """The token of highest norm among all tokens after a block (decoupling, section 3.2): 'highest_token' (image, width);
    'highest_token_normed' (image, width), the same after the next LayerNorm; 'highest_index' (image), where it stands in the
    sequence (see TokenLayout).

    The paper's text takes the penultimate block, whose output the last attention reads through that block's LayerNorm; this is
    what is returned unless given. Its figure says the last block: -1, with the final LayerNorm.
    """

    blocks: Blocks = -2
    point = "normed"
    keys = ("highest_token", "highest_token_normed", "highest_index")

    def reduce(self, x: tuple[Tensor, Tensor], layout: TokenLayout) -> tuple[Tensor, ...]:
        norms = _norm(x[0])
        # The first of those that are equal but for rounding, as registers that carry the same load are.
        index = (norms >= (1 - 1e-4) * norms.amax(dim=1, keepdim=True)).int().argmax(dim=1, keepdim=True)
        return *(tokens.take_along_dim(index[..., None], dim=1).squeeze(1) for tokens in x), index.squeeze(1)


@dataclass(frozen=True)
class ClsParts(Reducer):
    """What the attention layer of a block makes [CLS] of (decoupling, eqs. 3 and 6), exactly, before the block's MLP.

    'cls_parts' (image, part, width), in the order of PARTS: what the values of the patches, of the registers and of [CLS] itself
    contribute, after output projection and LayerScale; the bias of the output projection; and the skip connection, which is
    [CLS] as it enters the block. Their sum is 'cls_total' (image, width): [CLS] after the attention layer, as the model had it.
    'cls_mass' (image, 3): the attention of [CLS] to patches, registers and itself, mean over heads; it sums to one.

    A part is what is left where the attention to all other tokens is set to zero after the softmax ('set to zero', section 3.3);
    `ClsRenormalised` is the other reading. Registers are all tokens but patches and [CLS]: trained ones, appended ones, and the
    distillation token of distilled DeiT. With `split_bias` the bias of the value projection is in "bias": the
    weights sum to one, so it is the same for all images. Without, as in the paper, it is in the values, and each of the three has
    its share by mass. `blocks` that are several, or "all", give (image, block, ...).

    Raises ValueError for a block whose attention output is normalised, which is no sum of parts.
    """

    blocks: Blocks = -1
    split_bias: bool = False
    point = "update"
    keys = ("cls_parts", "cls_mass", "cls_total")
    needs_cls = True

    def reduce(self, x: Update, layout: TokenLayout) -> tuple[Tensor, ...]:
        weights = x.attention.cls_row(layout)[:, :, None]
        weights = weights * _attended(layout, weights.device)  # image, head, kind, token
        masses, bias = weights.sum(dim=-1, keepdim=True), x.bias
        values = x.attention.weighted(weights)
        if self.split_bias:
            common = x.attention.value_bias[:, None]
            values = values - masses * common
            bias = bias + x.contribution(common[None]).flatten()
        rest = torch.stack([bias.expand(len(values), -1), layout.cls_token(x.before)], dim=1)
        parts = torch.cat([x.contribution(values), rest], dim=1)
        return parts, masses.squeeze(-1).mean(dim=1), layout.cls_token(x.after)


@dataclass(frozen=True)
class ClsRenormalised(Reducer):
    """'cls_renormalised' (image, 3, width): what [CLS] would receive from a block's attention if it attended to patches only, to
    registers only, or to itself only, with weights that sum to one again in each head (decoupling, section 3.3, 'constrain the
    final self-attention layer'). After output projection and LayerScale, without bias and skip connection; registers as in
    `ClsParts`, zeros where there are none."""

    blocks: Blocks = -1
    point = "update"
    keys = ("cls_renormalised",)
    needs_cls = True

    def reduce(self, x: Update, layout: TokenLayout) -> tuple[Tensor, ...]:
        logits = x.attention.cls_logits(layout)[:, :, None]
        # Not by dividing the weights: a head may give a kind less than float32 can hold.
        weights = logits.masked_fill(~_attended(layout, logits.device), -torch.inf).softmax(dim=-1)
        return (x.contribution(x.attention.weighted(weights.nan_to_num(0.0))),)


@dataclass(frozen=True)
class PatchContributions(Reducer):
    """What each patch contributes to [CLS] in a block's attention (decoupling, section 3.4): 'contribution_norms' (image, patch),
    the L2 norm of its weighted value after output projection and LayerScale; 'contribution_cosines' (image, patch), its cosine
    with what all tokens contribute together, 0 where it contributes nothing.

    The contributions of the patches add up to the part "patches" of `ClsParts`, and those of all tokens to its first three. The
    bias is left out, as in eq. 3: it can be longer than all of them, and says nothing about the image.
    """

    blocks: Blocks = -1
    point = "update"
    keys = ("contribution_norms", "contribution_cosines")
    needs_cls = True

    def reduce(self, x: Update, layout: TokenLayout) -> tuple[Tensor, ...]:
        row = x.attention.cls_row(layout)
        total = x.contribution(x.attention.weighted(row[:, :, None])).mT
        patches = x.contribution(layout.patch_tokens(row, dim=-1)[..., None] * layout.patch_tokens(x.attention.v))
        # A contribution may be tiny (LayerScale starts at 1e-5), so the bound on a norm that counts as zero is lower than usual.
        cosines = F.normalize(patches, dim=-1, eps=1e-30) @ F.normalize(total, dim=1, eps=1e-30)
        return _norm(patches), cosines.squeeze(-1)


@dataclass(frozen=True)
class Feature(Reducer):
    """'feature' (image, width): the pooled feature before the classification head. DeiT's distilled models: that of [CLS], which
    has one of their two heads. open_clip's towers have no such head: what they return."""

    point = "feature"
    keys = ("feature",)
    blocks = 0

    def reduce(self, x: Float[Tensor, "image width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        return (x,)


@dataclass(frozen=True)
class Output(Reducer):
    """'output' (image, ...): what the model returns, class logits where it has a head."""

    point = "output"
    keys = ("output",)
    blocks = 0

    def reduce(self, x: Tensor, layout: TokenLayout) -> tuple[Tensor, ...]:
        return (x,)


@dataclass(frozen=True, eq=False)
class Selected(Reducer):
    """Looks at chosen patches of each image: `positions` are row-major indices of the patch grid, -1 is none."""

    positions: Int[Tensor, "image k"] = field(repr=False)

    def check(self, images: int, layout: TokenLayout) -> None:
        rows, columns = layout.grid
        shape, dtype = tuple(self.positions.shape), self.positions.dtype
        if dtype not in (torch.int32, torch.int64) or len(shape) != 2:
            raise ValueError(f"positions are {dtype} {shape}; give patch indices, integers of shape (image, k), not a mask")
        if shape[0] != images:
            raise ValueError(f"positions for {shape[0]} images, but {images} images are captured; give one row an image")
        outside = self.positions[(self.positions < -1) | (self.positions >= rows * columns)]
        if len(outside):
            raise ValueError(
                f"position {int(outside[0])} is not in the grid of {rows} x {columns} patches; "
                f"choose from 0 to {rows * columns - 1}, or -1 for none"
            )

    def of(self, start: int, stop: int) -> Reducer:
        return replace(self, positions=self.positions[start:stop])

    def chosen(self, patches: Float[Tensor, "image patch width"]) -> Float[Tensor, "image k width"]:
        """The rows of `patches` at the positions, zeros where there is none."""
        positions = self.positions.to(patches.device, torch.int64)[..., None]
        found = patches.gather(1, positions.clamp(min=0).expand(-1, -1, patches.shape[-1]))
        return found.masked_fill(positions < 0, 0.0)


@dataclass(frozen=True, eq=False)
class SelectedTokens(Selected, LastBlock):
    """'tokens' (image, k, width): the patches at `positions` (image, k) (-1: none, zeros) after the last block, `norm=True` after
    the final LayerNorm. Refused while an intervention has removed patches, since the indices then mean others."""

    norm: bool = True
    keys = ("tokens",)

    def reduce(self, x: Float[Tensor, "image token width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        return (self.chosen(layout.to_grid(layout.patch_tokens(x), dim=1).flatten(1, 2)),)


@dataclass(frozen=True, eq=False)
class SelectedPixels(Selected):
    """'pixels' (image, k, 3 x patch height x patch width): the normalised pixels of the patches at `positions` (image, k)
    (-1: none, zeros), channel-major: (3, height, width) flattened."""

    point = "pixels"
    keys = ("pixels",)
    blocks = 0

    def reduce(self, x: Float[Tensor, "image 3 height width"], layout: TokenLayout) -> tuple[Tensor, ...]:
        patch = tuple(side // count for side, count in zip(x.shape[-2:], layout.grid, strict=True))
        return (self.chosen(F.unfold(x, patch, stride=patch).mT),)


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
class OnQKV(Reducer):
    """`name` (image, block, ...): `function` of the queries "q", keys "k" or values "v" of the patches, heads concatenated, as a
    grid (image, row, column, width)."""

    name: str
    function: Callable[[Tensor], Tensor]
    part: str = "k"
    blocks: Blocks = -1
    point = "attention"

    def __post_init__(self) -> None:
        if self.part not in ("q", "k", "v"):
            raise ValueError(f"part is '{self.part}'; choose 'q', 'k' or 'v'")

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)

    def reduce(self, x: Attention, layout: TokenLayout) -> tuple[Tensor, ...]:
        return (self.function(layout.to_grid(_concatenated(getattr(x, self.part), layout), dim=1)),)


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
class NeuronActivation(Reducer):
    """`name` (image, patch): what the MLP neuron `unit` of block `at` does at each patch.

    Raises ValueError for a unit that is not there.
    """

    name: str
    at: int
    unit: int
    point = "neurons"

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def blocks(self) -> Blocks:
        return self.at

    def reduce(self, x: Float[Tensor, "image token hidden"], layout: TokenLayout) -> tuple[Tensor, ...]:
        if not 0 <= self.unit < x.shape[-1]:
            raise ValueError(f"no neuron {self.unit} in block {self.at}; choose from 0 to {x.shape[-1] - 1}")
        return (layout.patch_tokens(x)[..., self.unit],)


@dataclass(frozen=True)
class OnPatches(Reducer):
    """`name` (image, ...): `function` of the patches as a grid (image, row, column, width), at the patch "embedding" (before the
    position embedding) or after the block with the index `at`; (image, block, ...) where `at` is "all" or several indices."""

    name: str
    function: Callable[[Tensor], Tensor]
    at: Blocks = "embedding"

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
    workers: int | None = None,
    progress: bool | None = None,
    into: Mapping[str, Iterable[Accumulator]] = MappingProxyType({}),
    engine: Callable[..., dict[str, Tensor]] | None = None,
    first: int = 0,
) -> dict[str, Tensor]:
    """Run `images` through `backbone` once and return what the reducers keep.

    Args:
        images: a sequence of PIL images, or pixels (image, 3, height, width) that are ready for this model.
        reducers: what to keep; two reducers must not share a key.
        batch_size: images in one forward pass; the result does not depend on it (beyond float rounding). Where they do not
            fit into memory it is halved, with a warning.
        device: the model is moved there and stays; where it is now unless given.
        dtype: float32, or bfloat16 or float16 for mixed precision (autocast); no other. What is returned is float32.
        workers: processes that load images, 0 for this one; on a GPU one a core unless given, at most 16, else none.
        progress: show a progress bar; only in a terminal unless given.
        into: key -> summaries (helpers/measures/accumulators.py) that get each batch of it, in order. Such a key is not
            returned, so memory does not grow with the images; helpers/capture/shards.py keeps what is to be kept on disk.
        engine: what computes instead of this process, such as `helpers.cluster.capture_ray`; summaries then need `empty` and
            `merge`.
        first: where the first of the images stands in a larger set that is captured in parts, for interventions that treat each
            image in its own way.

    Returns:
        key -> float32 CPU tensor, first dimension image.

    Raises:
        MemoryError: one image does not fit.
        RuntimeError: a process that loads images died.
        ValueError: no images, an unfit image size, block or reducer, a [CLS] row asked of a model without [CLS], positions that
            do not fit the images or the grid, or NaN or infinity in what a reducer returns.
    """
    layout, total, into = backbone.layout, len(images), {key: list(summaries) for key, summaries in into.items()}
    wanted = _plan(backbone, reducers, total)
    if unknown := into.keys() - {key for reducer in reducers for key in reducer.keys}:
        raise ValueError(f"no reducer returns '{min(unknown)}', which a summary waits for; add one that does")
    if total == 0 or batch_size < 1 or (workers or 0) < 0:
        raise ValueError(f"{total} images in batches of {batch_size} with {workers} workers; take at least 1, 1 and 0")
    if isinstance(images, Tensor) and tuple(images.shape[1:]) != (3, *backbone.image_size):
        raise ValueError(
            f"pixels {tuple(images.shape[1:])} do not fit {(3, *backbone.image_size)} of '{backbone.name}'; resize "
            f"them, or load it with their image_size (a multiple of its patch size {backbone.patch_size})"
        )
    if isinstance(images, Tensor) and not images.is_floating_point():
        raise ValueError(f"pixels of type {images.dtype}; capture takes normalised floats, or PIL images to normalise by itself")
    if dtype not in DTYPES:
        raise ValueError(f"capture does not run in dtype {dtype}; choose {', '.join(map(str, DTYPES[:-1]))} or {DTYPES[-1]}")
    if engine is not None:
        return engine(backbone, images, reducers, batch_size, device, dtype, progress, into, workers)
    backbone.model.to(device)
    device, handles, span = backbone.device, [], (0, 0)
    outputs, results = _Outputs(backbone, reducers), dict[str, Tensor]()
    mixed = dtype != torch.float32
    exact = torch.autocast(device.type, enabled=False) if mixed else nullcontext()

    def watcher(block: int, group: list[Reducer]) -> Callable[[Any], None]:
        def see(x: Any) -> None:
            with exact:  # softmax and norms in float32 whatever the model runs in
                for reducer in group:
                    outputs.put(reducer, block, reducer.of(*span).reduce(x, layout))

        return see

    def forward(start: int, pixels: Tensor) -> dict[str, Tensor]:
        """What the reducers keep of these images, on the device, until the next call."""
        nonlocal span
        span = start, start + len(pixels)
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=mixed):
            outputs.seen.clear()
            backbone.next_image = first + start
            backbone(pixels.to(device, torch.float32, non_blocking=True))
        return outputs.of(len(pixels))

    def keep(start: int, values: dict[str, Tensor], ready: Callable[[], object]) -> None:
        """Put what has come to the CPU into its place."""
        ready()
        for key, value in values.items():
            # The sum, which may overflow, spares a look at each value.
            if not value.sum().isfinite() and not value.isfinite().all():
                reducer = next(reducer for reducer in reducers if key in reducer.keys)
                raise ValueError(
                    f"{reducer} returned NaN or infinity in '{key}' for images {start} to {start + len(value) - 1} "
                    f"of '{backbone.name}'; look at the images and the precision ({dtype})"
                )
            for summary in into.get(key, ()):
                summary.update(value.clone())  # a summary may hold on to what it gets
            if key not in into:
                if key not in results:  # here, outside inference mode, so that a probe may train on it
                    results[key] = torch.empty(total, *value.shape[1:])
                results[key][start : start + len(value)] = value

    waiting: list[tuple] = []
    try:
        for (point, block), group in wanted.items():
            handles.append(backbone.watch(point, block, watcher(block, group)))
        batches = _batches(backbone, images, batch_size, workers, device)
        most, done = batch_size, 0
        hide = None if progress is None else not progress
        for start, pixels in tqdm(batches, total=-(-total // batch_size), disable=hide, unit="batch"):
            while done < start + len(pixels):
                part = pixels[done - start :][:most]
                values = _or_none(forward, done, part)
                if values is None:
                    most = -(-len(part) // 2)
                    warnings.warn(f"{len(part)} images do not fit into memory at once; going on with {most}", stacklevel=2)
                    continue
                waiting.append((done, *_to_cpu(values)))
                done += len(part)
                # On a GPU the copy of one batch goes on while the next one is computed.
                if len(waiting) > (device.type == "cuda"):
                    keep(*waiting.pop(0))
        while waiting:
            keep(*waiting.pop(0))
    finally:
        for handle in handles:
            handle.remove()
    return results


def _plan(backbone: Backbone, reducers: Sequence[Reducer], images: int) -> dict[tuple[str, int], list[Reducer]]:
    """(point, block) -> the reducers that look there, so that one hook serves them all."""
    wanted, keys = defaultdict(list), set()
    for reducer in reducers:
        reducer.check(images, backbone.layout)
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
    if not chosen:
        raise ValueError(f"{reducer} looks at no block of '{backbone.name}'; choose 'all' or from -{depth} to {depth - 1}")
    for block in chosen:
        if not isinstance(block, int) or not -depth <= block < depth:
            raise ValueError(f"no block {block!r} in '{backbone.name}'; choose 'all' or from -{depth} to {depth - 1}")
    return [block % depth for block in chosen]


class _Outputs:
    """What the reducers keep of one batch: for each key one float32 tensor (image, [block,] ...) on the device.

    It is made in the first batch and used again in all others. Small tensors that live as long as a batch would lie between the
    large ones of the model, and keep the memory of these from being used again.
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
        """key -> tensor of so many images. Raises ValueError where a reducer saw nothing of a block."""
        for reducer in self.reducers:
            if missing := [block for block in self.blocks[reducer.keys] if (reducer.keys, block) not in self.seen]:
                raise ValueError(
                    f"{reducer} saw nothing in blocks {missing} of '{self.name}': the forward pass went around its hook"
                )
        return {key: value.narrow(0, 0, images) for key, value in self.tensors.items()}


class _Pixels(Dataset):
    """Images as a model takes them."""

    def __init__(self, backbone: Backbone, images: Any):
        self.preprocess, self.images = backbone.preprocess, images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Float[Tensor, "3 height width"]:
        return self.preprocess(self.images[index])


def _batches(
    backbone: Backbone, images: Any, batch_size: int, workers: int | None, device: torch.device
) -> Iterator[tuple[int, Tensor]]:
    """The first index and the pixels of each batch, on the CPU, in memory that a GPU can read by itself if there is one."""
    pinned = device.type == "cuda"
    if isinstance(images, Tensor):
        for start in range(0, len(images), batch_size):
            pixels = images[start : start + batch_size]
            yield start, pixels.pin_memory() if pinned and not pixels.is_cuda else pixels
        return
    if workers is None:
        workers = min(MOST_WORKERS, os.cpu_count() or 1) if pinned else 0
    loader = DataLoader(_Pixels(backbone, images), batch_size, num_workers=workers, pin_memory=pinned)
    try:
        for index, pixels in enumerate(loader):
            yield index * batch_size, pixels
    except RuntimeError as error:
        if "exited unexpectedly" not in str(error):
            raise
        told = f"one of {workers} processes that load images died (was it killed, or out of memory?)"
        raise RuntimeError(f"{told}; take fewer workers, or 0 to load in this process") from None


def _or_none(forward: Callable[[int, Tensor], dict[str, Tensor]], start: int, pixels: Tensor) -> dict[str, Tensor] | None:
    """`forward` of a batch; None where it does not fit into memory. Raises MemoryError where one image is too much."""
    try:
        return forward(start, pixels)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if len(pixels) == 1:
        size = " x ".join(map(str, pixels.shape[-2:]))
        raise MemoryError(f"not even one image of {size} px fits into memory; take a smaller model or image size")
    return None


def _to_cpu(values: dict[str, Tensor]) -> tuple[dict[str, Tensor], Callable[[], object]]:
    """The values on the CPU, and what to call before they are read: the copies of a GPU are only begun here."""
    if not any(value.is_cuda for value in values.values()):
        return {key: value.cpu() for key, value in values.items()}, lambda: None
    copies = {key: torch.empty(v.shape, pin_memory=True).copy_(v, non_blocking=True) for key, v in values.items()}
    return copies, torch.cuda.current_stream().record_event().synchronize


def _fused(q: Tensor, k: Tensor, scale: float) -> tuple[Float[Tensor, "image head row dim"], Float[Tensor, "image head row"]]:
    """For each query the mean of the keys under its attention, and the logsumexp of its logits."""
    return (_kernel(q.device.type) or _by_rows)(q, k, scale)


@lru_cache
def _kernel(device: str) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]] | None:
    """Fused attention that tells the logsumexp, which no public function of torch does; None where this torch has none for such a
    device, or one that tells other numbers."""

    def fused(q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        if device == "cpu":
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, scale=scale)
        mean, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, k, None, True, scale=scale)
        return mean, total[..., : q.shape[-2]]  # it is padded to whole warps

    q, k = (torch.linspace(-2, 2, 2 * n * 16, device=device).view(1, 2, n, 16) for n in (5, 7))
    try:
        found = fused(q, k, 0.25)
        alike = all(torch.allclose(x, y, atol=1e-2) for x, y in zip(found, _by_rows(q, k, 0.25), strict=True))
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return None
    return fused if alike else None


def _by_rows(q: Tensor, k: Tensor, scale: float) -> tuple[Float[Tensor, "image head row dim"], Float[Tensor, "image head row"]]:
    """`_fused` on any device, with at most ROWS numbers of attention at a time (at least one row of each head)."""
    means, totals = [], []
    for chunk in q.split(max(1, ROWS // (len(q) * q.shape[1] * k.shape[-2])), dim=-2):
        logits = (chunk @ k.mT).mul_(scale)
        totals.append(logits.logsumexp(dim=-1))
        means.append(logits.softmax(dim=-1) @ k)
    return torch.cat(means, dim=-2), torch.cat(totals, dim=-1)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)


def _concatenated(x: Float[Tensor, "image head token dim"], layout: TokenLayout) -> Float[Tensor, "image patch width"]:
    return layout.patch_tokens(x).transpose(1, 2).flatten(-2)


def _attended(layout: TokenLayout, device: torch.device) -> Bool[Tensor, "3 token"]:
    """Which tokens are patches, which are registers of any kind, and which is [CLS]."""
    patches, cls = torch.zeros(2, layout.tokens, dtype=torch.bool, device=device)
    layout.patch_tokens(patches, dim=0).fill_(True)
    layout.cls_token(cls, dim=0).fill_(True)
    return torch.stack([patches, ~(patches | cls), cls])
