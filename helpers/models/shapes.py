"""What the shapes of a Vision Transformer's weights say, and which architectures of timm have them.

Only shapes are compared, so that what differs by none (the number of heads, the activation) stays
open.
"""

import difflib
import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

import timm
import torch
from torch import Tensor, nn

from helpers.models.family import Size

# Every one of timm's has it, behind whatever prefix a wrapper gave.
ANCHOR = "patch_embed.proj.weight"
SECONDS = 3.0  # for which architectures are tried; the last one may take one more
MOST = 3  # that are proposed
_BEHIND = re.compile(r"blocks\.[1-9]")  # weights of other blocks than the first


def on_meta(name: str, **options: Any) -> nn.Module:
    """The architecture without memory."""
    with torch.device("meta"):
        return timm.create_model(name, **options)


def differences(file: Mapping[str, Tensor], ours: Mapping[str, Tensor], arch: str) -> str:
    """What differs between the weights of a file and those of an architecture, such as '4 registers
    in the file, 0 in ARCH'; '' where nothing is seen.
    """
    own = _traits(ours)
    return ", ".join(
        f"{value} {name} in the file, {own[name]} in {arch}"
        for name, value in _traits(file).items()
        if name in own and value != own[name]
    )


def _traits(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Registers, blocks, channels, pixels of a patch and units, as far as shapes tell them."""
    found: dict[str, Any] = {"registers": 0}
    if "reg_token" in state and state["reg_token"].dim() == 3:
        found["registers"] = state["reg_token"].shape[1]
    if blocks := {int(at[1]) for key in state if (at := re.match(r"blocks\.(\d{1,4})\.", key))}:
        found["blocks"] = max(blocks) + 1
    if ANCHOR in state and state[ANCHOR].dim() == 4:
        found["channels"] = state[ANCHOR].shape[0]
        found["pixels a patch"] = "{} x {}".format(*state[ANCHOR].shape[2:])
    units = state.get("blocks.0.mlp.fc1.bias")
    if units is not None and units.dim() == 1:
        found["hidden units of an MLP"] = units.shape[0]
    return found


def own_size(sketch: nn.Module, state: Mapping[str, Tensor], most: int) -> Size | None:
    """The image size whose patches the position embedding fits.

    Where it is not the architecture's, the grid is square, and no side exceeds `most`.
    """
    theirs, ours = state.get("pos_embed"), sketch.pos_embed
    if theirs is None or ours is None or theirs.shape == ours.shape or theirs.dim() != 3:
        return None
    patches = theirs.shape[1] - (ours.shape[1] - math.prod(sketch.patch_embed.grid_size))
    side = math.isqrt(max(patches, 1))
    size = tuple(side * patch for patch in sketch.patch_embed.patch_size)
    return size if side**2 == patches and max(size) <= most else None


def fitting(
    state: Mapping[str, Tensor],
    like: str,
    names: Iterable[str],
    most: int,
    seconds: float = SECONDS,
) -> list[str]:
    """Architectures that have exactly these shapes, but for the head and the image size.

    Args:
        state: weights under timm's names.
        like: the nearest of `names` to it are tried first, of those whose name fits.
        most: as in `own_size`.
        seconds: until no further one is tried.
    """
    end, found, traits = time.monotonic() + seconds, [], _traits(state)
    patch = f"patch{traits.get('pixels a patch', '').partition(' ')[0]}"

    def near(name: str) -> tuple[bool, bool, float]:
        registers = re.search(r"_reg(\d+)", name)
        same = int(registers[1] if registers else 0) == traits["registers"]
        return f"{patch}_" in name, same, difflib.SequenceMatcher(None, name, like).ratio()

    for name in sorted(names, key=near, reverse=True):
        if len(found) == MOST or time.monotonic() > end:
            break
        try:  # of one block first, which is made in a tenth of the time
            if _outline(on_meta(name, num_classes=0, depth=1), True) != _outline(state, True):
                continue
            whole = on_meta(name, num_classes=0)
        except Exception:  # of the kinds of timm's errors there is no end
            continue
        ours, theirs = whole.pos_embed, state.get("pos_embed")
        sized = ours is None or ours.shape == theirs.shape or own_size(whole, state, most)
        if sized and _outline(whole) == _outline(state):
            found.append(name)
    return found


def _outline(of: nn.Module | Mapping[str, Tensor], first: bool = False) -> dict[str, tuple]:
    """The shape of each weight but the head's, of the `first` block alone; of positions only how
    wide they are.
    """
    state = of.state_dict() if isinstance(of, nn.Module) else of
    return {
        key: tuple(value.shape)[-1:] if key == "pos_embed" else tuple(value.shape)
        for key, value in state.items()
        if not key.startswith(("head.", "head_dist.")) and not (first and _BEHIND.match(key))
    }
