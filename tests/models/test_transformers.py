"""Models in the format of transformers, against what that library computed.

`python tests/models/test_transformers.py` writes the stored numbers anew; it needs transformers.
"""

import json
import re
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torchvision.transforms.functional import to_pil_image

from helpers.capture import FinalTokens, Output, PatchNorms, capture
from helpers.interventions import write_model
from helpers.models import (
    ModelUnavailable,
    TokenLayout,
    converted,
    load_backbone,
    published_head,
)

STORED = Path(__file__).with_name("transformers.json")
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
KINDS = {
    "vit": ("ViTModel", "ViTConfig", MLP, TokenLayout((4, 4)), False),
    "vit-classifier": ("ViTForImageClassification", "ViTConfig", {**MLP, "num_labels": 3},
    TokenLayout((4, 4)), False),
    "deit": ("DeiTModel", "DeiTConfig", MLP, TokenLayout((4, 4), distillation=1), False),
    "deit-classifier": (
        "DeiTForImageClassification", "DeiTConfig", {**MLP, "num_labels": 3}, TokenLayout((4, 4),
        distillation=1), False,
    ),
    "deit-teacher": (
        "DeiTForImageClassificationWithTeacher", "DeiTConfig", {**MLP, "num_labels": 3},
        TokenLayout((4, 4), distillation=1), False,
    ),
    "dinov2": ("Dinov2Model", "Dinov2Config", DINO, TokenLayout((4, 4)), False),
    "dinov2-gated": ("Dinov2Model", "Dinov2Config", {**DINO, "use_swiglu_ffn": True},
    TokenLayout((4, 4)), False),
    "dinov2-registers": (
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO, TokenLayout((4, 4),
        registers=4), False,
    ),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", MLP, TokenLayout((4, 4)), True),
    "clip-projection": (
        "CLIPVisionModelWithProjection", "CLIPVisionConfig", {**MLP, "projection_dim": 16},
        TokenLayout((4, 4)), True,
    ), "siglip": ("SiglipVisionModel", "SiglipVisionConfig", MLP, TokenLayout((4, 4), cls=False),
    False),
}  # fmt: skip


def pixels():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def weight(name, shape):
    """Drawn from a seed that is the name of the weight in the files of transformers."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return (
        1 + 0.1 * noise if len(shape) == 1 and name.endswith(("weight", "lambda1")) else 0.3 * noise
    )


def written(folder, config, shapes, prefix="", **processor):
    """A model as transformers saves it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {f"{prefix}{name}": weight(name, shape) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"transformers:{folder}"


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_transformers(stored, tmp_path, kind):
    told, layout, before = stored[kind], *KINDS[kind][3:]
    backbone = load_backbone(written(tmp_path / kind, told["config"], told["shapes"]))
    assert backbone.layout == layout and backbone.family == "timm"
    got = capture(backbone, pixels(), [FinalTokens(norm=not before), Output()])
    for key, value in told["outputs"].items():
        expected = torch.tensor(value)
        assert expected.shape == got[key].shape
        assert (got[key] - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_edited_files_give_what_the_intervention_gives(stored, tmp_path, kind):
    """With LayerScale, gated MLPs, a norm before the blocks and epsilons of their own."""
    told = stored[kind]
    backbone = load_backbone(written(tmp_path / kind, told["config"], told["shapes"]))
    neurons, new = [(1, 3), (0, 5)], tmp_path / "new"
    if kind == "deit-teacher":
        with pytest.raises(ValueError, match="is VisionTransformerDistilled, no Vision"):
            write_model(backbone, neurons, new, pixels())
        return
    found = write_model(backbone, neurons, new, pixels(), count=2, graph=False)
    assert found["difference"] < 1e-5 * backbone(pixels()).abs().max() < found["change"]


def test_a_tower_among_others_and_weights_in_parts(stored, tmp_path):
    """CLIP with its text tower, in two files."""
    told = stored["clip-projection"]
    name = written(
        tmp_path / "clip", {"model_type": "clip", "vision_config": told["config"]}, told["shapes"]
    )
    weights = {key: weight(key, shape) for key, shape in told["shapes"].items()} | {
        "text_model.x": torch.ones(1)
    }
    parts = {f"model-{i}.safetensors": list(weights)[i::2] for i in range(2)}
    for part, keys in parts.items():
        save_file({key: weights[key] for key in keys}, tmp_path / "clip" / part)
    index = {"weight_map": {key: part for part, keys in parts.items() for key in keys}}
    (tmp_path / "clip" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "clip" / "model.safetensors").unlink()
    got = capture(load_backbone(name), pixels(), [Output()])["output"]
    torch.testing.assert_close(got, torch.tensor(told["outputs"]["output"]), rtol=1e-5, atol=1e-5)


def test_preprocessing_and_image_size(stored, tmp_path):
    told = stored["dinov2"]
    plain = load_backbone(written(tmp_path / "plain", told["config"], told["shapes"]))
    assert plain.transform.transforms[-1].mean.tolist() == pytest.approx([0.485, 0.456, 0.406])
    processor = {
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [1, 1, 1],
        "resample": 2,
        "size": {"shortest_edge": 40},
    }
    name = written(
        tmp_path / "own",
        told["config"],
        told["shapes"],
        **processor,
        do_center_crop=True,
        crop_size={"height": 32},
    )
    backbone = load_backbone(name)
    resize, *_, normalise = backbone.transform.transforms
    assert resize.size == 40 and resize.interpolation.value == "bilinear"
    assert normalise.mean.tolist() == pytest.approx([0.1, 0.2, 0.3])
    larger = load_backbone(name, image_size=48)
    assert (
        larger.layout.grid == (6, 6)
        and capture(larger, torch.zeros(1, 3, 48, 48), [PatchNorms(-1)])["patch_norms"].shape[1]
        == 36
    )
    assert load_backbone(name, pretrained=False).weights_hash != backbone.weights_hash


MEANS = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.25]}


