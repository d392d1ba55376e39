"""Stubs: the architecture of a model with random weights, few blocks and few patches, to see
whether something runs at all; and what the model itself would cost, known without its weights.

`load_backbone("stub:NAME")` gives the stub of NAME. What it gives is no result: `helpers.claims`
publishes nothing of that name.
"""

import zlib
from functools import cache
from itertools import chain

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import Compose, Normalize, Resize, ToTensor

from helpers.models.backbone import Architecture, Backbone
from helpers.models.family import Family, Size
from helpers.names import STUB

BLOCKS = 4  # as many as a profile names from the end
PATCHES = 13  # along a side: a number that no model has heads, registers or channels of
# One neuron writes so many times as much as the others, so that some patches are outliers.
GAIN = 300.0


def stub(family: Family, name: str, size: Size | None, whole: bool, fit: bool) -> Backbone:
    """The stub of the model that `family` loads by these arguments.

    Both are made on torch's device "meta" first, which needs no memory: the model to be measured,
    the other to be cut.

    Raises ValueError where `family.load` does, and for a model whose blocks are not in one list.
    """
    architecture = _architecture(family, name, size, whole, fit)
    smaller = tuple(
        pixels // patches * min(patches, PATCHES)
        for pixels, patches in zip(architecture.image_size, architecture.layout.grid, strict=True)
    )
    with torch.device("meta"):
        backbone = family.load(name, smaller, False, whole, fit)
    _shorten(backbone)
    _randomise(backbone)
    # That of the model was made on "meta", too, and so were its mean and standard deviation.
    backbone.transform = Compose(
        [Resize(backbone.image_size), ToTensor(), Normalize((0.5,) * 3, (0.25,) * 3)]
    )
    backbone.name, backbone.stands_for = STUB + name, architecture
    return backbone


@cache  # to count operations takes a second
def _architecture(
    family: Family, name: str, size: Size | None, whole: bool, fit: bool
) -> Architecture:
    """What one image costs in the model."""
    with torch.device("meta"):
        backbone = family.load(name, size, False, whole, fit)
    pixels = torch.empty(1, 3, *backbone.image_size, device="meta")
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        backbone.model(pixels)
    layers = chain.from_iterable(block.modules() for block in backbone.blocks)
    return Architecture(
        backbone.image_size,
        backbone.layout,
        backbone.depth,
        backbone.width,
        max(layer.out_features for layer in layers if isinstance(layer, nn.Linear)),
        backbone.parameters,
        counter.get_total_flops(),
    )


def _shorten(backbone: Backbone) -> None:
    """Leave the model its first blocks."""
    first = backbone.blocks[0]
    for module in backbone.model.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) and module[0] is first:
            del module[BLOCKS:]
            return
    raise ValueError(
        f"the blocks of '{backbone.name}' are not in one list, so it has no stub; "
        "leave it out of a dry run"
    )


def _randomise(backbone: Backbone) -> None:
    """Give the model memory and weights: the same for the same name, scales one and biases zero,
    and one neuron that writes outliers.
    """
    backbone.model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(zlib.crc32(backbone.name.encode()))
    for name, value in chain(backbone.model.named_parameters(), backbone.model.named_buffers()):
        if value.dim() == 1:
            value.data.fill_(0.0 if name.endswith("bias") else 1.0)
        elif value.is_floating_point():
            inputs = 1 if len(value) == 1 else value[0].numel()
            value.data.normal_(0, inputs**-0.5, generator=generator)
    backbone.neurons(min(1, backbone.depth - 1)).weight[:, 0] *= GAIN
