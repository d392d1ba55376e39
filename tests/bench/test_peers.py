import json
import subprocess
import zipfile
from importlib import util
from pathlib import Path

import pytest
import torch
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from helpers.bench import OUTPUTS, PEERS, Peer, environment, installation, not_installed, peers, randomise
from helpers.capture import ClsAttention, FinalTokens, PatchNorms, capture
from helpers.models import CONTROL_DATA, OpenClipBackbone, TokenLayout, load_backbone, wrap_timm

REDUCERS = [PatchNorms(), ClsAttention("all"), FinalTokens()]


def custom(**options):
    """A small model with weights that tell its layers apart."""
    model = VisionTransformer(img_size=56, patch_size=14, embed_dim=48, depth=3, num_heads=4, **options)
    return wrap_timm("custom", randomise(model), CONTROL_DATA, True)


def random(name, image_size):
    backbone = load_backbone(name, pretrained=False, image_size=image_size)
    randomise(backbone.model)
    return backbone


MODELS = {
    "vit": lambda: random("vit_tiny_patch16_224", 64),
    "dinov2": lambda: random("vit_small_patch14_dinov2", 56),
    "dinov2 with registers": lambda: random("vit_small_patch14_reg4_dinov2", 56),
    "control": lambda: load_backbone("control-registers"),
    "gated": lambda: custom(init_values=1, mlp_ratio=2.66667 * 2, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU),
    "positions of registers": lambda: custom(reg_tokens=2),
    "pools first": lambda: custom(global_pool="avg", qkv_bias=False),
}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_peer_gives_what_capture_gives(peer, model):
    if util.find_spec(PEERS[peer].package) is None:
        pytest.skip(f"{peer} is not installed; `python -m helpers bench --peers` makes an environment that has it")
    backbone = MODELS[model]()
    pixels = torch.randn(3, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))
    expected, hooks = capture(backbone, pixels, REDUCERS), [len(m._forward_hooks) for m in backbone.model.modules()]
    method = PEERS[peer].prepare(backbone)
    for part in (pixels[:1], pixels):  # a second pass keeps nothing of the first
        got = method(part)
        assert tuple(got) == OUTPUTS
        for key, value in got.items():
            assert value.dtype == torch.float32 and value.device.type == "cpu"
            want = expected[key][: len(part)]
            bound = 1e-5 * float(want.abs().max())  # float32 rounds norms of hundreds and shares below one alike, in proportion
            torch.testing.assert_close(value, want, rtol=0, atol=bound, msg=lambda m, k=key: f"{k}: {m}")
    assert [len(m._forward_hooks) for m in backbone.model.modules()] == hooks
    again = capture(backbone, pixels, REDUCERS)
    assert all(torch.equal(again[key], expected[key]) for key in expected)


def test_a_peer_shares_the_weights_and_not_the_layers():
    backbone = MODELS["dinov2"]()
    twin = peers._twin(backbone)
    assert {p.data_ptr() for p in twin.parameters()} == {p.data_ptr() for p in backbone.model.parameters()}
    assert not set(twin.modules()) & set(backbone.model.modules())


@pytest.mark.parametrize("peer", ["timm", "transformers"])
def test_a_model_of_another_library_or_without_cls_is_refused(peer):
    other = OpenClipBackbone("open_clip:x", nn.Identity(), TokenLayout((4, 4)), (56, 56), (14, 14), lambda image: image, False)
    with pytest.raises(ValueError, match="'open_clip:x' is a model of open_clip"):
        PEERS[peer].prepare(other)
    with pytest.raises(ValueError, match=r"no \[CLS\] token"):
        PEERS[peer].prepare(custom(class_token=False, global_pool="avg"))


@pytest.mark.parametrize(
    ("backbone", "reason"),
    [
        (lambda: custom(qk_norm=True), "only one of the two has 'blocks.0.attn.q_norm.weight'"),
        (lambda: custom(pre_norm=True), "only one of the two has 'patch_embed.proj.bias'"),
        (lambda: custom(act_layer=nn.Tanh), "Block with Mlp and Tanh"),
        (lambda: random("vit_tiny_patch16_224", (64, 48)), "images of 64 x 48 pixels are not square"),
        (lambda: random("deit_tiny_distilled_patch16_224", 64), "only one of the two has 'dist_token'"),
    ],
)
def test_a_model_that_transformers_does_not_have_is_refused_with_the_reason(backbone, reason):
    with pytest.raises(ValueError, match=f"so leave this peer out: {reason}"):
        PEERS["transformers"].prepare(backbone())


def wheel(folder, name, version="1.0", requires=""):
    """A package of one empty module; returns its file."""
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return str(path)


def peer(*requirements, alone=()):
    return Peer("none", requirements, lambda backbone: lambda pixels: {}, alone)


@pytest.fixture
def local(tmp_path, monkeypatch):
    """pip finds what is in the folder, and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


def test_environment_adds_the_peers_to_what_is_here_and_goes_on_where_one_fails(local, monkeypatch):
    wheel(local, "torch", "0.1")
    wheel(local, "older", requires="Requires-Dist: torch==0.1\n")
    wheel(local, "tiny", requires="Requires-Dist: torch\n")
    wheel(local, "stubborn", requires="Requires-Dist: torch==0.1\n")
    ours = {
        "missing": peer("no-such-package>=1"),
        "other torch": peer("older"),
        "tiny": peer("tiny"),
        "forced": peer("regex", alone=("stubborn",)),
    }
    said, folder = [], local / "a" / "peers"
    python = environment(folder, said.append, ours)
    assert set(not_installed(folder)) == {"missing", "other torch"}
    assert "no-such-package" in not_installed(folder)["missing"] and "conflict" in not_installed(folder)["other torch"]
    assert all("\n" not in reason for reason in not_installed(folder).values())
    assert [line.split(":")[0] for line in said[1:]] == ["missing did not install", "other torch did not install"]

    code = (
        "import json, sys, tiny, stubborn, helpers; from importlib import metadata, util; "
        "torch = util.find_spec('torch').origin, metadata.version('torch'); "
        "print(json.dumps([sys.prefix, *torch, helpers.__file__, tiny.__file__]))"
    )
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd=local)
    prefix, torch_file, version, helpers_file, tiny_file = json.loads(found.stdout)
    assert Path(prefix) == folder and Path(tiny_file).is_relative_to(folder)
    assert torch_file == torch.__file__ and version != "0.1"
    assert helpers_file == util.find_spec("helpers").origin

    def fail(*_, **__):
        raise AssertionError("nothing is to be run")

    monkeypatch.setattr(subprocess, "run", fail)
    again = []
    assert environment(folder, again.append, ours) == python
    assert again == said[1:]


def test_environment_is_made_anew_for_other_peers(local, monkeypatch):
    asked = []
    monkeypatch.setattr(installation, "_install", lambda folder, python, peer: asked.append(peer.requirements))
    for requirements in ("one>=1", "one>=1", "one>=2"):
        environment(local / "peers", lambda line: None, {"one": peer(requirements)})
    assert asked == [("one>=1",), ("one>=2",)]


def test_environment_deletes_nothing_that_it_did_not_make(tmp_path):
    (tmp_path / "thesis.tex").write_text("chapter one")
    with pytest.raises(ValueError, match="is no environment of the peers; name a new folder"):
        environment(tmp_path)
    assert (tmp_path / "thesis.tex").is_file()
