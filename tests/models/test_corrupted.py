"""Whatever is wrong in the files of a model: one sentence, no traceback, nothing written."""

import json
import warnings
from functools import partial

import pytest
import timm
import torch
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_transformers import STORED, written
from timm.models._hub import save_for_hf

from helpers.models import ModelUnavailable, checkpoints, load_backbone, shapes

ARCH = "vit_tiny_patch16_224"
ARGUMENTS = {"img_size": 32, "depth": 1, "embed_dim": 12, "num_heads": 2, "num_classes": 3}
PROCESSOR = {
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_normalize": True,
    "do_rescale": True, "rescale_factor": 1 / 255, "do_resize": True, "resample": 2,
    "size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32},
}  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(
        [None, True, False, -1, 0, 1, 3, 2.5, 10**12, -(10**400), "", "\x1b[31m\n", [], {}]
    ),  # noqa: E501
    st.sampled_from([[1], [0, 0, 0], ["a"] * 3, {"height": -4}, "mish", "vit", "swin", ARCH, [[]]]),
    st.recursive(
        st.none() | st.integers() | st.floats() | st.text(max_size=5),
        lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=5), x, max_size=3),
        max_leaves=5,
    ),
)
KINDS = [torch.complex64, torch.int8, torch.bool, torch.float8_e4m3fn, torch.int64, torch.float64]


@pytest.fixture(scope="module")
def monkeypatch_of_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def models(tmp_path_factory, monkeypatch_of_module):
    """By name the folder, the file that is spoilt in it, and its content."""
    torch.manual_seed(0)
    model, root = timm.create_model(ARCH, **ARGUMENTS), tmp_path_factory.mktemp("models")
    save_for_hf(model, root / "saved", model_args=ARGUMENTS, safe_serialization=True)
    torch.save(model.state_dict(), root / "mine.pth")
    told = json.loads(STORED.read_text())["dinov2"]
    other = written(root / "other", told["config"], told["shapes"], **PROCESSOR)
    names = {
        "timm": (f"local-dir:{root}/saved", root / "saved" / "config.json"),
        "transformers": (other, root / "other" / "config.json"),
        "processor": (other, root / "other" / "preprocessor_config.json"),
        "file": (f"file:{root}/mine.pth@{ARCH}", root / "mine.pth"),
        "saved": (f"local-dir:{root}/saved", root / "saved" / "model.safetensors"),
        "tower": (other, root / "other" / "model.safetensors"),
    }
    plain, small = timm.create_model, {"depth": 1, "embed_dim": 12, "num_heads": 2}

    def create(name, **options):
        return plain(name, **(small if name == ARCH else {}) | options)

    monkeypatch_of_module.setattr(timm, "create_model", create)
    # What fits is searched for seconds, each time.
    quick = partial(shapes.fitting, seconds=0.1)
    monkeypatch_of_module.setattr(checkpoints, "fitting", quick)
    assert all(load_backbone(name).pretrained for name, _ in names.values()), "as they are"
    return names


def loads_or_says_why(name, path, spoil):
    root, before = path.parent, path.read_bytes()
    there = sorted(root.rglob("*"))
    try:
        spoil()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backbone = load_backbone(name)
        assert backbone.pretrained
    except (ValueError, ModelUnavailable) as error:
        assert str(error) and "\n" not in str(error) and "\x1b" not in str(error)
    finally:
        path.write_bytes(before)
    assert sorted(root.rglob("*")) == there


@pytest.mark.parametrize("which", ["timm", "transformers", "processor"])
def test_configurations(models, which):
    name, path = models[which]
    plain = path.read_text()

    @examples(25)
    @given(st.data())
    def tried(data):
        config = place = json.loads(plain)
        for key in ("pretrained_cfg", "model_args"):
            if key in config and data.draw(st.booleans()):
                place = config[key]
        key = data.draw(st.sampled_from(sorted(place)) | st.sampled_from(["depth", "patch_size"]))
        place[key] = data.draw(VALUES)
        if data.draw(st.integers(0, 9)) == 0:
            config = place[key]
        text = json.dumps(config)
        text = text[: data.draw(st.sampled_from([len(text), len(text), len(text) // 2, 0]))]
        loads_or_says_why(name, path, lambda: path.write_text(text))

    tried()


@pytest.mark.parametrize("which", ["file", "saved", "tower"])
def test_weights(models, which):
    name, path = models[which]
    plain = path.read_bytes()
    load, save = (torch.load, torch.save) if which == "file" else (load_file, save_file)
    state = load(path)

    @examples(25)
    @given(st.data())
    def tried(data):
        own = dict(state)
        anchors = [key for key in own if "patch_embed" in key or "head" in key or "pos" in key]
        key = data.draw(st.sampled_from(sorted(own)) | st.sampled_from(sorted(anchors)))
        how = data.draw(st.sampled_from(["kind", "shape", "gone", "more", "cut", "bytes", "odd"]))
        value = own.pop(key)
        if how == "kind":
            own[key] = value.to(data.draw(st.sampled_from(KINDS)))
        elif how == "shape":
            own[key] = torch.ones(data.draw(st.lists(st.integers(0, 5), max_size=4)))
        elif how == "more":
            own |= {key: value, data.draw(st.sampled_from(["x" * 5000, "a\n\x1b[2J"])): value + 0}
        elif how == "odd" and save is torch.save:
            odd = [None, 3, [value], {key: value}, {3: own}, [own], set(), "text"]
            chosen = data.draw(st.sampled_from(odd))
            own = chosen if data.draw(st.booleans()) else own | {key: chosen}

        def spoil():
            save(own, path)
            if how in ("cut", "bytes"):
                at = data.draw(st.integers(0, len(plain) - 1))
                path.write_bytes(plain[:at] + (b"" if how == "cut" else b"\xff" + plain[at + 1 :]))

        loads_or_says_why(name, path, spoil)

    tried()
