"""Controls: ordinary timm ViTs whose answers are known by construction: every weight is set here.

    control-content    outliers where a patch is flat and lies on a sparse lattice, from block 3 on
    control-position   outliers at four fixed positions, whatever the picture shows, from block 1 on
    control-registers  the same load carried by four register tokens from block 3 on
    control-clean      no outlier at all

Ten more are for single claims, nine of them since none of these could come out as supported:

    control-decoupled  control-registers, where [CLS] is settled a block before the last, the class
                       comes from registers alone, and patches only say where the texture is
    control-coupled    control-clean, where the last block writes [CLS], all of it from patches
    control-corners    control-position with its outliers in the corners
    control-appended   control-content until a token is appended at inference (`_append`)
    control-rise       control-clean, where neighbours differ until the last block makes them alike
    control-dip        control-rise, where neighbours differ from the middle third of the blocks on
    control-noise      outliers at fixed positions that hold noise alone and spoil the answer, and
    control-noise-registers  its match, where four registers carry the load (`_noise_neurons`)
    control-sink       the outliers of control-position, holding nothing: [CLS] gathers three
                       hues by itself, and attends to them in the last block, to take in nothing
    control-faint      control-clean with two patches of 3.15 times the median norm, outliers by a
                       rule of 3 medians and not of 3.3, and two of 2.9, outliers by one of 2.8

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
8. Decouple. In the last two blocks of control-decoupled, [CLS] takes only hue, which tells the
   class of a scene, and only from registers; the last head takes the position of patches with
   energy. The last LayerNorm before attention shrinks the load, so that what is left of a register
   there is of its image.
9. Couple. In the last block of control-coupled, [CLS] takes hue from all patches, and writes it
   with a higher norm than all that it had.
10. Alternate. In control-rise and control-dip patches bear a mark, with the signs of a chessboard.
    In block 0 or 2 two neurons make it larger than the constant, in the last block two erase it.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, product

import torch
from jaxtyping import Bool, Float
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from helpers.models.backbone import Backbone
from helpers.models.family import Framing
from helpers.models.timm_family import wrap_at
from helpers.settings import check_choice

PREFIX = "control-"
CONTROLS = ("control-content", "control-position", "control-registers", "control-clean")
NOISE = ("control-noise", "control-noise-registers")
"""A matched pair for claims that none of CONTROLS can support; see `_noise_neurons`."""
SINK = "control-sink"
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
LATTICE = {
    "control-content": tuple(range(9, 196, 18)),
    **dict.fromkeys(("control-position", "control-noise", SINK), (46, 66, 129, 149)),
}
"""Row-major patch indices of the 14x14 grid where outliers are planted (if flat, of the first)."""

_GRID, _PATCH, _DEPTH, _HEADS, _HEAD_WIDTH = 14, 16, 6, 4, 16
# Of the DCT, along rows and columns.
_FREQUENCIES = [(u, v) for u in range(4) for v in range(4) if 0 < u + v < 4]
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
# LayerNorm's standard deviation on a token about to be planted.
_SCALE = math.sqrt((2 * _CONSTANT**2 + 10) / _WIDTH)
_DETAIL = 0.5  # of an orthonormal DCT coefficient
_MUTED = 0.6  # distance from grey that a hue must exceed; backgrounds stay below
_FLAT_ENERGY, _FLAT_STD = 0.03, 0.006  # what is flat: for the network, and for the ground truth
_SURROUND = 0.1  # of the surround's mean energy
_GAIN = 0.15 * _LOAD  # how much the second neuron adds for each unit of its input
_NEED = 32.0  # keeps it silent without a load
_GROWN_RATIO = 1.4 * NORM_RATIO  # typical norm ratio after that
# They close a relu: larger than any local channel times the norm ratio, and than any detail.
_FAR, _SHUT = 128.0, 16.0
_ACTIVATION = 20.0  # of the register neuron where it fires: the largest of all hidden units there
# attention logit of [CLS] above the others where a head does nothing: exp(-128) is 0 in float32
_IDLE = 128.0
_MISLEADS = 4.0  # how much more a sink keeps [CLS] from taking in than it has gathered
# Of [CLS]'s query in the last block, per unit.
_LOAD_LOGIT, _SURROUND_LOGIT, _ENERGY_LOGIT, _CLS_LOGIT = 8.0, 1.0, 0.2, 6.0
# Of steps 8 and 9: the logit of registers where [CLS] takes nothing else, and of a patch per unit
# of its energy; how much is taken of hue and of positions, and of hue where it is written late.
_ONLY_LOGIT, _TEXTURE_LOGIT, _HUE_GAIN, _PLACE_GAIN = 24.0, 2.0, 10.0, 0.05
_LATE_GAIN = 4000.0
_FAINT = 3.15, 3.15, 2.9, 2.9  # of control-faint: norms over the median
_NOISE_BLOCK, _NOISE = 3, 60.0  # of NOISE: its planted block; what it makes of a detail
Unit = tuple[Tensor, float, Tensor]  # a hidden unit: what it reads, its bias, what it writes


def build_control(name: str) -> VisionTransformer:
    """A control as a timm ViT: 224x224 pixels, patch 16, depth 6, width 64, 4 heads, no classes."""
    if name in VARIANTS:
        base, change = VARIANTS[name]
        model = build_control(base)
        with torch.no_grad():
            change(model)
        return model
    check_choice("the name of a control", name, (*CONTROLS, *FURTHER))
    model = VisionTransformer(
        img_size=_GRID * _PATCH, patch_size=_PATCH, embed_dim=_WIDTH, depth=_DEPTH,
        num_heads=_HEADS, num_classes=0, reg_tokens=4 if name.endswith("-registers") else 0,
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
            neurons = _noise_neurons(index) if name in NOISE else _neurons(name, index)
            for unit, (reads, bias, writes) in enumerate(neurons):
                block.mlp.fc1.weight[unit] = reads
                block.mlp.fc1.bias[unit] = bias
                block.mlp.fc2.weight[:, unit] = _balanced(writes)
    return model.eval()


def planted(name: str, pixels: Float[Tensor, "image 3 224 224"]) -> Bool[Tensor, "image patch"]:
    """Which patches must become outliers: the ground truth, from pixels and positions alone.

    A patch is flat where no colour channel's standard deviation inside it exceeds 0.006, less than
    one grey level. `pixels` in [-1, 1].
    """
    check_choice("the name of a control", name, (*CONTROLS, *NOISE, SINK))
    # (image, 3, row, column, pixel)
    patches = pixels.unfold(2, _PATCH, _PATCH).unfold(3, _PATCH, _PATCH).flatten(4)
    flat = (patches.std(-1) < _FLAT_STD).all(1).flatten(1)
    mask = torch.zeros_like(flat)
    mask[:, LATTICE.get(name, ())] = True
    return mask & flat if name == "control-content" else mask


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
    # Sum and norm are the same everywhere.
    circle = torch.stack([angle.cos(), -angle.cos(), angle.sin(), -angle.sin()], dim=-1)
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


def _parts(attention: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values, each (head, dimension, width), and what the heads write."""
    return *attention.qkv.weight.view(3, _HEADS, _HEAD_WIDTH, _WIDTH), attention.proj.weight.view(
        _WIDTH, _HEADS, _HEAD_WIDTH
    )


