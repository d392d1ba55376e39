"""Controls: small Vision Transformers whose answers are known by construction.

Every weight is set in code; nothing is trained and no file is read. The models are ordinary timm
ViTs (LayerNorm, attention, MLP), so they go through the same hooks as a published checkpoint:

    control-content    outliers where a patch is flat and lies on a sparse lattice, from block 3 on
    control-position   outliers at four fixed positions, whatever the picture shows, from block 1 on
    control-registers  the same load carried by four register tokens from block 3 on; no outlier
                       among the patches
    control-clean      no outlier at all

Every claim is judged on these four. A fifth is for claims about what outliers hold:

    control-sink       the outliers of control-position, holding nothing: [CLS] gathers three
                       hues by itself, and attends to them in the last block, to take in nothing.
                       From other patches it would take in the hues with their channels permuted

The residual stream is a table of named channels (`CHANNELS`), and each step below is a few weights.
1. Embed. Patch embedding gives a patch's mean colour and nine DCT coefficients (detail).
   `pos_embed` adds the position on a circle, the lattice, and a large constant (+C, -C). Because of
   the constant LayerNorm divides every normal token by nearly the same number, and its weight
   undoes the division: a block reads a normal token in the units it was written in. The channel
   `balance` always holds minus the sum of all others, so that LayerNorm has no mean to subtract.
2. Describe. In block 0, relu(x) + relu(-x) = |x| turns detail into energy; strong colours become
   hues. Flat means no energy.
3. Gate. A neuron pair in block 0 or 1 marks the tokens that will be planted: those on the lattice,
   in control-content only if they are flat. In control-registers `reg_token` brings the mark with
   it.
4. Erase. From then on, one neuron for each local channel subtracts the channel where the gate is
   open. LayerNorm's scale is not quite constant, so a hundredth stays; after the next blocks
   nothing but rounding (1e-4 beside a norm of 500).
5. Gather. Heads that do nothing attend to [CLS], whose values are zero. In the planted block,
   tokens with an open gate attend to everything instead: three heads bring the mean of colour, hue
   and energy over the image (the global information), the last one the energy of the surround.
6. Plant. In the same block the register neuron (hidden unit `REGISTER_NEURON`) fires where the gate
   is open and writes the load, which raises the norm ninefold. One block later a second neuron adds
   a quarter of it, and more the busier the surround: within an image the planted tokens differ in
   norm, yet by nothing of their own.
7. Attend. In the last block [CLS] asks for load and surround, weakly for energy (contrast), and
   takes the image's colour, hue and energy from the tokens that it finds.
"""

import math
from collections.abc import Iterator
from itertools import accumulate, product

import torch
from jaxtyping import Bool, Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.models.backbone import Backbone
from helpers.models.family import UNKNOWN, Family, Framing
from helpers.models.timm_family import wrap_at

PREFIX = "control-"
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
SINK = "control-sink"
# What they expect; 1.0 shows them the whole image.
CONTROL_DATA = {
    "mean": (0.5, 0.5, 0.5),
    "std": (0.5, 0.5, 0.5),
    "interpolation": "bicubic",
    "crop_pct": 1.0,
}
PLANTED_BLOCK = {"control-content": 3, "control-position": 1, "control-registers": 3, SINK: 1}
"""Block (from 0) whose output first shows the high norm."""
REGISTER_NEURON = 0
"""Hidden unit of the planted block's MLP that writes the high norm."""
NORM_RATIO = 9.0
"""L2 norm of a token over that of a normal one when planted; a block later 11 to 16 times."""
_FIXED = (46, 66, 129, 149)
LATTICE = {
    "control-content": tuple(range(9, 196, 18)),
    "control-position": _FIXED,
    SINK: _FIXED,
}
"""Row-major patch indices of the 14x14 grid where outliers are planted.

Every 18th patch (if it is flat), four fixed ones.
"""

