"""The benchmark measures what it says, and CI holds the engine to it."""

import json
import platform
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import timm
import torch

from helpers.__main__ import main
from helpers.bench import machine
from helpers.bench import speed as bench
from helpers.capture import FinalTokens, PatchNorms, capture
from helpers.models import load_backbone

SMALL = {"image_size": 64, "batch_size": 2, "loading": False}


@pytest.fixture(scope="module")
def found():
    return bench.bench("vit_tiny_patch16_224", 8, image_size=64, batch_size=2)


def test_each_method_is_a_row(found):
    assert [row["method"] for row in found["rows"]] == ["plain", "helpers", "helpers, entropy"]
    for row in found["rows"]:
        assert row["pairs"] == 4 and row["images_per_s"] > 0 and row["ratio"] > 0
        assert row["extra_mb"] is None or row["extra_mb"] >= 0
        low, high = row.get("quartiles", (1, 1))
        assert low <= row["ratio"] <= high
    assert found["rows"][0]["ratio"] == 1.0
    assert json.loads(json.dumps(found)) == found


def test_what_it_says_of_the_model_and_the_machine(found):
    assert (found["image_size"], found["tokens"], found["parameters"]) == ([64, 64], 17, 5_682_856)
    # 12 blocks: qkv and projection 4 w^2, MLP 8 w^2, attention 2 t w, for each of t tokens; embedding of 16 patches; head.
    t, w = 17, 192
    flop = 2 * (12 * (t * 12 * w**2 + 2 * t * t * w) + 16 * 768 * w + 1000 * w)
    assert found["gflop_per_image"] == pytest.approx(flop / 1e9, abs=0.006)
    assert 0 < found["share_of_ceiling"] < 1.5 and found["ceiling_gflop_per_s"] > 1
    cores = found["rows"][0]["images_per_s"] / found["loading"]["images_per_s"]
    assert found["loading"]["cores"] == pytest.approx(cores, rel=0.02)
    assert found["versions"]["torch"] == torch.__version__


def test_a_method_that_takes_twice_the_time_and_more_memory_shows_it(monkeypatch):
    """A planted peer: the plain pass twice, with 200 MB on top, and norms that are a little too large."""

    def prepare(backbone):
        def method(pixels):
            ballast = torch.ones(50_000_000)
            values = [capture(backbone, pixels, [PatchNorms()]) for _ in range(2)]
            return {"patch_norms": values[0]["patch_norms"] * (1 + 5e-4 * ballast[0])}

        return method

    monkeypatch.setattr(bench, "PEERS", {"planted": SimpleNamespace(prepare=prepare, package="timm")})
    found = bench.measure("vit_small_patch16_224", 16, ["planted"], **SMALL | {"image_size": 160})
    row = found["rows"][1]
    assert 0.15 < row["ratio"] < 0.85
    assert row["extra_mb"] is None or 150 < row["extra_mb"] < 320
    assert row["deviation"]["patch_norms"] == pytest.approx(5e-4, rel=0.02)


def test_a_peer_with_other_numbers_is_not_compared(monkeypatch):
    def prepare(backbone):
        return lambda pixels: {"patch_norms": 1.01 * capture(backbone, pixels, [PatchNorms()])["patch_norms"]}

    monkeypatch.setattr(bench, "PEERS", {"planted": SimpleNamespace(prepare=prepare, package="timm")})
    with pytest.raises(ValueError, match=r"'planted' gives other numbers \(up to 1e-02 of the largest\)"):
        bench.measure("vit_tiny_patch16_224", 8, ["planted"], **SMALL)


@pytest.mark.parametrize(
    ("library", "told"),
    [
        (SimpleNamespace(), False),  # macOS, musl
        (SimpleNamespace(mallopt=lambda *_: 1), False),  # numbers of mallopt are each library's own
        (SimpleNamespace(gnu_get_libc_version=None, mallopt=lambda *_: 1), True),
        (SimpleNamespace(gnu_get_libc_version=None, mallopt=lambda name, _: name != -3), False),  # too much for an old one
        (OSError("static"), False),
        (TypeError("Windows"), False),
    ],
)
def test_only_glibc_is_told_how_to_keep_memory(monkeypatch, library, told):
    def load(name):
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr(machine.ctypes, "CDLL", load)
    assert machine.allocate(kept=True) is machine.allocate(kept=False) is told
    if not hasattr(library, "gnu_get_libc_version"):
        assert machine.peak(lambda: pytest.fail("run for nothing"), "cpu") is None


