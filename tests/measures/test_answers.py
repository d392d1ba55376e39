import numpy as np
import pytest
import torch
from by_hand import BOTH, values, without_each
from scipy.stats import binom, hypergeom
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from helpers.measures.answers import (
    answer_changes,
    beaten_by,
    class_scores,
    least_significant,
    macro_scores,
    moved_changes,
    one_shot_accuracy,
    one_shot_draws,
    one_shot_images,
    one_shot_ranks,
    paired_accuracy,
    points,
    recounted,
)
from helpers.measures.stats import jackknife, over_images, share


def reference(lost, gained):
    """McNemar's exact two-sided p-value from the binomial distribution of the rarer kind."""
    return min(1.0, 2 * binom.cdf(min(lost, gained), lost + gained, 0.5))


def planted(lost, gained, right, wrong):
    """Answers after and before, shuffled, with so many images of each kind."""
    after = np.repeat([False, True, True, False], [lost, gained, right, wrong])
    before = np.repeat([True, False, True, False], [lost, gained, right, wrong])
    order = np.random.default_rng(0).permutation(len(after))
    return after[order], before[order]


@BOTH
def test_paired_accuracy_counts_planted_changes(convert):
    pair = [convert(x) for x in planted(lost=12, gained=3, right=60, wrong=25)]
    paired = paired_accuracy(*pair)
    assert values(paired) == pytest.approx({
        "accuracy_baseline": 0.72, "accuracy_moved": 0.63, "accuracy_change": -9,
        "lost": 12, "gained": 3, "mcnemar_p": reference(12, 3),
    })  # fmt: skip
    assert paired["accuracy_change"] == points(*pair)
    assert paired["accuracy_change"].n == 100 and paired["accuracy_change"].step == pytest.approx(1)


@BOTH
@pytest.mark.parametrize("classes", [2, 3, 8])
def test_class_scores_against_sklearn(convert, classes):
    rng = np.random.default_rng(1)
    labels = np.arange(200) % classes
    scores = rng.normal(0, 2, (200, classes)) + 2 * np.eye(classes)[labels]
    found = class_scores(convert(scores), convert(labels))
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    right = (scores.argsort(1)[:, ::-1][:, :3] == labels[:, None]).any(1)
    assert found["top3"] == share(right)
    assert macro_scores(scores.argmax(1), labels).items() <= found.items()
    one_hot = np.eye(classes)[labels]
    assert found["macro_auc"] == pytest.approx(
        roc_auc_score(one_hot, probabilities, average="macro"), abs=1e-4
    )


def sklearn_macro(given, labels):
    parts = precision_recall_fscore_support(labels, given, average="macro", zero_division=0)[:3]
    return dict(zip(("macro_precision", "macro_recall", "macro_f1"), parts, strict=True))


@BOTH
def test_macro_scores_and_their_intervals_against_sklearn(convert):
    """Classes that no image has, that were given to none, and that one image alone has; each image
    left out in turn."""
    rng = np.random.default_rng(3)
    labels = np.array([0, 0, 1, 5, 7, *rng.integers(0, 3, 35)])
    given = np.where(rng.random(40) < 0.6, labels, rng.choice([0, 1, 2, 9], 40))
    found = macro_scores(convert(given), convert(labels))
    assert values(found) == pytest.approx(sklearn_macro(given, labels))
    for name, x in found.items():
        without = without_each(lambda *pair, name=name: sklearn_macro(*pair)[name], given, labels)
        assert x == pytest.approx(jackknife(x.value, without, (0, 1)))
        assert x.low < x.value < x.high and x.n == 40


def test_macro_scores_without_a_mistake_are_not_certain():
    right = share(np.ones(30, bool))
    for found in macro_scores(np.arange(30) % 3, np.arange(30) % 3).values():
        assert found[:3] == pytest.approx(right[:3])


def hypergeometric_p(a, b, n):
    """Fisher's two-sided p-value: of all tables with these sums, those that are no likelier."""
    chances = hypergeom(2 * n, a + b, n).pmf(np.arange(n + 1))
    return chances[chances <= chances[a] * (1 + 1e-7)].sum()


