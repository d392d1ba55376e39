"""Models of one's own: modules in wrappers, files and folders."""

import copy
import json
import sys

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models._hub import save_for_hf
from torch import nn
from zoo import build, pixels, randomise

from helpers.capture import NeuronActivation, Output, PatchNorms, capture
from helpers.interventions import test_time_registers as moved
from helpers.interventions import write_model
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, OpenClipBackbone, load_backbone

ARCH = "vit_tiny_patch16_224"
FEW = {"depth": 2, "embed_dim": 24, "num_heads": 3}  # so that a test writes and computes little


@pytest.fixture(scope="module")
def model():
    """Of seven classes and 64 x 64 pixels, as someone trained it: in training mode, with drop
    path."""
    made = timm.create_model(
        ARCH, img_size=64, num_classes=7, drop_path_rate=0.3, drop_rate=0.3, **FEW
    )
    randomise(made).train().requires_grad_(True)
    made.pretrained_cfg = dict(made.pretrained_cfg, num_classes=7)
    return made


@pytest.fixture
def x():
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def answer(model, x):
    with torch.inference_mode():
        return copy.deepcopy(model).eval()(x)


def output(backbone, x):
    return capture(backbone, x, [Output()])["output"]


class Within(nn.Module):
    """A model around the backbone, as for a downstream task."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(3, 3)


@pytest.mark.parametrize("wrap", [lambda m: m, torch.compile, nn.DataParallel, Within])
def test_a_module_is_seen_through_its_wrapper_and_stays_as_it_is(model, x, answer, wrap):
    backbone = load_backbone(wrap(model))
    for _ in range(2):  # no drop path
        torch.testing.assert_close(output(backbone, x), answer)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert backbone.name == f"module:{ARCH}" and backbone.image_size == (64, 64)
    theirs, ours = (m.blocks[0].mlp.fc2.weight for m in (model, backbone.model))
    assert theirs.data_ptr() == ours.data_ptr(), "shared"


def test_a_module_takes_a_name_a_recipe_a_size_and_half_precision(model, x):
    data = {"mean": (0.1, 0.2, 0.3), "std": (1, 1, 1)}
    backbone = load_backbone(model, name="mine", data=data, image_size=96)
    assert backbone.name == "mine" and backbone.layout.grid == (6, 6)
    assert model.patch_embed.img_size == (64, 64)
    assert backbone.transform.transforms[-1].mean.tolist() == pytest.approx([0.1, 0.2, 0.3])
    half = load_backbone(copy.deepcopy(model).bfloat16())
    assert output(half, x).dtype == torch.float32


def test_an_open_clip_tower_as_a_module():
    own = build("open_clip")
    backbone = load_backbone(Within(own.model))
    assert isinstance(backbone, OpenClipBackbone) and backbone.layout == own.layout
    torch.testing.assert_close(output(backbone, pixels(own)), output(own, pixels(own)))


@pytest.fixture
def whole(monkeypatch):
    """timm's ViT-Ti and ViT-S with little in them."""
    plain, other = timm.create_model, FEW | {"embed_dim": 48}

    def small(name, *args, **options):
        few = FEW if ARCH in name else other if "vit_small" in name else {}
        return plain(name, *args, **options | few)

    monkeypatch.setattr(timm, "create_model", small)


@pytest.fixture
def saved(whole, model, tmp_path):
    """(content) -> the name of a file with it; a function makes it of the weights."""

    def save(content):
        torch.save(content(model.state_dict()), tmp_path / "mine.pth")
        return f"file:{tmp_path}/mine.pth@{ARCH}"

    return save


def prefixed(prefix, weights):
    return {f"{prefix}{key}": value for key, value in weights.items()}


@pytest.mark.parametrize("arch", ["vit_small_patch16_224", "resnet18", f"{ARCH}.badtag"])
def test_no_architecture_of_another_shape_or_name(saved, arch):
    with pytest.raises(ValueError, match=arch):
        load_backbone(saved(lambda w: w).removesuffix(ARCH) + arch)


