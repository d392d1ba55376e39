#!/usr/bin/env python3
"""How often the intervals of helpers.measures cover the truth: simulated images, fixed seeds.

`make intervals` writes book/intervals.json and book/intervals-awkward.json.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr
from scipy.stats import skew

from helpers.measures import stats
from helpers.measures.answers import macro_scores
from helpers.measures.norms import norm_ratio
from helpers.measures.similarity import (
    cka_difference,
    cka_over_images,
    gram_shares_over_images,
    rank_share,
)
from helpers.measures.stats import Estimate, bootstrap, over_images

SIZES = (80, 1000)
# What covers more, up to this: few whole answers change, groups are chosen for being extreme, most
# values are at a limit.
CAUTIOUS = {
    "change of answers: 2 % up, 2 % down": 100,
    "change of answers: 10 % of the images by one of 3 draws": 100,
    "mean: an IoU, 0 on four images in five": 98,
    "share in the Gram matrix": 98,
    "largest spread of three means: one unit": 99,
}
PATCHES = 12
PATCHES_OF_VIT = (0, 196)


class Case(NamedTuple):
    """One estimator on one kind of image."""

    name: str
    simulate: Callable[[Generator, int], Estimate]  # the estimate of n images
    truth: float | None = None  # None: the mean of all simulated estimates, where no formula is
    repetitions: tuple[int, int] = (4000, 4000)  # with 80 and with 1,000 images


# ---- Simulated images


def changes(up: float, down: float, draws: int = 1) -> Callable:
    """The change of an accuracy in %, the mean of a few draws: images gain or lose one of them."""
    chances = [up, 1 - up - down, down]
    return lambda rng, n: over_images(
        100 * rng.choice([1, 0, -1], n, p=chances) / draws, (-100, 100)
    )


def accuracy(rng: Generator, n: int) -> Estimate:
    """In %, the mean of five draws; 70 on average over images that are unlike."""
    return over_images(100 * rng.binomial(5, rng.beta(3.5, 1.5, n)) / 5, (0, 100))


def mostly_zero(rng: Generator, n: int) -> Estimate:
    return over_images(rng.random(n) * (rng.random(n) < 0.2), (0, 1))


def of_masked(estimator: Callable, n_masked: int | None = None, matched: bool = False) -> Callable:
    """One or two patches in the mask of `n_masked` images (None: of all) score a unit higher, half
    a unit more or less together in each image; where `matched`, each at either of two positions."""

    def simulate(rng: Generator, n: int) -> Estimate:
        mask = np.zeros((n, PATCHES), dtype=bool)
        mask[:, 0], mask[:, 1] = True, rng.random(n) < 0.5
        mask[n if n_masked is None else n_masked :] = False
        if matched:
            mask[:, :2] = np.where((rng.random(n) < 0.5)[:, None], mask[:, 1::-1], mask[:, :2])
        scores = rng.normal(size=(n, PATCHES)) + mask * (1 + 0.5 * rng.normal(size=(n, 1)))
        return estimator(scores, mask)

    return simulate


def at_usual_positions(rng: Generator, n: int) -> Estimate:
    """Outliers, none to four an image, three in four of them at the usual positions."""
    counts = rng.integers(0, 5, n)
    usual = rng.binomial(counts, rng.beta(3, 1, n))[:, None]
    others, places = counts[:, None] - usual, np.arange(8)
    return stats.share_at(np.where(places < 4, places < usual, places - 4 < others), range(4))


def representations(rng: Generator, n: int) -> list[np.ndarray]:
    """Three of eight features an image: the first two with four in common, the last with two of
    these."""
    common = rng.normal(size=(n, 4))
    return [np.hstack([common[:, :k], rng.normal(size=(n, 8 - k))]) for k in (4, 4, 2)]


def cka(debiased: bool) -> Callable:
    return lambda rng, n: cka_over_images(*representations(rng, n)[:2], debiased=debiased)


def difference_of_cka(rng: Generator, n: int) -> Estimate:
    x, y, z = representations(rng, n)
    return cka_difference((x, y), (x, z))


def share_of_gram(rng: Generator, n: int) -> Estimate:
    return gram_shares_over_images(np.stack(representations(rng, n)[:2], axis=1))[0][0]


def macro(name: str) -> Callable:
    """Of five classes, the rarest of which one image in ten has; seven in ten are right, the others
    given a class at random."""
    chances = [0.3, 0.25, 0.2, 0.15, 0.1]

    def simulate(rng: Generator, n: int) -> Estimate:
        labels, others = rng.choice(5, (2, n), p=chances)
        return macro_scores(np.where(rng.random(n) < 0.7, labels, others), labels)[name]

    return simulate


def ratio_of_means(rng: Generator, n: int) -> Estimate:
    return bootstrap(rng.lognormal(0, 0.5, (n, 2)), stats.ratio_of_means)


def ratio_of_norms(rng: Generator, n: int) -> Estimate:
    return bootstrap(rng.lognormal(0, 0.3, (n, 49)), norm_ratio, 200)


def spread(gap: float) -> Callable:
    return lambda rng, n: stats.bootstrap_spread(
        [rng.normal(gap * (i == 2), 1, n) for i in range(3)]
    )[0]


FEWER, SOME = (4000, 1000), (1000, 400)  # SOME where an estimate takes a thousand resamples
HIGHER = float(ndtr(1 / 1.5))  # P(a patch in the mask scores higher than one that is not)
ROOT_E = float(np.exp(0.5))
auc, matched_auc = stats.auc_over_images, stats.matched_auc_over_images
cohens_d, enrichment = stats.cohens_d_over_images, stats.enrichment_over_images
CASES = (
    Case("share: 5 %", lambda rng, n: stats.share(rng.random(n) < 0.05), 0.05),
    Case("share: 30 %", lambda rng, n: stats.share(rng.random(n) < 0.3), 0.3),
    Case("change of answers: 8 % up, 5 % down", changes(0.08, 0.05), 3.0),
    Case("change of answers: 2 % up, 2 % down", changes(0.02, 0.02), 0.0),
    Case("accuracy: mean of 5 draws", accuracy, 70.0),
    Case("change of answers: 10 % of the images by one of 3 draws", changes(0.05, 0.05, 3), 0.0),
    Case("mean: normal", lambda rng, n: over_images(rng.normal(size=n)), 0.0),
    Case("mean: exponential", lambda rng, n: over_images(rng.exponential(size=n)), 1.0),
    Case("mean: lognormal", lambda rng, n: over_images(rng.lognormal(size=n)), ROOT_E),
    Case("mean: an IoU, 0 on four images in five", mostly_zero, 0.1),
    Case("AUC: outliers in 5 images", of_masked(auc, 5), HIGHER),
    Case("AUC: outliers in 9 images", of_masked(auc, 9), HIGHER),
    Case("AUC: outliers in all images", of_masked(auc), HIGHER, FEWER),
    Case("matched AUC: outliers in 9 images", of_masked(matched_auc, 9, True), HIGHER),
    Case("matched AUC: outliers in all images", of_masked(matched_auc, None, True), HIGHER, FEWER),
    Case("Cohen's d: outliers in 9 images", of_masked(cohens_d, 9)),
    Case("Cohen's d: outliers in all images", of_masked(cohens_d)),
    Case("enrichment: outliers in 9 images", of_masked(enrichment, 9)),
    Case("enrichment: outliers in all images", of_masked(enrichment)),
    Case("share at positions", at_usual_positions, 0.75),
    Case("plain CKA", cka(debiased=False)),
    Case("debiased CKA", cka(debiased=True), 0.5),
    Case("difference of two CKA", difference_of_cka),
    Case("share in the Gram matrix", share_of_gram),
    Case("effective rank", lambda rng, n: rank_share(rng.normal(size=(n, 8)) * range(1, 9))),
    Case("macro F1", macro("macro_f1")),
    Case("macro precision", macro("macro_precision")),
    Case("macro recall", macro("macro_recall")),
    Case("ratio of means", ratio_of_means, 1.0, SOME),
    Case("median", lambda rng, n: bootstrap(rng.lognormal(size=n), np.median), 1.0, SOME),
    Case("standard deviation", lambda rng, n: bootstrap(rng.normal(size=n), np.std), None, SOME),
    Case("norm ratio", ratio_of_norms, None, (1000, 600)),
    Case("largest spread of three means: none", spread(0.0), 0.0, SOME),
    Case("largest spread of three means: one unit", spread(1.0), 1.0, SOME),
)  # fmt: skip


# ---- Data for which none of the intervals is made: shown, and held to nothing


def spikes(chance: float, limits: tuple[int, int] | None = None, kind: type = int) -> Callable:
    """A number an image that is 0, and 4 on a few images: a count, or a measured number."""
    return lambda rng, n: over_images((4 * (rng.random(n) < chance)).astype(kind), limits)


def heavy(rng: Generator, n: int) -> np.ndarray:
    return rng.lognormal(0, 2, n)


def tailed(shown: bool) -> Callable:
    """The mean of heavy samples whose skewness shows their tail, or does not: where it is that of
    fewer than four images which alone differ from the rest."""

    def simulate(rng: Generator, n: int) -> Estimate:
        while (n < 4 * skew(x := heavy(rng, n)) ** 2) != shown:
            pass
        return over_images(x)

    return simulate


def trainings(apart: float) -> Callable:
    """Three trainings whose true values have this spread, measured on the same images."""
    return lambda rng, n: stats.over_seeds(
        [over_images(x) for x in rng.normal(0, apart, (3, 1)) + rng.normal(size=n)]
    )


AWKWARD = (  # and how many images
    (Case("0, but 4 on 1 % of the images: a measured number", spikes(0.01, None, float), 0.04), 80),
    (Case("0, but 4 on 1 % of the images: a count", spikes(0.01), 0.04), 80),
    (Case("the same: a count of 196 patches", spikes(0.01, PATCHES_OF_VIT), 0.04), 80),
    (Case("0, but 4 on 2 % of the images: a count", spikes(0.02), 0.08), 100),
    (Case("the same: a count of 196 patches", spikes(0.02, PATCHES_OF_VIT), 0.08), 100),
    (Case("lognormal, s = 2", lambda rng, n: over_images(heavy(rng, n)), float(np.exp(2))), 30),
    (Case("the same: samples that show the tail", tailed(True), float(np.exp(2))), 30),
    (Case("the same: samples that do not", tailed(False), float(np.exp(2))), 30),
    (Case("Pareto, tail 1.5", lambda rng, n: over_images(rng.pareto(1.5, n)), 2.0), 80),
    (Case("lognormal, s = 1", lambda rng, n: over_images(rng.lognormal(size=n)), ROOT_E), 5),
    (Case("normal", lambda rng, n: over_images(rng.normal(size=n)), 0.0), 5),
    (Case("uniform", lambda rng, n: over_images(rng.random(n)), 0.5), 30),
    (Case("three trainings that differ as images do", trainings(1.0), 0.0), 80),
    (Case("three trainings that are alike", trainings(0.0), 0.0), 80),
)


# ---- How often they cover


def covered(case: Case, n: int, repetitions: int, seed: int = 0) -> dict:
    """How often, in %, the interval contains the truth, with the interval of that share; how often
    it has no ends, and how often both ends are the value, as if it were certain."""
    rng = np.random.default_rng([seed, n])
    values, low, high = np.array([case.simulate(rng, n)[:3] for _ in range(repetitions)]).T
    truth = values.mean() if case.truth is None else case.truth
    missing, certain = np.isnan(low), low == high
    inside = ((low <= truth) & (truth <= high))[~missing]
    row = {"case": case.name, "n": n, "repetitions": repetitions}
    shares = zip(("covered", "low", "high"), stats.share(inside)[:3], strict=True)
    row |= {name: round(100 * part, 2) for name, part in shares}
    row["without_interval"] = round(100 * float(missing.mean()), 2)
    return row | {"without_width": round(100 * float(certain.mean()), 2)}


def main(folder: str) -> None:
    asked = {
        "intervals-awkward": [(case, n, 4000) for case, n in AWKWARD],
        "intervals": [
            (case, *s) for case in CASES for s in zip(SIZES, case.repetitions, strict=True)
        ],
    }
    for name, sizes in asked.items():
        lines = []
        for size in sizes:
            row = covered(*size)
            print("{case}, n = {n}: {covered} % of {repetitions}".format(**row), flush=True)
            lines.append(json.dumps(row, ensure_ascii=False))
        Path(folder, f"{name}.json").write_text("[" + ",\n ".join(lines) + "]\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
