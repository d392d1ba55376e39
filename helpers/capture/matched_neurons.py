"""Random MLP units that write as much as given neurons do: the control that tells a neuron from any
strong one of its block.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.passes import backbones
from helpers.capture.register_neurons import NeuronMeans, SumOverImages, outlier_tokens
from helpers.interventions import MatchedNeuron, Neurons, units_by_block
from helpers.models import Backbone
from helpers.settings import settings_of

WHERE, AMONG = ("outliers", "patches"), ("block", "later")
DECIMALS = 3  # of the decimal logarithms that are compared


def matched_neurons(
    backbone: Backbone,
    neurons: Neurons,
    images: Any,
    *,
    where: str = "outliers",
    among: str = "block",
    rule: str = "median:3",
    layer: int = -1,
    nearest: int = 5,
    seed: int = 0,
    **options: Any,
) -> list[MatchedNeuron]:
    """For each of `neurons` one random unit, out of the `nearest` that write most nearly as much.

    A unit writes `|activation| x |its output weights|`. Where no unit writes nearly as much as the neuron, the strongest others are
    the nearest: `written` beside `wanted` tells how far they fall short.

    Args:
        images: as in `capture`; those in which the neurons were found will do.
        where: the mean is over the "outliers" of an image, then over the images that have one; or
            over all "patches".
        among: the units of the neuron's own "block", or those of "later" blocks up to `layer`, too.
            Earlier units may be what the neuron answers to, so they are no control.
        rule, layer: which patches are outliers, as in `find_register_neurons`.
        nearest: from how many units one is drawn.
        seed: of the draw.
        options: as in `capture`.

    Returns:
        In the order of `neurons`; none of them, and no unit twice.

    Raises ValueError for another `where` or `among`, `nearest` below one, a neuron that is not
    there or comes twice, too few others, and what `find_register_neurons` raises where there is no
    outlier.
    """  # noqa: E501
    for name, value, known in (("where", where, WHERE), ("among", among, AMONG)):
        if value not in known:
            raise ValueError(f"{name} is '{value}'; choose one of {', '.join(known)}")
    if nearest < 1:
        raise ValueError(f"nearest is {nearest}; draw from at least one unit")
    own = units_by_block(backbone, neurons)
    blocks = (
        [*own]
        if among == "block"
        else sorted({*own, *range(min(own, default=0), layer % backbone.depth + 1)})
    )
    outlier = outlier_tokens(backbone, images, "paper", rule, layer, options)
    tokens = outlier if where == "outliers" else torch.ones_like(outlier)
    means = [NeuronMeans(block, tokens, "paper", False) for block in blocks]
    sums = {reducer.keys[0]: [SumOverImages()] for reducer in means}
    capture(backbone, images, means, into=sums, **options)
    units, written = [], []
    for block, [part] in zip(blocks, sums.values(), strict=True):
        weights = backbone.neurons(block).weight.detach().double().norm(dim=0)
        written.append(
            part.total[2].cpu() / tokens.any(dim=1).sum() * weights.cpu()
        )  # row 2: mean absolute activation
        units += [(block, unit) for unit in range(len(weights))]
    written, place = torch.cat(written), {unit: i for i, unit in enumerate(units)}
    rng, taken, matched = (
        np.random.default_rng(seed),
        {place[block, unit] for block, unit, *_ in neurons},
        [],
    )
    for block, unit, *_ in neurons:
        others = {
            i for i, (at, _) in enumerate(units) if at < block or (among == "block" and at > block)
        }
        wanted = float(written[place[block, unit]])
        if not (near := nearest_units(written, wanted, taken | others, nearest)):
            raise ValueError(
                f"block {block} of '{backbone.name}' has too few other neurons; give fewer"
            )
        taken.add(other := int(rng.choice(near)))
        matched.append(MatchedNeuron(*units[other], float(written[other]), wanted))
    return matched


def matched_neurons_of(
    neurons: Mapping[str, Neurons],
    images: Any,
    *,
    image_size: int | None = None,
    by_model: Sequence[str] = (),
    rule: str = "median:3",
    layer: int = -1,
    **search: Any,
) -> dict[str, list[MatchedNeuron]]:
    """`matched_neurons` of each model (model -> its neurons), one model in memory at a time.

    Args:
        images, rule, layer, search: as in `matched_neurons`.
        image_size, by_model: as in `register_neurons_of`.
    """
    own = settings_of([*neurons], by_model, rule=rule, layer=layer)
    return {
        b.name: matched_neurons(
            b, neurons[b.name], images, rule=own[b.name].rule, layer=own[b.name].layer, **search
        )
        for b in backbones([*neurons], {}, image_size)
    }


def nearest_units(
    written: Float[Tensor, " unit"], wanted: float, without: set[int], count: int
) -> list[int]:
    """The `count` units whose value is nearest to `wanted` by ratio, nearest first, of equal ones
    the first; none of `without`.

    Ratios are compared to a quarter of a per cent, so that rounding does not choose. A unit that
    writes nothing comes last.
    """
    distance = (
        (written.log10() - np.log10(wanted or np.nan))
        .abs()
        .nan_to_num(nan=torch.inf)
        .round(decimals=DECIMALS)
    )
    distance[sorted(without)] = torch.nan  # sorts behind all numbers
    return distance.argsort(stable=True)[: min(count, len(written) - len(without))].tolist()
