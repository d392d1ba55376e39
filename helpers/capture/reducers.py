"""What to keep of a forward pass.

A reducer keeps nothing between batches: a batch that does not fit into memory passes again in
parts, after hooks have seen it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from helpers.capture.kernels import fused_attention, received_attention
from helpers.measures.attention import (
    EVENT,
    MOST,
    given_by_most,
    update_rank,
    value_ratio,
)
from helpers.measures.massive import magnitudes, massive
from helpers.measures.norms import random_positions
from helpers.models import Attention, TokenLayout, Update
from helpers.settings import check_choice

Blocks = str | int | Sequence[int]
Tokens = Float[Tensor, "image token width"]
Pixels = Float[Tensor, "image 3 height width"]
Kept = tuple[Tensor, ...]  # one (image, ...) for each key
# Of [CLS] after an attention layer; the first three are attended to.
PARTS = ("patches", "registers", "cls", "bias", "skip")


class Reducer:
    """What to keep of a forward pass.

    Attributes:
        point: of a block that it watches (see Backbone.watch).
        blocks: "all", a sequence of indices (negative ones count from the end), or one index, which
            leaves the block dimension away.
    """

    point: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    blocks: Blocks

    def reduce(self, x: Any, layout: TokenLayout) -> Kept:
        """One tensor (image, ...) for each key, from what passes `point` in one block."""
        raise NotImplementedError

    def check(self, images: int, layout: TokenLayout) -> None:
        """Raise ValueError where this would be of other images or tokens than is meant."""

    def of(self, start: int, stop: int) -> "Reducer":
        """The reducer for the images from `start` to before `stop`."""
        return self


class Named(Reducer):
    """Returns one key, `name`."""

    name: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class OfHeads(Reducer):
    """Looks at attention; `heads` "mean" or "all"."""

    blocks: Blocks = (-1,)
    heads: str = "mean"
    point = "attention"

    def __post_init__(self) -> None:
        check_choice("heads", self.heads, ("mean", "all"))

    def of_heads(self, x: Float[Tensor, "image head token"]) -> Tensor:
        """Each head, or their mean."""
        return x.mean(dim=1) if self.heads == "mean" else x


class LastBlock(Reducer):
    """Looks at the last block's output (image, token, width), `norm=True` after the final LayerNorm
    (fc_norm in a timm model that pools before it normalises).
    """

    norm: bool
    blocks = -1

    @property
    def point(self) -> str:
        return "final" if self.norm else "residual"


@dataclass(frozen=True)
class PatchNorms(Reducer):
    """'patch_norms' (image, block, patch): L2 norm of the residual stream after each block, before
    the final LayerNorm.
    """

    blocks: Blocks = "all"
    point = "residual"
    keys = ("patch_norms",)

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        return (_norm(layout.patch_tokens(x)),)


@dataclass(frozen=True)
class TokenNorms(Reducer):
    """'token_norms' (image, block, token): the same for every token, in the order of the layout."""

    blocks: Blocks = "all"
    point = "residual"
    keys = ("token_norms",)

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        return (_norm(x),)


@dataclass(frozen=True)
class ClsAttention(OfHeads):
    """'cls_attention' (image, block[, head], token): the row of [CLS]. It sums to one."""

    keys = ("cls_attention",)

    def reduce(self, x: Attention, layout: TokenLayout) -> Kept:
        return (self.of_heads(x.cls_row(layout)),)


@dataclass(frozen=True)
class AttentionReceived(OfHeads):
    """'attention_received' (image, block[, head], token): the attention that a token gets, mean
    over all queries. It sums to one.
    """

    keys = ("attention_received",)

    def reduce(self, x: Attention, layout: TokenLayout) -> Kept:
        got, _ = received_attention(*x.matched, x.scale)
        return (self.of_heads(got),)


@dataclass(frozen=True)
class AttentionEntropy(Reducer):
    """'attention_entropy' (image, block): entropy of the attention of patch queries to all tokens,
    in nats, mean over heads and patches. At most ln(tokens).

    With logits s and weights p = softmax(s) it is logsumexp(s) - sum p s, and sum p s is the query
    times the mean of the keys under p: fused attention gives both, and holds no row of attention.
    """

    blocks: Blocks = "all"
    point = "attention"
    keys = ("attention_entropy",)

    def reduce(self, x: Attention, layout: TokenLayout) -> Kept:
        q, k = x.matched
        queries = layout.patch_tokens(q)
        mean, total = fused_attention(queries, k, x.scale)
        entropy = total - torch.linalg.vecdot(queries, mean) * x.scale
        # Rounding may take a row that attends to one token below zero.
        return (entropy.clamp(min=0).mean(dim=(1, 2)),)


@dataclass(frozen=True)
class Sinks(Reducer):
    """Attention sinks (helpers/measures/attention.py), of "all" queries, of those of the "patches",
    or "read": of [CLS] where there is one, since that is what a model's output is read from, else
    of the patches.

    'sink_patches', 'sink_registers', 'sink_cls' (image, block, head): what at least 90 % of the
    queries give to the four tokens of that kind that get the most, 0 for a kind that the model does
    not have; 'sink_one', to one token of any kind; 'sink_value', the `value_ratio` of the most
    attended token; 'received' (image, block, token), the attention that a token gets, mean over
    queries and heads. With `writes` also, of each head, 'sink_rank', the `update_rank` of what it
    adds where one token is a sink, else 0.
    """

    queries: str = "read"
    blocks: Blocks = "all"
    writes: bool = False
    point = "update"

    @property
    def keys(self) -> tuple[str, ...]:
        of_kinds = ("sink_patches", "sink_registers", "sink_cls", "sink_one", "sink_value")
        return (*of_kinds, "received", *["sink_rank"] * self.writes)

    def __post_init__(self) -> None:
        check_choice("queries", self.queries, ("read", "patches", "all"))

    def reduce(self, x: Update, layout: TokenLayout) -> Kept:
        attention = x.attention
        if self.queries == "read" and layout.cls:
            got = attention.cls_row(layout)

            def given(tokens: Tensor) -> Tensor:
                return got.gather(-1, tokens)[:, :, None]
        else:
            q, k = attention.matched
            q = q if self.queries == "all" else layout.patch_tokens(q)
            got, totals = received_attention(q, k, attention.scale)

            def given(tokens: Tensor) -> Tensor:
                keys = k.gather(2, tokens[..., None].expand(-1, -1, -1, k.shape[-1]))
                return (q @ keys.mT * attention.scale - totals[..., None]).exp()

        def shared(tokens: Tensor, most: int = MOST) -> Tensor:
            if not len(tokens):
                return torch.zeros_like(got[..., 0])
            top = got[..., tokens].topk(min(most, len(tokens))).indices
            return given_by_most(given(tokens[top]).sum(-1))

        every = torch.arange(layout.tokens, device=got.device)
        registers = layout.register_tokens(every, 0), layout.appended_tokens(every, 0)
        one = shared(every, 1)
        kept = (
            shared(layout.patch_tokens(every, 0)),
            shared(torch.cat(registers)),
            shared(every[: layout.cls]),
            one,
            value_ratio(got, x.value_norms()),
            got.mean(dim=1),
        )
        return (*kept, _ranks_of_sinks(x, one)) if self.writes else kept


@dataclass(frozen=True)
class FinalTokens(LastBlock):
    """'final_tokens' (image, token, width)."""

    norm: bool = False
    keys = ("final_tokens",)

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        return (x,)


@dataclass(frozen=True)
class Pooled(LastBlock):
    """'cls' (image, width), 'patch_mean' (image, width) and 'registers' (image, register, width),
    trained registers before appended ones (none: length 0), of the last block, `norm=True` after
    the final LayerNorm.
    """

    norm: bool = True
    keys = ("cls", "patch_mean", "registers")

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        registers = torch.cat([layout.register_tokens(x), layout.appended_tokens(x)], dim=1)
        return (
            layout.cls_token(x),
            layout.patch_tokens(x).mean(dim=1, dtype=torch.float32),
            registers,
        )


@dataclass(frozen=True)
class ClsTokens(Reducer):
    """'cls_tokens' (image, block, width): [CLS] after each block, before the final LayerNorm
    (decoupling, Fig. 5b).
    """

    blocks: Blocks = "all"
    point = "residual"
    keys = ("cls_tokens",)

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        return (layout.cls_token(x),)


@dataclass(frozen=True)
class HighestToken(Reducer):
    """The token of highest norm among all tokens after a block (decoupling, section 3.2; its text
    takes the penultimate block, its figure the last one, -1): 'highest_token' (image, width);
    'highest_token_normed' (image, width), the same after the next LayerNorm; 'highest_index'
    (image), where it stands in the sequence.
    """

    blocks: Blocks = -2
    point = "normed"
    keys = ("highest_token", "highest_token_normed", "highest_index")

    def reduce(self, x: tuple[Tensor, Tensor], layout: TokenLayout) -> Kept:
        return _highest(*x)


@dataclass(frozen=True)
class SinglePatches(Reducer):
    """'central_patch' (image, width), the patch at the centre of the grid, and 'highest_patch'
    (image, width), that of the highest norm after the last block: an outlier where an image has
    one. Both after the final LayerNorm.
    """

    blocks: Blocks = -1
    point = "normed"
    keys = ("central_patch", "highest_patch")

    def reduce(self, x: tuple[Tensor, Tensor], layout: TokenLayout) -> Kept:
        grids = (layout.to_grid(layout.patch_tokens(tokens), dim=1) for tokens in x)
        before, after = (grid.flatten(1, 2) for grid in grids)
        return after[:, layout.from_centre[0]], _highest(before, after)[1]


@dataclass(frozen=True)
class Magnitudes(Reducer):
    """'magnitudes' (image, 4): the three largest magnitudes of the hidden state after a block, all
    tokens together, and the median one (`helpers.measures.massive`); (image, block, 4) for several.
    """

    blocks: Blocks = "all"
    point = "residual"
    keys = ("magnitudes",)

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        return (magnitudes(x.float()),)


@dataclass(frozen=True)
class MassiveTokens(Reducer):
    """The tokens with a massive activation after a block (`helpers.measures.massive`): how many
    there are, 'massive_tokens' (image); their sum, 'massive_sum' (image, width); in how many of
    them each channel is massive, 'massive_counts' (image, width). The token of the largest
    magnitude, massive or not: 'largest_token' (image, width).
    """

    blocks: Blocks
    point = "residual"
    keys = ("massive_tokens", "massive_sum", "massive_counts", "largest_token")

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        x = x.float()
        found = massive(x)
        tokens = found.any(-1)
        largest = x.abs().amax(-1).argmax(1)[:, None, None]
        return (
            tokens.sum(1),
            (x * tokens[..., None]).sum(1),
            found.sum(1).float(),
            x.take_along_dim(largest, dim=1)[:, 0],
        )


@dataclass(frozen=True)
class ClsParts(Reducer):
    """What the attention layer of a block makes [CLS] of, before the block's MLP (decoupling,
    equations 3 and 6).

    'cls_parts' (image, part, width), in the order of PARTS: what the values of the patches, of the
    registers and of [CLS] itself contribute, after output projection and LayerScale; the bias of
    the output projection; and the skip connection, which is [CLS] as it enters the block. Their sum
    is 'cls_total' (image, width): [CLS] after the attention layer. 'cls_mass' (image, 3): the
    attention of [CLS] to patches, registers and itself, mean over heads; it sums to one.

    A part is what is left where the attention to all other tokens is set to zero after the softmax
    ('set to zero', section 3.3); `ClsRenormalised` is the other reading. Registers are all tokens
    but patches and [CLS], also the distillation token of DeiT. The bias of the value projection is
    in the values, as in the paper.
    """

    blocks: Blocks = -1
    point = "update"
    keys = ("cls_parts", "cls_mass", "cls_total")

    def reduce(self, x: Update, layout: TokenLayout) -> Kept:
        weights = x.attention.cls_row(layout)[:, :, None]
        weights = weights * _attended(layout, weights.device)  # image, head, kind, token
        parts = x.contribution(weights @ x.attention.v)
        rest = torch.stack([x.bias.expand(len(parts), -1), layout.cls_token(x.before)], dim=1)
        masses = weights.sum(dim=-1).mean(dim=1)
        return torch.cat([parts, rest], dim=1), masses, layout.cls_token(x.after)


@dataclass(frozen=True)
class ClsRenormalised(Reducer):
    """'cls_renormalised' (image, 3, width): the first three parts of `ClsParts` if [CLS] attended
    to patches only, to registers only (zeros where there are none), or to itself only, with weights
    that sum to one again in each head (decoupling, section 3.3, 'constrain the final self-attention
    layer').
    """

    blocks: Blocks = -1
    point = "update"
    keys = ("cls_renormalised",)

    def reduce(self, x: Update, layout: TokenLayout) -> Kept:
        logits = x.attention.cls_logits(layout)[:, :, None]
        # Not by dividing the weights: a head may give a kind less than float32 can hold.
        weights = logits.masked_fill(~_attended(layout, logits.device), -torch.inf).softmax(dim=-1)
        return (x.contribution(weights.nan_to_num(0.0) @ x.attention.v),)


@dataclass(frozen=True)
class PatchContributions(Reducer):
    """What each patch contributes to the part "patches" of `ClsParts` (decoupling, section 3.4 and
    equation 3): 'contribution_norms' (image, patch), its L2 norm; 'contribution_cosines' (image,
    patch), its cosine with what all tokens contribute together, 0 where it contributes nothing.
    """

    blocks: Blocks = -1
    point = "update"
    keys = ("contribution_norms", "contribution_cosines")

    def reduce(self, x: Update, layout: TokenLayout) -> Kept:
        row = x.attention.cls_row(layout)
        total = x.contribution(row[:, :, None] @ x.attention.v).mT
        patches = x.contribution(
            layout.patch_tokens(row, dim=-1)[..., None] * layout.patch_tokens(x.attention.v)
        )
        # A contribution may be tiny (LayerScale starts at 1e-5), so the bound on a norm that counts
        # as zero is lower than usual.
        cosines = F.normalize(patches, dim=-1, eps=1e-30) @ F.normalize(total, dim=1, eps=1e-30)
        return _norm(patches), cosines.squeeze(-1)


@dataclass(frozen=True)
class Feature(Reducer):
    """'feature' (image, width): the pooled feature before the classification head; of DeiT's
    distilled models that of [CLS], of open_clip's towers what they return.
    """

    point = "feature"
    keys = ("feature",)
    blocks = 0

    def reduce(self, x: Float[Tensor, "image width"], layout: TokenLayout) -> Kept:
        return (x,)


@dataclass(frozen=True)
class Output(Reducer):
    """'output' (image, ...): what the model returns, class logits where it has a head."""

    point = "output"
    keys = ("output",)
    blocks = 0

    def reduce(self, x: Tensor, layout: TokenLayout) -> Kept:
        return (x,)


@dataclass(frozen=True, eq=False)
class AtPlaces(Reducer):
    """Looks at chosen places of each image: indices into the sequence, -1 is none."""

    places: Int[Tensor, "image k"] = field(repr=False)

    def count(self, layout: TokenLayout) -> int:
        """How many places an image has."""
        return layout.tokens

    def check(self, images: int, layout: TokenLayout) -> None:
        places, count = self.places, self.count(layout)
        indices = places.dtype in (torch.int32, torch.int64) and places.dim() == 2
        if not indices or len(places) != images or ((places < -1) | (places >= count)).any():
            raise ValueError(
                f"places {tuple(places.shape)} of {places.dtype} from {places.min()} to "
                f"{places.max()}; give {images} images a row each, of indices below {count} or -1"
            )

    def of(self, start: int, stop: int) -> Reducer:
        return replace(self, places=self.places[start:stop])

    def taken(self, x: Float[Tensor, "image place width"]) -> Float[Tensor, "image k width"]:
        """The rows of `x` at the places, zeros where there is none."""
        places = self.places.to(x.device, torch.int64)[..., None]
        return x.take_along_dim(places.clamp(min=0), dim=1).masked_fill(places < 0, 0.0)


class Selected(AtPlaces):
    """Looks at chosen patches of each image: row-major indices of the patch grid, -1 is none."""

    def count(self, layout: TokenLayout) -> int:
        return math.prod(layout.grid)


@dataclass(frozen=True, eq=False)
class SelectedTokens(Selected, LastBlock):
    """'tokens' (image, k, width): the patches at `places` (-1: none, zeros) after the last block,
    `norm=True` after the final LayerNorm.
    """

    norm: bool = True
    keys = ("tokens",)

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        return (self.taken(layout.to_grid(layout.patch_tokens(x), dim=1).flatten(1, 2)),)


@dataclass(frozen=True, eq=False)
class SelectedPixels(Selected):
    """'pixels' (image, k, 3 x patch height x patch width): the normalised pixels of the patches at
    `places` (-1: none, zeros), channel-major. With `mean` the mean of each channel: (image, k, 3).
    """

    mean: bool = False
    point = "pixels"
    keys = ("pixels",)
    blocks = 0

    def reduce(self, x: Pixels, layout: TokenLayout) -> Kept:
        patch = tuple(side // count for side, count in zip(x.shape[-2:], layout.grid, strict=True))
        pixels = self.taken(F.unfold(x, patch, stride=patch).mT)
        return (pixels.unflatten(-1, (3, -1)).mean(-1) if self.mean else pixels,)


@dataclass(frozen=True)
class RandomPatches(Reducer):
    """Looks at `count` random patches of each image, drawn from `seed`."""

    kind: ClassVar[type[Selected]]
    count: int
    seed: int = 0
    first: int = 0  # image of those that are seen

    def of(self, start: int, stop: int) -> Reducer:
        return replace(self, first=self.first + start)

    def places(self, images: int, layout: TokenLayout) -> Int[Tensor, "{images} {self.count}"]:
        """Row-major indices."""
        patches = math.prod(layout.grid)
        return random_positions(images, patches, self.count, self.seed, self.first)

    def reduce(self, x: Tensor, layout: TokenLayout) -> Kept:
        return self.kind(self.places(len(x), layout)).reduce(x, layout)


@dataclass(frozen=True)
class RandomTokens(RandomPatches, LastBlock):
    """'tokens' (image, count, width): as `SelectedTokens`, of random patches."""

    norm: bool = True
    kind = SelectedTokens
    keys = ("tokens",)


@dataclass(frozen=True)
class RandomPixels(RandomPatches):
    """'pixels': as `SelectedPixels`, of the patches whose tokens `RandomTokens` has."""

    kind = SelectedPixels
    point = "pixels"
    keys = ("pixels",)
    blocks = 0


@dataclass(frozen=True, eq=False)
class TokensAt(AtPlaces):
    """'tokens_at' (image, [block,] k, width): the tokens at `places` after each block, zeros where
    there is none; 'normed_at', the same after the LayerNorm that follows.
    """

    blocks: Blocks = "all"
    point = "normed"
    keys = ("tokens_at", "normed_at")

    def reduce(self, x: tuple[Tensor, Tensor], layout: TokenLayout) -> Kept:
        return tuple(self.taken(tokens) for tokens in x)


@dataclass(frozen=True, eq=False)
class OtherPatches(AtPlaces):
    """'other_patches' (image, width): mean of the patches after the final LayerNorm that are not at
    `places`, zeros where none is left.
    """

    blocks = -1
    point = "final"
    keys = ("other_patches",)

    def reduce(self, x: Tokens, layout: TokenLayout) -> Kept:
        image, column = (self.places >= 0).nonzero(as_tuple=True)
        others = torch.ones(x.shape[:2], device=x.device)
        others[image, self.places[image, column]] = 0
        others = layout.patch_tokens(others, dim=1)
        total = (layout.patch_tokens(x) * others[..., None]).sum(1)
        return (total / others.sum(1, keepdim=True).clamp(min=1),)


@dataclass(frozen=True)
class QKVNorms(Reducer):
    """'q_norms', 'k_norms', 'v_norms' (image, block, patch): L2 norms over the whole width, heads
    concatenated.
    """

    blocks: Blocks = (-1,)
    point = "attention"
    keys = ("q_norms", "k_norms", "v_norms")

    def reduce(self, x: Attention, layout: TokenLayout) -> Kept:
        return tuple(_norm(_concatenated(part, layout)) for part in (x.q, x.k, x.v))


@dataclass(frozen=True)
class OnQKV(Named):
    """`name` (image, block, ...): `function` of the queries "q", keys "k" or values "v" of the
    patches, heads concatenated, as a grid (image, row, column, width).
    """

    name: str
    function: Callable[[Tensor], Tensor]
    part: str = "k"
    blocks: Blocks = -1
    point = "attention"

    def __post_init__(self) -> None:
        check_choice("part", self.part, "qkv")

    def reduce(self, x: Attention, layout: TokenLayout) -> Kept:
        return (self.function(layout.to_grid(_concatenated(getattr(x, self.part), layout), dim=1)),)


@dataclass(frozen=True)
class NeuronActivation(Named):
    """`name` (image, patch): what the MLP neuron `unit` of block `at` does at each patch; with
    `every` at each token: (image, token).
    """

    name: str
    at: int
    unit: int
    every: bool = False
    point = "neurons"

    @property
    def blocks(self) -> Blocks:
        return self.at

    def reduce(self, x: Float[Tensor, "image token hidden"], layout: TokenLayout) -> Kept:
        if not 0 <= self.unit < x.shape[-1]:
            raise ValueError(f"no neuron {self.unit} in block {self.at}, of {x.shape[-1]}")
        return ((x if self.every else layout.patch_tokens(x))[..., self.unit],)


def activations_of(neurons: Iterable[tuple], every: bool = False) -> list[NeuronActivation]:
    """What each of the neurons (block, unit, ...) does: 'neuron 1', 'neuron 2', ... in turn."""
    return [
        NeuronActivation(f"neuron {i}", block, unit, every)
        for i, (block, unit, *_) in enumerate(neurons, start=1)
    ]


@dataclass(frozen=True)
class OnPatches(Named):
    """`name` (image, ...): `function` of the patches as a grid (image, row, column, width), at the
    patch "embedding" (before the position embedding) or after the block with the index `at`;
    (image, block, ...) where `at` is "all" or several indices.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    at: Blocks = "embedding"

    @property
    def point(self) -> str:
        return "embedding" if self.at == "embedding" else "residual"

    @property
    def blocks(self) -> Blocks:
        return 0 if self.at == "embedding" else self.at

    def reduce(self, x: Tensor, layout: TokenLayout) -> Kept:
        grid = x if self.at == "embedding" else layout.to_grid(layout.patch_tokens(x), dim=1)
        return (self.function(grid),)


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32)


