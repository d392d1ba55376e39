"""A model with test-time registers as files: what they hold, and that they need no project."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.cli import main
from helpers.interventions import export, write_model
from helpers.interventions import test_time_registers as registers_of
from helpers.models import load_backbone

NEURONS = [(7, 417), (5, 3), (7, 2)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A model of timm's, with random weights, and the folder with its edited one."""
    torch.manual_seed(0)
    backbone = load_backbone("vit_tiny_patch16_224", pretrained=False)
    folder = tmp_path_factory.mktemp("edited")
    return backbone, folder, write_model(backbone, NEURONS, folder, pixels(), count=2, seed=3)


def pixels(n=1):
    """As float16 keeps them."""
    draws = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, 224, 224, generator=draws).half().float()


def expected(backbone, pixels):
    with registers_of(backbone, NEURONS, 2, seed=3):
        return backbone(pixels)


def test_files_give_what_the_intervention_gives(written):
    backbone, folder, found = written
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors", "config.json", "modeling.py", "check.safetensors", "README.md"
    }  # fmt: skip
    change = expected(backbone, pixels()) - backbone(pixels())
    assert found["difference"] < 1e-5 and found["change"] == pytest.approx(change.abs().max())
    assert "The neurons 7:417, 5:3, 7:2 (block:unit" in (folder / "README.md").read_text()
    assert (text := (folder / "config.json").read_text()).startswith('{\n "of": "vit_tiny')
    config = json.loads(text)
    assert config["neurons"].keys() == {"blocks.7.mlp.fc2", "blocks.5.mlp.fc2"}
    assert config["weights"] == backbone.weights_hash


ALONE = """
import sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("helpers", "open_clip", "datasets", "matplotlib"):
            raise ImportError(name)
sys.meta_path.insert(0, Refused())
sys.path.insert(0, sys.argv[1])
import torch
from safetensors.torch import load_file, save_file
from modeling import load
model = load()
x = load_file(sys.argv[2])["x"]
maps = model.get_intermediate_layers(x, n=4, reshape=True)
save_file({"model": model(x), "maps": torch.stack(maps).contiguous()}, sys.argv[2])
"""


def test_a_process_without_the_project(written, tmp_path):
    backbone, folder, _ = written
    x = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    save_file({"x": x}, tmp_path / "x.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, folder, tmp_path / "x.safetensors"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    got = load_file(tmp_path / "x.safetensors")
    torch.testing.assert_close(got["model"], expected(backbone, x), rtol=1e-4, atol=1e-4)
    assert got["maps"].shape == (4, 3, 192, 14, 14)


@pytest.mark.parametrize(
    "name",
    ["vit_xsmall_patch16_clip_224", "vit_small_plus_patch16_dinov3", "eva02_tiny_patch14_224"],
)
def test_models_of_other_kinds(name, tmp_path):
    """A norm before the blocks, rotary position with registers, gated MLPs."""
    torch.manual_seed(0)
    backbone, x = load_backbone(name, pretrained=False, image_size=112), pixels(2)
    x = x[..., :112, :112]
    for key, value in backbone.model.state_dict().items():
        if "gamma" in key or key.endswith("norm_pre.bias"):  # so that blocks and its bias count
            value.fill_(0.5)
    found = write_model(backbone, NEURONS[1:], tmp_path, x, count=2)
    assert found["difference"] < 1e-5 * backbone(x).abs().max() < found["change"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["input_size"] == [3, 112, 112]
    for key in ("mean", "std"):
        wanted = getattr(backbone.transform.transforms[-1], key).tolist()
        assert config[key] == pytest.approx(wanted, abs=1e-6)


def test_the_readme_says_how_to_fine_tune(written, monkeypatch):
    """Its lines run, all weights learn, and what was learnt is read into a new one."""
    folder = written[1]
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "modeling", raising=False)
    _, *blocks = (folder / "README.md").read_text().split("```python\n")
    use, tune = (block.partition("```")[0] for block in blocks)
    names = {"pixels": pixels(2)}
    exec(use + tune, names)
    model = names["model"]
    model(names["pixels"]).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    torch.optim.SGD(model.parameters(), 0.1).step()
    exec(tune, names)
    names["model"].load_state_dict(model.state_dict())
    assert torch.equal(names["model"].eval()(pixels()), model.eval()(pixels()))


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    backbone = load_backbone("vit_pe_core_tiny_patch16_384", pretrained=False)
    with pytest.raises(ValueError, match="pools its prefix tokens"):
        write_model(backbone, [(1, 0)], tmp_path / "there", torch.rand(1, 3, 384, 384))
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("which", ["--neurons 1:0", "--auto"])
def test_the_command(which, tmp_path, capsys):
    command = f"edit control-position {which} --images scenes -n 6 --out".split()
    assert main([*command, str(tmp_path)]) == 0
    assert json.loads((tmp_path / "config.json").read_text())["neurons"] == {
        "blocks.1.mlp.fc2": [[0], [0]]
    }
    assert "control-position with 1:0 shifted to an additional token." in capsys.readouterr().out


def test_a_file_that_gives_something_else_shows_in_the_difference(tmp_path, monkeypatch):
    def changed(folder):
        model = loaded(folder)
        model.norm.bias.data[0] += 2
        return model

    loaded = export._loaded
    monkeypatch.setattr(export, "_loaded", changed)
    backbone = load_backbone("control-position")
    found = write_model(backbone, [(1, 0)], tmp_path, torch.rand(1, 3, 224, 224))
    assert found["difference"] == pytest.approx(2, rel=1e-3)
