"""Replaced outlier tokens in controls, of which it is known what their outliers hold."""

import pytest
import torch

from helpers.capture import REPLACEMENTS, Lab, TokenNorms, cached_prefix, capture, replaced_study
from helpers.capture.lab import Captured
from helpers.capture.replacements import _outlier_tokens
from helpers.images import load_train_test
from helpers.interventions import test_time_registers as moved_neurons
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, TokenLayout, load_backbone, planted

N, MODELS = 48, ("control-sink", "control-clean", "control-position", "control-registers")


@pytest.fixture(scope="module")
def sets():
    return load_train_test("scenes", "scenes", 64, N, 5)


@pytest.fixture(scope="module")
def study(sets):
    return replaced_study(Lab(MODELS, 5), *sets, 40)


def test_the_tokens_are_the_planted_ones_from_their_block_on(sets, study):
    assert study.tokens.keys() == {*MODELS} - {"control-clean"}
    assert study.plain.keys() == {*MODELS}
    for name, own in study.tokens.items():
        backbone = load_backbone(name)
        pixels = torch.stack([backbone.preprocess(image) for image in sets[1]])
        every = torch.zeros(N, backbone.layout.tokens, dtype=torch.bool)
        backbone.layout.patch_tokens(every, 1).copy_(planted(name, pixels))
        backbone.layout.register_tokens(every, 1).fill_(True)
        found = torch.zeros_like(every).scatter(1, own.tested["outliers"], True)
        assert torch.equal(found, every)
        assert own.blocks == range(PLANTED_BLOCK[name], 5)
        shapes = {kind: tuple(places.shape) for kind, places in own.tested.items()}
        four = dict.fromkeys(("outliers", "normal", "centre"), (N, 4))
        assert shapes == four | {"cls": (N, 1)}
        assert {len(places) for places in own.learnt.values()} == {40}
        assert not own.tested["cls"].any()
        layout = backbone.layout
        centre = {layout.prefix + patch for patch in layout.centre}
        assert all({*row} == centre for row in own.tested["centre"].tolist())
        assert len({*own.tested["normal"].flatten().tolist()}) > 50
        assert own.tested["normal"].min() >= layout.prefix
        assert not every.gather(1, own.tested["normal"]).any()


LAYOUT = TokenLayout((4, 4), registers=1, appended=1)
OUTLIERS = torch.tensor([LAYOUT.prefix - 1, LAYOUT.prefix + 5, LAYOUT.tokens - 1])


def norms(blocks, images, depth=4):
    """Norms of 1 of eight images, of 10 at a register, a patch and an appended token of the first
    `images` after these blocks, of 3 at another patch, and of 100 at [CLS].
    """
    x = torch.ones(8, depth, LAYOUT.tokens)
    x[:images, blocks] = x[:images, blocks].index_fill(-1, OUTLIERS, 10)
    LAYOUT.patch_tokens(x, dim=-1)[..., 6] = 3  # the limit itself
    LAYOUT.cls_token(x, dim=-1).fill_(100)
    return x


def captured(x):
    return Captured({"token_norms": x}, LAYOUT, 0, 4, {})


def test_outliers_of_known_norms():
    """They start where more than 5 % of the images have one, in the first block as in another, and
    are replaced where two images have one in each set and a block follows.
    """

    def found(blocks, learnt=2, tested=2):
        plain = captured(norms([-1], tested)[:, -1])
        return _outlier_tokens(captured(norms(blocks, learnt)), plain, 3.0, seed=0)

    assert found([0, 1, 2, 3]).blocks == range(0, 3)
    assert found([1, 3]).blocks == range(1, 3)
    assert found([2, 3]).blocks == range(2, 3)
    assert found([3]) is None  # no block follows
    assert found([], 0) is None
    assert found([2, 3], learnt=1) is None and found([2, 3], tested=1) is None
    assert found([2]) is None  # after the last block none is left
    for images in (2, 7):
        own = found([2, 3], images, images)
        for kinds in (own.learnt, own.tested):
            at = kinds["outliers"][:images].sort().values
            assert at.tolist() == [OUTLIERS.tolist()] * images
            assert kinds["cls"].flatten().tolist() == [0] * images + [-1] * (8 - images)
            assert all((places[images:] == -1).all() for places in kinds.values())
            # The other three of the four patches in the middle, of which one is an outlier.
            centre = kinds["centre"][:images].sort().values - LAYOUT.prefix
            assert centre.tolist() == [[6, 9, 10]] * images
            normal = kinds["normal"][:images]
            assert normal.min() >= LAYOUT.prefix and not torch.isin(normal, OUTLIERS).any()


