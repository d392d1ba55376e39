"""The models under test, what changes and reduces their forward pass, and one forward pass written
by hand: in float64, layer by layer, without a hook."""

import copy

import open_clip
import pytest
import timm
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva, EvaBlock
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

from helpers.capture import (
    AttentionEntropy,
    AttentionReceived,
    ClsAttention,
    ClsParts,
    ClsRenormalised,
    ClsTokens,
    Feature,
    FinalTokens,
    HighestToken,
    Magnitudes,
    MassiveTokens,
    NeuronActivation,
    OnPatches,
    OnQKV,
    OtherPatches,
    Output,
    PatchContributions,
    PatchNorms,
    Pooled,
    QKVNorms,
    RandomPixels,
    RandomTokens,
    SelectedPixels,
    SelectedTokens,
    SinglePatches,
    Sinks,
    TokenNorms,
    TokensAt,
    capture,
)
from helpers.capture.register_neurons import NeuronMeans
from helpers.interventions import (
    ablated_neurons,
    appended_registers,
    averaged_neurons,
    dropped_patches,
    moved_positions,
    replaced_tokens,
    set_channels,
    test_time_registers,
)
from helpers.interventions.tokens import DROP_MODES, INITS
from helpers.models import (
    CONTROL_DATA,
    CONTROLS,
    OpenClipBackbone,
    TokenLayout,
    load_backbone,
    wrap_timm,
)

# ---- Models
# --------------------------------------------------------------------------------------------------

DEPTH = 3
ARCHITECTURES = {  # of timm, three blocks of them
    "vit": ("vit_tiny_patch16_224", 64),
    "dinov2-reg4": ("vit_small_patch14_reg4_dinov2", (56, 42)),
    "distilled": ("deit_tiny_distilled_patch16_224", 64),
}
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "num_heads": 3, "num_classes": 5}
SMALL["depth"] = DEPTH
OPTIONS = {  # beside SMALL
    "small": {},
    "swiglu": {
        "mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 6,
        "init_values": 1.0,
    },
    "qk-norm": {"qk_norm": True, "pre_norm": True, "dynamic_img_size": True, "init_values": 1.0},
    "pooled": {"class_token": False, "global_pool": "avg", "reg_tokens": 1},
    "no-bias": {"qkv_bias": False, "proj_bias": False},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "layerscale": {"reg_tokens": 2, "init_values": 1.0},
    "small-distilled": {},
}  # fmt: skip
ROTARY = {  # beside SMALL; what DINOv3, EVA02, Perception Encoder and others have
    "dinov3-reg4": {
        "num_reg_tokens": 4, "qkv_bias": False, "init_values": 1.0, "rope_type": "dinov3",
        "rope_rotate_half": True, "use_rot_pos_emb": True, "use_abs_pos_emb": False,
        "dynamic_img_size": True, "use_fc_norm": False,
    },
    "eva02": {
        "qkv_fused": False, "swiglu_mlp": True, "scale_mlp": True, "mlp_ratio": 2,
        "use_rot_pos_emb": True, "ref_feat_shape": (4, 4), "global_pool": "token",
    },
    "eva": {"global_pool": "token"},
    "pe": {
        "attn_type": "rope", "use_pre_transformer_norm": True, "use_rot_pos_emb": True,
        "rope_grid_offset": 1.0,
        "rope_grid_indexing": "xy", "global_pool": "map", "attn_pool_num_heads": 3,
    },
    "rope-mixed": {
        "attn_type": "rope", "rope_type": "mixed", "rope_temperature": 10.0,
        "use_rot_pos_emb": True, "use_abs_pos_emb": False, "init_values": 1.0,
        "global_pool": "token",
    },
    "shared-keys": {
        "attn_type": "rope", "qkv_fused": False, "qk_norm": True, "num_kv_heads": 1,
        "rope_type": "dinov3", "init_values": 1.0, "rope_rotate_half": True,
        "attn_only_layer_scale": True, "use_rot_pos_emb": True, "use_abs_pos_emb": False,
        "class_token": False, "global_pool": "avg",
    },
}  # fmt: skip
CLIPS = {"open_clip": 1e-5, "open_clip-plain": None}  # LayerScale
# One of each kind that capture has to know.
KINDS = [*ARCHITECTURES, "swiglu", "qk-norm", "pooled", "open_clip", "dinov3-reg4", "eva02"]
# Tokens before the first patch, where it is not [CLS] alone.
PREFIX = {"dinov2-reg4": 5, "distilled": 2, "registers": 5, "layerscale": 3, "small-distilled": 2}
PREFIX |= {"control-registers": 5, "dinov3-reg4": 5, "shared-keys": 0}
PATCHES = {"dinov2-reg4": 12}  # where they are not 4 x 4


