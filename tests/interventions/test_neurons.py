"""Test-time registers and ablated neurons against the forward pass of tests/zoo.py, in float64,
without a hook."""

import inspect
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import torch
from zoo import assert_by_hand, bounds, entering, hooks, looks, models, pixels

from helpers.capture import TokenNorms, capture, matched_neurons
from helpers.images import load_images
from helpers.interventions import (
    ablated_neurons,
    appended_registers,
    averaged_neurons,
    dropped_patches,
    neuron_conditions,
    neurons_off_at,
    random_neurons,
    shift_conditions,
)
from helpers.interventions import neurons as module
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone

KINDS = ("small", "registers", "swiglu", "pooled", "open_clip")
every = models(*KINDS)
one_each = models("registers", "swiglu", "open_clip")
vit = models("small")
NEURONS = [(2, 7), (0, 3), (2, 50), (1, 0), (0, 59)]


def shares(neurons, count, got, start):
    """neuron -> number of its appended token, read from the `got` neurons (block -> (token,
    hidden)) of one image."""
    owners = {}
    for block, unit in neurons:
        nonzero = got[block][start : start + count, unit].nonzero().flatten().tolist()
        assert len(nonzero) == 1
        owners[block, unit] = nonzero[0]
    return owners


def seen_neurons(backbone, x):
    """image -> block -> neurons (token, hidden), as the model computes them."""
    seen = [[] for _ in range(backbone.depth)]
    with ExitStack() as stack, torch.inference_mode():
        for block in range(backbone.depth):
            stack.enter_context(backbone.watch("neurons", block, seen[block].append))
        backbone(x)
    return [[seen[block][0][i] for block in range(backbone.depth)] for i in range(len(x))]


def move_by_hand(start, patches, ours, owners, clear, shared=False):
    """A `change` of zoo.forward: `ours` are the positions of the appended tokens."""

    def change(block, hidden):
        units = {unit: owner for (where, unit), owner in owners.items() if where == block}
        for rows in hidden if units else ():
            others = [t for t in range(len(rows)) if t not in ours]
            cleared = range(start, start + patches) if clear == "patches" else others
            largest = {u: max((rows[t, u].item() for t in others), key=abs) for u in units}
            if shared:
                largest = dict.fromkeys(units, max(largest.values(), key=abs))
            for unit, owner in units.items():
                for t in [*ours, *cleared]:
                    rows[t, unit] = 0
                rows[ours[owner], unit] = largest[unit]
        return hidden

    return change


@every
@pytest.mark.parametrize(
    "count, init, clear, shared",
    [
        (1, "zeros", "patches", False),
        (3, "normal", "patches", False),
        (2, "mean", "all", False),
        (2, "zeros", "patches", True),
    ],
)
def test_test_time_registers(backbone, count, init, clear, shared):
    x, (start, end), layout = pixels(backbone), bounds(backbone), backbone.layout
    plain = looks(backbone, x)
    how = {"count": count, "init": init, "clear": clear, "shared": shared}
    with module.test_time_registers(backbone, NEURONS, **how) as same:
        assert same is backbone and backbone.layout == layout.with_appended(count)
        entered, neurons = entering(backbone, x), seen_neurons(backbone, x)
        got = looks(backbone, x, batch_size=2)
    owners = shares(NEURONS, count, neurons[0], end)
    sizes = sorted(np.bincount([*owners.values()], minlength=count))
    assert sizes == {1: [5], 3: [1, 2, 2], 2: [2, 3]}[count]
    change = move_by_hand(start, end - start, range(end, end + count), owners, clear, shared)
    assert_by_hand(backbone, got, entered, count, change=change)
    assert (got["output"] - plain["output"]).abs().max() > 1e-3
    if backbone.name == "swiglu":  # with its sign
        values = (
            own[block][end + owner, unit]
            for own in neurons
            for (block, unit), owner in owners.items()
        )
        assert min(values) < -0.5
    assert backbone.layout is layout and hooks(backbone.model) == 0


PLACES = [5, 0, 3]
# What each makes of one neuron (token) at the patches, by hand.
CHANGES = {
    ablated_neurons: lambda values, patches: values.fill_(0),
    averaged_neurons: lambda values, patches: patches.fill_(sum(patches.tolist()) / len(patches)),
    partial(neurons_off_at, positions=PLACES): lambda values, patches: patches.put_(
        torch.tensor(PLACES), torch.zeros(3).double()
    ),
}