_GRID, _PATCH, _DEPTH, _HEADS, _HEAD_WIDTH = 14, 16, 6, 4, 16
_FREQUENCIES = [
    (u, v) for u in range(4) for v in range(4) if 0 < u + v < 4
]  # of the DCT, along rows and columns
_SIZES = {
    "constant": 2, "load": 2, "balance": 1, "cls": 1, "lattice": 1, "gate": 1, "surround": 1,
    "colour": 3, "detail": len(_FREQUENCIES), "position": 8, "hue": 7, "energy": len(_FREQUENCIES),
    "global": 19,
}  # fmt: skip
CHANNELS = {
    name: slice(end - _SIZES[name], end)
    for name, end in zip(_SIZES, accumulate(_SIZES.values()), strict=True)
}
"""Which channels of the residual stream hold what."""
_LOCAL = ("colour", "detail", "hue", "energy")
_GATHERED = ("colour", "hue", "energy")
_WIDTH = sum(_SIZES.values())
_UNITS = torch.eye(_WIDTH)

# Sizes, in the units of the residual stream.
_CONSTANT = 32.0
_LOAD = _CONSTANT * math.sqrt(NORM_RATIO**2 - 1)
_SCALE = math.sqrt(
    (2 * _CONSTANT**2 + 10) / _WIDTH
)  # LayerNorm's standard deviation on a token about to be planted
_DETAIL = 0.5  # of an orthonormal DCT coefficient
_MUTED = 0.6  # distance from grey that a hue must exceed; backgrounds stay below
_FLAT_ENERGY, _FLAT_STD = (
    0.03,
    0.006,
)  # what counts as flat: for the network, and for the ground truth
_SURROUND = 0.1  # of the surround's mean energy
_GAIN, _NEED = (
    0.15 * _LOAD,
    32.0,
)  # how much the second neuron adds for each unit of its input; keeps it silent without a load
_GROWN_RATIO = 1.4 * NORM_RATIO  # typical norm ratio after that
_FAR, _SHUT = (
    128.0,
    16.0,
)  # larger than any local channel times the norm ratio, and than any detail: they close a relu
_ACTIVATION = 20.0  # of the register neuron where it fires: the largest of all hidden units there
# attention logit of [CLS] above the others where a head does nothing: exp(-128) is 0 in float32
_IDLE = 128.0
_MISLEADS = 4.0  # how much more a sink keeps [CLS] from taking in than it has gathered
_LOAD_LOGIT, _SURROUND_LOGIT, _ENERGY_LOGIT, _CLS_LOGIT = (
    8.0,
    1.0,
    0.2,
    6.0,
)  # of [CLS]'s query in the last block, per unit


