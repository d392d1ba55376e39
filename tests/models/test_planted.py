"""Small parts of models on values that are planted by hand."""

import pytest
import timm
import torch
from timm.layers import AttentionRope
from torch import nn

from helpers.models.attention import Attention, RotaryAttention, Sublayer, Update
from helpers.models.checkpoints import _own_size
from helpers.models.modeling import ShiftedLinear


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


def test_heads_that_share_keys_and_values_stand_side_by_side():
    attn = AttentionRope(8, num_heads=4, num_kv_heads=2, qkv_fused=False, qkv_bias=False)
    x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    seen = RotaryAttention(attn, x, None)
    for got, layer in ((seen.k, attn.k_proj), (seen.v, attn.v_proj)):
        first, second = layer(x)[0].split(2, dim=-1)
        torch.testing.assert_close(got[0], torch.stack([first, first, second, second]))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("gamma", [torch.tensor([2.0, -3.0]), None])
def test_the_bias_of_an_update_is_scaled_like_all_that_it_adds(gamma, biased):
    layer = nn.Linear(2, 2, bias=biased)
    if biased:
        layer.bias.data = torch.tensor([5.0, 7.0])
    layers = Sublayer(nn.Identity(), layer, gamma, nn.Identity())
    update = Update(torch.ones(1), Attention(), torch.ones(1), layers)
    scale = [1.0, 1.0] if gamma is None else [2.0, -3.0]
    assert update.gamma.tolist() == scale
    assert update.bias.tolist() == ([5 * scale[0], 7 * scale[1]] if biased else [0.0, 0.0])


@pytest.mark.parametrize(
    "tokens, size", [(1 + 9, (48, 24)), (1 + 8, None), (1, None), (1 + 14 * 28, None)]
)
def test_the_image_size_is_told_by_a_square_grid_alone(tokens, size):
    with torch.device("meta"):
        sketch = timm.create_model("vit_tiny_patch16_224", patch_size=(16, 8), depth=1)
    assert _own_size(sketch, {"pos_embed": torch.zeros(1, tokens, 192)}) == size