@models(*KINDS, "dinov3-reg4", "rope-mixed")
@pytest.mark.parametrize("change", CHANGES, ids=["ablated", "averaged", "off at places"])
def test_changed_neurons(backbone, change):
    x, (start, end), layout = pixels(backbone), bounds(backbone), backbone.layout

    def by_hand(block, hidden):
        for rows in hidden:
            for unit in [unit for where, unit in NEURONS if where == block]:
                CHANGES[change](rows[:, unit], rows[start:end, unit])
        return hidden

    with change(backbone, NEURONS) as same:
        assert same is backbone and backbone.layout is layout
        got = looks(backbone, x, batch_size=2)
    assert_by_hand(backbone, got, entering(backbone, x), change=by_hand)
    assert (looks(backbone, x)["output"] - got["output"]).abs().max() > 1e-4
    assert hooks(backbone.model) == 0


@every
@pytest.mark.parametrize("order", ["inside", "outside"])
def test_nesting(backbone, order):
    """Among plain appended tokens and with patches removed, in any order: the neurons go to their
    own tokens."""
    x, (start, _), layout = pixels(backbone), bounds(backbone), backbone.layout
    drop = partial(dropped_patches, backbone, 0.4)
    append = partial(appended_registers, backbone, 2, "normal")
    move = partial(module.test_time_registers, backbone, NEURONS, 2)
    changes, found = [drop, append, move] if order == "inside" else [move, append, drop], []
    for look in (entering, seen_neurons, looks):
        with ExitStack() as stack:
            for intervention in changes:
                stack.enter_context(intervention())
            assert backbone.layout == layout.with_kept(10).with_appended(4)
            found.append(look(backbone, x))
    entered, neurons, got = found
    first = start + 10 + (2 if order == "inside" else 0)
    owners = shares(NEURONS, 2, neurons[0], first)
    change = move_by_hand(start, 10, [first, first + 1], owners, "patches")
    assert_by_hand(backbone, got, entered, 4, change=change)
    assert backbone.layout is layout and hooks(backbone.model) == 0


@every
def test_nothing_to_move(backbone):
    """Without neurons there are only the tokens; what ablates nothing changes nothing."""
    x = pixels(backbone)
    with appended_registers(backbone, 2, "normal", 3):
        appended = looks(backbone, x)
    with module.test_time_registers(backbone, [], 2, "normal", seed=3):
        assert all(torch.equal(value, appended[key]) for key, value in looks(backbone, x).items())
    plain = looks(backbone, x)
    with ablated_neurons(backbone, []):
        assert all(torch.equal(value, plain[key]) for key, value in looks(backbone, x).items())


@vit
def test_shares(backbone):
    """They are drawn: the same for one seed, others for another; from one token to a token a
    neuron, and more."""
    neurons = [(0, unit) for unit in range(12)]

    def drawn(count, seed=0):
        with module.test_time_registers(backbone, neurons, count, seed=seed):
            return shares(neurons, count, seen_neurons(backbone, pixels(backbone, 1))[0], 17)

    assert drawn(3) == drawn(3) != drawn(3, 1) and set(drawn(1).values()) == {0}
    assert sorted(np.bincount(list(drawn(5).values()))) == [2, 2, 2, 3, 3]
    assert sorted(drawn(12).values()) == list(range(12)) and max(drawn(20).values()) < 12


@one_each
def test_random_neurons(backbone):
    found = random_neurons(backbone, NEURONS)
    assert sorted(block for block, _ in found) == sorted(block for block, _ in NEURONS)
    assert len({*found}) == 5 and not {*found} & {*NEURONS}
    assert found == random_neurons(backbone, NEURONS) != random_neurons(backbone, NEURONS, 1)
    hidden = backbone.neurons(0).in_features
    half = [(1, unit) for unit in range(0, hidden, 2)]  # all others, then
    assert sorted(random_neurons(backbone, half)) == [(1, unit) for unit in range(1, hidden, 2)]
    drawn = {unit for seed in range(800) for _, unit in random_neurons(backbone, NEURONS[:1], seed)}
    assert drawn <= set(range(hidden)) - {7} and len(drawn) > 0.9 * hidden


# Controls
# --------------------------------------------------------------------------------------------------


