"""Effect sizes and tests with intervals. The bootstrap resamples images, never tokens: those of one image depend on each other.

A resample is a row of image weights (how often each image was drawn), so a statistic of per-image counts is a matrix product.
Intervals are percentile intervals. Scores that are nan are left out; an empty group gives Estimate(nan, nan, nan, 0), no error.
A level outside (0, 1), and fewer than one resample, raise ValueError.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Num, Shaped
from scipy.stats import binomtest, rankdata, t

from helpers.measures._arrays import Array, settled, to_numpy

BINS = 1024
REPETITIONS = 12  # at most, of what is right or wrong on an image


class Estimate(NamedTuple):
    """A value, its interval, the number of images (or items) it rests on, and what a single image can change in it.

    `step` is None unless that is one amount (or a few times it), as in a share of images.
    """

    value: float
    low: float
    high: float
    n: int
    step: float | None = None


NONE = Estimate(float("nan"), float("nan"), float("nan"), 0)


def bootstrap(
    per_image: Shaped[Array, "image ..."],
    statistic: Callable[[np.ndarray], float] = np.nanmean,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """A statistic of per-image values and its interval over images.

    The mean of what was right or wrong on each image, in parts of 1 or in %, moves in steps, which the estimate tells.

    Args:
        per_image: one row an image. Images without any number (all nan) are dropped; n counts the others.
        statistic: takes resampled rows (image, ...) in float64 and returns a number; pass np.nanmedian and the like
            where rows may hold some nan.
    """
    values = to_numpy(per_image).astype(np.float64)
    values = values[~np.isnan(values.reshape(len(values), -1)).all(axis=1)] if values.size else values[:0]
    n = len(values)
    if n == 0:
        return NONE
    draws = [statistic(np.repeat(values, weights, axis=0)) for weights in _weights(n, resamples, seed)]
    estimate = _estimate(statistic(values), np.array(draws), n, level)
    return estimate._replace(step=_step(values)) if statistic is np.nanmean and values.ndim == 1 else estimate


def ratio_of_means(rows: Float[np.ndarray, "image 2"]) -> float:
    """Mean of the first column over mean of the second, nan left out: a `bootstrap` statistic that pairs them image by image."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(*np.nanmean(rows, axis=0)))


def share(per_image: Bool[Array, " image"], level: float = 0.95) -> Estimate:
    """The share of images for which something holds, with Wilson's score interval (Wilson 1927).

    Not a bootstrap: resampling 0 of n gives 0 every time, and would make the absence of outliers look certain.
    Raises ValueError for anything but true and false.
    """
    values = _answers(per_image, "a share")
    _check_level(level)
    n, k = len(values), int(values.sum())
    if n == 0:
        return NONE
    interval = binomtest(k, n).proportion_ci(level, method="wilson")
    return Estimate(k / n, float(interval.low), float(interval.high), n, 1 / n)


def over_seeds(estimates: Sequence[Estimate], level: float = 0.95, limits: tuple[float, float] = (-np.inf, np.inf)) -> Estimate:
    """The mean of what was estimated on several models, trained alike with different seeds, and its interval over new trainings
    and new images.

    Student's t interval of the models' values (Student 1908). The models were measured on the same images, whose chance does not
    show in the spread between them: each end lies as far away as the t interval's and the models' own mean interval's together
    (root of the sum of squares). Three models without an outlier would else make the absence of outliers certain.

    Args:
        estimates: one a model, with its interval over images at the same `level`; those of value nan are left out.
        limits: what values are possible, such as (0, 1) for a share; the interval ends there.

    Returns:
        n counts the models, and step is that of one image in one model, where all have the same. A single model: its estimate,
        as it is.
    """
    _check_level(level)
    kept = [estimate for estimate in estimates if not np.isnan(estimate.value)]
    if len(kept) < 2:
        return kept[0] if kept else NONE
    n, values = len(kept), np.array([estimate.value for estimate in kept])
    value, low, high = np.mean([(e.value, e.low, e.high) for e in kept], axis=0)
    steps = {e.step for e in kept}
    reach = t.ppf((1 + level) / 2, n - 1) * values.std(ddof=1) / np.sqrt(n)
    low, high = np.clip((value - np.hypot(reach, value - low), value + np.hypot(reach, high - value)), *limits)
    return Estimate(float(value), float(low), float(high), n, steps.pop() / n if len(steps) == 1 and None not in steps else None)


