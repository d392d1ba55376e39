"""Models of one's own: modules in wrappers, files, folders, and what a result says of where they
lie."""

import copy
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from fractions import Fraction
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from timm.models._hub import save_for_hf
from torch import nn
from zoo import build, pixels, randomise

from helpers.capture import ClsParts, NeuronActivation, Output, PatchNorms, capture
from helpers.foreign import mismatch
from helpers.interventions import test_time_registers as moved
from helpers.interventions import write_model
from helpers.models import (
    CONTROL_DATA,
    PLANTED_BLOCK,
    REGISTER_NEURON,
    ModelUnavailable,
    OpenClipBackbone,
    check_name,
    checkpoints,
    known,
    load_backbone,
    portable,
    wrap_timm,
)
from helpers.models.checkpoints import CONFIG, _misfit, view_of
from helpers.models.shapes import fitting, own_size

ARCH = "vit_tiny_patch16_224"
SIGLIP = {"depth": 1, "embed_dim": 24, "num_heads": 3, "img_size": 64}
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
    model.eval()
    with torch.inference_mode():
        made = model(x).clone()
    model.train()
    return made


def output(backbone, x):
    return capture(backbone, x, [Output()])["output"]


# Modules
# --------------------------------------------------------------------------------------------------


class Within(nn.Module):
    """A model around the backbone, as for a downstream task."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(3, 3)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: m,
        torch.compile,
        nn.DataParallel,
        Within,
        lambda m: torch.compile(nn.DataParallel(m)),
    ],
    ids=["itself", "compiled", "parallel", "within", "compiled parallel"],
)
def test_a_module_is_seen_through_its_wrapper_and_stays_as_it_is(model, x, answer, wrap):
    backbone = load_backbone(wrap(model))
    kept = [
        capture(backbone, x, [PatchNorms(), Output(), NeuronActivation("neuron", 0, 1)])
        for _ in range(2)
    ]
    assert torch.equal(kept[0]["patch_norms"], kept[1]["patch_norms"]), "no drop path"
    torch.testing.assert_close(kept[0]["output"], answer)
    assert not backbone.model.training and not any(
        p.requires_grad for p in backbone.model.parameters()
    )
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert backbone.name == f"module:{ARCH}" and backbone.image_size == (64, 64)
    assert (
        backbone.model.blocks[0].mlp.fc2.weight.data_ptr()
        == model.blocks[0].mlp.fc2.weight.data_ptr()
    ), "shared"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_module_takes_a_name_a_recipe_a_size_and_half_precision(model, x, answer):
    backbone = load_backbone(
        model, name="mine", data={"mean": (0.1, 0.2, 0.3), "std": (1, 1, 1)}, image_size=96
    )
    assert (
        backbone.name == "mine"
        and backbone.layout.grid == (6, 6)
        and model.patch_embed.img_size == (64, 64)
    )
    assert backbone.transform.transforms[-1].mean.tolist() == pytest.approx([0.1, 0.2, 0.3])
    half = load_backbone(timm.create_model(ARCH, img_size=64, **FEW).bfloat16())
    assert output(half, x).dtype == torch.float32


def resnet():
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1])


def two():
    return nn.ModuleList(timm.create_model(ARCH, img_size=32, **FEW) for _ in range(2))


@pytest.mark.parametrize(
    "make, reason",
    [
        (resnet, "ResNet holds no Vision Transformer of timm, open_clip, torchvision or transf"),
        (two, "ModuleList holds 2 Vision Transformers; give the one that is meant"),
    ],
)
def test_modules_that_hold_none_or_several(make, reason):
    with pytest.raises(ValueError, match=reason):
        load_backbone(make())


def test_an_open_clip_tower_as_a_module():
    own = build("open_clip")
    with pytest.raises(ValueError, match="stays at its image size"):
        load_backbone(own.model, image_size=64)
    backbone = load_backbone(Within(own.model))
    assert isinstance(backbone, OpenClipBackbone) and backbone.layout == own.layout
    torch.testing.assert_close(output(backbone, pixels(own)), output(own, pixels(own)))


def test_a_torchvision_module_gives_the_same(x):
    theirs = randomise(torchvision.models.VisionTransformer(64, 16, 2, 2, 32, 64, num_classes=5))
    backbone = load_backbone(theirs)
    torch.testing.assert_close(output(backbone, x), theirs(x), rtol=1e-5, atol=1e-5)
    assert backbone.name == "module:torchvision"
    theirs.heads = nn.Sequential()
    assert output(load_backbone(theirs), x).shape == (2, 32)


def test_torchvision_by_name(x):
    backbone = load_backbone("torchvision:vit_b_32", pretrained=False, image_size=64)
    assert (
        backbone.layout.grid == (2, 2)
        and backbone.heads == 12
        and output(backbone, x).shape == (2, 1000)
    )


def test_torchvision_weights_that_are_not_here(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(
        ModelUnavailable, match="'torchvision:vit_b_16' is not in torch's cache of downloads"
    ):
        load_backbone("torchvision:vit_b_16")


# Adapters
# --------------------------------------------------------------------------------------------------


class Adapter(nn.Module):
    """A low-rank addition to a layer, with the few names by which PEFT's are known."""

    def __init__(self, layer):
        super().__init__()
        self.base_layer, self.merged, self.disable_adapters = layer, False, False
        self.down = nn.Parameter(torch.randn(2, layer.in_features) / 8)
        self.up = nn.Parameter(torch.randn(layer.out_features, 2))

    def forward(self, x):
        return self.base_layer(x) + x @ self.down.T @ self.up.T

    def merge(self):
        self.base_layer.weight.data += self.up @ self.down


