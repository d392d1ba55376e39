"""capture against an unfused float64 forward pass written here, which uses no hook and none of helpers.backbone."""

import copy
import gc
from functools import partial

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch.nn import functional as F

from helpers import capture as module
from helpers.capture import (
    QKV,
    AttentionEntropy,
    ClsAttention,
    FinalTokens,
    MlpNeuronMax,
    OnPatches,
    PatchNorms,
    QKVNorms,
    Reducer,
    TokenNorms,
    capture,
    capture_each,
)
from helpers.images import load_images
from helpers.models import CONTROL_DATA, ModelUnavailable, OpenClipBackbone, load_backbone, wrap_timm
from helpers.tokens import TokenLayout

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
NAMES = {
    "vit": ("vit_tiny_patch16_224", 64),
    "dinov2": ("vit_small_patch14_dinov2", 56),
    "dinov2-reg4": ("vit_small_patch14_reg4_dinov2", (56, 42)),
    "deit3": ("deit3_small_patch16_224", 64),
    "deit-distilled": ("deit_tiny_distilled_patch16_224", 64),
}
KWARGS = {
    "swiglu": {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": torch.nn.SiLU, "mlp_ratio": 6, "init_values": 1.0},
    "qk-norm": {"qk_norm": True, "pre_norm": True, "dynamic_img_size": True},
    "pooled": {"class_token": False, "global_pool": "avg", "reg_tokens": 1},
}


def randomise(model, seed=0):
    """Weights that make sharp, varied attention, large activations and LayerScale gammas of one."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "gamma" in name:
            p.data.fill_(1.0)
        elif p.dim() == 1 and name.endswith("weight"):
            p.data.copy_(1 + 0.2 * noise)
        elif p.dim() == 1 or "embed" in name or "token" in name:
            p.data.copy_(0.5 * noise)
        else:
            p.data.copy_(1.5 * noise / p[0].numel() ** 0.5)
    return model


def build(kind):
    if kind == "open_clip":
        visual = open_clip.transformer.VisionTransformer(
            image_size=32, patch_size=8, width=48, layers=3, heads=4, mlp_ratio=4.0, ls_init_value=1e-5, output_dim=16
        )
        return OpenClipBackbone(
            "tiny-clip",
            randomise(visual).eval().requires_grad_(False),
            TokenLayout((4, 4)),
            (32, 32),
            (8, 8),
            torch.zeros_like,
            False,
        )
    if kind in NAMES:
        name, size = NAMES[kind]
        backbone = load_backbone(name, image_size=size, pretrained=False)
    else:
        model = VisionTransformer(**SMALL | KWARGS[kind]).eval().requires_grad_(False)
        backbone = wrap_timm(kind, model, CONTROL_DATA, pretrained=False)
    randomise(backbone.model)
    return backbone


BACKBONES = {}


@pytest.fixture
def backbone(request):
    if request.param not in BACKBONES:
        BACKBONES[request.param] = build(request.param)
    return BACKBONES[request.param]


def pixels(backbone, n=3, seed=1):
    return torch.randn(n, 3, *backbone.image_size, generator=torch.Generator().manual_seed(seed))


every = pytest.mark.parametrize("backbone", [*NAMES, *KWARGS, "open_clip"], indirect=True)
one_each = pytest.mark.parametrize("backbone", ["dinov2-reg4", "open_clip"], indirect=True)
vit = pytest.mark.parametrize("backbone", ["vit"], indirect=True)


def reference(backbone, x):
    """The whole forward pass in float64: a list with one dict of everything a block computes, and the patch embedding."""
    m = copy.deepcopy(backbone.model).double()
    x, blocks = x.double(), []
    if isinstance(m, VisionTransformer):
        embedded = m.patch_embed(x).flatten(1, -2)
        x = m.norm_pre(m._pos_embed(m.patch_embed(x)))
    else:
        embedded = m.conv1(x).flatten(2).mT
        x = m._embeds(x)
    for block in m.blocks if isinstance(m, VisionTransformer) else m.transformer.resblocks:
        a = block.attn
        if isinstance(m, VisionTransformer):
            norm1, norm2, ls1, ls2, fc1, fc2 = block.norm1, block.norm2, block.ls1, block.ls2, block.mlp.fc1, block.mlp.fc2
            weight, bias, project, q_norm, k_norm = a.qkv.weight, a.qkv.bias, a.proj, a.q_norm, a.k_norm
        else:
            norm1, norm2, ls1, ls2, fc1, fc2 = block.ln_1, block.ln_2, block.ls_1, block.ls_2, block.mlp.c_fc, block.mlp.c_proj
            weight, bias, project = a.in_proj_weight, a.in_proj_bias, a.out_proj
            q_norm = k_norm = torch.nn.Identity()
        q, k, v = (t.unflatten(-1, (a.num_heads, -1)).transpose(1, 2) for t in (norm1(x) @ weight.T + bias).chunk(3, dim=-1))
        q, k = q_norm(q), k_norm(k)
        attention = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        x = x + ls1(project((attention @ v).transpose(1, 2).flatten(2)))
        hidden = fc1(norm2(x))
        if hidden.shape[-1] != fc2.in_features:  # SwiGLU, packed
            gate, value = hidden.chunk(2, dim=-1)
            hidden = F.silu(gate) * value
        else:
            hidden = F.gelu(hidden)
        x = x + ls2(fc2(hidden))
        blocks.append({"q": q, "k": k, "v": v, "attention": attention, "neurons": hidden, "residual": x})
    return blocks, embedded, m


def stack(blocks, key):
    return torch.stack([block[key] for block in blocks], dim=1)


def patches(backbone, x, dim):
    return x.narrow(dim, x.shape[dim] - backbone.layout.patches, backbone.layout.patches)


def assert_near(ours, theirs, bound=1e-5):
    """Largest deviation, in units of the largest value where that is above one."""
    assert ours.shape == theirs.shape and ours.dtype == torch.float32
    deviation = ((ours.double() - theirs).abs().max() / max(1.0, theirs.abs().max().item())).item()
    assert deviation < bound


@every
def test_residual_stream(backbone):
    x = pixels(backbone)
    got = capture(backbone, x, [PatchNorms(), TokenNorms(), FinalTokens()], batch_size=2)
    blocks, _, _ = reference(backbone, x)
    norms = stack(blocks, "residual").norm(dim=-1)
    assert_near(got["token_norms"], norms)
    assert_near(got["patch_norms"], patches(backbone, norms, -1))
    assert_near(got["final_tokens"], blocks[-1]["residual"])


@every
def test_final_norm(backbone):
    x = pixels(backbone)
    blocks, _, m = reference(backbone, x)
    norm = m.ln_post if backbone.family == "open_clip" else m.fc_norm if m.global_pool == "avg" else m.norm
    assert_near(capture(backbone, x, [FinalTokens(norm=True)])["final_tokens"], norm(blocks[-1]["residual"]))


@every
def test_attention(backbone):
    x = pixels(backbone)
    blocks, _, _ = reference(backbone, x)
    attention = stack(blocks, "attention")  # image, block, head, query, key
    assert attention.max() > 3 / attention.shape[-1]  # far from uniform, else nothing is tested
    entropy = -(attention * attention.clamp_min(1e-300).log()).sum(-1)
    got = capture(backbone, x, [AttentionEntropy()], batch_size=2)
    assert_near(got["attention_entropy"], patches(backbone, entropy, -1).mean(dim=(2, 3)))
    if backbone.layout.cls:
        rows = attention.select(-2, 0)
        assert_near(capture(backbone, x, [ClsAttention("all", heads="all")])["cls_attention"], rows)
        assert_near(capture(backbone, x, [ClsAttention("all")])["cls_attention"], rows.mean(2))


@every
def test_queries_keys_values(backbone):
    x = pixels(backbone)
    blocks, _, _ = reference(backbone, x)
    got = capture(backbone, x, [QKV("all"), QKVNorms("all")])
    for key in "qkv":
        whole = patches(backbone, stack(blocks, key), -2).transpose(2, 3).flatten(-2)
        assert_near(got[key], whole)
        assert_near(got[f"{key}_norms"], whole.norm(dim=-1))


@every
def test_mlp_neurons(backbone):
    x = pixels(backbone)
    blocks, _, _ = reference(backbone, x)
    neurons = patches(backbone, stack(blocks, "neurons"), -2)
    largest = neurons.gather(-2, neurons.abs().argmax(dim=-2, keepdim=True)).squeeze(-2)
    got = capture(backbone, x, [MlpNeuronMax()])["mlp_neuron_max"]
    assert_near(got, largest)
    if backbone.name == "swiglu":
        assert (got < 0).any() and (got > 0).any()


def test_the_neuron_of_largest_magnitude_keeps_its_sign():
    x = torch.tensor([[[9.0, -9.0], [1.0, -4.0], [-3.0, 2.0]]])  # [CLS], then two patches
    assert MlpNeuronMax().reduce(x, TokenLayout((1, 2)))[0].tolist() == [[-3.0, -4.0]]


@every
def test_patches_as_a_grid(backbone):
    x = pixels(backbone)
    blocks, embedded, _ = reference(backbone, x)
    got = capture(backbone, x, [OnPatches("first", lambda g: g), OnPatches("late", lambda g: g, at=-1)])
    rows, columns = backbone.layout.grid
    assert_near(got["first"], embedded.unflatten(1, (rows, columns)))
    assert_near(got["late"], patches(backbone, blocks[-1]["residual"], 1).unflatten(1, (rows, columns)))


def everything(backbone):
    cls = [ClsAttention("all", heads="all")] if backbone.layout.cls else []
    return [PatchNorms(), TokenNorms(), AttentionEntropy(), FinalTokens(), QKV(), QKVNorms("all"), MlpNeuronMax(), *cls]


@every
def test_a_batch_equals_its_images_one_by_one(backbone):
    x = pixels(backbone, 5)
    whole = capture(backbone, x, everything(backbone), batch_size=5)
    for size in (1, 2):
        parts = capture(backbone, x, everything(backbone), batch_size=size)
        for key in whole:
            torch.testing.assert_close(parts[key], whole[key], rtol=1e-4, atol=1e-5)
    assert not torch.equal(whole["patch_norms"][0], whole["patch_norms"][4])


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@every
def test_outputs_are_unchanged_to_the_bit_and_no_hook_survives(backbone):
    x, seen = pixels(backbone), []
    with torch.inference_mode():
        before = backbone(x)
    handle = backbone.model.register_forward_hook(lambda _, __, output: seen.append(output.clone()))
    capture(backbone, x, everything(backbone))
    handle.remove()
    assert torch.equal(seen[0], before)
    assert hooks(backbone.model) == 0


class Precision(Reducer):
    point, keys, blocks = "attention", ("autocast",), -1

    def reduce(self, x, layout):
        return (torch.full(x.q.shape[:1], float(torch.is_autocast_enabled("cpu") or x.q.dtype != torch.float32)),)


class Broken(Reducer):
    point, keys, blocks = "residual", ("broken",), "all"

    def reduce(self, x, layout):
        raise RuntimeError("broken")


@one_each
def test_no_hook_survives_an_exception(backbone):
    with pytest.raises(RuntimeError, match="broken"):
        capture(backbone, pixels(backbone), [*everything(backbone), Broken()])
    assert hooks(backbone.model) == 0


@one_each
def test_no_attention_matrix_outlives_its_block(backbone):
    tokens, alive = backbone.layout.tokens, []

    def count(_, __):
        alive.extend(
            o.shape
            for o in gc.get_objects()
            if type(o) is torch.Tensor and o.dim() == 4 and o.shape[-1] == tokens and o.shape[-2] >= backbone.layout.patches
        )

    handle = backbone.final_norm.register_forward_pre_hook(count)
    capture(backbone, pixels(backbone), [AttentionEntropy(), ClsAttention("all")])
    handle.remove()
    assert alive == []


@one_each
def test_entropy_goes_through_the_queries_in_chunks(backbone, monkeypatch):
    x, log_softmax, largest = pixels(backbone), torch.Tensor.log_softmax, []
    whole = capture(backbone, x, [AttentionEntropy()])["attention_entropy"]

    def watched(self, dim):
        largest.append(self.numel())
        return log_softmax(self, dim)

    rows = len(x) * backbone.heads * backbone.layout.tokens
    monkeypatch.setattr(module, "ROWS", 5 * rows)
    monkeypatch.setattr(torch.Tensor, "log_softmax", watched)
    chunked = capture(backbone, x, [AttentionEntropy()])["attention_entropy"]
    assert max(largest) == 5 * rows
    torch.testing.assert_close(chunked, whole)


def test_entropy_of_uniform_attention_is_the_logarithm_of_the_tokens():
    backbone = build("vit")
    for block in backbone.model.blocks:
        block.attn.qkv.weight.data.zero_()
        block.attn.qkv.bias.data.zero_()
    got = capture(backbone, pixels(backbone), [AttentionEntropy(), ClsAttention()])
    torch.testing.assert_close(got["attention_entropy"], torch.full((3, 12), np.log(17), dtype=torch.float32))
    torch.testing.assert_close(got["cls_attention"], torch.full((3, 1, 17), 1 / 17))


@one_each
def test_bfloat16_is_close_and_leaves_the_weights_alone(backbone):
    x, before = pixels(backbone), copy.deepcopy(backbone.model.state_dict())
    exact = capture(backbone, x, [TokenNorms(), ClsAttention(), QKVNorms()])
    rough = capture(backbone, x, [TokenNorms(), ClsAttention(), QKVNorms(), Precision()], dtype=torch.bfloat16)
    assert not rough.pop("autocast").any()  # what reducers compute, they compute in float32
    assert not torch.equal(rough["token_norms"], exact["token_norms"])
    for key in exact:
        assert rough[key].dtype == torch.float32
        assert (rough[key] - exact[key]).abs().max() < 0.1 * exact[key].abs().max()
    assert all(torch.equal(before[key], value) for key, value in backbone.model.state_dict().items())


@vit
def test_which_blocks(backbone):
    x = pixels(backbone)
    whole = capture(backbone, x, [TokenNorms()])["token_norms"]
    assert whole.shape == (3, 12, 17)
    assert torch.equal(capture(backbone, x, [TokenNorms((-1, 0, 4))])["token_norms"], whole[:, [11, 0, 4]])
    assert torch.equal(capture(backbone, x, [TokenNorms([2])])["token_norms"], whole[:, [2]])
    assert torch.equal(capture(backbone, x, [TokenNorms(2)])["token_norms"], whole[:, 2])


@vit
def test_pil_images_are_preprocessed(backbone):
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (50, 70, 3), dtype=np.uint8)) for _ in range(3)]
    ready = torch.stack([backbone.preprocess(image) for image in images])
    norms = [capture(backbone, given, [PatchNorms()])["patch_norms"] for given in (images, ready)]
    assert torch.equal(*norms)


@vit
def test_results_can_be_trained_on(backbone):
    tokens = capture(backbone, pixels(backbone), [FinalTokens()])["final_tokens"]
    probe = torch.nn.Linear(tokens.shape[-1], 1)
    probe(tokens).sum().backward()
    assert probe.weight.grad is not None and not tokens.is_inference() and tokens.device.type == "cpu"


@vit
def test_tokens_appended_by_an_intervention(backbone):
    x = pixels(backbone)
    plain, layout = capture(backbone, x, [PatchNorms(0)])["patch_norms"], backbone.layout
    handle = backbone.blocks[0].register_forward_pre_hook(lambda _, args: F.pad(args[0], (0, 0, 0, 2)))
    try:
        backbone.layout = layout.with_appended(2)
        got = capture(backbone, x, [PatchNorms(), TokenNorms(), ClsAttention("all"), MlpNeuronMax(), AttentionEntropy()])
    finally:
        handle.remove()
        backbone.layout = layout
    assert got["patch_norms"].shape == (3, 12, 16) and got["token_norms"].shape == got["cls_attention"].shape == (3, 12, 19)
    assert torch.equal(got["token_norms"].narrow(-1, 1, 16), got["patch_norms"])
    assert not torch.allclose(got["patch_norms"].select(1, 0), plain)


@vit
def test_silent_when_stderr_is_no_terminal(backbone, capsys):
    capture(backbone, pixels(backbone), [PatchNorms()])
    assert capsys.readouterr() == ("", "")
    capture(backbone, pixels(backbone), [PatchNorms()], progress=True)
    assert "batch" in capsys.readouterr().err


@vit
@pytest.mark.parametrize(
    "change, message",
    [
        ({"images": torch.zeros(2, 3, 224, 224)}, r"\(3, 224, 224\) do not fit \(3, 64, 64\) of 'vit_tiny_.*image_size"),
        ({"images": torch.zeros(2, 3, 60, 60)}, r"multiple of its patch size \(16, 16\)"),
        ({"images": torch.zeros(2, 3, 64, 64, dtype=torch.uint8)}, "pixels of type torch.uint8"),
        ({"images": []}, "0 images in batches of 32"),
        ({"batch_size": 0}, "2 images in batches of 0"),
        ({"reducers": [PatchNorms((12,))]}, "no block 12 in 'vit_tiny_patch16_224'; choose 'all' or from -12 to 11"),
        ({"reducers": [PatchNorms("last")]}, "no block 'l'"),
        ({"reducers": [PatchNorms(), PatchNorms((0,))]}, "two reducers return 'patch_norms'"),
        ({"images": torch.full((2, 3, 64, 64), torch.nan)}, r"PatchNorms\(.*NaN or infinity in 'patch_norms' for images 0 to 1"),
    ],
)
def test_bad_input(backbone, change, message):
    arguments = {"images": torch.zeros(2, 3, 64, 64), "reducers": [PatchNorms()]} | change
    with pytest.raises(ValueError, match=message):
        capture(backbone, **arguments)
    assert hooks(backbone.model) == 0


@pytest.mark.parametrize("backbone", ["pooled"], indirect=True)
def test_cls_attention_needs_cls(backbone):
    with pytest.raises(ValueError, match=r"no \[CLS\] token"):
        capture(backbone, pixels(backbone), [ClsAttention()])


def test_heads_are_mean_or_all():
    with pytest.raises(ValueError, match="heads is 'max'"):
        ClsAttention(heads="max")


@vit
def test_a_hook_that_never_fires_is_an_error(backbone, monkeypatch):
    monkeypatch.setattr(backbone.blocks[5].mlp, "forward", lambda x: x)  # goes around fc2
    with pytest.raises(ValueError, match=r"MlpNeuronMax\(blocks='all'\) saw nothing in blocks \[5\]"):
        capture(backbone, pixels(backbone), [MlpNeuronMax()])


@vit
def test_watch_knows_its_points(backbone):
    with pytest.raises(ValueError, match="unknown point 'logits'"):
        backbone.watch("logits", 0, print)


@vit
def test_rows_do_not_depend_on_fused_attention(backbone):
    """The same weights in a model built without fused attention: its own softmax, caught at attn_drop."""
    x, rows = pixels(backbone), []
    timm.layers.set_fused_attn(False)
    try:
        unfused = timm.create_model("vit_tiny_patch16_224", img_size=64).eval()
    finally:
        timm.layers.set_fused_attn(True)
    unfused.load_state_dict(backbone.model.state_dict())
    keep = partial(lambda _, __, output: rows.append(output.select(-2, 0)))
    for block in unfused.blocks:
        assert not block.attn.fused_attn
        block.attn.attn_drop.register_forward_hook(keep)
    with torch.inference_mode():
        unfused(x)
    assert_near(capture(backbone, x, [ClsAttention("all", heads="all")])["cls_attention"], torch.stack(rows, dim=1).double())


def test_one_model_after_another(tmp_path, monkeypatch):
    """capture_each equals capture model by model, names what cannot be had, and fits a size to the patch."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    images = load_images("scenes", 3, 0)
    missing = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    captured, not_run = capture_each(["control-content", missing], images, [PatchNorms(blocks=(-1,))], image_size=250)
    assert list(not_run) == [missing] and "cache" in not_run[missing]
    for names, reason in (([missing], f"'{missing}' is not in the Hugging Face cache"), ([], "no model was named")):
        with pytest.raises(ModelUnavailable, match=reason):
            capture_each(names, images, [PatchNorms()])
    ((name, found),) = captured.items()
    backbone = load_backbone(name, image_size=240)
    torch.testing.assert_close(found["patch_norms"], capture(backbone, images, [PatchNorms(blocks=(-1,))])["patch_norms"])
    assert (found.layout, found.depth, found.parameters) == (backbone.layout, backbone.depth, backbone.parameters)
    assert found.source == backbone.describe() and found.resolution == "240 x 240 px"
