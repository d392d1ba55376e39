"""Several models under several conditions give what capture gives of each, and each model is loaded
once."""

from contextlib import contextmanager, nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from zoo import hooks

from helpers.capture import (
    OnPatches,
    Output,
    PatchNorms,
    Pooled,
    TokenNorms,
    capture,
    capture_conditions,
    capture_each,
    passes,
)
from helpers.images import load_images
from helpers.interventions import ablated_neurons, appended_registers
from helpers.models import (
    PLANTED_BLOCK,
    REGISTER_NEURON,
    ModelUnavailable,
    TokenLayout,
    load_backbone,
)

two_more = partial(appended_registers, count=2)
GONE = "'gone' is gated: accept its terms on the hub and log in"


@pytest.fixture
def loaded(monkeypatch):
    """The models that are loaded, in order; 'gone' cannot be had."""
    models = []

    def load(name, **options):
        if name == "gone":
            raise ModelUnavailable(GONE)
        models.append(load_backbone(name, **options))
        return models[-1]

    monkeypatch.setattr(passes, "load_backbone", load)
    return models


def zeroed(backbone):
    """The planted neuron set to zero, for the models that have one."""
    name = backbone.name
    return (
        ablated_neurons(backbone, [(PLANTED_BLOCK[name], REGISTER_NEURON)])
        if name in PLANTED_BLOCK
        else None
    )


CONDITIONS = {"as it is": lambda _: nullcontext(), ("registers", 2): two_more, "zeroed": zeroed}


def test_conditions_of_several_models(loaded):
    """What capture keeps inside each condition, to the bit, in the order of both; None leaves a
    model out of a condition."""
    names, images = ["control-registers", "gone", "control-clean"], load_images("scenes", 3, 0)
    of = {"control-registers": [TokenNorms(-1), Output()], "control-clean": [PatchNorms()]}
    options = {"image_size": 70, "batch_size": 2}
    found, not_run = capture_conditions(names, images, of.get, CONDITIONS, **options)
    assert [backbone.name for backbone in loaded] == ["control-registers", "control-clean"], (
        "each once"
    )
    assert not_run == {"gone": GONE}
    assert list(found) == list(CONDITIONS)
    assert {key: list(models) for key, models in found.items()} == {
        "as it is": ["control-registers", "control-clean"],
        ("registers", 2): ["control-registers", "control-clean"],
        "zeroed": ["control-registers"],
    }
    for key, models in found.items():
        for name, captured in models.items():
            backbone = load_backbone(name, image_size=64)  # 70 px, rounded down to whole patches
            with CONDITIONS[key](backbone):
                expected, layout = (
                    capture(backbone, images, of[name], batch_size=2),
                    backbone.layout,
                )
            assert captured.tensors.keys() == expected.keys() and captured.layout == layout
            assert all(torch.equal(captured[part], value) for part, value in expected.items())
            assert captured.source == backbone.describe() and captured.resolution == "64 x 64 px"
            assert (captured.depth, captured.parameters) == (backbone.depth, backbone.parameters)
    assert all(hooks(backbone.model) == 0 and backbone.layout.appended == 0 for backbone in loaded)


def test_one_condition_is_capture_each(loaded):
    names, images = ["control-content", "gone"], load_images("scenes", 3, 0)
    found, not_run = capture_conditions(
        names, images, [PatchNorms()], {"moved": two_more}, image_size=64
    )
    each, same = capture_each(names, images, [PatchNorms()], intervention=two_more, image_size=64)
    assert not_run == same == {"gone": GONE} and len(loaded) == 2
    assert each.keys() == found["moved"].keys() == {"control-content"}
    one, other = each["control-content"], found["moved"]["control-content"]
    assert torch.equal(one["patch_norms"], other["patch_norms"]) and one.layout == other.layout


def test_a_planted_effect_of_a_condition(loaded):
    """Outliers are gone where their neuron is zeroed, and only there; the model is as it was for
    the condition after."""
    conditions = {"zeroed": zeroed, "as it is": lambda _: nullcontext()}
    found, _ = capture_conditions(
        ["control-position"], load_images("scenes", 2, 0), [PatchNorms(-1)], conditions
    )
    ratio = {}
    for key, models in found.items():
        norms = models["control-position"]["patch_norms"]
        ratio[key] = float(norms.max() / norms.median())
    assert ratio["zeroed"] < 1.1 and ratio["as it is"] > 9


