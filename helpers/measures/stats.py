"""Effect sizes and tests with intervals over images, never over tokens of one image.

Of a share Wilson's interval; of a mean Student's t, corrected for skewness (Hall 1992); of few
repetitions or changes Wald's with made-up images (Agresti & Coull 1998, Bonett & Price 2012); of
counts in images, such as an AUC, the jackknife; of any other statistic a percentile bootstrap; of
a mean over trainings `over_seeds`. How often they cover is simulated by scripts/intervals.py. Fewer
than 5 images have no interval (nan), an empty group is NONE.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported where they are first needed
from jaxtyping import Bool, Float, Num, Shaped
from scipy.special import expit, logit, ndtr, ndtri, stdtrit

from helpers.measures._arrays import (
    Answers,
    Array,
    Labels,
    Limits,
    Pairs,
    PatchScores,
    PatchSet,
    settled,
    to_numpy,
)

FEWEST = 5  # images, for an interval
AT_LIMIT = 1e-9  # of a part of the way from limit to limit: its part times the rest
REPETITIONS = 12  # at most, of what is right or wrong on an image
OPPOSITE = {"supported", "refuted"}
LEVEL = 0.95  # of all intervals
ALIKE = 1e-6  # of the largest: how little the values of trainings that are the same may differ
NO_INTERVAL = (math.nan, math.nan)
MOST_COLUMNS = 8  # numbers of an image that are kept; what rests on all its patches has too many


class PerImage:
    """What an estimate takes of each image, in `pieces`: (image,) float32 each, nan where an image
    has none. Of a mean or a share one; of `bootstrap` one a column; of `jackknife` what each image
    adds to the value; of `over_seeds` those of one training after another.
    """

    def __init__(self, *pieces: Shaped[Array, " _"]):
        self.pieces = tuple(to_numpy(piece).astype(np.float32) for piece in pieces)

    def __eq__(self, other: object) -> bool:
        """Estimates are equal by their value and interval, whatever these follow from."""
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"PerImage({len(self.pieces)} x {len(self.pieces[0])} images)"


class Estimate(NamedTuple):
    """A value with its interval.

    Attributes:
        value: nan where undefined.
        low, high: the ends of the interval; nan without one.
        n: the number of images (or items) it rests on.
        step: what a single image can change in it, where that is one amount, as in a share.
        over: what the interval is over: "images", or "trainings", new ones and new images.
        trainings: of a mean over trainings, (value, low, high) of each, over images.
        per_image: what it takes of each image; None where that is no number or many.
    """

    value: float
    low: float
    high: float
    n: int
    step: float | None = None
    over: str = "images"
    trainings: tuple[tuple[float, float, float], ...] | None = None
    per_image: PerImage | None = None


Estimates = dict[str, Estimate | float]  # by name
NONE = Estimate(math.nan, math.nan, math.nan, 0)


def over_images(
    per_image: Shaped[Array, "image ..."],
    limits: Limits | None = None,
    continuous: bool = False,
    counts: bool = False,
) -> Estimate:
    """The mean of one number an image, and its interval.

    Student's t with Hall's cubic correction for skewness (Hall 1992): the plain t interval of 80
    lognormal values covers 92 % where it should cover 95.

    Args:
        per_image: images with nan are dropped; n counts the others.
        limits: what one image can be: from 0, or from as far below it, as (0, 1) for an IoU, (0,
            100) for right or wrong in % and (-100, 100) for a change of that. The interval ends
            there. Of right or wrong it is Wilson's, of changes of answers Bonett and Price's, of
            means of a few repetitions Agresti and Coull's; all move in steps of one image.
        continuous: a quantity that no image brings to its limits by chance, as a cosine: where it
            is there on all images, it is so by construction. It has no steps.
        counts: numbers of patches or blocks, or shares of them, which are no repeated answers.
            Integers always are.

    Counts that are the same on all images could have varied: within limits their interval allows
    for Wilson's upper end for 0 of n images at either limit, without limits they have none. What
    else is the same on all images, and not at its limits, has no width.
    """
    values = to_numpy(per_image)
    counts = counts or not np.issubdtype(values.dtype, np.floating)
    values = whole = values.astype(np.float64)
    if values.ndim != 1:
        raise ValueError(f"a mean over images needs one number an image, not {values.shape}")
    values = values[~np.isnan(values)]
    n = len(values)
    if n == 0:
        return NONE
    value = float(values.mean())
    if limits is None:
        low, high = _mean_interval(values)
        ends = NO_INTERVAL if counts and low == high else (low, high)
        return Estimate(value, *ends, n, per_image=PerImage(whole))
    lowest, highest = limits
    if not 0 < highest < math.inf or lowest not in (0, -highest):
        raise ValueError(f"limits {limits} are not (0, highest) or (-highest, highest)")
    slack = 1e-6 * (highest - lowest)  # what float32 leaves of a limit
    if values.min() < lowest - slack or values.max() > highest + slack:
        raise ValueError(f"values {values.min():.6g} to {values.max():.6g} outside {limits}")
    answers = (values / highest).round(6)
    step = None if continuous or counts else _step(answers, highest)
    if step is not None or not (continuous or counts or answers.any()):
        low, high = (highest * end for end in _answers_interval(answers, lowest < 0))
    else:
        low, high = _mean_interval(values)
        if low == high and counts:
            low, high = _of_alike(value, n, limits)
    low, high = map(float, np.clip((low, high), lowest, highest))
    return Estimate(value, low, high, n, step, per_image=PerImage(whole))


def bootstrap(
    per_image: Shaped[Array, "image ..."],
    statistic: Callable[[np.ndarray], float],
    resamples: int = 1000,
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
) -> Estimate:
    """A statistic of per-image values and its percentile interval over images.

    Percentiles are taken as far out as Student's t says (Hesterberg 2015). For a mean take
    `over_images`. The same seed and number of images draw the same images.

    Args:
        per_image: images without any number (all nan) are dropped; n counts the others.
        statistic: takes resampled rows (image, ...) in float64; pass np.nanmedian and the like
            where rows may hold some nan.
        groups: of each image, such as the drive that it is a frame of. Groups are drawn, and then
            images within each of them (Davison & Hinkley 1997, section 3.8).
    """
    whole = to_numpy(per_image).astype(np.float64)
    kept = ~np.isnan(whole).all(axis=tuple(range(1, whole.ndim)))
    values = whole[kept]
    n = len(values)

    if values.size == 0:
        return NONE
    drawn = _weights(n, resamples, seed)
    if groups is not None:
        drawn = _weights_in_groups(np.array(groups)[kept], resamples, seed)
    draws = [statistic(np.repeat(values, weights, axis=0)) for weights in drawn]
    estimate = _percentiles(statistic(values), np.array(draws), n)
    columns = whole.reshape(len(whole), -1).T
    if len(columns) > MOST_COLUMNS or groups is not None:
        return estimate
    return estimate._replace(per_image=PerImage(*columns))


def ratio_of_means(rows: Pairs) -> float:
    """Mean of the first column over mean of the second, nan left out; for `bootstrap`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(*np.nanmean(rows, axis=0)))


