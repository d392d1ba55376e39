"""Names, layouts and refusals; loading goes through timm's and open_clip's own path, from a hub
cache made here."""

import os
from dataclasses import replace

import huggingface_hub
import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from helpers.capture import (
    AttentionEntropy,
    ClsAttention,
    ClsParts,
    Feature,
    FinalTokens,
    HighestToken,
    NeuronActivation,
    Output,
    PatchNorms,
    QKVNorms,
    capture,
)
from helpers.models import (
    CONTROL_DATA,
    ModelUnavailable,
    TokenLayout,
    known,
    load_backbone,
    wrap_timm,
)
from helpers.models import trained as scratch

TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
ROWS = (AttentionEntropy, QKVNorms)  # what needs rows of attention, or what they are made of


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hugging Face cache without a network; call it to put a file for a timm name into it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def put(repository, filename, write):
        folder = tmp_path / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0" * 40)
        write(snapshot / filename)

    return put


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224").state_dict()


@pytest.fixture
def tiny_clip(tmp_path, monkeypatch):
    """An open_clip architecture of 100 thousand weights, 'ViT-tiny-test', with the tag 'here' on
    the hub."""
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "ViT-tiny-test", config)
    tag = open_clip.get_pretrained_cfg("ViT-B-32", "openai") | {"hf_hub": "someone/tiny-clip/"}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "ViT-tiny-test", {"here": tag})


LAYOUTS = [
    ("vit_tiny_patch16_224", None, TokenLayout((14, 14)), 3),
    ("deit_tiny_distilled_patch16_224", 96, TokenLayout((6, 6), distillation=1), 3),
    ("deit3_small_patch16_224", 96, TokenLayout((6, 6)), 6),
    ("vit_small_patch14_dinov2", (56, 70), TokenLayout((4, 5)), 6),
    ("vit_small_patch14_reg4_dinov2", 70, TokenLayout((5, 5), registers=4), 6),
    ("vit_little_patch16_reg4_gap_256", 64, TokenLayout((4, 4), cls=False, registers=4), 5),
    ("vit_small_patch16_dinov3", 64, TokenLayout((4, 4), registers=4, rotary=True), 6),
    ("eva02_tiny_patch14_224", 56, TokenLayout((4, 4), rotary=True), 3),
    ("vit_pe_core_tiny_patch16_384", 64, TokenLayout((4, 4), rotary=True), 3),
    ("vit_base_patch16_siglip_224", 64, TokenLayout((4, 4), cls=False), 12),
]


@pytest.mark.parametrize("name, size, layout, heads", LAYOUTS)
def test_layout_of_timm_models(name, size, layout, heads):
    backbone = load_backbone(name, image_size=size, pretrained=False)
    assert backbone.layout == layout and backbone.heads == heads
    x = torch.zeros(1, 3, *backbone.image_size)
    tokens = capture(backbone, x, [FinalTokens()])["final_tokens"]
    assert tokens.shape == (1, layout.tokens, backbone.width)
    sides = zip(layout.grid, backbone.patch_size, strict=True)
    assert backbone.image_size == tuple(number * side for number, side in sides)
    assert not backbone.model.training
    assert not any(p.requires_grad for p in backbone.model.parameters())


@pytest.mark.parametrize(
    "name, layout, depth, hidden",
    [
        ("vit_giant_patch14_reg4_dinov2.lvd142m", TokenLayout((37, 37), registers=4), 40, 4096),
        ("vit_base_patch16_clip_224.openai", TokenLayout((14, 14)), 12, 3072),
        ("deit3_huge_patch14_224.fb_in22k_ft_in1k", TokenLayout((16, 16)), 32, 5120),
    ],
)
def test_layout_of_large_models_without_their_memory(name, layout, depth, hidden):
    with torch.device("meta"):
        backbone = wrap_timm(name, timm.create_model(name), CONTROL_DATA, pretrained=False)
    assert backbone.layout == layout and backbone.depth == depth
    assert {backbone.neurons(i).in_features for i in range(depth)} == {hidden}


