"""Test-time registers beside their controls, on models that are known to have outliers, registers,
or neither."""

from contextlib import ExitStack

import pytest
import torch

from helpers.capture import ClsParts, PatchNorms, capture, find_register_neurons, matched_neurons
from helpers.capture import test_time as module
from helpers.images import load_images
from helpers.interventions import neurons as registers
from helpers.models import load_backbone

MODELS = ["control-content", "control-registers", "control-clean"]
CONDITIONS = {
    "": "moved",
    "as it is": "plain",
    "random": "random neurons",
    "empty": "empty token",
    "zero": "set to zero",
}
CONDITIONS |= {"matched": "matched neurons", "mean": "set to mean"}
REDUCERS = [PatchNorms((-1, -2)), ClsParts()]
COUNT, SEED = 2, 3


@pytest.fixture(scope="module")
def images():
    return load_images("scenes", 12, 0)


@pytest.fixture(scope="module")
def learn():
    return load_images("scenes", 9, 1)


@pytest.fixture(scope="module")
def study(images, learn):
    return module.test_time_study(
        MODELS, images, learn, REDUCERS, COUNT, CONDITIONS, seed=SEED, batch_size=5
    )


def changed(name, backbone, neurons, learn):
    """What a condition is, entered by hand."""
    if name == "as it is":
        return ExitStack()
    if name == "zero":
        return registers.ablated_neurons(backbone, neurons)
    if name == "mean":
        return registers.averaged_neurons(backbone, neurons)
    own = {"": neurons, "random": registers.random_neurons(backbone, neurons, SEED), "empty": []}
    own["matched"] = matched_neurons(backbone, neurons, learn, seed=SEED, batch_size=5)
    return registers.test_time_registers(backbone, own[name], 1, seed=SEED)


@pytest.mark.parametrize("name", CONDITIONS)
def test_what_is_kept_of_a_model_with_outliers(study, images, learn, name):
    backbone = load_backbone("control-content")
    neurons = find_register_neurons(backbone, learn, top_k=COUNT)
    with changed(name, backbone, neurons, learn):
        expected, layout = capture(backbone, images, REDUCERS, batch_size=5), backbone.layout
    kept = study.passes[name]["control-content"]
    assert kept.layout == layout and kept.tensors.keys() == expected.keys()
    for key, values in expected.items():
        assert torch.equal(kept[key], values)


def test_a_moved_register_clears_the_patches(study):
    """The controls beside it do not: only the neurons that write the outliers take them away."""
    peaks = {
        name: own["control-content"]["patch_norms"][:, 0].amax(1).mean()
        for name, own in study.passes.items()
    }
    clean, left = ("", "zero", "mean"), ("as it is", "random", "matched", "empty")
    assert max(peaks[name] for name in clean) < 0.5 * min(peaks[name] for name in left)


def test_models_without_outliers_or_with_registers_stay_as_they_are(study, images):
    assert (
        list(study.passes) == list(CONDITIONS)
        and list(study.plain) == list(study.passes[""]) == MODELS
    )
    for model in MODELS[1:]:
        assert (
            study.passes[""][model] is study.plain[model]
            and study.plain[model].layout.appended == 0
        )
        assert all(model not in own for name, own in study.passes.items() if name)
    assert study.passes["as it is"]["control-content"] is study.plain["control-content"]
    assert not study.not_run


def test_each_in_the_order_of_the_conditions(study):
    rows = [(name, model) for name, model, _ in study.each()]
    assert rows == [("", model) for model in MODELS] + [
        (name, "control-content") for name in CONDITIONS if name
    ]
    assert all(kept is study.passes[name][model] for name, model, kept in study.each())


def test_changes_are_those_of_the_passes(study, images):
    backbone = load_backbone("control-content")
    with study.changes[""](backbone):
        again = capture(backbone, images, REDUCERS, batch_size=5)
    assert torch.equal(again["patch_norms"], study.passes[""]["control-content"]["patch_norms"])
    assert study.changes[""](load_backbone("control-clean")) is None


@pytest.mark.parametrize("count", [0, COUNT])
def test_without_neurons_to_move_there_is_nothing_but_the_models(images, learn, count):
    """Where none are asked for, and where no model is one with outliers."""
    models = MODELS if count == 0 else MODELS[1:]
    study = module.test_time_study(models, images, learn, REDUCERS, count, CONDITIONS)
    assert list(study.passes[""]) == models and not any(
        own for name, own in study.passes.items() if name
    )


def test_a_model_without_outliers_to_learn_from_gets_no_register(images, learn):
    """The model plants outliers in flat regions; noise has none."""
    size = load_backbone("control-content").image_size
    noise = torch.randn(3, 3, *size, generator=torch.Generator().manual_seed(0))
    norms = capture(load_backbone("control-content"), noise, REDUCERS)["patch_norms"][:, 0]
    assert not (norms > 3 * norms.median()).any()
    study = module.test_time_study(MODELS[:1], images, noise, REDUCERS, COUNT, CONDITIONS)
    assert (
        study.passes[""]["control-content"] is study.plain["control-content"]
        and not study.passes["random"]
    )


@pytest.mark.parametrize(("images_with", "expected"), [(1, False), (2, True)])
def test_outliers_in_more_than_5_percent_of_the_images(monkeypatch, images_with, expected):
    """One image of twenty is 5 %, and not more."""
    norms = torch.ones(20, 2, 16)
    norms[:images_with, 0, 3] = 4
    norms[:, 1] *= 9  # another block, which does not count
    plain = {
        "a": module.Captured(
            {"patch_norms": norms}, load_backbone("control-clean").layout, (32, 32), 1, 2, {}
        )
    }
    asked = []
    monkeypatch.setattr(
        module, "capture_each", lambda *arguments, **options: (plain, {"b": "no weights"})
    )
    monkeypatch.setattr(
        module,
        "register_neurons_of",
        lambda models, *_, **options: (asked.extend(models), ({}, {}))[1],
    )
    study = module.test_time_study(["a", "b"], None, None, REDUCERS, COUNT, CONDITIONS)
    assert asked == (["a"] if expected else []) and study.not_run == {"b": "no weights"}


def test_another_condition_is_refused(images, learn):
    with pytest.raises(
        ValueError, match="no condition 'shuffled'; choose from plain, moved, empty token"
    ):
        module.test_time_study(
            MODELS, images, learn, REDUCERS, COUNT, {"": "moved", "a": "shuffled"}
        )