def mean_ratio(a: Float[Array, " image"], b: Float[Array, " image"], seed: int = 0) -> Estimate:
    """Mean of `a` over mean of `b`, by a `bootstrap` that draws both numbers of an image."""
    return bootstrap(np.stack([to_numpy(a), to_numpy(b)], axis=1), ratio_of_means, seed=seed)


def share(per_image: Answers) -> Estimate:
    """The share of images for which something holds, with Wilson's interval.

    >>> found = share(np.arange(40) < 30)
    >>> found.value, round(found.low, 2), round(found.high, 2), found.n
    (0.75, 0.6, 0.86, 40)
    """
    values = _answers(per_image, "a share")
    n, k = len(values), int(values.sum())
    if n == 0:
        return NONE
    return Estimate(k / n, *_share_interval(k, n), n, 1 / n, per_image=PerImage(values))


def jackknife(
    value: float,
    without: Float[np.ndarray, " image"],
    limits: Limits | None = None,
    n_counted: int | None = None,
    counts: bool = False,
) -> Estimate:
    """The interval of a smooth statistic, from its values without each image (Efron & Stein 1981).

    Student's t with the jackknife's standard error. Between `limits` it is taken on the logit
    scale, or on the log scale if only the lower one is finite, so that it ends inside them. A
    statistic at a limit has Wilson's interval, as if each image that counts were right: a perfect
    order of 20 images is not certainly perfect. What is 0 and may be anything above it has no
    interval.

    Args:
        without: each of the images in turn; where one is nan there is no interval.
        limits: of the statistic, such as (0, 1) for an AUC and (0, inf) for a ratio; ValueError for
            a value outside them.
        n_counted: how many images count, where not all do, such as those with an outlier.
        counts: a share of patches, which is the same without any image but could have varied.
    """
    n, ends = len(without), NO_INTERVAL
    n_counted = n if n_counted is None else n_counted
    if n_counted >= FEWEST and np.isfinite([value, *without]).all():
        error = np.sqrt((n - 1) / n * ((without - without.mean()) ** 2).sum())
        reach = np.array([-1, 1]) * stdtrit(n_counted - 1, (1 + LEVEL) / 2) * error
        ends = value + reach if limits is None else _within(value, reach, limits, n_counted)
        if counts and ends[0] == ends[1]:
            ends = _of_alike(value, n_counted, limits)
    return Estimate(float(value), *map(float, ends), n, per_image=PerImage(value - without))


