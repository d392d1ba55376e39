"""Units that write as much as given neurons: against norms added up by hand, and beside planted
neurons."""

from math import log

import pytest
import torch
from zoo import build, embedded, forward, models, pixels

from helpers.capture import (
    PatchNorms,
    capture,
    find_register_neurons,
    matched_neurons,
    matched_neurons_of,
)
from helpers.capture.register_neurons import nearest_units
from helpers.images import load_images
from helpers.interventions import neurons as registers
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone

RULE = "percentile:80"  # outliers of a model with random weights
NEURONS = [(2, 7), (0, 3), (2, 50)]


def written_by_hand(backbone, x, block, where):
    """(unit,): mean L2 norm of what each writes at the outliers of the images that have one, or at
    all patches."""
    [*blocks] = forward(backbone, embedded(backbone, x)[1])
    start, count = backbone.layout.prefix, backbone.layout.patches
    norms = blocks[-1]["residual"][:, start : start + count].norm(dim=-1)
    high = norms > torch.quantile(norms.flatten(), 0.8)
    layer = backbone.neurons(block).weight.double()
    rows = []
    for image in range(len(x)):
        tokens = [t for t in range(count) if high[image, t] or where == "patches"]
        writes = [
            (blocks[block]["neurons"][image, start + t][:, None] * layer.T).norm(
                dim=1
            )  # a row a unit
            for t in tokens
        ]
        if writes:
            rows.append(torch.stack(writes).mean(0))
    return torch.stack(rows).mean(0)


@models("small", "registers", "swiglu", "open_clip")
@pytest.mark.parametrize("where", ["outliers", "patches"])
def test_what_units_write(backbone, where):
    x = pixels(backbone, 4)
    found = matched_neurons(backbone, NEURONS, x, where=where, rule=RULE, batch_size=3)
    for (block, unit), other in zip(NEURONS, found, strict=True):
        by_hand = written_by_hand(backbone, x, block, where)
        assert other.block == block and other[:2] not in NEURONS
        assert other.wanted == pytest.approx(by_hand[unit].item(), rel=1e-4)
        assert other.written == pytest.approx(by_hand[other.unit].item(), rel=1e-4)
        rest = [i for i in range(len(by_hand)) if (block, i) not in NEURONS]
        distance = abs(log(other.written / other.wanted)) - 0.003
        nearer = sum(abs(log(by_hand[i] / by_hand[unit])) < distance for i in rest)
        assert nearer < 6  # of the five nearest, and one that was taken before
    assert len({other[:2] for other in found}) == len(NEURONS)
    assert found == matched_neurons(backbone, NEURONS, x, where=where, rule=RULE, batch_size=3)


def test_among_later_blocks():
    """The nearest of these is at least as near, and no unit of an earlier block is drawn."""
    backbone, blocks = build("small"), set()
    x = pixels(backbone, 3)
    for seed in range(10):
        found = matched_neurons(backbone, NEURONS, x, among="later", rule=RULE, seed=seed)
        for (block, _), other in zip(NEURONS, found, strict=True):
            by_hand = written_by_hand(backbone, x, other.block, "outliers")
            assert other.written == pytest.approx(by_hand[other.unit].item(), rel=1e-4)
            assert other[:2] not in NEURONS and other.block >= block
            blocks.add((block, other.block))
    assert {(0, 1), (2, 2)} <= blocks
    near = matched_neurons(backbone, NEURONS[1:2], x, nearest=1, rule=RULE)
    nearer = matched_neurons(backbone, NEURONS[1:2], x, nearest=1, among="later", rule=RULE)
    off = [abs(log(other.written / other.wanted)) for [other] in (near, nearer)]
    assert off[1] <= off[0] + 0.003 and nearer[0].wanted == near[0].wanted
    early = {
        seed: matched_neurons(backbone, [(0, 3)], x, among="later", layer=1, rule=RULE, seed=seed)
        for seed in range(9)
    }
    assert {other.block for [other] in early.values()} <= {0, 1}


def test_a_seed_draws_among_the_nearest():
    backbone = build("small")
    x, drawn = pixels(backbone, 3), set()
    for seed in range(30):
        drawn |= {
            other.unit
            for other in matched_neurons(backbone, NEURONS[:1], x, rule=RULE, nearest=3, seed=seed)
        }
    one = matched_neurons(backbone, NEURONS[:1], x, rule=RULE, nearest=1)[0]
    assert len(drawn) == 3 and one.unit in drawn


