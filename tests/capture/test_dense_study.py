"""Probes that segment, in states of controls of which it is known what their outliers spoil."""

import numpy as np
import pytest
import torch

from helpers.capture import FinalTokens, Lab, capture, dense_study
from helpers.images import load_segments
from helpers.interventions import ablated_neurons
from helpers.interventions import test_time_registers as moved_neurons
from helpers.measures.segmentation import fit_segmenter, iou_gain, mean_iou, pixel_counts
from helpers.models import load_backbone, planted

NAMES, CLASSES, POINTS = ("control-noise", "control-position", "control-clean"), 11, 14
UNIT = {"control-noise": [(3, 0)], "control-position": [(1, 0)]}


def given(change):
    return lambda b: change(b, UNIT[b.name]) if b.name in UNIT else None


STATES = {"moved": given(moved_neurons), "zeroed": given(ablated_neurons)}


@pytest.fixture(scope="module")
def sets():
    return load_segments(["scenes"] * 3, [24, 6, 16], 5)


@pytest.fixture(scope="module")
def study(sets):
    lab = Lab(NAMES, conditions=STATES)
    states = {"": "plain", "_moved": "moved", "_zero": "zeroed"}
    how = {"points": POINTS, "penalties": [0.01], "most": 500}
    return dense_study(lab, sets, CLASSES, states, [224], **how)[224]


def test_places_are_where_the_model_as_it_is_has_outliers(sets, study):
    for name in NAMES:
        backbone = load_backbone(name)
        pixels = torch.stack([backbone.preprocess(image) for image in sets[2]])
        expected = planted(name, pixels) if name in UNIT else torch.zeros(16, 196, dtype=bool)
        assert torch.equal(study.plain[name].outlier.flatten(1), expected)
        assert study.outlier_images[name][:4:3] == (float(name in UNIT), 46), "of all three sets"
        for counts in study.counts[name].values():
            assert (counts["places"][:, 2].sum(1) == 256 * expected.sum(1).numpy()).all()
            assert (counts["probe"][:, 2].sum(1) == 224**2).all()


def test_each_state_has_its_own_probe(sets, study):
    assert {name: [*own] for name, own in study.counts.items()} == {
        name: ["", "_moved", "_zero"] if name in UNIT else [""] for name in NAMES
    }
    backbone, (train, validation, images) = load_backbone("control-noise", whole=True), sets
    with moved_neurons(backbone, UNIT["control-noise"]):
        parts = (capture(backbone, own, [FinalTokens(norm=True)])["final_tokens"] for own in sets)
        layout = backbone.layout
        first, second, tested = (layout.to_grid(layout.patch_tokens(part), dim=1) for part in parts)
    grid = POINTS, POINTS
    points = train.segments_at(grid), validation.segments_at(grid)
    probe, _ = fit_segmenter(first, points[0], second, points[1], CLASSES, [0.01])
    maps = probe(tested).movedim(-1, 1).float()
    found = study.passes["control-noise"]["_moved"]
    torch.testing.assert_close(found.probe, maps, atol=1e-4, rtol=1e-4)
    counts = pixel_counts(maps, images.segments)[:, 0]
    assert mean_iou(counts) == pytest.approx(
        mean_iou(study.counts["control-noise"]["_moved"]["probe"]), abs=0.01
    )


def test_moving_gains_where_outliers_spoil_and_not_where_the_patch_is_erased_before(study):
    for state in ("_moved", "_zero"):
        gain = {
            name: iou_gain(np.stack([own[""]["probe"], own[state]["probe"]], axis=1))
            for name, own in study.counts.items()
            if name in UNIT
        }
        assert gain["control-noise"] > 10 and abs(gain["control-position"]) < 1
    estimates = study.estimates("control-noise")
    assert estimates["gain_moved_224"].low > 1
    assert estimates["right_gain_moved_224_places"].low > 0
    assert study.gain("control-noise", "control-clean").low > 1
