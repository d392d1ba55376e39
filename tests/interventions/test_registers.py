"""Register neurons and test-time registers against forward passes by hand: one image at a time, in float64, without a hook."""

import copy
import os
from contextlib import ExitStack

import huggingface_hub
import numpy as np
import open_clip
import pytest
import safetensors.torch
import timm
import torch
from conftest import entering
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from helpers.bench import randomise
from helpers.capture import Output, PatchNorms, TokenNorms, capture, find_register_neurons
from helpers.images import load_images
from helpers.interventions import RegisterNeuron, ablated_neurons, appended_registers, dropped_patches, random_neurons
from helpers.interventions import neurons as registers
from helpers.measures.norms import threshold
from helpers.models import CONTROL_DATA, PLANTED_BLOCK, REGISTER_NEURON, ModelUnavailable, TokenLayout, load_backbone, wrap_timm
from helpers.models.load import OpenClipBackbone

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
KWARGS = {
    "vit": {},
    "registers-layerscale": {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5},
    "swiglu": {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU, "mlp_ratio": 5, "init_values": 1.0},
    "pooled": {"class_token": False, "global_pool": "avg", "reg_tokens": 1},
    "resizable": {"dynamic_img_size": True},
}
PREFIX = {
    "vit": 1,
    "registers-layerscale": 5,
    "swiglu": 1,
    "pooled": 1,
    "resizable": 1,
    "open_clip": 1,
}  # tokens before the patches
HIDDEN = {"swiglu": 60}  # 96 in all others
PATCHES, DEPTH = 16, 3
NEURONS = [(2, 7), (0, 3), (2, 50), (1, 0), (0, 59)]


def build(kind):
    if kind == "open_clip":
        visual = open_clip.transformer.VisionTransformer(32, 8, width=24, layers=3, heads=3, mlp_ratio=4.0, output_dim=16)
        return OpenClipBackbone(kind, randomise(visual), TokenLayout((4, 4)), (32, 32), (8, 8), torch.zeros_like, False)
    return wrap_timm(kind, randomise(VisionTransformer(**SMALL | KWARGS[kind])), CONTROL_DATA, pretrained=False)


BACKBONES = {}


@pytest.fixture
def backbone(request):
    if request.param not in BACKBONES:
        BACKBONES[request.param] = build(request.param)
    return BACKBONES[request.param]


every = pytest.mark.parametrize("backbone", PREFIX, indirect=True)
one_each = pytest.mark.parametrize("backbone", ["registers-layerscale", "swiglu", "open_clip"], indirect=True)
vit = pytest.mark.parametrize("backbone", ["vit"], indirect=True)
modes = pytest.mark.parametrize("mode", ["paper", "jiang_code"])


def pixels(n=5):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def run_by_hand(backbone, tokens, change=lambda block, hidden: hidden, appended=0):
    """One image's `tokens` (token, width) through copies of the blocks, layer by layer: what `change` made of each block's
    neurons (token, hidden), each block's output (token, width), and what the model returns."""
    m, x, neurons, outputs = copy.deepcopy(backbone.model).double(), tokens.double()[None], [], []
    timms = isinstance(m, VisionTransformer)
    for i, block in enumerate(m.blocks if timms else m.transformer.resblocks):
        if timms:
            x = x + block.ls1(block.attn(block.norm1(x)))
            hidden, last, scale = block.mlp.fc1(block.norm2(x)), block.mlp.fc2, block.ls2
            if hidden.shape[-1] != last.in_features:
                gate, value = hidden.chunk(2, dim=-1)
                hidden = gate * gate.sigmoid() * value
            else:
                hidden = nn.functional.gelu(hidden)
        else:
            normed = block.ln_1(x)
            x = x + block.attn(normed, normed, normed, need_weights=True)[0]
            hidden, last, scale = nn.functional.gelu(block.mlp.c_fc(block.ln_2(x))), block.mlp.c_proj, nn.Identity()
        hidden = change(i, hidden[0].clone())
        x = x + scale(last(hidden))[None]
        neurons.append(hidden)
        outputs.append(x[0])
    x = x[:, : x.shape[1] - appended]
    return neurons, outputs, (m.forward_head(m.norm(x)) if timms else m._pool(x)[0] @ m.proj)[0]