def test_nearest_units():
    written = torch.tensor([5.0, 1.0, 10.0, 9.0, 10.001, 30.0, 0.0])
    assert nearest_units(written, 10.0, {2}, 3) == [4, 3, 0]
    assert nearest_units(written, 10.0, set(), 2) == [2, 4]  # equal: the first
    assert nearest_units(written.flip(0), 10.0, set(), 2) == [2, 4]
    assert nearest_units(written, 10.0, {2, 4}, 99) == [
        3,
        0,
        5,
        1,
        6,
    ]  # by ratio: 30 is nearer than 1
    assert nearest_units(written, 1e6, set(), 2) == [5, 2]  # the largest, however far
    assert nearest_units(written, 0.0, {0}, 2) == [1, 2]


@pytest.mark.parametrize("name", ["control-content", "control-position"])
@pytest.mark.parametrize("among", ["block", "later"])
@pytest.mark.parametrize("seed", range(3))
def test_no_matched_unit_takes_planted_outliers_away(name, among, seed):
    """Moved, the planted neuron does; units that write as much as others of its block can do
    not."""
    backbone, images = load_backbone(name), load_images("scenes", 8, 0)
    planted = [(PLANTED_BLOCK[name], REGISTER_NEURON)]
    assert find_register_neurons(backbone, images, top_k=1)[0][:2] == planted[0]
    before = capture(backbone, images, [PatchNorms(-1)])["patch_norms"]
    outlier, peaks = before > 3 * before.median(), {}
    matched = matched_neurons(backbone, planted, images, among=among, seed=seed)
    assert 0.1 < matched[0].written / matched[0].wanted < 10  # no idle unit, as a random one may be
    for kind, moved in {"planted": planted, "matched": matched}.items():
        with registers.test_time_registers(backbone, moved):
            peaks[kind] = capture(backbone, images, [PatchNorms(-1)])["patch_norms"]
    assert not (peaks["planted"] > 3 * before.median()).any()
    assert torch.equal(peaks["matched"] > 3 * before.median(), outlier) and outlier.any()


def test_random_units_of_a_control_are_idle_where_matched_ones_are_not():
    backbone, images = load_backbone("control-position"), load_images("scenes", 4, 0)
    planted = [(PLANTED_BLOCK["control-position"], REGISTER_NEURON)]
    idle = (backbone.neurons(planted[0][0]).weight == 0).all(0)
    drawn = [registers.random_neurons(backbone, planted, seed)[0][1] for seed in range(20)]
    assert idle[drawn].float().mean() > 0.5
    assert not any(
        idle[matched_neurons(backbone, planted, images, seed=seed)[0].unit] for seed in range(20)
    )


def test_of_several_models():
    images = load_images("scenes", 8, 0)
    neurons = {
        name: [(block, REGISTER_NEURON)]
        for name, block in PLANTED_BLOCK.items()
        if name != "control-registers"
    }
    found = matched_neurons_of(neurons, images, seed=3)
    assert found == {
        name: matched_neurons(load_backbone(name), own, images, seed=3)
        for name, own in neurons.items()
    }
    assert matched_neurons_of({}, images) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"where": "corners"}, "where is 'corners'; choose one of outliers, patches"),
        ({"among": "layer"}, "among is 'layer'; choose one of block, later"),
        ({"nearest": 0}, "nearest is 0; draw from at least one unit"),
        ({"rule": "fixed:1e9"}, "exceeds 1e.09"),
        ({"neurons": [(9, 0)]}, "no block 9"),
        ({"neurons": [(1, 0), (1, 0)]}, "given twice"),
        (
            {"neurons": [(0, unit) for unit in range(97)]},
            "block 0 of 'small' has too few other neurons; give fewer",
        ),
    ],
)
def test_what_is_refused(change, message):
    backbone = build("small")
    arguments = {"neurons": NEURONS, "rule": RULE} | change
    with pytest.raises(ValueError, match=message):
        matched_neurons(backbone, images=pixels(backbone, 2), **arguments)
