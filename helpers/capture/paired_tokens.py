"""Outlier tokens, as many normal tokens of the same images, and random ones, for probes of what a token holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.passes import Captured, backbones
from helpers.capture.reducers import PatchNorms, Reducer, SelectedPixels, SelectedTokens
from helpers.measures.norms import paired_positions, random_positions, threshold
from helpers.measures.one_token import PatchTokens
from helpers.models import ModelUnavailable


@dataclass(frozen=True)
class PairedTokens(Captured):
    """What `paired_tokens` kept of one model. `tensors` has what the reducers asked for.

    Attributes:
        norms: of the patches after the last block, before the final LayerNorm.
        outliers: which patches are above the threshold.
        outlier, normal: tokens of up to `count` random outliers, and of as many random normal patches of the same image.
        random: tokens of random patches, outliers among them.
    """

    norms: Float[Tensor, "image patch"]
    outliers: Bool[Tensor, "image patch"]
    outlier: PatchTokens
    normal: PatchTokens
    random: PatchTokens


def paired_tokens(
    names: Sequence[str],
    images: Any,
    learnt: int,
    count: int,
    *,
    rule: str,
    random: int = 0,
    seed: int = 0,
    pixels: bool = False,
    reducers: Sequence[Reducer] = (),
    **options: Any,
) -> tuple[dict[str, PairedTokens], dict[str, str]]:
    """Each model's output tokens (after the final LayerNorm) at outliers and at normal patches, with no more than one model in
    memory. The images pass twice, for the norms and for the tokens.

    Args:
        images: as in `capture`; from the first `learnt` of them alone comes the threshold, by `rule`.
        count, seed: as in `helpers.measures.norms.paired_positions`.
        rule: as in `helpers.measures.norms.threshold`.
        random: how many random patches of each image to keep besides.
        pixels: keep the normalised pixels of all these patches, too.
        reducers: what else to keep in the second pass.
        options: as in `capture`.

    Returns:
        model -> what was kept, and model -> why it cannot be had here.

    Raises ModelUnavailable where none can be had, ValueError for another rule, a count below one or more random patches than
    there are, and what `capture` raises.
    """
    if not names:
        raise ModelUnavailable("no model was named; give at least one")
    kept, not_run = {}, dict[str, str]()
    for backbone in backbones(names, not_run):
        norms = capture(backbone, images, [PatchNorms(-1)], **options)["patch_norms"]
        outliers = norms > threshold(norms[:learnt], rule)
        drawn = random_positions(*norms.shape, random, seed) if random else torch.empty(len(norms), 0, dtype=torch.int64)
        positions = torch.cat([*paired_positions(outliers, count, seed), drawn], dim=1)
        chosen = [SelectedTokens(positions), *([SelectedPixels(positions)] if pixels else [])]
        tensors = capture(backbone, images, [*chosen, *reducers], **options)
        tokens = PatchTokens(positions, tensors.pop("tokens"), tensors.pop("pixels", None))
        kinds = (tokens.columns(slice(*ends)) for ends in ((0, count), (count, 2 * count), (2 * count, None)))
        kept[backbone.name] = PairedTokens.of(backbone, tensors, norms, outliers, *kinds)
    return kept, not_run
