"""What is changed at a few patches only: a neuron set to zero there, or the patches taken out.

A neuron that is set to zero everywhere, and a patch that is an outlier in all images, are each a
cause with two parts. These tell whether what follows comes from the neuron at those patches, and
whether the patches themselves are needed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from helpers.interventions.neurons import (
    Neurons,
    ablated_neurons,
    averaged_neurons,
    test_time_registers,
    units_by_block,
)
from helpers.interventions.tokens import intervention
from helpers.models import Backbone, TokenLayout

Change = Callable[[Backbone], AbstractContextManager]


@intervention
def neurons_off_at(
    backbone: Backbone, neurons: Neurons, positions: Sequence[int]
) -> Iterator[Backbone]:
    """Set `neurons` to zero at the patches `positions` (row-major) and nowhere else.

    No token is added.

    Raises ValueError for a neuron or a patch that is not there, a neuron that comes twice, and
    where patches were removed.
    """
    places = torch.tensor(_places(backbone.layout, positions), dtype=torch.int64)

    def change(x: Tensor, units: Tensor) -> Tensor:
        x = x.clone()
        backbone.layout.patch_tokens(x)[:, places.to(x.device)[:, None], units.to(x.device)] = 0
        return x

    with ExitStack() as hooks:
        for block, own in units_by_block(backbone, neurons).items():
            units = torch.tensor(own)
            hooks.enter_context(
                backbone.change_neurons(block, lambda x, units=units: change(x, units))
            )
        yield backbone


@intervention
def removed_patches(backbone: Backbone, positions: Sequence[int]) -> Iterator[Backbone]:
    """Take the patches `positions` (row-major) out of the sequence of every image before block 0.

    The others keep their order.

    None changes nothing, to the bit. Raises ValueError for a patch that is not there, for all of
    them, and where patches were removed.
    """
    layout = backbone.layout
    gone = _places(layout, positions)
    if len(gone) == layout.patches:
        raise ValueError(
            f"all {layout.patches} patches of '{backbone.name}' would be removed; leave at least "
            "one"
        )
    keep = torch.ones(layout.tokens, dtype=torch.bool)
    layout.patch_tokens(keep, dim=0)[gone] = False
    left = layout.patch_tokens(keep, dim=0).nonzero()[:, 0]

    def rotation(rope: Tensor) -> Tensor:
        return rope.index_select(-2, left.to(rope.device))

    with (
        backbone.change_input(lambda x: x[:, keep.to(x.device)]),
        backbone.change_rotation(rotation),
    ):
        if gone:
            backbone.layout = layout.with_kept(layout.patches - len(gone))
        try:
            yield backbone
        finally:
            backbone.layout = layout


def unit_treatments(
    neurons: Mapping[str, Neurons],
    matched: Mapping[str, Neurons],
    positions: Mapping[str, Sequence[int]],
) -> dict[str, Change]:
    """Treatments that show whether a neuron, or the patches where it acts, cause what they seem to.

    By name, for `helpers.capture.capture_conditions`.

    "ablated": the neurons set to zero. "ablated_there": only at the `positions`. "averaged": at
    every patch at their mean over the patches of the image. "matched": others that write as much,
    set to zero. "shifted": the neurons moved to one token. "dropped": the patches at the
    `positions` taken out. "dropped_centre": the patches around the centre of the grid taken out.

    Args:
        neurons: model -> its neurons.
        matched: model -> as many others, from `helpers.capture.matched_neurons_of`.
        positions: model -> the patches where the neurons act.
    """
    return {
        "ablated": lambda b: ablated_neurons(b, neurons[b.name]),
        "ablated_there": lambda b: neurons_off_at(b, neurons[b.name], positions[b.name]),
        "averaged": lambda b: averaged_neurons(b, neurons[b.name]),
        "matched": lambda b: ablated_neurons(b, matched[b.name]),
        "shifted": lambda b: test_time_registers(b, neurons[b.name]),
        "dropped": lambda b: removed_patches(b, positions[b.name]),
        "dropped_centre": lambda b: removed_patches(b, b.layout.centre),
    }


def _places(layout: TokenLayout, positions: Sequence[int]) -> list[int]:
    """The patches, each once."""
    places = sorted({*positions})
    if layout.kept is not None:
        raise ValueError(
            "patches were removed, and positions on the grid no longer say which are which; remove "
            "none before"
        )
    if places and not 0 <= places[0] <= places[-1] < layout.patches:
        raise ValueError(
            f"patches {places} are not all there; choose from 0 to {layout.patches - 1}"
        )
    return places