def test_adapters_are_merged_in_a_copy(x):
    torch.manual_seed(0)
    model = randomise(timm.create_model(ARCH, img_size=64, num_classes=3, **FEW))
    for block in model.blocks:
        block.mlp.fc2, block.attn.qkv, block.attn.proj = map(
            Adapter, (block.mlp.fc2, block.attn.qkv, block.attn.proj)
        )
    before = {key: value.clone() for key, value in model.state_dict().items()}
    backbone, plain = load_backbone(model), model(x).detach()
    got = capture(backbone, x, [Output(), NeuronActivation("neuron", 0, 1), ClsParts()])
    torch.testing.assert_close(got["output"], plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got["cls_parts"].sum(1), got["cls_total"], rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    torch.testing.assert_close(model(x).detach(), plain, rtol=0, atol=0)


@pytest.mark.parametrize(
    "state, added",
    [({}, True), ({"merged": True}, False), ({"disable_adapters": True}, False)],
    ids=["plain", "merged", "disabled"],
)
def test_an_adapter_is_added_once_and_only_where_it_acts(state, added):
    layer = Adapter(nn.Linear(3, 3))
    del layer.merged, layer.disable_adapters
    vars(layer).update(state)
    (got,) = view_of(nn.Sequential(layer))
    weight = layer.base_layer.weight + (layer.up @ layer.down if added else 0)
    torch.testing.assert_close(got.weight, weight)


class Saved(nn.Module):
    """A layer that was trained beside adapters, with the names by which PEFT's are known."""

    def __init__(self, **own):
        super().__init__()
        for name, value in own.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    "active, chosen",
    [
        ({"active_adapter": ["other", "one"]}, 2),
        ({"active_adapter": "other"}, 2),
        ({"active_adapter": "one"}, 1),
        ({"active_adapter": []}, 0),
        ({"active_adapter": "none"}, 0),
        ({}, 0),
    ],
)
def test_of_layers_that_were_saved_the_active_one_is_taken(active, chosen):
    layers = [nn.Linear(1, 1) for _ in range(3)]
    kept = nn.ModuleDict({"one": layers[1], "other": layers[2]})
    (got,) = view_of(
        nn.Sequential(Saved(original_module=layers[0], modules_to_save=kept, **active))
    )
    assert got.weight.data_ptr() == layers[chosen].weight.data_ptr()


@pytest.mark.parametrize("name", ["base_layer", "merge", "original_module", "modules_to_save"])
def test_a_layer_with_one_of_the_names_is_no_adapter(name):
    (got,) = view_of(nn.Sequential(Saved(**{name: nn.ModuleDict({"one": nn.Linear(1, 1)})})))
    assert isinstance(got, Saved)


def test_a_view_has_whole_numbers_and_nothing_that_goes_around_hooks():
    layer = nn.Linear(1, 1)
    layer.whole = nn.Parameter(torch.tensor([3], dtype=torch.int8), requires_grad=False)
    layer._compiled_call_impl = lambda *_: 1 / 0  # as module.compile() sets it
    view = view_of(layer)
    assert view.whole.data_ptr() == layer.whole.data_ptr() and not view.weight.requires_grad
    assert "_compiled_call_impl" in vars(layer) and "_compiled_call_impl" not in vars(view)


def test_in_mixed_precision_all_is_computed_in_single(model, x, answer):
    mixed = copy.deepcopy(model)
    mixed.head.bfloat16()
    got = load_backbone(mixed)
    assert {p.dtype for p in got.model.parameters()} == {torch.float32}
    torch.testing.assert_close(output(got, x), answer, rtol=0.02, atol=0.02)


def test_a_configuration_does_not_make_a_model_of_transformers(model, x, answer):
    within = Within(model)
    within.config = SimpleNamespace(model_type="vit")
    torch.testing.assert_close(output(load_backbone(within), x), answer)


