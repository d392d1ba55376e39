"""Interventions against the forward pass of tests/zoo.py: the tokens that enter block 0, in
float64, without a hook."""

import copy
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import torch
from zoo import CHANGES as ALL_CHANGES
from zoo import (
    NEURONS,
    PLACES,
    assert_near,
    bounds,
    entering,
    finished,
    forward,
    hooks,
    models,
    pixels,
    stack,
)

from helpers.capture import (
    AttentionEntropy,
    ClsAttention,
    FinalTokens,
    OnPatches,
    Output,
    PatchNorms,
    Pooled,
    TokenNorms,
    capture,
)
from helpers.interventions import (
    appended_registers,
    dropped_patches,
    moved_positions,
    nested,
    neurons_off_at,
    removed_patches,
    replaced_tokens,
    set_channels,
)
from helpers.interventions import test_time_registers as moved_neurons
from helpers.models import load_backbone

every = models("small", "small-distilled", "registers", "pooled", "open_clip")
libraries = models("small", "open_clip")
vit = models("small")
CHANGES = [
    *ALL_CHANGES,
    (neurons_off_at, {"neurons": NEURONS, "positions": [5, 0, 3]}),
    (removed_patches, {"positions": [5, 0, 3]}),
]


def kept(plain, entered):
    """Where among the rows of `plain` each row of `entered` stands."""
    same = (plain[None] == entered[:, None]).all(-1)
    assert (same.sum(1) == 1).all()
    return same.int().argmax(1)


def by_hand(backbone, tokens, start, patches, appended):
    """What reducers must return if `tokens` (image, token, width) go into block 0."""
    blocks = forward(backbone, tokens)
    norms, attention = stack(blocks, "residual").norm(dim=-1), stack(blocks, "attention")
    final, _, output = finished(backbone, blocks[-1]["residual"], appended)
    entropy = torch.special.entr(attention.narrow(-2, start, patches)).sum(-1).mean(dim=(2, 3))
    expected = {"token_norms": norms, "patch_norms": norms.narrow(2, start, patches)}
    expected |= {"attention_entropy": entropy, "final_tokens": final, "output": output}
    if backbone.name != "pooled":
        expected |= {"cls_attention": attention.select(-2, 0).mean(2), "cls": final.select(1, 0)}
        expected["patch_mean"] = final.narrow(1, start, patches).mean(1)
        registers = 4 if start == 5 else 0
        trained = final.narrow(1, start - registers, registers)
        more = final.narrow(1, start + patches, appended)
        expected["registers"] = torch.cat([trained, more], dim=1)
    return expected


def seen(backbone, x, **options):
    reducers = [TokenNorms(), PatchNorms(), AttentionEntropy(), FinalTokens(norm=True), Output()]
    of_cls = [] if backbone.name == "pooled" else [Pooled(), ClsAttention("all")]
    return capture(backbone, x, reducers + of_cls, **options)


def assert_alike(got, expected):
    assert got.keys() == expected.keys()
    for key, value in got.items():
        assert_near(value, expected[key])


@every
@pytest.mark.parametrize("init", ["zeros", "mean", "normal"])
def test_appended_registers(backbone, init):
    x, layout, (start, end) = pixels(backbone), backbone.layout, bounds(backbone)
    plain = entering(backbone, x)
    with appended_registers(backbone, 2, init) as same:
        assert same is backbone and backbone.layout == layout.with_appended(2)
        entered, got = entering(backbone, x), seen(backbone, x, batch_size=2)
    assert torch.equal(entered[:, :end], plain) and entered.shape[1] == end + 2
    registers = entered[:, end:]
    if init == "normal":
        assert torch.equal(registers, registers[:1].expand(3, -1, -1))
        assert not torch.equal(registers[0, 0], registers[0, 1])
    else:
        mean = plain[:, start:end].mean(1, keepdim=True)
        expected = torch.zeros_like(mean) if init == "zeros" else mean
        torch.testing.assert_close(registers, expected.expand(3, 2, -1))
    assert_alike(got, by_hand(backbone, entered, start, end - start, 2))


