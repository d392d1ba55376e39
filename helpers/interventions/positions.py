"""Position embeddings moved about, or the content under them; and changes at a few patches only.

Where outliers go shows whether position or content makes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from helpers.interventions.neurons import (
    Condition,
    Neurons,
    ablated_neurons,
    averaged_neurons,
    changed_units,
    test_time_registers,
    where_given,
)
from helpers.interventions.tokens import Change, intervention, moved_positions
from helpers.models import Backbone, TokenLayout
from helpers.settings import check_choice

MOVES = ("swapped", "permuted", "zeroed")


def moved_sources(
    layout: TokenLayout, positions: Sequence[int], move: str, seed: int = 0
) -> Int64[Tensor, " patch"]:
    """What `moved_positions` takes, to move the embeddings of a few patches.

    Args:
        positions: row-major patch indices, as many as the grid has patches around its centre
            (four).
        move: "swapped", they and the central patches have each other's; "permuted", all patches
            have each other's at random; "zeroed", they have none.
    """
    check_choice("move", move, MOVES)
    if move == "permuted":
        return torch.from_numpy(np.random.default_rng(seed).permutation(layout.patches))
    sources, positions = torch.arange(layout.patches), list(positions)
    if move == "zeroed":
        sources[positions] = -1
    else:
        sources[positions + layout.centre] = torch.tensor(layout.centre + positions)
    return sources


@intervention
def rolled_content(backbone: Backbone) -> Iterator[Backbone]:
    """Move what the picture shows by half of the grid, around its edges, under fixed embeddings.

    It is the picture rolled by whole patches, as the model sees it (`TokenLayout.rolled`). What
    stays where it was in spite of that, was put there by position.
    """
    grid, rolled = backbone.layout.grid, backbone.layout.rolled
    with backbone.change_embedding(lambda x: rolled(x.flatten(1, 2), 1).unflatten(1, grid)):
        yield backbone


def patches_carrying(sources: Int64[Tensor, " patch"], positions: Sequence[int]) -> list[int]:
    """The patches that carry the embeddings of `positions`, in the order of the grid."""
    return np.flatnonzero(np.isin(sources, list(positions))).tolist()


def expected_at(
    layout: TokenLayout, positions: Sequence[int], condition: str, seed: int = 0
) -> list[int]:
    """Where outliers are expected that follow the embeddings of `positions`.

    At the patches that carry them where `condition` is a move (`moved_sources`); at `positions` in
    any other condition, and where the embeddings are zeroed, so that no patch has them.
    """
    moved = (
        patches_carrying(moved_sources(layout, positions, condition, seed), positions)
        if condition in MOVES
        else []
    )
    return moved or list(positions)


def position_conditions(
    positions: Mapping[str, Sequence[int]], seed: int = 0
) -> dict[str, Condition]:
    """The moves of `moved_sources` by name, of models that have positions."""

    def move(kind: str, backbone: Backbone, own: Sequence[int]) -> AbstractContextManager:
        return moved_positions(backbone, moved_sources(backbone.layout, own, kind, seed))

    return {kind: where_given(positions, partial(move, kind)) for kind in MOVES}


@intervention
def neurons_off_at(
    backbone: Backbone, neurons: Neurons, positions: Sequence[int]
) -> Iterator[Backbone]:
    """Set `neurons` to zero at the patches `positions` (row-major) and nowhere else."""
    places = torch.tensor(_places(backbone.layout, positions), dtype=torch.int64)

    def off(x: Tensor, units: Tensor) -> Tensor:
        x = x.clone()
        backbone.layout.patch_tokens(x)[:, places.to(x.device)[:, None], units] = 0
        return x

    with changed_units(backbone, neurons, off):
        yield backbone


@intervention
def removed_patches(backbone: Backbone, positions: Sequence[int]) -> Iterator[Backbone]:
    """Take the patches `positions` (row-major) out of the sequence of every image before block 0.

    The others keep their order; none changes nothing, to the bit.
    """
    layout = backbone.layout
    gone = _places(layout, positions)
    keep = torch.ones(layout.tokens, dtype=torch.bool)
    layout.patch_tokens(keep, dim=0)[gone] = False
    left = layout.patch_tokens(keep, dim=0).nonzero()[:, 0]

    with (
        backbone.change_input(lambda x: x[:, keep.to(x.device)]),
        backbone.change_rotation(lambda rope: rope.index_select(-2, left.to(rope.device))),
    ):
        if gone:
            backbone.layout = layout.with_kept(layout.patches - len(gone))
        yield backbone


def unit_treatments(units: Mapping[str, Any]) -> dict[str, Change]:
    """What shows whether a neuron, or the patches at the usual positions, cause outliers, by name:
    it is set to zero, everywhere or there alone, or to its mean, or moved to one token; another one
    of similar output is set to zero; these patches, or the central ones, are taken out. `units` are
    the `helpers.capture.OutlierUnit` of each model.
    """
    return {
        "plain": nullcontext,
        "ablated": lambda b: ablated_neurons(b, [units[b.name].neuron]),
        "ablated_there": lambda b: neurons_off_at(b, [units[b.name].neuron], units[b.name].usual),
        "averaged": lambda b: averaged_neurons(b, [units[b.name].neuron]),
        "matched": lambda b: ablated_neurons(b, [units[b.name].matched]),
        "shifted": lambda b: test_time_registers(b, [units[b.name].neuron]),
        "dropped": lambda b: removed_patches(b, units[b.name].usual),
        "dropped_centre": lambda b: removed_patches(b, b.layout.centre),
    }


def _places(layout: TokenLayout, positions: Sequence[int]) -> list[int]:
    """The patches, each once."""
    places = sorted({*positions})
    if layout.kept is not None:
        raise ValueError("patches were removed, so that positions no longer say which are which")
    if places and not 0 <= places[0] <= places[-1] < layout.patches:
        raise ValueError(f"patches {places} are not all among the {layout.patches}")
    return places