def test_peft(x):
    peft = pytest.importorskip(
        "peft", reason="peft is not installed; test_adapters_are_merged_in_a_copy has its names"
    )
    model = randomise(timm.create_model(ARCH, img_size=64, num_classes=3, **FEW))
    how = {
        "target_modules": ["fc2", "qkv"],
        "modules_to_save": ["head"],
        "init_lora_weights": False,
    }
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**how)).eval()
    torch.testing.assert_close(
        output(load_backbone(wrapped), x), wrapped(x).detach(), rtol=1e-4, atol=1e-4
    )


# Files
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def whole(monkeypatch):
    """timm's ViT-Ti and ViT-S with little in them."""
    plain, other = timm.create_model, FEW | {"embed_dim": 48}

    def small(name, *args, **options):
        few = FEW if ARCH in name else other if "vit_small" in name else {}
        return plain(name, *args, **options | few)

    monkeypatch.setattr(timm, "create_model", small)


def prefixed(prefix, weights):
    return {f"{prefix}{key}": value for key, value in weights.items()}


def zeros(weights):
    return {key: torch.zeros_like(value) for key, value in weights.items()}


def around(weights):
    """A classifier that holds the backbone: its head stands beside it."""
    head = {key: value for key, value in weights.items() if key.startswith("head.")}
    return prefixed("encoder.", {key: weights[key] for key in weights.keys() - head}) | head


