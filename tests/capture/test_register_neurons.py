"""The search for register neurons, and for units of similar output, against a search by hand, in
float64, image by image; and several models, one after another."""

from math import log

import numpy as np
import pytest
import torch
from zoo import bounds, build, embedded, entering, forward, hooks, models, pixels

from helpers.capture import (
    SEARCH_MODES,
    FinalTokens,
    Lab,
    PatchNorms,
    activations_of,
    capture,
    find_register_neurons,
    matched_neurons,
    matched_neurons_of,
    outlier_units,
    register_neurons,
    register_neurons_of,
)
from helpers.capture.register_neurons import nearest_units
from helpers.images import load_images
from helpers.interventions import RegisterNeuron
from helpers.measures.norms import paired_positions, threshold
from helpers.measures.outliers import Placement, unit_traits
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone

every = models("small", "registers", "swiglu", "pooled", "open_clip")
vit = models("small")
modes = pytest.mark.parametrize("mode", SEARCH_MODES)


def find_by_hand(backbone, x, mode, rule, layer, sparsity):
    """{(block, unit): (at_outliers, elsewhere, magnitude, ratio, score)} and the number of images
    with an outlier."""
    start, end = bounds(backbone)
    blocks = forward(backbone, entering(backbone, x))
    norms = blocks[layer]["residual"].norm(dim=-1).numpy()
    limit = threshold(norms[:, start:end], rule)
    counted, images = range(start, end) if mode == "paper" else range(end), 0
    rows = [[] for _ in blocks]
    for i, norm in enumerate(norms):
        outliers = [t for t in counted if norm[t] > limit]
        others = [t for t in counted if norm[t] <= limit]
        images += bool(outliers)
        for block, own in zip(blocks, rows, strict=True):
            if outliers:
                a = block["neurons"][i].numpy()
                sparse = sum(a[t] < 0.5 for t in counted) >= len(counted) / 2
                means = [x[at].mean(0) for x in (a, abs(a)) for at in (outliers, others)]
                score = means[0 if mode == "paper" else 2]
                own.append([*means, np.where(sparse | (not sparsity), score, 0)])
    found = {}
    for block, own in enumerate(rows):
        for unit, (at, elsewhere, magnitude, other, score) in enumerate(np.mean(own, axis=0).T):
            found[block, unit] = at, elsewhere, magnitude, magnitude / other, abs(score)
    return found, images


@every
@modes
@pytest.mark.parametrize("sparsity", [False, True])
def test_found_neurons(backbone, mode, sparsity):
    """All of them, in order, in batches that do not fit the number of images, some of which have no
    outlier."""
    x, hidden = pixels(backbone, 5), backbone.neurons(0).in_features
    expected, images = find_by_hand(backbone, x, mode, "percentile:96", -1, sparsity)
    assert images < 5 or mode == "jiang_code"
    search = {"mode": mode, "rule": "percentile:96", "sparsity": sparsity}
    got = find_register_neurons(backbone, x, top_k=3 * hidden, batch_size=2, **search)
    assert {(n.block, n.unit) for n in got} == expected.keys() and len(got) == 3 * hidden
    assert [n.score for n in got] == sorted((n.score for n in got), reverse=True)
    ours, theirs = np.array([n[2:] for n in got]), np.array([expected[n[:2]] for n in got])
    bounds = [2e-4, 2e-4, 2e-4, 5e-3, 2e-4]  # 4: of two tails
    np.testing.assert_array_less(abs(ours - theirs), 2e-6 + abs(theirs) * bounds)
    if sparsity and backbone.name != "swiglu":  # its neurons are all sparse
        assert 0 < sum(n.score == 0 for n in got) < len(got) / 2
    assert hooks(backbone.model) == 0


@vit
def test_where_detection_looks(backbone):
    """Another layer, and the blocks up to it unless others are named."""
    x = pixels(backbone, 5)
    expected, _ = find_by_hand(backbone, x, "paper", "percentile:96", 1, False)
    best = sorted(expected, key=lambda neuron: -expected[neuron][-1])
    got = find_register_neurons(backbone, x, rule="percentile:96", layer=-2)
    assert [n[:2] for n in got] == [b for b in best if b[0] < 2][:10]
    how = {"rule": "percentile:96", "layer": 1, "top_k": 3}
    for layers in ([2, 0], (-1, 0, -3)):
        got = find_register_neurons(backbone, x, layers=layers, **how)
        assert [n[:2] for n in got] == [b for b in best if b[0] != 1][:3]


