"""registers: register neurons, and the test-time registers that take over what they write.

A few MLP neurons of a Vision Transformer make its high-norm patches. Moving their activations to an appended token, which is no
patch, leaves the patches clean without any training (Jiang et al., "Vision Transformers Don't Need Trained Registers",
arXiv:2506.08010). A neuron is one input of a block's second MLP layer, in gated MLPs the product; its name is (block, unit), both
from 0. Where that paper's text and its code differ, an option says which is meant.
"""

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from helpers.backbone import Backbone
from helpers.capture import Reducer, TokenNorms, capture
from helpers.interventions import appended_registers, intervention
from helpers.measures.norms import threshold
from helpers.tokens import TokenLayout

MODES, CLEARS = ("paper", "jiang_code"), ("patches", "all")
SPARSE_VALUE, SPARSE_SHARE = 0.5, 0.5  # of the authors' filter: at least half of the tokens are under 0.5


class RegisterNeuron(NamedTuple):
    """A neuron and what it does at outliers. A mean is over the tokens of an image, then over the images with an outlier.

    Attributes:
        block, unit: which neuron, from 0.
        at_outliers, elsewhere: mean activation at the outliers, and at the other tokens of the same images.
        magnitude: mean absolute activation at the outliers.
        ratio: `magnitude` over the mean absolute activation elsewhere; infinite where only that is zero, 1 where both are.
        score: what ranks it.
    """

    block: int
    unit: int
    at_outliers: float
    elsewhere: float
    magnitude: float
    ratio: float
    score: float


Neurons = Sequence[RegisterNeuron | tuple[int, int]]


def find_register_neurons(
    backbone: Backbone,
    images: Any,
    *,
    mode: str = "paper",
    rule: str = "median:3",
    layer: int = -1,
    layers: Sequence[int] | None = None,
    top_k: int = 10,
    sparsity: bool = False,
    **options: Any,
) -> list[RegisterNeuron]:
    """The neurons that are most active where a token becomes an outlier (Jiang et al.), best first; with equal scores in order
    of `layers`, then of units.

    An image counts by the mean over its outliers, and only if it has one, as in the authors' code.

    Args:
        images: as in `capture`. They pass twice, for the norms and for the neurons, and both passes must see the same patches.
            Kept are the norms of all images, and of the images of one batch five numbers a neuron.
        mode: "paper": outliers among the patches, score |mean activation|. "jiang_code": outliers among all tokens, [CLS] and
            registers too, score mean |activation|.
        rule: which norms are outliers, as in `helpers.measures.norms.threshold`, applied to the norms of all patches in both
            modes; "fixed:30" is a threshold of 30.
        layer: the block after which norms are taken; -1 for CLIP and -2 for DINOv2 in the authors' code.
        layers: the blocks whose neurons are looked at; all up to `layer`, and that too, unless given.
        top_k: how many neurons.
        sparsity: a score of zero in images where less than half of the tokens (mode "paper": of the patches) are under 0.5,
            the authors' filter.
        options: batch_size, device, dtype, progress and engine, as in `capture`.

    Raises ValueError for another mode or rule, a layer or block that is not there or has no MLP neurons, a `top_k` below one or
    above the number of neurons, patches removed by an intervention, no outlier in any image, and what `capture` raises.
    """
    if mode not in MODES:
        raise ValueError(f"mode is '{mode}'; choose one of {', '.join(MODES)}")
    if backbone.layout.kept is not None:
        raise ValueError("patches were removed, other ones in each pass; find register neurons with all of them there")
    layers = range(layer % backbone.depth + 1) if layers is None else layers
    hidden = {block % backbone.depth: backbone.neurons(block).in_features for block in layers}
    if not 1 <= top_k <= sum(hidden.values()):
        raise ValueError(
            f"top_k is {top_k}, but blocks {list(hidden)} have {sum(hidden.values())} neurons; choose from 1 to that"
        )
    outlier = _outliers(backbone, images, mode, rule, layer, options)
    means = [_NeuronMeans(block, outlier, mode, sparsity) for block in hidden]
    sums = {reducer.keys[0]: [_Sum()] for reducer in means}
    capture(backbone, images, means, into=sums, **options)

    units = [(block, unit) for block, size in hidden.items() for unit in range(size)]
    total = torch.cat([part.total for [part] in sums.values()], dim=1)  # (row, neuron)
    found = outlier.any(dim=1)  # images
    total[[0, 2, 4]] /= found.sum()
    total[[1, 3]] /= (found & ~outlier.all(dim=1)).sum().clamp(min=1)  # an image of outliers only has no elsewhere
    at, elsewhere, magnitude, other, score = total
    ratio = torch.where((magnitude == 0) & (other == 0), 1.0, magnitude / other)
    order = score.abs().argsort(descending=True, stable=True)[:top_k]
    rows = torch.stack([at, elsewhere, magnitude, ratio, score.abs()], dim=1)[order].tolist()
    return [RegisterNeuron(*units[i], *row) for i, row in zip(order.tolist(), rows, strict=True)]