def find_by_hand(backbone, x, mode, rule, layer, sparsity):
    """{(block, unit): (at_outliers, elsewhere, magnitude, ratio, score)} and the number of images with an outlier."""
    start, plain = PREFIX[backbone.name], entering(backbone, x)
    runs = [run_by_hand(backbone, tokens)[:2] for tokens in plain]
    norms = [outputs[layer].norm(dim=-1).numpy() for _, outputs in runs]
    limit = threshold(np.stack([n[start:] for n in norms]), rule)
    counted = range(start, start + PATCHES) if mode == "paper" else range(start + PATCHES)
    blocks, images = [[] for _ in range(DEPTH)], 0
    for (neurons, _), norm in zip(runs, norms, strict=True):
        outliers = [t for t in counted if norm[t] > limit]
        others = [t for t in counted if norm[t] <= limit]
        images += bool(outliers)
        for rows, a in zip(blocks, neurons if outliers else [], strict=bool(outliers)):
            a = a.numpy()
            sparse = sum(a[t] < 0.5 for t in counted) >= len(counted) / 2
            score = np.mean(a[outliers], axis=0) if mode == "paper" else np.mean(np.abs(a[outliers]), axis=0)
            rows.append([a[outliers].mean(0), a[others].mean(0), abs(a[outliers]).mean(0), abs(a[others]).mean(0)])
            rows[-1].append(np.where(sparse | (not sparsity), score, 0))
    found = {}
    for block, rows in enumerate(blocks):
        for unit, (at, elsewhere, magnitude, other, score) in enumerate(np.mean(rows, axis=0).T):
            found[block, unit] = at, elsewhere, magnitude, magnitude / other, abs(score)
    return found, images


@every
@modes
@pytest.mark.parametrize("sparsity", [False, True])
def test_found_neurons(backbone, mode, sparsity):
    """All of them, in order, in batches that do not fit the number of images, some of which have no outlier."""
    x, hidden = pixels(), HIDDEN.get(backbone.name, 96)
    expected, images = find_by_hand(backbone, x, mode, "percentile:96", -1, sparsity)
    assert images < 5 or mode == "jiang_code"
    got = find_register_neurons(
        backbone, x, mode=mode, rule="percentile:96", top_k=DEPTH * hidden, sparsity=sparsity, batch_size=2
    )
    assert {(n.block, n.unit) for n in got} == expected.keys() and len(got) == DEPTH * hidden
    assert [n.score for n in got] == sorted((n.score for n in got), reverse=True)
    np.testing.assert_allclose([n[2:] for n in got], [expected[n[:2]] for n in got], rtol=2e-4, atol=2e-6)
    if sparsity and backbone.name != "swiglu":  # its neurons are all sparse
        assert 0 < sum(n.score == 0 for n in got) < len(got) / 2
    assert hooks(backbone.model) == 0