@pytest.mark.parametrize(
    ("before", "after", "n"),
    [(0.65, 0.6944, 180), (0.7422, 0.7289, 225), (0.8361, 0.8197, 366), (0.5, 0.4, 200)],
)
def test_recounted_against_tables_of_all_pairings(before, after, n):
    found = recounted(before, after, n)
    assert found[:2] == (round(before * n), round(after * n))
    assert found.net == found.after - found.before
    assert found.unpaired_p == pytest.approx(hypergeometric_p(found.before, found.after, n))
    tables = {  # changed answers -> McNemar's p-value, for every table that these accuracies allow
        lost + lost + found.net: reference(lost, lost + found.net)
        for lost in range(n)
        if min(found.before - lost, lost + found.net, n - found.before - lost - found.net) >= 0
    }
    assert found.best_p == pytest.approx(tables[abs(found.net)])
    assert found.best_p == pytest.approx(min(tables.values()))
    assert found.most_changed == max((k for k, p in tables.items() if p < 0.05), default=None)


@pytest.mark.parametrize("pair", [(0.9, 1.0), (1.0, 0.9), (0.0, 0.1), (0.1, 0.0)])
def test_recounted_perfect_accuracy_leaves_no_choice(pair):
    assert recounted(*pair, 100).most_changed == 10  # what was right, or wrong, stays so


def test_least_significant_against_the_binomial():
    assert 2 * binom.pmf(0, 6, 0.5) < 0.05 <= 2 * binom.pmf(0, 5, 0.5) and least_significant() == 6
    assert recounted(0.5, 0.56, 100).most_changed >= 6
    assert recounted(0.5, 0.55, 100).most_changed is None
    assert recounted(0.5, 0.5, 10) == (5, 5, 0, 1, 1, None)


LABELS = np.array([3, 0, 3, 7, 0, 3, 0, 3])  # 7 has one image
CLASSES, COPIES, WIDTH = 12, 3, 16


def test_images_of_classes_with_two_and_no_more_than_are_needed():
    assert one_shot_images(LABELS, 10).tolist() == [1, 4, 6, 0, 2, 5, 7]
    assert one_shot_images(LABELS, 1).tolist() == [1, 4, 0, 2]


@pytest.mark.parametrize(("draws", "count"), [(1, 1), (2, 2), (10, 3)])
def test_draws(draws, count):
    labels = LABELS[LABELS != 7]
    found = one_shot_draws(labels, draws)
    assert len(found) == count
    for sides in zip(*found, strict=True):
        used = np.array(sides)  # (draw, class)
        assert (
            all((labels[row] == [0, 3]).all() for row in used) and len(np.unique(used)) == used.size
        )
    assert all(not set(train) & set(test) for train, test in found)


def test_classes_that_beat_the_true_one():
    scores = torch.tensor([[0.5, 0.9, 0.5], [0.1, 0.2, 0.3], [0.0, 0.7 + 4e-7, 0.7]])
    assert beaten_by(scores).tolist() == [1, 1, 0]  # equal but for rounding: not beaten
    assert beaten_by(torch.tensor([[0.5, 0.500004], [0.1, 0.2]])).tolist() == [1, 0]


