"""Classification from one image a class, learnt from a full output and tested on its parts.

As in decoupling, section 3.3.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from helpers.measures.probes import fit_classifier
from helpers.measures.stats import Estimate, over_images

# Training and test images, one of each class.
Draw = tuple[Int[np.ndarray, " class"], Int[np.ndarray, " class"]]
DECIMALS = 6  # of a score: those that differ by less are equal


def one_shot_images(labels: Int[np.ndarray, " image"], draws: int) -> Int[np.ndarray, " chosen"]:
    """The images for so many draws, class by class: the first of each, one more than `draws`.

    A class with one image has none.

    Raises:
        ValueError: all classes have one image.
    """
    classes = [own for own in _by_class(labels) if len(own) > 1]
    if not classes:
        raise ValueError(
            "no class has two images, one to learn from and one to test; give more images"
        )
    return np.concatenate([own[: draws + 1] for own in classes])


def one_shot_draws(labels: Int[np.ndarray, " image"], draws: int) -> list[Draw]:
    """Draws of one training and one other test image of each class.

    At most `draws`, and at most as many as the smallest class has images. No image is used twice on
    either side: a class with two images allows two draws, and either is the training image once.
    """
    classes = _by_class(labels)
    count = min(draws, *map(len, classes))
    sides = [np.array([own[i % len(own)] for own in classes]) for i in range(count + 1)]
    return list(pairwise(sides))


def one_shot_ranks(
    full: Float[Tensor, "image width"],
    parts: Mapping[str, Float[Tensor, "image width"]],
    renormalised: Mapping[str, Float[Tensor, "image width"]],
    draws: Sequence[Draw],
    device: Any = None,
) -> dict[tuple[str, str], Int[Tensor, "draw class"]]:
    """How many classes beat the true one, for each part and reading of it.

    Args:
        full: from which the classifiers learn.
        parts: what is tested beside it; those that are zero in all images are left out.
        renormalised: the same parts where the weights of their tokens sum to one.
        draws: as `one_shot_draws` gives them.
        device: where the logistic regressions are fitted: of a thousand classes one takes seconds
            on a GPU, minutes elsewhere.

    Returns:
        (part, reading) -> ranks in each draw; the full output is the part 'full'. The readings are
        '': cosine to the full output of each class's training image; 'logistic': logistic
        regression on these; 'centred': cosine without the mean of the training images, of the full
        outputs and of the part; and of a part 'renormalised': cosine, where its weights sum to one;
        'own': cosine, the classifier learns from the part itself.
    """
    ranks = {}
    for train, test in draws:
        shared = _by_cosine(full[train])
        logistic = fit_classifier(full[train], torch.arange(len(train)), device=device)
        centred = _by_cosine(full[train] - full[train].mean(0))
        for kind, x in {"full": full, **parts}.items():
            if not x.any():
                continue
            scores = {
                "": shared(x[test]),
                "logistic": logistic(x[test]),
                "centred": centred(x[test] - x[train].mean(0)),
            }
            if kind != "full":
                scores["renormalised"] = shared(renormalised[kind][test])
                scores["own"] = _by_cosine(x[train])(x[test])
            for reading, values in scores.items():
                ranks.setdefault((kind, reading), []).append(beaten_by(values))
    return {key: torch.stack(own) for key, own in ranks.items()}


def beaten_by(scores: Float[Tensor, "class class"]) -> Int[Tensor, " class"]:
    """How many classes have a higher score than the true one; that of row i is i."""
    scores = scores.round(decimals=DECIMALS)
    return (scores > scores.diagonal()[:, None]).sum(1)


def one_shot_accuracy(
    ranks: Mapping[tuple[str, str], Int[Tensor, "draw class"]], best: int
) -> dict[str, Estimate]:
    """The share of test images whose class is among the `best` answers, and what a part loses.

    In %, and in points, paired.

    Returns:
        'PART_top5_READING' (without the last '_' for ''), and for parts 'PART_gap_READING', but for
        'own': accuracy of the full output minus that of the part. 'renormalised' has no full output
        of its own and is compared with ''. The intervals are over classes, after the mean over
        draws.
    """
    right = {key: 100 * (x < best).double().mean(0) for key, x in ranks.items()}
    estimates = {}
    for (kind, reading), x in right.items():
        end = f"_{reading}" if reading else ""
        estimates[f"{kind}_top5{end}"] = over_images(x, (0, 100))
        if kind != "full" and reading != "own":
            full = right.get(("full", reading), right["full", ""])
            estimates[f"{kind}_gap{end}"] = over_images(full - x, (-100, 100))
    return estimates


def _by_class(labels: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _by_cosine(train: Tensor) -> Callable[[Tensor], Tensor]:
    """Scores by the cosine to each training image."""
    train = F.normalize(train, dim=1)
    return lambda x: F.normalize(x, dim=1) @ train.T
