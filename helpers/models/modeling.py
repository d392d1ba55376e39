"""A timm Vision Transformer whose outliers go to registers.

`from modeling import load; model = load()` makes it. A few MLP neurons write the outlier tokens of this model. Here they act at additional zero tokens
and no more at the patches (Jiang et al., "Vision Transformers Don't Need Trained Registers",
arXiv:2506.08010). The tokens stand among timm's prefix tokens, so its own methods take them away:
forward_intermediates, get_intermediate_layers, pooling. Needs torch, timm and safetensors alone.
"""  # noqa: E501

import json
from functools import partial
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F


class ShiftedLinear(nn.Linear):
    """The second MLP layer of a block, with `units` of its input shifted to registers.

    They act at `owners`, their registers, and are zero at the patches. Registers stand at `first`
    to before `prefix`, patches from there on.

    The weight has a dimension more than a plain layer's, so that a model without registers cannot
    take it in silence.
    """

    def __init__(
        self, linear: nn.Linear, units: list[int], owners: list[int], first: int, prefix: int
    ):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(
            linear.weight.detach()[None].clone(), linear.weight.requires_grad
        )
        self.bias = linear.bias
        self.register_buffer("units", torch.tensor(units, device=linear.weight.device))
        self.register_buffer("owners", torch.tensor(owners, device=linear.weight.device))
        self.first, self.prefix = first, prefix

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)[:, None]
        registers = (place >= self.first) & (place < self.prefix)
        values = x[..., self.units]  # (image, token, unit)
        others = values.masked_fill(registers, 0)
        largest = others.gather(1, others.abs().argmax(dim=1, keepdim=True))  # with its sign
        values = values.masked_fill(place >= self.prefix, 0)
        values = torch.where(registers, largest.where(place - self.first == self.owners, 0), values)
        return F.linear(x.index_copy(-1, self.units, values), self.weight[0], self.bias)


class PassedBy(nn.Module):
    """The norm before the blocks, which leaves the registers zero."""

    def __init__(self, norm: nn.Module, first: int, prefix: int):
        super().__init__()
        self.norm, self.first, self.prefix = norm, first, prefix

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1], device=x.device)[:, None]
        return self.norm(x).masked_fill((place >= self.first) & (place < self.prefix), 0)


def add_registers(model: nn.Module, count: int, neurons: dict[str, list]) -> nn.Module:
    """Give a timm VisionTransformer or Eva `count` zero registers, in place.

    They are the last of its prefix tokens; `neurons`, path of an MLP layer -> [units, owners],
    write there.
    """
    old, weight = model.num_prefix_tokens, model.patch_embed.proj.weight
    learnt = weight.requires_grad
    own = [] if model.reg_token is None else [model.reg_token.detach()]
    zeros = weight.new_zeros(1, old + count, model.embed_dim)
    model.reg_token = nn.Parameter(torch.cat([*own, zeros[:, old:]], dim=1), learnt)
    if model.pos_embed is not None:
        before, patches = model.pos_embed.detach().tensor_split(
            [0 if model.no_embed_class else old], dim=1
        )
        positions = torch.cat([before, zeros[:, before.shape[1] :], patches], dim=1)
        model.pos_embed = nn.Parameter(positions, model.pos_embed.requires_grad)
        model.no_embed_class = False
    if not isinstance(model.norm_pre, nn.Identity):
        model.norm_pre = PassedBy(model.norm_pre, old, old + count)
    if hasattr(model, "num_reg_tokens"):
        model.num_reg_tokens += count
    model.num_prefix_tokens += count
    for block in model.blocks:  # those of Eva rotate what stands behind the prefix
        if hasattr(block.attn, "num_prefix_tokens"):
            block.attn.num_prefix_tokens += count
    for path, (units, owners) in neurons.items():
        layer = ShiftedLinear(model.get_submodule(path), units, owners, old, old + count)
        model.set_submodule(path, layer)
    return model


def made(name: str | None, arguments: dict) -> nn.Module:
    """The model before registers and weights; a VisionTransformer where timm has no name for it."""
    if name:
        return timm.create_model(name, **arguments)
    own = {"norm_eps": 1e-6, "gated": False} | arguments
    norm, gated = partial(nn.LayerNorm, eps=own.pop("norm_eps")), own.pop("gated")
    return VisionTransformer(norm_layer=norm, **{"mlp_layer": SwiGLUPacked} if gated else {}, **own)


def unloaded(config: dict) -> nn.Module:
    """The model that config.json describes, with weights as they are before any are loaded."""
    model = made(config["architecture"], config["arguments"])
    return add_registers(model, config["registers"], config["neurons"])


def load(folder: str | Path = Path(__file__).parent) -> nn.Module:
    """The model, in eval mode.

    Raises RuntimeError where its outputs are not those it was written with.
    """
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    model = unloaded(config)
    model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    model.eval().requires_grad_(False)
    batch = load_file(Path(folder) / "check.safetensors")
    distance = (model(batch["pixels"].float()) - batch["output"]).abs().max()
    if not distance <= 1e-3 * batch["output"].abs().max():
        raise RuntimeError(
            f"outputs differ by {distance:.3g} from those that were stored: the neurons are not "
            "moved"
        )
    return model
