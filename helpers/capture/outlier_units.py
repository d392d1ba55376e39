"""The MLP unit that is most active at a model's outliers, and the tokens there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.passes import backbones
from helpers.capture.reducers import NeuronActivation, SelectedTokens
from helpers.capture.register_neurons import find_register_neurons
from helpers.interventions import RegisterNeuron
from helpers.measures.norms import paired_positions

PAIRS = 4  # at most as many outliers of an image


@dataclass(frozen=True)
class OutlierUnit:
    """What `outlier_units` kept of one model.

    Attributes:
        neuron: the most active one at outliers.
        activation, second: of it and of the next most active one, at each patch.
        outlier, normal: tokens of random outliers, and of as many other patches of the same image,
            after the last block and before the final LayerNorm; zeros where there are fewer.
    """

    neuron: RegisterNeuron
    activation: Float[Tensor, "image patch"]
    second: Float[Tensor, "image patch"]
    outlier: Float[Tensor, "image token width"]
    normal: Float[Tensor, "image token width"]


def outlier_units(
    names: Sequence[str],
    images: Any,
    outliers: Mapping[str, Bool[Tensor, "image patch"]],
    limits: Mapping[str, float],
    *,
    searched: int,
    seed: int = 0,
    image_size: int | None = None,
    **options: Any,
) -> dict[str, OutlierUnit]:
    """The unit of each model, with no more than one model in memory.

    Args:
        outliers: model -> which patches of the images are outliers.
        limits: model -> the norm after the last block above which a patch is one.
        searched: the unit is looked for in as many images, the first that have an outlier.
        seed: of the tokens.
        image_size: as in `capture_conditions`.
        options: as in `capture`.

    Raises what `find_register_neurons` and `capture` raise.
    """
    units = {}
    for backbone in backbones(names, {}, image_size):
        mask = outliers[backbone.name]
        bearing = images.select(mask.any(1).nonzero()[:searched, 0])
        best = find_register_neurons(
            backbone, bearing, rule=f"fixed:{limits[backbone.name]}", top_k=2, **options
        )
        activations = [
            NeuronActivation(f"unit_{rank}", neuron.block, neuron.unit)
            for rank, neuron in enumerate(best)
        ]
        pairs = torch.cat(paired_positions(mask, PAIRS, seed), dim=1)
        kept = capture(
            backbone, images, [SelectedTokens(pairs, norm=False), *activations], **options
        )
        units[backbone.name] = OutlierUnit(
            best[0], kept["unit_0"], kept["unit_1"], *kept["tokens"].chunk(2, dim=1)
        )
    return units