@vit
def test_draws_of_normal_registers(backbone):
    """N(0, 0.02^2), one draw a register: a larger count keeps the draws of a smaller one, another
    seed has others."""
    x, end = pixels(backbone, 1), bounds(backbone)[1]

    def draws(count, seed):
        with appended_registers(backbone, count, "normal", seed):
            return entering(backbone, x)[0, end:]

    many = draws(400, 0)
    numbers = many.double().flatten().numpy() / 0.02  # 19,200: four standard errors
    assert abs(numbers.mean()) < 0.03 and abs(numbers.std() - 1) < 0.02
    assert abs((numbers**4).mean() - 3) < 0.15
    assert torch.equal(draws(3, 0), many[:3]) and not torch.equal(draws(3, 1), many[:3])
    with appended_registers(backbone, 3, "normal"):
        assert torch.equal(entering(backbone, x)[0, end:], many[:3]), "seed 0 unless given"
    with appended_registers(backbone, 1000):
        assert backbone.layout.appended == 1000


@every
@pytest.mark.parametrize("rate", [0.3, 0.75])
def test_removed_patches(backbone, rate):
    x, layout, (start, end) = pixels(backbone), backbone.layout, bounds(backbone)
    plain, count = entering(backbone, x), round((1 - rate) * (end - start))
    with dropped_patches(backbone, rate) as same:
        assert same is backbone and backbone.layout == layout.with_kept(count)
        entered = entering(backbone, x)
    with dropped_patches(backbone, rate):
        got = seen(backbone, x, batch_size=2)
    assert torch.equal(entered[:, :start], plain[:, :start]) and entered.shape[1] == start + count
    indices = [kept(plain[i, start:end], entered[i, start:]) for i in range(3)]
    assert all((row.diff() > 0).all() for row in indices)  # in their order
    assert not all(torch.equal(row, indices[0]) for row in indices)
    rows = [torch.cat([torch.arange(start), start + row]) for row in indices]
    subset = torch.stack([one[row] for one, row in zip(plain, rows, strict=True)])
    assert_alike(got, by_hand(backbone, subset, start, count, 0))


@every
def test_zeroed_patches(backbone):
    """The patches that "remove" would take, as zero tokens in their place."""
    x, layout, (start, end) = pixels(backbone), backbone.layout, bounds(backbone)
    plain = entering(backbone, x)
    with dropped_patches(backbone, 0.5):
        removed = entering(backbone, x)
    with dropped_patches(backbone, 0.5, "zero"):
        assert backbone.layout == layout
        entered = entering(backbone, x)
    with dropped_patches(backbone, 0.5, "zero"):
        got = seen(backbone, x, batch_size=2)
    zeroed = plain.clone()
    for i in range(3):
        left = kept(plain[i, start:end], removed[i, start:])
        zeroed[i, [p for p in range(start, end) if p - start not in left]] = 0
    assert torch.equal(entered, zeroed)
    assert (entered == 0).all(-1).sum().item() == 3 * (end - start) // 2
    assert_alike(got, by_hand(backbone, zeroed, start, end - start, 0))


@every
@pytest.mark.parametrize("mode", ["remove", "zero"])
def test_nesting(backbone, mode):
    """Drop, then append, or the other way about: the same tokens, to the bit. Then both twice."""
    x, layout, (start, end) = pixels(backbone), backbone.layout, bounds(backbone)
    count = round(0.6 * (end - start)) if mode == "remove" else end - start
    expected = (layout.with_kept(count) if mode == "remove" else layout).with_appended(2)
    drop = partial(dropped_patches, backbone, 0.4, mode)
    append = partial(appended_registers, backbone, 2, "normal")
    found = []
    for order in ((drop, append), (append, drop)):
        for look in (entering, seen):
            with ExitStack() as stack:
                for intervention in order:
                    stack.enter_context(intervention())
                assert backbone.layout == expected
                found.append(look(backbone, x))
    entered, got, other_entered, other_got = found
    assert torch.equal(entered, other_entered)
    assert all(torch.equal(got[key], other_got[key]) for key in got)
    assert_alike(got, by_hand(backbone, entered, start, count, 2))
    assert backbone.layout is layout and hooks(backbone.model) == 0
    with append(), drop(), appended_registers(backbone, 1, "mean"), dropped_patches(backbone, 0.5):
        half = round(0.5 * count)
        assert backbone.layout == layout.with_kept(half).with_appended(3)
        twice = entering(backbone, x)
    # The outer registers.
    assert torch.equal(twice[:, start + half : -1], entered[:, start + count :])
    torch.testing.assert_close(twice[:, -1], entered[:, start : start + count].mean(1))
    with append(), drop(), appended_registers(backbone, 1, "mean"), dropped_patches(backbone, 0.5):
        got = seen(backbone, x)
    assert_alike(got, by_hand(backbone, twice, start, half, 3))


