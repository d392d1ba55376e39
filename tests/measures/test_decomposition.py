"""The parts of [CLS] against a float64 loop over images, heads and tokens written here, and against the models' own masks."""

import copy
import os

import huggingface_hub
import numpy as np
import open_clip
import pytest
import timm
import torch
from conftest import entering
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import ResPostBlock, VisionTransformer

from helpers.capture import (
    PARTS,
    ClsAttention,
    ClsParts,
    ClsRenormalised,
    ClsTokens,
    HighestToken,
    Output,
    PatchContributions,
    TokenNorms,
    capture,
)
from helpers.images import load_images
from helpers.interventions import appended_registers, dropped_patches
from helpers.measures.decomposition import gram_shares_over_images
from helpers.measures.similarity import linear_cka
from helpers.measures.stats import jackknife
from helpers.models import CONTROL_DATA, ModelUnavailable, TokenLayout, load_backbone, wrap_timm
from helpers.models.load import OpenClipBackbone

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
KWARGS = {
    "vit": {},
    "no-bias": {"qkv_bias": False, "proj_bias": False},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "layerscale": {"reg_tokens": 2, "init_values": 1.0},
    "qk-norm": {"qk_norm": True, "init_values": 1.0},
    "swiglu": {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": torch.nn.SiLU, "mlp_ratio": 6},
    "distilled": {},
    "pooled": {"class_token": False, "global_pool": "avg"},
}
CLIP = {"open_clip": None, "open_clip-layerscale": 1.0}
REGISTERS = {"registers": 4, "layerscale": 2, "distilled": 1}  # tokens that are neither patch nor [CLS]; none in all others
PATCHES, DEPTH, HEADS = 16, 3, 3
REDUCERS = [ClsParts("all"), ClsRenormalised("all"), PatchContributions("all"), ClsTokens(), HighestToken((0, -2, -1))]


def randomise(model, gamma=None):
    """Weights that make sharp, varied attention; LayerScale gammas of both signs, or all `gamma`."""
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("gamma"):
            p.data.copy_(noise if gamma is None else torch.full_like(p, gamma))
        elif p.dim() == 1 and name.endswith("weight"):
            p.data.copy_(1 + 0.2 * noise)
        else:
            p.data.copy_(0.5 * noise if p.dim() == 1 or "embed" in name or "token" in name else 1.5 * noise / p[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


def build(kind, gamma=None, **kwargs):
    if kind in CLIP:
        visual = open_clip.transformer.VisionTransformer(
            32, 8, width=24, layers=DEPTH, heads=HEADS, mlp_ratio=4.0, ls_init_value=CLIP[kind], output_dim=16
        )
        return OpenClipBackbone(kind, randomise(visual, gamma), TokenLayout((4, 4)), (32, 32), (8, 8), torch.zeros_like, False)
    make = VisionTransformerDistilled if kind == "distilled" else VisionTransformer
    return wrap_timm(kind, randomise(make(**SMALL | KWARGS[kind] | kwargs), gamma), CONTROL_DATA, pretrained=False)


BACKBONES = {}


@pytest.fixture
def backbone(request):
    if request.param not in BACKBONES:
        BACKBONES[request.param] = build(request.param)
    return BACKBONES[request.param]


every = pytest.mark.parametrize("backbone", [*(kind for kind in KWARGS if kind != "pooled"), *CLIP], indirect=True)
one_each = pytest.mark.parametrize("backbone", ["layerscale", "open_clip-layerscale"], indirect=True)


def pixels(n=3):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def reference(backbone, tokens):
    """One dict a block of what it makes of `tokens` in float64. For [CLS], head by head and token by token: 'weights' (image,
    head, token), 'contributions' (image, head, token, width) and 'value_bias' (head, width); 'bias' (width); the residual stream
    'before' and 'after' the attention layer and at the 'end' of the block; and 'normed', the end after the next LayerNorm."""
    m, x, blocks = copy.deepcopy(backbone.model).double(), tokens, []
    timms = isinstance(m, VisionTransformer)
    layers = list(m.blocks if timms else m.transformer.resblocks)
    for block in layers:
        a, width = block.attn, x.shape[-1]
        if timms:
            norm1, norm2, mlp, scale1, scale2 = block.norm1, block.norm2, block.mlp, block.ls1, block.ls2
            weight, bias, projection, norms = a.qkv.weight, a.qkv.bias, a.proj, (a.q_norm, a.k_norm)
        else:
            norm1, norm2, mlp, scale1, scale2 = block.ln_1, block.ln_2, block.mlp, block.ls_1, block.ls_2
            weight, bias, projection, norms = a.in_proj_weight, a.in_proj_bias, a.out_proj, (torch.nn.Identity(),) * 2
        gamma = getattr(scale1, "gamma", torch.ones(width).double())
        bias = torch.zeros(3 * width).double() if bias is None else bias
        seen, dim = norm1(x), width // HEADS
        out = torch.zeros_like(x)
        weights, contributions, value_bias = [], [], []
        for head in range(HEADS):
            rows = [slice(part * width + head * dim, part * width + (head + 1) * dim) for part in range(3)]
            q, k, v = (seen @ weight[r].T + bias[r] for r in rows)
            attention = torch.softmax(norms[0](q) @ norms[1](k).mT / dim**0.5, dim=-1)
            back = projection.weight[:, rows[0]].T
            out += attention @ v @ back
            weights.append(attention.select(1, 0))
            value_bias.append(gamma * (bias[rows[2]] @ back))
            each = [
                torch.stack([gamma * (w * value @ back) for w, value in zip(*one, strict=True)])
                for one in zip(weights[-1], v, strict=True)
            ]
            contributions.append(torch.stack(each))
        constant = torch.zeros(width).double() if projection.bias is None else projection.bias
        after = x + gamma * (out + constant)
        end = after + scale2(mlp(norm2(after)))
        blocks.append(
            {
                "weights": torch.stack(weights, dim=1),
                "contributions": torch.stack(contributions, dim=1),
                "value_bias": torch.stack(value_bias),
                "bias": gamma * constant,
                "before": x,
                "after": after,
                "end": end,
            }
        )
        x = end
    final = m.norm if timms else m.ln_post
    next_norms = [*(block.norm1 if timms else block.ln_1 for block in layers), final]
    for i, block in enumerate(blocks):
        block["normed"] = next_norms[i + 1](block["end"])
    return blocks


def kinds(backbone, tokens, appended=0):
    """Token indices of patches, registers and [CLS], counted by hand."""
    trained = REGISTERS.get(backbone.name, 0)
    patches = range(1 + trained, tokens - appended)
    return list(patches), [*range(1, 1 + trained), *range(tokens - appended, tokens)], [0]


def by_hand(block, groups, split_bias=False):
    """The parts (image, part, width) and masses (image, kind) of one block of `reference`."""
    parts = [block["contributions"][:, :, group].sum(dim=(1, 2)) for group in groups]
    masses = [block["weights"][..., group].sum(-1) for group in groups]
    constant = block["bias"]
    if split_bias:
        parts = [part - mass @ block["value_bias"] for part, mass in zip(parts, masses, strict=True)]
        constant = constant + block["value_bias"].sum(0)
    rest = [constant.expand_as(parts[0]), block["before"].select(1, 0)]
    return torch.stack([*parts, *rest], dim=1), torch.stack([mass.mean(1) for mass in masses], dim=1)


def assert_near(ours, theirs, bound=1e-5):
    """Largest deviation, in units of the largest value where that is above one."""
    assert ours.shape == theirs.shape and ours.dtype == torch.float32
    assert ((ours.double() - theirs).abs().max() / max(1.0, theirs.abs().max().item())).item() < bound


def residual(got):
    """By how much the parts miss the model's own [CLS], relative to its length, for the worst image and block."""
    missed = got["cls_parts"].sum(-2) - got["cls_total"]
    return float((missed.norm(dim=-1) / got["cls_total"].norm(dim=-1)).max())


@every
@pytest.mark.parametrize("split_bias", [False, True])
def test_parts_of_every_block(backbone, split_bias):
    x = pixels()
    got = capture(backbone, x, [ClsParts("all", split_bias)], batch_size=2)
    groups = kinds(backbone, backbone.layout.tokens)
    assert len(groups[0]) == PATCHES and PARTS == ("patches", "registers", "cls", "bias", "skip")
    for i, block in enumerate(reference(backbone, entering(backbone, x).double())):
        parts, masses = by_hand(block, groups, split_bias)
        assert_near(got["cls_parts"][:, i], parts)
        assert_near(got["cls_mass"][:, i], masses)
        assert_near(got["cls_total"][:, i], block["after"].select(1, 0))
        assert block["weights"].max() > 3 / backbone.layout.tokens  # far from uniform, else little is tested
    assert residual(got) < 1e-5
    assert torch.equal(got["cls_parts"][0, :, 3], got["cls_parts"][1, :, 3])
    assert got["cls_parts"][:, :, 1].any() == (backbone.name in REGISTERS)
    last = capture(backbone, x, [ClsParts(split_bias=split_bias)])
    torch.testing.assert_close(last["cls_parts"], got["cls_parts"][:, -1], rtol=1e-4, atol=1e-5)


@every
def test_contributions_of_single_patches(backbone):
    x = pixels()
    got = capture(backbone, x, [PatchContributions("all"), ClsParts("all")], batch_size=2)
    patches, _, _ = kinds(backbone, backbone.layout.tokens)
    for i, block in enumerate(reference(backbone, entering(backbone, x).double())):
        each = block["contributions"].sum(1)
        assert_near(got["contribution_norms"][:, i], each[:, patches].norm(dim=-1))
        cosines = torch.cosine_similarity(each[:, patches], each.sum(1, keepdim=True), dim=-1)
        assert_near(got["contribution_cosines"][:, i], cosines)
        # Their shares of the whole along its own direction are those of the part that they add up to.
        whole = got["cls_parts"][:, i, :3].sum(1)
        along = (got["contribution_norms"][:, i] * got["contribution_cosines"][:, i]).sum(-1) * whole.norm(dim=-1)
        torch.testing.assert_close(along, (got["cls_parts"][:, i, 0] * whole).sum(-1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sharpness", [1, 100])
@pytest.mark.parametrize("kind", ["vit", "registers", "layerscale", "qk-norm", "distilled", "open_clip", "open_clip-layerscale"])
def test_renormalised_attention_is_that_of_a_masked_model(kind, sharpness):
    """The model's own attention with a mask before its softmax. Sharp heads give some kinds less than float32 can hold."""
    backbone = build(kind)
    attn = backbone.blocks[-1].attn
    query = attn.in_proj_weight if kind in CLIP else attn.q_norm.weight if kind == "qk-norm" else attn.qkv.weight
    query.data.narrow(0, 0, min(24, len(query))).mul_(sharpness)
    x, tokens, inputs = pixels(), backbone.layout.tokens, []
    with attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0])):
        got = capture(backbone, x, [ClsRenormalised(), ClsParts()])
    for i, group in enumerate(kinds(backbone, tokens)):
        if not group:
            assert not got["cls_renormalised"][:, i].any()
            continue
        mask = torch.full((tokens, tokens), -torch.inf)
        mask[:, group] = 0
        block, (seen,) = backbone.blocks[-1], inputs
        if kind in CLIP:
            masked = block.ls_1(attn(seen, seen, seen, need_weights=False, attn_mask=mask)[0])
        else:
            masked = block.ls1(attn(seen, attn_mask=mask))
        expected = masked.select(1, 0) - got["cls_parts"][:, 3]
        torch.testing.assert_close(got["cls_renormalised"][:, i], expected, rtol=1e-4, atol=1e-4)
    if sharpness > 1:
        weights = capture(backbone, x, [ClsAttention(-1, heads="all")])["cls_attention"]
        assert any(weights[..., group].sum(-1).min() == 0 for group in kinds(backbone, tokens) if group)


@every
def test_cls_and_the_highest_token_after_each_block(backbone):
    x = pixels()
    got = capture(backbone, x, [ClsTokens(), HighestToken("all")], batch_size=2)
    images = torch.arange(3)
    for i, block in enumerate(reference(backbone, entering(backbone, x).double())):
        assert_near(got["cls_tokens"][:, i], block["end"].select(1, 0))
        highest = block["end"].norm(dim=-1).argmax(dim=1)
        assert got["highest_index"][:, i].tolist() == highest.tolist()
        assert_near(got["highest_token"][:, i], block["end"][images, highest])
        assert_near(got["highest_token_normed"][:, i], block["normed"][images, highest])
    alone = capture(backbone, x, [HighestToken()])
    assert torch.allclose(alone["highest_token_normed"], got["highest_token_normed"][:, -2], atol=1e-5)


@every
@pytest.mark.parametrize("init", ["zeros", "normal"])
def test_appended_tokens_are_registers(backbone, init):
    x = pixels()
    with appended_registers(backbone, 2, init):
        tokens = entering(backbone, x).double()
        got = capture(backbone, x, [ClsParts("all"), PatchContributions("all"), HighestToken()], batch_size=2)
    groups = kinds(backbone, tokens.shape[1], appended=2)
    assert len(groups[0]) == PATCHES and len(groups[1]) == REGISTERS.get(backbone.name, 0) + 2
    for i, block in enumerate(reference(backbone, tokens)):
        parts, masses = by_hand(block, groups)
        assert_near(got["cls_parts"][:, i], parts)
        assert_near(got["cls_mass"][:, i], masses)
        assert_near(got["contribution_norms"][:, i], block["contributions"].sum(1)[:, groups[0]].norm(dim=-1))
    assert residual(got) < 1e-5
    assert got["cls_parts"][:, :, 1].any() and got["highest_index"].max() < tokens.shape[1]


@every
def test_dropped_patches_contribute_nothing(backbone):
    x = pixels()
    with dropped_patches(backbone, 0.5, seed=3):
        tokens = entering(backbone, x).double()
    with dropped_patches(backbone, 0.5, seed=3):  # the same choice again
        got = capture(backbone, x, [ClsParts("all"), PatchContributions("all"), ClsRenormalised()], batch_size=2)
    groups = kinds(backbone, tokens.shape[1])
    assert len(groups[0]) == PATCHES // 2 and got["contribution_norms"].shape == (3, DEPTH, PATCHES // 2)
    for i, block in enumerate(reference(backbone, tokens)):
        parts, masses = by_hand(block, groups)
        assert_near(got["cls_parts"][:, i], parts)
        assert_near(got["cls_mass"][:, i], masses)
    assert residual(got) < 1e-5


@pytest.mark.parametrize("gamma", [1.0, 1e-5])
@pytest.mark.parametrize("kind", ["layerscale", "open_clip-layerscale"])
def test_layerscale_of_one_changes_nothing_and_a_small_one_no_direction(kind, gamma):
    """In the first block, where both see the same tokens."""
    x, reducers = pixels(), [ClsParts(0), PatchContributions(0)]
    plain, scaled = build(kind, gamma=1.0), build(kind, gamma=gamma)
    for block in plain.blocks:
        for name in ("ls1", "ls2", "ls_1", "ls_2"):
            if hasattr(block, name):
                setattr(block, name, torch.nn.Identity())
    expected, got = capture(plain, x, reducers), capture(scaled, x, reducers)
    torch.testing.assert_close(got["cls_parts"][:, :4] / gamma, expected["cls_parts"][:, :4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got["contribution_cosines"], expected["contribution_cosines"], rtol=1e-4, atol=1e-5)
    assert torch.equal(got["cls_parts"][:, 4], expected["cls_parts"][:, 4])
    assert residual(got) < 1e-5


def test_uniform_attention_gives_each_kind_its_share_of_the_tokens():
    backbone = build("registers")
    for block in backbone.blocks:
        block.attn.qkv.weight.data[:48] = 0
        block.attn.qkv.bias.data[:48] = 0
    mass = capture(backbone, pixels(), [ClsParts()])["cls_mass"]
    torch.testing.assert_close(mass, torch.tensor([[16 / 21, 4 / 21, 1 / 21]]).expand(3, 3))


@every
def test_bfloat16_is_close(backbone):
    x = pixels()
    exact = capture(backbone, x, REDUCERS)
    rough = capture(backbone, x, REDUCERS, dtype=torch.bfloat16)
    assert 1e-6 < residual(rough) < 0.02  # the model rounds its own sum; the parts are float32
    assert_near(rough["cls_mass"].sum(-1), torch.ones(3, DEPTH).double())
    for i in range(len(PARTS)):
        deviation = (rough["cls_parts"] - exact["cls_parts"])[:, 0, i].norm(dim=-1)
        assert (deviation <= 0.05 * exact["cls_parts"][:, 0].norm(dim=-1).amax(-1)).all()


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@every
def test_batches_bits_and_hooks(backbone):
    """A batch equals its images one by one, the model's output is the same to the bit, and no hook survives."""
    x, seen = pixels(5), []
    with torch.inference_mode():
        before = backbone(x)
    handle = backbone.model.register_forward_hook(lambda _, __, output: seen.append(output.clone()))
    whole = capture(backbone, x, REDUCERS, batch_size=5)
    handle.remove()
    assert torch.equal(seen[0], before) and hooks(backbone.model) == 0
    for size in (1, 2):
        again = capture(backbone, x, REDUCERS, batch_size=size)
        for key in whole:
            torch.testing.assert_close(again[key], whole[key], rtol=1e-4, atol=1e-5)
    assert not torch.equal(whole["cls_parts"][0], whole["cls_parts"][4])


@one_each
def test_no_hook_survives_an_exception(backbone, monkeypatch):
    def broken(self, x, layout):
        raise RuntimeError("broken")

    monkeypatch.setattr(HighestToken, "reduce", broken)
    with pytest.raises(RuntimeError, match="broken"):
        capture(backbone, pixels(), REDUCERS)
    assert hooks(backbone.model) == 0


def test_refusals():
    pooled = build("pooled")
    for reducer in (ClsParts(), ClsRenormalised(), PatchContributions(), ClsTokens()):
        with pytest.raises(ValueError, match=r"no \[CLS\] token"):
            capture(pooled, pixels(), [reducer])
    assert capture(pooled, pixels(), [HighestToken()])["highest_token"].shape == (3, 24)
    normed = build("vit", scale_attn_norm=True)
    for backbone in (normed, build("vit", block_fn=ResPostBlock)):
        with pytest.raises(ValueError, match="block 2 of 'vit' normalises what its attention returns"):
            capture(backbone, pixels(), [TokenNorms(), ClsParts()])
        assert hooks(backbone.model) == 0
    with pytest.raises(ValueError, match="no block 3 in 'vit'"):
        capture(normed, pixels(), [ClsParts(3)])


# Gram shares -----------------------------------------------------------------------------------------------------------


def features(n=30, parts=3, width=7, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, parts, width)) * (1 + np.arange(parts))[:, None] + rng.normal(size=(1, parts, width))


def gram_shares_of(parts, centred=True):
    return np.array([[estimate.value for estimate in row] for row in gram_shares_over_images(parts, centred)])


def shares_by_gram(parts, centred):
    """All terms of eq. 5 as n x n matrices."""
    each = [part - part.mean(0) if centred else part for part in np.moveaxis(parts, 1, 0)]
    gram = sum(each) @ sum(each).T
    return np.array([[(a @ b.T * gram).sum() / (gram**2).sum() for b in each] for a in each])


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("n, width", [(30, 7), (6, 20)])
def test_gram_shares_against_gram_matrices(centred, n, width):
    parts = features(n, 4, width)
    found = gram_shares_of(torch.from_numpy(parts), centred)
    assert found == pytest.approx(shares_by_gram(parts, centred)) and found.sum() == pytest.approx(1)
    estimates = gram_shares_over_images(parts, centred)
    without = np.array([shares_by_gram(np.delete(parts, i, axis=0), centred) for i in range(n)])
    expected = [[jackknife(found[a, b], without[:, a, b]) for b in range(4)] for a in range(4)]
    assert np.array(estimates) == pytest.approx(np.array(expected))


def test_gram_shares_of_two_images():
    assert gram_shares_of(features(2)) == pytest.approx(shares_by_gram(features(2), True))


def test_gram_shares_of_known_parts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8))
    parts = np.stack([0.75 * x, 0.25 * x + 3, np.full((50, 8), 0.1)], axis=1)  # the same direction, and a constant
    assert gram_shares_of(parts) == pytest.approx(np.outer([0.75, 0.25, 0], [0.75, 0.25, 0]))
    assert gram_shares_of(1e-3 * parts) == pytest.approx(gram_shares_of(parts)), "shares have no unit"
    assert gram_shares_of(parts, centred=False)[0, 0] < 0.1
    against = gram_shares_of(np.stack([2 * x, -x], axis=1))
    assert against == pytest.approx(np.array([[4, -2], [-2, 1]]))
    other = features(40, 2, 5)
    first, total = other[:, 0] - other[:, 0].mean(0), other.sum(1) - other.sum(1).mean(0)
    ratio = np.linalg.norm(first @ first.T) / np.linalg.norm(total @ total.T)
    assert gram_shares_of(other)[0, 0] == pytest.approx(linear_cka(first, total) * ratio)


