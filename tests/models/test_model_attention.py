"""Attention against what the libraries' own modules compute where it is not fused."""

from functools import partial

import pytest
import torch
from timm.layers import Attention as Plain
from timm.layers import AttentionRope
from timm.models.eva import EvaAttention
from torch import nn

from helpers.models.attention import (
    Attention,
    RotaryAttention,
    Sublayer,
    TimmAttention,
    TorchAttention,
    Update,
)
from helpers.models.tokens import TokenLayout

WIDTH, HEADS, DIM, PREFIX = 16, 4, 4, 2
LAYOUT = TokenLayout((1, 4), registers=PREFIX - 1)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = drawn(2, LAYOUT.tokens, WIDTH, seed=1)
ROTATION = drawn(LAYOUT.patches, 2 * DIM, seed=2)  # no angles, so that nothing cancels
OWN = {"num_heads": HEADS, "qkv_bias": True}
ROTARY = OWN | {"num_prefix_tokens": PREFIX}
PLAIN = {"scale_norm": False}
NORMED = {"qk_norm": True, "norm_layer": nn.LayerNorm}
KINDS = {
    "timm": lambda: Plain(WIDTH, **OWN),
    "timm, normed": lambda: Plain(WIDTH, **OWN | NORMED),
    "torch": lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True),
    "eva": lambda: EvaAttention(WIDTH, **ROTARY, **PLAIN),
    "eva, apart, half": lambda: EvaAttention(
        WIDTH, **ROTARY, **PLAIN, qkv_fused=False, rotate_half=True
    ),
    "eva, normed": lambda: EvaAttention(WIDTH, **ROTARY, **PLAIN | NORMED),
    "rope": lambda: AttentionRope(WIDTH, **ROTARY),
    "rope, shared": lambda: AttentionRope(WIDTH, **ROTARY, num_kv_heads=2, qkv_fused=False),
}


def drawn_into(attn):
    attn = attn.eval().requires_grad_(False)
    for i, p in enumerate(attn.parameters()):
        p.copy_(drawn(*p.shape, seed=i + 3))
    attn.fused_attn = False
    return attn


def looked(attn, x=X, rotation=ROTATION):
    """What this project sees of a pass of `attn`; and, in its own words, the rows, the values that
    they weigh, heads side by side, and what it returns."""
    told = {}
    if isinstance(attn, nn.MultiheadAttention):
        out, rows = attn(x, x, x, average_attn_weights=False)
        inverse = torch.linalg.inv(attn.out_proj.weight.double())
        weighed = ((out - attn.out_proj.bias).double() @ inverse.T).float()
        return TorchAttention(attn, x), rows, weighed, out
    attn.attn_drop.register_forward_hook(lambda _, __, rows: told.update(rows=rows))
    attn.proj.register_forward_pre_hook(lambda _, inputs: told.update(weighed=inputs[0]))
    if not isinstance(attn, Plain):
        out = attn(x, rope=rotation)
        return RotaryAttention(attn, x, rotation), told["rows"], told["weighed"], out
    attn.qkv.register_forward_hook(lambda _, __, qkv: told.update(qkv=qkv))
    out = attn(x)
    return TimmAttention(attn, told["qkv"]), told["rows"], told["weighed"], out


near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_values_are_those_of_the_module(kind):
    seen, rows, weighed, _ = looked(drawn_into(KINDS[kind]()))
    assert rows.shape == (2, HEADS, LAYOUT.tokens, LAYOUT.tokens)
    near((seen.q @ seen.k.mT * seen.scale).softmax(-1), rows)
    near(seen.cls_row(LAYOUT), rows[:, :, 0])
    near((rows @ seen.v).transpose(1, 2).flatten(2), weighed)


@pytest.mark.parametrize("gamma", [drawn(WIDTH, seed=9), None])
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_its_bias_and_the_weighted_values(kind, gamma):
    attn = drawn_into(KINDS[kind]())
    seen, rows, _, out = looked(attn)
    projection = getattr(attn, "out_proj", None) or attn.proj
    layers = Sublayer(nn.Identity(), projection, gamma, nn.Identity())
    after = X + out * (1 if gamma is None else gamma)
    update = Update(X, seen, after, layers)
    assert update.before is X and update.after is after and update.attention is seen
    near(X + update.bias + update.contribution(rows @ seen.v), after)
    # Each head alone and each token alone: all of them make up the whole.
    values = torch.einsum("bhtd,hwd->bhtw", seen.v, update.head_weights())
    near(update.value_norms(), values.norm(dim=-1))
    each = torch.einsum("bhrt,bhtw->brw", rows, values)
    near(X + update.bias + each, after)


def test_logits_of_half_precision_are_summed_in_float32():
    attn = drawn_into(KINDS["timm"]())
    output = drawn(2, LAYOUT.tokens, 3 * WIDTH).bfloat16()
    query, keys, values = output.double().unflatten(-1, (3, HEADS, DIM)).unbind(2)
    expected = torch.einsum("bhd,bthd->bht", query[:, 0], keys) / DIM**0.5
    seen = TimmAttention(attn, output)
    near(seen.cls_logits(LAYOUT), expected.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(seen.v, values.float().transpose(1, 2))


def test_what_was_seen_in_inference_mode_leaves_gradients_to_others():
    """The rows of zeros are made once, by whoever asks first."""
    attn, layout = drawn_into(Plain(6, 2)), TokenLayout((1, 2))
    output = drawn(1, 3, 18)
    with torch.inference_mode():
        TimmAttention(attn, output).cls_logits(layout)
    TimmAttention(attn, output.requires_grad_()).cls_logits(layout).sum().backward()
    assert output.grad.count_nonzero() == 6 + 3 * 6  # the query of [CLS], and all keys


def test_an_update_without_a_bias_or_of_half_precision():
    layer = nn.Linear(2, 2, bias=False).bfloat16()
    layers = Sublayer(nn.Identity(), layer, torch.ones(2).half(), nn.Identity())
    update = Update(torch.ones(1).half(), Attention(), torch.ones(1).half(), layers)
    assert update.bias.tolist() == [0.0, 0.0]
    parts = (update.before, update.after, update.weight, update.gamma, update.bias)
    assert {x.dtype for x in parts} == {torch.float32}