def test_a_result_says_whether_memory_was_kept(found):
    assert found["allocation"] is (platform.libc_ver()[0] == "glibc")
    told = "this C library keeps and returns memory in its own way"
    assert told not in bench.table(found | {"allocation": True}) and told in bench.table(found | {"allocation": False})


def test_table(found):
    text = bench.table(found)
    lines = text.splitlines()
    assert lines[0].startswith("vit_tiny_patch16_224, 64 x 64 px, batches of 2, float32, cpu")
    assert lines[1].split() == ["method", "ratio", "quartiles", "images/s", "extra", "MB", "deviation"]
    assert lines[2].split()[:2] == ["plain", "1.0"]
    missing = {"method": "other", "ratio": None, "extra_mb": None, "images_per_s": None, "reason": "it is not there"}
    assert "other             not run: it is not there" in bench.table(found | {"rows": [*found["rows"], missing]})


def test_a_peer_that_cannot_be_measured_is_a_row_with_its_reason(monkeypatch, tmp_path):
    def environment(folder):
        folder.mkdir()
        (folder / "peers.json").write_text('{"not_installed": {"timm": "no network"}}')
        return Path("/bin/false")

    monkeypatch.setattr(bench, "environment", environment)
    found = bench.bench("vit_tiny_patch16_224", 8, peers=True, folder=tmp_path / "peers", **SMALL)
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == ["plain", "helpers", "helpers, entropy", *bench.PEERS]
    assert rows["timm"]["reason"] == "did not install: no network"
    assert rows["nnsight"]["reason"] == "the process ended with status 1" and rows["nnsight"]["ratio"] is None


