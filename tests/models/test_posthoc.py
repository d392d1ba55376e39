"""Registers in a finished model: what learns, what is stored, and that plain timm takes it."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from helpers.models import PostHoc, load_backbone, posthoc, timm_family, trained
from helpers.models.family import Framing

BASE = "scratch-reg0"  # 64 px, patches of 8, 8 blocks of width 64
TINY = {"base": BASE, "neurons": "3:5", "free": "low-rank:2@2-3", "steps": 2, "checkpoints": 2}


@pytest.fixture
def pixels():
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def started(**changes):
    """A recipe and the model at its start, its learnable weights moved as a training would."""
    recipe = PostHoc(**TINY | changes)
    model = posthoc.with_registers(posthoc.base_of(recipe), recipe)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=chance)
    return recipe, model.eval()


def test_a_model_without_registers_starts_as_its_base(pixels):
    recipe = PostHoc(**TINY | {"registers": 0})
    base = load_backbone(BASE)(pixels)
    assert torch.equal(posthoc.with_registers(posthoc.base_of(recipe), recipe).eval()(pixels), base)


def test_registers_are_random_by_the_seed_and_stand_before_the_patches():
    tokens = [
        posthoc.with_registers(posthoc.base_of(recipe), recipe).reg_token
        for recipe in (PostHoc(**TINY), PostHoc(**TINY), PostHoc(**TINY | {"seed": 1}))
    ]
    assert tokens[0].shape == (1, 4, 64)
    assert torch.equal(tokens[0], tokens[1]) and not torch.equal(tokens[0], tokens[2])
    assert 0.5 / 8 < tokens[0].std() < 2 / 8


LEARNS = [  # what is free, whether registers learn, some of what does, and blocks
    ("registers", "learnt", set(), set()),
    ("blocks:6", "learnt", {"blocks.6.norm1.weight", "blocks.6.mlp.fc2.bias"}, {6}),
    ("blocks:6", "fixed", {"blocks.6.norm1.weight", "blocks.6.mlp.fc2.bias"}, {6}),
    ("ph-reg", "learnt", {"pos_embed", "patch_embed.proj.weight"}, {7}),
    ("low-rank:2@1-2,5", "learnt", {"blocks.5.mlp.fc2.up", "blocks.1.attn.qkv.down"}, {1, 2, 5}),
    ("all", "fixed", {"cls_token", "norm.weight", "blocks.0.attn.qkv.weight"}, {*range(8)}),
]


@pytest.mark.parametrize("free, tokens, some, blocks", LEARNS)
def test_what_is_free_learns_and_nothing_else(free, tokens, some, blocks):
    recipe = PostHoc(**TINY | {"free": free, "tokens": tokens})
    model = posthoc.with_registers(posthoc.base_of(recipe), recipe)
    learns = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learns >= some and "head.weight" not in learns
    assert ("reg_token" in learns) == (tokens == "learnt")
    assert {int(name.split(".")[1]) for name in learns if name.startswith("blocks.")} == blocks
    if free.startswith("low-rank"):
        assert all(name.endswith((".up", ".down")) for name in learns - {"reg_token"})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"registers": 0},
        {"free": "blocks:6-7"},
        {"free": "ph-reg"},
        {"removed": "2:7,4:9"},
        {"removed": "3:7", "unread": "attention:5,9@2,6-7"},
        {"unread": "values:5@3"},
        {"tokens": "fixed"},
        {"free": "all"},
    ],
)
def test_what_is_stored_gives_the_same_model(changes, pixels, tmp_path):
    recipe, model = started(**changes)
    path = tmp_path / "a.safetensors"
    posthoc.save(path, model, recipe)
    assert trained.read_weights(path, PostHoc)[0] == recipe
    again = load_backbone(f"registers:{path}")
    assert again.layout.registers == recipe.registers
    expected = posthoc.plain(model)(pixels)
    rounding, change = (
        float((x - expected).abs().max()) for x in (again(pixels), load_backbone(BASE)(pixels))
    )
    assert rounding < 0.02 * change
    assert torch.equal(model(pixels), posthoc.plain(model)(pixels))
    for block, unit in posthoc.units(recipe.removed):
        assert not again.model.blocks[block].mlp.fc2.weight[:, unit].any()
        assert again.model.blocks[block].mlp.fc2.weight[:, unit + 1].any()


@pytest.mark.parametrize(
    ("part", "rows"), [("attention", slice(128)), ("values", slice(128, None))]
)
def test_a_channel_that_later_blocks_cannot_read(part, rows):
    _, model = started(unread=f"{part}:5@3-4")
    for block, layers in enumerate(posthoc.plain(model).blocks):
        weight = layers.attn.qkv.weight.clone()
        assert bool(weight[rows, 5].any()) == (block not in (3, 4))
        weight[rows, 5] = 1
        assert weight.any(0).all() and weight.any(1).all()


@pytest.mark.parametrize("cls", [1, 0])
def test_nothing_attends_to_masked_patches(cls, pixels, tmp_path):
    base = BASE
    if not cls:
        plain = trained.Recipe(pool="avg", width=32, depth=2)
        trained.save(path := tmp_path / "base.safetensors", trained.build(plain, 10), plain)
        base = f"scratch:{path}"
    recipe, model = started(
        base=base, registers=0, cls=cls, free="low-rank:2@1", unread="patches:0,9@0-1"
    )
    hidden, other = pixels.clone(), pixels.clone()
    hidden[:, :, :8, :8] = 0  # patch 0
    hidden[:, :, 8:16, 8:16] = 0  # patch 9
    other[:, :, :8, 8:16] = 0
    seen = torch.ones(64, dtype=torch.bool)
    seen[[0, 9]] = False
    first, hiding, changed = (
        model.blocks[:2](model._pos_embed(model.patch_embed(x)))[:, cls:][:, seen]
        for x in (pixels, hidden, other)
    )
    torch.testing.assert_close(hiding, first)
    assert not torch.allclose(changed, first)
    torch.testing.assert_close(posthoc.plain(model)(pixels), model(pixels))
    posthoc.save(path := tmp_path / "a.safetensors", model, recipe)
    with pytest.raises(ValueError, match="masked keys"):
        load_backbone(f"registers:{path}")


@pytest.mark.parametrize(
    "changes", [{"unread": "keys:41@8"}, {"unread": "patches:0@8", "registers": 4}]
)
def test_what_cannot_be_unread_is_refused(changes):
    with pytest.raises(ValueError, match=r"attention:41@8-11|where keys are masked"):
        PostHoc(**TINY | changes)


def test_plain_timm_takes_it(pixels, tmp_path, monkeypatch):
    load = timm_family.load

    def drawn(name, pretrained, framing):
        torch.manual_seed(0)
        return load(name, False, Framing((64, 64)))

    monkeypatch.setattr(timm_family, "load", drawn)
    recipe = PostHoc(base="vit_tiny_patch16_224", neurons="3:5", free="low-rank:2@2-3")
    model = posthoc.with_registers(posthoc.base_of(recipe), recipe)
    posthoc.save(tmp_path / "a.safetensors", model, recipe)
    mine = load_backbone(f"registers:{tmp_path / 'a.safetensors'}")
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=64, reg_tokens=4).eval()
    theirs.load_state_dict(mine.model.state_dict())
    assert torch.allclose(theirs(pixels), mine(pixels), atol=1e-5)


def test_other_image_sizes_work(tmp_path):
    recipe, model = started()
    posthoc.save(path := tmp_path / "a.safetensors", model, recipe)
    assert load_backbone(f"registers:{path}", image_size=96).layout.tokens == 1 + 4 + 144


def test_a_difference_to_other_weights_is_refused(tmp_path):
    recipe, model = started()
    posthoc.save(path := tmp_path / "a.safetensors", model, recipe)
    about = {"recipe": json.dumps(vars(recipe)), "base": "of others"}
    save_file(load_file(path), path, metadata=about)
    with pytest.raises(ValueError, match=f"other weights of '{BASE}'"):
        load_backbone(f"registers:{path}")


@pytest.mark.parametrize("base", ["nowhere", "scratch-reg4", "resnet18"])
def test_what_the_base_lacks_is_named(base):
    with pytest.raises(ValueError, match=base):
        posthoc.base_of(PostHoc(**TINY | {"base": base}))
