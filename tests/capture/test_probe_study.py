"""Probes before and after an intervention, against features captured and fitted one state at a
time."""

from contextlib import nullcontext

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from helpers.capture import Feature, PatchNorms, Pooled, capture, probe_study
from helpers.images import load_train_test
from helpers.interventions import ablated_neurons
from helpers.interventions import neurons as registers
from helpers.measures.probes import fit_classifier
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone

NAME = "control-position"
NEURONS = [(PLANTED_BLOCK[NAME], REGISTER_NEURON)]
STATES = {
    "before": nullcontext,
    "after": lambda b: registers.test_time_registers(b, NEURONS, 2) if b.name == NAME else None,
    "zeroed": lambda b: ablated_neurons(b, NEURONS) if b.name == NAME else None,
}


def answers(x, train_labels, y, labels):
    return fit_classifier(x, train_labels)(y).argmax(-1) == torch.as_tensor(labels)


@pytest.fixture(scope="module")
def sets():
    return load_train_test("scenes", "scenes", 60, 40, 3)


@pytest.fixture(scope="module")
def study(sets):
    return probe_study([NAME, "control-clean"], *sets, STATES, [PatchNorms(-1)], batch_size=16)


@pytest.mark.parametrize("state", STATES)
def test_answers_are_those_of_a_probe_fitted_in_that_state(study, sets, state):
    backbone = load_backbone(NAME)
    with STATES[state](backbone):
        x, y = (capture(backbone, images, [Feature()], batch_size=16)["feature"] for images in sets)
    right = study.right[state][NAME]["feature"]
    assert torch.equal(right, answers(x, sets[0].labels, y, sets[1].labels))
    x, y = ((tokens - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-3) for tokens in (x, y))
    theirs = LogisticRegression(max_iter=5000).fit(x, sets[0].labels).predict(y)
    assert (
        right.numpy() == (theirs == sets[1].labels)
    ).mean() > 0.9  # it standardises idle features in another way
    assert study.passes[state][NAME]["patch_norms"].shape == (40, 196)


def test_what_the_planted_neuron_writes_is_worth_accuracy(study):
    """By construction [CLS] reads global information at the outliers; without them no probe finds
    it again."""
    right = {state: own[NAME]["feature"].float().mean() for state, own in study.right.items()}
    assert right["before"] > max(right["after"], right["zeroed"])


def test_a_model_that_a_state_leaves_out_gets_no_probe(study):
    assert [*study.passes["before"]] == [NAME, "control-clean"] and not study.not_run
    assert all([*own] == [NAME] for own in study.right.values())


def test_registers_are_read_by_their_mean(sets):
    train, images = (x.select(range(30)) for x in sets)
    states = {
        count: lambda b, c=count: registers.test_time_registers(b, NEURONS, c) for count in (1, 3)
    }
    study = probe_study([NAME], train, images, states, readouts=["feature", "registers"])
    for count in states:
        backbone = load_backbone(NAME)
        with states[count](backbone):
            x, y = (
                capture(backbone, part, [Pooled()])["registers"].mean(1) for part in (train, images)
            )
        alone = answers(x, train.labels, y, images.labels)
        assert torch.equal(study.right[count][NAME]["registers"], alone)
        assert [*study.right[count][NAME]] == ["feature", "registers"]


def test_another_readout_is_refused(sets):
    with pytest.raises(ValueError, match="no readout 'patches'; choose from feature, registers"):
        probe_study([NAME], *sets, STATES, readouts=["patches"])