def test_gram_shares_of_nothing():
    assert np.isnan(gram_shares_of(np.full((9, 2, 3), 0.1))).all()
    estimate = gram_shares_over_images(np.full((9, 2, 3), 0.1))[0][1]
    assert np.isnan(estimate.value) and np.isnan(estimate.low) and estimate.n == 9
    with pytest.raises(ValueError, match="1 image has no similarity to others"):
        gram_shares_over_images(np.ones((1, 2, 3)))


# Real weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("HF_HUB_CACHE" not in os.environ, reason="HF_HUB_CACHE does not name a folder of weights")
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "deit_tiny_patch16_224.fb_in1k"])
def test_real_weights(name, monkeypatch):
    """The parts add up in every block; ViT-Ti's [CLS] hardly attends to itself in the last one, DeiT-Ti's does."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # only what is in the cache already
    try:
        backbone = load_backbone(name)
    except ModelUnavailable:
        pytest.skip(f"HF_HUB_CACHE holds no weights of {name}")
    got = capture(backbone, load_images("scenes", 8, 0), [ClsParts("all"), HighestToken(), Output()])
    assert residual(got) < 1e-5
    itself = got["cls_mass"][:, -1, 2].mean()
    if name.startswith("vit"):
        assert itself < 0.05 and set(got["highest_index"].tolist()) <= {1, 14, 183, 196}  # the corners
    else:
        assert itself > 0.05