PLACES = {
    "plain": lambda w: w,
    "prefixed": lambda w: {"epoch": 3, "state_dict": prefixed("module.backbone.", w)},
    "compiled": lambda w: {"model": prefixed("_orig_mod.", w)},
    "teacher": lambda w: {"student": zeros(w), "teacher": prefixed("backbone.", w)},
    "both in one": lambda w: prefixed("student.", zeros(w)) | prefixed("teacher.", w),
    "averaged": lambda w: {"model": zeros(w), "state_dict_ema": w},
    "a head around it": around,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_file_of_weights(whole, model, x, answer, tmp_path, place):
    """Prefixes, number of classes and image size are found out."""
    path = tmp_path / "mine.pth"
    torch.save(PLACES[place](model.state_dict()), path)
    backbone = load_backbone(f"file:{path}@{ARCH}")
    assert backbone.image_size == (64, 64) and not backbone.model.training
    torch.testing.assert_close(output(backbone, x), answer)


def test_what_timm_writes_beside_the_weights_is_read(whole, model, x, answer, tmp_path):
    """Its arguments are an argparse.Namespace, which torch then refuses elsewhere as before."""
    path = tmp_path / "last.pth.tar"
    torch.save({"args": Namespace(lr=0.1), "state_dict": model.state_dict()}, path)
    torch.testing.assert_close(output(load_backbone(f"file:{path}@{ARCH}"), x), answer)
    with pytest.raises(UnpicklingError):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize("zipped", [True, False])
def test_the_line_that_is_printed_takes_the_weights_out(
    whole, model, tmp_path, monkeypatch, zipped
):
    """Of a file with another class, which is named and never made."""
    monkeypatch.chdir(tmp_path)
    content = {"state_dict": model.state_dict(), "share": Fraction(1, 2)}
    torch.save(content, "it's.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"more than tensors \(fractions.Fraction\), and") as error:
        load_backbone(f"file:it's.pth@{ARCH}")
    words = shlex.split(str(error.value).partition("from the key that holds them: ")[2])
    assert words[:2] == ["python", "-c"]
    subprocess.run([sys.executable, *words[1:]], check=True)
    assert load_backbone(f"file:weights.pth@{ARCH}").model.num_classes == 7


@pytest.mark.parametrize("prefix", ["module.visual.", "visual.", ""])
def test_a_file_for_a_tower_of_open_clip(x, tmp_path, monkeypatch, caplog, prefix):
    import open_clip

    config = open_clip.get_model_config("ViT-B-32")
    config["vision_cfg"] |= {"layers": 2, "width": 64, "patch_size": 32, "image_size": 64}
    config["text_cfg"] |= {"layers": 1}
    monkeypatch.setitem(sys.modules["open_clip.factory"]._MODEL_CONFIGS, "ViT-B-32", config)
    made = open_clip.create_model("ViT-B-32").visual.eval()
    caplog.clear()
    torch.save(prefixed(prefix, made.state_dict()), tmp_path / "tower.pt")
    backbone = load_backbone(f"file:{tmp_path}/tower.pt@open_clip:ViT-B-32")
    torch.testing.assert_close(output(backbone, x), made(x).detach())
    assert backbone.pretrained and backbone.depth == 2 and not caplog.records
    name = f"file:{tmp_path}/tower.pt@open_clip:ViT-B-32"
    assert not load_backbone(name, pretrained=False).pretrained


def test_architectures_whose_shapes_fit():
    """Of 60 names in well under five seconds; a wrong one says what differs."""
    names = [x for x in timm.list_models("vit_*patch14*") if "clip" not in x]
    with torch.device("meta"):
        state = timm.create_model("vit_small_patch14_reg4_dinov2", img_size=56).state_dict()
        wrong = timm.create_model("vit_base_patch16_224", num_classes=0)
    before = time.monotonic()
    assert fitting(state, "vit_small_patch16_224", names, 8192) == ["vit_small_patch14_reg4_dinov2"]
    assert time.monotonic() - before < 5
    assert fitting(state, "vit_small_patch16_224", names, 8192, seconds=-1) == []
    assert fitting(state | {"more": torch.ones(1)}, ARCH, names[:5], 8192) == []
    assert _misfit(wrong, state, None, "vit_base_patch16_224") == (
        "4 registers in the file, 0 in vit_base_patch16_224, 384 channels in the file, "
        "768 in vit_base_patch16_224, 14 x 14 pixels a patch in the file, 16 x 16 in "
        "vit_base_patch16_224, 1536 hidden units of an MLP in the file, 3072 in "
        "vit_base_patch16_224"
    )


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    """What `edit` writes of a control."""
    backbone = load_backbone("control-position")
    place = tmp_path_factory.mktemp("edit") / "edited"
    shown = torch.randn(1, 3, *backbone.image_size, generator=torch.Generator().manual_seed(0))
    neurons = [(PLANTED_BLOCK["control-position"], REGISTER_NEURON)]
    write_model(backbone, neurons, place, shown)
    return backbone, neurons, place, shown


@pytest.mark.filterwarnings("ignore:.*how its images are normalised")
def test_what_edit_wrote_is_the_model_in_its_intervention(edited):
    backbone, neurons, place, shown = edited
    found = load_backbone(f"local-dir:{place}")
    assert (found.layout.registers, found.pretrained) == (1, True)
    assert found.layout.patches == backbone.layout.patches
    with moved(backbone, neurons):
        expected = capture(backbone, shown, [PatchNorms(), Output()])
    got = capture(found, shown, [PatchNorms(), Output(), NeuronActivation("a", *neurons[0])])
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-4, atol=1e-4)
    assert found.describe()["name"] == "local-dir:edited"
    drawn = load_backbone(f"local-dir:{place}", pretrained=False)
    assert drawn.layout.registers == 1 and not drawn.pretrained
    assert load_backbone(f"local-dir:{place}", image_size=96).layout.grid == (6, 6)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"neurons": {"blocks.9.mlp.fc2": [[1], [0]]}}, "model in .* cannot be read .*`9`"),
        ({"neurons": {}}, "model in .* cannot be read .*; write it again with `edit`"),
        ({"neurons": {"blocks.2.mlp.fc2": [[-1], [0]]}}, "-1 is less than the minimum"),
        ({"registers": 2}, "1 registers in the file, 2 in ARCH"),
        ({"architecture": "resnet18"}, "is a 'resnet18', not a plain Vision Transformer"),
        ({"clear": "none"}, "clear: 'none' is not one of"),
        ({"mean": [0.5]}, "mean: .*; write it again with `edit`"),
    ],
)
def test_what_edit_did_not_write_is_refused(edited, tmp_path, change, reason):
    shutil.copytree(edited[2], tmp_path / "edited")
    place = tmp_path / "edited" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | change))
    with pytest.raises(ValueError, match=reason):
        load_backbone(f"local-dir:{tmp_path}/edited")


def test_what_edit_wrote_says_how_its_images_are_normalised(edited, tmp_path):
    shutil.copytree(edited[2], tmp_path / "edited")
    place, name = tmp_path / "edited" / "config.json", f"local-dir:{tmp_path}/edited"
    config = json.loads(place.read_text())
    place.write_text(json.dumps(config | {"mean": [0.5] * 3, "std": [0.25] * 3}))
    normalise = load_backbone(name).transform.transforms[-1]
    assert (normalise.mean.tolist(), normalise.std.tolist()) == ([0.5] * 3, [0.25] * 3)
    older = {key: x for key, x in config.items() if key not in ("mean", "std", "input_size")}
    place.write_text(json.dumps(older))
    with pytest.warns(UserWarning, match="how its images are normalised: ImageNet's mean"):
        load_backbone(name)


