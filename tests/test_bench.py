"""The benchmark measures what it says, and CI holds the engine to it."""

import json
import platform
import re
import runpy
import sys
import time
from contextlib import redirect_stdout
from functools import partial
from importlib import util
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer

from helpers.capture import FinalTokens, PatchNorms, capture
from helpers.models import CONTROL_DATA, load_backbone, wrap_timm

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench.py"
SMALL = {"image_size": 64, "batch_size": 2, "loading": False}
bench = SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture
def peers(monkeypatch):
    """The peers of the script, to be replaced."""
    monkeypatch.setattr(bench, "PEERS", before := dict(bench.PEERS))
    names = bench.measure.__globals__["PEERS"]
    yield names
    names.clear()
    names.update(before)


ASKED = ["--model", "vit_tiny_patch16_224", "--images", "8", "--image-size", "64"]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """What the command found, and what it printed."""
    file = tmp_path_factory.mktemp("bench") / "bench.json"
    with redirect_stdout(StringIO()) as printed:
        assert bench.main([*ASKED, "--batch-size", "2", "--json", str(file)]) == 0
    return json.loads(file.read_text()), printed.getvalue()


@pytest.fixture
def found(command):
    return command[0]


def test_each_method_is_a_row(found):
    plain, *own = found["rows"]
    assert plain["method"] == "plain" and plain["ratio"] == 1.0
    assert [row["method"] for row in own] == ["helpers", "helpers, entropy"]
    for row in own:
        assert row["pairs"] == 4 and row["images_per_s"] > 0
        assert 0 < row["quartiles"][0] <= row["ratio"] <= row["quartiles"][1]
        assert row["extra_mb"] is None or row["extra_mb"] >= 0


def test_what_it_says_of_the_model_and_the_machine(found):
    assert (found["image_size"], found["tokens"], found["parameters"]) == ([64, 64], 17, 5_682_856)
    # 12 blocks: qkv and projection 4 w^2, MLP 8 w^2, attention 2 t w, for each of t tokens;
    # embedding of 16 patches; head.
    t, w = 17, 192
    flop = 2 * (12 * (t * 12 * w**2 + 2 * t * t * w) + 16 * 768 * w + 1000 * w)
    assert found["gflop_per_image"] == pytest.approx(flop / 1e9, abs=0.006)
    assert 0 < found["share_of_ceiling"] < 1.5 and found["ceiling_gflop_per_s"] > 1
    cores = found["rows"][0]["images_per_s"] / found["loading"]["images_per_s"]
    assert found["loading"]["cores"] == pytest.approx(cores, rel=0.02)
    assert found["versions"]["torch"] == torch.__version__
    assert found["allocation"] is (platform.libc_ver()[0] == "glibc")


@pytest.mark.slow
@pytest.mark.parametrize("error", [5e-4, 1e-2])
def test_a_method_that_takes_more_time_and_memory_shows_it(peers, error):
    """A planted peer: the plain pass twice, 200 MB on top, and norms a little or much too large."""

    def planted(backbone, pixels):
        ballast = torch.ones(50_000_000)
        norms, _ = (capture(backbone, pixels, [PatchNorms()])["patch_norms"] for _ in range(2))
        return {"patch_norms": norms * (1 + error * ballast[0])}

    peers["planted"] = lambda backbone: partial(planted, backbone)
    options = ["vit_small_patch16_224", 16, ["planted"]]
    if error > 1e-3:
        with pytest.raises(ValueError, match=r"'planted' gives other numbers \(up to 1e-02 of"):
            bench.measure(*options, **SMALL)
        return
    row = bench.measure(*options, **SMALL | {"image_size": 160})["rows"][1]
    assert 0.15 < row["ratio"] < 0.85
    assert row["extra_mb"] is None or 150 < row["extra_mb"] < 320
    assert row["deviation"]["patch_norms"] == pytest.approx(error, rel=0.02)


