"""Training a finished model on: its targets, its loss, and that it goes on to the bit. Tiny
throughout."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from stopping import goes_on

from helpers.capture import TokenNorms, capture
from helpers.cli import main
from helpers.images import load_images
from helpers.interventions import test_time_registers as moved_neurons
from helpers.models import (
    PLANTED_BLOCK,
    REGISTER_NEURON,
    PostHoc,
    TokenLayout,
    load_backbone,
    posthoc,
    trained,
)
from helpers.training import Diverged, train
from helpers.training.added import (
    Likeness,
    Shown,
    Targets,
    _denoised,
    _shifted,
    images_of,
    shifts,
    unlike,
    writer,
)

TINY = PostHoc(
    base="scratch-reg0", train="scenes", test="scenes", n_train=8, n_test=6, neurons="3:5",
    free="low-rank:2@2-7", steps=6, batch_size=4, warmup=1, checkpoints=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Model, history, and the steps after a stop: a training that goes on is the same to the
    bit."""
    return goes_on(TINY, tmp_path_factory.mktemp("whole"), step=2)[:3]


# Targets
# --------------------------------------------------------------------------------------------------


def tokens_of(backbone, images):
    return backbone.model.forward_features(
        torch.stack([backbone.transform(picture) for picture in images])
    )


def test_own_and_test_time_targets_are_the_frozen_models(tmp_path):
    backbone, images = load_backbone("scratch-reg0"), load_images("scenes", 3, 0)
    plain = tokens_of(backbone, images)
    normed = replace(TINY, space="normed")
    own = Targets(backbone, images, replace(normed, target="own"), tmp_path)
    assert torch.allclose(own.patches.float(), plain[:, 1:], atol=2e-2) and torch.allclose(
        own.cls.float(), plain[:, :1], atol=2e-2
    )
    moved = Targets(backbone, images, normed, tmp_path)
    with moved_neurons(backbone, [(3, 5)]):
        expected = tokens_of(backbone, images)
    assert torch.allclose(moved.patches.float(), expected[:, 1:], atol=2e-2) and torch.equal(
        moved.cls, own.cls
    )
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert own.unit == 1
    backbone.model.forward_features = None  # what lies in the cache is not computed again
    assert torch.equal(
        Targets(backbone, images, replace(normed, seed=5, steps=9), tmp_path).patches, moved.patches
    )


def test_before_the_last_norm_tokens_are_compared_in_units_of_an_ordinary_patch(tmp_path):
    backbone, images = load_backbone("scratch-reg0"), load_images("scenes", 3, 0)
    targets = Targets(backbone, images, replace(TINY, target="own"), tmp_path)
    norms = capture(backbone, images, [TokenNorms()])["token_norms"][:, -1, 1:]
    assert torch.allclose(targets.patches.float().norm(dim=-1), norms, rtol=1e-2)
    assert targets.unit == pytest.approx(norms.median().item() / 8, rel=1e-2)
    patches, cls = torch.ones(1, 64, 64), torch.ones(1, 1, 64)
    recipe, x = replace(TINY, patches=1.0, cls=0.0, registers=0), torch.zeros(1, 3, 64, 64)
    tokens = posthoc.features(backbone.model, x, "residual")[:, 1:]
    loss = Likeness(recipe, backbone.layout, 5.0)(
        backbone.model, backbone.model, x, patches, cls, torch.tensor([-1])
    )
    assert loss.item() == pytest.approx(unlike(tokens / 5, patches / 5).item(), rel=1e-5)
    assert torch.allclose(
        backbone.final_norm(tokens), posthoc.features(backbone.model, x, "normed")[:, 1:], atol=1e-5
    )


def test_views_are_the_plain_one_and_others_far_apart():
    views = list(shifts((14, 14), 10, 0.15))
    assert views[0] == (0, 0, False) and views == list(shifts((14, 14), 10, 0.15))
    assert all(abs(rows) <= 2 and abs(columns) <= 2 for rows, columns, _ in views)
    assert len({view[:2] for view in views}) == 10 and {view[2] for view in views} == {False, True}


def test_what_is_shifted_comes_from_inside():
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    assert _shifted(x, 1, -1, torch.tensor(-1.0)).tolist() == [
        [[[-1, -1, -1, -1], [1, 2, 3, -1], [5, 6, 7, -1]]]
    ]


class Colours(torch.nn.Module):
    """A model whose patch tokens are the mean colours of the patches, but for a corner that does
    not see."""

    norm = torch.nn.Identity()

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
    true = torch.nn.functional.avg_pool2d(pixels, 8).flatten(2).mT
    blind = {tuple(rows) for rows in np.argwhere((kept - true).abs().amax((0, 2)).numpy() > 1e-5)}
    if target == "median":
        assert not blind
    else:  # a mean keeps a part of it, and lays the others' onto its neighbours
        assert (0,) in blind and 1 < len(blind) <= 9
        assert (kept - true).abs()[:, 0].max() < 25


# Loss and items
# --------------------------------------------------------------------------------------------------


def test_unlike_is_one_minus_cosine_plus_squared_error():
    a, b = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]]), torch.tensor([[[0.0, 1.0], [3.0, 4.0]]])
    assert unlike(a, b).item() == pytest.approx(0.5 * 1 + 2 / 4)
    assert unlike(a, a).item() == pytest.approx(0, abs=1e-6)


