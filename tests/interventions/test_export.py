"""A model with test-time registers for good, in this process: it gives what the intervention
gives."""

import copy

import pytest
import torch
from torch import nn
from zoo import hooks, models, pixels

from helpers.capture import OnPatches, capture
from helpers.interventions import model_with_test_time_registers, write_model
from helpers.interventions import test_time_registers as registers_of
from helpers.models import CONTROL_DATA, TokenLayout, load_backbone, wrap_timm

every = models(
    "small", "registers", "swiglu", "pooled", "layerscale", "qk-norm", "dinov3-reg4", "eva02",
    "rope-mixed", "shared-keys",
)  # fmt: skip
vit = models("small")
NEURONS = [(2, 7), (0, 3), (2, 50), (1, 0), (0, 59)]


def inside(backbone, x, *arguments, **options):
    with torch.inference_mode(), registers_of(backbone, *arguments, **options):
        return backbone(x)


@every
@pytest.mark.parametrize("count", [1, 3])
def test_export(backbone, count):
    x = pixels(backbone)
    plain, expected = backbone(x), inside(backbone, x, NEURONS, count, seed=4)
    model = model_with_test_time_registers(backbone, NEURONS, count, 4)
    assert type(model) is type(backbone.model) and not model.training
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-5)
    assert (expected - plain).abs().max() > 1e-3 and torch.equal(backbone(x), plain)
    assert hooks(backbone.model) == 0
    torch.testing.assert_close(copy.deepcopy(model)(x), expected, rtol=0, atol=1e-5)
    alone = torch.cat([model(image[None]) for image in x])
    torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-5)
    # It shares nothing with the model that it is of.
    for p in model.parameters():
        p.zero_()
    assert torch.equal(backbone(x), plain)


@models("qk-norm")
def test_export_at_another_image_size(backbone):
    """Position embedding resampled by timm: as many registers, where the patches end."""
    model = model_with_test_time_registers(backbone, NEURONS, 2)
    larger = wrap_timm("larger", copy.deepcopy(backbone.model), CONTROL_DATA, pretrained=False)
    larger.layout = TokenLayout((6, 5))
    x = torch.randn(2, 3, 48, 40, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(x), inside(larger, x, NEURONS, 2), rtol=0, atol=1e-5)


@vit
def test_export_keeps_timms_methods(backbone):
    """The registers are prefix tokens, so timm's own views of the features fit the grid after every
    block."""
    model, x = model_with_test_time_registers(backbone, NEURONS, 2), pixels(backbone)
    seen = OnPatches("tokens", lambda grid: grid, "all")
    with registers_of(backbone, NEURONS, 2):
        expected = capture(backbone, x, [seen])["tokens"]
    expected = expected.movedim(-1, 2)  # (image, block, width, row, column)
    maps = model.get_intermediate_layers(x, n=3, reshape=True)
    torch.testing.assert_close(torch.stack(maps, 1), expected, rtol=1e-5, atol=1e-5)
    assert [part.shape for part in model.get_intermediate_layers(x, n=3)] == [(3, 16, 48)] * 3
    final, maps = model.forward_intermediates(x, indices=[0, 2], norm=False)
    torch.testing.assert_close(torch.stack(maps, 1), expected[:, [0, 2]], rtol=1e-5, atol=1e-5)
    # With [CLS] and two registers, as in any model of timm's that has some.
    assert final.shape == (3, 19, 48)
    model.reset_classifier(3)
    assert model(x).shape == (3, 3)
    model.requires_grad_(True)(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@models("open_clip", "pe")
def test_other_models_are_refused(backbone):
    with pytest.raises(ValueError, match="test_time_registers"):
        model_with_test_time_registers(backbone, NEURONS)


def test_what_is_not_rebuilt_is_not_written(tmp_path):
    """A layer scale that the architecture's name does not say."""
    backbone = load_backbone("vit_tiny_patch16_224", pretrained=False)
    backbone.blocks[0].ls1 = nn.Linear(192, 192)
    with pytest.raises(ValueError, match="blocks.0.ls1.bias"):
        write_model(backbone, NEURONS, tmp_path, torch.zeros(1, 3, 224, 224))
    assert not [*tmp_path.iterdir()]
