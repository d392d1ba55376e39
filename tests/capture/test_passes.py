"""Several models under several conditions give what capture gives of each, and each model is loaded
once."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from zoo import hooks

from helpers.capture import (
    Captured,
    ClsAttention,
    Feature,
    Lab,
    OnPatches,
    Output,
    Passes,
    PatchNorms,
    TokenNorms,
    capture,
    lab,
    maps_of,
)
from helpers.images import load_images
from helpers.interventions import ablated_neurons, appended_registers, where_given
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

    monkeypatch.setattr(lab, "load_backbone", load)
    return models


def zeroed(backbone):
    """The planted neuron set to zero, for the models that have one."""
    planted = PLANTED_BLOCK.get(backbone.name)
    return None if planted is None else ablated_neurons(backbone, [(planted, REGISTER_NEURON)])


CONDITIONS = {"zeroed": zeroed, "as it is": lambda _: nullcontext(), ("registers", 2): two_more}


def test_conditions_of_several_models(loaded):
    """What capture keeps inside each condition, to the bit, in the order of both; None leaves a
    model out of a condition."""
    names, images = ["control-registers", "gone", "control-clean"], load_images("scenes", 3, 0)
    of = {"control-registers": [TokenNorms(-1), Output()], "control-clean": [PatchNorms()]}
    laboratory = Lab(names, image_size=70, batch_size=2)
    found, not_run = laboratory.passes(images, of.get, CONDITIONS), laboratory.not_run
    both = ["control-registers", "control-clean"]
    assert [backbone.name for backbone in loaded] == both  # each once
    assert not_run == {"gone": GONE}
    assert [*found] == [*CONDITIONS] and [*found["zeroed"]] == ["control-registers"]
    assert all([*found[key]] == both for key in ("as it is", ("registers", 2)))
    for key, models in found.items():
        for name, captured in models.items():
            backbone = load_backbone(name, image_size=64)  # 70 px, rounded down to whole patches
            with CONDITIONS[key](backbone):
                expected = capture(backbone, images, of[name], batch_size=2)
                layout = backbone.layout
            assert captured.tensors.keys() == expected.keys() and captured.layout == layout
            assert all(torch.equal(captured[part], value) for part, value in expected.items())
            assert captured.source == backbone.describe()
            assert (captured.depth, captured.parameters) == (backbone.depth, backbone.parameters)
    assert all(hooks(backbone.model) == 0 and backbone.layout.appended == 0 for backbone in loaded)


@pytest.mark.parametrize("fitting, reads", [(4, 1), (3, 2)])
def test_conditions_share_pixels_that_fit(monkeypatch, fitting, reads):
    """Images of two conditions are read once, those that take more memory in each; the same to the
    bit."""
    read, pixels = [], [PatchNorms(-1)]
    images = load_images("scenes", 4, 0)
    watched = replace(images, read=lambda index: read.append(index) or images[index])
    monkeypatch.setattr(lab, "PIXELS", fitting * 4 * 3 * 64 * 64)
    shown = {"both": watched, "registers": watched, "alone": images}
    conditions = {"both": nullcontext, "registers": two_more, "alone": nullcontext}
    laboratory = Lab(["control-content"], image_size=64, batch_size=3)
    found = laboratory.passes(shown, pixels, conditions)
    assert sorted(read) == sorted([*range(4)] * reads)
    both, alone = (found[name]["control-content"]["patch_norms"] for name in ("both", "alone"))
    assert torch.equal(both, alone)


def test_models_that_cannot_be_had(loaded):
    images, norms = load_images("scenes", 1, 0), [PatchNorms(-1)]
    for names, reason in ((["gone"], GONE), ([], "no model")):
        with pytest.raises(ModelUnavailable, match=reason):
            Lab(names).capture(images, norms)


@pytest.mark.parametrize("image_size", [0, 64])
def test_the_whole_of_an_image(image_size):
    """A frame at the edge of an oblong picture reaches every border patch, and only those, where
    nothing is cropped away."""
    picture = np.zeros((100, 300, 3), dtype=np.uint8)
    picture[5:-5, 15:-15] = 255
    pick = [OnPatches("colour", lambda grid: grid, at="embedding")]
    shown, laboratory = [Image.fromarray(picture)], Lab(["control-clean"], image_size=image_size)
    both = (laboratory.capture(shown, pick, whole=x) for x in (True, False))
    whole, cropped = (own["control-clean"]["colour"][0] for own in both)
    inner = whole[1:-1, 1:-1].flatten(0, 1)
    torch.testing.assert_close(inner, inner.narrow(0, 0, 1).expand_as(inner))
    border = torch.cat([whole[0], whole[-1], whole[:, 0], whole[:, -1]])
    assert ((border - inner[0]).norm(dim=-1) > 0.1).all()
    # The recipe cuts the left and the right away.
    torch.testing.assert_close(cropped[1:-1, 0], cropped[1:-1, 1])


def test_conditions_with_images_and_reducers_of_their_own():
    images, name = load_images("scenes", 3), "control-content"
    shown = {"as they are": images, "flipped": images.changed("flipped")}
    reducers = {"as they are": [PatchNorms(-1)], "flipped": lambda model: [Feature()]}
    passes = Lab([name]).passes(shown, reducers)
    for condition, key in {"as they are": "patch_norms", "flipped": "feature"}.items():
        own = Lab([name]).capture(shown[condition], [PatchNorms(-1), Feature()])
        assert [*passes[condition][name].tensors] == [key]
        assert torch.equal(passes[condition][name][key], own[name][key])


def test_what_is_read_takes_the_place_of_what_was_kept():
    images, models = load_images("scenes", 3), ["control-content", "control-clean"]
    reducers, laboratory = [PatchNorms(-1)], Lab(models)
    kept = laboratory.capture(images, reducers)
    passes = laboratory.passes(images, reducers, ["plain"], read=lambda c: c["patch_norms"].sum())
    read = passes["plain"]
    assert read == {model: c["patch_norms"].sum() for model, c in kept.items()}


def test_patches_and_trained_registers_of_what_was_kept_of_all_tokens():
    reducers = [TokenNorms(), PatchNorms(), ClsAttention("all", "all")]
    names, images = ["control-registers", "control-clean"], load_images("scenes", 3)
    captured = Lab(names).passes(images, reducers, {"": two_more})[""]
    for model, c in captured.items():
        assert torch.equal(c.patches("token_norms"), c["patch_norms"])
        assert c.patches("cls_attention").shape[-1] == c.layout.patches
        patches, registers = c.parts("token_norms")
        count = 4 if model == "control-registers" else 0
        assert torch.equal(patches, c["patch_norms"][:, -1])
        assert torch.equal(registers, c["token_norms"][:, -1, 1 : 1 + count])
        own, carriers = c.carriers("token_norms")
        more = c.appended("token_norms")
        assert torch.equal(own, patches) and more.shape[1] == 2
        assert torch.equal(carriers, torch.cat([registers, more], dim=1))


def test_conditions_by_model_and_their_maps():
    """A model that a condition leaves out stays out."""
    names, images = ["control-registers", "control-clean"], load_images("scenes", 3)
    reducers = [TokenNorms(), PatchNorms(-1)]
    more = where_given({names[0]: 2}, appended_registers)
    found = Lab(names).passes(images, reducers, {"plain": nullcontext, "more": more})
    more, plain = found["more"][names[0]], found["plain"]
    assert torch.equal(more.appended("token_norms"), more["token_norms"][:, -1, -2:])
    assert torch.equal(more.appended("token_norms", 0), more["token_norms"][:, 0, -2:])
    expected = {names[0]: {"plain": plain[names[0]], "more": more}}
    expected |= {names[1]: {"plain": plain[names[1]]}}
    assert Passes(found).by_model == expected and Passes({"plain": {}}).by_model == {}
    norms = maps_of(found, "patch_norms")
    last = maps_of(found, {"norm": lambda c: c.patches("token_norms")[:, -1]})
    for model, own in expected.items():
        assert [*norms[model]] == [f"patch norm\n{x}" for x in own]
        assert [*last[model]] == [f"norm\n{x}" for x in own]
        for name, c in own.items():
            shown = norms[model][f"patch norm\n{name}"]
            assert torch.equal(shown, c["patch_norms"].reshape(3, 14, 14))
            assert torch.equal(shown, last[model][f"norm\n{name}"])


def test_maps_of_what_was_kept_of_the_patches():
    layout, norms = TokenLayout((2, 3)), torch.rand(4, 6)
    ((title, maps),) = Captured({"patch_norms": norms}, layout, 0, 1, {}).maps.items()
    assert title == "patch norms" and torch.equal(maps, norms.reshape(4, 2, 3))
