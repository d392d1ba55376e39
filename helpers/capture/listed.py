"""The list of captures in a run's workspace: what `run --dry` reckons with, and what was stored."""

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from helpers.capture.reducers import Reducer
from helpers.files import Workspace
from helpers.models import Backbone


def listed(
    workspace: Workspace,
    backbone: Backbone,
    images: int,
    reducers: Sequence[Reducer],
    kept: Mapping[str, Tensor],
    told: Mapping[str, Any],
) -> None:
    """Add a capture to the list, and later an entry for each of its tensors that is let go.

    By a stub as many numbers of one image are kept as by the model that it stands for: where a
    dimension is the blocks, tokens, patches or side of the stub, it is taken as that of the model.

    Args:
        told: what else to say of it: `names` of a stub, by which what each reducer keeps is known
            from others, and whether some of it was `read` from a store.
    """
    number, of, whole = workspace.finished, backbone.layout, backbone.stands_for
    shapes = {key: [*tensor.shape[1:]] for key, tensor in kept.items()}
    facts = {}
    if whole is not None:
        to, costs = whole.layout, ("depth", "width", "widest", "parameters", "flops")
        # What one image costs in the model that the stub stands for.
        facts = {name: getattr(whole, name) for name in costs} | {"tokens": to.tokens}
        lengths = {of.tokens: to.tokens, of.patches: to.patches, of.grid[0]: to.grid[0]}
        blocks = {key for reducer in reducers if reducer.blocks == "all" for key in reducer.keys}
        for key, shape in shapes.items():
            shape[:] = [lengths.get(length, length) for length in shape]
            if key in blocks and shape:
                shape[0] = whole.depth
    sizes = {key: math.prod(shape) for key, shape in shapes.items()}
    entry = {"model": backbone.name, "images": images, "kept": sizes}
    workspace.add(entry | told | facts)
    for key, tensor in kept.items():
        release = {"released": [number, key]}
        weakref.finalize(tensor.untyped_storage(), workspace.add, release).atexit = False
