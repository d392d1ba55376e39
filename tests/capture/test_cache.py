"""Captures on disk: the same numbers again, and never those of another capture."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import combinations

import pytest
import torch
from torchvision.transforms import Compose, Normalize
from zoo import CHANGES, REDUCERS, build, grid_mean

from helpers.capture import ClsAttention, OnPatches, OnQKV, PatchNorms, cache, capture, engine
from helpers.images import load_images
from helpers.interventions import appended_registers, intervention, nested
from helpers.measures.similarity import neighbour_cosine
from helpers.models import load_backbone
from helpers.models.backbone import on_output

PIXELS = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("REGISTERS_CACHE", str(tmp_path / "captures"))
    return tmp_path / "captures"


@pytest.fixture
def passes(monkeypatch):
    """An entry for each pass that is made."""
    made, run = [], engine._Pass.run
    monkeypatch.setattr(engine._Pass, "run", lambda *args: made.append(1) or run(*args))
    return made


def control():
    return load_backbone("control-content")


def path(backbone, images=PIXELS, reducers=None, dtype=torch.float32):
    return cache.path_of(backbone, images, reducers or [PatchNorms()], dtype)


@pytest.mark.parametrize("kind", REDUCERS, ids=lambda kind: kind.__name__)
def test_what_is_read_is_what_was_captured(kind, passes, folder):
    torch.manual_seed(0)
    backbone = build("small")
    reducer = REDUCERS[kind](backbone)
    one, other = (capture(backbone, PIXELS, [reducer]) for _ in range(2))
    assert [*one] == [*other] and all(torch.equal(one[key], other[key]) for key in one)
    # The function of two of these examples is one of a test, which no name tells from another.
    named = kind not in (OnPatches, OnQKV)
    assert len(passes) == 2 - named and len([*folder.glob("*.safetensors")]) == named


@pytest.mark.parametrize("value", ["", "none"])
def test_without_a_folder_nothing_is_kept(monkeypatch, passes, value):
    monkeypatch.setenv("REGISTERS_CACHE", value)
    for _ in range(2):
        capture(build("small"), PIXELS, [PatchNorms()])
    assert len(passes) == 2


def test_another_process_has_the_same_name():
    script = """
from functools import partial
from helpers.capture import ClsAttention, OnPatches, cache
from helpers.images import load_images
from helpers.interventions import appended_registers
from helpers.measures.similarity import neighbour_cosine
from helpers.models import load_backbone
import torch
backbone, images = load_backbone("control-content"), load_images("scenes", 3, 1).changed("rolled")
reducers = [OnPatches("x", partial(neighbour_cosine, neighbours=4)), ClsAttention()]
with appended_registers(backbone, 2):
    name = cache.path_of(backbone, images, reducers, torch.float32).name
print(name)
"""
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    exec(script, here := {})
    assert other.stdout.strip() == here["name"], other.stderr


def test_every_difference_makes_another_name():
    scenes, norms = load_images("scenes", 4, 1), PatchNorms()
    both = scenes + scenes.corrupted("blur", 1)
    images = {
        "others": load_images("scenes", 4, 2),
        "fewer": scenes[:3],
        "backwards": scenes.select([3, 2, 1, 0]),
        "joined": both,
        "plain of both": both[:4],
        "changed of both": both[4:],
        "blur": scenes.corrupted("blur", 1),
        "more blur": scenes.corrupted("blur", 2),
        "rolled": scenes.changed("rolled"),
        "pictures": [*scenes.corrupted("blur", 3)],
        "pixels": PIXELS,
        "a bit": PIXELS.index_fill(0, torch.tensor(2), 0.5),
    }
    sixteen = load_backbone("control-content", image_size=64)
    found = {name: path(control(), one) for name, one in images.items()}
    reducers = {
        "blocks": PatchNorms((-1,)),
        "heads": ClsAttention(heads="all"),
        "default": ClsAttention(),
        "function": OnPatches("x", neighbour_cosine),
        "argument": OnPatches("x", partial(neighbour_cosine, neighbours=8)),
        "other argument": OnPatches("x", partial(neighbour_cosine, neighbours=4)),
        "called": OnPatches("y", neighbour_cosine),
    }
    found |= {name: path(control(), scenes, [one]) for name, one in reducers.items()}
    found["two"] = path(control(), scenes, [norms, ClsAttention()])
    found["bfloat16"] = path(control(), scenes, dtype=torch.bfloat16)
    found["size"] = path(sixteen, scenes)
    weights, buffer, setting, mean = (control() for _ in range(4))
    weights.model.blocks[1].mlp.fc2.weight.data[3, 5] += 1e-6
    buffer.model.register_buffer("more", torch.ones(1), persistent=False)
    setting.model.global_pool = "avg"
    mean.transform = Compose([*mean.transform.transforms, Normalize([1e-7] * 3, [1.0] * 3)])
    changed = {"weights": weights, "buffer": buffer, "setting": setting, "mean": mean}
    found |= {name: path(one, scenes) for name, one in changed.items()}
    found["plain"] = path(control(), scenes)
    assert path(control(), load_images("scenes", 4, 1)) == found["plain"]
    assert path(control(), both[:4].select(range(4))) == found["plain of both"]
    # Which of two joined sets is changed, pixels tell; they are those of the sets themselves.
    assert found.pop("changed of both") != found.pop("plain of both")
    assert None not in found.values()
    assert not [pair for pair in combinations(found, 2) if found[pair[0]] == found[pair[1]]]


def test_every_intervention_makes_another_name():
    backbone, found = build("small"), []
    for change, arguments in CHANGES:
        with change(backbone, **arguments):
            found.append(path(backbone))
    replaced, arguments = CHANGES[-1]
    for change in (
        nested(partial(appended_registers, count=1), partial(appended_registers, count=2)),
        nested(partial(appended_registers, count=2), partial(appended_registers, count=1)),
        *(partial(appended_registers, init="normal", seed=seed) for seed in (1, 2)),
        partial(replaced, **arguments | {"tokens": arguments["tokens"] + 1e-6}),
    ):
        with change(backbone):
            found.append(path(backbone))
    found.append(path(backbone))
    assert None not in found and len({*found}) == len(found)


@intervention
def of_a_test(backbone):
    with backbone.change_output(lambda x: 2 * x):
        yield backbone


def test_what_has_no_name_is_not_kept(monkeypatch):
    backbone, two = build("small"), 2
    assert path(backbone) is not None
    for function in (lambda x: x.mean((1, 2)), lambda x: two * x, grid_mean, [].append):
        for one in (function, partial(neighbour_cosine, function)):
            assert path(backbone, reducers=[OnPatches("x", one)]) is None

    class Own(PatchNorms):
        pass

    assert path(backbone, reducers=[Own()]) is None
    with of_a_test(backbone):
        assert path(backbone) is None
    with backbone.change_output(lambda x: 2 * x):  # by no intervention
        assert path(backbone) is None
        with appended_registers(backbone):
            assert path(backbone) is None
    with appended_registers(backbone), on_output(backbone.blocks[0], print):
        assert path(backbone) is None
    with torch.autocast("cpu"):
        assert path(backbone) is None
    assert path(replace(backbone, transform=lambda x: x), [*load_images("scenes", 1)]) is None
    with monkeypatch.context() as patch:
        patch.setattr(backbone.blocks[0].mlp, "forward", lambda x: x)
        assert path(backbone) is None
    assert path(backbone) is not None
