"""A model with test-time registers for good: in this process, and as files that need no project."""

import copy
import importlib.util
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save
from timm.layers import GELUTanh, GluMlp, QuickGELU
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from helpers.interventions.neurons import Neurons, shifts_of, test_time_registers
from helpers.interventions.tokens import with_tokens, without
from helpers.models import Backbone, TokenLayout, modeling
from helpers.models.family import nameless

ACTIVATIONS = {
    nn.GELU: "gelu", nn.ReLU: "relu", nn.SiLU: "silu", GELUTanh: "gelu_tanh",
    QuickGELU: "quick_gelu",
}  # fmt: skip


def model_with_test_time_registers(
    backbone: Backbone, neurons: Neurons, count: int = 1, clear: str = "patches", seed: int = 0
) -> nn.Module:
    """A copy of the model that has test-time registers for good, as plain torch of the same class.

    It returns what this model returns inside `test_time_registers` with the same arguments and zero
    tokens. In timm's VisionTransformer and Eva the registers stand among the prefix tokens, which
    timm's own methods take away; in other models, and in those that pool the prefix as well, they
    stand behind the patches until after the last block. A model without registers refuses its state
    dict, strict or not. ValueError where an intervention is active.
    """
    if any(
        module._forward_hooks or module._forward_pre_hooks for module in backbone.model.modules()
    ):
        raise ValueError(f"'{backbone.name}' has hooks, such as those of an intervention")
    layout = backbone.layout.with_appended(count)
    shifts = shifts_of(backbone, neurons, 0, count, clear, seed)
    exported = replace(backbone, model=copy.deepcopy(backbone.model))
    paths = {layer: path for path, layer in exported.model.named_modules()}
    if not _odd(backbone.model):
        moved = {
            paths[exported.neurons(block)]: [x.units.tolist(), x.owners.tolist()]
            for block, x in shifts.items()
        }
        return modeling.add_registers(exported.model, count, moved, clear)
    # Hooks are partials of this module's functions and tensors are buffers, so that deepcopy,
    # torch.save and .to work.
    at = backbone.layout.own_prefix if backbone.layout.rotary else None
    exported.blocks[0].register_forward_pre_hook(partial(_append, count, at))
    exported.blocks[-1].register_forward_hook(partial(_take_away, count, at))
    exported.lengthen_prefix(count)
    for block, shift in shifts.items():
        layer = exported.neurons(block)
        exported.model.set_submodule(
            paths[layer], _Shifted(layer, shift.to(backbone.device), layout)
        )
    return exported.model


def write_model(
    backbone: Backbone,
    neurons: Neurons,
    folder: Path,
    pixels: Float[Tensor, "image 3 height width"],
    *,
    count: int = 1,
    clear: str = "patches",
    seed: int = 0,
    graph: bool = True,
) -> dict[str, Any]:
    """Write `model_with_test_time_registers` as files that need torch, timm and safetensors alone.

    Args:
        folder: made if need be; what stands there under these names is replaced once all is well.
        pixels: of at least one picture, by which the loader checks itself; kept as float16.
        graph: also as `model.pt2`, which holds all weights once more.

    Returns:
        "difference", the largest between the outputs of the files and those of the intervention;
        "change", the largest that the registers make.
    """
    if odd := unwritable(backbone):
        raise ValueError(f"'{backbone.name}' {odd}; use model_with_test_time_registers")
    model = model_with_test_time_registers(backbone, neurons, count, clear, seed)
    name = nameless(backbone.name)  # the files are handed on
    pixels = pixels.half().float()
    plain = backbone(pixels)
    with test_time_registers(backbone, neurons, count, clear=clear, seed=seed):
        expected = backbone(pixels)
    moved = {
        path: [layer.units.tolist(), layer.owners.tolist()]
        for path, layer in model.named_modules()
        if isinstance(layer, modeling.ShiftedLinear)
    }
    architecture, arguments = _architecture(backbone.model)
    mean, std = ([round(x, 6) for x in own] for own in backbone.normalisation)
    config = {
        "of": name,
        "weights": backbone.weights_hash,
        "architecture": architecture,
        "arguments": arguments,
        "registers": count,
        "neurons": moved,
        "clear": clear,
        "input_size": [3, *backbone.image_size],
        "mean": mean,
        "std": std,
    }
    contents = {
        "model.safetensors": save(
            {key: value.contiguous() for key, value in model.state_dict().items()}
        ),
        "config.json": (json.dumps(config, indent=1) + "\n").encode(),
        "modeling.py": Path(modeling.__file__).read_bytes(),
        "check.safetensors": save({"pixels": pixels.half(), "output": model(pixels).contiguous()}),
        "README.md": _README.format(
            name=name,
            neurons=", ".join(f"{block}:{unit}" for block, unit, *_ in neurons),
            graph=_GRAPH * graph,
        ).encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary)
        for file, content in contents.items():
            (new / file).write_bytes(content)
        again = _loaded(new)
        if graph:
            two = torch.cat([pixels, pixels])  # a batch of one would be taken for a constant
            batch = {0: torch.export.Dim("batch")}
            made = torch.export.export(again, (two,), dynamic_shapes=(batch,))
            torch.export.save(made, new / "model.pt2")
        for file in [*new.iterdir()]:
            if file.is_file():
                file.replace(folder / file.name)
    return {
        "difference": float((again(pixels) - expected).abs().max()),
        "change": float((expected - plain).abs().max()),
    }


