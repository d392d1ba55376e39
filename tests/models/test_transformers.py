"""Models in the format of transformers, against what that library computed.

`python tests/models/test_transformers.py KIND` writes the stored numbers anew; it needs
transformers.
"""

import json
import lzma
import re
import sys
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchvision.transforms.functional import to_pil_image

from helpers.capture import FinalTokens, Output, PatchNorms, capture
from helpers.files import compressed, read_content
from helpers.interventions import write_model
from helpers.models import TokenLayout, converted, load_backbone, published_head

FILE = Path(__file__).with_name("transformers.json")
STORED = json.loads(read_content(FILE))
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
MLP, DINO = {"intermediate_size": 64}, {"mlp_ratio": 2}
# name -> the class, its configuration beside SMALL, the layout, and whether its own last tokens are
# before the final LayerNorm.
LABELS = {**MLP, "num_labels": 3}
OWN, SHARED = {"use_relative_position_bias": True}, {"use_shared_relative_position_bias": True}
CLS = {"use_mean_pooling": False}
PAIRED = TokenLayout((4, 4), paired=True)
PLAIN, TEACHER = TokenLayout((4, 4)), TokenLayout((4, 4), distillation=1)
KINDS = {
    "vit": ("ViTModel", "ViTConfig", MLP, PLAIN, False),
    "vit-classifier": ("ViTForImageClassification", "ViTConfig", LABELS, PLAIN, False),
    "deit": ("DeiTModel", "DeiTConfig", MLP, TEACHER, False),
    "deit-classifier": ("DeiTForImageClassification", "DeiTConfig", LABELS, TEACHER, False),
    "deit-teacher": (
        "DeiTForImageClassificationWithTeacher", "DeiTConfig", LABELS, TEACHER, False
    ),
    "dinov2": ("Dinov2Model", "Dinov2Config", DINO, PLAIN, False),
    "dinov2-gated": ("Dinov2Model", "Dinov2Config", {**DINO, "use_swiglu_ffn": True}, PLAIN, False),
    "dinov2-registers": (
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO,
        TokenLayout((4, 4), registers=4), False,
    ),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", MLP, PLAIN, True),
    "clip-projection": (
        "CLIPVisionModelWithProjection", "CLIPVisionConfig", {**MLP, "projection_dim": 16}, PLAIN,
        True,
    ),
    "siglip": (
        "SiglipVisionModel", "SiglipVisionConfig", MLP, TokenLayout((4, 4), cls=False), False
    ),
    "ijepa": ("IJepaModel", "IJepaConfig", MLP, TokenLayout((4, 4), cls=False), False),
    "vit_mae": ("ViTMAEModel", "ViTMAEConfig", {**MLP, "mask_ratio": 0.0}, PLAIN, False),
    "vit_msn": ("ViTMSNModel", "ViTMSNConfig", MLP, PLAIN, False),
    "beit": ("BeitForImageClassification", "BeitConfig", {**LABELS, **OWN}, PAIRED, False),
    "beit-pooled": ("BeitModel", "BeitConfig", {**MLP, **OWN}, PAIRED, True),
    "beit-masked": (
        "BeitForMaskedImageModeling", "BeitConfig",
        {**MLP, **SHARED, "vocab_size": 5, "use_mask_token": True}, PAIRED, False,
    ),
    "beit-positions": (
        "BeitModel", "BeitConfig", {**MLP, **CLS, "use_absolute_position_embeddings": True}, PLAIN,
        False,
    ),
    "data2vec-vision": (
        "Data2VecVisionForImageClassification", "Data2VecVisionConfig", {**LABELS, **OWN}, PAIRED,
        False,
    ),
    "data2vec-vision-pretrained": (
        "Data2VecVisionModel", "Data2VecVisionConfig", {**MLP, **SHARED, **CLS}, PAIRED, False
    ),
}  # fmt: skip


