"""Register neurons shifted to test-time registers, or set to zero (Jiang et al., arXiv:2506.08010).

A neuron is one input of a block's second MLP layer, in gated MLPs the product; its name is (block,
unit), both from 0. `helpers.capture.find_register_neurons` finds those that make outliers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from helpers.interventions.tokens import appended_registers, intervention
from helpers.models import Backbone
from helpers.settings import check_choice

CLEARS = ("patches", "all")
RANDOM_DRAWS = 5  # of random neurons at zero
MOST_TOKENS = 5  # that share the neurons (Jiang et al., Tables 8 and 9)


class RegisterNeuron(NamedTuple):
    """A neuron and what it does at outliers; means over the tokens of an image, then over images.

    Attributes:
        block, unit: which neuron, from 0.
        at_outliers, elsewhere: mean activation at the outliers, and at the other tokens of the same
            images.
        magnitude: mean absolute activation at the outliers.
        ratio: `magnitude` over the mean absolute activation elsewhere; infinite where only that is
            zero, 1 where both are.
        score: what ranks it.
    """

    block: int
    unit: int
    at_outliers: float
    elsewhere: float
    magnitude: float
    ratio: float
    score: float


class MatchedNeuron(NamedTuple):
    """A random unit (from 0) beside a neuron.

    Attributes:
        written: L2 norm of what it writes to the residual stream, mean over tokens; LayerScale left
            out.
        wanted: the same of the neuron that it stands beside.
    """

    block: int
    unit: int
    written: float
    wanted: float


Condition = Callable[[Backbone], AbstractContextManager | None]  # None: not for this model
Neurons = Sequence[RegisterNeuron | MatchedNeuron | tuple[int, int]]


@intervention
def test_time_registers(
    backbone: Backbone,
    neurons: Neurons,
    count: int = 1,
    init: str = "zeros",
    clear: str = "patches",
    seed: int = 0,
    shared: bool = False,
) -> Iterator[Backbone]:
    """Append `count` tokens and let `neurons` act there and no more on the patches (Jiang et al.).

    In every image each neuron takes, at one of the appended tokens, its value of largest magnitude
    over all other tokens, with its sign; at the other appended tokens and at the patches it becomes
    zero. Several tokens share the neurons at random, as evenly as they can. The tokens are taken
    away again, as in `appended_registers`.

    Args:
        neurons: none only appends the tokens, which is the control.
        count: number of tokens, at least 1.
        init: of the tokens, as in `appended_registers`.
        clear: where else the neurons become zero: "patches", as in the authors' code, or "all",
            which is their text: [CLS] and registers too.
        seed: of the shares, and of "normal" tokens.
        shared: all neurons of a block take the one value of largest magnitude among them, as in the
            authors' code; unless given each takes its own, which is their text.
    """
    check_choice("clear", clear, CLEARS)
    first = backbone.layout.appended  # tokens of an outer intervention stand before ours
    shares = shares_of(backbone, neurons, count, seed)

    def shifted(
        x: Float[Tensor, "image token hidden"], share: tuple[list[int], list[int]]
    ) -> Float[Tensor, "image token hidden"]:
        # In a context `capture` may have moved the model, an inner intervention changed its layout.
        units, owners = (torch.tensor(own, device=x.device) for own in share)
        layout = backbone.layout

        def ours(tokens: Tensor) -> Tensor:
            return layout.appended_tokens(tokens).narrow(-2, first, count)

        here, cleared = torch.zeros(2, x.shape[1], 1, dtype=torch.bool, device=x.device)
        ours(here).fill_(True)
        (cleared if clear == "all" else layout.patch_tokens(cleared)).fill_(True)
        values = x[..., units]  # (image, token, unit)
        others = values.masked_fill(here, 0)
        largest = others.gather(1, others.abs().argmax(dim=1, keepdim=True))
        if shared:  # (image, 1, 1)
            largest = largest.gather(-1, largest.abs().argmax(dim=-1, keepdim=True))
        values = values.masked_fill(cleared, 0)
        token = torch.arange(count, device=x.device)[:, None]
        ours(values).copy_(largest.where(owners == token, 0))
        return x.index_copy(-1, units, values)

    with appended_registers(backbone, count, init, seed), ExitStack() as hooks:
        for block, share in shares.items():
            hooks.enter_context(backbone.change_neurons(block, partial(shifted, share=share)))
        yield backbone


@contextmanager
def changed_units(
    backbone: Backbone, neurons: Neurons, change: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[Backbone]:
    """Make `change(neurons of a block (image, token, hidden), units)` of `neurons`."""
    with ExitStack() as hooks:
        for block, own in units_by_block(backbone, neurons).items():
            units = torch.tensor(own)
            hooks.enter_context(
                backbone.change_neurons(block, lambda x, i=units: change(x, i.to(x.device)))
            )
        yield backbone


@intervention
def ablated_neurons(backbone: Backbone, neurons: Neurons) -> Iterator[Backbone]:
    """Set `neurons` to zero at every token, with no token added."""
    with changed_units(backbone, neurons, lambda x, units: x.index_fill(-1, units, 0)):
        yield backbone


@intervention
def averaged_neurons(backbone: Backbone, neurons: Neurons) -> Iterator[Backbone]:
    """Set `neurons` at every patch to their mean over the patches of the image (mean ablation).

    What a neuron writes to all patches together stays, where it writes is lost. [CLS] and registers
    keep their values.
    """

    def averaged(x: Tensor, units: Tensor) -> Tensor:
        values = x[..., units]
        patches = backbone.layout.patch_tokens(values)
        patches.copy_(patches.mean(dim=-2, keepdim=True).expand_as(patches))
        return x.index_copy(-1, units, values)

    with changed_units(backbone, neurons, averaged):
        yield backbone


def random_neurons(backbone: Backbone, neurons: Neurons, seed: int = 0) -> list[tuple[int, int]]:
    """The control for `neurons`: as many other units of the same blocks, as (block, unit)."""
    rng, chosen = np.random.default_rng(seed), []
    for block, units in units_by_block(backbone, neurons).items():
        others = np.setdiff1d(np.arange(backbone.hidden(block)), units)
        chosen += [(block, int(unit)) for unit in rng.choice(others, len(units), replace=False)]
    return chosen


def neuron_conditions(
    neurons: Mapping[str, Neurons],
    count: int = 1,
    seed: int = 0,
    matched: Mapping[str, Neurons] | None = None,
) -> dict[str, Condition]:
    """What a test-time register is compared with, by name.

    "moved": the neurons of each model act at `count` appended tokens. "empty token": these tokens
    alone. "random neurons": as many others of the same blocks moved (`random_neurons`). "matched
    neurons": those of `matched` moved, where given. "set to zero": the neurons zeroed, no token.
    "set to mean": each at its mean over an image's patches, no token. Models without neurons are
    left out of all.
    """

    def moved(backbone: Backbone, own: Neurons) -> AbstractContextManager:
        return test_time_registers(backbone, own, count, seed=seed)

    changes = {
        "moved": moved,
        "empty token": lambda b, own: moved(b, []),
        "random neurons": lambda b, own: moved(b, random_neurons(b, own, seed)),
        "matched neurons": lambda b, own: moved(b, matched[b.name]),
        "set to zero": ablated_neurons,
        "set to mean": averaged_neurons,
    }
    if matched is None:
        del changes["matched neurons"]
    return {name: where_given(neurons, change) for name, change in changes.items()}


def moved_neurons(
    neurons: Mapping[str, Neurons], count: int = 1, seed: int = 0, **how: Any
) -> Condition:
    """The condition "moved" alone; `how` as in `test_time_registers`."""
    return where_given(neurons, partial(test_time_registers, count=count, seed=seed, **how))


def shift_conditions(
    neurons: Mapping[str, Neurons], several: Mapping[str, Neurons], seed: int = 0
) -> dict[str, Condition]:
    """What Jiang et al. compare with each other, by name, of models that have neurons.

    Table 7: "moved", the neurons act at one zero token; "zeroed", they are set to zero; "random_I",
    as many random ones of the same blocks are, in five draws. Variants of the shift: "cls_cleared",
    the neurons are zero at [CLS], too, as in the authors' text; "normal" and "mean", the initial
    token (Table 10); "tokens_K", 1 to 5 tokens share those of `several` (Tables 8 and 9); "shared",
    one token has these, and they take one value a block, as in the authors' code.
    """
    moved = partial(moved_neurons, seed=seed)

    def random(draw: int) -> Condition:
        return where_given(
            neurons, lambda b, own: ablated_neurons(b, random_neurons(b, own, seed + draw))
        )

    conditions = {"moved": moved(neurons), "zeroed": where_given(neurons, ablated_neurons)}
    conditions |= {f"random_{draw}": random(draw) for draw in range(RANDOM_DRAWS)}
    conditions |= {"cls_cleared": moved(neurons, clear="all")}
    conditions |= {init: moved(neurons, init=init) for init in ("normal", "mean")}
    conditions |= {f"tokens_{k}": moved(several, count=k) for k in range(1, MOST_TOKENS + 1)}
    return conditions | {"shared": moved(several, shared=True)}


def where_given(
    own: Mapping[str, Any], change: Callable[[Backbone, Any], AbstractContextManager]
) -> Condition:
    """The condition `change(backbone, own[model])`, which leaves out models that have none."""
    return lambda b: change(b, own[b.name]) if b.name in own else None


def shares_of(
    backbone: Backbone, neurons: Neurons, count: int, seed: int
) -> dict[int, tuple[list[int], list[int]]]:
    """Block -> its units, and which of the `count` tokens each moves to."""
    if count < 1:
        raise ValueError(f"neurons cannot move to {count} tokens")
    owners = iter((np.random.default_rng(seed).permutation(len(neurons)) % count).tolist())
    by_block = units_by_block(backbone, neurons)
    return {block: (units, list(islice(owners, len(units)))) for block, units in by_block.items()}


def units_by_block(backbone: Backbone, neurons: Neurons) -> dict[int, list[int]]:
    """Block -> its units, in the order given."""
    units = defaultdict(list)
    for block, unit, *_ in neurons:
        hidden = backbone.hidden(block)
        if block < 0 or not 0 <= unit < hidden:
            raise ValueError(f"no neuron ({block}, {unit}) in '{backbone.name}'")
        if unit in units[block]:
            raise ValueError(f"neuron ({block}, {unit}) is given twice")
        units[block].append(unit)
    return units