def unwritable(backbone: Backbone) -> str:
    """Why `write_model` refuses the model, as the end of a sentence; '' where it does not."""
    if odd := _odd(backbone.model):
        return odd
    try:
        with torch.device("meta"):  # without memory
            again = modeling.made(*_architecture(backbone.model))
    except Exception as error:  # of the kinds of timm's errors there is no end
        return f"is not rebuilt from its architecture ({error})"
    ours, theirs = (
        {key: tuple(x.shape) for key, x in model.state_dict().items()}
        for model in (backbone.model, again)
    )
    differs = (x for x in sorted(ours.keys() | theirs.keys()) if ours.get(x) != theirs.get(x))
    odd = next(differs, "")
    return f"is not rebuilt from its architecture ({odd} differs)" if odd else ""


def _odd(model: nn.Module) -> str:
    """Why registers cannot stand among the prefix tokens, as a sentence's end; '' if they can."""
    if type(model) not in (VisionTransformer, Eva):
        library = type(model).__module__.partition(".")[0]
        if library == "open_clip":  # which the files would need
            return "is a tower of open_clip; give the timm name of these weights (vit_*_clip_*)"
        return f"is {type(model).__name__}, no VisionTransformer or Eva of timm"
    pooled = isinstance(model, Eva) and model.attn_pool is not None
    if pooled or getattr(model, "pool_include_prefix", False):
        return "pools its prefix tokens, and would pool registers with them"
    if model.pos_embed is None and type(model) is VisionTransformer:
        return "has no position embedding"
    return ""


def _architecture(model: VisionTransformer | Eva) -> tuple[str | None, dict[str, Any]]:
    """The arguments of `timm.create_model`; without a name, those of `modeling.made`."""
    arguments = {"num_classes": model.num_classes, "img_size": list(model.patch_embed.img_size)}
    registers = 0 if model.reg_token is None else model.reg_token.shape[1]
    # The class of Eva does not take the name that the other gives them.
    arguments["num_reg_tokens" if isinstance(model, Eva) else "reg_tokens"] = registers
    if name := getattr(model, "pretrained_cfg", {}).get("architecture"):
        return name, arguments
    if isinstance(model, Eva):
        raise ValueError("an Eva without a name of timm's cannot be rebuilt")
    block = model.blocks[0]
    return None, arguments | {
        "patch_size": list(model.patch_embed.patch_size),
        "embed_dim": model.embed_dim,
        "depth": len(model.blocks),
        "num_heads": block.attn.num_heads,
        "mlp_ratio": (block.mlp.fc1.out_features + 0.5) / model.embed_dim,
        "gated": isinstance(block.mlp, GluMlp),
        "act_layer": ACTIVATIONS.get(type(block.mlp.act)),
        "qkv_bias": block.attn.qkv.bias is not None,
        "init_values": None if isinstance(block.ls1, nn.Identity) else 1.0,
        "norm_eps": block.norm1.eps,
        "pre_norm": not isinstance(model.norm_pre, nn.Identity),
        "fc_norm": not isinstance(model.fc_norm, nn.Identity),
        "class_token": model.cls_token is not None,
        "no_embed_class": model.no_embed_class,
        "global_pool": model.global_pool,
    }


def _loaded(folder: Path) -> nn.Module:
    """The model of the files in `folder`, by their own code."""
    spec = importlib.util.spec_from_file_location("modeling", folder / "modeling.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(folder)


def _append(
    count: int, at: int | None, _: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    x, *rest = inputs
    return (with_tokens(x, x.new_zeros(1), count, at), *rest)


def _take_away(
    count: int, at: int | None, _: nn.Module, __: tuple[Tensor, ...], output: Tensor
) -> Tensor:
    return without(output, count, at)


class _Shifted(nn.Linear):
    """The second MLP layer with `shift` in front of it; no plain layer takes its weight."""

    def __init__(self, linear: nn.Linear, shift: nn.Module, layout: TokenLayout):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(linear.weight.detach()[None], linear.weight.requires_grad)
        self.bias, self.shift, self.layout = linear.bias, shift, layout

    def forward(self, x: Tensor) -> Tensor:
        # At another image size there are other patches, and as many other tokens.
        layout = self.layout.with_kept(x.shape[1] - self.layout.tokens + self.layout.patches)
        return F.linear(self.shift(x, layout), self.weight[0], self.bias)


_README = """# {name} with test-time registers

The neurons {neurons} (block:unit, from 0) write the outlier tokens of this model. Here they act
at an additional zero token instead, a register, which stands among timm's prefix tokens. Needs
torch, timm and safetensors.

```python
from modeling import load

model = load()                       # checks itself against check.safetensors
logits = model(pixels)               # (image, 3, height, width), normalised as before
maps = model.get_intermediate_layers(pixels, n=4, reshape=True)  # without [CLS] and registers
```

`config.json` has the size of an image as `input_size`, and the mean and standard deviation by which
pixels in [0, 1] are normalised. {graph}A model without registers refuses `model.safetensors`,
also with `strict=False`.

## Fine-tune

It loads in eval mode and without gradients. The registers and the layers in which the neurons are
moved are trained like any other.

```python
model = load()
model.reset_classifier(10)           # a new head for 10 classes; leave out to keep the old one
model.train().requires_grad_(True)   # or model.head alone, for a linear probe
```

Save `model.state_dict()`, and read it into a model that is made by the same lines: the check in
`load` is of the weights in this folder.
"""
_GRAPH = """`model.pt2` is the same as one graph:
`torch.export.load("model.pt2").module()(pixels)`, for any number of images. """
