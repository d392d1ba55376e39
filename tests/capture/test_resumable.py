"""What a run keeps of long captures: to the bit what it would compute, and how far it is."""

import signal
import subprocess
import sys
import textwrap
import time
from functools import partial

import pytest
import torch

from helpers.capture import (
    ClsAttention,
    OnPatches,
    PatchNorms,
    capture_each,
    capture_shards,
    engine,
)
from helpers.capture import (
    shards as resumable,
)
from helpers.images import load_images
from helpers.interventions import dropped_patches
from helpers.models import load_backbone
from helpers.workspace import VARIABLE, Workspace

REDUCERS, SHARD, BATCH, IMAGES = (PatchNorms(), ClsAttention()), 8, 4, 100
DROPPED = partial(dropped_patches, rate=0.5)
# The same capture as in `kept`, in a process that can be killed.
PROGRAM = f"""
    from helpers.capture import ClsAttention, PatchNorms, capture_each
    from helpers.capture import shards as resumable
    from helpers.images import load_images
    resumable.IMAGES = {SHARD}
    capture_each(
        ["control-content"],
        load_images("scenes", {IMAGES}),
        [PatchNorms(), ClsAttention()],
        batch_size={BATCH},
    )
    """


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(resumable, "IMAGES", SHARD)


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begins a run in the same workspace, as the executor does."""

    def begin():
        monkeypatch.setenv(VARIABLE, str(tmp_path))
        Workspace(tmp_path).begin()

    return begin


@pytest.fixture
def passed(monkeypatch):
    """The images of each forward pass."""
    numbers, forward = [], engine._Pass.forward

    def counted(self, start, pixels):
        numbers.append(len(pixels))
        return forward(self, start, pixels)

    monkeypatch.setattr(engine._Pass, "forward", counted)
    return numbers


def kept(images=IMAGES, reducers=REDUCERS, **options):
    scenes = load_images("scenes", images)
    captured, _ = capture_each(["control-content"], scenes, reducers, batch_size=BATCH, **options)
    return captured["control-content"].tensors


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def written(folder):
    return [*folder.glob("0001/*.safetensors")]


def test_killed_at_any_moment_at_most_one_shard_is_lost(tmp_path, begin, passed):
    plain = kept()
    begin()
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM)])
    deadline = time.monotonic() + 300
    while len(written(tmp_path)) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole = len(written(tmp_path))
    assert 0 < whole < IMAGES // SHARD
    passed.clear()
    begin()
    again = kept()
    # A shard may lie there whole and not be listed yet: that one is lost at most.
    assert IMAGES - whole * SHARD <= sum(passed) <= IMAGES - (whole - 1) * SHARD
    assert equal(again, plain)


def test_captures_are_kept_in_the_order_of_the_notebook(tmp_path, begin, passed):
    """What is short is not kept; a capture of something else than lies there is computed."""
    begin()
    first, second, short = kept(20), kept(20, intervention=DROPPED), kept(SHARD)
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["0001", "0002"]
    assert sum(passed) == 48
    begin()
    assert equal(kept(20), first) and equal(kept(20, intervention=DROPPED), second)
    assert sum(passed) == 48 and equal(kept(SHARD), short)
    begin()
    other = kept(20, intervention=partial(dropped_patches, rate=0.25))
    assert not equal(other, first) and sum(passed) == 48 + SHARD + 20


def test_an_intervention_knows_each_image_in_a_shard(tmp_path, begin, monkeypatch):
    """Which patches are dropped depends on the image's place among all of them."""
    change = partial(DROPPED, seed=3)
    plain = kept(20, intervention=change)
    begin()
    assert equal(kept(20, intervention=change), plain)
    monkeypatch.delenv(VARIABLE)
    backbone, images = load_backbone("control-content"), load_images("scenes", 20)
    with change(backbone):
        parts = capture_shards(
            tmp_path / "own", backbone, images, REDUCERS, size=SHARD, batch_size=BATCH
        )
    assert torch.equal(torch.cat([part["patch_norms"] for part in parts]), plain["patch_norms"])


def test_what_cannot_be_kept_is_computed(tmp_path, begin):
    class Opaque:
        def __call__(self, x):
            return x.norm(dim=-1)

    reducers = [OnPatches("own", Opaque())]
    plain, norms = kept(20, reducers), kept(20)
    begin()
    (tmp_path / "0002").touch()  # no folder can be made there
    assert equal(kept(20, reducers), plain) and equal(kept(20), norms)


def test_batches_are_counted_over_all_shards(tmp_path, begin, monkeypatch):
    said, report = [], Workspace.report
    monkeypatch.setattr(
        Workspace, "report", lambda self, *text: (said.append(text), report(self, *text))
    )
    begin()
    kept(20)
    assert said == [(done, 5) for done in range(1, 6)]
    said.clear()
    kept(SHARD)
    assert said == [(1, 2), (2, 2)] and Workspace(tmp_path).batches() is None
    Workspace(tmp_path).report(1, 2)
    assert Workspace(tmp_path).batches() == (1, 2)
    (tmp_path / "batch").write_text("4")  # half written
    assert Workspace(tmp_path).batches() is None
