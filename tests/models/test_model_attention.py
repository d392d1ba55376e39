"""Attention in half precision, and what it leaves to others. Its rows, values and updates are held
to a pass by hand in tests/capture/test_capture.py and test_cls_parts.py."""

import torch
from timm.layers import Attention as Plain
from torch import nn

from helpers.models.attention import Attention, Sublayer, TimmAttention, Update
from helpers.models.tokens import TokenLayout


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_logits_of_half_precision_are_summed_in_float32():
    output = drawn(2, 6, 3 * 16, seed=0).bfloat16()
    query, keys, values = output.double().unflatten(-1, (3, 4, 4)).unbind(2)
    expected = torch.einsum("bhd,bthd->bht", query[:, 0], keys) / 4**0.5
    seen = TimmAttention(Plain(16, 4), output)
    logits = seen.cls_logits(TokenLayout((1, 4), registers=1))
    torch.testing.assert_close(logits, expected.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(seen.v, values.float().transpose(1, 2))


def test_what_was_seen_in_inference_mode_leaves_gradients_to_others():
    """The rows of zeros are made once, by whoever asks first."""
    attn, layout, output = Plain(6, 2), TokenLayout((1, 2)), drawn(1, 3, 18, seed=1)
    with torch.inference_mode():
        TimmAttention(attn, output).cls_logits(layout)
    TimmAttention(attn, output.requires_grad_()).cls_logits(layout).sum().backward()
    assert output.grad.count_nonzero() == 6 + 3 * 6  # the query of [CLS], and all keys


def test_an_update_without_a_bias_or_of_half_precision():
    layer = nn.Linear(2, 2, bias=False).bfloat16()
    layers = Sublayer(layer, torch.ones(2).half(), nn.Identity())
    update = Update(torch.ones(1).half(), Attention(), torch.ones(1).half(), layers)
    assert update.bias.tolist() == [0.0, 0.0]
    parts = (update.before, update.after, update.weight, update.gamma, update.bias)
    assert {x.dtype for x in parts} == {torch.float32}
