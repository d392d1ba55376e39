"""Which MLP neurons make a model's outliers (Jiang et al., "Vision Transformers Don't Need Trained
Registers", arXiv:2506.08010).

Where that paper's text and its code differ, an option says which is meant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.passes import backbones
from helpers.capture.reducers import PatchNorms, Reducer, TokenNorms
from helpers.interventions import RegisterNeuron
from helpers.measures.norms import outliers, threshold
from helpers.models import Backbone, TokenLayout
from helpers.settings import settings_of

SEARCH_MODES = ("paper", "jiang_code")
SPARSE_VALUE, SPARSE_SHARE = (
    0.5,
    0.5,
)  # of the authors' filter: at least half of the tokens are under 0.5


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
        images: as in `capture`. They pass twice, for the norms and for the neurons, and both passes
            must see the same patches. Kept are the norms of all images, and of the images of one
            batch five numbers a neuron.
        mode: "paper": outliers among the patches, score `|mean activation|`. "jiang_code": outliers among all tokens, [CLS] and
            registers too, score `mean |activation|`.
        rule: which norms are outliers, as in `helpers.measures.norms.threshold`, applied to the
            norms of all patches in both modes; "fixed:30" is a threshold of 30.
        layer: the block after which norms are taken; -1 for CLIP and -2 for DINOv2 in the authors'
            code.
        layers: the blocks whose neurons are looked at; all up to `layer`, and that too, unless
            given.
        top_k: how many neurons.
        sparsity: a score of zero in images where less than half of the tokens (mode "paper": of the
            patches) are under 0.5, the authors' filter.
        options: batch_size, device, dtype, progress and engine, as in `capture`.

    Raises ValueError for another mode or rule, a layer or block that is not there or has no MLP
    neurons, a `top_k` below one or above the number of neurons, patches removed by an intervention,
    no outlier in any image, and what `capture` raises.
    """  # noqa: E501
    if mode not in SEARCH_MODES:
        raise ValueError(f"mode is '{mode}'; choose one of {', '.join(SEARCH_MODES)}")
    if backbone.layout.kept is not None:
        raise ValueError(
            "patches were removed, other ones in each pass; find register neurons with all of them "
            "there"
        )
    layers = range(layer % backbone.depth + 1) if layers is None else layers
    hidden = {block % backbone.depth: backbone.hidden(block) for block in layers}
    if not 1 <= top_k <= sum(hidden.values()):
        raise ValueError(
            f"top_k is {top_k}, but blocks {list(hidden)} have {sum(hidden.values())} neurons; "
            "choose from 1 to that"
        )
    outlier = outlier_tokens(backbone, images, mode, rule, layer, options)
    means = [NeuronMeans(block, outlier, mode, sparsity) for block in hidden]
    sums = {reducer.keys[0]: [SumOverImages()] for reducer in means}
    capture(backbone, images, means, into=sums, **options)

    units = [(block, unit) for block, size in hidden.items() for unit in range(size)]
    total = torch.cat([part.total for [part] in sums.values()], dim=1)  # (row, neuron)
    with_outlier = outlier.any(dim=1)  # images
    total[[0, 2, 4]] /= with_outlier.sum()
    total[[1, 3]] /= (
        (with_outlier & ~outlier.all(dim=1)).sum().clamp(min=1)
    )  # an image of outliers only has no elsewhere
    at, elsewhere, magnitude, other, score = total
    ratio = torch.where((magnitude == 0) & (other == 0), 1.0, magnitude / other)
    order = score.abs().argsort(descending=True, stable=True)[:top_k]
    rows = torch.stack([at, elsewhere, magnitude, ratio, score.abs()], dim=1)[order].tolist()
    return [RegisterNeuron(*units[i], *row) for i, row in zip(order.tolist(), rows, strict=True)]