def test_safetensors_without_a_head(whole, model, x, answer, tmp_path):
    weights = {
        key: value for key, value in model.state_dict().items() if not key.startswith("head.")
    }
    save_file(weights, tmp_path / "mine.safetensors")
    backbone = load_backbone(
        f"file:{tmp_path}/mine.safetensors@{ARCH}.augreg_in21k_ft_in1k", image_size=64
    )
    torch.testing.assert_close(model.eval().head(output(backbone, x)), answer)
    assert backbone.transform.transforms[-1].mean.tolist() == [0.5, 0.5, 0.5], "of the tag"
    assert load_backbone(
        f"file:{tmp_path}/mine.safetensors@{ARCH}", pretrained=False
    ).image_size == (224, 224)


@pytest.mark.parametrize(
    "tokens, size",
    [(1 + 9, (48, 24)), (1 + 512**2, (8192, 4096)), (1 + 513**2, None)]
    + [(1 + 8, None), (1, None), (0, None), (1 + 14 * 28, None)],
)
def test_the_image_size_is_told_by_a_square_grid_alone(tokens, size):
    with torch.device("meta"):
        sketch = timm.create_model(ARCH, patch_size=(16, 8), **FEW)
    assert own_size(sketch, {"pos_embed": torch.zeros(1, tokens, 24)}, 8192) == size


@pytest.mark.parametrize("theirs", [None, (1, 197, 24), (198, 24), (1, 1 + 81, 24)])
@pytest.mark.parametrize("has", [True, False])
def test_the_image_size_stays_where_positions_do_not_tell_another(theirs, has):
    with torch.device("meta"):
        sketch = timm.create_model(ARCH, **FEW)
    if not has:
        sketch.pos_embed = None
    state = {} if theirs is None else {"pos_embed": torch.zeros(theirs)}
    told = has and theirs == (1, 1 + 81, 24)
    assert own_size(sketch, state, 8192) == ((144, 144) if told else None)


