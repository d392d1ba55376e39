"""Training a finished model on: its targets, its loss, and that it goes on to the bit. Tiny
throughout."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from stopping import resumed
from torchvision.transforms import Compose, Normalize

from helpers.capture import TokenNorms, capture
from helpers.images import load_images
from helpers.interventions import test_time_registers as moved_neurons
from helpers.models import (
    PLANTED_BLOCK,
    REGISTER_NEURON,
    PostHoc,
    TokenLayout,
    load_backbone,
    posthoc,
)
from training import train
from training.added import (
    DistillationLoss,
    Targets,
    _denoised,
    images_of,
    shifts,
    token_distance,
    writer,
)

TINY = PostHoc(
    base="scratch-reg0", train="scenes", test="scenes", n_train=8, n_test=6, neurons="3:5",
    free="low-rank:2@2-7", steps=6, batch_size=4, warmup=1, checkpoints=4,
)  # fmt: skip


# Targets
# --------------------------------------------------------------------------------------------------


def tokens_of(backbone, images):
    return backbone.model.forward_features(
        torch.stack([backbone.transform(picture) for picture in images])
    )


def test_own_and_test_time_targets_are_the_frozen_models(tmp_path, monkeypatch):
    backbone, images = load_backbone("scratch-reg0"), load_images("scenes", 3, 0)
    normed = replace(TINY, space="normed")
    own = Targets(backbone, images, replace(normed, target="own"), tmp_path)
    moved = Targets(backbone, images, normed, tmp_path)
    plain = tokens_of(backbone, images)
    with moved_neurons(backbone, [(3, 5)]):
        expected = tokens_of(backbone, images)
    for got, tokens in ((own.cls, plain[:, :1]), (own.patches, plain[:, 1:])):
        torch.testing.assert_close(got.float(), tokens, rtol=1e-5, atol=2e-2)
    torch.testing.assert_close(moved.patches.float(), expected[:, 1:], rtol=1e-5, atol=2e-2)
    assert torch.equal(moved.cls, own.cls) and own.unit == 1
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    # What lies in the cache is not computed again.
    monkeypatch.setattr("training.added._tokens", None)
    again = Targets(backbone, images, replace(normed, seed=5, steps=9), tmp_path)
    assert torch.equal(again.patches, moved.patches)


def test_targets_are_those_of_the_weights_the_pixels_and_the_framing(tmp_path):
    """What lies in the cache under the same names is made anew where one of them is another."""
    backbone, images = load_backbone("scratch-reg0"), load_images("scenes", 3, 0)
    recipe = replace(TINY, target="own")
    first = Targets(backbone, images, recipe, tmp_path)
    turned = [image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) for image in images]
    replaced = replace(images, read=turned.__getitem__, contents=None)
    other = load_backbone("scratch-reg0")
    other.model.blocks[0].mlp.fc1.weight.data *= 2
    normalised = load_backbone("scratch-reg0")
    normalised.transform = Compose([normalised.transform, Normalize((0.5,) * 3, (0.5,) * 3)])
    for changed in ((backbone, replaced), (other, images), (normalised, images)):
        now = Targets(*changed, recipe, tmp_path)
        assert not torch.allclose(now.patches, first.patches, atol=0.1)
    assert torch.equal(Targets(backbone, images, recipe, tmp_path).patches, first.patches)


def test_before_the_last_norm_tokens_are_compared_in_units_of_an_ordinary_patch(tmp_path):
    backbone, images = load_backbone("scratch-reg0"), load_images("scenes", 3, 0)
    model, x = backbone.model, torch.zeros(1, 3, 64, 64)
    targets = Targets(backbone, images, replace(TINY, target="own"), tmp_path)
    norms = capture(backbone, images, [TokenNorms()])["token_norms"][:, -1, 1:]
    assert torch.allclose(targets.patches.float().norm(dim=-1), norms, rtol=1e-2)
    assert targets.unit == pytest.approx(norms.median().item() / 8, rel=1e-2)
    patches, cls = torch.ones(1, 64, 64), torch.ones(1, 1, 64)
    recipe = replace(TINY, patches=1.0, cls=0.0, registers=0)
    tokens, normed = (posthoc.features(model, x, space)[:, 1:] for space in ("residual", "normed"))
    loss = DistillationLoss(recipe, backbone.layout, 5.0)(
        model, model, x, patches, cls, torch.tensor([-1])
    )
    assert loss.item() == pytest.approx(token_distance(tokens / 5, patches / 5).item(), rel=1e-5)
    assert torch.allclose(backbone.final_norm(tokens), normed, atol=1e-5)


def test_views_are_the_plain_one_and_others_far_apart():
    views = list(shifts((14, 14), 10, 0.15))
    assert views[0] == (0, 0, False) and views == list(shifts((14, 14), 10, 0.15))
    assert all(abs(rows) <= 2 and abs(columns) <= 2 for rows, columns, _ in views)
    assert len({view[:2] for view in views}) == 10 and {view[2] for view in views} == {False, True}


class Colours(torch.nn.Module):
    """A model whose patch tokens are the mean colours of the patches, but for a corner that does
    not see."""

    patch_embed, norm = torch.nn.Conv2d(3, 1, 8), torch.nn.Identity()

    def forward_features(self, x):
        tokens = torch.nn.functional.avg_pool2d(x, 8).flatten(2).mT.clone()
        tokens[:, 0] = 50
        return self.norm(torch.cat([tokens[:, :1], tokens], dim=1))  # [CLS] first


@pytest.mark.parametrize("target", ["mean", "median"])
def test_denoising_puts_patches_back_and_takes_a_blind_corner_out(target):
    backbone = replace(load_backbone("scratch-reg0", image_size=(40, 48)), model=Colours())
    pixels = torch.rand(2, 3, 40, 48, generator=torch.Generator().manual_seed(0))
    recipe = replace(TINY, target=target, views=9, shift=0.4)
    kept = _denoised(backbone, pixels, torch.ones(3, 40, 48), recipe)
    apart = (kept - torch.nn.functional.avg_pool2d(pixels, 8).flatten(2).mT).abs().amax((0, 2))
    blind = apart > 1e-5
    if target == "median":
        assert not blind.any()
    else:  # a mean keeps a part of it, and lays the others' onto its neighbours
        assert blind[0] and 1 < blind.sum() <= 9 and apart[0] < 25


# Loss and items
# --------------------------------------------------------------------------------------------------


def test_the_distance_is_one_minus_cosine_plus_squared_error():
    a, b = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]]), torch.tensor([[[0.0, 1.0], [3.0, 4.0]]])
    assert token_distance(a, b).item() == pytest.approx(0.5 * 1 + 2 / 4)
    assert token_distance(a, a).item() == pytest.approx(0, abs=1e-6)


class Ones(torch.nn.Module):
    """A model whose tokens are ones, and whose answer has the chances 1/4 and 3/4."""

    norm = torch.nn.Identity()

    def forward_features(self, x):
        return self.norm(torch.ones(1, 4, 2))

    def forward(self, x):
        return torch.tensor([[0.0, np.log(3)]])


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 3)])
def test_the_loss_is_the_weighted_sum_of_what_is_asked(weights):
    patches, cls, labels = map(float, weights)
    recipe = replace(TINY, patches=patches, cls=cls, labels=labels)
    wanted = torch.zeros(1, 2, 2), -torch.ones(1, 1, 2), torch.tensor([0])
    loss = DistillationLoss(recipe, TokenLayout((1, 2), registers=1))(
        Ones(), Ones(), torch.zeros(1, 3, 1, 1), *wanted
    )
    expected = patches * (1 + 1) + cls * (2 + 4) + labels * np.log(4)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_images_to_learn_from_are_not_measured_on(tmp_path):
    for i, picture in enumerate(load_images("scenes", 3, 0)):
        picture.save(tmp_path / f"{i}.png")
    same = {
        "train": f"folder:{tmp_path}",
        "test": f"folder:{tmp_path}/.",
        "n_train": 0,
        "n_test": 0,
    }
    with pytest.raises(ValueError, match="share 3 images"):
        images_of(replace(TINY, **same))


# The training
# --------------------------------------------------------------------------------------------------


def test_it_learns_to_be_what_it_was_and_says_what_became_of_it(tmp_path):
    """And goes on from a stop to the bit."""
    _, history, after_the_stop, _ = resumed(TINY, tmp_path, step=2)
    assert [entry["step"] for entry in history] == [0, 2, 4, 6] and after_the_stop == [4, 6]
    last = history[-1]
    assert last["loss"] < history[1]["loss"] and len(last["norm_ratio"]) == 8
    assert len(last["register_norm"]) == len(last["register_attention"]) == 4
    assert 0 <= last["same_answer"] <= 100 and last["norm_largest"] >= last["norm_median"]
    assert (last["writer"] is None) == (last["outlier_images"] <= 0.05)


def test_what_stays_fixed_stays(tmp_path):
    recipe = replace(TINY, tokens="fixed", removed="4:9", registers=1)
    model, _, _ = train(recipe, tmp_path / "x")
    start = posthoc.with_registers(posthoc.base_of(recipe), recipe)
    learnt, before = (one.blocks[4].mlp.fc2 for one in (model, start))
    assert torch.equal(model.reg_token, start.reg_token) and not torch.equal(learnt.up, before.up)
    assert not posthoc.plain(model).blocks[4].mlp.fc2.weight[:, 9].any()


def test_the_writer_is_the_planted_unit():
    block, unit, written = writer(load_backbone("control-content"), load_images("scenes", 12, 4))
    assert (block, unit) == (PLANTED_BLOCK["control-content"], REGISTER_NEURON) and written > 1