@pytest.mark.parametrize(
    "make, found",
    [
        (lambda: nn.Linear(2, 2), "holds 0"),
        (lambda: nn.ModuleList(timm.create_model(ARCH, **FEW) for _ in range(2)), "holds 2"),
        (lambda: timm.create_model(ARCH, in_chans=4, **FEW), "4 channels"),
    ],
)
def test_modules_that_are_not_one_tower_of_colour_pictures(make, found):
    with pytest.raises(ValueError, match=found):
        load_backbone(make())


def test_safetensors_without_a_head(whole, model, x, answer, tmp_path):
    weights = {k: v for k, v in model.state_dict().items() if not k.startswith("head.")}
    save_file(weights, tmp_path / "mine.safetensors")
    name = f"file:{tmp_path}/mine.safetensors@{ARCH}"
    backbone = load_backbone(f"{name}.augreg_in21k_ft_in1k")
    torch.testing.assert_close(copy.deepcopy(model).eval().head(output(backbone, x)), answer)
    assert backbone.transform.transforms[-1].mean.tolist() == [0.5, 0.5, 0.5], "of the tag"
    assert load_backbone(name, pretrained=False).image_size == (224, 224)


def test_a_file_for_a_tower_of_open_clip(x, tmp_path, monkeypatch):
    import open_clip

    config = open_clip.get_model_config("ViT-B-32")
    config["vision_cfg"] |= {"layers": 2, "width": 64, "patch_size": 32, "image_size": 64}
    config["text_cfg"] |= {"layers": 1}
    monkeypatch.setitem(sys.modules["open_clip.factory"]._MODEL_CONFIGS, "ViT-B-32", config)
    made = open_clip.create_model("ViT-B-32").visual.eval()
    torch.save(prefixed("module.visual.", made.state_dict()), tmp_path / "tower.pt")
    backbone = load_backbone(f"file:{tmp_path}/tower.pt@open_clip:ViT-B-32")
    torch.testing.assert_close(output(backbone, x), made(x).detach())
    assert backbone.pretrained and backbone.depth == 2


def test_a_folder_that_timm_saved(whole, model, x, answer, tmp_path):
    save_for_hf(model, tmp_path / "saved", model_args=FEW | {"img_size": 64})
    name = f"local-dir:{tmp_path}/saved"
    torch.testing.assert_close(output(load_backbone(name), x), answer)
    drawn = load_backbone(name, pretrained=False)
    assert not drawn.pretrained and not torch.allclose(output(drawn, x), answer)
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ValueError, match="transformers:"):
        load_backbone(name)


def test_what_edit_wrote_is_the_model_in_its_intervention(tmp_path):
    backbone = load_backbone("control-position")
    shown = torch.randn(1, 3, *backbone.image_size, generator=torch.Generator().manual_seed(0))
    neurons = [(PLANTED_BLOCK["control-position"], REGISTER_NEURON)]
    write_model(backbone, neurons, place := tmp_path / "edited", shown)
    found = load_backbone(f"local-dir:{place}")
    assert (found.layout.registers, found.pretrained) == (1, True)
    assert found.normalisation == backbone.normalisation
    with moved(backbone, neurons):
        expected = capture(backbone, shown, [PatchNorms(), Output()])
    got = capture(found, shown, [PatchNorms(), Output(), NeuronActivation("a", *neurons[0])])
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-4)
    assert found.describe()["name"] == "local-dir:edited"
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "mean"}))
    with pytest.raises(ValueError, match="mean"):
        load_backbone(f"local-dir:{place}")


def test_provenance_has_the_digest_and_not_the_path(saved, tmp_path):
    backbone = load_backbone(saved(lambda w: w))
    said = backbone.describe()
    assert said["name"] == f"file:mine.pth@{ARCH}" and backbone.name.startswith("file:/")
    assert str(tmp_path) not in json.dumps(said)
    other = load_backbone(saved(lambda w: prefixed("module.", w)))
    assert other.weights_hash == said["weights_hash"]
