"""Which MLP neurons make a model's outliers (Jiang et al., "Vision Transformers Don't Need Trained
Registers", arXiv:2506.08010), and random ones of similar output: the control that tells a neuron
from any strong one.

Where that paper's text and its code differ, an option says which is meant.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.lab import Lab
from helpers.capture.reducers import (
    Kept,
    PatchNorms,
    Reducer,
    SelectedTokens,
    TokenNorms,
    activations_of,
)
from helpers.interventions import MatchedNeuron, Neurons, RegisterNeuron, units_by_block
from helpers.measures.norms import outliers, paired_positions, threshold
from helpers.measures.outliers import Placement, unit_traits
from helpers.measures.stats import Estimate
from helpers.models import Backbone, TokenLayout
from helpers.settings import SEARCH, check_choice, settings_of

SEARCH_MODES = ("paper", "jiang_code")
SPARSE_VALUE, SPARSE_SHARE = 0.5, 0.5  # of the authors' filter: half of the tokens under 0.5
NEAREST = 5  # units, of which one is drawn
DECIMALS = 3  # of the decimal logarithms that are compared
PAIRS = 4  # at most as many outliers of an image


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
    """The neurons that are most active where a token becomes an outlier (Jiang et al.), best first;
    with equal scores in order of `layers`, then of units.

    An image counts by the mean over its outliers, and only if it has one, as in the authors' code.

    Args:
        mode: "paper": outliers among the patches, score `|mean activation|`. "jiang_code": outliers
            among all tokens, [CLS] and registers too, score `mean |activation|`.
        rule: as in `helpers.measures.norms.threshold`, of the norms of all patches in both modes.
        layer: the block after which norms are taken; in the authors' code -1 for CLIP and -2 for
            DINOv2.
        layers: the blocks whose neurons are looked at; all up to `layer` unless given.
        sparsity: the authors' filter: a score of zero in images where less than half of the tokens
            (mode "paper": of the patches) are under 0.5.
        options: as in `capture`.
    """
    check_choice("mode", mode, SEARCH_MODES)
    if backbone.layout.kept is not None:
        raise ValueError("patches were removed, other ones in each pass")
    layers = range(layer % backbone.depth + 1) if layers is None else layers
    hidden = {block % backbone.depth: backbone.hidden(block) for block in layers}
    if not 1 <= top_k <= sum(hidden.values()):
        raise ValueError(f"top_k is {top_k}, of {sum(hidden.values())} neurons")
    outlier = _outlier_tokens(backbone, images, mode, rule, layer, options)
    units = [(block, unit) for block, size in hidden.items() for unit in range(size)]
    total = _summed(backbone, images, [*hidden], outlier, mode, sparsity, options)
    with_outlier = outlier.any(dim=1)  # images
    total[[0, 2, 4]] /= with_outlier.sum()
    # An image of outliers only has no elsewhere.
    total[[1, 3]] /= (with_outlier & ~outlier.all(dim=1)).sum().clamp(min=1)
    at, elsewhere, magnitude, other, score = total
    ratio = torch.where((magnitude == 0) & (other == 0), 1.0, magnitude / other)
    order = score.abs().argsort(descending=True, stable=True)[:top_k]
    rows = torch.stack([at, elsewhere, magnitude, ratio, score.abs()], dim=1)[order].tolist()
    return [RegisterNeuron(*units[i], *row) for i, row in zip(order.tolist(), rows, strict=True)]


@dataclass(frozen=True)
class Search:
    """How the register neurons of each model are found.

    Attributes:
        top_k: neurons of a model.
        by_model: what of these but `mode` differs by model, as 'MODEL NAME=VALUE'.
        rule, layer: which patches are outliers, as in `find_register_neurons`.
        top_layer: the last block whose neurons are looked at, from 0, of those up to `layer`; -1
            for all of these. In the papers 19 for DINOv2-L and 5 for CLIP-B, whose outliers start
            in the block after it.
        sparsity: 1 for the authors' filter, as in `find_register_neurons`.
        mode: as there.
    """

    top_k: int = 10
    by_model: Sequence[str] = ()
    rule: str = SEARCH["rule"]
    layer: int = SEARCH["layer"]
    top_layer: int = SEARCH["top_layer"]
    sparsity: int = SEARCH["sparsity"]
    mode: str = "paper"

    def of(self, models: Sequence[str]) -> dict[str, SimpleNamespace]:
        """Model -> its `rule`, `layer`, `top_layer`, `sparsity` and `top_k`."""
        common = {name: getattr(self, name) for name in (*SEARCH, "top_k")}
        return settings_of(models, self.by_model, **common)


def register_neurons_of(
    lab: Lab,
    images: Any,
    models: Collection[str] | None = None,
    search: Search = Search(),
    **one: Any,
) -> dict[str, list[RegisterNeuron]]:
    """`find_register_neurons` in each model that has an outlier in these images, by its name; `one`
    of the attributes of `search`, by name, goes before it.
    """
    neurons, search = {}, replace(search, **one)
    settings = search.of(lab.models if models is None else models)
    for backbone in lab.load(models):
        own = settings[backbone.name]
        norms = lab.capture_one(backbone, images, [PatchNorms(own.layer)])["patch_norms"]
        if outliers(norms, own.rule).any():
            how = {"rule": own.rule, "layer": own.layer, "top_k": own.top_k, "mode": search.mode}
            layers = range(own.layer % backbone.depth + 1)[: own.top_layer + 1 or None]
            neurons[backbone.name] = find_register_neurons(
                backbone, images, layers=layers, sparsity=bool(own.sparsity), **how, **lab.machine
            )
    return neurons


def matched_neurons(
    backbone: Backbone,
    neurons: Neurons,
    images: Any,
    *,
    where: str = "outliers",
    among: str = "block",
    rule: str = "median:3",
    layer: int = -1,
    seed: int = 0,
    **options: Any,
) -> list[MatchedNeuron]:
    """For each of `neurons` one random unit, out of the five whose output is nearest in size; no
    unit twice. A unit writes `|activation| x |its output weights|`.

    Args:
        where: the mean is over the "outliers" of an image, then over the images that have one; or
            over all "patches".
        among: the units of the neuron's own "block", or those of "later" blocks up to `layer`, too.
            Earlier units may be what the neuron answers to, so they are no control.
        rule, layer: which patches are outliers, as in `find_register_neurons`.
        options: as in `capture`.
    """
    check_choice("where", where, ("outliers", "patches"))
    check_choice("among", among, ("block", "later"))
    own, later = units_by_block(backbone, neurons), among == "later"
    blocks = sorted(
        {*own, *range(min(own, default=0), layer % backbone.depth + 1)} if later else own
    )
    outlier = _outlier_tokens(backbone, images, "paper", rule, layer, options)
    tokens = outlier if where == "outliers" else torch.ones_like(outlier)
    magnitude = _summed(backbone, images, blocks, tokens, "paper", False, options)[2]
    norms = [backbone.neurons(at).weight.detach().double().norm(dim=0).cpu() for at in blocks]
    written = magnitude / tokens.any(dim=1).sum() * torch.cat(norms)
    units = [(at, unit) for at in blocks for unit in range(backbone.hidden(at))]
    place = {unit: i for i, unit in enumerate(units)}
    block_of = torch.tensor([at for at, _ in units])
    free = torch.ones(len(units), dtype=torch.bool)
    free[[place[block, unit] for block, unit, *_ in neurons]] = False
    rng, matched = np.random.default_rng(seed), []
    for block, unit, *_ in neurons:
        wanted = float(written[place[block, unit]])
        allowed = free & (block_of >= block if later else block_of == block)
        if not (near := nearest_units(written, wanted, allowed, NEAREST)):
            raise ValueError(f"block {block} of '{backbone.name}' has too few other neurons")
        free[other := int(rng.choice(near))] = False
        matched.append(MatchedNeuron(*units[other], float(written[other]), wanted))
    return matched


def matched_neurons_of(
    lab: Lab,
    neurons: Mapping[str, Neurons],
    images: Any,
    search: Search = Search(),
    among: str = "block",
) -> dict[str, list[MatchedNeuron]]:
    """`matched_neurons` of each model, drawn by the seed of the laboratory; outliers are those of
    the search.
    """
    matched, settings = {}, search.of([*neurons])
    for backbone in lab.load([*neurons]):
        own = settings[backbone.name]
        how = {"rule": own.rule, "layer": own.layer, "seed": lab.seed, "among": among}
        given = neurons[backbone.name]
        matched[backbone.name] = matched_neurons(backbone, given, images, **how, **lab.machine)
    return matched


def nearest_units(
    written: Float[Tensor, " unit"], wanted: float, allowed: Bool[Tensor, " unit"], count: int
) -> list[int]:
    """The `count` units of those allowed whose value is nearest to `wanted` by ratio, nearest
    first, of equal ones the first.

    Ratios are compared to a quarter of a per cent, so that rounding does not choose.
    """
    distance = (written.log10() - np.log10(wanted or np.nan)).abs().nan_to_num(nan=torch.inf)
    distance = distance.round(decimals=DECIMALS).masked_fill(~allowed, torch.nan)
    order = distance.argsort(stable=True)  # nan sorts behind all numbers
    return order[: min(count, int(allowed.sum()))].tolist()


@dataclass(frozen=True)
class OutlierUnit:
    """What `outlier_units` kept of one model.

    Attributes:
        neuron: the most active one at outliers.
        matched: a random unit of similar output.
        usual: the positions at which most images have an outlier.
        mask: which patches are outliers.
        activation, second: of the neuron and of the next most active one, at each patch.
        outlier, normal: tokens of random outliers, and of as many other patches of the same image,
            after the last block and before the final LayerNorm; zeros where there are fewer.
    """

    neuron: RegisterNeuron
    matched: MatchedNeuron
    usual: list[int]
    mask: Bool[Tensor, "image patch"]
    activation: Float[Tensor, "image patch"]
    second: Float[Tensor, "image patch"]
    outlier: Float[Tensor, "image token width"]
    normal: Float[Tensor, "image token width"]

    def traits(self, seed: int = 0) -> dict[str, Estimate | float]:
        """What the neuron does and the outliers hold: `helpers.measures.outliers.unit_traits` and
        "matched_written", what the matched unit writes over what the neuron writes.
        """
        tokens = self.outlier, self.normal
        return {
            "neuron_block": self.neuron.block,
            "neuron_unit": self.neuron.unit,
            **unit_traits(self.activation, self.second, self.mask, *tokens, seed),
            "matched_written": self.matched.written / self.matched.wanted,
        }


def outlier_units(
    lab: Lab, placed: Mapping[str, Placement], images: Any, searched: int, rule: str
) -> dict[str, OutlierUnit]:
    """The unit of each model that has outliers.

    The unit is looked for in the first `searched` images that have an outlier, and the matched one,
    of similar output over all patches and of its block or a later one, in the first of all.
    """
    units = {}
    for backbone in lab.load([model for model, own in placed.items() if own.usual]):
        own = placed[backbone.name]
        mask = own.mask[: len(images)]
        shown = images.select(mask.any(1).nonzero()[:searched, 0])
        limit = f"fixed:{own.limit}"
        best = find_register_neurons(backbone, shown, rule=limit, top_k=2, **lab.machine)
        like = {"where": "patches", "among": "later", "rule": rule, "seed": lab.seed}
        first = images.select(range(min(searched, len(images))))
        (matched,) = matched_neurons(backbone, best[:1], first, **like, **lab.machine)
        pairs = torch.cat(paired_positions(mask, PAIRS, lab.seed), dim=1)
        reducers = [SelectedTokens(pairs, norm=False), *activations_of(best)]
        kept = lab.capture_one(backbone, images, reducers)
        activations = kept["neuron 1"], kept["neuron 2"]
        tokens = kept["tokens"].chunk(2, dim=1)
        places = own.usual, mask
        units[backbone.name] = OutlierUnit(best[0], matched, *places, *activations, *tokens)
    return units


def _summed(
    backbone: Backbone,
    images: Any,
    blocks: Sequence[int],
    outlier: Bool[Tensor, "image token"],
    mode: str,
    sparsity: bool,
    options: Mapping[str, Any],
) -> Float64[Tensor, "5 neuron"]:
    """The sum over images of `NeuronMeans`, of the neurons of all blocks, batches in float64."""
    means = [NeuronMeans(block, outlier, mode, sparsity) for block in blocks]
    sums: dict[str, Tensor | float] = {mean.keys[0]: 0.0 for mean in means}

    def add(key: str, values: Float[Tensor, "image 5 neuron"]) -> None:
        sums[key] = sums[key] + values.sum(dim=0).double()

    capture(backbone, images, means, into={key: partial(add, key) for key in sums}, **options)
    return torch.cat([*sums.values()], dim=1)


@dataclass(frozen=True, eq=False)
class NeuronMeans(Reducer):
    """'neuron_means_BLOCK' (image, 5, hidden): means over the tokens of an image of what the
    neurons do in one block: activation at outliers and elsewhere, absolute activation at outliers
    and elsewhere, score. Zeros for an image without an outlier.
    """

    blocks: int
    # Of the patches, or in mode "jiang_code" of all tokens.
    outlier: Bool[Tensor, "image token"] = field(repr=False)
    mode: str
    sparsity: bool
    point = "neurons"

    @property
    def keys(self) -> tuple[str, ...]:
        return (f"neuron_means_{self.blocks}",)

    def of(self, start: int, stop: int) -> Reducer:
        return replace(self, outlier=self.outlier[start:stop])

    def reduce(self, x: Float[Tensor, "image token hidden"], layout: TokenLayout) -> Kept:
        x = (x if self.mode == "jiang_code" else layout.patch_tokens(x)).float()
        at = self.outlier.to(x.device)
        weights = torch.stack([at, ~at & at.any(dim=1, keepdim=True)], dim=1).float()
        weights /= weights.sum(dim=-1, keepdim=True).clamp(min=1)
        means, magnitudes = weights @ x, weights @ x.abs()  # (image, 2, hidden)
        score = (magnitudes if self.mode == "jiang_code" else means).select(1, 0)
        if self.sparsity:
            score = score * ((x < SPARSE_VALUE).sum(dim=1) >= SPARSE_SHARE * x.shape[1])
        return (torch.cat([means, magnitudes, score[:, None]], dim=1),)


def _outlier_tokens(
    backbone: Backbone, images: Any, mode: str, rule: str, layer: int, options: dict[str, Any]
) -> Bool[Tensor, "image token"]:
    """Which patches, or in mode "jiang_code" which tokens, are outliers."""
    norms = capture(backbone, images, [TokenNorms(layer)], **options)["token_norms"]
    patches = backbone.layout.patch_tokens(norms, dim=-1)
    limit = threshold(patches, rule)
    norms = norms if mode == "jiang_code" else patches
    if not (norms > limit).any():
        raise ValueError(
            f"no norm after block {layer % backbone.depth} of '{backbone.name}' exceeds "
            f"{limit:.4g} ('{rule}')"
        )
    return norms > limit