@pytest.mark.parametrize(
    "told, mean, std",
    [
        ({"do_normalize": False}, 0, 1),
        ({"do_normalize": True, "rescale_factor": 1 / 255}, (0.1, 0.2, 0.3), (0.5, 0.5, 0.25)),
        ({"do_normalize": False, "do_rescale": False}, 0, 1 / 255),
        ({"rescale_factor": 1 / 127.5}, (0.05, 0.1, 0.15), (0.25, 0.25, 0.125)),
    ],
)
def test_pixels_are_as_the_processor_says(stored, tmp_path, told, mean, std):
    kind = stored["dinov2"]
    name = written(tmp_path / "own", kind["config"], kind["shapes"], **MEANS | told)
    last = load_backbone(name).transform.transforms[-1]
    torch.testing.assert_close(last.mean, torch.tensor(mean).float().expand(3))
    torch.testing.assert_close(last.std, torch.tensor(std).float().expand(3))


def test_an_image_is_squashed_and_cropped_where_both_sides_are_told(stored, tmp_path):
    """As DeiT's: of 80 x 40 pixels all but a border of a tenth, whatever the sides were."""
    processor = {"size": {"height": 40, "width": 40}, "crop_size": {"height": 32, "width": 32}}
    told = stored["deit"]
    name = written(tmp_path, told["config"], told["shapes"], **processor, do_center_crop=True)
    columns = torch.arange(80.0).expand(3, 40, 80) / 80
    seen = load_backbone(name).transform(to_pil_image(columns))[0].diff(dim=1)[:, 1:-1]
    expected = 2 / 80 / 0.229  # two columns of the picture in one
    torch.testing.assert_close(seen, torch.full_like(seen, expected), rtol=0.1, atol=0.02)


@pytest.mark.parametrize("kind", ["clip", "siglip", "vit", "dinov2"])
def test_what_a_configuration_leaves_out_is_as_in_the_library(stored, tmp_path, kind):
    """Within that of CLIP and SigLIP, too: its files hold only what differs."""
    told = stored[kind]
    left = ("hidden_act", "layer_norm_eps")
    config = {key: value for key, value in told["config"].items() if key not in left}
    one = load_backbone(written(tmp_path / "one", told["config"], told["shapes"]))
    outer = {"model_type": kind, "vision_config": config}
    other = load_backbone(written(tmp_path / "two", outer, told["shapes"]))
    assert torch.equal(one(pixels()), other(pixels()))


# Sides of the stored weights, and what they are in a model of the library's own sizes.
WIDTHS = {
    "siglip": {32: 768, 64: 3072, 96: 2304, 16: 196, 8: 16},
    "clip": {32: 768, 64: 3072, 17: 50, 8: 32},
}


