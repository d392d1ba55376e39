"""Captures in the workspace of a run: each is listed, and a long one is kept in shards, so that a
run that was killed goes on from there.
"""

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from helpers.capture.reducers import Reducer
from helpers.models import Backbone
from helpers.workspace import Workspace

IMAGES = 256  # in a shard, more where a batch has more: what is lost at most when a run is killed


def resumable(
    workspace: Workspace,
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    *,
    batch_size: int,
    into: Mapping[str, Any],
    first: int,
    **options: Any,
) -> dict[str, Tensor]:
    """As `capture` with these arguments, to the bit.

    Captures are told apart by their place among those of the notebook, which are the same each time
    it runs with the same inputs. `capture_shards` refuses what it would not make itself, and then
    the capture is computed as if nothing had been kept.
    """
    from helpers.capture.engine import capture  # here, since the engine imports this module
    from helpers.capture.shards import capture_shards

    batches = -(-len(images) // batch_size)
    options["batch_size"] = batch_size
    options["report"] = lambda done: workspace.report(-(-done // batch_size), batches)
    size = max(1, IMAGES // batch_size) * batch_size
    kept = None
    if not into and not first and len(images) > size and hasattr(images, "describe"):
        place = workspace.folder / f"{workspace.finished + 1:04d}"
        try:
            shards = capture_shards(place, backbone, images, reducers, size=size, **options)
            kept = _joined(shards, [key for reducer in reducers for key in reducer.keys])
        except (ValueError, OSError):
            pass  # it cannot be kept, or cannot be computed: then the next line says why
    if kept is None:
        kept = capture(backbone, images, reducers, into=into, first=first, **options)
    workspace.end_pass()
    _list(workspace, backbone, len(images), _sizes(backbone, reducers, kept), kept)
    return kept


def _list(
    workspace: Workspace,
    backbone: Backbone,
    images: int,
    sizes: Mapping[str, int],
    kept: Mapping[str, Tensor],
) -> None:
    """Add a capture to the list, and later an entry for each of its tensors that is let go."""
    number, whole = workspace.finished, backbone.stands_for
    entry = {"model": backbone.name, "images": images, "kept": sizes}
    if whole is not None:  # what one image costs in the model that the stub stands for
        names = ("depth", "width", "widest", "parameters", "flops")
        entry |= {name: getattr(whole, name) for name in names} | {"tokens": whole.layout.tokens}
    workspace.add(entry)
    for key in sizes:
        release = {"released": [number, key]}
        weakref.finalize(kept[key].untyped_storage(), workspace.add, release).atexit = False


def _sizes(
    backbone: Backbone, reducers: Sequence[Reducer], kept: Mapping[str, Tensor]
) -> dict[str, int]:
    """Key -> numbers that are kept of one image.

    By a stub as many as by the model that it stands for: where a dimension is the blocks, tokens,
    patches or side of the stub, it is taken as that of the model.
    """
    of, whole = backbone.layout, backbone.stands_for
    if whole is None:
        return {key: tensor[0].numel() for key, tensor in kept.items()}
    to = whole.layout
    lengths = {of.tokens: to.tokens, of.patches: to.patches, of.grid[0]: to.grid[0]}
    sizes = {}
    for reducer in reducers:
        for key in kept.keys() & {*reducer.keys}:  # the others went into a summary
            shape = [lengths.get(length, length) for length in kept[key].shape[1:]]
            if reducer.blocks == "all" and shape:
                shape[0] = whole.depth
            sizes[key] = math.prod(shape)
    return sizes


def _joined(shards: Any, keys: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of all shards, one shard at a time beside them in memory."""
    whole: dict[str, Tensor] = {}
    for index, part in enumerate(shards):
        start = index * shards.size
        for key in keys:
            if key not in whole:
                whole[key] = torch.empty(shards.images, *part[key].shape[1:])
            whole[key][start : start + len(part[key])] = part[key]
    return whole