def largest(backbone, x):
    """image -> largest norm, of the patches and of the appended tokens, over the median patch norm,
    after the last block."""
    norms = capture(backbone, x, [TokenNorms(-1)])["token_norms"]
    patches = backbone.layout.patch_tokens(norms, dim=-1)
    appended, median = backbone.layout.appended_tokens(norms, dim=-1), patches.median()
    return patches.amax(-1) / median, appended.amax(-1) / median if appended.numel() else None


@pytest.fixture(scope="module")
def scenes():
    backbone, images = load_backbone("control-clean"), load_images("scenes", 6, 0)
    return torch.stack([backbone.preprocess(image) for image in images])


@pytest.mark.parametrize("name", ["control-content", "control-position"])
def test_conditions_of_a_test_time_study(scenes, name):
    """Of a planted neuron: only moved it makes the appended token high; where it is left, the
    patches are."""
    backbone, neurons = load_backbone(name), [(PLANTED_BLOCK[name], REGISTER_NEURON)]
    matched = {name: matched_neurons(backbone, neurons, scenes)}
    conditions = neuron_conditions({name: neurons}, count=2, matched=matched)
    before, seen = largest(backbone, scenes)[0] > 6, {}
    assert before.any()
    for condition, change in conditions.items():
        with change(backbone) as same:
            assert same is backbone
            patches, appended = largest(backbone, scenes)
            as_before = torch.equal(patches > 6, before)
            if appended is not None and condition == "moved":
                assert torch.equal(appended > 6, before)
            high = appended is not None and appended.max().item() > 6
            assert as_before or patches.max() < 1.2
            seen[condition] = as_before, high, backbone.layout.appended
    assert seen == {
        "moved": (False, True, 2),
        "empty token": (True, False, 2),
        "random neurons": (True, False, 2),
        "matched neurons": (True, False, 2),
        "set to zero": (False, False, 0),
        "set to mean": (False, False, 0),
    }
    assert backbone.layout.appended == 0 and hooks(backbone.model) == 0
    assert [*seen] == [*conditions] and len(neuron_conditions({})) == 5
    assert [change(load_backbone("control-clean")) for change in conditions.values()] == [None] * 6


def test_conditions_of_a_shift(scenes, monkeypatch):
    """What each appends, that it clears the patches or leaves them, and that it is what it says."""
    name = "control-position"
    backbone, own = load_backbone(name), [(PLANTED_BLOCK[name], REGISTER_NEURON)]
    high, appended, of, given = {}, {}, {}, []
    for kind in (module.test_time_registers, module.ablated_neurons):
        signature = inspect.signature(kind)

        def told(*args, kind=kind, signature=signature, **options):
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            given.append(bound.arguments)
            return kind(*args, **options)

        monkeypatch.setattr(module, kind.__name__, told)
    conditions = shift_conditions({name: own}, {name: [*own, (4, 9)]}, seed=2)
    for condition, change in conditions.items():
        with change(backbone):
            high[condition] = bool((largest(backbone, scenes)[0] > 6).any())
            appended[condition] = backbone.layout.appended
            of[condition] = given[-1]
    draws = [f"random_{draw}" for draw in range(5)]
    shares = [f"tokens_{count}" for count in range(1, 6)]
    variants = ["cls_cleared", "normal", "mean", *shares, "shared"]
    assert [*conditions] == ["moved", "zeroed", *draws, *variants]
    assert [condition for condition, some in high.items() if some] == draws
    assert appended == dict.fromkeys(conditions, 1) | dict.fromkeys(["zeroed", *draws], 0) | {
        f"tokens_{count}": count for count in range(1, 6)
    }
    drawn = [of[draw]["neurons"] for draw in draws]
    assert len({units[0] for units in drawn}) == 5 and all(unit[0][0] == 1 for unit in drawn)
    assert of["cls_cleared"]["clear"] == "all" != of["moved"]["clear"] == of["shared"]["clear"]
    assert [condition for condition in variants if of[condition]["shared"]] == ["shared"]
    assert [of[x]["init"] for x in ("moved", "normal", "mean")] == ["zeros", "normal", "mean"]
    assert {len(of[x]["neurons"]) for x in (*shares, "shared")} == {2}
    assert {len(of[x]["neurons"]) for x in ("moved", "zeroed", "cls_cleared", "mean")} == {1}
    clean = load_backbone("control-clean")
    assert {change(clean) for change in conditions.values()} == {None}