@intervention
def test_time_registers(
    backbone: Backbone, neurons: Neurons, count: int = 1, init: str = "zeros", clear: str = "patches", seed: int = 0
) -> Iterator[Backbone]:
    """Append `count` tokens and let `neurons` act there and no more on the patches (Jiang et al.).

    In every image each neuron takes, at one of the appended tokens, its value of largest magnitude over all other tokens, with
    its sign; at the other appended tokens and at the patches it becomes zero. Several tokens share the neurons at random, as
    evenly as they can. The tokens are taken away again, as in `appended_registers`.

    Args:
        neurons: from `find_register_neurons`, or pairs (block, unit); none only appends the tokens, which is the control.
        count: number of tokens, at least 1; `ablated_neurons` is what adds none.
        init: of the tokens, as in `appended_registers`.
        clear: where else the neurons become zero: "patches", as in the authors' code, or "all", which is their text: [CLS] and
            registers too.
        seed: of the shares, and of "normal" tokens.

    Raises ValueError for a neuron that is not there or comes twice, and for another count, init or clear.
    """
    first = backbone.layout.appended  # tokens of an outer intervention stand before ours
    shifts = _shifts(backbone, neurons, first, count, clear, seed)
    with appended_registers(backbone, count, init, seed), ExitStack() as hooks:
        for block, shift in shifts.items():
            # The layout as it is in the forward pass: an inner intervention may have changed it.
            hooks.enter_context(backbone.change_neurons(block, lambda x, shift=shift: shift(x, backbone.layout)))
        yield backbone


@intervention
def ablated_neurons(backbone: Backbone, neurons: Neurons) -> Iterator[Backbone]:
    """Set `neurons` to zero at every token, with no token added.

    Raises ValueError for a neuron that is not there or comes twice.
    """
    with ExitStack() as hooks:
        for block, units in _by_block(backbone, neurons).items():
            indices = torch.tensor(units)
            hooks.enter_context(backbone.change_neurons(block, lambda x, i=indices: x.index_fill(-1, i.to(x.device), 0)))
        yield backbone


def random_neurons(backbone: Backbone, neurons: Neurons, seed: int = 0) -> list[tuple[int, int]]:
    """The control for `neurons`: as many random units of the same blocks, none of them among `neurons`, as (block, unit).

    Raises ValueError for a neuron that is not there or comes twice, or where a block has too few others.
    """
    rng, chosen = np.random.default_rng(seed), []
    for block, units in _by_block(backbone, neurons).items():
        others = np.setdiff1d(np.arange(backbone.neurons(block).in_features), units)
        if len(others) < len(units):
            raise ValueError(
                f"block {block} of '{backbone.name}' has {len(others)} neurons beside the {len(units)} given; give fewer"
            )
        chosen += [(block, int(unit)) for unit in rng.choice(others, len(units), replace=False)]
    return chosen


def export(backbone: Backbone, neurons: Neurons, count: int = 1, clear: str = "patches", seed: int = 0) -> nn.Module:
    """See `Backbone.with_test_time_registers`."""
    if any(module._forward_hooks or module._forward_pre_hooks for module in backbone.model.modules()):
        raise ValueError(f"'{backbone.name}' has hooks, such as those of an intervention; leave it before you export the model")
    shifts = _shifts(backbone, neurons, 0, count, clear, seed)
    exported = replace(backbone, model=copy.deepcopy(backbone.model))
    # Hooks are partials of this module's functions and tensors are buffers, so that deepcopy, torch.save and .to work.
    exported.blocks[0].register_forward_pre_hook(partial(_append, count))
    exported.blocks[-1].register_forward_hook(partial(_take_away, count))
    for block, shift in shifts.items():
        layer = exported.neurons(block)
        layer.add_module("shift", shift.to(backbone.device))
        layer.register_forward_pre_hook(partial(_shift_input, backbone.layout.with_appended(count)))
    return exported.model


class _Shift(nn.Module):
    """Moves neurons of one block to the appended tokens numbered from `first` to before `first + count`."""

    def __init__(self, units: list[int], owners: list[int], first: int, count: int, clear: str):
        super().__init__()
        self.register_buffer("units", torch.tensor(units))
        self.register_buffer("owners", torch.tensor(owners))  # which of our tokens each unit goes to
        self.first, self.count, self.clear = first, count, clear

    def forward(self, x: Float[Tensor, "image token hidden"], layout: TokenLayout) -> Float[Tensor, "image token hidden"]:
        units, owners = self.units.to(x.device), self.owners.to(x.device)  # in a context `capture` may have moved the model
        ours, cleared = torch.zeros(2, x.shape[1], 1, dtype=torch.bool, device=x.device)
        self._ours(ours, layout).fill_(True)
        (cleared if self.clear == "all" else layout.patch_tokens(cleared)).fill_(True)
        values = x[..., units]  # (image, token, unit)
        others = values.masked_fill(ours, 0)
        largest = others.gather(1, others.abs().argmax(dim=1, keepdim=True))
        values = values.masked_fill(cleared, 0)
        self._ours(values, layout).copy_(largest.where(owners == torch.arange(self.count, device=x.device)[:, None], 0))
        return x.index_copy(-1, units, values)

    def _ours(self, x: Tensor, layout: TokenLayout) -> Tensor:
        return layout.appended_tokens(x).narrow(-2, self.first, self.count)