@vit
def test_out_of_memory_counts_no_image_twice(backbone):
    x, search = pixels(), {"rule": "percentile:96", "top_k": 96}
    whole = find_register_neurons(backbone, x, **search)

    def full(_, inputs, output):
        if len(inputs[0]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with backbone.model.register_forward_hook(full), pytest.warns(UserWarning, match="do not fit"):
        got = find_register_neurons(backbone, x, **search)
    np.testing.assert_allclose([n[2:] for n in got], [n[2:] for n in whole], rtol=1e-5, atol=1e-6)


@vit
def test_where_detection_looks(backbone):
    """Another layer, and the blocks up to it unless others are named."""
    x = pixels()
    expected, _ = find_by_hand(backbone, x, "paper", "percentile:96", 1, False)
    best = sorted(expected, key=lambda neuron: -expected[neuron][-1])
    assert [n[:2] for n in find_register_neurons(backbone, x, rule="percentile:96", layer=-2)] == [b for b in best if b[0] < 2][
        :10
    ]
    for layers in ([2, 0], (-1, 0, -3)):
        got = find_register_neurons(backbone, x, rule="percentile:96", layer=1, layers=layers, top_k=3)
        assert [n[:2] for n in got] == [b for b in best if b[0] != 1][:3]


@vit
def test_scores_of_the_two_modes(backbone, monkeypatch):
    """A neuron that is active with either sign has no mean, but a magnitude. A silent one has neither; ties go by number.

    Eight of 16 patches are outliers: means over powers of two are exact, in whatever order a processor adds.
    """
    hidden = torch.zeros(1, 17, 96)
    hidden[0, 1:9, 5] = torch.tensor([-8.0, 0, 0, 0, 0, 0, 0, 8])
    hidden[0, 1:9, 6], hidden[0, 9:, 6] = -1.0, 0.25
    monkeypatch.setattr(
        registers, "_outliers", lambda _, __, mode, *___: torch.arange(17 if mode == "jiang_code" else 16)[None] < 8
    )
    found = {}
    for mode in registers.MODES:
        layout = hidden if mode == "paper" else hidden.roll(-1, dims=1)
        with backbone.change_neurons(0, lambda _, seen=layout: seen):
            found[mode] = find_register_neurons(backbone, pixels(1), mode=mode, layers=[0], top_k=4)
    paper, code = found["paper"], found["jiang_code"]
    assert paper[0] == RegisterNeuron(0, 6, -1.0, 0.25, 1.0, 4.0, 1.0)
    assert [n.unit for n in paper] == [6, 0, 1, 2] and paper[1] == RegisterNeuron(0, 0, 0.0, 0.0, 0.0, 1.0, 0.0)
    assert [n.unit for n in code] == [5, 6, 0, 1] and code[0] == RegisterNeuron(0, 5, 0.0, 0.0, 2.0, np.inf, 2.0)


@every
def test_what_is_kept_of_the_images(backbone, monkeypatch):
    """One pass for the norms, one for the neurons, of which nothing is left but their sums."""
    shapes = []

    def watched(*args, **options):
        results = capture(*args, **options)
        shapes.append([tuple(value.shape) for value in results.values()])
        return results

    monkeypatch.setattr(registers, "capture", watched)
    find_register_neurons(backbone, pixels(), rule="percentile:96")
    assert shapes == [[(5, PREFIX[backbone.name] + PATCHES)], []]


# Interventions ---------------------------------------------------------------------------------------------------------


def shares(neurons, count, got, start):
    """neuron -> number of its appended token, read from the `got` neurons (block -> (token, hidden)) of one image."""
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


def move_by_hand(start, patches, ours, owners, clear):
    """A `change` for run_by_hand: `ours` are the positions of the appended tokens."""

    def change(block, hidden):
        for (where, unit), owner in owners.items():
            if where == block:
                others = [t for t in range(len(hidden)) if t not in ours]
                largest = max((hidden[t, unit].item() for t in others), key=abs)
                for t in [*ours, *(range(start, start + patches) if clear == "patches" else others)]:
                    hidden[t, unit] = 0
                hidden[ours[owner], unit] = largest
        return hidden

    return change


def looks(backbone, x, **options):
    return capture(backbone, x, [TokenNorms(), Output()], **options)


def assert_near(got, runs):
    """`got` of `looks` is what `runs` by hand gave."""
    torch.testing.assert_close(
        got["token_norms"].double(),
        torch.stack([torch.stack([x.norm(dim=-1) for x in outputs]) for _, outputs, _ in runs]),
        rtol=1e-4,
        atol=1e-5,
    )
    torch.testing.assert_close(got["output"].double(), torch.stack([output for *_, output in runs]), rtol=1e-3, atol=1e-4)


@every
@pytest.mark.parametrize("count, init, clear", [(1, "zeros", "patches"), (3, "normal", "patches"), (2, "mean", "all")])
def test_test_time_registers(backbone, count, init, clear):
    x, start, layout = pixels(3), PREFIX[backbone.name], backbone.layout
    plain, end = looks(backbone, x), start + PATCHES
    with registers.test_time_registers(backbone, NEURONS, count, init, clear) as same:
        assert same is backbone and backbone.layout == layout.with_appended(count)
        entered, got, neurons = entering(backbone, x), looks(backbone, x, batch_size=2), seen_neurons(backbone, x)
    owners = shares(NEURONS, count, neurons[0], end)
    assert sorted(np.bincount(list(owners.values()), minlength=count)) == {1: [5], 3: [1, 2, 2], 2: [2, 3]}[count]
    change = move_by_hand(start, PATCHES, range(end, end + count), owners, clear)
    assert_near(got, [run_by_hand(backbone, tokens, change, count) for tokens in entered])
    assert (got["output"] - plain["output"]).abs().max() > 1e-3
    if backbone.name == "swiglu":  # with its sign
        assert min(neurons[i][block][end + owner, unit] for i in range(3) for (block, unit), owner in owners.items()) < -0.5
    assert backbone.layout is layout and hooks(backbone.model) == 0


@every
def test_ablated_neurons(backbone):
    x, layout = pixels(3), backbone.layout

    def change(block, hidden):
        hidden[:, [unit for where, unit in NEURONS if where == block]] = 0
        return hidden

    with ablated_neurons(backbone, NEURONS) as same:
        assert same is backbone and backbone.layout is layout
        got = looks(backbone, x, batch_size=2)
    assert_near(got, [run_by_hand(backbone, tokens, change) for tokens in entering(backbone, x)])
    assert hooks(backbone.model) == 0


@one_each
def test_a_batch_equals_its_images_one_by_one(backbone):
    x, found = pixels(), []
    for batch_size in (5, 2, 1):
        with registers.test_time_registers(backbone, NEURONS, 2):
            found.append(looks(backbone, x, batch_size=batch_size))
    for other in found[1:]:
        for key, value in other.items():
            torch.testing.assert_close(value, found[0][key], rtol=1e-5, atol=1e-5)


@every
@pytest.mark.parametrize("order", ["inside", "outside"])
def test_nesting(backbone, order):
    """Among plain appended tokens and with patches removed, in any order: the neurons go to their own tokens."""
    x, start, layout = pixels(3), PREFIX[backbone.name], backbone.layout
    drop, append = (lambda: dropped_patches(backbone, 0.4)), (lambda: appended_registers(backbone, 2, "normal"))
    outer, inner = ([drop, append], []) if order == "inside" else ([], [append, drop])
    found = []
    for look in (entering, seen_neurons, looks):
        with ExitStack() as stack:
            for intervention in [*outer, lambda: registers.test_time_registers(backbone, NEURONS, 2), *inner]:
                stack.enter_context(intervention())
            assert backbone.layout == layout.with_kept(10).with_appended(4)
            found.append(look(backbone, x))
    entered, neurons, got = found
    first = start + 10 + (2 if order == "inside" else 0)
    owners = shares(NEURONS, 2, neurons[0], first)
    change = move_by_hand(start, 10, [first, first + 1], owners, "patches")
    assert_near(got, [run_by_hand(backbone, tokens, change, 4) for tokens in entered])
    assert backbone.layout is layout and hooks(backbone.model) == 0


@every
def test_nothing_to_move(backbone):
    """Without neurons there are only the tokens; what ablates nothing changes nothing."""
    x = pixels()
    with appended_registers(backbone, 2, "normal", 3):
        appended = looks(backbone, x)
    with registers.test_time_registers(backbone, [], 2, "normal", seed=3):
        assert all(torch.equal(value, appended[key]) for key, value in looks(backbone, x).items())
    plain = looks(backbone, x)
    with ablated_neurons(backbone, []):
        assert all(torch.equal(value, plain[key]) for key, value in looks(backbone, x).items())


@vit
def test_shares(backbone):
    """They are drawn: the same for one seed, others for another; from one token to a token a neuron, and more."""
    neurons = [(0, unit) for unit in range(12)]

    def drawn(count, seed=0):
        with registers.test_time_registers(backbone, neurons, count, seed=seed):
            return shares(neurons, count, seen_neurons(backbone, pixels(1))[0], 17)

    assert drawn(3) == drawn(3) != drawn(3, 1) and set(drawn(1).values()) == {0}
    assert sorted(np.bincount(list(drawn(5).values()))) == [2, 2, 2, 3, 3]
    assert sorted(drawn(12).values()) == list(range(12)) and max(drawn(20).values()) < 12


@every
def test_all_is_restored(backbone):
    """Outputs to the bit, layout, hooks and the global random state: afterwards, and after an error inside."""
    x, layout, states = pixels(), backbone.layout, (torch.get_rng_state(), np.random.get_state()[1].copy())
    before, given = looks(backbone, x), list(NEURONS)
    for intervention in (registers.test_time_registers, ablated_neurons):
        with intervention(backbone, given):
            assert not torch.equal(looks(backbone, x)["output"], before["output"])
        assert backbone.layout is layout and hooks(backbone.model) == 0
        with pytest.raises(ZeroDivisionError), intervention(backbone, given):
            entering(backbone, x)
            _ = 1 / 0
        assert backbone.layout is layout and hooks(backbone.model) == 0
    random_neurons(backbone, given)
    model_with_test_time_registers(backbone, given)
    assert all(torch.equal(value, before[key]) for key, value in looks(backbone, x).items()) and given == NEURONS
    assert torch.equal(torch.get_rng_state(), states[0]) and (np.random.get_state()[1] == states[1]).all()


@one_each
def test_random_neurons(backbone):
    found = random_neurons(backbone, NEURONS)
    assert sorted(block for block, _ in found) == sorted(block for block, _ in NEURONS) and len(set(found)) == 5
    assert not set(found) & set(NEURONS) and found == random_neurons(backbone, NEURONS) != random_neurons(backbone, NEURONS, 1)
    hidden = HIDDEN.get(backbone.name, 96)
    half = [(1, unit) for unit in range(0, hidden, 2)]  # all others, then
    assert sorted(random_neurons(backbone, half)) == [(1, unit) for unit in range(1, hidden, 2)]
    drawn = {unit for seed in range(300) for _, unit in random_neurons(backbone, NEURONS[:1], seed)}
    assert drawn <= set(range(hidden)) - {7} and len(drawn) > 0.9 * hidden


@one_each
def test_mixed_precision(backbone):
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        with registers.test_time_registers(backbone, NEURONS):
            found.append(capture(backbone, pixels(), [PatchNorms()], dtype=dtype)["patch_norms"])
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=0.1, atol=0)
    best, other = (
        find_register_neurons(backbone, pixels(), rule="percentile:90", dtype=dtype)[0]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert best[:2] == other[:2] and best.score == pytest.approx(other.score, rel=0.05)


# Controls --------------------------------------------------------------------------------------------------------------


def largest(backbone, x):
    """image -> largest norm, of the patches and of the appended tokens, over the median patch norm, after the last block."""
    norms = capture(backbone, x, [TokenNorms(-1)])["token_norms"]
    patches = backbone.layout.patch_tokens(norms, dim=-1)
    appended = backbone.layout.appended_tokens(norms, dim=-1)
    return patches.amax(-1) / patches.median(), appended.amax(-1) / patches.median() if appended.numel() else None


@pytest.fixture(scope="module")
def scenes():
    backbone, images = load_backbone("control-clean"), load_images("scenes", 6, 0)
    return torch.stack([backbone.preprocess(image) for image in images])


@pytest.mark.parametrize("name", ["control-content", "control-position"])
@modes
def test_planted_register_neuron(name, mode, scenes):
    """It comes first, silent elsewhere. Moved, it makes the appended token high and no patch; so does no random neuron."""
    backbone = load_backbone(name)
    neurons = find_register_neurons(backbone, scenes, mode=mode, top_k=3)
    assert neurons[0][:2] == (PLANTED_BLOCK[name], REGISTER_NEURON)
    assert neurons[0].at_outliers == pytest.approx(20, rel=0.1) and neurons[0].elsewhere == 0 and neurons[0].ratio == np.inf
    assert neurons[0].score > 2 * neurons[1].score
    before, _ = largest(backbone, scenes)
    assert (before > 9).any()
    with registers.test_time_registers(backbone, neurons[:1]):
        patches, appended = largest(backbone, scenes)
        assert patches.max() < 1.1 and torch.equal(appended > 8, before > 9)
    with ablated_neurons(backbone, neurons[:1]):
        assert largest(backbone, scenes)[0].max() < 1.1
    with registers.test_time_registers(backbone, random_neurons(backbone, neurons[:1])):
        patches, appended = largest(backbone, scenes)
        assert torch.equal(patches > 9, before > 9) and appended.max() < 2


def test_outliers_among_registers_only(scenes):
    """In the authors' code trained registers are outliers too; here they are no patches."""
    backbone = load_backbone("control-registers")
    with pytest.raises(ValueError, match="no norm after block 5 of 'control-registers' exceeds"):
        find_register_neurons(backbone, scenes)
    neurons = find_register_neurons(backbone, scenes, mode="jiang_code")
    assert neurons[0][:2] == (PLANTED_BLOCK["control-registers"], REGISTER_NEURON)


@modes
def test_no_outliers(mode, scenes):
    with pytest.raises(
        ValueError, match=r"exceeds .* \('median:3'\) in 6 images, the largest is .*; choose another rule or layer"
    ):
        find_register_neurons(load_backbone("control-clean"), scenes, mode=mode)


# Export ----------------------------------------------------------------------------------------------------------------


def inside(backbone, x, *arguments, **options):
    with torch.inference_mode(), registers.test_time_registers(backbone, *arguments, **options):
        return backbone(x)


@every
@pytest.mark.parametrize("count, clear", [(1, "patches"), (3, "all")])
def test_export(backbone, count, clear):
    x = pixels()
    plain, expected = backbone(x), inside(backbone, x, NEURONS, count, clear=clear, seed=4)
    model = model_with_test_time_registers(backbone, NEURONS, count, clear, 4)
    assert type(model) is type(backbone.model) and not model.training
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6)
    assert (expected - plain).abs().max() > 1e-3 and torch.equal(backbone(x), plain) and hooks(backbone.model) == 0
    torch.testing.assert_close(copy.deepcopy(model)(x), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat([model(image[None]) for image in x]), expected, rtol=1e-5, atol=1e-5)
    # It shares nothing with the model that it is of.
    for p in model.parameters():
        p.zero_()
    assert torch.equal(backbone(x), plain)