def test_a_peer_is_measured_in_a_process_of_its_own(monkeypatch, tmp_path):
    """timm is here in any case, so this Python can play the peers' environment."""
    monkeypatch.setattr(bench, "environment", lambda folder: Path(sys.executable))
    monkeypatch.setattr(bench, "not_installed", lambda folder: {name: "left out" for name in bench.PEERS if name != "timm"})
    row = bench.bench("vit_tiny_patch16_224", 8, peers=True, **SMALL)["rows"][3]
    assert row["method"] == "timm" and row["version"] == timm.__version__ and row["images_per_s"] > 0
    assert set(row["deviation"]) == {"patch_norms", "cls_attention", "final_tokens"} and max(row["deviation"].values()) < 1e-4


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--images", "8", "--batch-size", "8"], "8 images are too few for pairs of 8; take at least 16"),
        (["--image-size", "60"], "image size 60x60 is not divisible by the patch size 16x16"),
        (["--model", "vit_tiny"], "unknown model 'vit_tiny'"),
        (["--device", "cuda:99"], "there is no device 'cuda:99' here; use --device cpu"),
        (["--json", "nowhere/bench.json"], "there is no folder 'nowhere'; make it first"),
        (["--json", "."], ". is a folder; name a file in it"),
        (["--json", "x" * 300], "cannot be written (File name too long); choose another place"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--model", "vit_tiny_patch16_224", "--json", "bench.json", *arguments], tmp_path) == 2
    said = capsys.readouterr()
    assert message in said.err and len(said.err.splitlines()) == 1 and not said.out
    assert not list(tmp_path.iterdir())


def test_command_writes_what_it_shows(capsys, tmp_path):
    path = tmp_path / "bench.json"
    size = ["--images", "8", "--image-size", "64", "--batch-size", "2"]
    assert main(["bench", "--model", "vit_tiny_patch16_224", *size, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert bench.table(found) in capsys.readouterr().out
    assert found["energy_kw"] == 0.105 and len(found["git_revision"]) == 40


# ---- What CI holds the engine to ----------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """Plain time over own time, by the clock and by the processor's time, and the share of the clock's time that the plain pass
    waited for a processor."""

    clock: float
    processor: float
    waited: float

    @property
    def busy(self) -> bool:
        """Whether other work took so much of the machine that the clock says nothing."""
        return self.waited > 0.05


def decided(attempts):
    """Whether the engine is fast enough; None where the machine is too busy to tell.

    By the clock where the machine is quiet. Where it is busy the processor's time is the better witness, but other work in the
    same caches blurs it, and it does not see an engine that waits: it acquits, and condemns only what is far too slow each time.
    """
    if any((one.processor if one.busy else one.clock) >= 0.9 for one in attempts):
        return True
    return None if all(one.busy for one in attempts) and max(one.processor for one in attempts) >= 0.85 else False


def attempt(methods, pixels):
    """One measurement of (plain, own), in pairs of changing order."""

    def timed(method):
        clock, processor = time.perf_counter(), time.process_time()
        method(pixels)
        return time.perf_counter() - clock, time.process_time() - processor

    pairs = [[timed(method) for method in methods[:: (-1) ** i]][:: (-1) ** i] for i in range(8)]
    plain, own = np.array(pairs).swapaxes(0, 1)  # (pair, clock) each
    return Attempt(*np.median(plain / own, axis=0), 1 - plain[:, 1].sum() / plain[:, 0].sum())


@pytest.fixture
def engines():
    """Pixels, and pairs (plain, own): the engine as it is, and with half of the work more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    backbone = load_backbone("vit_small_patch16_224", pretrained=False)
    bench.randomise(backbone.model)
    capture_them, plain = (bench.prepared(name, backbone, 4, torch.float32) for name in ("helpers", "plain"))

    def slow(pixels):
        plain(pixels[:2])
        return capture_them(pixels)

    pixels = torch.randn(4, 3, *backbone.image_size, generator=torch.Generator().manual_seed(1))
    machine.allocate(kept=True)
    capture_them(pixels), plain(pixels)  # which warms up
    yield pixels, {"own": (plain, capture_them), "slow": (plain, slow)}
    machine.allocate(kept=False)
    torch.set_num_threads(before)


def test_capture_is_nearly_as_fast_as_the_plain_forward_pass(engines):
    """At least 0.90 on whatever machine, in one of five attempts; not decided where all of them were disturbed."""
    pixels, methods = engines
    attempts = []
    for _ in range(5):
        attempts.append(attempt(methods["own"], pixels))
        if fast := decided(attempts):
            break
    if fast is None:
        pytest.skip(f"not decided, since the machine is busy: {attempts}")
    assert fast, attempts


def test_a_slow_engine_is_noticed(engines):
    """The same measurement: a guard that could not fail would be none."""
    pixels, methods = engines
    one = attempt(methods["slow"], pixels)
    assert decided([one]) is False, one


@pytest.mark.parametrize(
    ("attempts", "fast"),
    [
        ([(0.95, 0.95, 0.0)], True),
        ([(0.8, 0.8, 0.01)] * 5, False),
        ([(0.8, 1.0, 0.01)], False),  # it waits
        ([(0.7, 0.95, 0.4)], True),
        ([(0.7, 0.87, 0.4)] * 5, None),
        ([(0.7, 0.8, 0.4)] * 5, False),
        ([(0.7, 0.87, 0.4), (0.85, 0.85, 0.0)], False),
        ([(0.7, 0.87, 0.4), (0.91, 0.89, 0.0)], True),
    ],
)
def test_what_decides(attempts, fast):
    assert decided([Attempt(*one) for one in attempts]) is fast


def test_memory_does_not_grow_with_the_images():
    """Of 64 and of 1,024 images, into summaries: at most a tenth of the plain pass with its weights more, and no slope."""
    backbone = load_backbone("vit_tiny_patch16_224", image_size=64, pretrained=False)
    pixels = torch.zeros(1, 3, 64, 64)

    def run(n):
        sinks = {key: [bench.Summary()] for reducer in bench.REDUCERS for key in reducer.keys}
        capture(backbone, pixels.expand(n, -1, -1, -1), bench.REDUCERS, batch_size=16, progress=False, into=sinks)
        assert all(sink.n == n for own in sinks.values() for sink in own)

    run(64)
    if machine.peak(lambda: run(64), "cpu") is None:
        pytest.skip("this system does not tell the peak of a process's memory")
    few, many = (min(machine.peak(lambda n=n: run(n), "cpu") for _ in range(2)) for n in (64, 1024))
    assert many - few < 4  # MB; to keep the final tokens alone of 1,024 images takes 13


def test_keeping_is_what_takes_memory():
    """The same measurement sees what is kept: a guard that could not fail would be none."""
    backbone = load_backbone("vit_tiny_patch16_224", image_size=64, pretrained=False)
    pixels = torch.zeros(1, 3, 64, 64).expand(1024, -1, -1, -1)
    if (few := machine.peak(lambda: capture(backbone, pixels[:64], [FinalTokens()]), "cpu")) is None:
        pytest.skip("this system does not tell the peak of a process's memory")
    assert machine.peak(lambda: capture(backbone, pixels, [FinalTokens()]), "cpu") - few > 6


def test_loading_decodes_photographs(monkeypatch):
    backbone, seen = load_backbone("vit_tiny_patch16_224", pretrained=False), []
    transform = backbone.transform
    monkeypatch.setattr(backbone, "transform", lambda image: seen.append(image.size) or transform(image))
    told = bench.loading_rate(backbone, 10.0)
    assert set(seen) == {bench.JPEG} and len(seen) == pytest.approx(told["images_per_s"], rel=0.1)