def over_seeds(
    estimates: Sequence[Estimate],
    limits: Limits = (-np.inf, np.inf),
) -> Estimate:
    """The mean over models trained with different seeds, for new trainings and new images.

    Student's t interval of the models' values (Student 1908). The models were measured on the same
    images, whose chance does not show in the spread between them: each end lies as far away as the
    t interval's and the models' own mean interval's together (root of the sum of squares).

    Where the trainings' values are all alike or two clusters (`falls_in_two`), t has nothing to go
    by: the interval is over images, of these trainings alone, from the lowest end of their own
    intervals to the highest.

    n counts the models (those of value nan are left out), and step is that of one image in one
    model, where all have the same. Of a single model it is its estimate. The interval ends at
    `limits`, such as (0, 1) for a share.
    """
    kept = [estimate for estimate in estimates if not np.isnan(estimate.value)]
    if len(kept) < 2:
        return kept[0] if kept else NONE
    n, ends = len(kept), np.array([estimate[:3] for estimate in kept])
    values, (value, low, high) = ends[:, 0], ends.mean(axis=0)
    over = "trainings"
    if np.ptp(values) <= ALIKE * np.abs(values).max() or falls_in_two(values):
        over, low, high = "images", ends[:, 1].min(), ends[:, 2].max()
    else:
        reach = stdtrit(n - 1, (1 + LEVEL) / 2) * values.std(ddof=1) / np.sqrt(n)
        low, high = value - np.hypot(reach, value - low), value + np.hypot(reach, high - value)
    low, high = map(float, np.clip((low, high), *limits))
    steps = {estimate.step for estimate in kept}
    step = steps.pop() / n if len(steps) == 1 and None not in steps else None
    trainings = tuple(map(tuple, ends.tolist()))
    found = Estimate(float(value), low, high, n, step, over, trainings)
    each = [estimate.per_image for estimate in kept if estimate.per_image is not None]
    if len(each) < n:
        return found
    return found._replace(per_image=PerImage(*(piece for own in each for piece in own.pieces)))


def falls_in_two(values: Float[np.ndarray, " value"]) -> bool:
    """Whether values form two clusters, as where some trainings find a solution and others do not.

    The largest gap between neighbours takes more of the range than in 95 % of samples of as many
    evenly spread values (the spacings of uniform order statistics, David & Nagaraja 2003, 6.4).
    Fewer than four never do.
    """
    n, gaps = len(values), np.diff(np.sort(values))
    if n < 4:
        return False
    return bool(gaps.max() > gaps.sum() * (1 - ((1 - LEVEL) / (n - 1)) ** (1 / (n - 2))))


def auc(positive: Num[Array, " positive"], negative: Num[Array, " negative"]) -> float:
    """P(positive > negative) + P(equal) / 2, the area under the ROC curve; nan for an empty group.

    Scores that are nan are left out. They are equal where they are the same to 16 bits (`settled`).

    >>> auc(np.array([2.0, 4.0]), np.array([1.0, 3.0]))
    0.75
    """
    positive, negative = (x[~np.isnan(x)] for x in (settled(positive), settled(negative)))
    p, q = len(positive), len(negative)
    if p == 0 or q == 0:
        return math.nan
    ranks = scipy.stats.rankdata(np.concatenate([positive, negative]))
    return float((ranks[:p].sum() - p * (p + 1) / 2) / (p * q))