@every
def test_moved_positions(backbone):
    """As a model whose position embedding was rewritten, and nothing is left behind."""
    x, (start, end) = pixels(backbone), bounds(backbone)
    sources = torch.arange(end - start).roll(3)
    sources[[0, 2]] = -1
    edited = copy.deepcopy(backbone)
    model = edited.model
    embedding = model.positional_embedding if backbone.name == "open_clip" else model.pos_embed[0]
    patches = embedding[len(embedding) - len(sources) :]
    patches.copy_(torch.where(sources[:, None] < 0, 0, patches[sources]))
    expected, before = entering(edited, x), entering(backbone, x)
    for given in (sources, sources.tolist()):
        with moved_positions(backbone, given):
            moved = entering(backbone, x)
        assert (moved - expected).abs().max() < 1e-5 * before.abs().max()
    # Every patch has another position.
    assert (moved - before)[:, start:end].abs().amax((0, 2)).min() > 1e-3
    assert torch.equal(entering(backbone, x), before)


@vit
def test_an_intervention_says_what_it_was_given(backbone):
    with appended_registers(backbone, 2), dropped_patches(backbone, 0.5):
        assert backbone.interventions == (
            ("appended_registers", {"count": 2, "init": "zeros", "seed": 0}),
            ("dropped_patches", {"rate": 0.5, "mode": "remove", "seed": 0}),
        )
    assert backbone.interventions == ()


@libraries
def test_nothing_is_nothing(backbone):
    x, layout, before = pixels(backbone), backbone.layout, seen(backbone, pixels(backbone))
    nothing = [appended_registers(backbone, 0, init) for init in ("zeros", "mean", "normal")]
    nothing += [dropped_patches(backbone, 0.0, mode) for mode in ("remove", "zero")]
    for intervention in [*nothing, moved_positions(backbone, range(layout.patches))]:
        with intervention:
            assert backbone.layout == layout
            during = seen(backbone, x)
        assert all(torch.equal(during[key], before[key]) for key in before)


@libraries
@pytest.mark.parametrize("change, arguments", CHANGES, ids=lambda x: getattr(x, "__name__", ""))
def test_all_is_restored(backbone, change, arguments):
    """Outputs to the bit, layout, hooks and the global random state: afterwards, and after an error
    inside."""
    if change is moved_positions:
        arguments = {"sources": range(backbone.layout.patches - 1, -1, -1)}
    x, layout, before = pixels(backbone), backbone.layout, seen(backbone, pixels(backbone))
    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    with change(backbone, **arguments) as same:
        assert same is backbone
        # Random weights have no massive activation to set; `test_channels` plants some.
        changed = not torch.equal(seen(backbone, x)["output"], before["output"])
        assert changed is (change is not set_channels)
    with pytest.raises(ZeroDivisionError), change(backbone, **arguments):
        entering(backbone, x)
        _ = 1 / 0
    assert backbone.layout is layout and hooks(backbone.model) == 0 and not backbone.interventions
    assert all(torch.equal(value, before[key]) for key, value in seen(backbone, x).items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()


@vit
def test_which_patches_are_dropped(backbone):
    """The k-th image since entry has the k-th choice, at any rate, with or without registers;
    another seed has another."""
    x, (start, end) = pixels(backbone, 1).expand(6, -1, -1, -1), bounds(backbone)

    def dropped(rate, seed=0, batches=(6,), registers=0):
        with appended_registers(backbone, registers), dropped_patches(backbone, rate, "zero", seed):
            tokens = torch.cat([entering(backbone, part) for part in x.split(batches)])
        return (tokens[:, start:end] == 0).all(-1)

    half = dropped(0.5)
    assert (half.sum(1) == 8).all() and len(half.unique(dim=0)) == 6
    assert torch.equal(half, dropped(0.5, batches=(1, 3, 2)))
    assert torch.equal(half, dropped(0.5, registers=2))
    assert not torch.equal(half, dropped(0.5, seed=1))
    assert (half <= dropped(0.75)).all()
    assert dropped(0.999).sum(1).tolist() == [15] * 6  # one patch is always left
    assert dropped(0.01).sum().item() == 0  # round(0.99 x 16) = 16


@models("registers", "swiglu", "open_clip")
def test_mixed_precision(backbone):
    x, found = pixels(backbone), []
    for dtype in (torch.float32, torch.bfloat16):
        with moved_neurons(backbone, NEURONS), dropped_patches(backbone, 0.5):
            found.append(capture(backbone, x, [PatchNorms()], dtype=dtype)["patch_norms"])
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=0.1, atol=0)