def test_the_loss_is_the_weighted_sum_of_what_is_asked():
    class Model(torch.nn.Module):
        norm = torch.nn.Identity()

        def forward_features(self, x):
            return self.norm(torch.ones(1, 4, 2))

        def forward(self, x):
            return torch.tensor([[0.0, np.log(3)]])

    layout = TokenLayout((1, 2), registers=1)
    patches, cls, label = torch.zeros(1, 2, 2), -torch.ones(1, 1, 2), torch.tensor([0])
    parts = {"patches": 1 + 1, "cls": 2 + 4, "labels": np.log(4)}
    for weights in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, 3)):
        recipe = replace(TINY, **dict(zip(parts, map(float, weights), strict=True)))
        loss = Likeness(recipe, layout)(
            Model(), Model(), torch.zeros(1, 3, 1, 1), patches, cls, label
        )
        assert loss.item() == pytest.approx(
            sum(w * part for w, part in zip(weights, parts.values(), strict=True)), rel=1e-5
        )


def test_items_hang_on_recipe_and_position_alone():
    images, _ = images_of(TINY)
    transform = load_backbone("scratch-reg0").transform
    shown = Shown(images, transform, None, TINY, 0)
    assert torch.equal(Shown(images, transform, None, TINY, 1)[0][0], shown[4][0])
    epochs = [[float(shown[i + 8 * epoch][0].sum()) for i in range(8)] for epoch in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": "folder:{}/.", "n_test": 0}, "3 images lie in both"),
        ({"labels": 1.0}, "has no labels"),
        ({"train": "folder:{}/empty"}, "no images"),
    ],
    ids=["both", "labels", "empty"],
)
def test_images_that_cannot_be_learnt_from(tmp_path, change, message):
    for i, picture in enumerate(load_images("scenes", 3, 0)):
        picture.save(tmp_path / f"{i}.png")
    (tmp_path / "empty").mkdir()
    change = {"train": "folder:{}"} | change
    own = {k: v.format(tmp_path) if isinstance(v, str) else v for k, v in change.items()}
    with pytest.raises(ValueError, match=message):
        images_of(replace(TINY, n_train=0, **own))


# The training
# --------------------------------------------------------------------------------------------------


def test_it_learns_to_be_what_it_was_and_says_what_became_of_it(whole):
    _, history, after_the_stop = whole
    assert [entry["step"] for entry in history] == [0, 2, 4, 6] and after_the_stop == [4, 6]
    last = history[-1]
    assert last["loss"] < history[1]["loss"] and len(last["norm_ratio"]) == 8
    assert len(last["register_norm"]) == len(last["register_attention"]) == 4
    assert 0 <= last["same_answer"] <= 100 and last["norm_largest"] >= last["norm_median"]
    assert (last["writer"] is None) == (last["outlier_images"] <= 0.05)


def test_a_loss_that_is_not_finite_ends_it(tmp_path):
    with pytest.raises(Diverged, match=r"at step \d; .* train with a lower lr"):
        train(replace(TINY, lr=1e30, clip=1e30, free="all", warmup=0, steps=20), tmp_path / "x")


def test_what_stays_fixed_stays(tmp_path):
    recipe = replace(TINY, tokens="fixed", removed="4:9", registers=1)
    model, _, _ = train(recipe, tmp_path / "x")
    start = posthoc.with_registers(posthoc.base_of(recipe), recipe)
    assert torch.equal(model.reg_token, start.reg_token)
    assert not posthoc.plain(model).blocks[4].mlp.fc2.weight[:, 9].any()
    assert not torch.equal(model.blocks[4].mlp.fc2.up, start.blocks[4].mlp.fc2.up)


def test_the_writer_is_the_planted_unit():
    block, unit, written = writer(load_backbone("control-content"), load_images("scenes", 12, 4))
    assert (block, unit) == (PLANTED_BLOCK["control-content"], REGISTER_NEURON) and written > 1


# The command line
# --------------------------------------------------------------------------------------------------


def test_the_command_trains_into_a_base_that_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    typed = (
        "train offered --base scratch-reg0 --registers 1 --seeds 3 --out made --set train=scenes "
        "--set test=scenes"
    )
    tiny = (
        "n_train=8 n_test=6 neurons=3:5 free=low-rank:2@2-7 steps=2 batch_size=4 warmup=1 "
        "checkpoints=2"
    )
    assert main([*typed.split(), *(word for one in tiny.split() for word in ("--set", one))]) == 0
    name = "registers-offered-reg1-seed3"
    model = load_backbone(f"registers:made/{name}.safetensors")
    assert model.layout.registers == 1
    told = trained.record(f"registers:made/{name}.safetensors")
    assert PostHoc(**told["recipe"]) == replace(
        TINY, target="own", registers=1, seed=3, steps=2, checkpoints=2
    )
    card = (tmp_path / "made" / "README.md").read_text()
    assert f"| `{name}` | 1 | 3 | " in card and "Differences to `scratch-reg0`" in card
    assert {path.name for path in tmp_path.iterdir()} == {"made", "_build"}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("train cpu --base scratch-reg0", "--base: 'cpu' trains from scratch; leave it out"),
        ("train asked --set base=x", "--set base: give it as --base"),
        ("train asked --set free=some", "free is 'some'; give registers"),
        ("train asked --set train=nowhere", "unknown data set 'nowhere'"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_runs(
    typed, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(typed.split()) == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_base_that_is_not_here_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    typed = (
        "train asked --base vit_tiny_patch16_224.augreg_in21k --registers 0 --seeds 0 --out made "
        "--set train=scenes"
    )
    assert main([*typed.split(), *"--set test=scenes --set n_train=8 --set n_test=6".split()]) == 1
    assert "vit_tiny_patch16_224.augreg_in21k" in capsys.readouterr().out and not list(
        (tmp_path / "made").glob("*.json")
    )