@pytest.mark.parametrize("kind", WIDTHS)
def test_sizes_that_a_configuration_leaves_out(stored, kind):
    """As google/siglip-base-patch16-224 has it: 12 heads, not as many as fit the weights."""
    state = {
        re.sub(r"layers\.\d+", f"layers.{i}", name): torch.empty(
            [WIDTHS[kind].get(side, side) for side in shape], device="meta"
        )
        for i in range(12)
        for name, shape in stored[kind]["shapes"].items()
    }
    outer = {"model_type": kind, "vision_config": {"model_type": f"{kind}_vision_model"}}
    model, _, _ = converted.from_transformers(outer, state, kind)
    assert len(model.blocks) == 12 and model.blocks[0].attn.num_heads == 12


@pytest.mark.parametrize(
    "changed, more, reason",
    [
        ({"model_type": "swin"}, {}, "swin"),
        ({"num_hidden_layers": 3}, {}, "blocks.2"),
        ({}, {"x.embeddings.patch_embeddings.projection.weight": torch.ones(1)}, "2 vision towers"),
        ({}, {"classifier.weight": torch.ones(3, 32).int()}, "int32 in 'head.weight'"),
        ({}, {"vit.embeddings.class_embedding": torch.ones(1, 1, 32)}, "two weights"),
    ],
)
def test_what_is_refused(stored, tmp_path, changed, more, reason):
    """Another model, weights that are left out, and what would be changed in silence."""
    told = stored["vit-classifier"]
    name = written(tmp_path / "odd", told["config"] | changed, told["shapes"])
    path = tmp_path / "odd" / "model.safetensors"
    save_file(load_file(path) | more, path)
    with pytest.raises(ValueError, match=reason):
        load_backbone(name)


def computed(kind, folder):
    """What the library computes, and what its file holds."""
    import transformers
    from safetensors import safe_open

    make, configure, options, _, _ = KINDS[kind]
    model = getattr(transformers, make)(getattr(transformers, configure)(**SMALL | options))
    model.save_pretrained(folder / "model")
    with safe_open(folder / "model" / "model.safetensors", "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
    save_file(
        {name: weight(name, shape) for name, shape in shapes.items()},
        folder / "model" / "model.safetensors",
    )
    model = type(model).from_pretrained(folder / "model", attn_implementation="eager").eval()
    with torch.inference_mode():
        told = model(pixel_values=pixels())
    outputs = {"final_tokens": told["last_hidden_state"]} if "last_hidden_state" in told else {}
    if (
        answer := told.get("logits", told.get("image_embeds", told.get("pooler_output")))
    ) is not None:
        # The pooler of ViT and DeiT is a layer more, which checkpoints seldom have; timm's feature
        # is [CLS].
        outputs["output"] = (
            told["last_hidden_state"].select(1, 0) if kind in ("vit", "deit") else answer
        )
    config = json.loads((folder / "model" / "config.json").read_text())
    kept = {
        "model_type",
        "hidden_act",
        "layer_norm_eps",
        "use_swiglu_ffn",
        "num_register_tokens",
        "projection_dim",
        *SMALL,
    }
    config = {key: value for key, value in config.items() if key in kept}
    return model, {
        "config": config,
        "shapes": shapes,
        "outputs": {key: value.tolist() for key, value in outputs.items()},
    }


if __name__ == "__main__":
    import tempfile

    found = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as place:
            found[kind] = computed(kind, Path(place))[1]
    digits = json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.8g}"))
    STORED.write_text(json.dumps(digits) + "\n")


def test_the_head_that_was_published_with_a_dinov2(tmp_path):
    """Weight and bias as they are in the file, of the name and of its folder."""
    head = {"classifier.weight": (5, 16), "classifier.bias": (5,)}
    name = written(
        tmp_path / "one", {"model_type": "dinov2"}, head | {"dinov2.layernorm.weight": (8,)}
    )
    for called in (name, str(tmp_path / "one")):
        found = published_head(called)
        assert all(
            torch.equal(x, weight(key, shape))
            for x, (key, shape) in zip(found, head.items(), strict=True)
        )
    bare = written(tmp_path / "two", {"model_type": "dinov2"}, {"layernorm.weight": (8,)})
    with pytest.raises(ValueError, match="no linear classifier"):
        published_head(bare)
    with pytest.raises(ModelUnavailable, match="nowhere"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        published_head("transformers:nowhere/at-all")
