"""A model with test-time registers for good: in this process, and as files that need no project."""

import copy
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jaxtyping import Float
from safetensors.torch import save
from timm.layers import GELUTanh, GluMlp, QuickGELU
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.interventions.neurons import Neurons, shares_of, test_time_registers
from helpers.models import Backbone, modeling
from helpers.models.family import loading, nameless

ACTIVATIONS = {
    nn.GELU: "gelu", nn.ReLU: "relu", nn.SiLU: "silu", GELUTanh: "gelu_tanh",
    QuickGELU: "quick_gelu",
}  # fmt: skip


def model_with_test_time_registers(
    backbone: Backbone, neurons: Neurons, count: int = 1, seed: int = 0
) -> nn.Module:
    """A copy of the model that has test-time registers for good, as plain torch of the same class.

    It returns what this model returns inside `test_time_registers` with the same arguments and zero
    tokens. The registers stand among the prefix tokens, which timm's own methods take away. A model
    without registers refuses its state dict, strict or not. ValueError where an intervention is
    active, and for a model that is no VisionTransformer or Eva of timm or pools its prefix tokens.
    """
    backbone.layout.require_free()
    if odd := unwritable(backbone):
        raise ValueError(f"'{backbone.name}' {odd}; use test_time_registers")
    if backbone.hooks:
        raise ValueError(f"'{backbone.name}' has hooks, such as those of an intervention")
    shares = shares_of(backbone, neurons, count, seed)
    exported = replace(backbone, model=copy.deepcopy(backbone.model))
    paths = {layer: path for path, layer in exported.model.named_modules()}
    moved = {paths[exported.neurons(block)]: [*own] for block, own in shares.items()}
    return modeling.add_registers(exported.model, count, moved)


def write_model(
    backbone: Backbone,
    neurons: Neurons,
    folder: Path,
    pixels: Float[Tensor, "image 3 height width"],
    *,
    count: int = 1,
    seed: int = 0,
) -> dict[str, Any]:
    """Write `model_with_test_time_registers` as files that need torch, timm and safetensors alone.

    Args:
        folder: made if need be; what stands there under these names is replaced once all is well.
        pixels: of at least one picture, by which the loader checks itself; kept as float16.

    Returns:
        "difference", the largest between the outputs of the files and those of the intervention;
        "change", the largest that the registers make.
    """
    model = model_with_test_time_registers(backbone, neurons, count, seed)
    name = nameless(backbone.name)  # the files are handed on
    pixels = pixels.half().float()
    plain = backbone(pixels)
    with test_time_registers(backbone, neurons, count, seed=seed):
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
        ).encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary)
        for file, content in contents.items():
            (new / file).write_bytes(content)
        with loading(name):
            again = _loaded(new)
        for file in [*new.iterdir()]:
            if file.is_file():
                file.replace(folder / file.name)
    return {
        "difference": float((again(pixels) - expected).abs().max()),
        "change": float((expected - plain).abs().max()),
    }


def unwritable(backbone: Backbone) -> str:
    """Why registers cannot stand among the prefix tokens, as the end of a sentence; '' if they can.

    Nor does `write_model` write such a model.
    """
    model = backbone.model
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
pixels in [0, 1] are normalised. A model without registers refuses `model.safetensors`, also with
`strict=False`.

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