def register_neurons_of(
    names: Sequence[str],
    images: Any,
    *,
    image_size: int | None = None,
    by_model: Sequence[str] = (),
    rule: str = "median:3",
    layer: int = -1,
    top_layer: int = -1,
    top_k: int = 10,
    **search: Any,
) -> tuple[dict[str, list[RegisterNeuron]], dict[str, str]]:
    """`find_register_neurons` in each model that has an outlier in these images, one model in
    memory at a time.

    Args:
        image_size: as in `capture_conditions`.
        by_model: what of `rule`, `layer`, `top_layer` and `top_k` differs by model, as in
            `helpers.settings.settings_of`.
        rule, layer, top_k, search: as in `find_register_neurons`.
        top_layer: the last block whose neurons are looked at, from 0, of those up to `layer`; -1
            for all of these. It is 19 for DINOv2-L and 5 for CLIP-B in the papers, whose outliers
            start in the block after it.

    Returns:
        model -> its register neurons, without the models that have no outlier, and model -> why it
        cannot be had here.

    Raises ModelUnavailable where none can be had, and what `find_register_neurons` raises.
    """
    options = {
        key: value
        for key, value in search.items()
        if key in ("batch_size", "device", "dtype", "progress", "engine")
    }
    neurons, not_run = {}, dict[str, str]()
    settings = settings_of(
        names, by_model, rule=rule, layer=layer, top_layer=top_layer, top_k=top_k
    )
    for backbone in backbones(names, not_run, image_size):
        own = settings[backbone.name]
        norms = capture(backbone, images, [PatchNorms(own.layer)], **options)["patch_norms"]
        if outliers(norms, own.rule).any():
            how = {"rule": own.rule, "layer": own.layer, "top_k": own.top_k}
            layers = range(own.layer % backbone.depth + 1)[: own.top_layer + 1 or None]
            neurons[backbone.name] = find_register_neurons(
                backbone, images, layers=layers, **how, **search
            )
    return neurons, not_run


class SumOverImages:
    """A summary: the sum over images, each batch in its own precision, batches in float64."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0

    def update(self, values: Float[Tensor, "image ..."]) -> None:
        self.total = self.total + values.sum(dim=0).double()


@dataclass(frozen=True, eq=False)
class NeuronMeans(Reducer):
    """'neuron_means_BLOCK' (image, 5, hidden): means over the tokens of an image of what the
    neurons do in one block: activation at outliers and elsewhere, absolute activation at outliers
    and elsewhere, score. Zeros for an image without an outlier.
    """

    blocks: int
    outlier: Bool[Tensor, "image token"] = field(
        repr=False
    )  # of the patches, or in mode "jiang_code" of all tokens
    mode: str
    sparsity: bool
    point = "neurons"

    @property
    def keys(self) -> tuple[str, ...]:
        return (f"neuron_means_{self.blocks}",)

    def of(self, start: int, stop: int) -> Reducer:
        return replace(self, outlier=self.outlier[start:stop])

    def reduce(
        self, x: Float[Tensor, "image token hidden"], layout: TokenLayout
    ) -> tuple[Tensor, ...]:
        x = (x if self.mode == "jiang_code" else layout.patch_tokens(x)).float()
        at = self.outlier.to(x.device)
        weights = torch.stack([at, ~at & at.any(dim=1, keepdim=True)], dim=1).float()
        weights /= weights.sum(dim=-1, keepdim=True).clamp(min=1)
        means, magnitudes = weights @ x, weights @ x.abs()  # (image, 2, hidden)
        score = (magnitudes if self.mode == "jiang_code" else means).select(1, 0)
        if self.sparsity:
            score = score * ((x < SPARSE_VALUE).sum(dim=1) >= SPARSE_SHARE * x.shape[1])
        return (torch.cat([means, magnitudes, score[:, None]], dim=1),)


def outlier_tokens(
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
            f"{limit:.4g} ('{rule}') in {len(norms)} "
            f"images, the largest is {float(norms.max()):.4g}; choose another rule or layer"
        )
    return norms > limit
