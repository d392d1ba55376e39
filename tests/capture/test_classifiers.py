"""Classifiers of several models on the controls, where it is known what the feature tells of the
class."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from helpers.capture import Captured, Feature, Output, capture_each, classifiers_of
from helpers.images import load_images
from helpers.measures.probes import SCHEDULES
from helpers.models import TokenLayout

NAMES = ["control-content", "control-clean"]


@pytest.fixture(scope="module")
def scenes():
    """For training and for testing; their colour tells the class."""
    return load_images("scenes", 120, 0), load_images("scenes", 60, 1)


@pytest.fixture(scope="module")
def captured(scenes):
    return [capture_each(NAMES, images, [Feature()])[0] for images in scenes]


def test_probes_are_those_of_scikit_learn(scenes, captured):
    """Planted: [CLS] gathers the colour of the image's objects, so its class can be read well above
    one in ten."""
    (train, test), (learnt, tested) = scenes, captured
    classifiers = classifiers_of("probe", NAMES, train)
    assert list(classifiers.probes) == NAMES
    for name in NAMES:
        scaler = StandardScaler().fit(learnt[name]["feature"].double())
        other = LogisticRegression(max_iter=10_000, tol=1e-10).fit(
            scaler.transform(learnt[name]["feature"].double()), train.labels
        )
        expected = other.predict(scaler.transform(tested[name]["feature"].double()))
        scores = classifiers.scores(name, tested[name])
        assert (scores.argmax(-1).numpy() == expected).mean() > 0.95
        correct = classifiers.correct(name, tested[name], test)
        assert correct.tolist() == (100.0 * (scores.argmax(-1).numpy() == test.labels)).tolist()
        assert correct.mean() > 80


def test_a_class_that_no_feature_tells_is_at_chance(scenes, captured):
    (train, test), (_, tested) = scenes, captured
    shuffled = replace(train, labels=np.random.default_rng(0).permutation(train.labels))
    correct = classifiers_of("probe", NAMES[:1], shuffled).correct(NAMES[0], tested[NAMES[0]], test)
    assert correct.mean() < 30


def test_a_schedule_and_its_seed(scenes, captured):
    (train, _), (_, tested) = scenes, captured
    fit = [
        classifiers_of(
            "probe", NAMES[1:], train, schedule=SCHEDULES["need-registers"], seed=seed
        ).scores(NAMES[1], tested[NAMES[1]])
        for seed in (0, 0, 1)
    ]
    assert torch.equal(fit[0], fit[1]) and not torch.equal(fit[0], fit[2])


def test_the_checkpoints_own_head():
    """The highest of its logits, of a model trained on such scenes; nothing is captured for it."""
    classifiers, name = classifiers_of("published", ["scratch-reg4"]), "scratch-reg4"
    assert classifiers.probes is None
    images = load_images("scenes", 40, 1)
    captured = capture_each([name], images, [Output()])[0][name]
    assert torch.equal(classifiers.scores(name, captured), captured["output"])
    assert classifiers.correct(name, captured, images).mean() > 80
    known = Captured({"output": torch.eye(3)}, TokenLayout((1, 1)), (1, 1), 1, 1, {})
    three = replace(images, labels=np.array([0, 1, 0] + [2] * 37), class_names=None)
    assert classifiers.correct(name, known, three).tolist() == [100, 100, 0]
    with pytest.raises(
        ValueError,
        match="the head of 'scratch-reg4' names 3 classes, and the images have 10; take images of "
        "its",
    ):
        classifiers.correct(name, known, images)
    probed = classifiers_of("probe", [name], images)
    shown = capture_each([name], images.select(range(3)), [Feature()])[0][name]
    assert (
        len(probed.correct(name, shown, images)) == 3
    )  # a probe has the classes that it was fitted to


def test_another_kind_of_classifier():
    with pytest.raises(ValueError, match="classifier is 'nearest'; choose 'probe' or 'published'"):
        classifiers_of("nearest", NAMES)
