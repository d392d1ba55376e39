"""Position embeddings moved about, or the content under them.

Where outliers go shows whether position or content makes them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from helpers.interventions.tokens import intervention, moved_positions
from helpers.models import Backbone, TokenLayout

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
        seed: of the permutation.

    Raises ValueError for another move.
    """
    if move not in MOVES:
        raise ValueError(f"move is '{move}'; choose one of {', '.join(MOVES)}")
    own, positions = torch.arange(layout.patches), list(positions)
    if move == "permuted":
        return torch.from_numpy(np.random.default_rng(seed).permutation(len(own)))
    sources = own.clone()
    if move == "zeroed":
        sources[positions] = -1
    else:
        sources[positions + layout.centre] = own[layout.centre + positions]
    return sources


@intervention
def rolled_content(backbone: Backbone) -> Iterator[Backbone]:
    """Move what the picture shows by half of the grid, under position embeddings that stay.

    By half of its rows and columns, around its edges.

    It is the picture rolled by whole patches, as the model sees it, after resizing and cropping
    (`TokenLayout.rolled`). What stays where it was in spite of that, was put there by position.
    `capture` sees the rolled patches at the embedding.
    """
    grid, rolled = backbone.layout.grid, backbone.layout.rolled
    with backbone.change_embedding(lambda x: rolled(x.flatten(1, 2), 1).unflatten(1, grid)):
        yield backbone


def carriers(sources: Int64[Tensor, " patch"], positions: Sequence[int]) -> list[int]:
    """The patches that carry the embeddings of `positions`, in the order of the grid.

    None where these were zeroed.
    """
    return np.flatnonzero(np.isin(sources, list(positions))).tolist()


def expected_at(
    layout: TokenLayout, positions: Sequence[int], condition: str, seed: int = 0
) -> list[int]:
    """Where outliers are expected that follow the embeddings of `positions`.

    At the patches that carry them where `condition` is a move (`moved_sources`); at `positions` in
    any other condition, and where the embeddings are zeroed, so that no patch has them.
    """
    moved = (
        carriers(moved_sources(layout, positions, condition, seed), positions)
        if condition in MOVES
        else []
    )
    return moved or list(positions)


def position_conditions(
    positions: Mapping[str, Sequence[int]], seed: int = 0
) -> dict[str, Callable[[Backbone], AbstractContextManager | None]]:
    """The moves of `moved_sources` by name, for `helpers.capture.capture_conditions`.

    Models without positions are left out.

    Args:
        positions: model -> the patches whose embeddings are moved.
    """

    def moved(move: str) -> Callable[[Backbone], AbstractContextManager | None]:
        return lambda b: (
            moved_positions(b, moved_sources(b.layout, positions[b.name], move, seed))
            if b.name in positions
            else None
        )

    return {move: moved(move) for move in MOVES}
