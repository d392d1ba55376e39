"""Shards hold what one capture would return, and are mended by the same call; a run keeps its long
captures in them."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType

import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import Compose, Normalize, Resize
from zoo import INTERVENTIONS

from helpers.capture import (
    ClsAttention,
    FinalTokens,
    OnPatches,
    Output,
    PatchNorms,
    SelectedTokens,
    Shards,
    capture_each,
    capture_shards,
    engine,
    find_register_neurons,
)
from helpers.capture import capture as plain
from helpers.capture import shards as module
from helpers.files import VARIABLE, Workspace, locked
from helpers.images import load_images
from helpers.interventions import dropped_patches
from helpers.models import load_backbone

REDUCERS = [PatchNorms(), ClsAttention("all"), FinalTokens()]
refused = partial(pytest.raises, ValueError)


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("control-clean")


@pytest.fixture(scope="module")
def images():
    return load_images("scenes", 5, seed=1)


@pytest.fixture
def counted(monkeypatch):
    """The numbers of images of each capture."""
    calls = []

    def capture(backbone, images, *rest, **options):
        calls.append(len(images))
        return plain(backbone, images, *rest, **options)

    monkeypatch.setattr(module, "capture", capture)
    return calls


def test_together_they_are_one_capture(tmp_path, backbone, images):
    shards = capture_shards(
        tmp_path / "new" / "folder", backbone, images, REDUCERS, size=2, batch_size=2
    )
    assert len(shards) == 3 and [len(part["patch_norms"]) for part in shards] == [2, 2, 1]
    whole = plain(backbone, images, REDUCERS, batch_size=2)
    for key, value in whole.items():
        assert torch.equal(torch.cat([part[key] for part in shards]), value)
    again = Shards(tmp_path / "new" / "folder")
    assert again.images == 5 and torch.equal(
        again.read(2)["final_tokens"], whole["final_tokens"][4:]
    )


def test_positions_go_with_their_images(tmp_path, backbone):
    pixels, positions = torch.rand(5, 3, 224, 224), torch.arange(5)[:, None]
    shards = capture_shards(tmp_path, backbone, pixels, [SelectedTokens(positions)], size=2)
    whole = plain(backbone, pixels, [SelectedTokens(positions)])["tokens"]
    torch.testing.assert_close(torch.cat([part["tokens"] for part in shards]), whole)


def test_what_is_there_is_kept_and_what_is_damaged_made_again(tmp_path, backbone, images, counted):
    made = capture_shards(tmp_path, backbone, images, REDUCERS, size=2)
    wanted = made.read(1)
    damaged, missing = tmp_path / made.name(1), tmp_path / made.name(2)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    missing.unlink()
    for index in (1, 2):
        with pytest.raises(ValueError, match="missing or damaged; the same call"):
            made.read(index)
    counted.clear()
    mended = capture_shards(tmp_path, backbone, images, REDUCERS, size=2)
    assert counted == [2, 1]
    assert torch.equal(mended.read(1)["final_tokens"], wanted["final_tokens"])
    capture_shards(tmp_path, backbone, images, REDUCERS, size=2)
    assert counted == [2, 1]


def test_a_full_disk_leaves_no_half_shard(tmp_path, backbone, images, monkeypatch):
    write_bytes = Path.write_bytes

    def full(path, data):
        if "000001" in path.name:
            write_bytes(path, data[:1000])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(
            OSError,
            match=r"disk is full: shard 2 of 3 \(\d+ MB\) does not fit; the 1 before it are whole",
        ):
            capture_shards(tmp_path, backbone, images, REDUCERS, size=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000.safetensors", "shards.json"]
    assert len(list(capture_shards(tmp_path, backbone, images, REDUCERS, size=2))) == 3


def test_a_full_disk_names_the_shard_and_its_megabytes(tmp_path, backbone, images, monkeypatch):
    shards = capture_shards(tmp_path, backbone, images[:2], [PatchNorms()], size=1)
    assert len(shards) == 2 and len(shards.read(0)["patch_norms"]) == 1

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"shard 2 of 2 \(3 MB\) does not fit; the 1 before it"):
        shards.write(1, {"x": torch.zeros(750_000)})


@pytest.mark.parametrize(
    "change, differs",
    [
        ({"size": 3}, "images a shard"),
        ({"dtype": torch.bfloat16}, "dtype"),
        ({"reducers": [PatchNorms((-1,))]}, "keep"),
        ({"images": load_images("scenes", 5, seed=2)}, "images"),
        ({"backbone": load_backbone("control-content")}, "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_capture_is_refused(tmp_path, backbone, images, change, differs):
    call = {"backbone": backbone, "images": images, "reducers": [PatchNorms()], "size": 5}
    capture_shards(tmp_path, **call)
    with refused(match=rf"something else \({differs}\); choose another folder"):
        capture_shards(tmp_path, **call | change)
    told = json.loads((tmp_path / "shards.json").read_text())["inputs"]
    assert (told["model"]["name"], told["images"]["name"]) == ("control-clean", "scenes")
    assert told["keep"] == [{"reducer": "PatchNorms", "blocks": "all"}]


TWICE, PIXELS = 2, torch.rand(2, 3, 224, 224)


def closing_over(factor):
    return lambda x: x.mean(dim=(1, 2)) * factor


def scaled(x, by=1.0, within=None):
    return (x * by).mean(dim=(1, 2))


def of_grid(function):
    return [OnPatches("a", function, -1)]


def twice(x):
    return x.mean(dim=(1, 2)) * TWICE


def within(x):
    return max([x.mean(dim=(1, 2))], key=lambda y: TWICE)


def of_a_class(x):
    class Factor:
        value = TWICE

    return x.mean(dim=(1, 2)) * Factor.value


def thrice(function):
    return FunctionType(function.__code__, globals() | {"TWICE": 3}, function.__name__)


class Own(PatchNorms):
    def reduce(self, x, layout):
        return (super().reduce(x, layout)[0] * 1,)


class Other(PatchNorms):
    def reduce(self, x, layout):
        return (super().reduce(x, layout)[0] * 2,)


Other.__name__, Other.__qualname__ = Own.__name__, Own.__qualname__


@pytest.mark.parametrize(
    "first, second",
    [
        (lambda x: x.mean(dim=(1, 2)), lambda x: x.amax(dim=(1, 2))),
        (lambda x: x.mean(dim=(1, 2)) * 2, lambda x: x.mean(dim=(1, 2)) * 3),
        (partial(scaled, by=2.0), partial(scaled, by=3.0)),
        (partial(scaled, within=torch.zeros(2)), partial(scaled, within=torch.ones(2))),
        ((lambda x, by=1: x.mean(dim=(1, 2)) * by), (lambda x, by=2: x.mean(dim=(1, 2)) * by)),
        (closing_over(1), closing_over(2)),
        (
            lambda x: max([x.mean(dim=(1, 2))], key=lambda y: 1),
            lambda x: max([x.mean(dim=(1, 2))], key=lambda y: 2),
        ),
        *((function, thrice(function)) for function in (twice, within, of_a_class)),
        (Own(), Other()),
    ],
    ids=["code", "constant", "partial", "tensor", "default", "closure", "inner", "global"]
    + ["inner global", "global of a class", "own"],
)
def test_a_function_is_known_by_what_it_does(tmp_path, backbone, counted, first, second):
    def keep(function):
        reducers = [function] if isinstance(function, PatchNorms) else of_grid(function)
        return capture_shards(tmp_path, backbone, PIXELS, reducers)

    keep(first)
    with refused(match=r"something else \(keep\)"):
        keep(second)
    counted.clear()
    keep(copied(first))
    assert counted == []


def copied(function):
    """The same function as another process would have it."""
    if isinstance(function, partial):
        return partial(copied(function.func), **function.keywords)
    if isinstance(function, PatchNorms) or function.__closure__:
        return function
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )


def test_a_partial_is_the_same_in_another_process(tmp_path, backbone):
    code = (
        "from functools import partial; from helpers.capture import OnQKV; from "
        "helpers.capture.shards import _describe; "
        "from helpers.measures.object_discovery import lost_boxes; "
        "print(_describe(OnQKV('a', partial(lost_boxes, k=3, bias=0.5))))"
    )
    begun = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        )
        for seed in "12"
    ]
    first, second = (process.communicate()[0] for process in begun)
    assert "lost_boxes" in first and first == second and "0x" not in first


class Opaque:
    def __call__(self, x):
        return x.norm(dim=-1)


def test_bad_input(tmp_path, backbone, images):
    with pytest.raises(FileNotFoundError, match="holds no shards.json"):
        Shards(tmp_path)
    with refused(match="0 images a shard"):
        capture_shards(tmp_path, backbone, images, REDUCERS, size=0)
    with refused(match="Opaque.* cannot be told from another.*; give a function"):
        capture_shards(tmp_path, backbone, PIXELS, of_grid(Opaque()))


@pytest.mark.parametrize(
    "what, differs",
    [
        ("pixels", "images"),
        ("framing", "model"),
        ("normalised", "model"),
        ("activation", "model"),
        ("heads", "model"),
        ("forward", "model"),
    ],
)
def test_what_names_and_weights_do_not_tell_is_told(tmp_path, images, what, differs):
    """Pictures replaced under their names, and a model with the same weights shown or built
    otherwise."""
    first = load_backbone("control-clean")
    if what == "forward":
        first.model.blocks[2].mlp.forward = lambda x: 2 + x
    capture_shards(tmp_path, first, images, [PatchNorms()])
    other = load_backbone("control-clean", whole=what == "framing")
    if what == "framing":
        other.transform.transforms[0] = Resize((96, 96))
    if what == "normalised":
        other.transform = Compose([other.transform, Normalize((0.5,) * 3, (0.5,) * 3)])
    if what == "activation":
        other.model.blocks[2].mlp.act = nn.Tanh()
    if what == "heads":  # which timm's attention does not print
        other.model.blocks[2].attn.num_heads //= 2
    if what == "forward":
        other.model.blocks[2].mlp.forward = lambda x: 2 * x
    if what == "pixels":
        turned = [image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) for image in images]
        images = replace(images, read=turned.__getitem__, contents=None)
    assert other.weights_hash == first.weights_hash
    with refused(match=rf"something else \({differs}\); choose another folder"):
        capture_shards(tmp_path, other, images, [PatchNorms()])


def test_pictures_replaced_in_their_folder_are_others(tmp_path, images):
    """Loaded anew, under the names that they had."""
    (folder := tmp_path / "pictures").mkdir()

    def keep(shift):
        for i in range(3):
            images[(i + shift) % 5].save(folder / f"{i}.png")
        loaded, model = load_images(f"folder:{folder}"), load_backbone("control-clean")
        return capture_shards(tmp_path / "kept", model, loaded, [PatchNorms()])

    keep(0), keep(0)
    with refused(match=r"something else \(images\)"):
        keep(1)


@pytest.mark.parametrize(
    "change, examples", INTERVENTIONS.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_shards_made_inside_an_intervention_are_others(tmp_path, backbone, change, examples):
    x, small = torch.rand(3, 3, 64, 64), load_backbone("control-clean", image_size=64)

    def keep(name):
        return capture_shards(tmp_path / name, small, x, [Output()])

    keep("plain")
    for i, arguments in enumerate(examples):
        with change(small, **arguments):
            with refused(match=r"something else \(interventions\)"):
                keep("plain")
            keep(str(i))
            keep(str(i))
        with refused(match=r"something else \(interventions\)"):
            keep(str(i))
    assert small.interventions == ()


def test_dropped_patches_are_those_of_one_capture(tmp_path, images):
    small = load_backbone("control-content", image_size=64)
    with dropped_patches(small, 0.5, "zero"):
        whole = plain(small, images, [FinalTokens()])["final_tokens"]
    for _ in range(2):
        with dropped_patches(small, 0.5, "zero"):
            shards = capture_shards(tmp_path, small, images, [FinalTokens()], size=2)
        torch.testing.assert_close(torch.cat([part["final_tokens"] for part in shards]), whole)
        (tmp_path / shards.name(1)).unlink()  # it is made again, alone


def test_a_folder_is_for_one_capture_at_a_time(tmp_path, backbone, images):
    """Each writes the whole list: what the other has made since would not be in it."""
    made = capture_shards(tmp_path, backbone, images, [PatchNorms()], size=2)
    (tmp_path / made.name(1)).unlink()
    with locked(tmp_path):
        with pytest.raises(
            BlockingIOError,
            match="another process captures into .* just now; wait for it, or choose another",
        ):
            capture_shards(tmp_path, backbone, images, [PatchNorms()], size=2)
        assert len(Shards(tmp_path).read(0)["patch_norms"]) == 2  # which may be read meanwhile
    assert len(list(capture_shards(tmp_path, backbone, images, [PatchNorms()], size=2))) == 3


def test_the_books_example_runs(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "book" / "methods.md").read_text()
    section = text.partition("## Many images")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.S)), {})
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[0]) > 400 and lines[1:] == [
        "torch.Size([4, 197, 64])",
        "torch.Size([2, 197, 64])",
    ]


# Long captures of a run
# --------------------------------------------------------------------------------------------------


STANDS_FOR = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
SHORT, SHARD, BATCH, IMAGES = (PatchNorms(), ClsAttention()), 8, 4, 100
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
    monkeypatch.setattr(module, "IMAGES", SHARD)


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


def kept(images=IMAGES, reducers=SHORT, **options):
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


def test_a_killed_run_whose_pictures_were_replaced_gives_the_numbers_of_the_new_ones(
    tmp_path, begin, passed, monkeypatch
):
    def replace_pictures(first):
        for i, picture in enumerate(load_images("scenes", 24)[first : first + 12]):
            picture.save(tmp_path / "pictures" / f"{i:02d}.png")

    def norms():  # as a notebook has them, loaded anew under the same names
        pictures = load_images(f"folder:{tmp_path / 'pictures'}")
        captured, _ = capture_each(["control-content"], pictures, SHORT, batch_size=BATCH)
        return captured["control-content"].tensors

    def killed(self, index, tensors):
        write(self, index, tensors)
        raise KeyboardInterrupt

    (tmp_path / "pictures").mkdir()
    replace_pictures(12)
    new = norms()
    replace_pictures(0)
    begin()
    write = module.Shards.write
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.Shards, "write", killed)
        norms()
    assert [path.name for path in written(tmp_path)] == ["000000.safetensors"]
    replace_pictures(12)
    passed.clear()
    begin()
    assert equal(norms(), new) and sum(passed) == 12


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
    begin()  # it is kept in place of what lay there
    again = kept(20, intervention=partial(dropped_patches, rate=0.25))
    assert equal(again, other) and sum(passed) == 48 + SHARD + 20


def test_what_is_summed_or_begins_later_is_what_it_is_without_a_run(begin):
    backbone, images = load_backbone("control-content"), load_images("scenes", 12)

    def numbers():
        found = find_register_neurons(backbone, images, top_k=1, batch_size=BATCH)
        with dropped_patches(backbone, 0.5):
            return found, plain(backbone, images, SHORT, batch_size=BATCH, first=30)

    (found, kept), _ = numbers(), begin()
    again, later = numbers()
    assert again == found and equal(later, kept)


def test_what_cannot_be_kept_is_computed(tmp_path, begin):
    reducers = [OnPatches("own", Opaque())]
    plain, norms = kept(20, reducers), kept(20)
    begin()
    (tmp_path / "0002").touch()  # no folder can be made there
    assert equal(kept(20, reducers), plain) and equal(kept(20), norms)


def test_a_shard_holds_at_least_one_batch(tmp_path, begin):
    scenes = load_images("scenes", 20)
    begin()
    capture_each(["control-content"], scenes, SHORT, batch_size=SHARD + 4)
    assert [path.name for path in sorted(written(tmp_path))] == [
        "000000.safetensors",
        "000001.safetensors",
    ]


def test_of_a_stub_as_many_numbers_are_listed_as_its_model_would_keep(tmp_path, begin):
    begin()
    stub, images = load_backbone(f"stub:{STANDS_FOR}"), load_images("scenes", 2)
    whole = stub.stands_for
    assert stub.depth < whole.depth and stub.layout.tokens < whole.layout.tokens
    captured = plain(stub, images, [PatchNorms(), FinalTokens()], batch_size=2)
    assert ["released" in entry for entry in Workspace(tmp_path).listed()] == [False]
    del captured
    gone = [entry["released"] for entry in Workspace(tmp_path).listed() if "released" in entry]
    assert sorted(gone) == [[0, "final_tokens"], [0, "patch_norms"]]
    (listed,) = (entry for entry in Workspace(tmp_path).listed() if "model" in entry)
    assert listed["kept"] == {
        "patch_norms": whole.depth * whole.layout.patches,
        "final_tokens": whole.layout.tokens * stub.width,
    }
    told = [listed[name] for name in ("model", "images", "depth", "tokens", "parameters")]
    assert told == [stub.name, 2, whole.depth, whole.layout.tokens, whole.parameters]


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
    (tmp_path / "batch").unlink()
    (tmp_path / "batch").mkdir()  # it cannot be written, which stops no capture
    Workspace(tmp_path).report(1, 2)