def auc_over_images(scores: PatchScores, mask: PatchSet) -> Estimate:
    """`auc` of the scores in `mask` against the others, pooled over patches, by `jackknife`."""
    scores, mask = _images_with_numbers(settled(scores), mask)
    positive, negative = _groups(scores, mask)
    if not (positive.any() and negative.any()):
        return NONE
    wins, pairs = _wins(scores, positive, negative)
    rows = zip(scores, positive, negative, strict=True)
    inside = [((np.sign(s[p][:, None] - s[q]) + 1) / 2).sum() for s, p, q in rows]
    own, n_counted = positive.sum(axis=1) * negative.sum(axis=1), _fewer(positive, negative)
    return _auc_interval(wins, pairs, np.array(inside), own, n_counted)


def matched_auc_over_images(scores: PatchScores, mask: PatchSet) -> Estimate:
    """`auc` of patches at the same position, with its interval over images by `jackknife`.

    Positions are pooled by their pairs. It removes what position alone explains, and is nan where
    no position has both kinds. Only images with a masked patch that has others to be compared with
    at its position carry it, or with one of these others; n counts the rarer of the two.
    """
    scores, mask = _images_with_numbers(settled(scores), mask)
    positive, negative = _groups(scores, mask)
    both = positive.any(axis=0) & negative.any(axis=0)
    if not both.any():
        return NONE
    places = zip(scores.T[both], positive.T[both], negative.T[both], strict=True)
    wins, pairs = np.sum([_wins(*(x[:, None] for x in place)) for place in places], axis=0)
    # An image has one patch at a position, so none to be compared with inside it.
    none = np.zeros(len(scores))
    n_counted = _fewer(positive[:, both], negative[:, both])
    estimate = _auc_interval(wins, pairs, none, none, n_counted)
    return estimate._replace(n=n_counted)


def position_share(mask: PatchSet, seed: int = 0) -> Estimate:
    """Share of the masked patches at the few positions where most of them lie.

    It is 1 where the same patches are always masked. The positions are learnt on one half of the
    images, the most frequent ones, as many as an image has masked patches on average (rounded). The
    share and its interval are those of the other half.
    """
    mask = to_numpy(mask)
    own, others = np.array_split(np.random.default_rng(seed).permutation(len(mask)), 2)
    return share_at(mask[others], usual_positions(mask[own]))


def usual_positions(mask: PatchSet, count: int = 0) -> list[int]:
    """The `count` patches that are masked in most images, the most frequent first; 0: as many as an
    image has on average, at least one.
    """
    mask = to_numpy(mask)
    count = count or max(1, round(mask.sum() / max(1, len(mask))))
    return np.argsort(-mask.sum(axis=0), kind="stable")[:count].tolist()


def share_at(mask: PatchSet, positions: Sequence[int]) -> Estimate:
    """Share of the masked patches that lie at `positions` (patch indices), by `jackknife`.

    n counts all images, those without a masked patch too.
    """
    mask = to_numpy(mask)
    there, all_masked = mask[:, list(positions)].sum(axis=1), mask.sum(axis=1)
    if not all_masked.any():
        return NONE
    without = _divided(there.sum() - there, all_masked.sum() - all_masked)
    n_counted = int((all_masked > 0).sum())
    return jackknife(there.sum() / all_masked.sum(), without, (0, 1), n_counted, counts=True)


def cohens_d_over_images(scores: PatchScores, mask: PatchSet) -> Estimate:
    """Cohen's d of the scores in `mask` against the others, pooled over patches, by `jackknife`.

    The difference of the means over the pooled standard deviation (Cohen 1988); nan where a group
    is empty or both are constant.
    """
    scores, mask = _images_with_numbers(scores, mask)
    mean = np.nanmean(scores, dtype=np.float64) if scores.size else 0.0
    return _of_moments(scores.astype(np.float64) - mean, mask, _standardised_difference)