def test_no_model_of_several_can_be_had(loaded):
    images = load_images("scenes", 1, 0)
    with pytest.raises(ModelUnavailable, match=GONE):
        capture_conditions(["gone"], images, [PatchNorms()], CONDITIONS)
    assert capture_conditions([], images, [PatchNorms()], {"a": CONDITIONS["as it is"]}) == (
        {"a": {}},
        {},
    )


def test_one_model_after_another(tmp_path, monkeypatch):
    """capture_each equals capture model by model, names what cannot be had, and fits a size to the
    patch."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    images = load_images("scenes", 3, 0)
    missing = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    captured, not_run = capture_each(
        ["control-content", missing], images, [PatchNorms(blocks=(-1,))], image_size=250
    )
    assert list(not_run) == [missing] and "cache" in not_run[missing]
    for names, reason in (
        ([missing], f"'{missing}' is not in the Hugging Face cache"),
        ([], "no model was named"),
    ):
        with pytest.raises(ModelUnavailable, match=reason):
            capture_each(names, images, [PatchNorms()])
    ((name, found),) = captured.items()
    backbone = load_backbone(name, image_size=240)
    torch.testing.assert_close(
        found["patch_norms"], capture(backbone, images, [PatchNorms(blocks=(-1,))])["patch_norms"]
    )
    assert (found.layout, found.depth, found.parameters) == (
        backbone.layout,
        backbone.depth,
        backbone.parameters,
    )
    assert found.source == backbone.describe() and found.resolution == "240 x 240 px"


def test_every_model_has_reducers_and_an_intervention_of_its_own():
    images, names = load_images("scenes", 2, 0), ["control-registers", "control-clean"]
    of = {"control-registers": [Pooled(), TokenNorms(-1)], "control-clean": [TokenNorms(0)]}
    captured, _ = capture_each(names, images, of.get, image_size=64, intervention=two_more)
    for name, registers in zip(names, (4, 0), strict=True):
        backbone = load_backbone(name, image_size=64)
        with appended_registers(backbone, 2):
            expected = capture(backbone, images, of[name])
        assert captured[name].layout == TokenLayout((4, 4), registers=registers, appended=2)
        assert captured[name].tensors.keys() == expected.keys()
        assert all(torch.equal(captured[name][key], value) for key, value in expected.items())
    assert captured["control-registers"]["registers"].shape == (2, 6, 64)


def test_an_intervention_ends_with_an_exception():
    ended = []

    @contextmanager
    def watched(backbone):
        try:
            yield
        finally:
            ended.append(backbone.name)

    with pytest.raises(ValueError, match="no block 6"):
        capture_each(
            ["control-clean"], load_images("scenes", 1, 0), [PatchNorms(6)], intervention=watched
        )
    assert ended == ["control-clean"]


@pytest.mark.parametrize("image_size", [None, 64])
def test_the_whole_of_an_image(image_size):
    """A frame at the edge of an oblong picture reaches every border patch, and only those, where
    nothing is cropped away."""
    picture = np.zeros((100, 300, 3), dtype=np.uint8)
    picture[5:-5, 15:-15] = 255
    pick = [OnPatches("colour", lambda grid: grid, at="embedding")]
    load = partial(
        capture_each, ["control-clean"], [Image.fromarray(picture)], pick, image_size=image_size
    )
    whole, cropped = (load(whole=value)[0]["control-clean"]["colour"][0] for value in (True, False))
    inner = whole[1:-1, 1:-1].flatten(0, 1)
    torch.testing.assert_close(inner, inner.narrow(0, 0, 1).expand_as(inner))
    border = torch.cat([whole[0], whole[-1], whole[:, 0], whole[:, -1]])
    assert ((border - inner[0]).norm(dim=-1) > 0.1).all()
    torch.testing.assert_close(
        cropped[1:-1, 0], cropped[1:-1, 1]
    )  # the recipe cuts the left and the right away
