"""A model of timm as one of transformers, with the same weights."""

import torch
from timm.layers import GluMlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.models import Backbone


def to_transformers(backbone: Backbone) -> nn.Module:
    """The model of transformers with the weights of one of timm, not with copies of them but for [CLS] and positions.

    Raises ValueError where transformers has no such model.
    """
    first, registers = backbone.blocks[0], backbone.layout.registers
    gated, activation = isinstance(first.mlp, GluMlp), type(first.mlp.act)
    layers = (nn.SiLU,) if gated else (nn.GELU, nn.ReLU)
    plain = type(first) is Block and isinstance(first.norm1, nn.LayerNorm) and activation in layers
    if not plain or (gated and first.mlp.gate_last):
        raise _unlike(backbone, f"{type(first).__name__} with {type(first.mlp).__name__} and {activation.__name__}")
    if backbone.image_size[0] != backbone.image_size[1]:
        raise _unlike(backbone, f"images of {backbone.image_size[0]} x {backbone.image_size[1]} pixels are not square")
    try:
        weights = _renamed(backbone)
    except KeyError as error:
        raise _unlike(backbone, f"only one of the two has {error}") from error

    import transformers  # here, so that a model is refused without it too

    options = {
        "hidden_size": backbone.width,
        "num_hidden_layers": backbone.depth,
        "num_attention_heads": backbone.heads,
        "layer_norm_eps": first.norm1.eps,
        "image_size": backbone.image_size,
        "patch_size": backbone.patch_size,
        "qkv_bias": first.attn.qkv.bias is not None,
        "hidden_act": activation.__name__.lower(),
        "attn_implementation": "eager",
    }
    hidden = first.mlp.fc2.in_features
    # A gated layer keeps two thirds of what the ratio says.
    dinov2 = {"mlp_ratio": round(hidden * (1.5 if gated else 1.0) / backbone.width), "use_swiglu_ffn": gated}
    with torch.device("meta"):  # without memory: the weights are timm's
        if registers:
            config = transformers.Dinov2WithRegistersConfig(**options, **dinov2, num_register_tokens=registers)
            model = transformers.Dinov2WithRegistersModel(config)
        elif _scaled(backbone):
            model = transformers.Dinov2Model(transformers.Dinov2Config(**options, **dinov2, use_mask_token=False))
        else:
            config = transformers.ViTConfig(**options, intermediate_size=hidden)
            model = transformers.ViTModel(config, add_pooling_layer=False)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise _unlike(backbone, " ".join(str(error).split())[:200]) from error
    return model.eval().requires_grad_(False)


def _unlike(backbone: Backbone, reason: str) -> ValueError:
    return ValueError(f"transformers has no model like '{backbone.name}', so leave this peer out: {reason}")


def _scaled(backbone: Backbone) -> bool:
    """Whether the blocks have LayerScale."""
    return hasattr(backbone.blocks[0].ls1, "gamma")


def _renamed(backbone: Backbone) -> dict[str, Tensor]:
    """The state dict of timm under the names of transformers. Raises KeyError for a weight that one of them does not have."""
    layout, left, state = backbone.layout, backbone.model.state_dict(), {}
    ones = torch.ones(backbone.width, device=backbone.device)
    dino, gated = bool(layout.registers) or _scaled(backbone), isinstance(backbone.blocks[0].mlp, GluMlp)
    if layout.distillation:
        raise KeyError("dist_token")
    # timm may have positions of [CLS] and registers too; transformers has one of [CLS]. Both only add them.
    prefix = torch.cat([left.pop(key) for key in ("cls_token", "reg_token") if key in left], dim=1)
    state["embeddings.position_embeddings"] = F.pad(backbone.patch_positions[None], (0, 0, 1, 0))
    if len(backbone.position_embedding) > layout.patches:
        prefix = prefix + backbone.position_embedding.narrow(0, 0, layout.prefix)
    state["embeddings.cls_token"], registers = prefix.split([1, layout.registers], dim=1)
    if layout.registers:
        state["embeddings.register_tokens"] = registers
        state["embeddings.mask_token"] = torch.zeros_like(ones)[None]
    left.pop("pos_embed")
    for kind in ("weight", "bias"):
        state[f"embeddings.patch_embeddings.projection.{kind}"] = left.pop(f"patch_embed.proj.{kind}")
        state[f"layernorm.{kind}"] = getattr(backbone.final_norm, kind)
    for block in range(backbone.depth):
        old, new = f"blocks.{block}", f"encoder.layer.{block}" if dino else f"layers.{block}"
        norms = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
        for kind in ("weight", "bias"):
            if (qkv := left.pop(f"{old}.attn.qkv.{kind}", None)) is not None:
                for name, part in zip("qkv", qkv.chunk(3), strict=True):
                    state[f"{new}.attention.{name}_proj.{kind}"] = part
            state[f"{new}.attention.o_proj.{kind}"] = left.pop(f"{old}.attn.proj.{kind}")
            for i, norm in enumerate(norms, start=1):
                state[f"{new}.{norm}.{kind}"] = left.pop(f"{old}.norm{i}.{kind}")
            fc1, fc2 = (left.pop(f"{old}.mlp.fc{i}.{kind}") for i in (1, 2))
            if gated:
                state[f"{new}.mlp.gate_proj.{kind}"], state[f"{new}.mlp.up_proj.{kind}"] = fc1.chunk(2)
                state[f"{new}.mlp.down_proj.{kind}"] = fc2
            else:
                state[f"{new}.mlp.fc1.{kind}"], state[f"{new}.mlp.fc2.{kind}"] = fc1, fc2
        if dino:
            for i in (1, 2):
                state[f"{new}.layer_scale{i}.lambda1"] = left.pop(f"{old}.ls{i}.gamma", ones)
    if extra := [key for key in left if not key.startswith(("norm.", "fc_norm.", "head."))]:
        raise KeyError(extra[0])
    return state