def build(kind, gamma=1.0, **options):
    """A Backbone with weights drawn from a seed, or a control; another one with every call. `gamma`
    as in `randomise`."""
    if kind in CONTROLS:
        return load_backbone(kind, image_size=64)
    if kind in CLIPS:
        how = {"width": 48, "layers": DEPTH, "heads": 4, "mlp_ratio": 4.0, "output_dim": 16}
        visual = open_clip.transformer.VisionTransformer(32, 8, ls_init_value=CLIPS[kind], **how)
        shape = TokenLayout((4, 4)), (32, 32), (8, 8)
        return OpenClipBackbone(kind, randomise(visual, gamma), *shape, torch.zeros_like, False)
    if kind in ARCHITECTURES:
        name, size = ARCHITECTURES[kind]
        model = timm.create_model(name, img_size=size, depth=DEPTH, **options)
    elif kind in ROTARY:
        model = Eva(**SMALL | ROTARY[kind] | options)
    else:
        make = VisionTransformerDistilled if "distilled" in kind else VisionTransformer
        model = make(**SMALL | OPTIONS[kind] | options)
    return wrap_timm(kind, randomise(model, gamma), CONTROL_DATA, pretrained=False)


def randomise(model, gamma=1.0):
    """Weights that make sharp, varied attention and large activations; LayerScale gammas all
    `gamma`, or None: of both signs."""
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith(("gamma", "gamma_1", "gamma_2")):
            p.data.copy_(noise if gamma is None else torch.full_like(p, gamma))
        elif p.dim() == 1 and name.endswith("weight"):
            p.data.copy_(1 + 0.2 * noise)
        elif p.dim() == 1 or "embed" in name or "token" in name:
            p.data.copy_(0.5 * noise)
        else:
            p.data.copy_(1.5 * noise / p[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


def models(*kinds):
    """Runs a test once with each as its `backbone` (a fixture in backbones.py)."""
    return pytest.mark.parametrize("backbone", kinds, indirect=True)


def pixels(backbone, n=3, seed=1):
    return torch.randn(n, 3, *backbone.image_size, generator=torch.Generator().manual_seed(seed))


def positions(backbone, n=3, k=4, seed=2):
    """Patches of each image, other ones in every image, with a -1 in all rows but the first."""
    generator, count = torch.Generator().manual_seed(seed), backbone.layout.patches
    chosen = torch.stack([torch.randperm(count, generator=generator)[:k] for _ in range(n)])
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
    with (
        backbone.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])),
        torch.inference_mode(),
    ):
        backbone(x)
    return seen[0].clone()


def assert_near(ours, theirs, bound=1e-5):
    """Largest deviation, in units of the largest value where that is above one."""
    assert ours.shape == theirs.shape and ours.dtype == torch.float32
    if ours.numel():
        deviation = (ours.double() - theirs).abs().max().item()
        assert deviation / max(1.0, theirs.abs().max().item()) < bound


# ---- A forward pass by hand
# ---------------------------------------------------------------------------------------------