def test_half_the_numbers_are_the_fewest_that_are_read():
    sketch = timm.create_model(ARCH, img_size=64, num_classes=2, **FEW)
    wanted = sum(p.numel() for p in sketch.parameters())
    assert wanted % 2 == 0
    assert _misfit(sketch, {"x": torch.zeros(wanted // 2)}, (64, 64)) == ""
    few = f"they are {wanted // 2 - 1} numbers, not {wanted}"
    assert _misfit(sketch, {"x": torch.zeros(wanted // 2 - 1)}, (64, 64)) == few


def test_a_head_has_at_most_so_many_classes(whole, model, monkeypatch, tmp_path):
    torch.save(model.state_dict(), tmp_path / "mine.pth")
    name = f"file:{tmp_path}/mine.pth@{ARCH}"
    monkeypatch.setitem(checkpoints._CLASSES, "maximum", 7)
    assert load_backbone(name).model.num_classes == 7
    monkeypatch.setitem(checkpoints._CLASSES, "maximum", 6)
    with pytest.raises(ValueError, match="has 7 classes; take it out of the file"):
        load_backbone(name)


def test_a_siglip_lacks_nothing(x, tmp_path):
    """Of one without the pooling timm takes what there is."""
    made = randomise(timm.create_model("vit_base_patch16_siglip_gap_224", **SIGLIP))
    save_for_hf(made, tmp_path, model_args=SIGLIP)
    backbone, key = load_backbone(f"local-dir:{tmp_path}"), "norm.bias"
    torch.testing.assert_close(output(backbone, x), made.eval()(x).detach())
    kept = {name: value for name, value in made.state_dict().items() if name != key}
    save_file(kept, tmp_path / "model.safetensors")
    (tmp_path / "pytorch_model.bin").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=f"lack {key}; save all of them and nothing else"):
        load_backbone(f"local-dir:{tmp_path}")


def test_of_a_repository_no_code_is_run(monkeypatch, tmp_path):
    """timm is asked for the file that the configuration names, and for weights alone."""
    (tmp_path / "config.json").write_text(json.dumps(recipe(hf_hub_filename="own.bin")))
    asked, told, control = [], tmp_path / "config.json", load_backbone("control-clean")
    for name, made in (
        ("download_from_hf", lambda *_: told),
        ("load_state_dict_from_hf", lambda *place, **how: asked.append((place, how)) or {}),
        ("_filled", lambda name, source, framing, state: asked.append((name, state)) or control),
    ):
        monkeypatch.setattr(checkpoints, name, made)
    load_backbone("hf-hub:a/b")
    assert asked == [(("a/b", "own.bin"), {"weights_only": True}), ("hf-hub:a/b", {})]


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """Files that are no weights of timm's ViT-Ti, and one that is."""
    folder, weights = tmp_path_factory.mktemp("files"), model.state_dict()
    torch.save(model, folder / "pickled.pth")
    torch.save({"layer.weight": torch.ones(2)}, folder / "other.pth")
    torch.save(weights | {"blocks.0.mlp.fc2.shift": torch.tensor([3])}, folder / "edited.pth")
    torch.save(weights, folder / "mine.pth")
    eighths = torch.randn(24, 3, 8, 8)
    torch.save(weights | {"patch_embed.proj.weight": eighths}, folder / "eighths.pth")
    torch.save({"patch_embed.proj.weight": torch.tensor(1.0)}, folder / "number.pth")
    (folder / "broken.safetensors").write_bytes(b"nothing")
    within = {"state_dict": {}}
    within["state_dict"]["state_dict"] = within
    torch.save(within, folder / "endless.pth")
    many = {"head.weight": torch.ones(1, 24).expand(10**7, 24)}
    torch.save(weights | many, folder / "classes.pth")
    torch.save(weights | {"pos_embed": torch.ones(1, 0, 24)}, folder / "nowhere.pth")
    torch.save({"visual.conv1.weight": torch.ones(24, 3, 16, 16)}, folder / "tower.pth")
    few = {key: torch.ones(1, 2, 3, 4, 5)[0, 0] for key in "abcd"}
    torch.save(few, folder / "few.pth")
    return folder


@pytest.mark.parametrize(
    "name, reason",
    [
        (f"pickled.pth@{ARCH}", r"tensors \(timm.*VisionTransformer\), and .*\)\.state_dict\(\), "),
        (f"other.pth@{ARCH}", r"has no 'patch_embed.proj.weight' .*\(layer.weight, ...\)"),
        (f"edited.pth@{ARCH}", "do not load: .*blocks.0.mlp.fc2.shift.*; name the architecture"),
        (f"broken.safetensors@{ARCH}", "does not load"),
        (
            "mine.pth@vit_small_patch16_224",
            "24 channels in the file, 48 in vit_small.*; give '@vit_tiny_p",
        ),
        (
            f"eighths.pth@{ARCH}",
            f"8 x 8 pixels a patch in the file, 16 x 16 in {ARCH}; name the arc.* of one with "
            r"arguments of its own save the model by `timm.models.save_for_hf\(model, 'PATH'\)` "
            "and give 'local-dir:PATH'$",
        ),
        (f"number.pth@{ARCH}", "is a single number; save it again"),
        (f"endless.pth@{ARCH}", "the weights in .* cannot be read .*recursion.*; save them again"),
        (f"classes.pth@{ARCH}", "the head in .* has 10000000 classes; take it out of the file"),
        (f"nowhere.pth@{ARCH}", r"its position embedding is \(1, 0, 24\), not \(1, 197, 24\); nam"),
        (f"few.pth@{ARCH}", r"\(a, b, c, ...\); give weights under timm's names"),
        (
            "mine.pth@vit_huge_patch16_gap_448",
            "2 blocks in the file, 32 in vit_huge_patch16_gap_448, 24 channels in the file, 1280",
        ),
        (f"mine.pth@{ARCH}.badtag", "cannot be read .*badtag.*; give one that timm makes"),
        ("mine.pth@resnet18", "'resnet18' in .* is not a plain Vision Transformer; choose"),
        ("mine.pth@vit_tiny_patch16_225", "timm has no architecture .*; did you mean '@vit_tiny_"),
        ("mine.pth", "names no architecture; give 'file:PATH@ARCH'"),
        (
            "mine.pth@open_clip:ViT-B-33",
            "open_clip has no architecture .*; did you mean 'ViT-B-32'",
        ),
        ("tower.pth@open_clip:RN50", "is not a Vision Transformer; choose an open_clip ViT"),
        ("mine.pth@open_clip:ViT-B-32", "has no 'conv1.weight' .*; give weights under open_clip's"),
        ("tower.pth@open_clip:ViT-B-32", "the weights of .* cannot be read .*; name the archi"),
        (f"tower.pth@{ARCH}", "under timm's names, or for a tower of open_clip '@open_clip:ARCH'$"),
        (f"gone.pth@{ARCH}", "there is no file '.*gone.pth'; give the path of a .pth or .safet"),
    ],
)
def test_files_that_are_refused(whole, folder, name, reason):
    with pytest.raises(ValueError, match=reason) as error:
        load_backbone(f"file:{folder}/{name}")
    assert "\n" not in str(error.value)


def test_a_file_named_without_its_prefix(folder):
    for name, form in ((f"mine.pth@{ARCH}", f"mine.pth@{ARCH}"), ("mine.pth", "mine.pth@ARCH")):
        with pytest.raises(ValueError, match=f"; give 'file:{folder}/{form}'"):
            load_backbone(f"{folder}/{name}")


def test_a_folder_that_timm_saved(whole, model, x, answer, tmp_path):
    save_for_hf(model, tmp_path / "saved", model_args=GIVEN)
    name = f"local-dir:{tmp_path}/saved"
    assert known(name)
    torch.testing.assert_close(output(load_backbone(name), x), answer)
    drawn = load_backbone(name, pretrained=False)
    assert not drawn.pretrained and not torch.allclose(output(drawn, x), answer)
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(
        ValueError,
        match="names no architecture of timm; for a model of transformers give 'transformers:",
    ):
        load_backbone(name)
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"architecture": "resnet18"}))
    with pytest.raises(ValueError, match="is a 'resnet18', not a plain Vision Transformer"):
        load_backbone(name)


def recipe(**told):
    return {"architecture": ARCH, "pretrained_cfg": {"num_classes": 7, "classifier": "head"} | told}


GIVEN = FEW | {"img_size": 64}


@pytest.mark.parametrize(
    "config, lacks, reason",
    [
        (recipe(num_classes=9) | {"model_args": GIVEN | {"num_classes": 7}}, "blocks.1", "blocks"),
        (recipe() | {"model_args": GIVEN | {"num_classes": 9}}, "", "do not load: .*head.weight"),
        (recipe() | {"model_args": GIVEN | {"pretrained_strict": False}}, "blocks.1", "do not l"),
        (recipe(num_classes=-1) | {"model_args": GIVEN}, "", "num_classes: -1 is less than the"),
        (
            recipe() | {"model_args": GIVEN | {"patch_size": 8}},
            "",
            "16 x 16 pixels a patch in the f",
        ),
        (recipe() | {"model_args": GIVEN | {"colour": 1}}, "", "architecture of .* cannot be read"),
        (recipe(mean=[1, 2]) | {"model_args": GIVEN}, "", "pretrained_cfg.mean: "),
        (recipe(input_size=[1, 64, 64]), "", "input_size.0: 3 was expected"),
        ([ARCH], "", "is not of type 'object'"),
        (recipe() | {"arguments": {}, "neurons": {}}, "", "'.*' is a required.*again with `edit`"),
        ({"architecture": None}, "", "names no architecture of timm"),
        ({"architecture": "a\n" * 10**5}, "", "is a 'a a a.*, not a plain Vision Transformer"),
        (recipe() | {"model_args": GIVEN | {"device": "meta"}}, "", "device: 'cpu' was expected"),
        (
            recipe() | {"model_args": GIVEN | {"global_pool": ""}},
            "",
            "global_pool: '' should be no",
        ),
        (
            recipe() | {"model_args": GIVEN | {"img_size": 96}},
            "",
            "position embedding is .1, 17, 2",
        ),
        (
            recipe() | {"model_args": GIVEN | {"embed_dim": 3072}},
            "",
            "24 channels in the file, 3072 in its config.json, 96 hidden units of an MLP",
        ),
    ],
)
def test_nothing_of_a_folder_is_drawn_or_resampled(whole, model, tmp_path, config, lacks, reason):
    kept = {
        key: value
        for key, value in model.state_dict().items()
        if not lacks or not key.startswith(lacks)
    }
    save_file(kept, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=reason) as error:
        load_backbone(f"local-dir:{tmp_path}")
    assert "\n" not in str(error.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


LIMITS = {  # the least and the most of each number that is read; None where there is no end
    "pretrained_cfg.num_classes": (0, 10**6),
    "pretrained_cfg.crop_pct": (0.01, 2),
    "model_args.num_classes": (0, 10**6),
    "model_args.embed_dim": (1, 8192),
    "model_args.depth": (1, 128),
    "model_args.mlp_ratio": (0.01, 64),
    "model_args.reg_tokens": (0, 8192),
}


@pytest.mark.parametrize("place", LIMITS)
def test_numbers_of_a_configuration_have_limits(place):
    within, key = place.split(".")
    least, most = LIMITS[place]
    for value in (least, most):
        assert mismatch({within: {key: value}}, CONFIG) == ""
    for value in (least - 1, most + 1):
        assert f"{place}: {value} is" in mismatch({within: {key: value}}, CONFIG)


@pytest.mark.parametrize(
    "key, right, wrong",
    [
        ("input_size", [3, 32, 64], ([3, 32], [3, 32, 32, 32], [1, 32, 32], [3, 0, 32])),
        ("mean", [0.5, -1e6, 1e6], ([0.5, 0.5], [0.5] * 4, [0, 0, 10**400])),
        ("std", [1e-6, 1, 1e6], ([1, 1, 1e-320], [1, 1, 0])),
        ("std", None, ("x",)),
    ],
)
def test_lists_of_a_configuration_have_their_length(key, right, wrong):
    assert mismatch({"pretrained_cfg": {key: right}}, CONFIG) == ""
    for value in wrong:
        assert f"pretrained_cfg.{key}" in mismatch({"pretrained_cfg": {key: value}}, CONFIG)


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda w: b"", "the weights of .* cannot be read (.*); save the model again with timm"),
        (lambda w: [1], "the weights of .* cannot be read"),
    ],
)
def test_damaged_weights_of_a_folder_are_no_missing_ones(whole, tmp_path, spoil, reason):
    (tmp_path / "config.json").write_text(json.dumps(recipe() | {"model_args": GIVEN}))
    content = spoil({})
    if isinstance(content, bytes):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
    else:
        torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=reason):
        load_backbone(f"local-dir:{tmp_path}")


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("kind", ["complex64", "int8", "float8_e4m3fn", "bool"])
def test_weights_that_are_no_real_numbers(whole, model, tmp_path, kind):
    key = "blocks.0.mlp.fc1.weight"
    odd = model.state_dict() | {key: model.state_dict()[key].to(getattr(torch, kind))}
    torch.save(odd, tmp_path / "mine.pth")
    with pytest.raises(ValueError, match=f"hold torch.{kind} in '{key}'; save them as float32"):
        load_backbone(f"file:{tmp_path}/mine.pth@{ARCH}")


