"""Tokens of chosen patches for probes: outliers, as many normal ones of the same images, and random
ones; or those on objects and off them.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from helpers.capture.lab import Captured, Condition, Lab, Passes
from helpers.capture.reducers import (
    PatchNorms,
    Pooled,
    Reducer,
    SelectedPixels,
    SelectedTokens,
)
from helpers.measures.norms import paired_positions, random_positions, threshold
from helpers.measures.one_token import PatchTokens
from helpers.measures.registers import object_places
from helpers.models import Backbone


@dataclass(frozen=True)
class PairedTokens(Captured):
    """What `paired_tokens` kept of one model. `tensors` has what the reducers asked for.

    Attributes:
        norms: after the last block, before the final LayerNorm: of the tested images, or of all at
            given places.
        outliers: which patches are above the threshold, or were given; of all images.
        outlier, normal, random: tokens of random outliers, of as many random normal patches of the
            same image, and of any patches; None once they have been read.
        read: what was read from these tokens; None where they are kept.
    """

    norms: Float[Tensor, "tested patch"]
    outliers: Bool[Tensor, "image patch"]
    outlier: PatchTokens | None
    normal: PatchTokens | None
    random: PatchTokens | None
    read: Any = None


def paired_tokens(
    lab: Lab,
    images: Any,
    learnt: int,
    count: int,
    *,
    rule: str,
    random: int = 0,
    pixels: bool | str = False,
    reducers: Sequence[Reducer] = (),
    read: Callable[[PairedTokens], Any] | None = None,
) -> dict[str, PairedTokens]:
    """Each model's output tokens (after the final LayerNorm) at outliers and at normal patches.

    Args:
        learnt: from so many of the images, the first, comes the threshold, by `rule`.
        count: of pairs, as in `helpers.measures.norms.paired_positions`.
        random: how many random patches of each image to keep besides.
        pixels: keep the normalised pixels of all these patches, too; "mean" keeps the mean of each
            colour alone.
        reducers: what else to keep.
        read: takes the tokens of a model, which are let go then; unless given they are kept.
    """
    found = {}
    for backbone in lab.load():
        norms = lab.capture_one(backbone, images, [PatchNorms(-1)])["patch_norms"]
        outliers, norms = norms > threshold(norms[:learnt], rule), norms[learnt:].clone()
        positions, chosen = _chosen(outliers, count, random, lab.seed, pixels)
        captured = Captured.of(backbone, lab.capture_one(backbone, images, [*chosen, *reducers]))
        found[backbone.name] = _pairs(captured, positions, count, norms, outliers, read)
    return found


def tokens_at(
    lab: Lab,
    images: Any,
    places: Bool[Tensor, "image patch"],
    count: int,
    random: int,
    conditions: Sequence[Hashable] | Mapping[Hashable, Condition],
    models: Collection[str] | None = None,
    read: Callable[[PairedTokens], Any] | None = None,
) -> Passes:
    """`paired_tokens` by condition and model, with pixels and `Pooled()`, at given places, such as
    those of another model's outliers, whatever their norm.
    """
    positions, chosen = _chosen(places, count, random, lab.seed, pixels=True)

    def pairs(captured: Captured) -> PairedTokens:
        norms = captured.tensors.pop("patch_norms")
        return _pairs(captured, positions, count, norms, places, read)

    asked = [*chosen, PatchNorms(-1), Pooled()]
    return lab.passes(images, asked, conditions, models, read=pairs)


def _chosen(
    outliers: Bool[Tensor, "image patch"], count: int, random: int, seed: int, pixels: bool | str
) -> tuple[Int[Tensor, "image k"], list[Reducer]]:
    """The patches of the pairs, and random ones, and what keeps them."""
    drawn = paired_positions(outliers, count, seed)
    if random:
        drawn = *drawn, random_positions(*outliers.shape, random, seed)
    positions = torch.cat(drawn, dim=1)
    colours = [SelectedPixels(positions, pixels == "mean")] if pixels else []
    return positions, [SelectedTokens(positions), *colours]


def _pairs(
    captured: Captured,
    positions: Int[Tensor, "image k"],
    count: int,
    norms: Float[Tensor, "tested patch"],
    outliers: Bool[Tensor, "image patch"],
    read: Callable[[PairedTokens], Any] | None,
) -> PairedTokens:
    tensors = captured.tensors
    tokens = PatchTokens(positions, tensors.pop("tokens"), tensors.pop("pixels", None))
    parts = tokens[:, :count], tokens[:, count : 2 * count], tokens[:, 2 * count :]
    pairs = PairedTokens(*vars(captured).values(), norms, outliers, *parts)
    if read is not None:
        pairs = replace(pairs, tensors={}, outlier=None, normal=None, random=None, read=read(pairs))
    return pairs


@dataclass(frozen=True)
class ObjectTokens(Captured):
    """What `object_tokens` kept of one model: of the tested images what the reducers asked for.

    Attributes:
        learnt, tested: tokens of random patches of either set; None for images without masks.
    """

    learnt: PatchTokens | None
    tested: PatchTokens | None


def object_tokens(
    lab: Lab,
    learnt: Any,
    tested: Any,
    count: int,
    reducers: Callable[[Backbone], Sequence[Reducer]] = lambda backbone: (),
    whole: bool = False,
) -> dict[str, ObjectTokens]:
    """Each model's output tokens (after the final LayerNorm), half of them on objects, at `count`
    places of `helpers.measures.registers.object_places`; `reducers` say what else to keep of the
    tested images.
    """
    found = {}
    for backbone in lab.load(whole=whole):
        grid, groups = backbone.layout.grid, []
        for images, more in ((learnt, ()), (tested, reducers(backbone))):
            places = object_places(images.masks, [grid], count, lab.seed).get(grid)
            asked = [*more, *(() if places is None else (SelectedTokens(places),))]
            tensors = lab.capture_one(backbone, images, asked) if asked else {}
            groups.append(None if places is None else PatchTokens(places, tensors.pop("tokens")))
        found[backbone.name] = ObjectTokens(*vars(Captured.of(backbone, tensors)).values(), *groups)
    return found