@pytest.mark.slow
def test_each_peer_is_a_row_of_a_process_of_its_own(peers, monkeypatch):
    """timm is here in any case, so this Python can play the peers' environment."""
    monkeypatch.setitem(bench.bench.__globals__, "environment", lambda _: Path(sys.executable))
    peers.pop("transformers"), peers.pop("nnsight")
    found = bench.bench("vit_tiny_patch16_224", 8, peers=True, **SMALL)
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["plain", "helpers", "helpers, entropy", *peers]
    assert rows["timm"]["version"] == timm.__version__ and rows["timm"]["images_per_s"] > 0
    assert set(rows["timm"]["deviation"]) == {"patch_norms", "cls_attention", "final_tokens"}
    assert max(rows["timm"]["deviation"].values()) < 1e-4
    assert rows["thingsvision"]["ratio"] is None
    assert rows["thingsvision"]["reason"].startswith("ModuleNotFoundError: ")
    assert "thingsvision      not run: ModuleNotFoundError" in bench.table(found)


def test_command(command, capsys, tmp_path, monkeypatch):
    found, printed = command
    assert bench.table(found) in printed
    assert found["energy_kw"] == 0.105 and len(found["git_revision"]) == 40
    monkeypatch.chdir(tmp_path)
    Path("bench.json").touch()
    for more, message in {
        "8 --json b.json": "8 images are too few for pairs of 8; take at least 16",
        "2 --json b.json --image-size 60": "image size 60x60 is not divisible by the patch size",
        "2 --json b.json --model vit_tiny": "unknown model 'vit_tiny'",
    }.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            bench.main([*ASKED, "--batch-size", *more.split()])
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def random(name, **options):
    backbone = load_backbone(name, pretrained=False, **options)
    bench.randomise(backbone.model)
    return backbone


def custom(**options):
    model = VisionTransformer(56, 14, embed_dim=48, depth=3, num_heads=4, **options)
    return wrap_timm("custom", bench.randomise(model), CONTROL_DATA, True)


MODELS = {
    "vit": lambda: random("vit_tiny_patch16_224", image_size=64),
    "dinov2 with registers": lambda: random("vit_small_patch14_reg4_dinov2", image_size=56),
    "control": lambda: load_backbone("control-registers"),
    "positions of registers": lambda: custom(reg_tokens=2),
}


@pytest.mark.parametrize("peer", bench.PEERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_peer_gives_what_capture_gives(peer, model):
    if util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed; `bench --peers` makes an environment that has it")
    backbone = MODELS[model]()
    pixels = torch.randn(3, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))
    expected = capture(backbone, pixels, bench.REDUCERS)
    method = bench.PEERS[peer](backbone)
    for n in (1, 3):  # a second pass keeps nothing of the first
        with torch.inference_mode():
            got = method(pixels[:n])
        assert tuple(got) == bench.OUTPUTS
        for key, value in got.items():
            # float32 rounds norms of hundreds and shares below one alike, in proportion
            want = expected[key][:n]
            torch.testing.assert_close(value, want, rtol=0, atol=1e-5 * float(want.abs().max()))
    again = capture(backbone, pixels, bench.REDUCERS)
    assert all(torch.equal(again[key], expected[key]) for key in expected)


def test_a_model_without_cls_is_refused():
    with pytest.raises(ValueError, match=r"no \[CLS\] token"):
        bench.PEERS["timm"](custom(class_token=False, global_pool="avg"))


# ---- What CI holds the engine to


class Attempt(NamedTuple):
    """Plain time over own time, by the clock and by the processor's time, and the share of the
    clock's time that the plain pass waited for a processor."""

    clock: float
    processor: float
    waited: float

    @property
    def busy(self) -> bool:
        """Whether other work took so much of the machine that the clock says nothing."""
        return self.waited > 0.05


def decided(attempts):
    """Whether the engine is fast enough; None where the machine is too busy to tell.

    By the clock where the machine is quiet. Where it is busy the processor's time is the better
    witness, but other work in the same caches blurs it, and it does not see an engine that waits:
    it acquits, and condemns only what is far too slow each time.
    """
    if any((one.processor if one.busy else one.clock) >= 0.9 for one in attempts):
        return True
    disturbed = all(one.busy for one in attempts)
    return None if disturbed and max(one.processor for one in attempts) >= 0.85 else False


