"""Layout and attention of a model in one call: any model, any images, and timm's own attention."""

import pytest
import timm
import torch
from timm.utils import AttentionExtract

from helpers.capture import attention_received, cls_attention
from helpers.interventions import appended_registers
from helpers.models import TokenLayout, load_backbone, token_layout

NAME = "vit_tiny_patch16_224"
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32, "patch_size": 8}


@pytest.fixture(scope="module")
def model():
    """A module of timm as a pipeline has it, with registers, in training mode."""
    torch.manual_seed(0)
    return timm.create_model(NAME, reg_tokens=3, **SMALL).train()


@pytest.fixture(scope="module")
def pixels():
    return torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_layout_of_a_module_a_name_and_a_backbone(model):
    assert token_layout(model) == TokenLayout((4, 4), registers=3)
    with_registers = TokenLayout((37, 37), registers=4)
    assert token_layout("vit_small_patch14_reg4_dinov2.lvd142m") == with_registers
    assert token_layout("open_clip:ViT-B-32/laion2b_s34b_b79k") == TokenLayout((7, 7))
    assert token_layout("control-registers") == load_backbone("control-registers").layout
    backbone = load_backbone(model)
    with appended_registers(backbone, 2):
        assert token_layout(backbone).appended == 2
    with pytest.raises(ValueError, match=f"unknown model '{NAME[:-1]}'; did you mean '{NAME}"):
        token_layout(NAME[:-1])


def test_attention_is_that_of_timm(model, pixels):
    """timm computes the whole matrix with its attention not fused."""
    whole = timm.create_model(NAME, reg_tokens=3, **SMALL).eval()
    whole.load_state_dict(model.state_dict())
    for block in whole.blocks:
        block.attn.fused_attn = False
    rows = torch.stack([*AttentionExtract(whole, method="hook")(pixels).values()], 1)
    got = cls_attention(model, pixels, blocks="all", heads="all")
    torch.testing.assert_close(got, rows[..., 0, :], rtol=1e-5, atol=1e-6)
    got = attention_received(model, pixels, blocks="all", heads="all")
    torch.testing.assert_close(got, rows.mean(-2), rtol=1e-5, atol=1e-6)
    for function, own in ((cls_attention, rows[..., 0, :]), (attention_received, rows.mean(-2))):
        mean = function(model, pixels)  # of the last block
        torch.testing.assert_close(mean, own[:, -1].mean(1), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mean.sum(-1), torch.ones(5))
    assert model.training and all(block.attn.fused_attn for block in model.blocks)


@pytest.mark.parametrize("function", [cls_attention, attention_received])
def test_any_form_of_a_model(function, model, pixels):
    expected, backbone = function(model, pixels), load_backbone(model)
    torch.testing.assert_close(function(backbone, list(pixels), batch_size=3), expected)
    with appended_registers(backbone, 2):
        assert function(backbone, pixels).shape == (5, 22)