def _highest(x: Tokens, normed: Tokens) -> tuple[Tensor, Tensor, Int[Tensor, " image"]]:
    """The token of the highest norm in `x`, the same one of `normed`, and which it is."""
    norms = _norm(x)
    # The first of those that are equal but for rounding, as registers that carry the same load are.
    near = norms >= (1 - 1e-4) * norms.amax(dim=1, keepdim=True)
    index = near.int().argmax(dim=1)
    at = index[:, None, None]
    return *(tokens.take_along_dim(at, dim=1)[:, 0] for tokens in (x, normed)), index


def _concatenated(
    x: Float[Tensor, "image head token dim"], layout: TokenLayout
) -> Float[Tensor, "image patch width"]:
    return layout.patch_tokens(x).transpose(1, 2).flatten(-2)


def _attended(layout: TokenLayout, device: torch.device) -> Bool[Tensor, "3 token"]:
    """Which tokens are patches, which are registers of any kind, and which is [CLS]."""
    patches, cls = torch.zeros(2, layout.tokens, dtype=torch.bool, device=device)
    layout.patch_tokens(patches, dim=0).fill_(True)
    layout.cls_token(cls, dim=0).fill_(True)
    return torch.stack([patches, ~(patches | cls), cls])


def _ranks_of_sinks(x: Update, event: Float[Tensor, "image head"]) -> Float[Tensor, "image head"]:
    """The `update_rank` of heads of which one token is a sink; of the others nobody asks: 0."""
    rank, weights, attention = torch.zeros_like(event), x.head_weights(), x.attention
    for head in range(event.shape[1]):
        images = event[:, head] >= EVENT
        if images.any():
            q, k, v = (y[images, head] for y in (*attention.matched, attention.v))
            mixed = F.scaled_dot_product_attention(q, k, v, scale=attention.scale)
            rank[images, head] = update_rank(mixed, weights[head])
    return rank