def _gathered(name: str) -> list[tuple[int, int]]:
    """Head and dimension that carry each gathered channel of this name."""
    gathered = _channels(*_GATHERED)
    return [divmod(gathered.index(channel), 7) for channel in _channels(name)]


def _decouple(model: VisionTransformer) -> None:
    """Step 8."""
    for block in model.blocks[-2:]:
        _attend(block.attn, gather=False, last=True)
        _, keys, values, writes = _parts(block.attn)
        keys[:, 1] = _vector(gate=_ONLY_LOGIT * _GROWN_RATIO)
        for head, dimension in _gathered("colour") + _gathered("energy"):
            values[head, dimension] = 0
        values[:-1] *= _HUE_GAIN
        values[-1] = 0
    # In the last block, whose parts are `_, keys, values, writes`:
    weight = torch.full((_WIDTH,), _SCALE)
    for name in ("constant", "load", "balance", "surround"):
        weight[CHANNELS[name]] = 0
    weight[CHANNELS["gate"]] = _SCALE / 100
    block.norm1.weight.copy_(weight)
    keys[:, 1] *= 100
    keys[-1, 1] = _vector(gate=-100 * _ONLY_LOGIT * _GROWN_RATIO, energy=_TEXTURE_LOGIT)
    values[-1, :8] = _PLACE_GAIN * _UNITS[_channels("position")]
    placed = torch.zeros(_WIDTH, _HEAD_WIDTH)
    placed[_channels("position"), range(8)] = 1
    writes[:, -1] = _balanced(placed)


