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


def test_what_learns_goes_on_learning():
    model = add_registers(made(), 2, NEURONS)
    layer = model.blocks[1].mlp.fc2
    assert isinstance(layer, ShiftedLinear) and type(model.blocks[0].mlp.fc2) is nn.Linear
    assert (layer.first, layer.prefix) == (1, 3)
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
    model = add_registers(plain, 2, NEURONS)
    kept(model, tmp_path)
    config = {"architecture": name, "arguments": arguments, "neurons": NEURONS}
    config |= {"registers": 2}
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
