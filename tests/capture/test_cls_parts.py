"""The parts of [CLS] against the forward pass of tests/zoo.py, token by token, and against the
models' own masks."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from zoo import (
    CLIPS,
    assert_near,
    build,
    entering,
    forward,
    hooks,
    layers,
    models,
    pixels,
)

from helpers.capture import (
    PARTS,
    ClsAttention,
    ClsParts,
    ClsRenormalised,
    ClsTokens,
    HighestToken,
    PatchContributions,
    Sinks,
    TokenNorms,
    capture,
)
from helpers.interventions import appended_registers, dropped_patches
from helpers.measures.attention import EVENT

REGISTERS = {"layerscale": 2, "small-distilled": 1}  # neither patch nor [CLS]
PATCHES = 16
KINDS = ["small", "no-bias", "layerscale", "qk-norm", "small-distilled", "open_clip-plain"]
KINDS.append("open_clip")
every = models(*KINDS)


@pytest.fixture(scope="module")
def backbone(request):
    """With LayerScale gammas of both signs."""
    return build(request.param, gamma=None)


def reference(backbone, tokens):
    """The blocks of zoo.forward, and for [CLS], head by head and token by token: 'weights' (image,
    head, token), 'contributions' (image, head, token, width) and 'bias'
    (width); and 'normed', the end after the next LayerNorm."""
    m, blocks = copy.deepcopy(backbone.model).double(), forward(backbone, tokens)
    timms = isinstance(m, VisionTransformer)
    parts = [layers(block) for block in (m.blocks if timms else m.transformer.resblocks)]
    norms = [*(own["norm1"] for own in parts), m.norm if timms else m.ln_post]
    for i, (block, own) in enumerate(zip(blocks, parts, strict=True)):
        heads, width = block["v"].shape[1], len(own["proj"].weight)
        constant = own["proj"].bias
        constant = torch.zeros(width).double() if constant is None else constant
        gamma = getattr(own["ls1"], "gamma", torch.ones(width).double())
        # (width, head, dim)
        back = gamma[:, None, None] * own["proj"].weight.unflatten(1, (heads, -1))
        weights = block["attention"].select(2, 0)
        block["weights"], block["bias"] = weights, gamma * constant
        block["contributions"] = torch.einsum("iht,ihtd,whd->ihtw", weights, block["v"], back)
        block["normed"] = norms[i + 1](block["residual"])
    return blocks


def kinds(backbone, tokens, appended=0):
    """Token indices of patches, registers and [CLS], counted by hand."""
    trained = REGISTERS.get(backbone.name, 0)
    patches = range(1 + trained, tokens - appended)
    return list(patches), [*range(1, 1 + trained), *range(tokens - appended, tokens)], [0]


def by_hand(block, groups):
    """The parts (image, part, width) and masses (image, kind) of one block of `reference`."""
    parts = [block["contributions"][:, :, group].sum(dim=(1, 2)) for group in groups]
    masses = [block["weights"][..., group].sum(-1).mean(1) for group in groups]
    rest = [block["bias"].expand_as(parts[0]), block["before"].select(1, 0)]
    return torch.stack([*parts, *rest], dim=1), torch.stack(masses, dim=1)


def residual(got):
    """By how much the parts miss the model's own [CLS], relative to its length, for the worst image
    and block."""
    missed = got["cls_parts"].sum(-2) - got["cls_total"]
    return float((missed.norm(dim=-1) / got["cls_total"].norm(dim=-1)).max())


@every
@pytest.mark.parametrize(
    ("change", "patches", "registers"),
    [
        (nullcontext, PATCHES, 0),
        (partial(appended_registers, count=2, init="zeros"), PATCHES, 2),
        (partial(appended_registers, count=2, init="normal"), PATCHES, 2),
        (partial(dropped_patches, rate=0.5, seed=3), PATCHES // 2, 0),
    ],
    ids=["plain", "zeros", "normal", "dropped"],
)
def test_parts_of_every_block(backbone, change, patches, registers):
    """Appended tokens are registers; dropped patches contribute nothing."""
    x, images = pixels(backbone), torch.arange(3)
    with change(backbone):
        tokens = entering(backbone, x)
    reducers = [ClsParts("all"), PatchContributions("all"), ClsTokens(), HighestToken("all")]
    with change(backbone):  # the same choice again
        got = capture(backbone, x, reducers, batch_size=2)
    groups = kinds(backbone, tokens.shape[1], registers)
    assert len(groups[0]) == patches and PARTS == ("patches", "registers", "cls", "bias", "skip")
    assert len(groups[1]) == REGISTERS.get(backbone.name, 0) + registers
    for i, block in enumerate(reference(backbone, tokens)):
        # Far from uniform, else little is tested.
        assert block["weights"].max() > 2 / tokens.shape[1]
        own = {key: value[:, i] for key, value in got.items()}
        parts, masses = by_hand(block, groups)
        each, after = block["contributions"].sum(1), block["residual"]
        highest, total = after.norm(dim=-1).argmax(dim=1), each.sum(1, keepdim=True)
        each = each[:, groups[0]]
        expected = {
            "cls_parts": parts,
            "cls_mass": masses,
            "cls_total": block["after"][:, 0],
            "contribution_norms": each.norm(dim=-1),
            "contribution_cosines": torch.cosine_similarity(each, total, dim=-1),
            "cls_tokens": after[:, 0],
            "highest_token": after[images, highest],
            "highest_token_normed": block["normed"][images, highest],
        }
        for key, value in expected.items():
            assert_near(own[key], value)
        assert own["highest_index"].tolist() == highest.tolist()
    assert residual(got) < 1e-5
    assert torch.equal(got["cls_parts"][0, :, 3], got["cls_parts"][1, :, 3])
    with change(backbone):
        alone = capture(backbone, x, [ClsParts(), HighestToken()])
    for key, block in {"cls_parts": -1, "highest_token_normed": -2}.items():
        torch.testing.assert_close(alone[key], got[key][:, block], rtol=1e-4, atol=1e-5)


def shared(rows, most):
    """What nine queries in ten give together to the tokens that get the most in the mean."""
    taken = rows.mean(-2).argsort(descending=True)[..., None, :most].expand(*rows.shape[:-1], -1)
    given = rows.gather(-1, taken).sum(-1).sort(descending=True).values
    return given[..., -(-9 * given.shape[-1] // 10) - 1]


@every
@pytest.mark.parametrize("queries", ["read", "patches", "all"])
def test_sinks_of_every_block(backbone, queries):
    x, layout = pixels(backbone), backbone.layout
    got = capture(backbone, x, [Sinks(queries, writes=True)], batch_size=2)
    patches, registers, cls = kinds(backbone, layout.tokens)
    groups = {"patches": patches, "registers": registers[: layout.registers], "cls": cls}
    asked = {"read": cls, "patches": patches, "all": range(layout.tokens)}[queries]
    for i, block in enumerate(reference(backbone, entering(backbone, x))):
        rows = block["attention"][:, :, asked]
        for name, group in groups.items():
            assert_near(got[f"sink_{name}"][:, i], shared(rows[..., group], 4))
        assert_near(got["sink_one"][:, i], shared(rows, 1))
        assert_near(got["received"][:, i], rows.mean((1, 2)))
        norms = (block["contributions"] / block["weights"][..., None]).norm(dim=-1)
        own = norms.gather(-1, rows.mean(2).argmax(-1, keepdim=True)).squeeze(-1)
        event = got["sink_one"][:, i] >= EVENT
        assert ((got["sink_rank"][:, i] == 0) == ~event).all()
        assert_near(got["sink_value"][:, i], own / ((norms.sum(-1) - own) / (layout.tokens - 1)))


@pytest.mark.parametrize("sharpness", [1, 100])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no-bias"])
def test_renormalised_attention_is_that_of_a_masked_model(kind, sharpness):
    """The model's own attention with a mask before its softmax. Sharp heads give some kinds less
    than float32 can hold."""
    backbone = build(kind, gamma=None)
    attn = backbone.blocks[-1].attn
    if kind == "qk-norm":
        query = attn.q_norm.weight
    else:
        query = attn.in_proj_weight if kind in CLIPS else attn.qkv.weight
    query.data.narrow(0, 0, min(48, len(query))).mul_(sharpness)
    x, tokens, inputs = pixels(backbone), backbone.layout.tokens, []
    with attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
        got = capture(backbone, x, [ClsRenormalised(), ClsParts()])
    for i, group in enumerate(kinds(backbone, tokens)):
        if not group:
            assert not got["cls_renormalised"][:, i].any()
            continue
        mask = torch.full((tokens, tokens), -torch.inf)
        mask[:, group] = 0
        block, (seen,) = backbone.blocks[-1], inputs
        if kind in CLIPS:
            masked = block.ls_1(attn(seen, seen, seen, need_weights=False, attn_mask=mask)[0])
        else:
            masked = block.ls1(attn(seen, attn_mask=mask))
        expected = masked.select(1, 0) - got["cls_parts"][:, 3]
        torch.testing.assert_close(got["cls_renormalised"][:, i], expected, rtol=1e-4, atol=1e-4)
    if sharpness > 1:
        weights = capture(backbone, x, [ClsAttention(-1, heads="all")])["cls_attention"]
        groups = [group for group in kinds(backbone, tokens) if group]
        assert any(weights[..., group].sum(-1).min() == 0 for group in groups)


@pytest.mark.parametrize("kind", ["layerscale", "open_clip"])
def test_a_small_layerscale_changes_no_direction(kind):
    """In the first block, where both see the same tokens."""
    one, small = build(kind, gamma=1.0), build(kind, gamma=1e-5)
    x, reducers = pixels(one), [ClsParts(0), PatchContributions(0)]
    expected, got = capture(one, x, reducers), capture(small, x, reducers)
    got["cls_parts"][:, :4] *= 1e5
    for key in ("cls_parts", "contribution_cosines"):
        torch.testing.assert_close(got[key], expected[key], rtol=1e-4, atol=1e-5)


def test_refusals():
    pooled = build("pooled")
    for reducer in (ClsParts(), ClsRenormalised(), PatchContributions(), ClsTokens()):
        with pytest.raises(ValueError, match="CLS"):
            capture(pooled, pixels(pooled), [reducer])
    assert capture(pooled, pixels(pooled), [HighestToken()])["highest_token"].shape == (3, 48)
    for option in ({"scale_attn_norm": True}, {"block_fn": ResPostBlock}):
        backbone = build("small", **option)
        for reducer in (ClsParts(), Sinks(blocks=-1)):
            with pytest.raises(ValueError, match="block 2 of 'small'"):
                capture(backbone, pixels(backbone), [TokenNorms(), reducer])
        assert hooks(backbone.model) == 0