def mcnemar(a_correct: Answers, b_correct: Answers) -> float:
    """Exact two-sided p-value for two classifiers being equally often right (McNemar 1947)."""
    a, b = _answers(a_correct, "mcnemar"), _answers(b_correct, "mcnemar")

    only_a, only_b = int((a & ~b).sum()), int((~a & b).sum())
    return float(scipy.stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


def macro_auc(scores: Float[Array, "image class"], labels: Labels) -> float:
    """`auc` of each class against the others, averaged over classes that only some images have.

    For comparable scores give probabilities: logits differ by a constant for each image.
    """
    scores, labels = to_numpy(scores), to_numpy(labels)
    found = [
        auc(scores[labels == label, label], scores[labels != label, label])
        for label in np.unique(labels)
    ]
    return float(np.mean(found))


def bootstrap_spread(
    groups: Sequence[Float[Array, " _"]], resamples: int = 1000, seed: int = 0
) -> tuple[Estimate, float]:
    """Largest minus smallest mean of several groups of images, and its p-value.

    The two groups were chosen for being the extremes, so some spread is there if all groups have
    one mean. The p-value is the chance of one as large, resampled and as much wider as Student's t
    is for the smallest group. The interval's lower end lies below the spread by what 95 % of such
    spreads stay below, never below 0. The upper end is that of the difference of the two groups.
    Groups without any variation, all alike, have no interval.

    (NONE, nan) for fewer than two groups; ValueError for a group without images, or with nan.
    """
    groups = [to_numpy(group).astype(np.float64) for group in groups]
    for i, group in enumerate(groups):
        if not len(group) or np.isnan(group).any():
            raise ValueError(f"group {i} has an image without a number, or no image")
    if len(groups) < 2:
        return NONE, math.nan
    means = np.array([group.mean() for group in groups])
    draws = np.stack(
        [_weights(len(g), resamples, seed + i) @ g / len(g) for i, g in enumerate(groups)], axis=1
    )
    low, *_, high = means.argsort(kind="stable")  # two groups, also where all have one mean
    n, images = min(map(len, groups)), sum(map(len, groups))
    estimate = _percentiles(means[high] - means[low], draws[:, high] - draws[:, low], n)
    if n < FEWEST:
        return estimate._replace(n=images), math.nan
    wider = stdtrit(n - 1, (1 + LEVEL) / 2) * np.sqrt(n / (n - 1)) / ndtri((1 + LEVEL) / 2)
    chance = wider * np.ptp(draws - means, axis=1)
    least = max(0.0, estimate.value - float(np.quantile(chance, LEVEL)))
    ends = (least, estimate.high) if chance.any() or estimate.value else NO_INTERVAL
    p_value = float((1 + (chance >= estimate.value - 1e-9).sum()) / (1 + resamples))
    return Estimate(estimate.value, *ends, images), p_value


def enrichment_over_images(
    scores: PatchScores,
    mask: PatchSet,
    quantile: float = 0.75,
) -> Estimate:
    """How much likelier a score above the pooled `quantile` is in `mask` than outside.

    P(above | mask) / P(above | not mask), by `jackknife`; nan where a group is empty or the ratio
    infinite. The reproduction of Darcet et al. says of outliers that they are 2.5 times likelier
    where information is redundant.
    """
    scores, mask = _images_with_numbers(settled(scores), mask)
    cut = np.nanquantile(scores, quantile) if scores.size else 0.0
    above = np.where(np.isnan(scores), np.nan, scores > cut)
    return _of_moments(above, mask, _ratio_of_groups, (0, math.inf))


def disagreement(table: Mapping[str, Mapping[str, object]], columns: Iterable[str]) -> float:
    """The share of the rows (row -> column -> what it says) in which these columns differ."""
    columns = list(columns)
    return sum(len({row[column] for column in columns}) > 1 for row in table.values()) / len(table)


def contradictions(table: Mapping[str, Mapping[str, object]], columns: Iterable[str]) -> float:
    """Of the pairs of these columns that both decide a row, the share that decide it oppositely.

    Nan where none do. Any other verdict than 'supported' and 'refuted' decides nothing.
    """
    columns = list(columns)
    pairs = [
        (row[one], row[other]) for row in table.values() for one, other in combinations(columns, 2)
    ]
    decided = [pair for pair in pairs if OPPOSITE.issuperset(pair)]
    return sum(one != other for one, other in decided) / len(decided) if decided else math.nan


def _images_with_numbers(scores: Array, mask: Array) -> tuple[np.ndarray, np.ndarray]:
    """Both of the images that have a number."""
    scores, mask = to_numpy(scores), to_numpy(mask)
    kept = ~np.isnan(scores).all(axis=1)
    return scores[kept], mask[kept]


def _within(value: float, reach: np.ndarray, limits: Limits, n_counted: int) -> np.ndarray:
    """The ends of the interval of `jackknife` between limits, with its `reach` to either side."""
    lowest, width = limits[0], limits[1] - limits[0]
    if value < lowest - 1e-6 or value > limits[1] + 1e-6:
        raise ValueError(f"a value of {value:.6g} outside {limits}")
    if math.isinf(width):
        if value <= lowest:
            return np.array(NO_INTERVAL)
        with np.errstate(over="ignore"):
            ends = lowest + (value - lowest) * np.exp(reach / (value - lowest))
        return ends if np.isfinite(ends).all() else np.array(NO_INTERVAL)
    part = float(np.clip((value - lowest) / width, 0, 1))
    slope = part * (1 - part) * width
    if slope < AT_LIMIT * width:
        return lowest + width * np.array(_share_interval(round(part) * n_counted, n_counted))
    return lowest + width * expit(logit(part) + reach / slope)


def _answers(values: Array, what: str) -> Bool[np.ndarray, " image"]:
    """What is true or false of each image."""
    values = to_numpy(values)
    if values.dtype != bool or values.ndim != 1:
        raise ValueError(f"{what} needs true or false for each image, not {values.dtype}")
    return values


def _weights(n: int, resamples: int, seed: int) -> np.ndarray:
    """How often each of n images is drawn in each resample: (resample, image)."""
    if resamples < 2:  # the interval of one has no width
        raise ValueError(f"{resamples} resamples")
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)