def test_open_clip(tiny_clip):
    backbone = load_backbone("open_clip:ViT-tiny-test/random", pretrained=False, image_size=48)
    assert backbone.family == "open_clip" and not backbone.pretrained
    assert backbone.layout == TokenLayout((6, 6)) and backbone.image_size == (48, 48)
    assert (backbone.width, backbone.heads, backbone.depth) == (32, 4, 2)
    assert backbone(torch.zeros(2, 3, 48, 48)).shape == (2, 16)
    assert backbone.parameters < 40_000  # the text tower is not there
    image = Image.fromarray(np.full((40, 60), 128, dtype=np.uint8))
    assert backbone.preprocess(image).shape == (3, 48, 48)


@pytest.mark.parametrize("registers", [0, 4])
def test_trained_models(registers):
    name = f"scratch-reg{registers}"
    backbone = load_backbone(name, pretrained=False)  # their weights are part of them
    assert backbone.pretrained and backbone.layout == TokenLayout((8, 8), registers=registers)
    trained = scratch.load(name)[0].state_dict()
    for key, value in backbone.model.state_dict().items():
        assert torch.equal(value, trained[key])
    pixels = backbone.preprocess(Image.new("RGB", (224, 224), (255, 0, 51)))
    assert pixels.mean((1, 2)).tolist() == pytest.approx([1, -1, -0.6])
    assert backbone(torch.zeros(1, 3, 64, 64)).shape == (1, 10)

    large = load_backbone(name, image_size=(96, 128))
    assert large.layout == TokenLayout((12, 16), registers=registers)
    resampled = timm.layers.resample_abs_pos_embed
    expected = resampled(trained["pos_embed"], [12, 16], [8, 8], num_prefix_tokens=0)
    torch.testing.assert_close(large.model.pos_embed.data, expected)


def test_names_that_are_known():
    for name in (TINY, "vit_tiny_patch16_224", "control-clean", "file:a@b", "open_clip:a/b"):
        assert known(name)
    assert not known("module:vit_tiny_patch16_224") and not known("vit_tiny")


NEURONS = (NeuronActivation, HighestToken)


@pytest.mark.parametrize(
    "name, block, refused",
    [
        ("vit_dlittle_patch16_reg1_gap_256.sbb_nadamuon_in1k", "Block with DiffAttention", ROWS),
        ("vit_base_patch16_xp_224", "ParallelScalingBlock", ROWS + NEURONS),
        ("vit_small_patch16_18x2_224", "ParallelThingsBlock", ROWS + NEURONS),
    ],
)
def test_each_reducer_refuses_by_itself_what_an_unusual_block_does_not_show(name, block, refused):
    with torch.device("meta"):
        sketch = timm.create_model(name, depth=2, img_size=64)
    model = sketch.to_empty(device="cpu")
    for weight in model.parameters():
        torch.nn.init.constant_(weight, 0.01)
    backbone, x = wrap_timm(name, model, CONTROL_DATA, pretrained=False), torch.ones(1, 3, 64, 64)
    reducers = [PatchNorms(), Feature(), Output(), HighestToken(), QKVNorms(), AttentionEntropy()]
    for reducer in [*reducers, NeuronActivation("neuron", 0, 0)]:
        if isinstance(reducer, refused):
            with pytest.raises(ValueError, match=block):
                capture(backbone, x, [reducer])
        else:
            capture(backbone, x, [reducer])
    with pytest.raises(ValueError, match=block):
        backbone.sublayer(0)


def test_gated_attention_has_rows_and_no_sum_of_contributions():
    model = VisionTransformer(img_size=32, patch_size=16, embed_dim=8, depth=1, num_heads=2)
    model.blocks[0].attn.gate = torch.nn.Linear(8, 8)
    backbone = wrap_timm("gated", model, CONTROL_DATA, pretrained=False)
    x = torch.ones(1, 3, 32, 32)
    assert capture(backbone, x, [ClsAttention()])["cls_attention"].shape == (1, 1, 5)
    with pytest.raises(ValueError, match="block 0 of 'gated'"):
        capture(backbone, x, [ClsParts()])