@vit
@pytest.mark.parametrize(
    "change, arguments",
    [
        (appended_registers, {"count": 1, "init": "ones"}),
        (dropped_patches, {"rate": 1.0}),
        (dropped_patches, {"rate": float("nan")}),
        (dropped_patches, {"rate": 0.5, "mode": "mask"}),
        (set_channels, {"block": -1, "channels": [0], "values": [0.0]}),
        (set_channels, {"block": 0, "channels": [0], "values": [0.0], "where": "all"}),
        (moved_neurons, {"neurons": NEURONS, "count": 0}),
        (moved_neurons, {"neurons": NEURONS, "clear": "cls"}),
        (moved_neurons, {"neurons": [(-1, 5)]}),
        (moved_neurons, {"neurons": [(1, -1)]}),
        (moved_neurons, {"neurons": [(1, 2), (1, 2)]}),
        (removed_patches, {"positions": [-1]}),
        (neurons_off_at, {"neurons": NEURONS, "positions": [16]}),
        (replaced_tokens, {"places": PLACES, "tokens": torch.zeros(1, 1, 1, 1), "blocks": [-1]}),
        (nested(partial(dropped_patches, rate=0.5), partial(removed_patches, positions=[0])), {}),
    ],
)
def test_what_would_give_other_numbers_in_silence_is_refused(backbone, change, arguments):
    layout = backbone.layout
    with pytest.raises(ValueError), change(backbone, **arguments):
        pass
    assert backbone.layout is layout and hooks(backbone.model) == 0


@vit
def test_one_patch_left_is_no_grid(backbone):
    x, grid = pixels(backbone), OnPatches("a", abs, at=-1)
    with dropped_patches(backbone, 0.999), pytest.raises(ValueError):
        capture(backbone, x, [grid])
    with dropped_patches(backbone, 0.01):  # all 16 are left
        assert capture(backbone, x, [grid])["a"].shape[1:3] == (4, 4)


def test_nested_changes_are_those_entered_one_inside_another():
    backbone, counts = load_backbone("control-clean", image_size=64), [2, 3]
    changes = [partial(appended_registers, count=count, init="normal") for count in counts]
    drop, x = partial(dropped_patches, rate=0.4, seed=5), pixels(backbone)
    with changes[0](backbone), drop(backbone), changes[1](backbone):
        expected = backbone.layout, backbone.interventions, seen(backbone, x)
    condition = nested(changes[0], drop, changes[1])
    for _ in range(2):  # it can be entered again
        with condition(backbone) as same:
            found = backbone.layout, backbone.interventions, seen(backbone, x)
        assert same is backbone and found[:2] == expected[:2] and found[0].appended == 5
        assert all(torch.equal(found[2][key], value) for key, value in expected[2].items())
    with nested()(backbone):
        assert backbone.layout.appended == 0 and not backbone.interventions