def _weights_in_groups(groups: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """As `_weights`, where whole groups are drawn first, and images within each that was drawn."""
    rng = np.random.default_rng(seed)
    _, group = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group)
    times = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=resamples)
    weights = np.zeros((resamples, len(group)), dtype=np.int64)
    for own, size in enumerate(sizes):
        weights[:, group == own] = rng.multinomial(times[:, own] * size, np.full(size, 1 / size))
    return weights


def _step(answers: np.ndarray, unit: float) -> float | None:
    """What the mean of (image,) answers moves by when one image counts otherwise, or None."""
    for repetitions in range(1, REPETITIONS + 1) if answers.any() else ():
        counts = answers * repetitions
        if np.abs(counts - counts.round()).max() < 1e-5:
            return unit / repetitions / len(answers)
    return None


def _mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Of the mean of (image,) values: Student's t through the inverse of Hall's monotone cubic."""
    n, mean = len(values), values.mean()
    if n < FEWEST:
        return NO_INTERVAL
    spread = values.std(ddof=1)
    if spread <= 1e-12 * np.abs(values).max():
        return float(mean), float(mean)
    skewness = ((values - mean) ** 3).mean() / spread**3
    quantile = stdtrit(n - 1, (1 + LEVEL) / 2) / np.sqrt(n)
    ends = np.array([quantile, -quantile])
    if abs(skewness) > 1e-6:  # else the cubic is a line
        ends = (np.cbrt(1 + skewness * (ends - skewness / (6 * n))) - 1) * 3 / skewness
    low, high = mean - spread * ends
    return float(low), float(high)


def _of_alike(value: float, n: int, limits: Limits) -> tuple[float, float]:
    """Of the mean of what is the same on n images but could have varied between the limits."""
    others = _share_interval(0, n)[1]
    return value - others * (value - limits[0]), value + others * (limits[1] - value)


def _share_interval(k: int, n: int) -> tuple[float, float]:
    """Wilson's score interval of k of n (Wilson 1927); a bootstrap of 0 of n has no width."""
    if n < FEWEST:
        return NO_INTERVAL
    interval = scipy.stats.binomtest(int(k), int(n)).proportion_ci(LEVEL, method="wilson")
    return float(interval.low), float(interval.high)


