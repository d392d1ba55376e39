"""What `helpers.models.controls` says of its models; scikit-learn's linear probes judge."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from helpers.images import load_images
from helpers.models import (
    CONTROLS,
    PLANTED_BLOCK,
    REGISTER_NEURON,
    TokenLayout,
    load_backbone,
    planted,
)
from helpers.models.backbone import on_input, on_output
from helpers.models.controls import CHANNELS, FURTHER, LATTICE, NOISE, SINK, build_control

WITH_OUTLIERS, WITHOUT_OUTLIERS = CONTROLS[:2], CONTROLS[2:]


class Run(NamedTuple):
    """One control on one set of scenes; `block` counts from 0."""

    layout: TokenLayout
    stream: Tensor  # (image, block, token, width)
    attention: Tensor  # (image, token) of [CLS] in the last block, mean over heads
    neurons: Tensor  # (image, token, hidden), input of fc2 in the planted block, or block 3
    planted: Tensor  # (image, patch) bool

    @property
    def norms(self):
        return self.layout.patch_tokens(self.stream).norm(dim=-1)

    @property
    def patch_attention(self):
        return self.layout.patch_tokens(self.attention, dim=-1)


@cache
def scenes(n, seed):
    images = load_images("scenes", n=n, seed=seed)
    pixels = torch.stack([torch.from_numpy(np.array(image)) for image in images])
    return pixels.permute(0, 3, 1, 2) / 127.5 - 1, images.labels


def forward(model, pixels, block):
    stream, neurons, qkv = [], [], []
    handles = [
        *(on_output(block, stream.append) for block in model.blocks),
        on_input(model.blocks[block].mlp.fc2, neurons.append),
        on_output(model.blocks[-1].attn.qkv, qkv.append),
    ]
    with torch.no_grad():
        model(pixels)
    for handle in handles:
        handle.remove()
    query, key, _ = qkv[0].unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
    attention = (query @ key.mT / 4).softmax(-1)[:, :, 0].mean(1)
    return torch.stack(stream, dim=1), attention, neurons[0]


@cache
def run(name, n=64, seed=0):
    model, (pixels, _) = build_control(name), scenes(n, seed)
    layout = TokenLayout((14, 14), registers=model.num_reg_tokens)
    return Run(layout, *forward(model, pixels, PLANTED_BLOCK.get(name, 3)), planted(name, pixels))


def r2(x, y, image):
    """Share of variance that a linear map explains, cross-validated by image."""
    probe = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-4, 4, 9)))
    predicted = cross_val_predict(probe, x, y, groups=image, cv=GroupKFold(5))
    return r2_score(y, predicted, multioutput="variance_weighted")


def accuracy(x, y, image):
    """Accuracy of a linear classifier, cross-validated by image."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=10, max_iter=5000))
    return np.mean(cross_val_predict(probe, x, y, groups=image, cv=GroupKFold(5)) == y)


def patches_of(pixels):
    """(image, patch, 3, 256)"""
    patches = pixels.unfold(2, 16, 16).unfold(3, 16, 16).flatten(4)
    return patches.permute(0, 2, 3, 1, 4).flatten(1, 2)


def one_per_image(mask):
    """Image and patch index of a random True in each image that has one."""
    scores = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    images = mask.any(1).nonzero()[:, 0]
    return images.numpy(), scores.argmax(1)[images].numpy()


@pytest.mark.parametrize("name", [*CONTROLS, *NOISE])
def test_a_control_by_its_name(name):
    """An ordinary model, and the same each time."""
    model, backbone = build_control(name), load_backbone(name, pretrained=False)
    assert type(model) is VisionTransformer and not model.training and backbone.pretrained
    assert (len(model.blocks), model.embed_dim, model.num_classes) == (6, 64, 0)
    assert backbone.layout.registers == model.num_reg_tokens == 4 * name.endswith("-registers")
    for key, value in model.state_dict().items():
        assert value.isfinite().all() and torch.equal(value, backbone.model.state_dict()[key])
    pixels = backbone.preprocess(Image.new("RGB", (224, 224), (255, 0, 51)))
    assert pixels.mean((1, 2)).tolist() == pytest.approx([1, -1, -0.6])
    assert load_backbone(name, image_size=320).layout.grid == (20, 20)


