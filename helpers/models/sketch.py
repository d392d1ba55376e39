"""Stand-ins: the architecture of a model with random weights, few blocks and few patches, to see whether something runs at all;
and what the model itself would cost, told without its weights.

What a stand-in gives is no result: its source is called so, and `helpers.publish` takes none of that name.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

from helpers.models.backbone import Architecture, Backbone
from helpers.models.family import Size

LOUD = 300.0  # times as much as the others writes one neuron of a stand-in, so that some of its patches are outliers

_known: dict[tuple[str, Size], Architecture] = {}  # by name and image size: to count operations takes a second


@dataclass(frozen=True)
class Sketch:
    """How large a stand-in may be.

    Attributes:
        blocks: as many, at most.
        patches: along a side, at most.
    """

    blocks: int
    patches: int


def stand_in(name: str, build: Callable[[Size | None], Backbone], size: Size | None, sketch: Sketch) -> Backbone:
    """What stands in for the model `name` that `build` makes without weights at an image size.

    Both are made on torch's device "meta" first, which needs no memory: the model to be measured, the other to be cut.

    Raises ValueError where `build` does, and for a model whose blocks are not in one list.
    """
    with torch.device("meta"):
        whole = build(size)
        if (key := (name, whole.image_size)) not in _known:
            _known[key] = _architecture(whole)
        architecture = _known[key]
        (rows, columns), (height, width) = architecture.layout.grid, architecture.image_size
        backbone = build((height // rows * min(rows, sketch.patches), width // columns * min(columns, sketch.patches)))
    _shorten(backbone, sketch.blocks)
    _randomise(backbone)
    # That of the model was made on "meta", too, and so were its mean and standard deviation.
    backbone.transform = Compose([Resize(backbone.image_size), ToTensor(), Normalize((0.5,) * 3, (0.25,) * 3)])
    backbone.stands_for = architecture
    return backbone


def _architecture(backbone: Backbone) -> Architecture:
    """What one image costs in the model, which lies on the device "meta"."""
    pixels = torch.empty(1, 3, *backbone.image_size, device="meta")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        backbone.model(pixels)
    widest = max(layer.out_features for block in backbone.blocks for layer in block.modules() if isinstance(layer, nn.Linear))
    size, flops = (backbone.width, widest, backbone.parameters), counter.get_total_flops()
    return Architecture(backbone.image_size, backbone.layout, backbone.depth, *size, flops)


def _shorten(backbone: Backbone, blocks: int) -> None:
    """Leave the model its first blocks."""
    first = backbone.blocks[0]
    for module in backbone.model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) and module[0] is first:
            del module[blocks:]
            return
    raise ValueError(f"the blocks of '{backbone.name}' are not in one list, so it has no stand-in; leave it out of a dry run")


def _randomise(backbone: Backbone) -> None:
    """Give the model memory and weights: the same for the same name, scales one and biases zero, and one neuron that writes
    outliers."""
    backbone.model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(zlib.crc32(backbone.name.encode()))
    for name, value in chain(backbone.model.named_parameters(), backbone.model.named_buffers()):
        if value.dim() == 1:
            value.data.fill_(0.0 if name.endswith("bias") else 1.0)
        elif value.is_floating_point():
            inputs = 1 if len(value) == 1 else value[0].numel()
            value.data.normal_(0, inputs**-0.5, generator=generator)
    backbone.neurons(min(1, backbone.depth - 1)).weight[:, 0] *= LOUD
