import math

import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score, top_k_accuracy_score

from helpers.measures.answers import (
    class_scores,
    condition_changes,
    least_significant,
    macro_scores,
    paired_accuracy,
    points,
    probe_answers,
    recount_table,
    recounted,
)
from helpers.measures.stats import jackknife, share

BOTH = pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


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
    assert list(paired) == [
        "accuracy_baseline",
        "accuracy_moved",
        "accuracy_change",
        "lost",
        "gained",
        "mcnemar_p",
    ]
    assert (paired["lost"], paired["gained"]) == (12, 3)
    assert paired["accuracy_baseline"].value == pytest.approx(0.72) and paired[
        "accuracy_moved"
    ].value == pytest.approx(0.63)
    assert paired["accuracy_change"] == points(*pair)
    assert (
        paired["accuracy_change"].value == pytest.approx(-9) and paired["accuracy_change"].n == 100
    )
    assert paired["accuracy_change"].step == pytest.approx(1)  # an image more is a point
    assert paired["mcnemar_p"] == pytest.approx(reference(12, 3))


def test_paired_accuracy_in_per_cent():
    after, before = planted(5, 9, 40, 26)
    shares, per_cent = paired_accuracy(after, before), paired_accuracy(after, before, 100)
    for name in ("accuracy_baseline", "accuracy_moved"):
        assert per_cent[name][:3] == pytest.approx([100 * x for x in shares[name][:3]])
    for name in ("accuracy_change", "lost", "gained", "mcnemar_p"):
        assert per_cent[name] == shares[name]


def test_paired_accuracy_without_a_change():
    after, _ = planted(0, 0, 30, 20)
    paired = paired_accuracy(after, after)
    assert (
        paired["accuracy_change"].value == 0
        and paired["mcnemar_p"] == 1
        and (paired["lost"], paired["gained"]) == (0, 0)
    )
    assert paired["accuracy_change"].low < 0 < paired["accuracy_change"].high


def test_probe_answers_against_sklearn():
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 4
    tokens = rng.normal(0, 1.2, (160, 6)) + np.eye(4, 6)[labels] * 2
    tokens = (tokens - tokens[:100].mean(0)) / tokens[:100].std(0)  # as the probe does
    expected = (
        LogisticRegression(tol=1e-8, max_iter=1000)
        .fit(tokens[:100], labels[:100])
        .predict(tokens[100:])
        == labels[100:]
    )
    train, test = torch.from_numpy(tokens[:100]).float(), torch.from_numpy(tokens[100:]).float()
    answers = probe_answers(train, labels[:100], test, labels[100:])
    assert (
        answers.dtype == torch.bool
        and answers.tolist() == expected.tolist()
        and 0.5 < expected.mean() < 1
    )
    shuffled = rng.permutation(labels[:100])  # nothing to learn: a quarter by chance
    assert probe_answers(train, shuffled, test, torch.from_numpy(labels[100:])).float().mean() < 0.5


@BOTH
@pytest.mark.parametrize("classes", [2, 3, 8])
def test_class_scores_against_sklearn(convert, classes):
    rng = np.random.default_rng(1)
    labels = np.arange(200) % classes
    scores = rng.normal(0, 2, (200, classes)) + 2 * np.eye(classes)[labels]
    found = class_scores(convert(scores), convert(labels))
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    top3 = top_k_accuracy_score(labels, scores, k=3, labels=range(classes)) if classes > 3 else 1.0
    right = (scores.argsort(1)[:, ::-1][:, :3] == labels[:, None]).any(1)
    assert found["top3"].value == pytest.approx(top3) and found["top3"] == share(right)
    assert macro_scores(scores.argmax(1), labels).items() <= found.items()
    one_hot = np.eye(classes)[labels]
    assert found["macro_auc"] == pytest.approx(
        roc_auc_score(one_hot, probabilities, average="macro"), abs=1e-4
    )