@pytest.mark.parametrize("name", [*CONTROLS, *FURTHER])
def test_weights_are_those_of_every_stored_number(name):
    """Of each parameter its length and its product with cos(1), cos(2), ...: whoever changes a
    control changes all that was measured on it, and says so here."""
    stored = json.loads(Path(__file__).with_name("control_weights.json").read_text())[name]
    model = load_backbone(name).model
    weights = {key: value.double().flatten() for key, value in model.state_dict().items()}
    assert weights.keys() == stored.keys()
    for key, value in weights.items():
        product = value @ torch.cos(torch.arange(1, len(value) + 1, dtype=torch.float64))
        found = [value.norm().item(), product.item()]
        assert found == pytest.approx(stored[key], rel=1e-5, abs=1e-4), key


def test_ground_truth_in_closed_form():
    constant = torch.full((1, 3, 224, 224), 0.2)
    noise = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    on_lattice = torch.zeros(1, 196, dtype=torch.bool)
    on_lattice[:, LATTICE["control-content"]] = True
    assert torch.equal(planted("control-content", constant), on_lattice)
    assert not planted("control-content", noise).any()
    constant[..., 16:32, 16 * 13 + 5] = 0.3  # one column of pixels in row 1, column 13: patch 27
    on_lattice[0, 27] = False
    assert torch.equal(planted("control-content", constant), on_lattice)
    constant[:, 1, 48:64, 16 * 3 + 5] = 0.3  # of one colour alone in row 3, column 3: patch 45
    on_lattice[0, 45] = False
    assert torch.equal(planted("control-content", constant), on_lattice)
    for image in (constant, noise):
        assert planted("control-position", image).nonzero()[:, 1].tolist() == [46, 66, 129, 149]
        assert not any(planted(name, image).any() for name in WITHOUT_OUTLIERS)


@pytest.mark.parametrize("name", WITH_OUTLIERS)
def test_outliers_are_the_planted_patches(name):
    result, start = run(name), PLANTED_BLOCK[name]
    median = result.norms.median()
    assert (result.norms[:, :start] < 1.5 * median).all()
    assert ((result.norms[:, start:] > 3 * median) == result.planted[:, None]).all()
    ratio = result.norms[:, start:].transpose(1, 2)[result.planted] / median
    assert 8 < ratio.min() and ratio.max() < 17 and 9 < ratio.median() < 15
    assert 0.015 < result.planted.float().mean() < 0.03


def test_content_decides_within_a_position():
    rate = run("control-content").planted[:, LATTICE["control-content"]].float().mean(0)
    assert ((0.2 < rate) & (rate < 0.7)).all()


@pytest.mark.parametrize("name", WITHOUT_OUTLIERS)
def test_patches_without_outliers(name):
    result = run(name)
    assert not result.planted.any() and result.norms.max() < 1.5 * result.norms.median()


def test_registers_carry_the_load():
    result = run("control-registers")
    ratio = result.layout.register_tokens(result.stream).norm(dim=-1) / result.norms.median()
    assert (ratio[:, :3] < 1.5).all() and (ratio[:, 3:] > 8).all()


@pytest.mark.parametrize("name", WITH_OUTLIERS)
def test_cls_attends_to_outliers(name):
    result = run(name)
    attention, norms = result.patch_attention, result.norms[:, -1]
    some = result.planted.any(1)
    highest_other = attention.masked_fill(result.planted, 0).amax(1)
    assert (attention.masked_fill(~result.planted, 1).amin(1) > 10 * highest_other)[some].all()
    assert (norms.argmax(1) == attention.argmax(1))[some].float().mean() > 0.9
    ranks = [
        spearmanr(norms[image][mask], attention[image][mask]).statistic
        for image, mask in enumerate(result.planted)
        if mask.sum() > 1
    ]
    assert np.mean(ranks) > 0.95
    top_norms, top_attention = norms > norms.quantile(0.98), attention > attention.quantile(0.98)
    either = (top_norms | top_attention).sum(1)
    overlap = (top_norms & top_attention).sum(1)
    assert overlap.sum() / either.sum() > 0.7 and (overlap / either).nanmean() > 0.7