def auc(positive: Num[Array, " positive"], negative: Num[Array, " negative"]) -> float:
    """P(positive > negative) + P(equal) / 2, the area under the ROC curve. nan are left out; nan where a group is empty.

    Scores are equal where they are the same to 16 bits (`settled`).
    """
    positive, negative = settled(_numbers(positive)), settled(_numbers(negative))
    p, q = len(positive), len(negative)
    if p == 0 or q == 0:
        return float("nan")
    ranks = rankdata(np.concatenate([positive, negative]))
    return float((ranks[:p].sum() - p * (p + 1) / 2) / (p * q))


def bootstrap_auc(
    scores: Float[Array, "image patch"],
    mask: Bool[Array, "image patch"],
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """`auc` of the scores in `mask` against the others, pooled over patches, with its interval over images.

    The value is exact. The resamples use at most 1024 bins of equal share, and are shifted by what binning changes in the value.
    """
    scores, mask = _images_with_numbers(settled(scores), mask)
    value = auc(scores[mask], scores[~mask])
    if np.isnan(value):
        return NONE
    levels = np.unique(scores[~np.isnan(scores)])
    if len(levels) > BINS:
        levels = np.unique(np.nanquantile(scores, np.linspace(0, 1, BINS + 1)[1:]))
    shape = len(scores), len(levels)
    cells = np.searchsorted(levels, scores) + len(levels) * np.arange(len(scores))[:, None]  # (image, bin) as one index
    positive, negative = (
        np.bincount(cells[group & ~np.isnan(scores)], minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
        for group in (mask, ~mask)
    )

    def binned_auc(weights: np.ndarray) -> np.ndarray:
        p, q = weights @ positive, weights @ negative
        with np.errstate(invalid="ignore"):
            return (p * (q.cumsum(axis=1) - q / 2)).sum(axis=1) / (p.sum(axis=1) * q.sum(axis=1))

    shift = value - binned_auc(np.ones((1, len(scores))))
    return _estimate(value, binned_auc(_weights(len(scores), resamples, seed)) + shift, len(scores), level)


def matched_auc(scores: Float[Array, "image patch"], mask: Bool[Array, "image patch"]) -> float:
    """`auc` stratified by patch position: only patches at the same position are compared, positions pooled by their pairs.

    It removes what position alone explains. nan where no position has both kinds.
    """
    scores, mask = to_numpy(scores), to_numpy(mask)
    positive, negative = mask & ~np.isnan(scores), ~mask & ~np.isnan(scores)
    pairs = positive.sum(axis=0) * negative.sum(axis=0)
    if pairs.sum() == 0:
        return float("nan")
    wins = sum(count * auc(s[m], s[~m]) for s, m, count in zip(scores.T, mask.T, pairs, strict=True) if count)
    return float(wins / pairs.sum())


def bootstrap_matched_auc(
    scores: Float[Array, "image patch"],
    mask: Bool[Array, "image patch"],
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """`matched_auc` with its interval over images. A pair of images weighs as often as both were drawn; n x n memory."""
    scores, mask = _images_with_numbers(settled(scores), mask)
    value = matched_auc(scores, mask)
    if np.isnan(value):
        return NONE
    positive, negative = mask & ~np.isnan(scores), ~mask & ~np.isnan(scores)
    wins = np.zeros((len(scores), len(scores)), dtype=np.float32)  # of row image's masked patches over column image's others
    for s, p, q in zip(scores.T, positive.T, negative.T, strict=True):
        difference = s[p, None] - s[q]
        wins[np.ix_(p, q)] += (np.sign(difference) + 1) / 2
    pairs = positive.astype(np.float32) @ negative.T.astype(np.float32)
    weights = _weights(len(scores), resamples, seed).astype(np.float32)
    with np.errstate(invalid="ignore"):
        draws = ((weights @ wins) * weights).sum(axis=1) / ((weights @ pairs) * weights).sum(axis=1)
    return _estimate(value, draws, len(scores), level)


def position_share(mask: Bool[Array, "image patch"], resamples: int = 1000, level: float = 0.95, seed: int = 0) -> Estimate:
    """Share of the masked patches at the few positions where most of them lie: 1 where the same patches are always masked.

    The positions are learnt on one half of the images, the most frequent ones, as many as an image has masked patches on
    average (rounded). The share and its interval are those of the other half.
    """
    mask = to_numpy(mask)
    learnt, tested = np.array_split(mask[np.random.default_rng(seed).permutation(len(mask))], 2)
    count = max(1, round(learnt.sum(axis=1).mean())) if len(learnt) else 1
    return share_at(tested, usual_positions(learnt, count), resamples, level, seed)


def usual_positions(mask: Bool[Array, "image patch"], count: int) -> list[int]:
    """The `count` patches that are masked in most images, the most frequent first, the first of equally frequent ones."""
    return np.argsort(-to_numpy(mask).sum(axis=0), kind="stable")[:count].tolist()


def share_at(
    mask: Bool[Array, "image patch"], positions: Sequence[int], resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> Estimate:
    """Share of the masked patches that lie at `positions` (patch indices), with its interval over images.

    n counts all images, those without a masked patch too.
    """
    mask = to_numpy(mask)
    counts = np.stack([mask[:, list(positions)].sum(axis=1), mask.sum(axis=1)], axis=1)
    if not counts[:, 1].any():
        return NONE
    with np.errstate(invalid="ignore"):
        draws = np.divide(*(_weights(len(mask), resamples, seed) @ counts).T)
    return _estimate(counts[:, 0].sum() / counts[:, 1].sum(), draws, len(mask), level)


def cohens_d(positive: Num[Array, " positive"], negative: Num[Array, " negative"]) -> float:
    """Difference of the means over the pooled standard deviation (Cohen 1988); nan where one is empty or both are constant."""
    positive, negative = _numbers(positive).astype(np.float64), _numbers(negative).astype(np.float64)
    centre = np.concatenate([positive, negative]).mean() if len(positive) + len(negative) else 0.0
    return _standardised_difference(_moments(positive - centre)[None], _moments(negative - centre)[None]).item()


def bootstrap_cohens_d(
    scores: Float[Array, "image patch"],
    mask: Bool[Array, "image patch"],
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """`cohens_d` of the scores in `mask` against the others, pooled over patches, with its interval over images."""
    scores, mask = _images_with_numbers(scores, mask)
    centred = scores.astype(np.float64) - (np.nanmean(scores, dtype=np.float64) if scores.size else 0.0)
    return _bootstrap_moments(centred, mask, _standardised_difference, resamples, level, seed)


def cliffs_delta(positive: Num[Array, " positive"], negative: Num[Array, " negative"]) -> float:
    """P(positive > negative) - P(positive < negative), from -1 to 1 (Cliff 1993): 2 x `auc` - 1."""
    return 2 * auc(positive, negative) - 1


def mcnemar(a_correct: Bool[Array, " image"], b_correct: Bool[Array, " image"]) -> float:
    """Exact two-sided p-value for two classifiers being equally often right (McNemar 1947); 1 where they never differ.

    Raises ValueError for anything but true and false, and for answers on different numbers of images.
    """
    a, b = _answers(a_correct, "mcnemar"), _answers(b_correct, "mcnemar")
    if len(a) != len(b):
        raise ValueError(f"mcnemar cannot pair answers on {len(a)} and {len(b)} images; give true or false for each image")
    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    return float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def macro_auc(scores: Float[Array, "image class"], labels: Int[Array, " image"]) -> float:
    """`auc` of each class against the others, by its score, averaged over the classes that some, but not all, images have.

    For comparable scores give probabilities: logits differ by a constant for each image.
    """
    scores, labels = to_numpy(scores), to_numpy(labels)
    found = [auc(scores[labels == label, label], scores[labels != label, label]) for label in np.unique(labels)]
    return float(np.mean(found))


def bootstrap_spread(
    groups: Sequence[Float[Array, " _"]], resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> tuple[Estimate, float]:
    """Largest minus smallest mean of several groups of images, and its p-value; (NONE, nan) for fewer than two groups.

    The interval is that of the difference between these two groups. They were chosen for being the extremes, which the p-value
    takes into account: the chance of such a spread if all groups had one mean, each with its own images about it.

    Raises ValueError for a group without images, or with nan.
    """
    groups = [to_numpy(group).astype(np.float64) for group in groups]
    for i, group in enumerate(groups):
        if not len(group) or np.isnan(group).any():
            has = f"nan for {np.isnan(group).sum()} of {len(group)} images" if len(group) else "no images"
            raise ValueError(f"group {i} of {len(groups)} has {has}; give a number for each image")
    if len(groups) < 2:
        return NONE, float("nan")
    means = np.array([group.mean() for group in groups])
    draws = np.stack([_weights(len(g), resamples, seed + i) @ g / len(g) for i, g in enumerate(groups)], axis=1)
    low, high = means.argmin(), means.argmax()
    estimate = _estimate(means[high] - means[low], draws[:, high] - draws[:, low], sum(map(len, groups)), level)
    return estimate, float((1 + (np.ptp(draws - means, axis=1) >= estimate.value - 1e-9).sum()) / (1 + resamples))


def enrichment(scores: Float[Array, "image patch"], mask: Bool[Array, "image patch"], quantile: float = 0.75) -> float:
    """P(score above the pooled `quantile` | mask) / P(the same | not mask); nan where a group is empty or the ratio infinite.

    The reproduction of Darcet et al. says of outliers that they are 2.5 times likelier where information is redundant.
    """
    return bootstrap_enrichment(scores, mask, quantile, resamples=1).value


def bootstrap_enrichment(
    scores: Float[Array, "image patch"],
    mask: Bool[Array, "image patch"],
    quantile: float = 0.75,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """`enrichment` with its interval over images. The pooled quantile is that of all images given, in every resample."""
    scores, mask = _images_with_numbers(settled(scores), mask)
    cut = np.nanquantile(scores, quantile) if scores.size else 0.0
    above = np.where(np.isnan(scores), np.nan, scores > cut)
    return _bootstrap_moments(above, mask, _ratio_of_means, resamples, level, seed)


def _images_with_numbers(scores: Array, mask: Array) -> tuple[np.ndarray, np.ndarray]:
    scores, mask = to_numpy(scores), to_numpy(mask)
    kept = ~np.isnan(scores).all(axis=1)
    return scores[kept], mask[kept]


def _numbers(values: Array) -> np.ndarray:
    values = to_numpy(values)
    return values[~np.isnan(values)]


def _answers(values: Array, what: str) -> Bool[np.ndarray, " image"]:
    """What is true or false of each image."""
    values = to_numpy(values)
    if values.dtype != bool or values.ndim != 1:
        raise ValueError(f"{what} is not taken of {values.dtype} {values.shape}; give true or false for each image")
    return values


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level {level} of an interval does not lie between 0 and 1, such as 0.95")


def _weights(n: int, resamples: int, seed: int) -> np.ndarray:
    """How often each of n images is drawn in each resample: (resample, image)."""
    if resamples < 1:
        raise ValueError(f"{resamples} resamples; take at least 1")
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)


def _step(values: np.ndarray) -> float | None:
    """What the mean of (image,) values moves by when one image counts otherwise, or None.

    The values must be right or wrong, means of that over a few repetitions, or differences of these, in parts of 1 or in %.
    """
    largest = np.abs(values).max()
    if not 0 < largest <= 100:
        return None
    unit = 1 if largest <= 1 else 100
    for repetitions in range(1, REPETITIONS + 1):
        counts = values * repetitions / unit
        if np.abs(counts - counts.round()).max() < 1e-5:
            return unit / repetitions / len(values)
    return None


def _estimate(value: float, draws: np.ndarray, n: int, level: float) -> Estimate:
    _check_level(level)
    if np.isnan(value):
        return NONE
    low, high = np.nanquantile(draws, ((1 - level) / 2, (1 + level) / 2))
    return Estimate(float(value), float(low), float(high), n)


def _moments(values: np.ndarray) -> np.ndarray:
    """Count, sum and sum of squares over the last axis, without nan: (..., 3)."""
    return np.stack([(~np.isnan(values)).sum(axis=-1), np.nansum(values, axis=-1), np.nansum(values**2, axis=-1)], axis=-1)


def _bootstrap_moments(
    scores: np.ndarray, mask: np.ndarray, statistic: Callable, resamples: int, level: float, seed: int
) -> Estimate:
    """Estimate of a `statistic` of the moments (..., 3) of both groups."""
    if scores.size == 0:
        return NONE
    groups = [_moments(np.where(group, scores, np.nan)) for group in (mask, ~mask)]
    weights = _weights(len(scores), resamples, seed)
    value = statistic(*(moments.sum(axis=0, keepdims=True) for moments in groups))
    return _estimate(value.item(), statistic(*(weights @ moments for moments in groups)), len(scores), level)


def _standardised_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cohen's d of groups given by their moments (..., 3)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = sum(np.maximum(m[..., 2] - m[..., 1] ** 2 / m[..., 0], 0) for m in (a, b))
        pooled = np.sqrt(squares / (a[..., 0] + b[..., 0] - 2))
        return _finite((a[..., 1] / a[..., 0] - b[..., 1] / b[..., 0]) / pooled)


def _ratio_of_means(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return _finite((a[..., 1] / a[..., 0]) / (b[..., 1] / b[..., 0]))


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, np.nan)
