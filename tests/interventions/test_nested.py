"""Several interventions as one, against the same ones entered by hand."""

from functools import partial

import torch

from helpers.capture import Output, PatchNorms, TokenNorms, capture, capture_each
from helpers.interventions import appended_registers, dropped_patches, nested
from helpers.models import load_backbone

append = partial(appended_registers, count=2, init="normal", seed=3)
drop = partial(dropped_patches, rate=0.4, mode="remove", seed=5)


def of(backbone, x):
    return (
        backbone.layout,
        backbone.interventions,
        capture(backbone, x, [Output(), TokenNorms(), PatchNorms()]),
    )


def test_nested_is_one_with_inside_another():
    backbone = load_backbone("control-content", image_size=64)
    x = torch.randn(3, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))
    before = of(backbone, x)
    with append(backbone), drop(backbone):
        by_hand = of(backbone, x)
    with nested(append, drop)(backbone) as changed:
        assert changed is backbone
        got = of(backbone, x)
    assert (
        got[:2] == by_hand[:2]
        and got[0].appended == 2
        and [name for name, _ in got[1]] == [append.func.__name__, drop.func.__name__]
    )
    assert all(torch.equal(got[2][key], by_hand[2][key]) for key in by_hand[2])
    assert not torch.equal(got[2]["output"], before[2]["output"])
    after = of(backbone, x)
    assert after[:2] == before[:2] and all(
        torch.equal(after[2][key], before[2][key]) for key in before[2]
    )


def test_nothing_nested_changes_nothing_and_a_condition_can_be_entered_again():
    backbone = load_backbone("control-clean", image_size=64)
    for condition, tokens in ((nested(), 0), (nested(append), 2), (nested(append, append), 4)):
        for _ in range(2):
            with condition(backbone):
                assert backbone.layout.appended == tokens
        assert backbone.layout.appended == 0


def test_nested_is_a_condition_of_a_pass():
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    captured, _ = capture_each(
        ["control-clean"], x, [PatchNorms(-1)], intervention=nested(append, drop)
    )
    layout = captured["control-clean"].layout
    assert layout.appended == 2 and captured["control-clean"]["patch_norms"].shape == (
        2,
        layout.kept,
    )