def _answers_interval(answers: np.ndarray, signed: bool) -> tuple[float, float]:
    """Of the mean of (image,) answers from 0 to 1, or of changes of them from -1 to 1.

    In parts of a few repetitions or whole. Whole answers are a share. Else it is Wald's interval
    with made-up images at both limits: one at each for changes (Bonett & Price 2012), half of z^2
    at each for answers (Agresti & Coull 1998).
    """
    n, z = len(answers), ndtri((1 + LEVEL) / 2)
    if n < FEWEST:
        return NO_INTERVAL
    if not signed and np.isin(answers, (0, 1)).all():
        return _share_interval(int(answers.sum()), n)
    added = 1.0 if signed else z**2 / 2  # at each limit
    mean = (answers.sum() + (0 if signed else added)) / (n + 2 * added)
    squares = ((answers**2).sum() + (2 if signed else added)) / (n + 2 * added)
    reach = z * np.sqrt((squares - mean**2) / (n + 2 * added))
    return float(mean - reach), float(mean + reach)


def _percentiles(value: float, draws: np.ndarray, n: int) -> Estimate:
    """The interval of draws: as far out as Student's t of n images says."""
    if np.isnan(value):
        return NONE
    if n < FEWEST:
        return Estimate(float(value), math.nan, math.nan, n)
    quantile = stdtrit(n - 1, (1 + LEVEL) / 2) * np.sqrt(n / (n - 1))
    ends = np.nanquantile(draws, ndtr([-quantile, quantile]))
    return Estimate(float(value), *(ends.tolist() if np.isfinite(ends).all() else NO_INTERVAL), n)


def _groups(scores: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which patches are in the mask and which are not, of those with a score."""
    return mask & ~np.isnan(scores), ~mask & ~np.isnan(scores)


def _fewer(positive: np.ndarray, negative: np.ndarray) -> int:
    """The number of images in which the rarer of the two groups is found."""
    return int(min(group.any(axis=1).sum() for group in (positive, negative)))


def _wins(
    scores: np.ndarray, positive: np.ndarray, negative: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs that an image's positive and negative patches win (2, image), and all pairs of them."""
    p, q = (np.sort(scores[group]) for group in (positive, negative))
    below, above = (
        (np.searchsorted(x, scores) + np.searchsorted(x, scores, side="right")) / 2 for x in (q, p)
    )
    wins = np.stack([(below * positive).sum(axis=1), ((len(p) - above) * negative).sum(axis=1)])
    return wins, np.stack([positive.sum(axis=1) * len(q), negative.sum(axis=1) * len(p)])


def _auc_interval(
    wins: np.ndarray,
    pairs: np.ndarray,
    own_wins: np.ndarray,
    own_pairs: np.ndarray,
    n_counted: int,
) -> Estimate:
    """From `_wins`, and those of each image's patches with each other, else taken away twice."""
    without = _divided(
        wins[0].sum() - wins.sum(axis=0) + own_wins, pairs[0].sum() - pairs.sum(axis=0) + own_pairs
    )
    return jackknife(wins[0].sum() / pairs[0].sum(), without, (0, 1), n_counted=n_counted)


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return a / b


def _moments(values: np.ndarray) -> np.ndarray:
    """Count, sum and sum of squares over the last axis, without nan: (..., 3)."""
    parts = ~np.isnan(values), values, values**2
    return np.stack([np.nansum(part, axis=-1) for part in parts], axis=-1)


def _of_moments(
    scores: np.ndarray,
    mask: np.ndarray,
    statistic: Callable,
    limits: Limits | None = None,
) -> Estimate:
    """Estimate of a `statistic` of the moments (..., 3) of both groups."""
    groups = [_moments(np.where(group, scores, np.nan)) for group in (mask, ~mask)]
    value = statistic(*(moments.sum(axis=0, keepdims=True) for moments in groups)).item()
    if np.isnan(value):
        return NONE
    without = statistic(*(moments.sum(axis=0) - moments for moments in groups))
    return jackknife(value, without, limits, n_counted=_fewer(*_groups(scores, mask)))


def _standardised_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cohen's d of groups given by their moments (..., 3)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = sum(np.maximum(m[..., 2] - m[..., 1] ** 2 / m[..., 0], 0) for m in (a, b))
        pooled = np.sqrt(squares / (a[..., 0] + b[..., 0] - 2))
        return _finite_or_nan((a[..., 1] / a[..., 0] - b[..., 1] / b[..., 0]) / pooled)


def _ratio_of_groups(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The mean of one group over that of the other, given by their moments (..., 3)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return _finite_or_nan((a[..., 1] / a[..., 0]) / (b[..., 1] / b[..., 0]))


def _finite_or_nan(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, np.nan)