def embedded(backbone, x):
    """Of pixels: the patches (image, patch, width) before their positions, and the tokens that
    enter the first block."""
    m, x = copy.deepcopy(backbone.model).double(), x.double()
    if not isinstance(m, VisionTransformer | Eva):
        return m.conv1(x).flatten(2).mT, m._embeds(x)
    tokens = m._pos_embed(m.patch_embed(x))
    tokens = tokens[0] if isinstance(m, Eva) else tokens
    return m.patch_embed(x).flatten(1, -2), m.norm_pre(tokens)


def layers(block):
    """What a block is made of, by the name that timm gives it, whatever its library."""
    a, mlp, same = block.attn, block.mlp, nn.Identity()
    if isinstance(block, EvaBlock):
        parts = {"norm1": block.norm1, "norm2": block.norm2, "mlp": mlp, "fc2": mlp.fc2}
        for i, gamma in enumerate((block.gamma_1, block.gamma_2), start=1):
            parts[f"ls{i}"] = same if gamma is None else lambda x, gamma=gamma: x * gamma
        if a.qkv is None:
            made = [(layer.weight, layer.bias) for layer in (a.q_proj, a.k_proj, a.v_proj)]
        elif getattr(a, "q_bias", None) is None:
            made = [(a.qkv.weight, a.qkv.bias)]
        else:
            made = [*zip(a.qkv.weight.chunk(3), (a.q_bias, None, a.v_bias), strict=True)]
        biases = [torch.zeros(len(w)).double() if bias is None else bias for w, bias in made]
        parts |= {"weight": torch.cat([w for w, _ in made]), "bias": torch.cat(biases)}
        parts["proj"] = a.proj
        return parts | {"q_norm": a.q_norm, "k_norm": a.k_norm}
    if hasattr(a, "qkv"):
        parts = {name: getattr(block, name) for name in ("norm1", "norm2", "ls1", "ls2")}
        parts |= {"fc1": mlp.fc1, "fc2": mlp.fc2, "q_norm": a.q_norm, "k_norm": a.k_norm}
        return parts | {"weight": a.qkv.weight, "bias": a.qkv.bias, "proj": a.proj}
    parts = {"norm1": block.ln_1, "norm2": block.ln_2, "ls1": block.ls_1, "ls2": block.ls_2}
    parts |= {"fc1": mlp.c_fc, "fc2": mlp.c_proj, "q_norm": same, "k_norm": same}
    return parts | {"weight": a.in_proj_weight, "bias": a.in_proj_bias, "proj": a.out_proj}


