"""Context managers that change a forward pass for as long as they last, and then undo themselves.

They nest in any order: the outer one acts first. Each sets the backbone's layout to what the blocks
then see, so that `capture` reads the right tokens inside.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from helpers.models import Backbone
from helpers.settings import check_choice

INITS, DROP_MODES = ("zeros", "mean", "normal"), ("remove", "zero")
REGISTER_STD = 0.02  # of "normal"; position embeddings are commonly initialised so

Change = Callable[[Backbone], AbstractContextManager]


def intervention(
    change: Callable[..., Iterator[Backbone]],
) -> Callable[..., AbstractContextManager[Backbone]]:
    """A context manager of `change(backbone, ...)`, named in `backbone.interventions` inside.

    The layout is afterwards what it was before. A function that is not one of helpers is named with
    its code, and its hooks remain unknown.
    """
    managed, signature = contextmanager(change), inspect.signature(change)
    ours = change.__module__.startswith("helpers.")

    @wraps(change)
    @contextmanager
    def manager(*args: Any, **options: Any) -> Iterator[Backbone]:
        given = signature.bind(*args, **options)
        given.apply_defaults()
        backbone, arguments = given.args[0], dict(given.arguments)
        del arguments["backbone"]
        entry = (change.__name__, arguments if ours else arguments | {"code": change})
        before, layout = backbone.interventions, backbone.layout
        own_hooks, hooks = backbone.own_hooks, backbone.hooks
        try:
            with managed(*args, **options):
                backbone.interventions = (*before, entry)
                if ours:
                    backbone.own_hooks = own_hooks | (backbone.hooks - hooks)
                yield backbone
        finally:
            backbone.interventions, backbone.layout = before, layout
            backbone.own_hooks = own_hooks

    return manager


@intervention
def appended_registers(
    backbone: Backbone, count: int = 1, init: str = "zeros", seed: int = 0
) -> Iterator[Backbone]:
    """Append `count` untrained tokens after the patches of every image, before block 0.

    In CLIP after ln_pre; in a model with rotary position right before the patches, where no token
    is rotated. They are taken away again before final norm and pooling. SORTS (sections 7.5 and
    7.6) adds its registers in this way and leaves the initialisation open.

    Args:
        count: number of tokens; 0 changes nothing, to the bit.
        init: "zeros"; "mean", the mean of the image's own patch tokens at that place; "normal",
            drawn by `seed` from N(0, 0.02^2), the same for all images, where a larger count keeps
            the draws of a smaller one.
    """
    check_choice("init", init, INITS)
    layout = backbone.layout
    drawn = torch.from_numpy(
        np.random.default_rng(seed).normal(0, REGISTER_STD, (count, backbone.width))
    )

    def append(x: Float[Tensor, "image token width"]) -> Float[Tensor, "image more width"]:
        if init == "normal":
            token = drawn.to(x)
        elif init == "mean":
            token = layout.patch_tokens(x).mean(dim=1, keepdim=True)
        else:
            token = x.new_zeros(1)
        at = layout.prefix if layout.rotary else layout.tokens
        new = token.expand(len(x), count, x.shape[-1])
        return torch.cat([x[:, :at], new, x[:, at:]], dim=1)

    def take_away(x: Float[Tensor, "image more width"]) -> Float[Tensor, "image token width"]:
        # The outer intervention takes its own away first.
        at = layout.own_prefix if layout.rotary else x.shape[1] - count
        return torch.cat([x[:, :at], x[:, at + count :]], dim=1)

    with backbone.change_input(append), backbone.change_output(take_away):
        backbone.layout = layout.with_appended(count)
        backbone.lengthen_prefix(count)
        try:
            yield backbone
        finally:
            backbone.lengthen_prefix(-count)


@intervention
def dropped_patches(
    backbone: Backbone, rate: float, mode: str = "remove", seed: int = 0
) -> Iterator[Backbone]:
    """Drop a random share of the patches before block 0 (SORTS, section 7.7).

    Every image keeps round((1 - rate) x patches) patches, at least one, in their order. The k-th
    image of a capture gets the k-th choice of the seed, whatever the batch size, and also where a
    batch passes again; outside of `capture` it is the k-th that passes since entry. With one seed,
    the patches dropped at a higher rate include those dropped at a lower one, and appended
    registers change nothing in the choice.

    Args:
        rate: share of the patches that are dropped, in [0, 1); 0 changes nothing, to the bit.
        mode: "remove" takes them out of the sequence, and the layout has `kept`; "zero" sets them
            to the zero token, position embedding included: the layout stays, and they are attended
            to (and pooled) like any other.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate {rate} is not in [0, 1)")
    check_choice("mode", mode, DROP_MODES)
    layout, rng = backbone.layout, np.random.default_rng(seed)
    kept, chosen_of, left = max(1, round((1 - rate) * layout.patches)), [], dict[str, Tensor]()
    backbone.next_image = 0

    def drop(x: Float[Tensor, "image token width"]) -> Float[Tensor, "image fewer width"]:
        now = slice(backbone.next_image, backbone.next_image + len(x))
        # One permutation an image: a single draw for the batch might not give the same numbers for
        # another batch size.
        while len(chosen_of) < now.stop:
            chosen_of.append(rng.permutation(layout.patches) < kept)
        chosen = torch.from_numpy(np.stack(chosen_of[now])).to(x.device)
        keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        layout.patch_tokens(keep, dim=1).copy_(chosen)
        left["patches"] = chosen
        if mode == "zero":
            return x.masked_fill(~keep[..., None], 0)
        return x[keep].unflatten(0, (len(x), -1))

    def rotation(rope: Float[Tensor, "*more patch dim"]) -> Float[Tensor, "*other left dim"]:
        """The rotation (image, head, patch, dim) of the patches that are left in each image."""
        if mode == "zero":
            return rope
        chosen = left["patches"]
        if rope.dim() < 4:
            rope = rope.expand(len(chosen), *(1,) * (3 - rope.dim()), *rope.shape)
        rope = rope.transpose(1, 2)
        return rope[chosen].unflatten(0, (len(chosen), -1)).transpose(1, 2)

    with backbone.change_input(drop), backbone.change_rotation(rotation):
        if mode == "remove" and kept < layout.patches:  # all of them are still a grid
            backbone.layout = layout.with_kept(kept)
        yield backbone