def _couple(model: VisionTransformer) -> None:
    """Step 9."""
    _, keys, values, _ = _parts(model.blocks[-1].attn)
    keys[:, 1] = 0
    for name, gain in (("colour", 0), ("hue", _LATE_GAIN), ("energy", 0)):
        for head, dimension in _gathered(name):
            values[head, dimension] *= gain


def _move(model: VisionTransformer) -> None:
    """Planted places and corners have each other's embeddings."""
    places, corners = list(LATTICE["control-position"]), [0, _GRID - 1, -_GRID, -1]
    model.pos_embed[:, places + corners] = model.pos_embed[:, corners + places]


def _lengthen(model: VisionTransformer) -> None:
    """Four patches have higher norms than all others, by `_FAINT`."""
    for place, ratio in zip(LATTICE["control-position"], _FAINT, strict=True):
        model.pos_embed[:, place] *= ratio


# Reads 2 where a token has the load: LayerNorm makes of that the constant.
_LOADED = _vector(load=_pair(1 / _CONSTANT))
# Step 6: the register neuron.
_PLANT = _vector(gate=2 * _ACTIVATION), -_ACTIVATION, _vector(load=_pair(_LOAD / _ACTIVATION))


def _neurons(name: str, block: int) -> Iterator[Unit]:
    """The hidden units of one block's MLP: what each reads, its bias, what it writes.

    Steps 2, 3, 4 and 6.
    """
    planted_block, gate_block = PLANTED_BLOCK.get(name, _DEPTH), int(name == "control-content")
    fixed = name in ("control-position", SINK)
    if block == planted_block:
        yield _PLANT
    if block == planted_block + 1:
        reads = _vector(surround=NORM_RATIO / _SURROUND, load=_pair((_NEED + 2) / (2 * _CONSTANT)))
        yield reads, -_NEED, _vector(load=_pair(_GAIN))
    if block == 0:
        yield from _describe(_vector(lattice=-_SHUT if fixed else 0))
    if block == gate_block:
        yield from _gate(-6 / _FLAT_ENERGY if name == "control-content" else 0)
    if block > gate_block or fixed:
        # What marks a planted token (2 where it does): the lattice while the gate is not yet there,
        # at last the load.
        mark, shrunk = _vector(gate=2.0) if block > gate_block else _vector(lattice=2.0), 1.0
        if block > planted_block:  # LayerNorm shrinks what stands beside a load
            mark, shrunk = _LOADED, NORM_RATIO if block == planted_block + 1 else _GROWN_RATIO
        # step 5 still asks for the position
        erased = _channels(*_LOCAL, *(["position"] if block >= planted_block else []))
        yield from _erase(mark, shrunk, {local: -_UNITS[local] for local in erased})