def test_repositories(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("hf-hub:someone/model", "hf-hub:someone/model@v1", "transformers:someone/model"):
        assert known(name)
        with pytest.raises(ModelUnavailable, match=f"^'{name}' is not in the Hugging Face cache"):
            load_backbone(name)


@pytest.mark.parametrize("path", ["", ".", "~nobody/x", "\0", "x" * 5000, "a\nb", "@", "//"])
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "file:",
        "local-dir:",
        "transformers:",
        "hf-hub:",
        "torchvision:",
        "scratch:",
        "registers:",
    ],
)
def test_names_that_no_file_can_have(prefix, path):
    assert not known(f"{prefix}{path}") and portable([f"{prefix}{path}"]) == [f"{prefix}{path}"]
    with pytest.raises(ValueError):
        check_name(f"{prefix}{path}")


def test_bare_names_get_their_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.pth").touch()
    Path("saved").mkdir()
    Path("saved", "config.json").touch()
    for name, form in (
        ("mine.pth", "'file:mine.pth@ARCH', with the timm architecture"),
        ("saved", "'local-dir:saved' where timm saved it, or 'transformers:saved'"),
        (
            "facebook/dinov2-small",
            "'hf-hub:facebook/dinov2-small' where timm saved it, or "
            "'transformers:facebook/dinov2-small'",
        ),
    ):
        with pytest.raises(ValueError, match=f"unknown model '{name}'; give {form}"):
            check_name(name)


