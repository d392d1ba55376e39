"""Object discovery without labels: LOST (Siméoni et al. 2021), and how often its boxes are right.

Boxes are xmin, ymin, xmax, ymax from 0 to 1 of the picture.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F
from torchvision import ops

from helpers.measures._arrays import (
    Array,
    Grid,
    PatchMask,
    PatchScores,
    PerImage,
    like,
    tied,
    to_numpy,
)
from helpers.measures.answers import points
from helpers.measures.attention import rank_correlation
from helpers.measures.similarity import Components
from helpers.measures.stats import Estimate, Estimates, auc, mcnemar, mean_ratio, over_images

Features = Float[Tensor, "image row column width"]
OneBox = Float[Tensor, "image 4"]  # of each image
TrueBoxes = Sequence[Float[Array, "_ 4"]]  # of each image's objects
TIE = 1e-6  # of a score, to the next one


def lost_masks(
    features: Float[Tensor, "row column width"], ks: Sequence[int], biases: Sequence[float]
) -> Iterator[Bool[Tensor, "row column"]]:
    """The object that LOST finds in one picture (Siméoni et al. 2021, section 3.2), for every bias
    and, within it, for every `k`.

    Similarity is the inner product, without normalisation, and two patches are similar where it is
    positive. The seed is the patch with the lowest degree (similar to the fewest others), the first
    of equal ones (the authors' code, github.com/valeoai/LOST, leaves ties to the sort). Those of
    the `k` patches with the lowest degree that are similar to the seed expand it. The mask holds
    the patches whose similarity, summed over the expanded seed, is positive, as far as they are
    4-connected with the seed. Where a negative bias leaves nothing similar to the seed, the mask is
    the seed alone.

    Args:
        ks: 100 in the paper, whatever the grid: 39 % of 16 x 16 patches, 7 % of 37 x 37.
        biases: added to every similarity, in units of their mean magnitude in this picture. 0 in
            the paper; Darcet et al. added one to the Gram matrix, and did not publish it.
    """
    rows, columns, _ = features.shape
    for k in ks:
        if not 1 <= k <= rows * columns:
            raise ValueError(f"k = {k} does not fit the {rows * columns} patches")
    if not features.isfinite().all():
        raise ValueError("features hold nan or infinity; capture them in float32")
    patches = features.flatten(0, 1).to(torch.promote_types(features.dtype, torch.float32))
    products = patches @ patches.T
    magnitude = products.abs().mean()
    for bias in biases:
        similarity = products + bias * magnitude
        similar = similarity > 0
        degree = similar.sum(1) - similar.diagonal().int()
        order = degree.argsort(stable=True)
        seed = order[0]
        row, column = divmod(seed.item(), columns)
        for k in ks:
            lowest = order[:k]
            expanded = lowest[similar[seed, lowest]]
            mask = similarity[:, expanded].sum(1) > 0
            mask[seed] = True
            # 4-connected, which is SciPy's default
            components, _ = ndimage.label(to_numpy(mask.reshape(rows, columns)))
            yield like(components == components[row, column], features)


def lost_boxes_within(features: Features, k: int = 100, bias: float = 0.0) -> OneBox:
    """One box an image around the mask of `lost_masks`, at patch edges; `k` is at most all."""
    return lost_box_sweep(features, (bias,), (k,))[:, 0, 0]


def lost_box_sweep(
    features: Features, biases: Sequence[float], ks: Sequence[int]
) -> Float[Tensor, "image {len(biases)} {len(ks)} 4"]:
    """`lost_boxes_within` for every bias and every `k`, from one Gram matrix an image."""
    images, rows, columns, _ = features.shape
    ks, settings = [min(k, rows * columns) for k in ks], (images, len(biases), len(ks))
    masks = torch.stack([one for image in features for one in lost_masks(image, ks, biases)])
    boxes = ops.masks_to_boxes(masks)  # first and last patch
    boxes[:, 2:] += 1
    return (boxes / boxes.new_tensor([columns, rows, columns, rows])).unflatten(0, settings)


def lost_boxes_of_share(features: Features, share: float) -> OneBox:
    """`lost_boxes_within` with a `share` of the patches as `k`, at least one (paper: 0.39)."""
    return lost_boxes_within(features, max(1, round(share * math.prod(features.shape[1:3]))))


def corloc(found: Float[Array, "image *set 4"], truth: TrueBoxes) -> Bool[Array, "image *set"]:
    """Whether each image's box is right: its IoU with any of the objects is at least a half.

    The mean is CorLoc. Raises ValueError for an image without an object, and for boxes in pixels.
    """
    for index, boxes in enumerate(truth):
        if len(boxes) == 0 or boxes.max() > 1:
            raise ValueError(f"image {index} has no true box, or one that is not from 0 to 1")
    pairs = zip(to_numpy(found), map(to_numpy, truth), strict=True)
    overlaps = (
        ops.box_iou(torch.from_numpy(own.reshape(-1, 4)), torch.from_numpy(boxes))
        for own, boxes in pairs
    )
    right = np.array([(x >= 0.5).any(1).numpy() for x in overlaps], dtype=bool)
    return like(right.reshape(found.shape[:-1]), found)


def box_hits(
    found: Float[Tensor, "image *set 4"], truth: TrueBoxes | None
) -> Float[Tensor, "image *set"]:
    """100 where a box is right (`corloc`), else 0; nan where no true boxes are known."""
    if truth is None:
        return torch.full(found.shape[:-1], torch.nan)
    return 100 * corloc(found, truth).float()


def corloc_under(
    seen: Mapping[str, Any],
    kinds: Collection[str],
    truth: TrueBoxes | None,
    ends: Mapping[str, str],
) -> Estimates:
    """CorLoc in per cent of several kinds of boxes under several conditions (condition -> kind):
    corloc_whole, of a box around the whole picture; of each kind KIND and the end of each
    condition's names, or its own name; under "moved" also KIND_change, its paired difference from
    "plain" in points, and KIND_p, McNemar's p-value. Nothing where no true boxes are known.
    """
    if truth is None:
        return {}
    estimates = {"corloc_whole": over_images(whole_box_hits(truth, len(truth)), (0, 100))}
    for kind in kinds:
        right = {condition: corloc(boxes[kind], truth) for condition, boxes in seen.items()}
        for condition, own in right.items():
            name = kind + ends.get(condition, condition)
            estimates[name] = over_images(100.0 * own, (0, 100))
        if "moved" in right:
            pair = right["moved"], right["plain"]
            estimates |= {f"{kind}_change": points(*pair), f"{kind}_p": mcnemar(*pair)}
    return estimates


def whole_box_hits(truth: TrueBoxes | None, images: int) -> PerImage:
    """`box_hits` of a box around the whole picture: what a method reaches by finding nothing."""
    return box_hits(torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(images, -1), truth)


def in_boxes(truth: TrueBoxes, grid: Grid) -> PatchMask:
    """Which patches of each image have their middle in a true box, row-major."""
    rows, columns = ((torch.arange(n) + 0.5) / n for n in grid)
    found = []
    for boxes in truth:
        left, top, right, bottom = torch.as_tensor(boxes).reshape(-1, 4, 1, 1).unbind(1)
        across = (left <= columns) & (columns < right)
        found.append((across & (top <= rows[:, None]) & (rows[:, None] < bottom)).any(0).flatten())
    return torch.stack(found)


def object_auc(scores: PatchScores, inside: PatchMask, each: bool = False) -> PerImage:
    """Chance that a patch `inside` has a higher score than another of its image, for scores whose
    sign has no meaning: the better one for all images together, or with `each` for every image.

    Scores are equal that follow each other by at most 1e-6 of themselves, about what float32 leaves
    of features: patches of a flat background have no order. Nan for an image where all patches are
    inside, or none.
    """
    pairs = zip(torch.from_numpy(tied(to_numpy(scores), TIE)), inside, strict=True)
    found = torch.tensor([auc(score[own], score[~own]) for score, own in pairs])
    if each:
        return found.maximum(1 - found)
    return found if found.nanmean() > 0.5 else 1 - found


def component_estimates(
    fits: Mapping[str, Components],
    inside: PatchMask,
    outlier: PatchMask,
    norms: PatchScores,
    seed: int = 0,
) -> dict[str, Any]:
    """What outliers and objects have of principal components of patches, by name and end of it.

    `first` and `three`, the shares of variance in the first component and in the first three;
    `object_auc` of the first component, and `object_gain`, after minus before; `outlier_share` and
    `outlier_share_three`, the shares of these components' variance at the outliers;
    `norm_correlation_before`, the magnitude of the rank correlation with the norm; `alike`, the
    overlap with the components before.

    Args:
        fits: end of a name -> components: "_before" and "_after" outliers are taken away, both
            with "", "_single" (of each image) and "_raw"; "_left_out" and "_random", before.
        inside, outlier, norms: of each patch before; which are in a box, and which are outliers.
    """
    found: dict[str, Any] = {}
    for end, fit in fits.items():
        each = fit.shares.ndim > 1  # components of each image
        shares = fit.shares.mean(0) if each else fit.shares
        found |= {f"first{end}": shares[0].item(), f"three{end}": shares.sum().item()}
        found[f"object_auc{end}"] = object_auc(fit.own[..., 0], inside, each)
    for end in ("_before", "_after", "_before_single", "_before_raw"):
        found[f"outlier_share{end}"] = _variance_at(outlier, fits[end].own[..., :1], seed)
    for end in ("_before", "_after"):
        found[f"outlier_share_three{end}"] = _variance_at(outlier, fits[end].own, seed)
    for end in ("", "_single", "_raw"):
        before, after = (found[f"object_auc_{x}{end}"] for x in ("before", "after"))
        found[f"object_gain{end}"] = after - before
    for end in ("_after", "_left_out", "_random"):
        found[f"alike{end}"] = fits[end].overlap(fits["_before"]).item()
    correlation = rank_correlation(fits["_before"].own[..., 0], norms)
    return found | {"norm_correlation_before": correlation.abs()}


def _variance_at(
    mask: PatchMask, scores: Float[Tensor, "image patch component"], seed: int
) -> Estimate:
    """The share of the squared scores at the patches in `mask`."""
    squared = (scores**2).sum(-1)
    return mean_ratio((squared * mask).sum(1), squared.sum(1), seed)


def share_in_boxes(maps: Float[Tensor, "image row column"], truth: TrueBoxes | None) -> PerImage:
    """The share of a map (one number a patch, none negative, of the whole picture) that lies on
    patches `in_boxes`; nan for an image without one.
    """
    if truth is None:
        return torch.full((len(maps),), torch.nan)
    inside = (maps.flatten(1) * in_boxes(truth, maps.shape[1:])).sum(1)
    return torch.where(torch.tensor([*map(len, truth)]) > 0, inside / maps.sum((1, 2)), torch.nan)


def covered(masks: Sequence[Bool[Array, "_ _ _"]], grid: Grid) -> PatchMask:
    """Which patches of each image lie on an object by half of their area, row-major, from masks
    (objects, height, width) of the whole picture.
    """
    seen = (torch.from_numpy(to_numpy(mask).any(axis=0)).float() for mask in masks)
    return torch.stack([F.adaptive_avg_pool2d(mask[None], grid).flatten() >= 0.5 for mask in seen])
