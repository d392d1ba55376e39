"""The models under test, what changes and reduces their forward pass, and one forward pass written by hand: in float64, layer by
layer, without a hook."""

import copy

import open_clip
import pytest
import timm
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

from helpers.capture import (
    AttentionEntropy,
    ClsAttention,
    ClsParts,
    ClsRenormalised,
    ClsTokens,
    Feature,
    FinalTokens,
    HighestToken,
    NeuronActivation,
    OnPatches,
    OnQKV,
    Output,
    PatchContributions,
    PatchNorms,
    Pooled,
    QKVNorms,
    SelectedPixels,
    SelectedTokens,
    TokenNorms,
)
from helpers.capture.register_neurons import NeuronMeans
from helpers.interventions import (
    ablated_neurons,
    appended_registers,
    averaged_neurons,
    dropped_patches,
    moved_positions,
    test_time_registers,
)
from helpers.interventions.tokens import DROP_MODES, INITS
from helpers.models import CONTROL_DATA, CONTROLS, OpenClipBackbone, TokenLayout, load_backbone, wrap_timm

# ---- Models -------------------------------------------------------------------------------------------------------------

DEPTH = 3
ARCHITECTURES = {  # of timm, three blocks of them
    "vit": ("vit_tiny_patch16_224", 64),
    "dinov2": ("vit_small_patch14_dinov2", 56),
    "dinov2-reg4": ("vit_small_patch14_reg4_dinov2", (56, 42)),
    "deit3": ("deit3_small_patch16_224", 64),
    "distilled": ("deit_tiny_distilled_patch16_224", 64),
}
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": DEPTH, "num_heads": 3, "num_classes": 5}
OPTIONS = {  # beside SMALL
    "small": {},
    "swiglu": {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 6, "init_values": 1.0},
    "qk-norm": {"qk_norm": True, "pre_norm": True, "dynamic_img_size": True, "init_values": 1.0},
    "pooled": {"class_token": False, "global_pool": "avg", "reg_tokens": 1},
    "no-bias": {"qkv_bias": False, "proj_bias": False},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "layerscale": {"reg_tokens": 2, "init_values": 1.0},
    "small-distilled": {},
}
CLIPS = {"open_clip": 1e-5, "open_clip-plain": None}  # LayerScale
KINDS = [*ARCHITECTURES, "swiglu", "qk-norm", "pooled", "open_clip"]  # one of each kind that capture has to know
# Tokens before the first patch, where it is not [CLS] alone, and patches, where these are not 4 x 4.
PREFIX = {"dinov2-reg4": 5, "distilled": 2, "registers": 5, "layerscale": 3, "small-distilled": 2, "control-registers": 5}
PATCHES = {"dinov2-reg4": 12}


def build(kind, gamma=1.0, **options):
    """A Backbone with weights drawn from a seed, or a control; another one with every call. `gamma` as in `randomise`."""
    if kind in CONTROLS:
        return load_backbone(kind, image_size=64)
    if kind in CLIPS:
        visual = open_clip.transformer.VisionTransformer(
            32, 8, width=48, layers=DEPTH, heads=4, mlp_ratio=4.0, ls_init_value=CLIPS[kind], output_dim=16
        )
        return OpenClipBackbone(kind, randomise(visual, gamma), TokenLayout((4, 4)), (32, 32), (8, 8), torch.zeros_like, False)
    if kind in ARCHITECTURES:
        name, size = ARCHITECTURES[kind]
        model = timm.create_model(name, img_size=size, depth=DEPTH, **options)
    else:
        make = VisionTransformerDistilled if "distilled" in kind else VisionTransformer
        model = make(**SMALL | OPTIONS[kind] | options)
    return wrap_timm(kind, randomise(model, gamma), CONTROL_DATA, pretrained=False)


def randomise(model, gamma=1.0):
    """Weights that make sharp, varied attention and large activations; LayerScale gammas all `gamma`, or None: of both signs."""
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


def models(*kinds):
    """Runs a test once with each as its `backbone` (a fixture in conftest.py)."""
    return pytest.mark.parametrize("backbone", kinds, indirect=True)


def pixels(backbone, n=3, seed=1):
    return torch.randn(n, 3, *backbone.image_size, generator=torch.Generator().manual_seed(seed))


