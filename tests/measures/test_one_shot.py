import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from helpers.measures.one_shot import (
    beaten_by,
    one_shot_accuracy,
    one_shot_draws,
    one_shot_images,
    one_shot_ranks,
)

LABELS = np.array([3, 0, 3, 7, 0, 3, 0, 3])  # 7 has one image
CLASSES, COPIES, WIDTH = 12, 3, 16


def test_images_of_classes_with_two_and_no_more_than_are_needed():
    assert one_shot_images(LABELS, 10).tolist() == [1, 4, 6, 0, 2, 5, 7]
    assert one_shot_images(LABELS, 1).tolist() == [1, 4, 0, 2]
    with pytest.raises(ValueError, match="no class has two images"):
        one_shot_images(np.array([2, 0, 1]), 10)


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


def test_two_images_are_training_image_once_each():
    found = one_shot_draws(np.array([0, 1, 0, 1]), 10)
    assert np.array(found).tolist() == [[[0, 1], [2, 3]], [[2, 3], [0, 1]]]


def test_classes_that_beat_the_true_one():
    scores = torch.tensor([[0.5, 0.9, 0.5], [0.1, 0.2, 0.3], [0.0, 0.7 + 4e-7, 0.7]])
    assert beaten_by(scores).tolist() == [1, 1, 0]  # equal but for rounding: not beaten
    assert beaten_by(torch.tensor([[0.5, 0.500004], [0.1, 0.2]])).tolist() == [1, 0]


def planted():
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
    full, parts, draws = planted()
    found = one_shot_accuracy(one_shot_ranks(full, parts, parts, draws), best=1)
    for reading in ("", "_logistic", "_centred"):
        assert found[f"full_top5{reading}"].value == found[f"register_top5{reading}"].value == 100
        assert found[f"register_gap{reading}"].value == 0 and found[f"patch_gap{reading}"].low > 40
    assert found["register_top5_own"].value == 100 and found["patch_top5_own"].value < 50
    assert not {"full_top5_own", "full_top5_renormalised", "patch_gap_own"} & found.keys()


def test_readings_against_sklearn():
    """What is right by each reading: nearest training image by cosine, and logistic regression on
    standardised features."""
    full, parts, draws = planted()
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


def test_a_part_that_is_zero_is_left_out():
    full, parts, draws = planted()
    parts["patch"][0, 0] = 0  # which is not all of it
    ranks = one_shot_ranks(
        full, {"register": torch.zeros_like(full), "patch": parts["patch"]}, parts, draws
    )
    assert {kind for kind, _ in ranks} == {"full", "patch"}


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
    found = {name: x.value for name, x in one_shot_accuracy(ranks, best=2).items()}
    assert found == pytest.approx(
        {
            "full_top5": 87.5,
            "full_top5_logistic": 100,
            "patch_top5": 37.5,
            "patch_gap": 50,
            "patch_top5_logistic": 75,
            "patch_gap_logistic": 25,
            "patch_top5_renormalised": 87.5,
            "patch_gap_renormalised": 0,
            "patch_top5_own": 87.5,
        }
    )
    assert one_shot_accuracy(ranks, best=2)["patch_gap"].n == 4
    assert list(found)[:3] == ["full_top5", "full_top5_logistic", "patch_top5"]