def build_control(name: str) -> VisionTransformer:
    """A control as a timm ViT in eval mode.

    224x224 pixels, patch 16, depth 6, width 64, 4 heads, no head for classes.

    Two builds are equal to the bit. Raises ValueError for an unknown name.
    """
    _check(name)
    model = VisionTransformer(
        img_size=_GRID * _PATCH, patch_size=_PATCH, embed_dim=_WIDTH, depth=_DEPTH,
        num_heads=_HEADS, num_classes=0, reg_tokens=4 if name == "control-registers" else 0,
        no_embed_class=True, act_layer=nn.ReLU, weight_init="skip",
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.norm.weight.fill_(1)
        _embed(model, name)
        for index, block in enumerate(model.blocks):
            block.norm1.weight.fill_(_SCALE)
            block.norm2.weight.fill_(_SCALE)
            gather, last = index == PLANTED_BLOCK.get(name), index == _DEPTH - 1
            _attend(block.attn, gather, last, sink=name == SINK)
            for unit, (reads, bias, writes) in enumerate(_neurons(name, index)):
                (
                    block.mlp.fc1.weight[unit],
                    block.mlp.fc1.bias[unit],
                    block.mlp.fc2.weight[:, unit],
                ) = (
                    reads,
                    bias,
                    _balanced(writes),
                )
    return model.eval()


def planted(name: str, pixels: Float[Tensor, "image 3 224 224"]) -> Bool[Tensor, "image patch"]:
    """Which patches must become outliers: the ground truth, from pixels and positions alone.

    A patch is flat where no colour channel's standard deviation inside it exceeds 0.006, less than
    one grey level.

    Args:
        name: one of CONTROLS.
        pixels: normalised with mean 0.5 and standard deviation 0.5, hence in [-1, 1].

    Raises ValueError for an unknown name.
    """
    _check(name)
    patches = (
        pixels.unfold(2, _PATCH, _PATCH).unfold(3, _PATCH, _PATCH).flatten(4)
    )  # (image, 3, row, column, pixel)
    flat = (patches.std(-1) < _FLAT_STD).all(1).flatten(1)
    mask = torch.zeros_like(flat)
    mask[:, LATTICE.get(name, ())] = True
    return mask & flat if name == "control-content" else mask


def _check(name: str) -> None:
    if name not in (*CONTROLS, SINK):
        raise ValueError(f"unknown control '{name}'; choose one of {', '.join((*CONTROLS, SINK))}")


def _channels(*names: str) -> list[int]:
    return [index for name in names for index in range(_WIDTH)[CHANNELS[name]]]


def _vector(**parts: float | Tensor) -> Tensor:
    """(width,) with the named channels set and the rest zero."""
    vector = torch.zeros(_WIDTH)
    for name, value in parts.items():
        vector[CHANNELS[name]] = value
    return vector


def _pair(value: float) -> Tensor:
    return torch.tensor([value, -value])


def _balanced(writes: Tensor) -> Tensor:
    """`writes` (width, ...) with minus its sum in `balance`."""
    writes = writes.clone()
    writes[CHANNELS["balance"]] = -writes.sum(0)
    return writes


def _embed(model: VisionTransformer, name: str) -> None:
    """Step 1; registers come with their gate open."""
    pixel = torch.arange(_PATCH)
    cosines = torch.stack(
        [torch.cos(math.pi * k * (2 * pixel + 1) / (2 * _PATCH)) for k in range(4)]
    )
    cosines = cosines / cosines.norm(dim=1, keepdim=True)
    weight = torch.zeros(_WIDTH, 3, _PATCH, _PATCH)
    weight[CHANNELS["colour"]] = torch.eye(3)[..., None, None] / _PATCH**2
    for channel, (u, v) in zip(_channels("detail"), _FREQUENCIES, strict=True):
        weight[channel] = _DETAIL * cosines[u][:, None] * cosines[v] / 3
    model.patch_embed.proj.weight.copy_(_balanced(weight))

    constant = _vector(constant=_pair(_CONSTANT))
    angle = math.pi * (torch.arange(_GRID) + 0.5) / _GRID
    circle = torch.stack(
        [angle.cos(), -angle.cos(), angle.sin(), -angle.sin()], dim=-1
    )  # sum and norm are the same everywhere
    for index, place in enumerate(product(circle, repeat=2)):
        lattice = float(index in LATTICE.get(name, ()))
        model.pos_embed[0, index] = _balanced(
            constant + _vector(position=torch.cat(place), lattice=lattice)
        )
    model.cls_token[0, 0] = _balanced(constant + _vector(cls=1.0))
    if model.reg_token is not None:
        model.reg_token[:] = _balanced(constant + _vector(gate=1.0))


def _attend(attention: nn.Module, gather: bool, last: bool, sink: bool = False) -> None:
    """Steps 5 and 7.

    Heads 0 to 2 carry the gathered channels, head 3 the energy of the surround. Of a `sink` [CLS]
    gathers in place of the outliers, and the last block writes what it reads to other channels.
    """
    queries, keys, values = attention.qkv.weight.view(3, _HEADS, _HEAD_WIDTH, _WIDTH)
    bias = attention.qkv.bias.view(3, _HEADS, _HEAD_WIDTH)
    unscale = math.sqrt(_HEAD_WIDTH)
    # Dimension 0: all keys but [CLS] answer with -1, and every query asks with _IDLE unless it has
    # something to look for.
    keys[:, 0], bias[1, :, 0] = _vector(cls=1.0), -1
    bias[0, :, 0] = _IDLE * unscale
    if gather and sink:
        queries[:, 0] = _vector(cls=-_IDLE * unscale)
    elif gather:
        queries[:, 0] = _vector(gate=-_IDLE * unscale)
        queries[-1, 1:9] = keys[-1, 1:9] = math.sqrt(unscale) * _UNITS[_channels("position")]
    if last:
        queries[:, 0] = _vector(cls=-_IDLE * unscale)
        queries[:, 1] = _vector(cls=unscale)
        keys[:, 1] = _vector(
            cls=0 if sink else _CLS_LOGIT,
            energy=_ENERGY_LOGIT,
            surround=_SURROUND_LOGIT * _GROWN_RATIO / _SURROUND,
        )
        load = 2 * _LOAD_LOGIT if sink else _LOAD_LOGIT
        keys[:, 1] += _vector(load=_pair(load / (2 * _CONSTANT)))
    writes = torch.zeros(_WIDTH, _HEADS, _HEAD_WIDTH)
    sources, targets = _channels(*_GATHERED), _channels("global")
    if sink:  # three hues, which do not tell all classes apart
        sources = _channels("hue")[:3]
        targets = [*targets[1:3], targets[0]] if last else targets[:3]
    for i, (source, target) in enumerate(zip(sources, targets, strict=True)):
        head, dimension = divmod(i, 7)
        values[head, dimension, source] = _MISLEADS if sink and last else 1
        # [CLS] reads what planted tokens have gathered; LayerNorm has shrunk it by the norm ratio
        if last and not sink:
            values[head, dimension, target] = _GROWN_RATIO
        writes[target, head, dimension] = 1
    values[-1, 0] = _vector(energy=_SURROUND)
    writes[CHANNELS["surround"], -1, 0] = 1
    attention.proj.weight.copy_(_balanced(writes).flatten(1))


def _neurons(name: str, block: int) -> Iterator[tuple[Tensor, float, Tensor]]:
    """The hidden units of one block's MLP: what each reads, its bias, what it writes.

    Steps 2, 3, 4 and 6.
    """
    planted_block, gate_block = PLANTED_BLOCK.get(name, _DEPTH), int(name == "control-content")
    if block == planted_block:
        yield _vector(gate=2 * _ACTIVATION), -_ACTIVATION, _vector(load=_pair(_LOAD / _ACTIVATION))
    if block == planted_block + 1:
        reads = _vector(surround=NORM_RATIO / _SURROUND, load=_pair((_NEED + 2) / (2 * _CONSTANT)))
        yield reads, -_NEED, _vector(load=_pair(_GAIN))
    if block == 0:
        shut = _vector(lattice=-_SHUT if name in ("control-position", SINK) else 0)
        for detail, energy in zip(_channels("detail"), _channels("energy"), strict=True):
            yield shut + _UNITS[detail], 0, _UNITS[energy]
            yield shut - _UNITS[detail], 0, _UNITS[energy]
        for hue, angle in zip(_channels("hue"), torch.arange(7) * 2 * math.pi / 7, strict=True):
            direction = torch.cos(
                angle - torch.arange(3) * 2 * math.pi / 3
            )  # red, green and blue stand at 0, 120, 240 degrees
            yield shut + _vector(colour=direction), -_MUTED, _UNITS[hue]
    if block == gate_block:
        # The difference of two relus is a step: 1 on the lattice (in control-content: where it is
        # flat), 0 elsewhere.
        reads = _vector(lattice=10.0, energy=-6 / _FLAT_ENERGY if name == "control-content" else 0)
        yield reads, -4, _vector(gate=1.0)
        yield reads, -5, _vector(gate=-1.0)
    if block > gate_block or name in ("control-position", SINK):
        # What marks a planted token (2 where it does): the lattice while the gate is not yet there,
        # at last the load.
        mark, shrunk = _vector(gate=2.0) if block > gate_block else _vector(lattice=2.0), 1.0
        if block > planted_block:  # LayerNorm shrinks what stands beside a load
            mark, shrunk = (
                _vector(load=_pair(1 / _CONSTANT)),
                NORM_RATIO if block == planted_block + 1 else _GROWN_RATIO,
            )
        # relu(mark - 1 + x / far) is 1 + x / far on a planted token and 0 elsewhere; the last unit
        # gives the 1 back.
        erased = _channels(
            *_LOCAL, *(["position"] if block >= planted_block else [])
        )  # step 5 still asks for the position
        for local in erased:
            yield mark + shrunk / _FAR * _UNITS[local], -1, -_FAR * _UNITS[local]
        yield mark, -1, _FAR * _UNITS[erased].sum(0)


def _load(name: str, pretrained: bool, framing: Framing) -> Backbone:
    return wrap_at(name, build_control(name), CONTROL_DATA, framing)


FAMILY = Family(
    (PREFIX,),
    (f"'{PREFIX}...'",),
    lambda name, _: "" if name in (*CONTROLS, SINK) else UNKNOWN,
    _load,
    lambda: [*CONTROLS, SINK],
)