def rotations(backbone, model):
    """Of each block: the unit complex numbers by which pairs of channels of the patches are
    multiplied, and whether a pair is a channel and the one half a head further on, or two
    neighbours. None where position is not rotary."""
    rope = getattr(model, "rope", None)
    if rope is None:
        return [None] * backbone.depth
    tables = rope.get_embed(backbone.layout.grid)
    tables = tables if getattr(model, "rope_mixed", False) else [tables] * backbone.depth
    found = []
    for block, table in zip(model.blocks, tables, strict=True):
        sine, cosine = table.double().chunk(2, dim=-1)
        numbers, half = torch.complex(cosine, sine), block.attn.rotate_half
        found.append((numbers[..., : numbers.shape[-1] // 2] if half else numbers[..., ::2], half))
    return found


def turned(x, rotation):
    """Queries or keys (image, head, token, dim), those of the last tokens, the patches, multiplied
    by `rotation`."""
    if rotation is None:
        return x
    numbers, half = rotation
    prefix, patches = x.split([x.shape[2] - numbers.shape[-2], numbers.shape[-2]], dim=2)
    real, imaginary = patches.chunk(2, dim=-1) if half else (patches[..., ::2], patches[..., 1::2])
    product = torch.complex(real, imaginary) * numbers
    halves, pairs = torch.cat([product.real, product.imag], -1), torch.view_as_real(product)
    return torch.cat([prefix, halves if half else pairs.flatten(-2)], dim=2)


def forward(backbone, tokens, change=lambda block, hidden: hidden, moved=lambda rotation: rotation):
    """What each block makes of `tokens` (image, token, width), its neurons being what `change`
    returns and its rotations what `moved` does: a dict a block of 'q', 'k', 'v' and 'attention'
    (image, head, token, ...), 'neurons' (image, token, hidden), and the residual stream 'before'
    and 'after' the attention layer and, as 'residual', at the end of the block."""
    m, x, blocks = copy.deepcopy(backbone.model).double(), tokens.double(), []
    turns = [turn and (moved(turn[0]), turn[1]) for turn in rotations(backbone, m)]
    for index, block in enumerate(
        m.transformer.resblocks if hasattr(m, "transformer") else m.blocks
    ):
        own, heads = layers(block), block.attn.num_heads
        qkv = F.linear(own["norm1"](x), own["weight"], own["bias"])
        dim = own["proj"].in_features // heads
        few = (
            qkv.shape[-1] - heads * dim
        ) // 2  # width of keys and of values; heads may share them
        parts = (
            part.unflatten(-1, (-1, dim)).transpose(1, 2)
            for part in qkv.split([heads * dim, few, few], dim=-1)
        )
        q, k, v = (part[:, torch.arange(heads) * part.shape[1] // heads] for part in parts)
        q, k = turned(own["q_norm"](q), turns[index]), turned(own["k_norm"](k), turns[index])
        attention = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
        after = x + own["ls1"](own["proj"]((attention @ v).transpose(1, 2).flatten(2)))
        if "mlp" in own:
            mlp, entering = own["mlp"], own["norm2"](after)
            if hasattr(mlp, "fc1_g"):
                gate = mlp.fc1_g(entering)
                hidden = gate * gate.sigmoid() * mlp.fc1_x(entering)
            else:
                hidden = F.gelu(mlp.fc1(entering))
            hidden = mlp.norm(hidden)
        else:
            hidden = own["fc1"](own["norm2"](after))
            if hidden.shape[-1] != own["fc2"].in_features:  # SwiGLU, packed
                gate, value = hidden.chunk(2, dim=-1)
                hidden = gate * gate.sigmoid() * value
            else:
                hidden = F.relu(hidden) if backbone.name in CONTROLS else F.gelu(hidden)
        hidden = change(index, hidden.clone())
        end = after + own["ls2"](own["fc2"](hidden))
        blocks.append({"q": q, "k": k, "v": v, "attention": attention, "neurons": hidden})
        blocks[-1] |= {"before": x, "after": after, "residual": end}
        x = end
    return blocks


def finished(backbone, x, appended=0):
    """What the model makes of the last block's output in float64: all tokens after the final norm,
    and, without the `appended` ones at the end, its feature and its output."""
    m = copy.deepcopy(backbone.model).double()
    start, end = PREFIX.get(backbone.name, 1), x.shape[1] - appended
    if isinstance(m, Eva):
        x = m.norm(x)
        own = torch.cat([x[:, :start], x[:, start + appended :]], dim=1)
        if m.global_pool == "map":
            feature = m.attn_pool(own)
        else:
            feature = own[:, 0] if m.global_pool == "token" else own[:, start:].mean(1)
        feature = m.fc_norm(feature)
        return (m.fc_norm(x) if isinstance(m.norm, nn.Identity) else x), feature, m.head(feature)
    if not isinstance(m, VisionTransformer):
        x = m.ln_post(x)
        return x, x[:, 0] @ m.proj, x[:, 0] @ m.proj
    if m.global_pool == "avg":
        feature = m.fc_norm(x[:, start:end].mean(1))
        return m.fc_norm(x), feature, m.head(feature)
    x = m.norm(x)
    output = m.head(x[:, 0])
    distilled = hasattr(m, "head_dist")
    return x, x[:, 0], (output + m.head_dist(x[:, 1])) / 2 if distilled else output


def looks(backbone, x, **options):
    """The norms of all tokens in all blocks, and the output."""
    return capture(backbone, x, [TokenNorms(), Output()], **options)


def assert_by_hand(backbone, got, tokens, appended=0, **changes):
    """`got` of `looks` is what `tokens` that enter the first block give by hand."""
    residual = stack(forward(backbone, tokens, **changes), "residual")
    assert_near(got["token_norms"], residual.norm(dim=-1))
    assert_near(got["output"], finished(backbone, residual.select(1, -1), appended)[-1])


def stack(blocks, key):
    """(image, block, ...)"""
    return torch.stack([block[key] for block in blocks], dim=1)


# ---- Reducers and interventions
# -----------------------------------------------------------------------------------------


def grid_mean(x):
    return x.mean(dim=(1, 2))


# Of 16 images: one token, and in two of three images another.
PLACES = torch.tensor([[image % 5, 5 * (image % 3) - 1] for image in range(16)])
LENT = torch.linspace(-1, 1, 32).view(16, 1, 2, 1)

# An example of every reducer, for seven images, and of every intervention, for 16 patches;
# tests/capture/test_capture.py fails where one is missing.
OF_CLS = ClsAttention, Pooled, ClsTokens, ClsParts, ClsRenormalised, PatchContributions
REDUCERS = {
    PatchNorms: lambda b: PatchNorms(),
    TokenNorms: lambda b: TokenNorms(),
    ClsAttention: lambda b: ClsAttention("all"),
    AttentionEntropy: lambda b: AttentionEntropy(),
    AttentionReceived: lambda b: AttentionReceived("all", heads="all"),
    FinalTokens: lambda b: FinalTokens(),
    Pooled: lambda b: Pooled(),
    ClsTokens: lambda b: ClsTokens(),
    HighestToken: lambda b: HighestToken(),
    Magnitudes: lambda b: Magnitudes(),
    MassiveTokens: lambda b: MassiveTokens(1),
    SinglePatches: lambda b: SinglePatches(),
    ClsParts: lambda b: ClsParts("all"),
    ClsRenormalised: lambda b: ClsRenormalised("all"),
    PatchContributions: lambda b: PatchContributions("all"),
    Feature: lambda b: Feature(),
    Output: lambda b: Output(),
    SelectedTokens: lambda b: SelectedTokens(positions(b, 7)),
    SelectedPixels: lambda b: SelectedPixels(positions(b, 7)),
    RandomTokens: lambda b: RandomTokens(3, seed=2),
    RandomPixels: lambda b: RandomPixels(3, seed=2),
    QKVNorms: lambda b: QKVNorms("all"),
    OnQKV: lambda b: OnQKV("mean_key", grid_mean),
    NeuronActivation: lambda b: NeuronActivation("activation", 1, 0),
    OnPatches: lambda b: OnPatches("mean", grid_mean),
    Sinks: lambda b: Sinks("all", writes=True),
    TokensAt: lambda b: TokensAt(PLACES[:7]),
    OtherPatches: lambda b: OtherPatches(PLACES[:7]),
    NeuronMeans: lambda b: NeuronMeans(0, torch.rand(7, b.layout.patches) < 0.2, "paper", True),
}
NEURONS = [(0, 1), (0, 5), (1, 2)]
INTERVENTIONS = {
    appended_registers: [{"count": 2, "init": init} for init in INITS],
    dropped_patches: [{"rate": 0.5, "mode": mode} for mode in DROP_MODES],
    moved_positions: [{"sources": list(range(15, -1, -1))}],
    test_time_registers: [
        {"neurons": NEURONS, "count": 2, "init": init, "shared": init == "mean"} for init in INITS
    ],
    ablated_neurons: [{"neurons": NEURONS}],
    averaged_neurons: [{"neurons": NEURONS}],
    set_channels: [{"block": 0, "channels": [3, 5], "values": [0.0, -2.0], "where": "centre"}],
    replaced_tokens: [
        {"places": PLACES, "tokens": torch.full((1, 2, 1, 1), 0.5), "blocks": [0, 1]},
        {"places": PLACES, "tokens": LENT, "blocks": [1], "normed": True},
    ],
}
CHANGES = [
    (change, arguments) for change, examples in INTERVENTIONS.items() for arguments in examples
]
