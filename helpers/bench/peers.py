"""What `capture` gives for norms, [CLS] attention and final tokens, by way of other libraries, the peers.

A method takes pixels (image, 3, height, width) on the backbone's device and gives in one forward pass, as float32 CPU tensors,
what `capture` gives for the reducers PatchNorms(), ClsAttention("all") and FinalTokens(): the keys in `OUTPUTS`. Each peer is
written as its users would write it, and none changes the backbone: it works on a twin of the model with the same weights. Where
a library shows only the output of `qkv`, the [CLS] row comes from it as in `capture`, the cheapest way, so that what differs is
the library's own cost; timm and transformers compute their attention by themselves.
"""

import contextlib
import copy
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from helpers.bench.transformers_twin import to_transformers
from helpers.models import Backbone, TimmAttention, TokenLayout

Method = Callable[[Tensor], dict[str, Tensor]]
OUTPUTS = ("patch_norms", "cls_attention", "final_tokens")


@dataclass(frozen=True)
class Peer:
    """One library.

    Attributes:
        package: whose version is reported.
        requirements: what pip installs for it.
        prepare: backbone -> method; call it when the backbone is on its device. It imports the library, so it raises ImportError
            where that is missing, and ValueError for a model that the library does not take.
        alone: what pip installs without its dependencies, which are then among the requirements.
    """

    package: str
    requirements: tuple[str, ...]
    prepare: Callable[[Backbone], Method]
    alone: tuple[str, ...] = ()


def prepare_timm(backbone: Backbone) -> Method:
    """timm's AttentionExtract. It takes attention maps where dropout would act on them, so attention must not be fused, and it
    holds the maps and the tokens of all blocks until the pass is over."""
    from timm.utils import AttentionExtract

    twin, layout = _twin(backbone), backbone.layout
    for block in twin.blocks:
        block.attn.fused_attn = False
    extract = AttentionExtract(twin, [r"blocks\.\d+$", r"blocks\.\d+\.attn\.attn_drop$"], method="hook", use_regex=True)

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        seen = extract(pixels)
        tokens = [seen[f"blocks.{i}"] for i in range(backbone.depth)]
        maps = [seen[f"blocks.{i}.attn.attn_drop"] for i in range(backbone.depth)]
        norms = [_patch_norms(x, layout) for x in tokens]
        return _outputs(norms, [layout.cls_token(x).mean(dim=1) for x in maps], tokens[-1])

    return method


def prepare_transformers(backbone: Backbone) -> Method:
    """The same weights as a ViTModel, Dinov2Model or Dinov2WithRegistersModel of transformers, with eager attention, which alone
    returns attention maps. All maps and hidden states are held until the pass is over."""
    _check(backbone)
    model, layout = to_transformers(backbone), backbone.layout

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        seen = model(pixels, output_hidden_states=True, output_attentions=True)
        _, *tokens = seen.hidden_states  # the first are those that enter block 0
        norms = [_patch_norms(x, layout) for x in tokens]
        return _outputs(norms, [layout.cls_token(x).mean(dim=1) for x in seen.attentions], tokens[-1])

    return method


def prepare_nnsight(backbone: Backbone) -> Method:
    """An NNsight trace, which computes inside the forward pass and keeps only results. Fused attention shows no rows, so the row
    of [CLS] is computed from the output of `qkv`.

    Importing nnsight gives every Python object a method `save` and changes `Tensor.backward`.
    """
    from nnsight import NNsight, save

    twin, layout = _twin(backbone), backbone.layout
    model, attentions = NNsight(twin), [block.attn for block in twin.blocks]

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        with model.trace(pixels):
            norms, rows = save([]), save([])
            for block, attention in zip(model.blocks, attentions, strict=True):
                rows.append(_row(attention, block.attn.qkv.output, layout))
                tokens = block.output
                norms.append(_patch_norms(tokens, layout))
            last = save(tokens)
        return _outputs(norms, rows, last)

    return method