class _Sum:
    """A summary: the sum over images, each batch in its own precision, batches in float64."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0

    def empty(self) -> "_Sum":
        return _Sum()

    def update(self, values: Float[Tensor, "image ..."]) -> None:
        self.total = self.total + values.sum(dim=0).double()

    def merge(self, other: "_Sum") -> None:
        self.total = self.total + other.total


@dataclass(frozen=True, eq=False)
class _NeuronMeans(Reducer):
    """'neuron_means_BLOCK' (image, 5, hidden): means over the tokens of an image of what the neurons do in one block: activation
    at outliers and elsewhere, absolute activation at outliers and elsewhere, score. Zeros for an image without an outlier."""

    blocks: int
    outlier: Bool[Tensor, "image token"] = field(repr=False)  # of the patches, or in mode "jiang_code" of all tokens
    mode: str
    sparsity: bool
    point = "neurons"

    @property
    def keys(self) -> tuple[str, ...]:
        return (f"neuron_means_{self.blocks}",)

    def of(self, start: int, stop: int) -> Reducer:
        return replace(self, outlier=self.outlier[start:stop])

    def reduce(self, x: Float[Tensor, "image token hidden"], layout: TokenLayout) -> tuple[Tensor, ...]:
        x = (x if self.mode == "jiang_code" else layout.patch_tokens(x)).float()
        at = self.outlier.to(x.device)
        weights = torch.stack([at, ~at & at.any(dim=1, keepdim=True)], dim=1).float()
        weights /= weights.sum(dim=-1, keepdim=True).clamp(min=1)
        means, magnitudes = weights @ x, weights @ x.abs()  # (image, 2, hidden)
        score = (magnitudes if self.mode == "jiang_code" else means).select(1, 0)
        if self.sparsity:
            score = score * ((x < SPARSE_VALUE).sum(dim=1) >= SPARSE_SHARE * x.shape[1])
        return (torch.cat([means, magnitudes, score[:, None]], dim=1),)


def _outliers(
    backbone: Backbone, images: Any, mode: str, rule: str, layer: int, options: dict[str, Any]
) -> Bool[Tensor, "image token"]:
    """Which patches, or in mode "jiang_code" which tokens, are outliers."""
    norms = capture(backbone, images, [TokenNorms(layer)], **options)["token_norms"]
    patches = backbone.layout.patch_tokens(norms, dim=-1)
    limit = threshold(patches, rule)
    norms = norms if mode == "jiang_code" else patches
    if not (norms > limit).any():
        raise ValueError(
            f"no norm after block {layer % backbone.depth} of '{backbone.name}' exceeds {limit:.4g} ('{rule}') in {len(norms)} "
            f"images, the largest is {float(norms.max()):.4g}; choose another rule or layer"
        )
    return norms > limit


def _by_block(backbone: Backbone, neurons: Neurons) -> dict[int, list[int]]:
    """block -> its units, in the order given."""
    units = defaultdict(list)
    for block, unit, *_ in neurons:
        hidden = backbone.neurons(block).in_features
        if block < 0 or not 0 <= unit < hidden:
            raise ValueError(
                f"no neuron ({block}, {unit}) in '{backbone.name}'; choose a block from 0 to {backbone.depth - 1} and a unit "
                f"from 0 to {hidden - 1}"
            )
        if unit in units[block]:
            raise ValueError(f"neuron ({block}, {unit}) is given twice; give each once")
        units[block].append(unit)
    return units


def _shifts(backbone: Backbone, neurons: Neurons, first: int, count: int, clear: str, seed: int) -> dict[int, _Shift]:
    """block -> what moves its neurons."""
    if count < 1:
        raise ValueError(f"neurons cannot move to {count} tokens; give a count of at least 1, or use ablated_neurons")
    if clear not in CLEARS:
        raise ValueError(f"clear is '{clear}'; choose one of {', '.join(CLEARS)}")
    by_block, start, shifts = _by_block(backbone, neurons), 0, {}
    shares = (np.random.default_rng(seed).permutation(len(neurons)) % count).tolist()
    for block, units in by_block.items():
        shifts[block] = _Shift(units, shares[start : start + len(units)], first, count, clear)
        start += len(units)
    return shifts


def _append(count: int, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    x, *rest = inputs
    return (torch.cat([x, x.new_zeros(len(x), count, x.shape[-1])], dim=1), *rest)


def _take_away(count: int, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output.narrow(1, 0, output.shape[1] - count)


def _shift_input(layout: TokenLayout, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
    (x,) = inputs
    # At another image size there are other patches, and as many other tokens.
    return (layer.shift(x, layout.with_kept(x.shape[1] - layout.tokens + layout.patches)),)
