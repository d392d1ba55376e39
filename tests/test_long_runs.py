"""What a kernel keeps of long captures, to the bit what it would compute, and where it says that it is."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest
import torch

from helpers import capture as room
from helpers import long_runs
from helpers.capture import ClsAttention, PatchNorms, capture_each, capture_shards
from helpers.images import load_images
from helpers.interventions import dropped_patches
from helpers.models import load_backbone

REDUCERS, SHARD, BATCH, IMAGES = (PatchNorms(), ClsAttention()), 8, 4, 100
# The same capture as in `kept`, in a process that can be killed.
PROGRAM = f"""
    import helpers.long_runs as long_runs
    long_runs.load_ipython_extension(None)
    long_runs.IMAGES = {SHARD}
    from helpers.capture import ClsAttention, PatchNorms, capture_each
    from helpers.images import load_images
    capture_each(["control-content"], load_images("scenes", {IMAGES}), [PatchNorms(), ClsAttention()], batch_size={BATCH})
    """


@contextmanager
def loaded(folder, batch=None):
    """This process as the extension makes a kernel, and as it was again."""
    import tqdm

    bar = tqdm.tqdm
    variables = {long_runs.SHARDS: str(folder), long_runs.BATCH: str(batch or "")}
    try:
        os.environ.update(variables)
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            patch.setattr(long_runs, "_inside", stack)
            long_runs.load_ipython_extension(None)
            yield
    finally:
        tqdm.tqdm = bar
        for name in variables:
            del os.environ[name]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(long_runs, "IMAGES", SHARD)


@pytest.fixture
def passed(monkeypatch):
    """The images of each forward pass."""
    numbers, forward = [], room.engine._Pass.forward

    def counted(self, start, pixels):
        numbers.append(len(pixels))
        return forward(self, start, pixels)

    monkeypatch.setattr(room.engine._Pass, "forward", counted)
    return numbers


def kept(images=IMAGES, intervention=None, reducers=REDUCERS):
    options = {} if intervention is None else {"intervention": intervention}
    captured, _ = capture_each(["control-content"], load_images("scenes", images), reducers, batch_size=BATCH, **options)
    return captured["control-content"].tensors


def equal(one, other):
    return [*one] == [*other] and all(torch.equal(one[key], other[key]) for key in one)


def test_killed_at_any_moment_at_most_one_shard_is_lost(tmp_path, small, passed):
    plain = kept()
    environment = {**os.environ, long_runs.SHARDS: str(tmp_path), long_runs.BATCH: str(tmp_path / "batch")}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM)], env=environment)
    deadline = time.monotonic() + 300
    while len(there := [*tmp_path.glob("0001/*.safetensors")]) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole = len([*tmp_path.glob("0001/*.safetensors")])
    assert len(there) <= whole < IMAGES // SHARD
    passed.clear()
    with loaded(tmp_path):
        again = kept()
    # A shard may lie there whole and not be listed yet: that one is lost at most.
    assert IMAGES - whole * SHARD <= sum(passed) <= IMAGES - (whole - 1) * SHARD
    assert equal(again, plain)


def test_captures_are_kept_in_the_order_of_the_notebook(tmp_path, small, passed):
    """Two that differ in nothing that a shard tells of are two; what is short, or keeps summaries, is not kept."""
    with loaded(tmp_path):
        first, second, short = kept(20), kept(20, partial(dropped_patches, rate=0.5)), kept(SHARD)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["0001", "0002"] and sum(passed) == 48
    with loaded(tmp_path):
        assert equal(kept(20), first) and equal(kept(20, partial(dropped_patches, rate=0.5)), second) and sum(passed) == 48
        assert equal(kept(SHARD), short)
        # Now the third is another one than the one that lies there: it is computed.
    with loaded(tmp_path):
        other = kept(20, partial(dropped_patches, rate=0.25))
    assert equal(other, kept(20, partial(dropped_patches, rate=0.25))) and not equal(other, first)


def test_an_intervention_knows_each_image_in_a_shard(tmp_path, small):
    """Which patches are dropped hangs on the image's place among all of them."""
    change = partial(dropped_patches, rate=0.5, seed=3)
    with loaded(tmp_path):
        assert equal(kept(20, change), plain := kept(20, change))
        backbone, images = load_backbone("control-content"), load_images("scenes", 20)
        with change(backbone):
            shards = capture_shards(tmp_path / "own", backbone, images, REDUCERS, size=SHARD, batch_size=BATCH)
    assert torch.equal(torch.cat([part["patch_norms"] for part in shards]), plain["patch_norms"])
    assert equal(kept(20, change), plain)


def test_what_cannot_be_kept_is_computed(tmp_path, small):
    class Opaque:
        def __call__(self, x):
            return x.norm(dim=-1)

    reducers = [room.OnPatches("own", Opaque())]
    with loaded(tmp_path):
        assert equal(kept(20, reducers=reducers), kept(20, reducers=reducers))
    (tmp_path / "file").touch()
    with loaded(tmp_path / "file"):  # no folder can be made there
        assert equal(kept(20), kept(20))


def test_batches_are_counted_over_all_shards(tmp_path, small, monkeypatch):
    said = []
    monkeypatch.setattr(long_runs.Told, "_write", lambda self, text: said.append(text))
    tell = long_runs.Told.__init__
    monkeypatch.setattr(
        long_runs.Told, "__init__", lambda self, *a, **o: (tell(self, *a, **o), setattr(self, "mininterval", 0))[0]
    )
    with loaded(tmp_path, tmp_path / "batch"):
        monkeypatch.setattr(room.engine, "tqdm", long_runs.Told)
        kept(20)
        assert {"0 5", "2 5", "4 5"} <= {*said}
        assert {text.split()[1] for text in said if text} == {"5"}
        said.clear()
        kept(SHARD)
    assert {text.split()[1] for text in said if text} == {"2"} and said[-1] == ""
