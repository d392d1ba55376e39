"""A model with test-time registers for good, as plain torch."""

import copy
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from helpers.interventions.neurons import Neurons, shifts_of
from helpers.interventions.tokens import with_tokens, without
from helpers.models import Backbone, TokenLayout


def model_with_test_time_registers(
    backbone: Backbone, neurons: Neurons, count: int = 1, clear: str = "patches", seed: int = 0
) -> nn.Module:
    """A copy of the model that has test-time registers for good, as plain torch: it returns what this model returns inside
    `test_time_registers` with the same arguments and zero tokens.

    It is of the model's own class, and its state dict has the same keys, with two short lists of integers more for each block
    that has `neurons`. Other image sizes work where the model takes them.

    Raises ValueError while an intervention is active, and what `test_time_registers` raises.
    """
    if any(module._forward_hooks or module._forward_pre_hooks for module in backbone.model.modules()):
        raise ValueError(f"'{backbone.name}' has hooks, such as those of an intervention; leave it before you export the model")
    shifts = shifts_of(backbone, neurons, 0, count, clear, seed)
    exported = replace(backbone, model=copy.deepcopy(backbone.model))
    # Hooks are partials of this module's functions and tensors are buffers, so that deepcopy, torch.save and .to work.
    at = backbone.layout.own_prefix if backbone.layout.rotary else None
    exported.blocks[0].register_forward_pre_hook(partial(_append, count, at))
    exported.blocks[-1].register_forward_hook(partial(_take_away, count, at))
    exported.lengthen_prefix(count)
    for block, shift in shifts.items():
        layer = exported.neurons(block)
        layer.add_module("shift", shift.to(backbone.device))
        layer.register_forward_pre_hook(partial(_shift_input, backbone.layout.with_appended(count)))
    return exported.model


def _append(count: int, at: int | None, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    x, *rest = inputs
    return (with_tokens(x, x.new_zeros(1), count, at), *rest)


def _take_away(count: int, at: int | None, _: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return without(output, count, at)


def _shift_input(layout: TokenLayout, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
    (x,) = inputs
    # At another image size there are other patches, and as many other tokens.
    return (layer.shift(x, layout.with_kept(x.shape[1] - layout.tokens + layout.patches)),)
