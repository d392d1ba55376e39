"""Models with rotary position against the forward pass of tests/zoo.py: float64, unfused, rotated
by complex numbers."""

import numpy as np
import pytest
import torch
from zoo import (
    ROTARY,
    assert_near,
    bounds,
    build,
    embedded,
    entering,
    finished,
    forward,
    hooks,
    models,
    pixels,
    randomise,
    stack,
)

from helpers.capture import (
    AttentionEntropy,
    ClsAttention,
    ClsParts,
    FinalTokens,
    OnQKV,
    Output,
    PatchNorms,
    QKVNorms,
    capture,
)
from helpers.interventions import (
    appended_registers,
    dropped_patches,
    model_with_test_time_registers,
    moved_positions,
)
from helpers.interventions import test_time_registers as registers_at_test_time
from helpers.models import TokenLayout

some = models("dinov3-reg4", "eva02", "rope-mixed", "shared-keys")
NEURONS = [(0, 1), (1, 5)]


def assert_same_pass(backbone, got, blocks, appended=0):
    """Norms of the patches, and the output, are those of the forward pass by hand."""
    start = bounds(backbone)[0] + appended
    assert_near(got["patch_norms"], stack(blocks, "residual").norm(dim=-1)[..., start:])
    assert_near(got["output"], finished(backbone, blocks[-1]["residual"], appended)[2], 1e-4)


@models(*(kind for kind in ROTARY if kind != "shared-keys"))  # which has no [CLS]
def test_parts_of_cls_sum_to_what_the_attention_leaves_of_it(backbone):
    x = pixels(backbone)
    after = forward(backbone, embedded(backbone, x)[1])[-1]["after"][:, 0]
    got = capture(backbone, x, [ClsParts()], batch_size=2)
    assert_near(got["cls_parts"].sum(1), after)
    assert_near(got["cls_total"], after)


@models("dinov3-reg4")
def test_keys_are_those_after_the_rotation(backbone):
    """The rotation leaves norms, so that norms alone would not tell."""
    x, (start, end) = pixels(backbone), bounds(backbone)
    blocks = forward(backbone, embedded(backbone, x)[1])
    unrotated = forward(backbone, embedded(backbone, x)[1], moved=torch.ones_like)
    got = capture(backbone, x, [OnQKV("keys", lambda k: k.flatten(1, 2), blocks=0)])["keys"]
    keys, plain = (b[0]["k"].transpose(1, 2).flatten(-2)[:, start:end] for b in (blocks, unrotated))
    assert_near(got, keys)
    assert (got - plain).abs().max() > 0.1


@some
@pytest.mark.parametrize("init", ["zeros", "mean", "normal"])
def test_registers_stand_in_the_prefix(backbone, init):
    x, layout, (start, end) = pixels(backbone), backbone.layout, bounds(backbone)
    plain = entering(backbone, x)
    with appended_registers(backbone, 1), appended_registers(backbone, 2, init):
        assert backbone.layout == layout.with_appended(3) and backbone.layout.prefix == start + 3
        entered = entering(backbone, x)
        reducers = [PatchNorms(), QKVNorms("all"), AttentionEntropy(), FinalTokens(), Output()]
        got = capture(backbone, x, reducers, batch_size=2)
    assert torch.equal(torch.cat([entered[:, :start], entered[:, start + 3 :]], dim=1), plain)
    zeros = torch.zeros(3, 1, backbone.width)
    expected = plain[:, start:end].mean(1, keepdim=True) if init == "mean" else zeros
    torch.testing.assert_close(entered[:, start : start + 1], zeros)
    if init != "normal":
        torch.testing.assert_close(entered[:, start + 1 : start + 3], expected.expand(3, 2, -1))
    blocks = forward(backbone, entered)
    assert_same_pass(backbone, got, blocks, 3)
    assert_near(got["final_tokens"], blocks[-1]["residual"])
    assert hooks(backbone.model) == 0 and backbone.model.blocks[0].attn.num_prefix_tokens == start
    assert torch.equal(entering(backbone, x), plain) and backbone.layout == layout


