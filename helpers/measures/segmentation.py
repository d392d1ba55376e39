"""Segmentation by what patch tokens hold: linear probes, nearest patches, and how right they are.

A probe is a 1 x 1 convolution on the grid of tokens whose logits are resized bilinearly. Classes
count from 0. Void is one number that is not below theirs, and 255.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num, Shaped
from torch import Tensor
from torch.nn import functional as F

from helpers.measures._arrays import to_numpy
from helpers.measures.probes import Probe, fit_tuned
from helpers.measures.stats import Estimate, Estimates, bootstrap, ratio_of_means

TokenGrid = Float[Tensor, "image row column width"]
OtherTokens = Float[Tensor, "other row column width"]  # of other images
OtherPoints = Int[Tensor, "other y x"]
Maps = Float[Tensor, "image class row column"]
Points = Int[Tensor, "image y x"]
Segments = Sequence[Shaped[np.ndarray, "_ _"]]  # the class of each pixel of each image
Counts = Num[np.ndarray, "image 3 class"]  # pixels named rightly, named so, and truly so
TEMPERATURE = 0.07  # of the votes of nearest patches (Wu et al. 2018; Caron et al. 2021)
VOID = {255, -1}  # as many data sets have it; beside them one other number may be void
CHUNK = 4096  # patches whose similarities are held at a time


def fit_segmenter(
    tokens: TokenGrid,
    points: Points,
    held_out: OtherTokens,
    held_out_points: OtherPoints,
    classes: int,
    penalties: Sequence[float],
    *,
    device: Any = None,
) -> tuple[Probe, float]:
    """The linear probe of the class at points of pictures, and its penalty (`fit_tuned`), from the
    classes at the middles of the cells of any grid (`Images.segments_at`).
    """
    pairs = ((tokens, points), (held_out, held_out_points))
    (x, y), (other, true) = (_at_points(*pair, classes) for pair in pairs)
    return fit_tuned(x, y, other, true, penalties, device=device)


def nearest_maps(
    tokens: TokenGrid,
    learnt: OtherTokens,
    points: OtherPoints,
    classes: int,
    *,
    k: int = 5,
    most: int = 10_000,
    seed: int = 0,
) -> Maps:
    """The classes of the `k` training patches of the highest cosine, as shares of their votes.

    The mean over the training patches is taken away first. A vote weighs exp(cosine / 0.07), as in
    the k-NN classifier of Wu et al. (2018) and of DINO.

    `points` are the classes at the middles of the patches `learnt`, of which `most` that are not
    void are drawn by `seed`.
    """
    flat, labels = _at_points(learnt, points, classes)
    chosen = np.random.default_rng(seed).permutation(len(flat))[:most]
    known, labels, mean = flat[chosen], F.one_hot(labels[chosen], classes).float(), flat.mean(0)
    known, found = F.normalize(known - mean, dim=1), []
    for part in tokens.flatten(0, 2).split(CHUNK):
        near = (F.normalize(part - mean, dim=1) @ known.T).topk(k, dim=1)
        votes = (near.values / TEMPERATURE).softmax(1)
        found.append((votes[..., None] * labels[near.indices]).sum(1))
    return torch.cat(found).unflatten(0, tokens.shape[:3]).movedim(-1, 1)


def pixel_counts(
    maps: Maps, segments: Segments, where: Bool[Tensor, "image row column"] | None = None
) -> Int[np.ndarray, "image area 3 class"]:
    """How many pixels of each class are named rightly, named so, and truly so, in each image: in
    the whole picture and, where given, in the patches `where`.

    `maps` have a number for each class, on any grid over the whole picture, resized bilinearly.
    """
    classes, counts = maps.shape[1], []
    _check_numbers(segments, classes)
    for index, (own, true) in enumerate(zip(maps.cpu().float(), segments, strict=True)):
        true = torch.from_numpy(to_numpy(true).astype(np.int64))
        named = F.interpolate(own[None], true.shape, mode="bilinear")[0].max(0).indices
        areas = [(true >= 0) & (true < classes)]
        if where is not None:
            near = F.interpolate(where[index][None, None].float(), true.shape, mode="nearest-exact")
            areas.append(areas[0] & (near[0, 0] > 0))
        counts.append(np.stack([_counted(named[area], true[area], classes) for area in areas]))
    return np.stack(counts)


def mean_iou(counts: Counts) -> float:
    """The mean of intersection over union, in %, from the pixels of all images, over the classes
    that are true of any of them; nan where there is none.
    """
    right, named, true = counts.sum(0)
    if not true.any():
        return np.nan
    return float(100 * (right / np.maximum(named + true - right, 1))[true > 0].mean())


def iou_gain(counts: Num[np.ndarray, "image 2 3 class"]) -> float:
    """`mean_iou` of the second counts of each image minus that of the first, in points."""
    return mean_iou(counts[:, 1]) - mean_iou(counts[:, 0])


def right_gain(pixels: Num[np.ndarray, "image 3"]) -> float:
    """The share of right pixels afterwards minus before; of an image: both numbers, and all."""
    before, after, seen = pixels.sum(0)
    return float((after - before) / seen) if seen else np.nan


def segmented(counts: Counts, groups: Sequence[str] | None = None, seed: int = 0) -> Estimates:
    """The mean IoU in %, "miou", and the share of right pixels, "pixels", of `pixel_counts`, where
    `groups` of the images, such as drives, are drawn first (`bootstrap`).
    """
    seen = counts[:, 2].sum(1)
    drawn = partial(_drawn, seen, groups=groups, seed=seed)
    right = np.stack([counts[:, 0].sum(1), seen], axis=1)
    return {"miou": drawn(counts, mean_iou), "pixels": drawn(right, ratio_of_means)}


def segmentation_gain(
    before: Counts, after: Counts, groups: Sequence[str] | None = None, seed: int = 0
) -> Estimates:
    """The "gain" of the mean IoU in points, and "right_gain", of right pixels; both paired."""
    seen = before[:, 2].sum(1)
    drawn = partial(_drawn, seen, groups=groups, seed=seed)
    pixels = np.stack([before[:, 0].sum(1), after[:, 0].sum(1), seen], axis=1)
    return {
        "gain": drawn(np.stack([before, after], axis=1), iou_gain),
        "right_gain": drawn(pixels, right_gain),
    }


def segmentation_estimates(
    states: Mapping[str, Mapping[str, Counts]],
    name: str,
    groups: Sequence[str] | None = None,
    seed: int = 0,
) -> Estimates:
    """How well a model segments in its states, by the endings of names, and gains over the first:
    `miou_NAME`, `pixels_NAME`, and `knn_miou_NAME` by nearest patches, each with the ending of the
    state, which stands before NAME in `gain_NAME` and `right_gain_NAME`; then "_places".

    A state has "probe", "places" (of the probe, at some patches) and "nearest" counts.
    """
    estimates: Estimates = {}
    first = next(iter(states.values()))
    for state, own in states.items():
        for area, end in (("probe", ""), ("places", "_places")):
            found = segmented(own[area], groups, seed)
            estimates |= {f"{x}_{name}{state}{end}": e for x, e in found.items()}
            if own is not first:
                found = segmentation_gain(first[area], own[area], groups, seed)
                estimates |= {f"{x}{state}_{name}{end}": e for x, e in found.items()}
        estimates[f"knn_miou_{name}{state}"] = segmented(own["nearest"], groups, seed)["miou"]
    return estimates


def _check_numbers(segments: Iterable, classes: int) -> None:
    """Raise ValueError where numbers of pixels cannot be `classes` from 0; warn of void ones."""
    pixels = Counter[int]()
    for own in segments:
        values, counts = np.unique(own, return_counts=True)
        pixels.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    void = sorted(x for x in pixels if not 0 <= x < classes)
    if len({*void} - VOID) > 1 or (void and len(pixels) - len(void) < 2):
        form = f"{classes} classes from 0, {sorted(VOID)} and one other number as void"
        raise ValueError(f"the numbers in masks are not {form}: {sorted(pixels)[-20:]}")
    if void:
        share = sum(pixels[x] for x in void) / pixels.total()
        none = "" if 0 in pixels else "; none is of class 0"
        warnings.warn(f"{share:.1%} of the pixels are void, {void}{none}", stacklevel=3)


def _counted(
    named: Int[Tensor, " pixel"], true: Int[Tensor, " pixel"], classes: int
) -> Int[np.ndarray, "3 class"]:
    """In the order of `Counts`."""
    parts = true[named == true], named, true
    return np.stack([part.bincount(minlength=classes).numpy() for part in parts])


def _drawn(
    seen: Num[np.ndarray, " image"],
    rows: Shaped[np.ndarray, "image ..."],
    statistic: Callable[[np.ndarray], float],
    groups: Sequence[str] | None,
    seed: int,
) -> Estimate:
    """The `bootstrap` of the images in which a pixel was seen."""
    there = (seen > 0).reshape(-1, *[1] * (rows.ndim - 1))
    return bootstrap(np.where(there, rows, np.nan), statistic, seed=seed, groups=groups)


def _at_points(
    tokens: TokenGrid, points: Points, classes: int
) -> tuple[Float[Tensor, "item width"], Int[Tensor, " item"]]:
    """The tokens resized to the points that are not void, and their classes."""
    _check_numbers(points.cpu(), classes)
    size = points.shape[1:]
    parts = (
        F.interpolate(part.movedim(-1, 1), size, mode="bilinear").movedim(1, -1)
        for part in tokens.split(32)
    )
    seen = (points >= 0) & (points < classes)
    chosen = [part[own] for part, own in zip(parts, seen.split(32), strict=True)]
    return torch.cat(chosen), points[seen]
