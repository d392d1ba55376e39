"""Answers, right or wrong on each image: of probes, how they change, and one-shot accuracy."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are imported where they are first needed
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from helpers.measures._arrays import Answers, Array, ImageMask, Labels, PerImage, Vectors, to_numpy
from helpers.measures.probes import fit_classifier
from helpers.measures.stats import (
    Estimate,
    Estimates,
    jackknife,
    macro_auc,
    mcnemar,
    over_images,
    share,
)

DRAW = "random_"  # what the name of a draw begins with
SIGNIFICANT = 0.05  # a p-value below it
WHOLE = 0.02  # images by which an accuracy of four digits may miss a whole number of a few hundred


class Recount(NamedTuple):
    """Two accuracies on the same images, in images.

    Attributes:
        before, after: right answers.
        net: their difference.
        unpaired_p: Fisher's exact test, as if the images were not the same.
        best_p: McNemar's exact test if no answer changed in the other direction.
        most_changed: the largest number of changed answers with which the net change is
            significant; None if it never is.
    """

    before: int
    after: int
    net: int
    unpaired_p: float
    best_p: float
    most_changed: int | None


def probe_answers(
    train: Float[Tensor, "training_image width"],
    train_labels: Int[Array, " training_image"],
    tokens: Vectors,
    labels: Labels,
    **options: Any,
) -> ImageMask:
    """Whether a probe fitted to the training tokens is right on each image (`fit_classifier`)."""
    probe = fit_classifier(train, train_labels, **options)
    return probe(tokens).argmax(-1) == torch.as_tensor(labels)


def points(after: Answers, before: Answers) -> Estimate:
    """The share of right answers after minus that before, in points, paired over images."""
    change = to_numpy(after).astype(np.float64) - to_numpy(before)
    return over_images(100 * change, (-100, 100))


def paired_accuracy(after: Answers, before: Answers, unit: float = 1) -> Estimates:
    """The accuracies before and after a change of the model, in `unit`, paired over images.

    accuracy_baseline, accuracy_moved, accuracy_change (`points`); lost and gained, the images whose
    answer becomes wrong or right; mcnemar_p, the exact p-value.
    """
    p_value, (a, b) = mcnemar(after, before), map(to_numpy, (after, before))
    return {
        "accuracy_baseline": over_images(unit * b.astype(np.float64), (0, unit)),
        "accuracy_moved": over_images(unit * a.astype(np.float64), (0, unit)),
        "accuracy_change": points(a, b),
        "lost": int((b & ~a).sum()),
        "gained": int((a & ~b).sum()),
        "mcnemar_p": p_value,
    }


def readout_changes(right: Mapping[str, ImageMask], before: ImageMask) -> dict[str, Any]:
    """Of probes on a changed model's feature and on its registers "accuracy" and "registers", in %,
    and "change" and "registers_change", in points against `before`.
    """
    feature, registers = right["feature"], right["registers"]
    return {
        "accuracy": 100.0 * feature,
        "registers": 100.0 * registers,
        "change": points(feature, before),
        "registers_change": points(registers, before),
    }


def answer_changes(right: Mapping[str, PerImage]) -> dict[str, PerImage]:
    """Accuracy in %, and in points against "plain", paired over images.

    `right` is 100 where the class is named, else 0; a condition may have the first of the images
    alone. "accuracy_base"; 'accuracy_CONDITION', 'accuracy_change_CONDITION'. Draws of random
    neurons, 'random_I', are one, their mean; then also "random_minus_zeroed".
    """
    draws = [own for name, own in right.items() if name.startswith(DRAW)]
    after = {x: own for x, own in right.items() if x != "plain" and not x.startswith(DRAW)}
    if draws:
        after["random"] = torch.stack(draws).mean(0)
    found = {"accuracy_base": right["plain"]}
    for name, own in after.items():
        found[f"accuracy_{name}"] = own
        found[f"accuracy_change_{name}"] = own - right["plain"][: len(own)]
    if draws:
        found["random_minus_zeroed"] = after["random"] - after["zeroed"]
    return found


def moved_changes(
    first: Mapping[str, Float[Tensor, "_ class"]],
    after: Float[Tensor, "image class"],
    labels: Labels,
    names: Mapping[str, str],
) -> Estimates:
    """What moving neurons does to the answers, by a classifier of its own and by the first one.

    `first` are logits of the classifier of the unchanged model, under "plain", "moved" and "empty
    token", and for what has a name; `after` those of one for moved neurons. `paired_accuracy`;
    over_token_change, its change from the empty token; carried_change, that of the first classifier
    under "moved"; NAME_change and mcnemar_p_NAME of `names`, on the images that these saw; and
    `class_scores`, with "_baseline" and "_moved".
    """
    right = {name: _is_right(scores, labels) for name, scores in first.items()}
    before, token, moved = right["plain"], right["empty token"], _is_right(after, labels)
    found = {
        **paired_accuracy(moved, before),
        "over_token_change": points(moved[: len(token)], token),
        "carried_change": points(right["moved"], before),
    }
    for condition, name in names.items():
        pair = right[condition], before[: len(right[condition])]
        found |= {f"{name}_change": points(*pair), f"mcnemar_p_{name}": mcnemar(*pair)}
    for end, scores in {"_baseline": first["plain"], "_moved": after}.items():
        found |= {name + end: x for name, x in class_scores(scores, labels).items()}
    return found


def _is_right(scores: Float[Tensor, "_ class"], labels: Labels) -> Bool[Tensor, " _"]:
    """Of the first images."""
    return scores.argmax(-1) == torch.as_tensor(labels[: len(scores)])


def class_scores(scores: Float[Array, "image class"], labels: Labels) -> Estimates:
    """How well logits tell the classes apart: top3, the share of images whose class is among the
    three highest; `macro_scores` of the highest; macro_auc (`stats.macro_auc`) of the softmax.
    """
    scores, labels = torch.as_tensor(scores).double(), to_numpy(labels)
    best = to_numpy(scores.argsort(dim=1, descending=True, stable=True))
    return {
        "top3": share((best[:, :3] == labels[:, None]).any(axis=1)),
        **macro_scores(best[:, 0], labels),
        "macro_auc": macro_auc(scores.softmax(-1), labels),
    }


def macro_scores(given: Labels, labels: Labels) -> Estimates:
    """F1, precision and recall, means over the classes that images have or were given.

    A class without an image, or given to none, counts 0. Intervals are by `jackknife`.
    """
    both = np.concatenate([to_numpy(labels), to_numpy(given)])
    classes, codes = np.unique(both, return_inverse=True)
    # All images of a pair of class and answer change the counts alike.
    pairs, index = np.unique(codes.reshape(2, -1), axis=1, return_inverse=True)
    index = index.ravel()
    have, answered = np.eye(len(classes), dtype=int)[pairs]
    moved = np.stack([have, answered, have * answered])  # by class
    counts = (moved * np.bincount(index)[:, None]).sum(axis=1, keepdims=True)
    whole, without = _macro(counts), _macro(counts - moved)
    return {
        name: jackknife(float(value[0]), without[name][index], (0, 1))
        for name, value in whole.items()
    }


def _macro(counts: Int[np.ndarray, "3 row class"]) -> dict[str, Float[np.ndarray, " row"]]:
    """The means over classes of how many images have each, were given it, and rightly so."""
    have, given, right = counts
    there = np.maximum((have + given > 0).sum(axis=1), 1)
    parts = {
        "macro_f1": (2 * right, have + given),
        "macro_precision": (right, given),
        "macro_recall": (right, have),
    }
    return {
        name: (part / np.maximum(whole, 1)).sum(axis=1) / there
        for name, (part, whole) in parts.items()
    }


def recounted(before: float, after: float, n: int) -> Recount:
    """What two published accuracies (0 to 1) on the same `n` images can say of a change."""
    for accuracy in (before, after):
        if not 0 <= accuracy <= 1 or abs(accuracy * n - round(accuracy * n)) >= WHOLE:
            raise ValueError(f"an accuracy of {accuracy} is not a whole number of {n} images")
    right = round(before * n), round(after * n)
    net = right[1] - right[0]
    most_back = min(*right, n - right[0], n - right[1])  # changed answers against the net change
    back = list(
        takewhile(lambda other: _sign_p(other, abs(net)) < SIGNIFICANT, range(most_back + 1))
    )
    return Recount(
        *right,
        net,
        float(scipy.stats.fisher_exact([[k, n - k] for k in right]).pvalue),
        _sign_p(0, abs(net)),
        abs(net) + 2 * back[-1] if back else None,
    )


def recount_table(rows: Iterable[Mapping[str, Any]], sizes: Mapping[str, int]) -> str:
    """`recounted` for each pair of a paper's accuracies, as text.

    `rows` have 'where' ('TABLE, DATA SET'), 'model', 'name' (accuracy_baseline or accuracy_moved)
    and 'value' (0 to 1); `sizes` are the numbers of test images.
    """
    pairs: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        pairs.setdefault((row["where"], row["model"]), {})[row["name"]] = row["value"]
    head = "where               model   images before after  net  unpaired p  best p  most changed"
    lines = [head]
    for (where, model), pair in pairs.items():
        n = sizes[where.split(", ")[1]]
        x = recounted(pair["accuracy_baseline"], pair["accuracy_moved"], n)
        line = f"{where:19} {model:7}{n:7}{x.before:7}{x.after:6}{x.net:+5}"
        lines.append(f"{line}{x.unpaired_p:12.2f}{x.best_p:8.3f}{x.most_changed or 'never':>14}")
    least = least_significant()
    lines.append(f"the smallest net change that can be significant: {least} images")
    return "\n".join(lines)


def least_significant() -> int:
    """The smallest paired change, in images, that can be significant in any number of images."""
    return next(net for net in range(1, 1000) if _sign_p(0, net) < SIGNIFICANT)


def _sign_p(other: int, net: int) -> float:
    """McNemar's p-value of `other` answers changed in one direction, `other + net` in the other."""
    return float(scipy.stats.binomtest(other, 2 * other + net).pvalue) if other + net else 1.0