@pytest.mark.parametrize(
    "name", [TINY, "open_clip:ViT-B-32/openai", "hf-hub:a/b@v1", "transformers:a/b"]
)
def test_weights_that_are_not_here(hub, name):
    with pytest.raises(ModelUnavailable, match=f"^'{name}' is not in the Hugging Face cache"):
        load_backbone(name)


def test_safetensors_are_loaded_and_position_embedding_resampled(hub, weights):
    hub(f"timm/{TINY}", "model.safetensors", lambda path: save_file(weights, path))
    backbone = load_backbone(TINY)
    assert all(torch.equal(weights[key], x) for key, x in backbone.model.state_dict().items())
    assert backbone.describe() == {
        "name": TINY, "family": "timm", "parameters": 5717416, "weights_hash":
        backbone.weights_hash, "image_size": (224, 224), "patch_size": (16, 16), "pretrained": True,
    }  # fmt: skip
    wide = load_backbone(TINY, image_size=(64, 96))
    expected = timm.layers.resample_abs_pos_embed(weights["pos_embed"], [4, 6], [14, 14])
    torch.testing.assert_close(wide.model.pos_embed.data, expected)
    assert wide.layout.grid == (4, 6) and wide.weights_hash != backbone.weights_hash


def test_weights_hash_sees_one_weight_and_nothing_else(weights):
    changed = weights | {"norm.bias": weights["norm.bias"] + torch.eye(192)[0] * 1e-7}
    hashes = []
    for state in (weights, weights, changed):
        backbone = load_backbone("vit_tiny_patch16_224", pretrained=False)
        backbone.model.load_state_dict(state)
        hashes.append(backbone.weights_hash)
    assert hashes[0] == hashes[1] != hashes[2] and len(hashes[0]) == 16


class Payload:
    def __reduce__(self):
        return os.mkdir, (os.environ["PAYLOAD"],)


@pytest.mark.parametrize(
    "name, repository, filename",
    [
        (TINY, f"timm/{TINY}", "pytorch_model.bin"),
        ("open_clip:ViT-tiny-test/here", "someone/tiny-clip", "open_clip_pytorch_model.bin"),
    ],
)
def test_pickles_are_refused_and_not_run(
    hub, tiny_clip, tmp_path, monkeypatch, name, repository, filename
):
    monkeypatch.setenv("PAYLOAD", str(tmp_path / "ran"))
    hub(repository, filename, lambda path: torch.save({"state_dict": Payload()}, path))
    with pytest.raises(ValueError, match=name):
        load_backbone(name)
    assert not (tmp_path / "ran").exists()


def test_open_clip_weights_bring_their_activation(hub, tiny_clip):
    torch.manual_seed(0)
    clip = open_clip.create_model("ViT-tiny-test", force_quick_gelu=True)

    def write(path):
        save_file(clip.state_dict(), path)

    hub("someone/tiny-clip", "open_clip_model.safetensors", write)
    backbone = load_backbone("open_clip:ViT-tiny-test/here")
    assert backbone.pretrained
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(backbone(x), clip.encode_image(x).detach())
    tag = open_clip.get_pretrained_cfg("ViT-B-32", "openai")
    white = (1 - torch.tensor(tag["mean"])) / torch.tensor(tag["std"])
    seen = backbone.preprocess(Image.new("RGB", (50, 32), "white"))
    torch.testing.assert_close(seen[:, 0, 0], white)


def test_preprocessing_keeps_mean_and_std_and_shows_all_of_an_image_at_another_size():
    picture = np.zeros((120, 120, 3), dtype=np.uint8)
    picture[4:-4, 4:-4] = 255  # a black frame, within the margin that the recipe crops away
    own = load_backbone("deit3_small_patch16_224", pretrained=False)
    data = timm.data.resolve_data_config(pretrained_cfg=own.model.pretrained_cfg)
    reference = timm.data.create_transform(**data)(Image.fromarray(picture))
    assert torch.equal(own.preprocess(Image.fromarray(picture)), reference)
    other = load_backbone("vit_tiny_patch16_224", image_size=96, pretrained=False)
    pixels = other.preprocess(Image.fromarray(picture))
    assert pixels.shape == (3, 96, 96)
    assert pixels[:, 0, 0].tolist() == pytest.approx([-1] * 3)
    assert pixels[:, 48, 48].tolist() == pytest.approx([1] * 3)
    cropped = load_backbone("vit_tiny_patch16_224", pretrained=False)
    assert cropped.preprocess(Image.fromarray(picture)).min() > 0.9


