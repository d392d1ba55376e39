"""Attention maps: how far two agree, and sinks, to which nearly all queries attend.

Sinks are those of 'Attention sinks: NOP vs broadcast' (arXiv:2606.08105, definition 1, and code).
"""

import numpy as np
import scipy  # its parts are imported where they are first needed
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.measures._arrays import (
    Answers,
    Array,
    ImageMask,
    Labels,
    PatchScores,
    PatchSet,
    like,
    settled,
    tied,
    to_numpy,
)

PerPlace = Float[Tensor, "image *place"]  # such as of each head of each block
TIE = 1e-5  # of a value, to the next one
MOST = 4  # tokens that may share a sink: as many as the twins have registers
EVENT = 0.5  # of a query's attention
# Of what a sink writes (arXiv:2606.08105): at most so much of the others' norm; at least so much,
# and what the queries get is so nearly alike.
NOP, BROADCAST, ALIKE = 0.2, 0.5, 1.5


def mass(
    attention: Float[Array, "*batch token"], mask: Bool[Array, "... token"]
) -> Float[Array, "*batch"]:
    """The attention on the tokens in `mask`: a share of the whole where the rows sum to one."""
    return (attention * mask).sum(-1)


def iou(a: PatchSet, b: PatchSet) -> Float[Array, " image"]:
    """Intersection over union of two sets of patches, image by image; nan where both are empty."""
    with np.errstate(invalid="ignore"):
        return (a & b).sum(-1) / (a | b).sum(-1)


def top_patches(scores: PatchScores, counts: Labels) -> PatchSet:
    """The `counts` patches of each image with the largest scores.

    Of equal ones (`settled`) the first in row-major order.
    """
    ranks = (-settled(scores)).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return like(ranks < to_numpy(counts)[:, None], scores)


def rank_correlation(a: PatchScores, b: PatchScores) -> Float[Array, " image"]:
    """Spearman's rank correlation of two maps, image by image; nan where a map is constant.

    Values tie that follow each other by less than 1e-5 of themselves, about what float32 leaves of
    them: identical patches of a flat background have no order.
    """
    x, y = (_ranks(to_numpy(scores).astype(np.float64)) for scores in (a, b))
    with np.errstate(invalid="ignore"):
        found = (x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return like(found, a)


def top_agreement(a: PatchScores, b: PatchScores) -> Answers:
    """Whether both maps have their largest value at the same patch, the first of equal ones."""
    return a.argmax(-1) == b.argmax(-1)


def roughness(maps: Float[Tensor, "image row column"]) -> Float[Tensor, " image"]:
    """The total variation of a map: the mean difference of neighbours, over the mean of the map.

    Neighbours share an edge. 0 for a constant map, whatever its size; nan for one that is all zero.
    """
    steps = [maps.diff(dim=dim).abs().flatten(1) for dim in (1, 2)]
    return torch.cat(steps, dim=1).mean(1) / maps.mean((1, 2))


def given_by_most(given: Float[Tensor, "*batch query"]) -> Float[Tensor, "*batch"]:
    """What at least 90 % of the queries give, such as to the tokens that get the most.

    To one token at least 0.5 is the event of arXiv:2606.08105; several are this project's: what
    four corners share is no event for any of them.
    """
    queries = given.shape[-1]
    enough = -(-9 * queries // 10)
    return given.kthvalue(queries - enough + 1, dim=-1).values


def value_ratio(
    received: Float[Tensor, "*batch token"], norms: Float[Tensor, "*batch token"]
) -> Float[Tensor, "*batch"]:
    """The norm of what the most attended token would add to the stream, over the others' mean norm.

    At most 0.2 in a 'NOP', at least 0.5 in a 'broadcast' (arXiv:2606.08105). `received` is the mean
    over the queries; `norms` are those of the values after output projection and LayerScale.
    """
    sink = received.argmax(-1, keepdim=True)
    own = norms.gather(-1, sink).squeeze(-1)
    others = (norms.sum(-1) - own) / (norms.shape[-1] - 1)
    return own / others.clamp(min=1e-12)


def update_rank(
    mixed: Float[Tensor, "*batch query dim"], weights: Float[Tensor, "*#batch width dim"]
) -> Float[Tensor, "*batch"]:
    """The stable rank of what a head adds to the stream, ||U||_F^2 / sigma_1^2, in float64.

    1 where all queries get the same; at most 1.5 in a 'broadcast' (arXiv:2606.08105). `mixed` are
    the head's values under each query's attention, `weights` make of them what they add.
    """
    mixed, weights = mixed.double(), weights.double()
    # U U^T has the eigenvalues of the two Gram matrices' product, which are no wider than a head.
    values, vectors = torch.linalg.eigh(weights.mT @ weights)
    root = vectors * values.clamp(min=0).sqrt()[..., None, :]
    own = torch.linalg.eigvalsh(root.mT @ (mixed.mT @ mixed) @ root)
    return (own.sum(-1) / own[..., -1].clamp(min=torch.finfo().tiny)).float()


def writes(
    event: PerPlace, ratio: PerPlace, rank: PerPlace
) -> dict[str, Float[Tensor, "image *place"]]:
    """What sinks write, by the rule of arXiv:2606.08105: "nop", "broadcast" and "other", 1 or 0 for
    each head with a sink, nan for others.

    `event` is the most that 90 % of the queries give to one token; `ratio` and `rank` are the
    head's `value_ratio` and `update_rank`.
    """
    nop, broadcast = ratio <= NOP, (ratio >= BROADCAST) & (rank <= ALIKE)
    found = {"nop": nop, "broadcast": broadcast, "other": ~(nop | broadcast)}
    return {name: torch.where(event >= EVENT, x.float(), torch.nan) for name, x in found.items()}


def top_share(received: Float[Tensor, "*batch token"], part: float) -> Float[Tensor, "*batch"]:
    """The share of all attention that the `part` of the tokens gets that get most, at least one."""
    shares = received / received.sum(-1, keepdim=True)
    return shares.topk(max(1, round(part * shares.shape[-1]))).values.sum(-1)


def with_sink(attention: PerPlace) -> ImageMask:
    """Which images have a sink anywhere, from what most queries of each head give."""
    return (attention >= EVENT).flatten(1).any(1)


def _ranks(x: np.ndarray) -> np.ndarray:
    """Ranks of (image, patch) with ties, without the mean of each image."""
    ranks = scipy.stats.rankdata(tied(x, TIE), axis=1)
    return ranks - ranks.mean(axis=1, keepdims=True)