def _describe(shut: Tensor) -> Iterator[Unit]:
    """Step 2, but for tokens that `shut` marks."""
    for detail, energy in zip(_channels("detail"), _channels("energy"), strict=True):
        yield shut + _UNITS[detail], 0, _UNITS[energy]
        yield shut - _UNITS[detail], 0, _UNITS[energy]
    for hue, angle in zip(_channels("hue"), torch.arange(7) * 2 * math.pi / 7, strict=True):
        # Red, green and blue stand at 0, 120, 240 degrees.
        direction = torch.cos(angle - torch.arange(3) * 2 * math.pi / 3)
        yield shut + _vector(colour=direction), -_MUTED, _UNITS[hue]


def _gate(energy: float) -> Iterator[Unit]:
    """Step 3: 1 on the lattice; a negative `energy` shuts it where a patch is not flat."""
    reads = _vector(lattice=10.0, energy=energy)
    yield reads, -4, _vector(gate=1.0)
    yield reads, -5, _vector(gate=-1.0)


def _erase(mark: Tensor, shrunk: float, writes: Mapping[int, Tensor]) -> Iterator[Unit]:
    """Step 4: where `mark` reads 2, add to the stream what a channel holds times its `writes`.

    relu(mark - 1 + x / far) is 1 + x / far on a planted token and 0 elsewhere; the last unit gives
    the 1 back. `shrunk` is what LayerNorm has divided a channel of such a token by.
    """
    for channel, written in writes.items():
        yield mark + shrunk / _FAR * _UNITS[channel], -1, _FAR * written
    yield mark, -1, 0 - _FAR * sum(writes.values())  # 0 - 0 is no -0, which digests tell apart


def _noise_neurons(block: int) -> Iterator[Unit]:
    """As `_neurons`, for NOISE, where the load lies at fixed positions or on four registers.

    No token gathers anything, so an outlier holds nothing of the image as a whole. One block after
    the load, and only where it is, a patch's colours, hues and energies are erased. Its detail (the
    phase of a texture, which no class has in common) is written over its hues, `_NOISE` times as
    large. So outliers spoil what [CLS] and the mean of the patches tell of the class. A register,
    built in or appended at test time, has no detail and makes no noise.
    """
    if block == 0:
        yield from _describe(_vector())
        yield from _gate(0)
    if block == _NOISE_BLOCK:
        yield _PLANT
    if block == _NOISE_BLOCK + 1:
        lost = {channel: -_UNITS[channel] for channel in _channels(*_GATHERED)}
        details = dict(zip(_channels("detail"), _NOISE * _UNITS[_channels("hue")], strict=False))
        yield from _erase(_LOADED, NORM_RATIO, lost | details)


# Sizes of `_append`: attention logits of [CLS] in the last block for a load, beside which
# float32 keeps nothing else, and for an appended token, a quarter of all patches; what that token
# adds to [CLS]; and of the keys: their part for hues, the hue from which on it is positive, their
# part for loads, and a load's in it beside the constant's.
_ALONE, _DRAWN, _OWN = 40.0, math.log(49), 0.015
_HUED, _HUE, _APART, _LOAD_KEY = 60.0, 0.05, 6.0, 20.0
_CHESS = 60.0  # of step 10, by how much the mark is enlarged
_CONSTANT_READ = _vector(constant=_pair(1 / (2 * _CONSTANT)))  # 1 on a token without a load


def _append(model: VisionTransformer) -> None:
    """Only the attention of the first and last block changes.

    An appended token of zeros, or of small random numbers, lacks the constant that all others have,
    so `1 - constant` tells it.

    1. In block 0 all tokens but [CLS] attend to what lacks the constant. An appended token takes
       them off the lattice, so no gate opens later, and no outlier is planted.
    2. In the last block [CLS] attends to outliers alone, where there are any, and reads nothing of
       the image from them; else it reads the patches. An appended token draws attention, too, and
       adds a vector of its own: one does little harm, eight do much.
    3. In one head there, patches attend to all tokens alike; if they were taken off the lattice, to
       the appended token alone.
    4. The queries of patches there measure the constant, which LayerNorm shrinks beside a load.
       Their keys tell strong colours from the rest, and outliers from both, as LOST needs them.
    """
    _take_off_the_lattice(model.blocks[0].attn)
    _read_patches(model.blocks[-1].attn)