def test_what_they_hold_is_needed_where_it_was_planted(study):
    for name in study.tokens:
        assert study.estimates[name]["patches_accuracy"].low > 40  # of the probe's best class
        loss = {how: study.estimates[name][f"loss_{how}"] for how in REPLACEMENTS["outliers"]}
        assert loss["zero"].low > 2
        for how in ("mean", "noise", "other", "bias"):
            assert loss[how].value == 0 if name == "control-sink" else loss[how].low > 30, how
        for how in REPLACEMENTS["normal"]:
            assert abs(study.estimates[name][f"loss_{how}_normal"].value) < 5
    assert study.estimates["control-clean"].keys() == {"outlier_images"}
    for name, share in (("control-clean", 0), ("control-registers", 1)):
        assert study.estimates[name]["outlier_images"].value == share
    # Only of this control [CLS] holds something before the last block.
    assert study.estimates["control-sink"]["loss_mean_cls"].low > 20
    assert study.estimates["control-position"]["loss_mean_cls"].value == 0


def test_in_a_state_of_the_model(sets):
    """Where its neuron is moved, the appended token is the outlier, and holds nothing of the image
    but what the attention of the planted block gave it: nothing."""

    def state(backbone):
        if backbone.name == "control-clean":
            return None
        return moved_neurons(backbone, [(PLANTED_BLOCK[backbone.name], REGISTER_NEURON)])

    names = ["control-position", "control-clean"]
    lab = Lab(names, 5, conditions={"moved": state})
    moved = replaced_study(lab, *sets, 40, condition="moved", kinds=["outliers"])
    (own,) = moved.tokens.values()
    layout = load_backbone("control-position").layout
    assert own.tested["outliers"].unique().tolist() == [layout.tokens]
    found = moved.estimates["control-position"]
    assert found["replaced"].value == 1 and "loss_zero_cls" not in found
    assert "loss_other" in found and moved.plain.keys() == {"control-position"}
    backbone = load_backbone("control-position")
    with state(backbone):
        norms = capture(backbone, sets[1], [TokenNorms(-1)])["token_norms"]
    assert torch.equal(norms, moved.plain["control-position"]["token_norms"])


def test_a_cached_prefix_is_the_mean_outlier_of_other_images(sets):
    """Beside every image, from the planted block on; nothing where there is no outlier."""
    learn, images = sets[0].select(range(24)), sets[1].select(range(10))
    models = ["control-sink", "control-clean"]
    lab = Lab(models, batch_size=4)
    lab.conditions["prefix"] = cached_prefix(lab, learn, len(images))
    passes = lab.passes(images, [TokenNorms()], ["plain", "prefix"])
    assert passes["plain"].keys() == {*models} and [*passes["prefix"]] == ["control-sink"]
    plain, changed = (passes[x]["control-sink"] for x in passes)
    assert changed.layout == plain.layout.with_appended(1)
    found = changed.layout.appended_tokens(changed["token_norms"], dim=-1)[..., 0]  # (image, block)
    start = PLANTED_BLOCK["control-sink"]
    # What a block returns is replaced on its way to the next one.
    usual = plain["token_norms"][:, start + 1 :].amax(-1)
    assert found[:, : start + 1].max() < usual.min() / 3
    later = found[:, start + 1 :]
    torch.testing.assert_close(later[:, :-1], later[:1, :-1].expand_as(later[:, :-1]))
    torch.testing.assert_close(later, usual, rtol=0.1, atol=0)
    assert load_backbone("control-sink").layout.appended == 0
