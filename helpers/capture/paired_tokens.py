"""Outlier tokens, as many normal tokens of the same images, and random ones, for probes of what a
token holds.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.passes import Captured, Condition, backbones
from helpers.capture.reducers import PatchNorms, Reducer, SelectedPixels, SelectedTokens
from helpers.measures.norms import paired_positions, random_positions, threshold
from helpers.measures.one_token import PatchTokens
from helpers.models import Backbone, ModelUnavailable


@dataclass(frozen=True)
class PairedTokens(Captured):
    """What `paired_tokens` kept of one model. `tensors` has what the reducers asked for.

    Attributes:
        norms: of the patches after the last block, before the final LayerNorm: of the tested
            images, or of all at given places.
        outliers: which patches are above the threshold, or those whose places were given; of all
            images.
        outlier, normal: tokens of up to `count` random outliers, and of as many random normal
            patches of the same image; None once they have been read.
        random: tokens of random patches, outliers among them; None once they have been read.
        read: what was read from all these tokens; None where they are kept.
    """

    norms: Float[Tensor, "tested patch"]
    outliers: Bool[Tensor, "image patch"]
    outlier: PatchTokens | None
    normal: PatchTokens | None
    random: PatchTokens | None
    read: Any = None


def paired_tokens(
    names: Sequence[str],
    images: Any,
    learnt: int,
    count: int,
    *,
    rule: str,
    random: int = 0,
    seed: int = 0,
    pixels: bool | str = False,
    reducers: Sequence[Reducer] = (),
    read: Callable[[PairedTokens], Any] | None = None,
    image_size: int | None = None,
    **options: Any,
) -> tuple[dict[str, PairedTokens], dict[str, str]]:
    """Each model's output tokens (after the final LayerNorm) at outliers and at normal patches,
    with no more than one model in memory. The images pass twice, for the norms and for the tokens.

    Args:
        images: as in `capture`; from the first `learnt` of them alone comes the threshold, by
            `rule`.
        count, seed: as in `helpers.measures.norms.paired_positions`.
        rule: as in `helpers.measures.norms.threshold`.
        random: how many random patches of each image to keep besides.
        pixels: keep the normalised pixels of all these patches, too; "mean" keeps the mean of each
            colour alone.
        reducers: what else to keep in the second pass.
        read: what reads the tokens of a model, such as probes; then they are let go before the next
            model is loaded, so that no more than those of one model are in memory. Unless given
            they are kept.
        image_size: as in `capture_conditions`.
        options: as in `capture`.

    Returns:
        model -> what was kept, and model -> why it cannot be had here.

    Raises ModelUnavailable where none can be had, ValueError for another rule, a count below one or
    more random patches than there are, and what `capture` raises.
    """
    if not names:
        raise ModelUnavailable("no model was named; give at least one")
    kept, not_run = {}, dict[str, str]()
    for backbone in backbones(names, not_run, image_size):
        norms = capture(backbone, images, [PatchNorms(-1)], **options)["patch_norms"]
        outliers, norms = norms > threshold(norms[:learnt], rule), norms[learnt:].clone()
        kept[backbone.name] = _paired(
            backbone, images, norms, outliers, count, random, seed, pixels, reducers, read, options
        )
    return kept, not_run


def tokens_at(
    names: Sequence[str],
    images: Any,
    places: Bool[Tensor, "image patch"],
    count: int,
    conditions: Mapping[Hashable, Condition],
    *,
    random: int = 0,
    seed: int = 0,
    pixels: bool | str = False,
    reducers: Sequence[Reducer] = (),
    read: Callable[[PairedTokens], Any] | None = None,
    image_size: int | None = None,
    **options: Any,
) -> tuple[dict[Hashable, dict[str, PairedTokens]], dict[str, str]]:
    """`paired_tokens` at given places, such as those of another model's outliers, and under
    conditions. One pass for each.

    Args:
        places: which patches count as outliers, whatever their norm.
        conditions: as in `capture_conditions`.
        names, images, count, random, seed, pixels, reducers, read, image_size, options: as in
            `paired_tokens`.

    Returns:
        condition -> model -> what was kept, and model -> why it cannot be had here.

    Raises what `paired_tokens` raises, and ValueError where models have another grid of patches.
    """
    if not names:
        raise ModelUnavailable("no model was named; give at least one")
    kept: dict[Hashable, dict[str, PairedTokens]] = {condition: {} for condition in conditions}
    not_run = dict[str, str]()
    for backbone in backbones(names, not_run, image_size):
        for condition, change in conditions.items():
            if (intervention := change(backbone)) is not None:
                with intervention:
                    pairs = _paired(
                        backbone,
                        images,
                        None,
                        places,
                        count,
                        random,
                        seed,
                        pixels,
                        reducers,
                        read,
                        options,
                    )
                kept[condition][backbone.name] = pairs
    return kept, not_run


def _paired(
    backbone: Backbone,
    images: Any,
    norms: Float[Tensor, "tested patch"] | None,
    outliers: Bool[Tensor, "image patch"],
    count: int,
    random: int,
    seed: int,
    pixels: bool | str,
    reducers: Sequence[Reducer],
    read: Callable[[PairedTokens], Any] | None,
    options: Mapping[str, Any],
) -> PairedTokens:
    """One model as it is now, in one pass; `norms` are taken in it unless given."""
    drawn = (
        random_positions(*outliers.shape, random, seed)
        if random
        else torch.empty(len(outliers), 0, dtype=torch.int64)
    )
    positions = torch.cat([*paired_positions(outliers, count, seed), drawn], dim=1)
    chosen = [
        SelectedTokens(positions),
        *([SelectedPixels(positions, pixels == "mean")] if pixels else []),
    ]
    chosen += [PatchNorms(-1)] if norms is None else []
    tensors = capture(backbone, images, [*chosen, *reducers], **options)
    norms = tensors.pop("patch_norms") if norms is None else norms
    tokens = PatchTokens(positions, tensors.pop("tokens"), tensors.pop("pixels", None))
    kinds = (
        tokens.columns(slice(*ends)) for ends in ((0, count), (count, 2 * count), (2 * count, None))
    )
    pairs = PairedTokens.of(backbone, tensors, norms, outliers, *kinds)
    if read is not None:
        pairs = replace(pairs, tensors={}, outlier=None, normal=None, random=None, read=read(pairs))
    return pairs