@one_each
def test_export_to_a_file(backbone, tmp_path):
    """The whole model, or its state dict into another copy with other shares."""
    x, expected, file = pixels(), inside(backbone, pixels(), NEURONS, 2), tmp_path / "model"
    model, other = (
        model_with_test_time_registers(backbone, NEURONS, 2),
        model_with_test_time_registers(backbone, NEURONS, 2, seed=5),
    )
    torch.save(model, file)
    torch.testing.assert_close(torch.load(file, weights_only=False)(x), expected, rtol=0, atol=1e-6)
    added = model.state_dict().keys() - backbone.model.state_dict().keys()
    assert len(added) == 6 and all(key.endswith((".shift.units", ".shift.owners")) for key in added)

    def by_torch():
        torch.save(model.state_dict(), file)
        return torch.load(file, weights_only=True)

    def by_safetensors():
        safetensors.torch.save_file(model.state_dict(), file)
        return safetensors.torch.load_file(file)

    for state in (by_torch(), by_safetensors()):
        into = copy.deepcopy(other)
        assert (into(x) - expected).abs().max() > 1e-4
        into.load_state_dict(state)
        torch.testing.assert_close(into(x), expected, rtol=0, atol=1e-6)


@one_each
def test_export_in_other_precisions(backbone):
    model, expected = model_with_test_time_registers(backbone, NEURONS, 2), inside(backbone, pixels(), NEURONS, 2)
    torch.testing.assert_close(model.to(torch.float64)(pixels().double()).float(), expected, rtol=1e-4, atol=1e-4)
    for dtype in (torch.float16, torch.bfloat16):
        got = model.to(dtype)(pixels().to(dtype))
        assert got.dtype == dtype and (got.float() - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("backbone", ["resizable"], indirect=True)
def test_export_at_another_image_size(backbone):
    """Position embedding resampled by timm: as many registers, where the patches end."""
    model = model_with_test_time_registers(backbone, NEURONS, 2)
    larger = wrap_timm("larger", copy.deepcopy(backbone.model), CONTROL_DATA, pretrained=False)
    larger.layout = TokenLayout((6, 5))
    x = torch.randn(2, 3, 48, 40, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(x), inside(larger, x, NEURONS, 2), rtol=0, atol=1e-6)


@vit
def test_export_keeps_timms_methods(backbone):
    """The tokens are gone after the last block, so timm's own views of the features still fit the grid."""
    model, x = model_with_test_time_registers(backbone, NEURONS, 2), pixels()
    assert model.forward_features(x).shape == (5, 17, 24)
    assert model.get_intermediate_layers(x, n=1, reshape=True)[0].shape == (5, 24, 4, 4)
    model.reset_classifier(3)
    assert model(x).shape == (5, 3)
    model.requires_grad_(True)(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@every
def test_export_while_an_intervention_is_active(backbone):
    for intervention in (registers.test_time_registers, ablated_neurons):
        with (
            intervention(backbone, NEURONS),
            pytest.raises(ValueError, match=f"'{backbone.name}' has hooks, such as those of an"),
        ):
            model_with_test_time_registers(backbone, NEURONS)


# Bad input -------------------------------------------------------------------------------------------------------------


@vit
@pytest.mark.parametrize(
    "options, message",
    [
        ({"mode": "code"}, "mode is 'code'; choose one of paper, jiang_code"),
        ({"rule": "fixed:1000"}, r"no norm after block 2 of 'vit' exceeds 1000 \('fixed:1000'\) in 5 images, the largest is \d"),
        ({"rule": "sigma:3"}, "unknown outlier rule 'sigma:3'"),
        ({"layer": 3}, r"no block 3 in 'vit'; choose .*from -3 to 2"),
        ({"layer": -4}, r"no block -4 in 'vit'"),
        ({"layers": [0, 3]}, "no block 3 in 'vit'; choose from 0 to 2"),
        ({"layers": [-4]}, "no block -4 in 'vit'"),
        ({"layers": []}, r"top_k is 10, but blocks \[\] have 0 neurons"),
        ({"layers": [1, -2], "top_k": 97}, r"top_k is 97, but blocks \[1\] have 96 neurons; choose from 1 to that"),
        ({"top_k": 289}, r"top_k is 289, but blocks \[0, 1, 2\] have 288 neurons"),
        ({"top_k": 0}, "top_k is 0, but"),
        ({"batch_size": 0}, "5 images in batches of 0"),
    ],
)
def test_bad_search(backbone, options, message):
    with pytest.raises(ValueError, match=message):
        find_register_neurons(backbone, pixels(), **options)
    assert hooks(backbone.model) == 0


@vit
def test_search_without_images_or_with_patches_removed(backbone):
    with pytest.raises(ValueError, match="0 images in batches of 32"):
        find_register_neurons(backbone, pixels(0))
    with dropped_patches(backbone, 0.5), pytest.raises(ValueError, match="patches were removed, other ones in each pass"):
        find_register_neurons(backbone, pixels())


@vit
@pytest.mark.parametrize(
    "neurons, message",
    [
        ([(0, 1), (3, 5)], "no block 3 in 'vit'; choose from 0 to 2"),
        ([(-1, 5)], r"no neuron \(-1, 5\) in 'vit'; choose a block from 0 to 2 and a unit from 0 to 95"),
        ([(1, 96)], r"no neuron \(1, 96\)"),
        ([(1, -1)], r"no neuron \(1, -1\)"),
        ([(1, 2), (0, 2), (1, 2)], r"neuron \(1, 2\) is given twice; give each once"),
    ],
)
def test_bad_neurons(backbone, neurons, message):
    for intervention in (registers.test_time_registers, ablated_neurons):
        with pytest.raises(ValueError, match=message), intervention(backbone, neurons):
            pass
    for function in (random_neurons, model_with_test_time_registers):
        with pytest.raises(ValueError, match=message):
            function(backbone, neurons)
    assert hooks(backbone.model) == 0


@vit
@pytest.mark.parametrize(
    "options, message",
    [
        ({"count": 0}, "neurons cannot move to 0 tokens; give a count of at least 1, or use ablated_neurons"),
        ({"count": -2}, "neurons cannot move to -2 tokens"),
        ({"clear": "cls"}, "clear is 'cls'; choose one of patches, all"),
        ({"init": "ones"}, "init is 'ones'; choose one of"),
    ],
)
def test_bad_registers(backbone, options, message):
    layout = backbone.layout
    with pytest.raises(ValueError, match=message), registers.test_time_registers(backbone, NEURONS, **options):
        pass
    if "init" not in options:
        with pytest.raises(ValueError, match=message):
            model_with_test_time_registers(backbone, NEURONS, **options)
    assert backbone.layout is layout and hooks(backbone.model) == 0


@vit
def test_too_few_other_neurons(backbone):
    with pytest.raises(ValueError, match="block 1 of 'vit' has 47 neurons beside the 49 given; give fewer"):
        random_neurons(backbone, [(1, unit) for unit in range(49)])


@pytest.mark.parametrize("kind, name", [("vit", "fc2"), ("open_clip", "c_proj")])
def test_a_block_without_mlp_neurons(kind, name):
    backbone = build(kind)
    backbone.blocks[1].mlp = nn.Identity()
    message = f"block 1 of '{kind}' has no MLP neurons: the second layer '{name}' is missing in Identity"
    with pytest.raises(ValueError, match=message):
        find_register_neurons(backbone, pixels(), rule="percentile:90")
    with pytest.raises(ValueError, match=message):
        backbone.change_neurons(1, torch.relu)
    with pytest.raises(ValueError, match=message), ablated_neurons(backbone, [(0, 0), (1, 0)]):
        pass
    assert hooks(backbone.model) == 0
    assert find_register_neurons(backbone, pixels(), rule="percentile:90", layers=[0, 2], top_k=1)


# Real weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif("HF_HUB_CACHE" not in os.environ, reason="HF_HUB_CACHE does not name a folder of weights")
def test_real_weights(monkeypatch):
    """ViT-Ti's outliers stand in the corners, whatever the picture, and come from one neuron."""
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # only what is in the cache already
    try:
        backbone = load_backbone(name)
    except ModelUnavailable:
        pytest.skip(f"HF_HUB_CACHE holds no weights of {name}")
    images = load_images("scenes", 8, 0)
    neurons = find_register_neurons(backbone, images, rule="fixed:100")
    assert neurons[0][:2] == (7, 417) and neurons[0].score > 5 * neurons[1].score
    x = torch.stack([backbone.preprocess(image) for image in images])
    norms = capture(backbone, x, [PatchNorms(-1)])["patch_norms"]
    with registers.test_time_registers(backbone, neurons[:1]):
        after = capture(backbone, x, [TokenNorms(-1)])["token_norms"]
        patches, appended = (part(after, dim=-1) for part in (backbone.layout.patch_tokens, backbone.layout.appended_tokens))
    assert norms.max() > 300 and patches.max() < 60 and appended.min() > 300
    torch.testing.assert_close(
        model_with_test_time_registers(backbone, neurons[:1])(x), inside(backbone, x, neurons[:1]), rtol=0, atol=1e-6
    )