@intervention
def moved_positions(
    backbone: Backbone, sources: Sequence[int] | Int[Tensor, " patch"]
) -> Iterator[Backbone]:
    """Give the patches the positions of other patches, while what they show stays where it is.

    The difference of the two embeddings is added to the output of the patch embedding, so that no
    weight is touched; that output, as `capture` sees it inside, holds the difference too. Where
    position is rotary, the rotations change places as well.

    `sources` has for each patch, row-major, the patch whose position it gets; -1 gives it none
    (zeros, no rotation). Where each gets its own, nothing changes, to the bit.
    """
    backbone.layout.require_free()
    positions = backbone.position_embedding
    if positions is None:
        if not backbone.layout.rotary:
            raise ValueError(f"'{backbone.name}' adds no position embedding")
        positions = torch.zeros(len(sources), 1, device=backbone.device)
    sources = torch.as_tensor(sources, device=positions.device)
    positions = positions[-len(sources) :]  # of the patches, behind those of tokens before them
    given = positions[sources.clamp(min=0)].masked_fill(sources[:, None] < 0, 0)
    moved = (given - positions).unflatten(0, backbone.layout.grid)

    def rotation(rope: Float[Tensor, "... patch dim"]) -> Float[Tensor, "... patch dim"]:
        chosen = sources.to(rope.device)
        sine, cosine = rope.index_select(-2, chosen.clamp(min=0)).chunk(2, dim=-1)
        none = chosen[:, None] < 0
        return torch.cat([sine.masked_fill(none, 0), cosine.masked_fill(none, 1)], dim=-1)

    with (
        backbone.change_embedding(lambda x: x + moved.to(x)),
        backbone.change_rotation(rotation),
    ):
        yield backbone


def nested(*changes: Change) -> Change:
    """A condition for `helpers.capture.Lab.passes` made of several, the first outermost.

    nested(partial(appended_registers, count=1), partial(dropped_patches, rate=0.5))
    """

    @contextmanager
    def together(backbone: Backbone) -> Iterator[Backbone]:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change(backbone))
            yield backbone

    return together