@vit
def test_scores_of_the_two_modes(backbone, monkeypatch):
    """A neuron that is active with either sign has no mean, but a magnitude. A silent one has
    neither; ties go by number.

    Eight of 16 patches are outliers: means over powers of two are exact, in whatever order a
    processor adds.
    """
    hidden = torch.zeros(1, 17, 192)
    hidden[0, 1:9, 5] = torch.tensor([-8.0, 0, 0, 0, 0, 0, 0, 8])
    hidden[0, 1:9, 6], hidden[0, 9:, 6] = -1.0, 0.25
    monkeypatch.setattr(
        register_neurons,
        "_outlier_tokens",
        lambda _, __, mode, *___: torch.arange(17 if mode == "jiang_code" else 16)[None] < 8,
    )
    found = {}
    for mode in SEARCH_MODES:
        layout = hidden if mode == "paper" else hidden.roll(-1, dims=1)
        with backbone.change_neurons(0, lambda _, seen=layout: seen):
            how = {"mode": mode, "layers": [0], "top_k": 4}
            found[mode] = find_register_neurons(backbone, pixels(backbone, 1), **how)
    paper, code = found["paper"], found["jiang_code"]
    assert paper[0] == RegisterNeuron(0, 6, -1.0, 0.25, 1.0, 4.0, 1.0)
    assert [n.unit for n in paper] == [6, 0, 1, 2] and [n.unit for n in code] == [5, 6, 0, 1]
    assert paper[1] == RegisterNeuron(0, 0, 0.0, 0.0, 0.0, 1.0, 0.0)
    assert code[0] == RegisterNeuron(0, 5, 0.0, 0.0, 2.0, np.inf, 2.0)


# Controls
# --------------------------------------------------------------------------------------------------


def test_outliers_among_registers_only():
    """In the authors' code trained registers are outliers too; here they are no patches."""
    backbone, images = load_backbone("control-registers"), load_images("scenes", 6, 0)
    with pytest.raises(ValueError, match="control-registers"):
        find_register_neurons(backbone, images)
    neurons = find_register_neurons(backbone, images, mode="jiang_code")
    assert neurons[0][:2] == (PLANTED_BLOCK["control-registers"], REGISTER_NEURON)


# Several models
# --------------------------------------------------------------------------------------------------


def test_register_neurons_of_several_models():
    """Those of each model by itself, where it has an outlier."""
    images, names = load_images("scenes", 6, 0), ["control-clean", "control-position"]
    search = {"mode": "jiang_code", "top_k": 2, "layer": 4}
    laboratory = Lab([*names, "control-content"], batch_size=3)
    neurons = register_neurons_of(laboratory, images, rule="median:4", **search)
    assert list(neurons) == ["control-position", "control-content"]  # control-clean has no outlier
    for name, own in neurons.items():
        how = search | {"rule": "median:4", "batch_size": 3}
        assert own == find_register_neurons(load_backbone(name), images, **how)
        assert own[0][:2] == (PLANTED_BLOCK[name], REGISTER_NEURON) and len(own) == 2
    one = Lab(["control-content"])
    assert register_neurons_of(one, images, rule="fixed:1e9") == {}
    how, earlier = {"rule": "median:4", "top_k": 3}, ["control-content top_layer=1"]
    earlier = register_neurons_of(one, images, by_model=earlier, **how)
    backbone = load_backbone("control-content")
    blocks = find_register_neurons(backbone, images, layers=[0, 1], **how)
    assert earlier["control-content"] == blocks and PLANTED_BLOCK["control-content"] > 1


def test_the_filter_of_a_model_reaches_its_search(monkeypatch):
    asked, names = {}, ["control-position", "control-content"]

    def find(backbone, *_, sparsity, **__):
        asked[backbone.name] = sparsity
        return []

    monkeypatch.setattr(register_neurons, "find_register_neurons", find)
    own = ["control-position sparsity=1"]
    register_neurons_of(Lab(names), load_images("scenes", 6, 0), by_model=own)
    assert asked == {"control-position": True, "control-content": False}


# Bad input
# --------------------------------------------------------------------------------------------------


@vit
@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "code"}, "'code'"),
        ({"rule": "fixed:1000"}, "fixed:1000"),
        ({"layer": 3}, "3"),
        ({"layers": [0, 3]}, "3"),
        ({"layers": [1, -2], "top_k": 193}, "193"),
        ({"top_k": 0}, "0"),
    ],
)
def test_bad_search(backbone, options, message):
    with pytest.raises(ValueError, match=message):
        find_register_neurons(backbone, pixels(backbone, 5), **options)
    assert hooks(backbone.model) == 0