# Where they lie
# --------------------------------------------------------------------------------------------------


def test_provenance_has_the_digest_and_not_the_path(whole, model, tmp_path):
    folder = tmp_path / "secret"
    folder.mkdir()
    torch.save(model.state_dict(), folder / "mine.pth")
    backbone = load_backbone(f"file:{folder}/mine.pth@{ARCH}")
    told = backbone.describe()
    assert told["name"] == f"file:mine.pth@{ARCH}" and len(told["weights_hash"]) == 16
    assert "secret" not in json.dumps(told) and backbone.name.startswith("file:/")
    torch.save(
        {f"module.{key}": value for key, value in model.state_dict().items()}, folder / "other.pth"
    )
    assert load_backbone(f"file:{folder}/other.pth@{ARCH}").weights_hash == told["weights_hash"]


def test_names_without_folders_are_found_by_the_variable(tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "environ", {**os.environ, "REGISTERS_MODELS": str(tmp_path / "elsewhere")}
    )
    for path in ("one/one.pth", "two/two.pth", "two/one.pth"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        torch.save({}, tmp_path / path)
    one, two = f"file:{tmp_path}/one/one.pth@{ARCH}", f"file:{tmp_path}/two/two.pth@{ARCH}"
    short = portable([one, "control-clean", two, "hf-hub:a/b"])
    assert short == [f"file:one.pth@{ARCH}", "control-clean", f"file:two.pth@{ARCH}", "hf-hub:a/b"]
    assert known(short[2]) and str(tmp_path / "elsewhere") in os.environ["REGISTERS_MODELS"]
    assert portable(short) == short
    with pytest.raises(ValueError, match="two models would be called 'file:one.pth@.*; rename"):
        portable([one, f"file:{tmp_path}/two/one.pth@{ARCH}"])


def test_wrapping_by_hand_ends_training_mode():
    model = timm.create_model(ARCH, img_size=32, drop_rate=0.5, **FEW).train()
    backbone = wrap_timm("mine", model, CONTROL_DATA, pretrained=False)
    assert not model.training
    backbone.model.train()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(output(backbone, x), output(backbone, x)), "capture ends it too"
    with pytest.raises(ValueError, match="'mine' is Linear, no Vision Transformer of timm"):
        wrap_timm("mine", nn.Linear(2, 2), CONTROL_DATA, pretrained=False)