def attempt(methods, pixels):
    """One measurement of (plain, own), in pairs of changing order."""
    taken = np.zeros((8, 2, 2))  # pair, method, clock
    for i in range(8):
        for which in (0, 1)[:: (-1) ** i]:
            start = np.array([time.perf_counter(), time.process_time()])
            methods[which](pixels)
            taken[i, which] = np.array([time.perf_counter(), time.process_time()]) - start
    plain, own = taken[:, 0], taken[:, 1]
    return Attempt(*np.median(plain / own, axis=0), 1 - plain[:, 1].sum() / plain[:, 0].sum())


@pytest.fixture
def engines():
    """Pixels, and pairs (plain, own): the engine as it is, and with half of the work more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    backbone = random("vit_small_patch16_224")
    own, plain = (bench.prepared(n, backbone, 4, torch.float32) for n in ("helpers", "plain"))

    def slow(pixels):
        plain(pixels[:2])
        return own(pixels)

    pixels = torch.randn(4, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))
    bench.allocate(kept=True)
    own(pixels), plain(pixels)  # which warms up
    yield pixels, {"own": (plain, own), "slow": (plain, slow)}
    bench.allocate(kept=False)
    torch.set_num_threads(before)


@pytest.mark.slow  # a busy machine measures itself
def test_capture_is_nearly_as_fast_as_the_plain_forward_pass(engines):
    """At least 0.90 on whatever machine, in one of five attempts; not decided where all of them
    were disturbed."""
    pixels, methods = engines
    attempts = []
    for _ in range(5):
        attempts.append(attempt(methods["own"], pixels))
        if fast := decided(attempts):
            break
    if fast is None:
        pytest.skip(f"not decided, since the machine is busy: {attempts}")
    assert fast, attempts


@pytest.mark.slow
def test_a_slow_engine_is_noticed(engines):
    """The same measurement: a guard that could not fail would be none."""
    pixels, methods = engines
    one = attempt(methods["slow"], pixels)
    assert decided([one]) is False, one


@pytest.mark.parametrize(
    ("attempts", "fast"),
    [
        ([(0.95, 0.95, 0.0)], True),
        ([(0.8, 1.0, 0.01)], False),  # it waits
        ([(0.7, 0.95, 0.4)], True),
        ([(0.7, 0.87, 0.4)] * 5, None),
        ([(0.7, 0.8, 0.4)] * 5, False),
        ([(0.7, 0.87, 0.4), (0.85, 0.85, 0.0)], False),
    ],
)
def test_what_decides(attempts, fast):
    assert decided([Attempt(*one) for one in attempts]) is fast


@pytest.mark.slow
def test_memory_does_not_grow_with_the_images():
    """Of 64 and of 1,024 images, into summaries: no slope. What is kept shows: a guard that could
    not fail would be none."""
    backbone = random("vit_tiny_patch16_224", image_size=64)
    pixels = torch.zeros(1, 3, 64, 64)

    def memory(n, kept=False):
        reducers = [FinalTokens()] if kept else bench.REDUCERS
        keys = [] if kept else [key for reducer in reducers for key in reducer.keys]
        sinks = {key: [bench.Summary()] for key in keys}
        options = {"batch_size": 16, "progress": False, "into": sinks}
        many = pixels.expand(n, -1, -1, -1)
        peak = bench.peak(lambda: capture(backbone, many, reducers, **options), "cpu")
        assert all(sink.n == n for own in sinks.values() for sink in own)
        return peak

    if memory(64) is None:
        pytest.skip("this system does not tell the peak of a process's memory")
    few, many = (min(memory(n), memory(n)) for n in (64, 1024))
    assert many - few < 4  # MB; to keep the final tokens alone of 1,024 images takes 13
    assert memory(1024, kept=True) - few > 6


def test_loading_decodes_photographs(monkeypatch):
    backbone, seen = random("vit_tiny_patch16_224"), []
    real = backbone.transform
    monkeypatch.setattr(backbone, "transform", lambda image: seen.append(image.size) or real(image))
    told = bench.loading_rate(backbone, 10.0)
    assert set(seen) == {bench.JPEG} and len(seen) == pytest.approx(told["images_per_s"], rel=0.1)