def planted_of_one_shot():
    """Registers carry the class, patches are the same for all classes but for noise, [CLS] adds
    nothing."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), COPIES)
    registers = rng.normal(size=(CLASSES, WIDTH))[labels] + 0.05 * rng.normal(
        size=(len(labels), WIDTH)
    )
    patches = 0.05 * rng.normal(size=(len(labels), WIDTH))
    parts = {
        "patch": torch.from_numpy(patches).float(),
        "register": torch.from_numpy(registers).float(),
    }
    return parts["patch"] + parts["register"], parts, one_shot_draws(labels, 10)


def test_the_part_that_carries_the_class_loses_nothing():
    full, parts, draws = planted_of_one_shot()
    found = one_shot_accuracy(one_shot_ranks(full, parts, parts, draws), best=1)
    for reading in ("", "_logistic", "_centred"):
        assert (found[f"full_top5{reading}"] == 100).all()
        assert (found[f"register_top5{reading}"] == 100).all()
        assert (found[f"register_gap{reading}"] == 0).all()
        assert over_images(found[f"patch_gap{reading}"], (-100, 100)).low > 40
    assert (found["register_top5_own"] == 100).all() and found["patch_top5_own"].mean() < 50
    assert not {"full_top5_own", "full_top5_renormalised", "patch_gap_own"} & found.keys()


def test_readings_against_sklearn():
    """What is right by each reading: nearest training image by cosine, and logistic regression on
    standardised features."""
    full, parts, draws = planted_of_one_shot()
    rng = np.random.default_rng(1)
    parts["patch"] = full + torch.from_numpy(2 * rng.normal(size=full.shape)).float()
    alone = {
        "patch": full + torch.from_numpy(1.5 * rng.normal(size=full.shape)).float(),
        "register": parts["register"],
    }
    ranks = one_shot_ranks(full, parts, alone, draws)
    classes = np.arange(CLASSES)
    for i, (train, test) in enumerate(draws):
        x, part = full.numpy(), parts["patch"].numpy()

        def nearest(learnt, tested):
            return (
                KNeighborsClassifier(1, metric="cosine").fit(learnt, classes).predict(tested)
                == classes
            )

        expected = {
            "": nearest(x[train], part[test]),
            "centred": nearest(x[train] - x[train].mean(0), part[test] - part[train].mean(0)),
            "renormalised": nearest(x[train], alone["patch"].numpy()[test]),
            "own": nearest(part[train], part[test]),
        }
        for reading, right in expected.items():
            assert 0 < right.sum() < CLASSES  # else nothing is tested
            assert (ranks["patch", reading][i] == 0).tolist() == right.tolist()
        scaler = StandardScaler().fit(x[train])
        logistic = LogisticRegression(max_iter=1000).fit(scaler.transform(x[train]), classes)
        answers = logistic.predict(scaler.transform(part[test])) == classes
        assert (
            (ranks["patch", "logistic"][i] == 0).numpy() == answers
        ).mean() > 0.8  # of another strength of decay


def test_accuracy_and_what_a_part_loses():
    """Two draws of four classes; an interval over classes, after the mean over draws."""
    ranks = {
        ("full", ""): torch.tensor([[0, 0, 1, 2], [0, 1, 1, 0]]),
        ("full", "logistic"): torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0]]),
        ("patch", ""): torch.tensor([[0, 3, 3, 3], [0, 3, 3, 1]]),
        ("patch", "logistic"): torch.tensor([[0, 0, 5, 0], [0, 0, 5, 0]]),
        ("patch", "renormalised"): torch.tensor([[0, 0, 1, 2], [0, 1, 1, 0]]),
        ("patch", "own"): torch.tensor([[0, 0, 0, 0], [0, 0, 0, 5]]),
    }
    found = one_shot_accuracy(ranks, best=2)
    assert {name: x.mean().item() for name, x in found.items()} == pytest.approx({
        "full_top5": 87.5, "full_top5_logistic": 100, "patch_top5": 37.5, "patch_gap": 50,
        "patch_top5_logistic": 75, "patch_gap_logistic": 25, "patch_top5_renormalised": 87.5,
        "patch_gap_renormalised": 0, "patch_top5_own": 87.5,
    })  # fmt: skip
    assert found["patch_gap"].tolist() == [0, 100, 100, 0]
    assert list(found)[:3] == ["full_top5", "full_top5_logistic", "patch_top5"]


def test_answers_after_neurons_were_moved():
    """Of five images four are right before; the first classifier loses one, a new one gains one,
    and a control of two images loses one."""
    labels = np.array([0, 1, 2, 1, 0])
    plain, moved, again = (torch.eye(3)[x] for x in ([0, 1, 2, 1, 1], [0, 1, 2, 0, 1], labels))
    first = {"plain": plain, "moved": moved, "empty token": moved[:4]}
    first["set to zero"] = torch.eye(3)[[0, 0]]
    names = {"empty token": "token", "set to zero": "zeroed"}
    found = moved_changes(first, again, labels, names)
    changes = {x: y.value for x, y in found.items() if x.endswith("change")}
    assert changes == pytest.approx(
        {
            "accuracy_change": 20,
            "over_token_change": 25,
            "carried_change": -20,
            "token_change": -25,
            "zeroed_change": -50,
        }
    )
    assert (found["lost"], found["gained"]) == (0, 1)
    assert found["top3_moved"].value == 1 and found["macro_f1_moved"].value == 1
    assert found["macro_f1_baseline"].value < 1


def test_draws_are_one_mean_and_paired_with_the_neurons_at_zero():
    right = {
        "plain": torch.tensor([100.0, 100, 100, 0, 100]),
        "moved": torch.tensor([100.0, 0, 100, 0, 100]),
        "zeroed": torch.tensor([0.0, 100, 0, 0]),
        "random_0": torch.tensor([100.0, 100, 0, 0]),
        "random_1": torch.tensor([100.0, 0, 100, 0]),
    }
    found = answer_changes(right)
    assert not any("random_0" in name for name in found)
    assert found["accuracy_base"].mean() == 80 and found["accuracy_change_moved"].mean() == -20
    assert found["accuracy_zeroed"].mean() == 25 and found["accuracy_change_zeroed"].mean() == -50
    assert found["accuracy_random"].mean() == 50 and found["accuracy_change_random"].mean() == -25
    assert found["random_minus_zeroed"].mean() == 25 and len(found["random_minus_zeroed"]) == 4
    assert [*answer_changes({"plain": right["plain"]})] == ["accuracy_base"]