def positions(backbone, n=3, k=4, seed=2):
    """Patches of each image, other ones in every image, with a -1 in all rows but the first."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(backbone.layout.patches, generator=generator).narrow(0, 0, k) for _ in range(n)])
    chosen.narrow(0, 1, n - 1).select(1, 1).fill_(-1)
    return chosen


def bounds(backbone):
    """First patch, and first token after the patches, while none is dropped."""
    start = PREFIX.get(backbone.name, 1)
    return start, start + PATCHES.get(backbone.name, 16)


def hooks(model):
    """How many there are."""
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def entering(backbone, x):
    """The tokens (image, token, width) that block 0 gets."""
    seen = []
    with backbone.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])), torch.inference_mode():
        backbone(x)
    return seen[0].clone()


def assert_near(ours, theirs, bound=1e-5):
    """Largest deviation, in units of the largest value where that is above one."""
    assert ours.shape == theirs.shape and ours.dtype == torch.float32
    if ours.numel():
        deviation = ((ours.double() - theirs).abs().max() / max(1.0, theirs.abs().max().item())).item()
        assert deviation < bound


# ---- A forward pass by hand ---------------------------------------------------------------------------------------------


def embedded(backbone, x):
    """Of pixels: the patches (image, patch, width) before their positions, and the tokens that enter the first block."""
    m, x = copy.deepcopy(backbone.model).double(), x.double()
    if isinstance(m, VisionTransformer):
        return m.patch_embed(x).flatten(1, -2), m.norm_pre(m._pos_embed(m.patch_embed(x)))
    return m.conv1(x).flatten(2).mT, m._embeds(x)


def layers(block):
    """What a block is made of, by the name that timm gives it, whatever its library."""
    a, mlp = block.attn, block.mlp
    if hasattr(a, "qkv"):
        parts = {"norm1": block.norm1, "norm2": block.norm2, "ls1": block.ls1, "ls2": block.ls2, "fc1": mlp.fc1, "fc2": mlp.fc2}
        return parts | {"weight": a.qkv.weight, "bias": a.qkv.bias, "proj": a.proj, "q_norm": a.q_norm, "k_norm": a.k_norm}
    parts = {"norm1": block.ln_1, "norm2": block.ln_2, "ls1": block.ls_1, "ls2": block.ls_2, "fc1": mlp.c_fc, "fc2": mlp.c_proj}
    same = nn.Identity()
    return parts | {"weight": a.in_proj_weight, "bias": a.in_proj_bias, "proj": a.out_proj, "q_norm": same, "k_norm": same}


def forward(backbone, tokens, change=lambda block, hidden: hidden):
    """What each block makes of `tokens` (image, token, width), its neurons being what `change` returns: a dict a block of 'q',
    'k', 'v' and 'attention' (image, head, token, ...), 'neurons' (image, token, hidden), and the residual stream 'before' and
    'after' the attention layer and, as 'residual', at the end of the block."""
    m, x, blocks = copy.deepcopy(backbone.model).double(), tokens.double(), []
    for index, block in enumerate(m.blocks if isinstance(m, VisionTransformer) else m.transformer.resblocks):
        own, heads = layers(block), block.attn.num_heads
        qkv = F.linear(own["norm1"](x), own["weight"], own["bias"])
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
        q, k = own["q_norm"](q), own["k_norm"](k)
        attention = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        after = x + own["ls1"](own["proj"]((attention @ v).transpose(1, 2).flatten(2)))
        hidden = own["fc1"](own["norm2"](after))
        if hidden.shape[-1] != own["fc2"].in_features:  # SwiGLU, packed
            gate, value = hidden.chunk(2, dim=-1)
            hidden = gate * gate.sigmoid() * value
        else:
            hidden = F.relu(hidden) if backbone.name in CONTROLS else F.gelu(hidden)
        hidden = change(index, hidden.clone())
        end = after + own["ls2"](own["fc2"](hidden))
        blocks.append({"q": q, "k": k, "v": v, "attention": attention, "neurons": hidden, "before": x, "after": after})
        blocks[-1]["residual"] = x = end
    return blocks


def finished(backbone, x, appended=0):
    """What the model makes of the last block's output in float64: all tokens after the final norm, and, without the `appended`
    ones at the end, its feature and its output."""
    m = copy.deepcopy(backbone.model).double()
    if not isinstance(m, VisionTransformer):
        x = m.ln_post(x)
        return x, x.select(1, 0) @ m.proj, x.select(1, 0) @ m.proj
    if m.global_pool == "avg":
        start = PREFIX.get(backbone.name, 1)
        feature = m.fc_norm(x.narrow(1, start, x.shape[1] - start - appended).mean(1))
        return m.fc_norm(x), feature, m.head(feature)
    x = m.norm(x)
    output = m.head(x.select(1, 0))
    return x, x.select(1, 0), (output + m.head_dist(x.select(1, 1))) / 2 if hasattr(m, "head_dist") else output


def stack(blocks, key):
    """(image, block, ...)"""
    return torch.stack([block[key] for block in blocks], dim=1)


# ---- Reducers and interventions -----------------------------------------------------------------------------------------


def grid_mean(x):
    return x.mean(dim=(1, 2))


# An example of every reducer, for seven images, and of every intervention, for 16 patches; tests/capture/test_capture.py fails
# where one is missing.
REDUCERS = {
    PatchNorms: lambda b: PatchNorms(),
    TokenNorms: lambda b: TokenNorms(),
    ClsAttention: lambda b: ClsAttention("all"),
    AttentionEntropy: lambda b: AttentionEntropy(),
    FinalTokens: lambda b: FinalTokens(),
    Pooled: lambda b: Pooled(),
    ClsTokens: lambda b: ClsTokens(),
    HighestToken: lambda b: HighestToken(),
    ClsParts: lambda b: ClsParts("all"),
    ClsRenormalised: lambda b: ClsRenormalised("all"),
    PatchContributions: lambda b: PatchContributions("all"),
    Feature: lambda b: Feature(),
    Output: lambda b: Output(),
    SelectedTokens: lambda b: SelectedTokens(positions(b, 7)),
    SelectedPixels: lambda b: SelectedPixels(positions(b, 7)),
    QKVNorms: lambda b: QKVNorms("all"),
    OnQKV: lambda b: OnQKV("mean_key", grid_mean),
    NeuronActivation: lambda b: NeuronActivation("activation", 1, 0),
    OnPatches: lambda b: OnPatches("mean", grid_mean),
    NeuronMeans: lambda b: NeuronMeans(0, torch.rand(7, b.layout.patches) < 0.2, "paper", True),
}
NEURONS = [(0, 1), (0, 5), (1, 2)]
INTERVENTIONS = {
    appended_registers: [{"count": 2, "init": init} for init in INITS],
    dropped_patches: [{"rate": 0.5, "mode": mode} for mode in DROP_MODES],
    moved_positions: [{"sources": list(range(15, -1, -1))}],
    test_time_registers: [{"neurons": NEURONS, "count": 2, "init": init} for init in INITS],
    ablated_neurons: [{"neurons": NEURONS}],
    averaged_neurons: [{"neurons": NEURONS}],
}
CHANGES = [(change, arguments) for change, examples in INTERVENTIONS.items() for arguments in examples]