def test_class_scores_of_equal_scores():
    found = class_scores(np.zeros((4, 4)), np.arange(4))
    values = {name: getattr(x, "value", x) for name, x in found.items()}
    assert values == pytest.approx(
        {
            "top3": 0.75,
            "macro_f1": 0.1,
            "macro_precision": 0.0625,
            "macro_recall": 0.25,
            "macro_auc": 0.5,
        }
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
    found, every = macro_scores(convert(given), convert(labels)), np.arange(40)
    assert {name: x.value for name, x in found.items()} == pytest.approx(
        sklearn_macro(given, labels)
    )
    without = [sklearn_macro(given[every != i], labels[every != i]) for i in every]
    for name, x in found.items():
        assert x == pytest.approx(
            jackknife(x.value, np.array([one[name] for one in without]), (0, 1))
        )
        assert x.low < x.value < x.high and x.n == 40


def test_macro_scores_without_a_mistake_are_not_certain():
    found = macro_scores(np.arange(30) % 3, np.arange(30) % 3)
    assert all(
        x.value == 1 and x[1:3] == pytest.approx(share(np.ones(30, bool))[1:3])
        for x in found.values()
    )
    assert all(
        np.isnan(x.low) for x in macro_scores(np.arange(4), np.arange(4)).values()
    )  # of fewer than five images


def hypergeometric_p(a, b, n):
    """Fisher's two-sided p-value from binomial coefficients."""
    chances = [
        math.comb(n, k) * math.comb(n, a + b - k) / math.comb(2 * n, a + b)
        for k in range(max(0, a + b - n), min(n, a + b) + 1)
    ]
    own = math.comb(n, a) * math.comb(n, b) / math.comb(2 * n, a + b)
    return sum(chance for chance in chances if chance <= own * (1 + 1e-7))


@pytest.mark.parametrize(
    ("before", "after", "n"),
    [(0.65, 0.6944, 180), (0.7422, 0.7289, 225), (0.8361, 0.8197, 366), (0.5, 0.4, 200)],
)
def test_recounted_against_tables_of_all_pairings(before, after, n):
    found = recounted(before, after, n)
    assert (found.before, found.after) == (
        round(before * n),
        round(after * n),
    ) and found.net == found.after - found.before
    assert found.unpaired_p == pytest.approx(hypergeometric_p(found.before, found.after, n))
    tables = {  # changed answers -> McNemar's p-value, for every table that these accuracies allow
        lost + lost + found.net: reference(lost, lost + found.net)
        for lost in range(n)
        if min(found.before - lost, lost + found.net, n - found.before - lost - found.net) >= 0
    }
    assert (
        found.best_p == pytest.approx(tables[abs(found.net)]) == pytest.approx(min(tables.values()))
    )
    assert found.most_changed == max((k for k, p in tables.items() if p < 0.05), default=None)


def test_recounted_perfect_accuracy_leaves_no_choice():
    assert recounted(0.9, 1.0, 100).most_changed == 10  # what was right stays right
    assert (
        recounted(1.0, 0.9, 100)[:3] == (100, 90, -10)
        and recounted(1.0, 0.9, 100).most_changed == 10
    )
    assert (
        recounted(0.0, 0.1, 100).most_changed == 10 and recounted(0.1, 0.0, 100).most_changed == 10
    )


def test_recounted_without_a_change():
    found = recounted(0.5, 0.5, 10)
    assert (found.net, found.unpaired_p, found.best_p, found.most_changed) == (0, 1, 1, None)


@pytest.mark.parametrize("accuracy", [0.6, -0.1, 1.1, 0.7071])
def test_recounted_needs_whole_images(accuracy):
    with pytest.raises(ValueError, match="whole number of 7 images"):
        recounted(accuracy, 3 / 7, 7)
    with pytest.raises(ValueError, match="whole number of 7 images"):
        recounted(3 / 7, accuracy, 7)


@pytest.mark.parametrize("level", [0.05, 0.01, 0.001])
def test_least_significant_against_the_binomial(level):
    least = least_significant(level)
    assert 2 * binom.pmf(0, least, 0.5) < level <= 2 * binom.pmf(0, least - 1, 0.5)
    assert least_significant() == 6
    assert recounted(0.5, 0.5 + least / 100, 100, level).most_changed >= least
    assert recounted(0.5, 0.5 + (least - 1) / 100, 100, level).most_changed is None


def test_recounted_where_a_p_value_is_at_its_level():
    """Five of five changed answers have p = 2 / 2^5: not below it."""
    assert least_significant(2 / 32) == 6
    assert (
        recounted(0.5, 0.55, 100, 2 / 32).most_changed is None
        and recounted(0.5, 0.56, 100, 2 / 32).most_changed >= 6
    )


def test_recounted_takes_a_fiftieth_of_an_image_for_rounding():
    assert recounted(0.50019, 0.5, 100).before == 50
    with pytest.raises(ValueError, match="whole number of 100 images"):
        recounted(0.5003, 0.5, 100)


@BOTH
def test_condition_changes_are_paired_with_the_same_images_before(convert):
    after, before = planted(lost=12, gained=3, right=60, wrong=25)
    answers = {"plain": before, "moved": after, "part": after[:40], "other": before}
    found = condition_changes(
        {x: convert(y) for x, y in answers.items()}, convert(before), {"moved": "m", "part": "p"}
    )
    assert list(found) == ["m_change", "mcnemar_p_m", "p_change", "mcnemar_p_p"]
    assert found["m_change"].value == pytest.approx(-9) and found["mcnemar_p_m"] == pytest.approx(
        reference(12, 3)
    )
    lost, gained = (before[:40] & ~after[:40]).sum(), (after[:40] & ~before[:40]).sum()
    assert (
        found["p_change"].value == pytest.approx(100 * (gained - lost) / 40)
        and found["p_change"].n == 40
    )
    assert found["mcnemar_p_p"] == pytest.approx(reference(lost, gained))
    with pytest.raises(ValueError, match="'moved' has 100 answers, but there are 40 before"):
        condition_changes({"moved": after}, before[:40], {"moved": "m"})


def test_recount_table_has_a_line_for_each_pair():
    where, value = (
        "Table 1, Knees",
        {"accuracy_baseline": 0.65, "accuracy_change": 5.0, "accuracy_moved": 0.70},
    )
    rows = [{"where": where, "model": "A", "name": name, "value": x} for name, x in value.items()]
    head, line, end = recount_table(rows, {"Knees": 100, "Hips": 3}).split("\n")
    found = recounted(0.65, 0.7, 100)
    words = line.replace(where, "").split()
    assert words == [
        "A",
        "100",
        "65",
        "70",
        "+5",
        f"{found.unpaired_p:.2f}",
        f"{found.best_p:.3f}",
        "never",
    ]
    assert len(head) == len(line) and end.endswith(": 6 images")