@some
def test_neurons_act_on_the_register(backbone):
    """By hand: the largest activation by magnitude goes to the register, and the patches lose
    theirs."""
    x, start = pixels(backbone), bounds(backbone)[0]
    with appended_registers(backbone):
        entered = entering(backbone, x)

    def moved(block, hidden):
        for at, unit in NEURONS:
            if at == block:
                values = hidden[..., unit].clone()
                values[:, start] = 0
                largest = values.gather(1, values.abs().argmax(1, keepdim=True))[:, 0]
                hidden[:, start + 1 :, unit] = 0
                hidden[:, start, unit] = largest
        return hidden

    blocks = forward(backbone, entered, moved)
    with registers_at_test_time(backbone, NEURONS):
        got = capture(backbone, x, [PatchNorms(), Output()], batch_size=2)
    assert_same_pass(backbone, got, blocks, 1)
    exported = model_with_test_time_registers(backbone, NEURONS)
    assert backbone.model.blocks[0].attn.num_prefix_tokens == start
    with torch.inference_mode():
        torch.testing.assert_close(exported(x), got["output"])


@some
@pytest.mark.parametrize("mode", ["remove", "zero"])
def test_dropped_patches_take_their_rotation_with_them(backbone, mode):
    x, (start, end) = pixels(backbone), bounds(backbone)
    plain = entering(backbone, x)
    with dropped_patches(backbone, 0.5, mode, seed=3), appended_registers(backbone):
        got = capture(backbone, x, [PatchNorms(), AttentionEntropy(), Output()])
    rng = np.random.default_rng(3)
    for image in range(3):
        kept = torch.from_numpy(rng.permutation(end - start) < (end - start) // 2)
        patches = plain[image, start:end]
        patches = patches[kept] if mode == "remove" else patches.where(kept[:, None], 0)
        tokens = torch.cat([plain[image, :start], torch.zeros(1, backbone.width), patches])[None]
        rows = kept if mode == "remove" else slice(None)
        blocks = forward(backbone, tokens, moved=lambda r, rows=rows: r[..., rows, :])
        own = {key: got[key][image, None] for key in ("patch_norms", "output")}
        assert_same_pass(backbone, own, blocks, 1)


@some
def test_positions_change_places_with_their_rotation(backbone):
    x, (start, end) = pixels(backbone), bounds(backbone)
    order = torch.from_numpy(np.random.default_rng(0).permutation(end - start))
    order[2] = -1
    embedding = backbone.model.pos_embed
    plain = entering(backbone, x)
    with moved_positions(backbone, order):
        entered = entering(backbone, x)
        got = capture(backbone, x, [PatchNorms(), Output()])
    if embedding is None:
        assert torch.equal(entered, plain)
    else:
        own = embedding[0, -(end - start) :]
        given = own[order.clamp(min=0)].masked_fill(order[:, None] < 0, 0)
        change = entered[:, start:end] - plain[:, start:end]
        expected = (given - own).expand(3, -1, -1)
        torch.testing.assert_close(change, expected, rtol=0, atol=1e-5)

    def turned(rotation):
        return rotation[..., order.clamp(min=0), :].masked_fill(order[:, None] < 0, 1.0)

    assert_same_pass(backbone, got, forward(backbone, entered, moved=turned))
    with moved_positions(backbone, range(end - start)):
        assert torch.equal(entering(backbone, x), plain)


def test_layout_with_a_rotary_prefix():
    layout = TokenLayout((2, 3), registers=2, rotary=True).with_appended(2)
    x = torch.arange(layout.tokens)[None, :, None]
    assert (layout.own_prefix, layout.prefix, layout.tokens) == (3, 5, 11)
    parts = (layout.register_tokens, layout.appended_tokens, layout.patch_tokens)
    found = [part(x).flatten().tolist() for part in parts]
    assert found == [[1, 2], [3, 4], [5, 6, 7, 8, 9, 10]] and layout.cls_token(x).item() == 0
    assert layout.with_kept(4).appended_tokens(x[:, :9]).flatten().tolist() == [3, 4]


def test_an_attention_that_is_normalised_or_an_adapter_is_refused():
    model = build("eva02").model
    model.blocks[1].attn.norm = torch.nn.LayerNorm(48)
    backbone = build("eva02")
    backbone.model = model
    x = pixels(backbone)
    assert capture(backbone, x, [ClsAttention()])["cls_attention"].shape == (3, 1, 17)
    with pytest.raises(ValueError, match="block 1 of 'eva02'"):
        capture(backbone, x, [ClsParts(blocks="all")])

    class Adapter(torch.nn.Linear):
        pass

    model.blocks[0].attn.q_proj = randomise(Adapter(48, 48))
    with pytest.raises(ValueError, match="adapter"):
        capture(backbone, x, [ClsAttention("all")])
