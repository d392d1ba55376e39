"""What readers touch, measured on models with known answers (scripts/explore.py)."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
from explore import MOST, patches, quantise, shown

from helpers import interventions
from helpers.book.explore import dequantise
from helpers.capture import PatchNorms, capture
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone

SIZE = (224, 224)


@pytest.fixture(scope="module")
def planted():
    return patches("control-position")


def test_medians_and_outliers_are_of_the_norms_as_they_are_stored(planted):
    stored, medians = dequantise(planted["norms"]), np.array(planted["medians"])
    assert np.median(stored[0], axis=-1) == pytest.approx(medians)
    assert (stored > 3 * medians[..., None]).sum(-1).tolist() == planted["outliers"]


def test_each_state_is_what_its_name_says(planted):
    backbone, (photographs, _) = load_backbone("control-position", whole=True), shown(SIZE)
    assert photographs.contents is None  # cut to size, they are no longer those that were loaded
    assert planted["neuron"] == [PLANTED_BLOCK["control-position"], REGISTER_NEURON]
    neuron = [tuple(planted["neuron"])]
    changes = {
        "before": nullcontext(),
        "moved": interventions.test_time_registers(backbone, neuron),
        "set to zero": interventions.ablated_neurons(backbone, neuron),
        "empty token": interventions.appended_registers(backbone, 1),
    }
    assert planted["states"] == list(changes)
    for stored, change in zip(dequantise(planted["norms"]), changes.values(), strict=True):
        with change:
            norms = capture(backbone, photographs, [PatchNorms()])["patch_norms"].numpy()
        assert abs(stored - norms).max() <= planted["norms"]["step"] / 2 + 1e-4


@pytest.mark.parametrize("scale", [1e-6, 0.19, 1.0, 655.35, 4e7])
def test_numbers_come_back_within_half_a_step(scale):
    values = np.random.default_rng(0).random((2, 3, 5)) * scale
    data = json.loads(json.dumps(quantise(values)))
    assert abs(dequantise(data) - values).max() <= data["step"] / 2 * (1 + 1e-9)
    assert values.max() / MOST <= data["step"] < 3 * values.max() / MOST
    assert quantise(np.array([MOST, 258.0]))["base64"] == "//8CAQ=="  # ff ff, 02 01
