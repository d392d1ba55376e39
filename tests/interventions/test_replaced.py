"""Replaced tokens against blocks that are called one after another, with no hook."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from zoo import PLACES, assert_near, entering, hooks, models, pixels

from helpers.capture import FinalTokens, Output, TokenNorms, TokensAt, capture
from helpers.interventions import masked_keys, nested, replaced_tokens, resumed
from helpers.interventions import test_time_registers as moved_neurons

KINDS = ("vit", "registers", "layerscale", "open_clip", "dinov3-reg4", "pooled")


def put(x, tokens):
    """`x` with `tokens` (image, place, width) at the places of its images."""
    x = x.clone()
    for image, places in enumerate(PLACES[: len(x)].tolist()):
        for column, place in enumerate(places):
            if place >= 0:
                x[image, place] = tokens[image, column]
    return x


def drawn(backbone, blocks, images=16):
    shape = images, blocks, 2, backbone.width
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(5))


@models("vit", "registers", "layerscale", "open_clip", "pooled")
def test_tokens_after_a_block_are_those_that_were_given(backbone):
    x, tokens = pixels(backbone, 5), drawn(backbone, 2)
    after = entering(backbone, x)
    with torch.inference_mode():
        for index, block in enumerate(backbone.blocks):
            after = block(after)
            if index < 2:
                after = put(after, tokens[:, index])
    with replaced_tokens(backbone, PLACES, tokens, [0, 1]):
        got = capture(backbone, x, [FinalTokens()], batch_size=2)["final_tokens"]
    assert_near(got, after.double())
    assert not hooks(backbone.model)


@models("vit", "registers", "layerscale")
def test_normed_tokens_are_attended_to_and_what_is_there_is_not(backbone):
    """Of the other tokens: keys and values are those of what was given, whatever stands there."""
    x, tokens = pixels(backbone, 5), drawn(backbone, 1)
    after = entering(backbone, x)
    with torch.inference_mode():
        after = backbone.blocks[0](after)
        block = backbone.blocks[1]
        mixed = after + block.ls1(block.attn(put(block.norm1(after), tokens[:, 0])))
        after = backbone.blocks[2](mixed + block.ls2(block.mlp(block.norm2(mixed))))
    with replaced_tokens(backbone, PLACES, tokens, [0], normed=True):
        got = capture(backbone, x, [FinalTokens()], batch_size=2)["final_tokens"]
    assert_near(got, after.double())
    both = [{"tokens": drawn(backbone, 2), "blocks": [0, 1], "normed": True, "places": PLACES}]
    both.append(both[0] | {"tokens": torch.full((1, 2, 1, 1), 7.0), "normed": False})
    elsewhere = torch.ones(5, backbone.layout.tokens, dtype=torch.bool)
    for image, places in enumerate(PLACES[:5].tolist()):
        elsewhere[image, [place for place in places if place >= 0]] = False
    finals = []
    for asked in (both[:1], both):
        change = nested(*(lambda b, one=one: replaced_tokens(b, **one) for one in asked))
        with change(backbone):
            finals.append(capture(backbone, x, [FinalTokens()])["final_tokens"][elsewhere])
    torch.testing.assert_close(*finals, atol=1e-4, rtol=1e-4)


@models("vit")
def test_an_appended_token_is_replaced_too(backbone):
    """And nothing changes where each token is replaced by itself."""
    x, last = pixels(backbone, 4), backbone.layout.tokens
    moved = moved_neurons(backbone, [(0, 1)])
    places = torch.full((4, 1), last)
    with moved:
        seen = [TokensAt(places, (0, 1)), Output()]
        plain = capture(backbone, x, seen)
        with replaced_tokens(backbone, places, plain["tokens_at"], [0, 1]):
            same = capture(backbone, x, seen)
        with replaced_tokens(backbone, places, torch.zeros(1, 2, 1, 1), [0, 1]):
            other = capture(backbone, x, seen)
    assert torch.equal(same["output"], plain["output"])
    assert not torch.allclose(other["output"], plain["output"])


@models("vit")
def test_an_image_without_a_row_is_refused(backbone):
    few = replaced_tokens(backbone, PLACES[:2], torch.zeros(1, 1, 1, 1), [0])
    with pytest.raises(ValueError, match="2 images"), few:
        backbone(pixels(backbone, 3))
    assert not hooks(backbone.model) and not backbone.interventions


@models("vit", "registers", "layerscale", "dinov3-reg4", "pooled")
def test_masked_tokens_are_attended_to_by_none(backbone):
    """What the others become does not depend on what stands there, and is not what it was."""
    x, seen = pixels(backbone, 5), [FinalTokens()]
    elsewhere = torch.ones(5, backbone.layout.tokens, dtype=torch.bool)
    for image, places in enumerate(PLACES[:5].tolist()):
        elsewhere[image, [place for place in places if place >= 0]] = False
    plain = capture(backbone, x, seen)["final_tokens"]
    finals = []
    for tokens in (drawn(backbone, 2), torch.full((1, 2, 1, 1), 7.0)):
        put_there = partial(replaced_tokens, places=PLACES, tokens=tokens, blocks=[0, 1])
        with nested(put_there, partial(masked_keys, places=PLACES, blocks=[0, 1]))(backbone):
            finals.append(capture(backbone, x, seen, batch_size=2)["final_tokens"])
    torch.testing.assert_close(*(y[elsewhere] for y in finals), atol=1e-4, rtol=1e-4)
    some = (PLACES[:5] >= 0).any(1)
    assert ((finals[0] - plain)[:, 0].abs().amax(1) > 1e-3).tolist() == some.tolist()
    assert not hooks(backbone.model)


@models(*KINDS)
def test_a_pass_that_is_resumed_is_the_whole_pass(backbone):
    x, last = pixels(backbone, 5), [TokenNorms(-1), Output()]
    change = partial(replaced_tokens, places=PLACES, tokens=drawn(backbone, 1), blocks=[1])
    every = torch.arange(backbone.layout.tokens).expand(5, -1)
    tokens = capture(backbone, x, [TokensAt(every, 1)], batch_size=2)["tokens_at"]
    for condition in (nullcontext, change):
        with condition(backbone):
            whole = capture(backbone, x, last, batch_size=2)
        with nested(partial(resumed, block=1, tokens=tokens), condition)(backbone):
            part = capture(backbone, torch.zeros_like(x), last, batch_size=2)
        assert all(torch.equal(part[key], whole[key]) for key in whole)
    assert not hooks(backbone.model) and "forward" not in vars(backbone.blocks[0])