def test_cls_attends_to_registers_and_to_contrast():
    registers, clean = run("control-registers"), run("control-clean")
    assert (registers.layout.register_tokens(registers.attention, dim=-1).sum(1) > 0.8).all()
    attention = clean.patch_attention / clean.patch_attention.sum(1, keepdim=True)
    assert 0.1 < (attention.std(1) * 196).mean() < 1 and attention.max() < 0.1
    contrast = patches_of(scenes(64, 0)[0]).mean(2).std(-1)
    pairs = zip(attention.log(), contrast, strict=True)
    assert np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs]) > 0.8


@pytest.mark.parametrize("name", [*PLANTED_BLOCK, NOISE[0]])
def test_one_neuron_writes_the_load(name):
    result, block = run(name), PLANTED_BLOCK.get(name, 3)
    fires = torch.zeros(result.neurons.shape[:2], dtype=torch.bool)
    result.layout.patch_tokens(fires, dim=-1)[:] = result.planted
    result.layout.register_tokens(fires, dim=-1)[:] = True
    assert torch.equal(result.neurons[..., REGISTER_NEURON] > 0, fires)
    assert result.neurons[fires].mean(0).argmax() == REGISTER_NEURON

    model = build_control(name)
    with torch.no_grad():
        model.blocks[block].mlp.fc2.weight[:, REGISTER_NEURON] = 0
    few = slice(16)
    stream, _, _ = forward(model, scenes(64, 0)[0][few], block)
    assert stream.norm(dim=-1).max() < 1.5 * result.norms.median()
    if name == NOISE[0]:  # without the load there is no noise either
        streams = stream, run("control-clean").stream[few], result.stream[few]
        hues, clean, before = (x[..., CHANNELS["hue"]] for x in streams)
        differ = result.layout.patch_tokens((hues - clean).abs())
        assert differ.max() < 1e-2 < (before - clean).abs().max()


def test_a_sink_holds_nothing_and_keeps_cls_from_what_misleads():
    n = 160
    result = run(SINK, n)
    assert ((result.norms[:, 1:] > 3 * result.norms.median()) == result.planted[:, None]).all()
    assert torch.equal(result.planted, run("control-position", n).planted)
    tokens = result.layout.patch_tokens(result.stream)[:, 2:]
    tokens = tokens.movedim(2, 1)[result.planted].unflatten(0, (n, 4))
    # In each place the same vector in all images.
    assert (tokens - tokens.narrow(0, 0, 1)).abs().max() < 1e-3 * tokens.abs().max()
    kept = result.patch_attention[result.planted].view(n, 4).sum(1) > 0.99
    assert kept.float().mean() > 0.7  # in busy pictures other patches draw [CLS] all the same
    cls = result.layout.cls_token(result.stream)[kept]
    change = (cls[:, -1] - cls[:, -2]).abs().amax(1)
    assert change.median() < 0.01 * cls[:, -2, CHANNELS["global"]].abs().max()
    cls = result.layout.cls_token(result.stream)
    _, labels = scenes(n, 0)
    assert 0.5 < accuracy(cls[:, -1].numpy(), labels, np.arange(n)) < 0.9


@pytest.mark.parametrize("name", CONTROLS)
def test_global_information(name):
    n = 160
    pixels, labels = scenes(n, 0)
    result, colour = run(name, n), pixels.mean((2, 3)).numpy()
    for block in {PLANTED_BLOCK.get(name, 3), 3, 5}:
        images, chosen = one_per_image(~result.planted)
        normal = result.layout.patch_tokens(result.stream)[images, block, chosen].numpy()
        assert r2(normal, colour[images], images) < 0.6
        assert accuracy(normal, labels[images], images) < 0.3
        if name == "control-clean":
            continue
        images, chosen = one_per_image(result.planted)
        holders = result.layout.patch_tokens(result.stream)[images, block, chosen]
        if name == "control-registers":
            images = np.arange(n)
            holders = result.layout.register_tokens(result.stream)[:, block, 0]
        holders = holders.numpy()
        assert r2(holders, colour[images], images) > 0.9
        assert accuracy(holders, labels[images], images) > 0.6
    cls = result.layout.cls_token(result.stream)[:, -1].numpy()
    assert accuracy(cls, labels, np.arange(n)) > 0.6