def _take_off_the_lattice(attention: nn.Module) -> None:
    """Point 1; this attention does nothing else."""
    for parameter in attention.parameters():
        parameter.zero_()
    queries, keys, values, writes = _parts(attention)
    bias = attention.qkv.bias.view(3, _HEADS, _HEAD_WIDTH)
    asks = _IDLE * math.sqrt(_HEAD_WIDTH)
    queries[:, 0], bias[0, :, 0] = _vector(cls=-2 * asks), asks  # [CLS] asks for the contrary
    keys[:, 0], bias[1, :, 0] = -_CONSTANT_READ, 1
    values[-1, 0], bias[2, -1, 0] = -_CONSTANT_READ, 1
    writes[:, -1, 0] = _balanced(_vector(lattice=-2.0))


def _read_patches(attention: nn.Module) -> None:
    """Points 2 to 4."""
    queries, keys, values, _ = _parts(attention)
    asks = _IDLE * math.sqrt(_HEAD_WIDTH)
    # All that an appended token holds is what it wrote on the lattice, in LayerNorm's units.
    appended = _vector(lattice=-1 / _CONSTANT)
    load = _vector(load=_pair(1 / (2 * _CONSTANT)))
    queries[:, 0] = asks * (_CONSTANT_READ - _vector(cls=1.0))
    attention.qkv.bias[: _HEADS * _HEAD_WIDTH] = 0  # of queries
    keys[:, 1] = _vector(cls=_CLS_LOGIT, energy=_ENERGY_LOGIT) + _ALONE * load + _DRAWN * appended
    values[..., CHANNELS["global"]] = 0
    for i, (head, dimension) in enumerate(_gathered("hue")):
        values[head, dimension] -= (-1) ** i * _OWN * appended
    queries[-1, 0] = 0
    queries[-1, 2], keys[-1, 2] = -asks * _vector(lattice=1.0), appended
    keys[:, 3] = _HUED * (_vector(hue=1.0) - _HUE * _CONSTANT_READ)
    keys[:, 4] = _APART * (_LOAD_KEY * load - _CONSTANT_READ)


def _alternate(model: VisionTransformer, start: int) -> None:
    """Step 10, with the mark enlarged in block `start`."""
    channel = _channels("global")[0]
    mark = _balanced(_UNITS[channel])
    row, column = torch.arange(_GRID)[:, None], torch.arange(_GRID)
    model.pos_embed += ((-1.0) ** (row + column)).flatten()[:, None] * mark
    # The units of LayerNorm in the last block, where the mark is part of what it divides by.
    shrunk = math.sqrt((2 * _CONSTANT**2 + 10 + 2 * (1 + _CHESS) ** 2) / _WIDTH) / _SCALE
    for block, gain in ((start, _CHESS), (_DEPTH - 1, -shrunk)):
        mlp = model.blocks[block].mlp
        for unit, sign in ((-1, 1), (-2, -1)):
            mlp.fc1.weight[unit] = sign * _UNITS[channel]
            mlp.fc2.weight[:, unit] = sign * gain * mark


VARIANTS = {
    "control-decoupled": ("control-registers", _decouple),
    "control-coupled": ("control-clean", _couple),
    "control-corners": ("control-position", _move),
    "control-faint": ("control-clean", _lengthen),
    "control-appended": ("control-content", _append),
    "control-rise": ("control-clean", partial(_alternate, start=0)),
    "control-dip": ("control-clean", partial(_alternate, start=2)),
}
"""Controls for single claims: the one that each of them changes, and how."""
FURTHER = (*VARIANTS, *NOISE, SINK)
"""Every control that is run for some claims alone."""


def load(name: str, pretrained: bool, framing: Framing) -> Backbone:
    """The Backbone of 'control-...'; `pretrained` changes nothing."""
    return wrap_at(name, build_control(name), CONTROL_DATA, framing)