def prepare_thingsvision(backbone: Backbone) -> Method:
    """A thingsvision extractor around the model. It gives activations of modules, copied to the CPU one by one, so the row of
    [CLS] is computed from those of `qkv`, back on the device, where the weights of a query norm are."""
    thingsvision = _import_thingsvision()
    twin, layout, device = _twin(backbone), backbone.layout, backbone.device
    blocks, attentions = ([f"blocks.{i}{part}" for i in range(backbone.depth)] for part in ("", ".attn.qkv"))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the device
        extractor = thingsvision.get_extractor_from_model(model=twin, device=str(device), backend="pt")

    @torch.inference_mode()
    def method(pixels: Tensor) -> dict[str, Tensor]:
        with extractor.batch_extraction(module_names=[*blocks, *attentions], output_type="tensor") as batches:
            seen = batches.extract_batch(pixels, flatten_acts=False)
        rows = [_row(block.attn, seen[name].to(device), layout) for block, name in zip(twin.blocks, attentions, strict=True)]
        return _outputs([_patch_norms(seen[name], layout) for name in blocks], rows, seen[blocks[-1]])

    return method


PEERS: Mapping[str, Peer] = MappingProxyType(
    {
        "timm": Peer("timm", ("timm>=1.0.26",), prepare_timm),
        "transformers": Peer("transformers", ("transformers>=5.23",), prepare_transformers),
        "nnsight": Peer("nnsight", ("nnsight>=0.8",), prepare_nnsight),
        # Its own list pins torchvision 0.15, numpy 1 and TensorFlow 2.15; these are what its PyTorch half imports.
        "thingsvision": Peer(
            "thingsvision",
            ("torchtyping>=0.1.5", "numba>=0.61", "h5py>=3.12", "ftfy>=6.3", "regex>=2024.11"),
            prepare_thingsvision,
            alone=("thingsvision>=2.7.3",),
        ),
    }
)


def _import_thingsvision() -> ModuleType:
    """thingsvision on a numpy and without a TensorFlow that it was written for.

    It imports TensorFlow for its Keras half even if only its PyTorch half is used, and beside torch and numba a TensorFlow of
    today ends the process (each brings an LLVM). So it gets modules in TensorFlow's place that hold nothing, as long as it is
    imported; and `numpy.AxisError`, under the name that it had before numpy 2.
    """
    import numpy as np

    names = [f"tensorflow{rest}" for rest in ("", ".keras", ".keras.applications", ".keras.layers")]
    sys.modules.update({name: _Nothing(name) for name in names if name not in sys.modules})
    np.AxisError = np.exceptions.AxisError
    try:
        import thingsvision
    finally:
        for name in names:
            if isinstance(sys.modules[name], _Nothing):
                del sys.modules[name]
    return thingsvision


class _Nothing(ModuleType):
    """A module in which any name stands for another one, and any call gives an empty list."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing(name)

    def __call__(self, *_: object) -> list:
        return []


def _check(backbone: Backbone) -> None:
    """Raise ValueError for a model that is not timm's or has no [CLS]."""
    if backbone.family != "timm":
        raise ValueError(f"'{backbone.name}' is a model of {backbone.family}, and the peers take timm's; choose one of those")
    backbone.layout.require_cls()


def _twin(backbone: Backbone) -> nn.Module:
    """A copy of the model to hook and to change that has the same weights, not copies of them."""
    _check(backbone)
    tensors = [*backbone.model.parameters(), *backbone.model.buffers()]
    return copy.deepcopy(backbone.model, {id(tensor): tensor for tensor in tensors})


def _outputs(norms: Sequence[Tensor], rows: Sequence[Tensor], last: Tensor) -> dict[str, Tensor]:
    """What a method gives, from the norms and rows of the blocks and the last block's tokens."""
    values = torch.stack([*norms], dim=1), torch.stack([*rows], dim=1), last
    return {key: value.to("cpu", torch.float32) for key, value in zip(OUTPUTS, values, strict=True)}


def _row(attention: nn.Module, qkv: Tensor, layout: TokenLayout) -> Tensor:
    """The attention row of [CLS], the mean of the heads, from the output of `qkv`."""
    with torch.autocast(qkv.device.type, enabled=False):  # in float32 whatever the model runs in
        return TimmAttention(attention, qkv).cls_row(layout).mean(dim=1)


def _patch_norms(tokens: Tensor, layout: TokenLayout) -> Tensor:
    return torch.linalg.vector_norm(layout.patch_tokens(tokens), dim=-1, dtype=torch.float32)
