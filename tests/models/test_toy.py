"""The toy transformer against a plain implementation, its task, and models set by hand."""

import math

import pytest
import torch
from torch.nn import functional as F

from helpers.models import toy


def drawn(arm, trainings=2, size=64):
    return toy.draw(arm, trainings, size, torch.Generator().manual_seed(0))


def test_answers_are_the_content_and_what_is_fetched():
    inputs = drawn(toy.Arm(content=0.5, idle=0.25))
    content, asks, mark = inputs.tokens.split([toy.CONTENT, 1, 1], -1)
    assert (mark.sum(2) == 1).all() and not mark[:, :, 0].any()  # never the free token
    marked = content[mark[..., 0].bool()].view(2, 64, 1, toy.CONTENT)
    fetched = torch.cat([marked[..., -1:], marked[..., :-1]], -1)
    torch.testing.assert_close(inputs.answers, content + asks * fetched)
    assert torch.equal(inputs.idle, asks[..., 0] == 0)
    assert inputs.idle.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert content[:, :, 0].std().item() == pytest.approx(0.5, abs=0.02)
    assert content[:, :, 1:].std().item() == pytest.approx(1, abs=0.02)


def test_each_training_is_a_plain_transformer_of_its_own():
    arm = toy.Arm(registers=2)
    model = toy.Toy(arm, 2, torch.Generator().manual_seed(0))
    tokens = drawn(arm).tokens
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1
        found = model(tokens)
        w = {name: p[1].squeeze(0) for name, p in model.named_parameters()}
        x = torch.cat(
            [tokens[1] @ w["embed"] + w["positions"], w["registers"].expand(64, -1, -1)], 1
        )
        y = F.layer_norm(x, (toy.WIDTH,))
        hidden = F.gelu(y @ w["mlps.0.0.weight"] + w["mlps.0.0.bias"])
        x = x + hidden @ w["mlps.0.2.weight"] + w["mlps.0.2.bias"]
        y = F.layer_norm(x, (toy.WIDTH,))
        q, k, v = (y @ w["qkv.0.weight"] + w["qkv.0.bias"]).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        end = x + mixed @ w["out.0.0.weight"] + w["out.0.0.bias"]
        answers = F.layer_norm(end, (toy.WIDTH,)) @ w["read_out.weight"] + w["read_out.bias"]
    torch.testing.assert_close(found.tokens[0][1], x, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.tokens[1][1], end, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.answers[1], answers[:, : toy.TOKENS], atol=1e-4, rtol=1e-4)
    sums = found.attention[0].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_layer_scale_begins_with_its_share_of_what_a_block_adds():
    plain, scaled = (
        toy.Toy(toy.Arm(layer_scale=start), 2, torch.Generator().manual_seed(0))
        for start in (0, 0.1)
    )
    x = torch.randn(2, 5, toy.WIDTH, dtype=torch.float64)
    torch.testing.assert_close(scaled.mlps[0](x), 0.1 * plain.mlps[0](x))
    torch.testing.assert_close(scaled.out[0](x), 0.1 * plain.out[0](x))


@pytest.mark.parametrize(
    ("attention", "total"), [("softmax", 1), ("softmax1", 8 / 9), ("sigmoid", 8 / 9), ("gate", 1)]
)
def test_attention_to_equal_keys(attention, total):
    model = toy.Toy(toy.Arm(attention=attention), 1, torch.Generator().manual_seed(0))
    weights = model.weights(torch.zeros(1, 1, 8, 8))
    torch.testing.assert_close(weights.sum(-1), torch.full((1, 1, 8), float(total)))


def test_norms_before_a_block():
    x = torch.randn(4, toy.WIDTH) + 1
    models = {n: toy.Toy(toy.Arm(norm=n), 1, torch.Generator()) for n in ("layer", "rms", "none")}
    assert torch.equal(models["none"].normed(x), x)
    for name in ("layer", "rms"):
        lengths = models[name].normed(x).norm(dim=-1)
        torch.testing.assert_close(
            lengths, torch.full((4,), math.sqrt(toy.WIDTH)), atol=1e-3, rtol=0
        )
    assert models["layer"].normed(x).mean(-1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "arm", [toy.Arm(depth=2, behind=True), toy.Arm(attention="gate", layer_scale=0.5)]
)
def test_a_training_lowers_the_error_and_begins_with_the_same_inputs(arm):
    errors = []
    for _, model in toy.train(arm, 2, 40, 0, 40):
        inputs = drawn(arm)
        with torch.no_grad():
            errors.append(((model(inputs.tokens).answers - inputs.answers) ** 2).mean((1, 2, 3)))
    assert (errors[-1] < 0.7 * errors[0]).all()


@pytest.mark.parametrize(("kind", "ratio"), [("content", 6.6), ("position", 6.6), ("clean", 1)])
def test_models_set_by_hand(kind, ratio):
    found = toy.traits(toy.by_hand(kind, toy.Arm(), 2, 0), 64, 0)
    is_sink = ratio > 3
    for name in ("norm_ratio", "first_norm_ratio"):
        assert found[name].tolist() == pytest.approx([ratio] * 2, abs=0.3)
    assert found["outlier_inputs"].tolist() == [is_sink] * 2
    received = 0.87 if is_sink else 1 / toy.TOKENS
    assert found["sink_attention"].tolist() == pytest.approx([received] * 2, abs=0.02)
    assert (found["content_left"] < 0.1).tolist() == [is_sink] * 2
    assert "register_ratio" not in found


def test_traits_are_of_the_largest_free_token_and_of_idle_queries():
    """Against loops over the inputs of one training, of two pairs of blocks and two registers."""
    arm = toy.Arm(free=2, depth=2, registers=2)
    model = toy.Toy(arm, 2, torch.Generator().manual_seed(0))
    found, inputs = toy.traits(model, 32, 5), toy.draw(arm, 2, 32, torch.Generator().manual_seed(5))
    with torch.no_grad():
        seen = model(inputs.tokens)
    for name, place in {"first_norm_ratio": 0, "norm_ratio": 1, "end_norm_ratio": 2}.items():
        norms = seen.tokens[place][1].norm(dim=-1)  # (input, token)
        median = norms[:, 2:8].flatten().sort().values[(32 * 6 - 1) // 2].item()
        expected = sum(max(row[:2]) for row in norms.tolist()) / 32 / median
        assert found[name][1].item() == pytest.approx(expected)
        if name == "norm_ratio":
            registers = sum(max(row[8:]) for row in norms.tolist()) / 32 / median
            assert found["register_ratio"][1].item() == pytest.approx(registers)
    attention, idle = seen.attention[1][1], inputs.idle[1]
    rows = [attention[i, q] for i in range(32) for q in range(2, 8) if idle[i, q]]
    received = torch.stack(rows).mean(0)  # (key,)
    assert found["sink_attention"][1].item() == pytest.approx(received[:2].sum().item())
    assert found["register_attention"][1].item() == pytest.approx(received[8:].sum().item())
    busy = toy.traits(toy.Toy(toy.Arm(idle=0), 2, torch.Generator().manual_seed(0)), 32, 5)
    assert busy["sink_attention"].isnan().all()