BOX = (0.625, 0.0, 0.875, 0.25)  # left, top, right, bottom, relative to the picture


def box_in(picture):
    """The relative box of what is white in normalised pixels (3, height, width)."""
    white = picture.mean(0) > picture.mean(0).amin() / 2 + picture.mean(0).amax() / 2
    spans = []
    for along in (white.any(0), white.any(1)):
        found = along.nonzero().flatten()
        spans.append((found.min().item() / len(along), (found.max().item() + 1) / len(along)))
    return spans[0][0], spans[1][0], spans[0][1], spans[1][1]


@pytest.mark.parametrize(
    "name, size",
    [
        ("vit_tiny_patch16_224", None),
        ("vit_tiny_patch16_224", (64, 96)),
        ("control-content", 64),
        ("open_clip:ViT-tiny-test/random", None),
        ("open_clip:ViT-tiny-test/random", 64),
    ],
)
def test_relative_boxes_carry_over_where_the_whole_image_is_shown(tiny_clip, name, size):
    whole, recipe = (
        load_backbone(name, image_size=size, pretrained=False, whole=value)
        for value in (True, False)
    )
    left, top, right, bottom = BOX
    for height, width in ((160, 320), (320, 160), (96, 96)):
        values = np.zeros((height, width, 3), dtype=np.uint8)
        rows, columns = (int(top * height), int(bottom * height)), (left * width, right * width)
        values[slice(*rows), slice(*map(int, columns))] = 255
        seen = whole.preprocess(Image.fromarray(values))
        assert seen.shape == (3, *whole.image_size)
        assert box_in(seen) == pytest.approx(BOX, abs=1.01 / min(whole.image_size))
        if height > width:  # the recipe crops the box away
            assert (seen - recipe.preprocess(Image.fromarray(values))).abs().max() > 1
    white = Image.new("RGB", (50, 90), "white")
    # Mean and standard deviation stay.
    torch.testing.assert_close(whole.preprocess(white), recipe.preprocess(white))


@pytest.mark.parametrize(
    "name", ["control-clean", "vit_tiny_patch16_224", "open_clip:ViT-tiny-test/random"]
)
def test_a_picture_as_the_model_sees_it(tiny_clip, name):
    """Cropped and resized, but not normalised; the same of pixels that were."""
    backbone = load_backbone(name, pretrained=False)
    colours = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    image = Image.fromarray(colours)
    *before, _ = backbone.transform.transforms
    expected = image
    for step in before:
        expected = step(expected)
    seen = backbone.as_seen(image)
    assert seen.shape == (*backbone.image_size, 3)
    torch.testing.assert_close(seen, expected.movedim(0, -1), rtol=0, atol=1e-5)
    assert torch.equal(backbone.as_seen(backbone.preprocess(image)), seen)


def test_pixels_of_unknown_preprocessing_are_shown_from_the_darkest_to_the_brightest():
    backbone = replace(load_backbone("control-clean"), transform=lambda image: image)
    pixels = torch.tensor([[[-2.0, 0.0, 0.5]], [[1.0, 2.0, -1.0]], [[0.0, 0.0, 1.5]]])
    expected = [[[0, 0.75, 0.5], [0.5, 1, 0.5], [0.625, 0.25, 0.875]]]
    torch.testing.assert_close(backbone.as_seen(pixels), torch.tensor(expected))
    assert not backbone.as_seen(torch.full((3, 2, 2), -1.0)).any()
    for plain in (torch.ones(3, 2, 2), torch.rand(3, 2, 2)):  # nothing says that these are not
        assert torch.equal(backbone.as_seen(plain), plain.movedim(0, -1))