# Training and test images, one of each class.
Draw = tuple[Int[np.ndarray, " class"], Int[np.ndarray, " class"]]
DECIMALS = 6  # of a score: those that differ by less are equal


def one_shot_images(labels: Int[np.ndarray, " image"], draws: int) -> Int[np.ndarray, " chosen"]:
    """The images for so many draws, class by class: the first of each, one more than `draws`; of a
    class with one image none.
    """
    return np.concatenate([own[: draws + 1] for own in _by_class(labels) if len(own) > 1])


def one_shot_draws(labels: Int[np.ndarray, " image"], draws: int) -> list[Draw]:
    """At most `draws` draws of one training and one other test image of each class.

    No image is used twice on either side: a class with two images allows two draws.
    """
    classes = _by_class(labels)
    count = min(draws, *map(len, classes))
    sides = [np.array([own[i % len(own)] for own in classes]) for i in range(count + 1)]
    return list(pairwise(sides))


def one_shot_ranks(
    full: Vectors,
    parts: Mapping[str, Vectors],
    renormalised: Mapping[str, Vectors],
    draws: Sequence[Draw],
    device: Any = None,
) -> dict[tuple[str, str], Int[Tensor, "draw class"]]:
    """How many classes beat the true one in each draw, for each part and reading (decoupling,
    section 3.3).

    The part 'full' is the full output, from which classifiers learn; parts that are zero in all
    images are left out. The readings are '': cosine to the full output of each class's training
    image; 'logistic': logistic regression on these, fitted on `device`; 'centred': cosine without
    the mean of the training images, of the full outputs and of the part; and of a part
    'renormalised': cosine, where the weights of its tokens sum to one; 'own': cosine, the
    classifier learns from the part itself.
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
) -> dict[str, Float[Tensor, " class"]]:
    """How often the class of a test image is among the `best` answers, 'PART_top5_READING' in %
    (without the last '_' for ''), and what a part loses, 'PART_gap_READING' in points, but for
    'own': full output minus part. Means over draws; 'renormalised' is compared with ''.
    """
    right = {key: 100 * (x < best).double().mean(0) for key, x in ranks.items()}
    found = {}
    for (kind, reading), x in right.items():
        end = f"_{reading}" if reading else ""
        found[f"{kind}_top5{end}"] = x
        if kind != "full" and reading != "own":
            found[f"{kind}_gap{end}"] = right.get(("full", reading), right["full", ""]) - x
    return found


def _by_class(labels: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _by_cosine(train: Tensor) -> Callable[[Tensor], Tensor]:
    """Scores by the cosine to each training image."""
    train = F.normalize(train, dim=1)
    return lambda x: F.normalize(x, dim=1) @ train.T
