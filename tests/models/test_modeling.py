"""The loader that goes with an edited model: its layer on numbers planted by hand, and its
registers against timm's own."""

import json
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from helpers.models.modeling import ShiftedLinear, add_registers, load

SMALL = {
    "img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2, "num_classes": 3
}  # fmt: skip
UNIT = 5
NEURONS = {"blocks.1.mlp.fc2": [[UNIT, 2], [0, 1]]}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def made(**options):
    model = VisionTransformer(**SMALL | options).eval()
    for i, p in enumerate(model.parameters()):
        p.data.copy_(drawn(*p.shape, seed=i))
    return model


@pytest.mark.parametrize("clear, cls", [("patches", 1.0), ("all", 0.0)])
def test_a_moved_unit_acts_at_its_register_alone(clear, cls):
    """Of [CLS], two registers and two patches: the largest of all but registers, with its sign."""
    linear = nn.Linear(2, 2, bias=False)
    nn.init.eye_(linear.weight)
    unit, other = torch.tensor([1.0, 90.0, 80.0, -7.0, 5.0]), torch.arange(5.0)
    layer = ShiftedLinear(linear, units=[0], owners=[1], first=1, prefix=3, clear=clear)
    got = layer(torch.stack([unit, other], dim=1)[None])[0]
    assert got[:, 0].tolist() == [cls, 0.0, -7.0, 0.0, 0.0]
    assert torch.equal(got[:, 1], other)


def test_a_unit_of_two_registers_and_images_of_their_own():
    """Each image has its own largest, each unit its own register; the layer keeps its bias, and
    whether it learns."""
    linear = nn.Linear(3, 2).requires_grad_(False)
    layer = ShiftedLinear(linear, units=[2, 0], owners=[1, 0], first=1, prefix=3)
    x = drawn(2, 5, 3)
    moved = x.clone()
    moved[:, 1:, [0, 2]] = 0
    for image in range(2):
        for unit, place in ((2, 2), (0, 1)):
            values = x[image, [0, 3, 4], unit]
            moved[image, place, unit] = values[values.abs().argmax()]
    torch.testing.assert_close(layer(x), linear(moved))
    assert layer.weight.shape == (1, 2, 3) and not layer.weight.requires_grad
    assert (layer.in_features, layer.out_features) == (3, 2)


@pytest.mark.parametrize(
    "options", [{}, {"reg_tokens": 2}, {"no_embed_class": True}, {"class_token": False}], ids=str
)
def test_registers_are_zeros_behind_the_prefix(options):
    """By hand: what enters the blocks of the plain model, with zeros behind its prefix."""
    options |= {} if options.get("class_token", True) else {"global_pool": "avg"}
    model, x = made(**options).requires_grad_(False), drawn(2, 3, 8, 8)
    old, own = model.num_prefix_tokens, model.num_reg_tokens
    tokens = model._pos_embed(model.patch_embed(x))
    tokens = torch.cat([tokens[:, :old], torch.zeros(2, 3, 8), tokens[:, old:]], dim=1)
    tokens = model.blocks(tokens)
    patches = tokens[:, old + 3 :]
    pooled = tokens[:, 0] if model.cls_token is not None else patches.mean(1)
    expected = model.head(model.fc_norm(model.norm(pooled)))
    edited = add_registers(model, 3, {})
    assert edited is model and (model.num_prefix_tokens, model.num_reg_tokens) == (old + 3, own + 3)
    assert not (model.reg_token.requires_grad or model.pos_embed.requires_grad)
    torch.testing.assert_close(edited(x), expected)
    maps = edited.get_intermediate_layers(x, n=1, norm=False)[0]
    torch.testing.assert_close(maps, patches)


def test_what_learns_goes_on_learning():
    model = add_registers(made(), 2, NEURONS)
    layer = model.blocks[1].mlp.fc2
    assert isinstance(layer, ShiftedLinear) and type(model.blocks[0].mlp.fc2) is nn.Linear
    assert (layer.first, layer.prefix, layer.clear) == (1, 3, "patches")
    assert [layer.units.tolist(), layer.owners.tolist()] == NEURONS["blocks.1.mlp.fc2"]
    assert all(p.requires_grad for p in model.parameters())


def kept(model, folder):
    weights = {key: x.contiguous() for key, x in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


@pytest.fixture(params=["of timm", "of no name"])
def folder(request, tmp_path):
    """An edited model as files; its check is what a second one, made by hand, returns."""
    name = "vit_tiny_patch16_224" if request.param == "of timm" else None
    arguments = SMALL | ({} if name is None else {"num_heads": 4})
    plain = made(**arguments)
    model = add_registers(plain, 2, NEURONS, "all")
    kept(model, tmp_path)
    config = {"architecture": name, "arguments": arguments, "neurons": NEURONS}
    config |= {"registers": 2, "clear": "all"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, model


def checked_by(folder, pixels, output):
    save_file({"pixels": pixels, "output": output.detach()}, folder / "check.safetensors")


def test_the_loader_makes_the_model_and_checks_it(folder):
    place, model = folder
    pixels = drawn(1, 3, 8, 8).half()
    output = model(pixels.float())
    checked_by(place, pixels, output)
    loaded = load(place)
    assert torch.equal(loaded(pixels.float()), output)
    assert loaded.blocks[1].mlp.fc2.clear == "all"
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())


@pytest.mark.parametrize(
    "spoil, well",
    [
        (lambda y: y * 1.0009, True),
        (lambda y: y * 1.0011, False),
        (lambda y: y * torch.nan, False),
        (lambda y: y.where(y != y.max(), -y.max()), False),  # one of the numbers alone
    ],
    ids=["near", "off", "nan", "one"],
)
def test_the_check_fails_where_outputs_are_others(folder, spoil, well):
    place, model = folder
    pixels = drawn(4, 3, 8, 8).half()
    checked_by(place, pixels, spoil(model(pixels.float())))
    with nullcontext() if well else pytest.raises(RuntimeError, match="the neurons are not moved"):
        load(place)


def test_a_model_whose_outputs_are_zeros_is_well(folder):
    place, model = folder
    nn.init.zeros_(model.head.weight), nn.init.zeros_(model.head.bias)
    kept(model, place)
    checked_by(place, torch.zeros(1, 3, 8, 8), torch.zeros(1, 3))
    load(place)