def pixels():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def weight(name, shape):
    """Drawn from a seed that is the name of the weight in the files of transformers."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return (
        1 + 0.1 * noise if len(shape) == 1 and name.endswith(("weight", "lambda1")) else 0.3 * noise
    )


def written(folder, config, shapes, **processor):
    """A model as transformers saves it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weights = {name: weight(name, shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"transformers:{folder}"


def named(folder, kind, changed=(), **processor):
    """The name of a stored model, written with these changes of its configuration."""
    stored = STORED[kind]
    return written(folder, stored["config"] | dict(changed), stored["shapes"], **processor)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_transformers(tmp_path, kind):
    layout, before = KINDS[kind][3:]
    backbone = load_backbone(named(tmp_path, kind))
    assert backbone.layout == layout and backbone.family == "timm"
    got = capture(backbone, pixels(), [FinalTokens(norm=not before), Output()])
    for key, value in STORED[kind]["outputs"].items():
        expected = torch.tensor(value)
        assert expected.shape == got[key].shape
        assert (got[key] - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


FIXED = ("deit-teacher", *(kind for kind in KINDS if kind.startswith(("beit", "data2vec"))))


@pytest.mark.parametrize("kind", [x for x in KINDS if x not in FIXED])
def test_edited_files_give_what_the_intervention_gives(tmp_path, kind):
    """With LayerScale, gated MLPs, a norm before the blocks and epsilons of their own."""
    backbone = load_backbone(named(tmp_path, kind))
    neurons, new = [(1, 3), (0, 5)], tmp_path / "new"
    found = write_model(backbone, neurons, new, pixels(), count=2)
    assert found["difference"] < 1e-5 * backbone(pixels()).abs().max() < found["change"]


def test_a_beit_that_segments_has_no_norm_after_its_blocks(tmp_path):
    stored = STORED["beit-pooled"]
    shapes = {key: x for key, x in stored["shapes"].items() if not key.startswith("pooler.")}
    backbone = load_backbone(written(tmp_path, stored["config"], shapes))
    got = capture(backbone, pixels(), [FinalTokens(norm=True)])["final_tokens"]
    expected = torch.tensor(stored["outputs"]["final_tokens"])
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_tower_among_others_and_weights_in_parts(tmp_path):
    """CLIP with its text tower, in two files."""
    stored = STORED["clip-projection"]
    outer = {"model_type": "clip", "vision_config": stored["config"]}
    name = written(tmp_path, outer, stored["shapes"])
    weights = load_file(tmp_path / "model.safetensors") | {"text_model.x": torch.ones(1)}
    parts = {f"model-{i}.safetensors": list(weights)[i::2] for i in range(2)}
    for part, keys in parts.items():
        save_file({key: weights[key] for key in keys}, tmp_path / part)
    index = {"weight_map": {key: part for part, keys in parts.items() for key in keys}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model.safetensors").unlink()
    got = capture(load_backbone(name), pixels(), [Output()])["output"]
    torch.testing.assert_close(got, torch.tensor(stored["outputs"]["output"]), rtol=1e-5, atol=1e-5)


def test_preprocessing_and_image_size(tmp_path):
    plain = load_backbone(named(tmp_path / "plain", "dinov2"))
    assert plain.transform.transforms[-1].mean.tolist() == pytest.approx([0.485, 0.456, 0.406])
    processor = {"resample": 2, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}}
    name = named(tmp_path / "other", "dinov2", size={"shortest_edge": 40}, **processor, **MEANS)
    backbone = load_backbone(name)
    resize, *_, normalise = backbone.transform.transforms
    assert resize.size == 40 and resize.interpolation.value == "bilinear"
    assert normalise.mean.tolist() == pytest.approx([0.1, 0.2, 0.3])
    larger = load_backbone(name, image_size=48)
    norms = capture(larger, torch.zeros(1, 3, 48, 48), [PatchNorms(-1)])["patch_norms"]
    assert larger.layout.grid == (6, 6) and norms.shape[1] == 36
    assert load_backbone(name, pretrained=False).weights_hash != backbone.weights_hash


GREY = torch.ones(32, 1, 8, 8)
MEANS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.25]}


@pytest.mark.parametrize(
    "processor, mean, std",
    [
        ({"do_normalize": False}, 0, 1),
        ({"do_normalize": True, "rescale_factor": 1 / 255}, (0.1, 0.2, 0.3), (0.5, 0.5, 0.25)),
        ({"do_normalize": False, "do_rescale": False}, 0, 1 / 255),
        ({"rescale_factor": 1 / 127.5}, (0.05, 0.1, 0.15), (0.25, 0.25, 0.125)),
    ],
)
def test_pixels_are_as_the_processor_says(tmp_path, processor, mean, std):
    last = load_backbone(named(tmp_path, "dinov2", **MEANS | processor)).transform.transforms[-1]
    torch.testing.assert_close(last.mean, torch.tensor(mean).float().expand(3))
    torch.testing.assert_close(last.std, torch.tensor(std).float().expand(3))


def test_an_image_is_squashed_and_cropped_where_both_sides_are_given(tmp_path):
    """As DeiT's: of 80 x 40 pixels all but a border of a tenth, whatever the sides were."""
    processor = {"size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}}
    name = named(tmp_path, "deit", **processor, do_center_crop=True)
    columns = torch.arange(80.0).expand(3, 40, 80) / 80
    seen = load_backbone(name).transform(to_pil_image(columns))[0].diff(dim=1)[:, 1:-1]
    expected = 2 / 80 / 0.229  # two columns of the picture in one
    torch.testing.assert_close(seen, torch.full_like(seen, expected), rtol=0.1, atol=0.02)


@pytest.mark.parametrize("outer", ["llava", "paligemma"])
def test_the_tower_of_another_model(tmp_path, outer):
    """Its kind is that of its own configuration, which may stand within that of any model."""
    kind = {"llava": "clip", "paligemma": "siglip"}[outer]
    config, shapes = STORED[kind]["config"], STORED[kind]["shapes"]
    one = load_backbone(named(tmp_path / "one", kind))
    around = {"model_type": outer, "vision_config": config | {"model_type": f"{kind}_vision_model"}}
    other = load_backbone(written(tmp_path / "two", around, shapes))
    assert torch.equal(one(pixels()), other(pixels()))


@pytest.mark.parametrize("kind", ["clip", "siglip", "vit", "dinov2"])
def test_what_a_configuration_leaves_out_is_as_in_the_library(tmp_path, kind):
    """Within that of CLIP and SigLIP, too: its files hold only what differs."""
    config, shapes = STORED[kind]["config"], STORED[kind]["shapes"]
    less = {k: v for k, v in config.items() if k not in ("hidden_act", "layer_norm_eps")}
    one = load_backbone(named(tmp_path / "one", kind))
    outer = {"model_type": kind, "vision_config": less}
    other = load_backbone(written(tmp_path / "two", outer, shapes))
    assert torch.equal(one(pixels()), other(pixels()))


# Sides of the stored weights, and what they are in a model of the library's own sizes.
WIDTHS = {
    "siglip": {32: 768, 64: 3072, 96: 2304, 16: 196, 8: 16},
    "clip": {32: 768, 64: 3072, 17: 50, 8: 32},
}


@pytest.mark.parametrize("kind", WIDTHS)
def test_sizes_that_a_configuration_leaves_out(kind):
    """As google/siglip-base-patch16-224 has it: 12 heads, not as many as fit the weights."""
    state = {
        re.sub(r"layers\.\d+", f"layers.{i}", name): torch.empty(
            [WIDTHS[kind].get(side, side) for side in shape], device="meta"
        )
        for i in range(12)
        for name, shape in STORED[kind]["shapes"].items()
    }
    outer = {"model_type": kind, "vision_config": {"model_type": f"{kind}_vision_model"}}
    model, _, _ = converted.from_transformers(outer, state, kind)
    assert len(model.blocks) == 12 and model.blocks[0].attn.num_heads == 12


@pytest.mark.parametrize(
    "changed, more, reason",
    [
        ({"model_type": "swin"}, {}, "swin"),
        ({"model_type": "dinov3_vit"}, {}, "vit_small_patch16_dinov3.lvd1689m"),
        ({"model_type": "siglip2"}, {}, "vit_base_patch16_siglip_224.v2_webli"),
        ({"model_type": "aimv2"}, {}, "aimv2_large_patch14_224.apple_pt"),
        ({"model_type": "timm_wrapper", "architecture": "test_vit"}, {}, "@test_vit"),
        ({"hidden_act": "mish"}, {}, "mish"),
        (
            {"num_channels": 1},
            {"vit.embeddings.patch_embeddings.projection.weight": GREY},
            "1 channels",
        ),
        ({"num_hidden_layers": 3}, {}, "blocks.2"),
        ({}, {"x.embeddings.patch_embeddings.projection.weight": torch.ones(1)}, "2 vision towers"),
        ({}, {"classifier.weight": torch.ones(3, 32).int()}, "int32 in 'head.weight'"),
        ({}, {"vit.embeddings.class_embedding": torch.ones(1, 1, 32)}, "cls_token"),
    ],
)
def test_what_is_refused(tmp_path, changed, more, reason):
    """Another model, weights that are left out, and what would be changed in silence."""
    name = named(tmp_path, "vit-classifier", changed)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | more, path)
    with pytest.raises(ValueError, match=reason):
        load_backbone(name)


def test_the_head_that_was_published_with_a_dinov2(tmp_path):
    """Weight and bias as they are in the file, of the name and of its folder."""
    head = {"classifier.weight": (5, 16), "classifier.bias": (5,)}
    shapes = head | {"dinov2.layernorm.weight": (8,)}
    name = written(tmp_path / "one", {"model_type": "dinov2"}, shapes)
    expected = [weight(key, shape) for key, shape in head.items()]
    for called in (name, str(tmp_path / "one")):
        assert all(map(torch.equal, published_head(called).parameters(), expected))
    bare = written(tmp_path / "two", {"model_type": "dinov2"}, {"layernorm.weight": (8,)})
    with pytest.raises(ValueError, match="two"):
        published_head(bare)


def computed(kind, folder):
    """What the library computes, and what its file holds."""
    import transformers

    make, configure, options, _, _ = KINDS[kind]
    model = getattr(transformers, make)(getattr(transformers, configure)(**SMALL | options))
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    shapes = {name: list(value.shape) for name, value in sorted(load_file(path).items())}
    save_file({name: weight(name, shape) for name, shape in shapes.items()}, path)
    model = type(model).from_pretrained(folder, attn_implementation="eager").eval()
    more = {"noise": torch.arange(16.0).expand(2, -1)} if kind == "vit_mae" else {}
    with torch.inference_mode():
        answer = model(pixel_values=pixels(), **more)
    tokens = answer.get("last_hidden_state")
    output = answer.get("logits", answer.get("image_embeds", answer.get("pooler_output")))
    if kind in ("vit", "deit", "vit_mae", "vit_msn"):  # a pooler is a layer more, seldom there
        output = tokens.select(1, 0)
    if kind == "ijepa":
        output = tokens.mean(1)
    if kind == "beit-masked":
        with torch.no_grad():
            tokens, output = model.layernorm(model.beit(pixels())[0]), None
    outputs = {"final_tokens": tokens, "output": output}
    config = json.loads((folder / "config.json").read_text())
    kept = {"model_type", "hidden_act", "layer_norm_eps", "use_swiglu_ffn", "num_register_tokens"}
    kept |= {"projection_dim", *SMALL}
    config = {key: value for key, value in config.items() if key in kept}
    outputs = {key: value.tolist() for key, value in outputs.items() if value is not None}
    return {"config": config, "shapes": shapes, "outputs": outputs}


if __name__ == "__main__":
    import tempfile

    found = {}
    for kind in sys.argv[1:] or KINDS:
        with tempfile.TemporaryDirectory() as place:
            found[kind] = computed(kind, Path(place))
    digits = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.8g}"))
    compressed(FILE).write_bytes(lzma.compress(json.dumps(STORED | digits).encode(), preset=9))
