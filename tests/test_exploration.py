"""What readers touch, measured on models with known answers (scripts/explore.py)."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
from explore import JUDGED, MOST, patches, quantise, shown, thresholds

from helpers import interventions
from helpers.book.explore import dequantise
from helpers.capture import PatchNorms, capture
from helpers.claims import load_registry
from helpers.images import load_images
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


def test_the_known_answer_is_judged_as_the_registry_expects():
    registry, images = load_registry(), load_images("scenes", 16, 4)
    swept = thresholds("control-content", images, registry, multiples=(2.5, 3, 200))
    assert {*swept["verdicts"]} == {*JUDGED}
    for id in ("nr1-artifacts", "nr2-model-size", "nr7-block-maps"):  # others ask for more images
        assert swept["verdicts"][id][1] == registry[id].expected["control-content"], id
    norms = capture(load_backbone("control-content"), images, [PatchNorms((-1,))])["patch_norms"]
    share = (norms > 3 * norms.median()).float().mean().item()
    assert swept["median"] == pytest.approx(norms.median().item(), rel=1e-4)
    assert swept["measures"]["outlier_tokens"][1][0] == pytest.approx(share, abs=1e-6)
    assert swept["measures"]["auc"][-1] == [None, None, None, 0]  # nothing is above everything


@pytest.mark.parametrize("scale", [1e-6, 0.19, 1.0, 655.35, 4e7])
def test_numbers_come_back_within_half_a_step(scale):
    values = np.random.default_rng(0).random((2, 3, 5)) * scale
    data = json.loads(json.dumps(quantise(values)))
    assert abs(dequantise(data) - values).max() <= data["step"] / 2 * (1 + 1e-9)
    assert values.max() / MOST <= data["step"] < 3 * values.max() / MOST
    assert quantise(np.array([MOST, 258.0]))["base64"] == "//8CAQ=="  # ff ff, 02 01