def test_noise_lies_at_four_positions_or_registers_bear_its_load():
    noise, registers = (run(name) for name in NOISE)
    median, places = noise.norms.median(), torch.zeros_like(noise.planted)
    places[:, LATTICE["control-noise"]] = True
    assert torch.equal(noise.planted, places) and not registers.planted.any()
    assert (noise.norms[:, :3] < 1.5 * median).all()
    assert ((noise.norms[:, 3:] > 8 * median) == places[:, None]).all()
    assert registers.norms.max() < 1.5 * median
    load = registers.layout.register_tokens(registers.stream).norm(dim=-1) / median
    assert (load[:, :3] < 1.5).all() and (load[:, 3:] > 8).all()
    on_registers = registers.layout.register_tokens(registers.attention, dim=-1).sum(1)
    assert (noise.patch_attention[places].view(-1, 4).sum(1) > 0.9).all()
    assert (on_registers > 0.9).all()


def test_noise_at_outliers_tells_neither_class_nor_colour_and_spoils_cls():
    n = 160
    pixels, labels = scenes(n, 0)
    noise, registers = (run(name, n) for name in NOISE)
    patches = [x.layout.patch_tokens(x.stream) for x in (noise, registers)]
    images, chosen = one_per_image(noise.planted)
    outlier = patches[0][images, -1, chosen].numpy()
    assert accuracy(outlier, labels, images) < 0.3
    assert r2(outlier, pixels.mean((2, 3)).numpy(), images) < 0.2
    before, hue = (x[..., CHANNELS["hue"]] for x in (patches[0], patches[1]))
    assert (before - hue).abs()[~noise.planted[:, None].expand(before.shape[:3])].max() < 1e-2
    for kept, (least, most) in ((noise, (0, 0.5)), (registers, (0.8, 1))):
        cls = kept.layout.cls_token(kept.stream)[:, -1].numpy()
        assert least <= accuracy(cls, labels, np.arange(n)) <= most


def appended(count, init=0.0):
    """Stream (image, block, token, width) with `count` more tokens of `init` at the end, and the
    layout; of 32 scenes."""
    model, stream = build_control("control-appended"), []
    for block in model.blocks:
        on_output(block, stream.append)
    tokens = torch.as_tensor(init).expand(32, count, 64)
    model.blocks[0].register_forward_pre_hook(lambda _, x: torch.cat([x[0], tokens], dim=1))
    with torch.no_grad():
        model(scenes(32, 0)[0])
    return torch.stack(stream, dim=1), TokenLayout((14, 14), appended=count)


def test_appended_is_content_but_for_the_attention_of_two_blocks():
    content, own = (build_control(f"control-{x}").state_dict() for x in ("content", "appended"))
    differ = {key for key, value in content.items() if not torch.equal(value, own[key])}
    assert {key.rsplit(".", 2)[0] for key in differ} == {"blocks.0.attn", "blocks.5.attn"}


def test_appended_token_ends_the_outliers():
    small = 0.02 * torch.randn(1, 1, 64, generator=torch.Generator().manual_seed(0))
    outliers = planted("control-content", scenes(32, 0)[0])
    stream, layout = appended(0)
    norms = layout.patch_tokens(stream).norm(dim=-1)
    assert ((norms[:, 3:] > 3 * norms.median()) == outliers[:, None]).all() and outliers.sum() > 80
    for count, init in ((1, 0.0), (8, 0.0), (1, small)):
        stream, layout = appended(count, init)
        norms = layout.patch_tokens(stream).norm(dim=-1)
        assert norms.max() < 1.1 * norms.median()
        assert stream[:, :, -count:].norm(dim=-1).max() < 2 * norms.median()