# Units of similar output
# --------------------------------------------------------------------------------------------------


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
        hidden = blocks[block]["neurons"][image, [start + t for t in tokens]]
        writes = [(own[:, None] * layer.T).norm(dim=1) for own in hidden]  # a row a unit
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
    how = {"among": "later", "layer": 1, "rule": RULE}
    early = [matched_neurons(backbone, [(0, 3)], x, seed=seed, **how) for seed in range(9)]
    assert {other.block for [other] in early} <= {0, 1}


def test_a_seed_draws_among_the_five_nearest():
    backbone = build("small")
    x = pixels(backbone, 3)
    by_hand = written_by_hand(backbone, x, 2, "outliers")
    nearest = (by_hand / by_hand[7]).log().abs().argsort().tolist()[1:6]
    found = [
        matched_neurons(backbone, NEURONS[:1], x, rule=RULE, seed=seed)[0] for seed in range(30)
    ]
    assert {other.unit for other in found} == {*nearest}


def test_nearest_units():
    written = torch.tensor([5.0, 1.0, 10.0, 9.0, 10.001, 30.0, 0.0])

    def near(wanted, without, count, written=written):
        allowed = torch.tensor([i not in without for i in range(7)])
        return nearest_units(written, wanted, allowed, count)

    assert near(10.0, {2}, 3) == [4, 3, 0]
    assert near(10.0, (), 2) == near(10.0, (), 2, written.flip(0)) == [2, 4]  # equal: the first
    assert near(10.0, {2, 4}, 99) == [3, 0, 5, 1, 6]  # by ratio: 30 is nearer than 1
    assert near(1e6, (), 2) == [5, 2]  # the largest, however far
    assert near(0.0, {0}, 2) == [1, 2]


def test_of_several_models():
    images = load_images("scenes", 8, 0)
    names = ["control-content", "control-position"]
    neurons = {name: [(PLANTED_BLOCK[name], REGISTER_NEURON)] for name in names}
    for name, found in matched_neurons_of(Lab(names, seed=3), neurons, images).items():
        own = load_backbone(name), neurons[name]
        assert found == matched_neurons(*own, images, seed=3)
    assert matched_neurons_of(Lab(names), {}, images) == {}


# The unit at outliers
# --------------------------------------------------------------------------------------------------


MODEL = "control-position"


def test_the_unit_is_the_planted_one_and_the_tokens_are_those_of_outliers():
    images, backbone = load_images("scenes", 6, seed=4), load_backbone(MODEL)
    norms = capture(backbone, images, [PatchNorms(-1)])["patch_norms"]
    limit = threshold(norms, "median:3")
    mask = norms > limit
    mask[0] = False  # what the search leaves out
    own = Placement(limit, mask, torch.zeros(6, dtype=torch.int64), [0], {}, {})
    none = Placement(limit, mask & False, own.onset, [], {}, {})
    placed = {MODEL: own, "control-clean": none}
    (found,) = outlier_units(Lab([*placed], 1), placed, images, 2, RULE).values()
    assert found.usual == [0]
    first = images.select(range(2))
    asked = {"where": "patches", "among": "later", "rule": RULE, "seed": 1}
    assert [found.matched] == matched_neurons(backbone, [found.neuron], first, **asked)
    tokens = found.outlier, found.normal
    traits, of_tokens = found.traits(3), (found.activation, found.second, mask, *tokens, 3)
    values = {name: e.value for name, e in unit_traits(*of_tokens).items()}
    assert values == {name: traits[name].value for name in values}
    assert (traits["neuron_block"], traits["neuron_unit"]) == found.neuron[:2]
    assert traits["matched_written"] == found.matched.written / found.matched.wanted
    best = find_register_neurons(backbone, images.select([1, 2]), rule=f"fixed:{limit}", top_k=2)
    assert found.neuron == best[0] and found.neuron[:2] == (PLANTED_BLOCK[MODEL], REGISTER_NEURON)
    kept = capture(backbone, images, [*activations_of(best), FinalTokens()])
    torch.testing.assert_close(found.activation, kept["neuron 1"])
    torch.testing.assert_close(found.second, kept["neuron 2"])
    tokens = backbone.layout.patch_tokens(kept["final_tokens"])
    places = paired_positions(mask, 4, 1)
    for own, positions in zip((found.outlier, found.normal), places, strict=True):
        expected = torch.stack([tokens[i, p] * (p >= 0)[:, None] for i, p in enumerate(positions)])
        torch.testing.assert_close(own, expected)
