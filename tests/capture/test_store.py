"""What a store gives is what a pass would give, and nothing else; nothing that happens to its files
changes a number."""

import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import Compose, Lambda, Normalize, Resize
from zoo import CHANGES

from helpers.capture import (
    ClsAttention,
    FinalTokens,
    OnPatches,
    PatchNorms,
    RandomPixels,
    SelectedTokens,
    Store,
    TokenNorms,
    capture,
    capture_each,
    engine,
)
from helpers.capture import store as module
from helpers.capture.store import Untold, names_of
from helpers.files import CACHE, VARIABLE, Workspace
from helpers.images import load_images
from helpers.interventions import appended_registers, dropped_patches, intervention
from helpers.measures._arrays import like
from helpers.models import load_backbone

REDUCERS = [PatchNorms(), ClsAttention("all")]
SHARD, BATCH, IMAGES = 8, 4, 20
STANDS_FOR = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
PIXELS = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
untold = partial(pytest.warns, UserWarning, match="cannot be told from another: not stored")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(module, "IMAGES", SHARD)
    monkeypatch.delenv(CACHE, raising=False)


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("control-content")


@pytest.fixture(scope="module")
def images():
    return load_images("scenes", IMAGES, seed=1)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "new" / "folder")


@pytest.fixture
def passed(monkeypatch):
    """The images of each forward pass."""
    numbers, forward = [], engine._Pass.forward

    def counted(self, start, pixels):
        numbers.append(len(pixels))
        return forward(self, start, pixels)

    monkeypatch.setattr(engine._Pass, "forward", counted)
    return numbers


def equal(one, other):
    return [*one] == [*other] and all(torch.equal(one[key], other[key]) for key in one)


def name(backbone, images=PIXELS, reducers=REDUCERS[:1], **options):
    """The name of the first shard of what the first reducer keeps."""
    options = {"dtype": torch.float32, "kind": "cpu", "first": 0} | options
    return names_of(backbone, images, reducers, **options)[0][0]


# ---- What it gives


@pytest.mark.parametrize("batch_size", [BATCH, 3, 11, 32])
def test_it_gives_what_a_pass_gives(backbone, images, store, passed, batch_size):
    """To the bit, also where batches are no whole shards; then no image passes any more."""
    reducers = [*REDUCERS, SelectedTokens(torch.arange(IMAGES)[:, None]), RandomPixels(2)]
    plain, options = capture(backbone, images, reducers, batch_size=batch_size), {"store": store}
    options["batch_size"] = batch_size
    assert equal(capture(backbone, images, reducers, **options), plain)
    passed.clear()
    assert equal(capture(backbone, images, reducers, **options), plain)
    assert not passed and len(store.files()) == 4 * 3


def test_only_what_is_missing_passes(backbone, images, store, passed):
    """Other reducers, other images, images in another order; each reducer has names of its own."""
    get = partial(capture, backbone, batch_size=BATCH)
    first = get(images, REDUCERS, store=store)
    passed.clear()
    assert equal(get(images, REDUCERS[1:], store=store), {"cls_attention": first["cls_attention"]})
    assert not passed
    more = [TokenNorms(), PatchNorms()]
    assert equal(get(images, more, store=store), get(images, more))
    assert sum(passed) == 2 * IMAGES  # of which one is without the store
    passed.clear()
    longer = load_images("scenes", 2 * IMAGES, seed=1)  # of which these are the first
    got = get(longer, REDUCERS, store=store)
    assert sum(passed) == 2 * IMAGES - IMAGES // SHARD * SHARD and equal(got, get(longer, REDUCERS))
    backwards = images.select(range(IMAGES - 1, -1, -1))
    assert equal(get(backwards, REDUCERS, store=store), get(backwards, REDUCERS))


def test_of_joined_sets_the_changed_one_is_told_apart(backbone):
    """Both have one name, and the same pictures before the change."""
    scenes = load_images("scenes", 4, 1)
    both = scenes + scenes.corrupted("blur", 1)
    assert name(backbone, both[:4]) != name(backbone, both[4:])


def test_a_gap_is_filled(backbone, images, store, passed):
    """Of two reducers each misses another shard."""
    get = partial(capture, backbone, images, REDUCERS, batch_size=BATCH)
    plain = get(store=store)
    names = names_of(backbone, images, REDUCERS, torch.float32, "cpu", 0)
    store.path(names[0][0]).unlink()
    store.path(names[2][1]).unlink()
    passed.clear()
    assert equal(get(store=store), plain) and sum(passed) == SHARD + IMAGES % SHARD
    assert len(store.files()) == 6


@pytest.mark.parametrize("change", [dropped_patches, appended_registers])
def test_what_treats_each_image_in_its_own_way(images, store, change):
    """Also where only the second shard is made again, and where images begin later."""
    model = load_backbone("control-content", image_size=64)
    rate = {"rate": 0.5} if change is dropped_patches else {}

    def get(**options):
        with change(model, **rate):
            kept = capture(model, images, [FinalTokens()], batch_size=BATCH, **options)
        return kept, model.next_image

    (plain, seen), later = get(), get(first=30)[0]
    assert equal(get(store=store)[0], plain)
    with change(model, **rate):
        names = names_of(model, images, [FinalTokens()], torch.float32, "cpu", 0)
    store.path(names[1][0]).unlink()
    again, count = get(store=store)
    assert equal(again, plain) and count == seen == IMAGES
    assert equal(get(store=store, first=30)[0], later)


def test_summaries_get_every_batch_and_are_not_stored(backbone, images, store):
    class Batches(list):
        update = list.append

    got = []
    for _ in range(2):
        got.append(Batches())
        options = {"into": {"patch_norms": got[-1:]}, "batch_size": BATCH, "store": store}
        assert [*capture(backbone, images, REDUCERS, **options)] == ["cls_attention"]
    assert len(got[0]) == 5 and all(map(torch.equal, *got)) and not store.files()


# ---- What happens to its files


def test_damaged_is_as_missing(backbone, images, store, passed):
    """Cut off, a byte changed anywhere, empty, under another's name."""
    get = partial(capture, backbone, images, [PatchNorms()], batch_size=BATCH, store=store)
    plain = get()
    (_, _, path), (_, _, other), _ = store.files()
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    # fmt: off
    flipped = [bytes([*whole[:at], whole[at] ^ 1, *whole[at + 1 :]])
               for at in (0, 9, whole.index(b"F32") + 1, header - 30, header, len(whole) - 1)]
    # fmt: on
    for data in (b"", whole[:7], whole[:-1], whole + b"x", other.read_bytes(), *flipped):
        path.write_bytes(data)
        passed.clear()
        assert equal(get(), plain)
        assert passed and path.read_bytes() == whole


def fill_the_disk(monkeypatch, after):
    """From the file with this number on there is no room."""
    write, written = Path.write_bytes, []

    def full(path, data):
        written.append(path)
        if len(written) > after:
            write(path, data[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)


def test_at_a_full_disk_it_goes_on_without(backbone, images, store, monkeypatch, passed):
    get = partial(capture, backbone, images, REDUCERS, batch_size=BATCH)
    plain = get()
    with monkeypatch.context() as patch:
        fill_the_disk(patch, 2)
        with pytest.warns(UserWarning, match="4 parts of a capture were not stored: the disk is"):
            assert equal(get(store=store), plain)
    assert len([*store.folder.iterdir()]) == len(store.files()) == 2
    passed.clear()
    assert equal(get(store=store), plain) and sum(passed) < IMAGES + 1
    assert len(store.files()) == 6


def test_a_folder_that_cannot_be_made(backbone, images, tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(UserWarning, match="3 parts of a capture were not stored: "):
        kept = capture(backbone, images, REDUCERS[:1], store=Store(tmp_path / "file" / "new"))
    assert equal(kept, capture(backbone, images, REDUCERS[:1]))


# The same capture in a process of its own, which can be killed.
PROGRAM = f"""
    import sys
    from pathlib import Path
    from helpers.capture import ClsAttention, PatchNorms, Store, capture
    from helpers.capture import store
    from helpers.images import load_images
    from helpers.models import load_backbone
    store.IMAGES = {SHARD}
    backbone, images = load_backbone("control-content"), load_images("scenes", 100)
    reducers = [PatchNorms(), ClsAttention("all")]
    capture(backbone, images, reducers, batch_size={BATCH}, store=Store(Path(sys.argv[1])))
    """


def begin(store):
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(PROGRAM), str(store.folder)])


@pytest.fixture(scope="module")
def hundred(backbone):
    scenes = load_images("scenes", 100)
    return scenes, capture(backbone, scenes, REDUCERS, batch_size=BATCH)


def test_killed_at_any_moment_what_is_written_is_used(backbone, store, passed, hundred):
    scenes, plain = hundred
    process, deadline = begin(store), time.monotonic() + 300
    while len(store.files()) < 7 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    assert process.poll() is None, "it ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole = sum(path.suffix == ".safetensors" for _, _, path in store.files()) // 2
    assert 2 < whole < 100 // SHARD
    passed.clear()
    again = capture(backbone, scenes, REDUCERS, batch_size=BATCH, store=store)
    assert equal(again, plain) and 0 < sum(passed) <= 100 - whole * SHARD


def test_two_processes_at_once(backbone, store, hundred):
    scenes, plain = hundred
    other = begin(store)
    while other.poll() is None:  # while it writes, and reads
        kept = capture(backbone, scenes, REDUCERS, batch_size=BATCH, store=store)
        assert equal(kept, plain)
        store.trim(0)
    assert other.returncode == 0


def test_what_was_not_used_for_longest_goes_first(backbone, images, store):
    get = partial(capture, backbone, reducers=[PatchNorms()])
    get(images, store=store)
    ((_, size, _), *_), kept = store.files(), [path for *_, path in store.files()]
    for age, path in enumerate(kept):
        os.utime(path, (1000 - age, 1000 - age))
    get(images.select(range(SHARD)), store=store)  # the first shard is used
    (store.folder / "mine.safetensors").touch()
    (left := store.folder / f".{kept[0].name}.{'0' * 32}.new").touch()
    os.utime(left, (0, 0))
    names = names_of(backbone, images, [PatchNorms()], torch.float32, "cpu", 0)
    store.trim(1.5 * size / 1e9)
    assert [path for *_, path in store.files()] == [store.path(names[0][0])]
    store.trim(0)
    assert [path.name for path in store.folder.iterdir()] == ["mine.safetensors"]


def test_what_takes_too_much_is_not_stored(backbone, images, store):
    """More than half of the limit; what takes less, beside it, is, as far as the limit goes."""
    norms = capture(backbone, images, REDUCERS)["patch_norms"].nbytes
    tight = replace(store, gigabytes=4 * norms / 1e9)
    kept = capture(backbone, images, [PatchNorms(), FinalTokens()], store=tight)
    assert equal(kept, capture(backbone, images, [PatchNorms(), FinalTokens()]))
    assert len(store.files()) == 3


# ---- What is told from what


TWICE = 2


def closing_over(factor):
    return lambda x: x.mean(dim=(1, 2)) * factor


def scaled(x, by=1.0, within=None):
    return (x * by).mean(dim=(1, 2))


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
    factor = 1

    def reduce(self, x, layout):
        return (super().reduce(x, layout)[0] * self.factor,)


class Other(PatchNorms):
    factor = 2

    def reduce(self, x, layout):
        return (super().reduce(x, layout)[0] * self.factor,)


class Third(Own):
    def reduce(self, x, layout):
        return super().reduce(x, layout)[0], 1


for kind in (Other, Third):
    kind.__name__, kind.__qualname__ = Own.__name__, Own.__qualname__


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
        (Own(), Third()),
    ],
    ids=["code", "constant", "partial", "tensor", "default", "closure", "inner", "global"]
    + ["inner global", "global of a class", "own", "own of its own"],
)
def test_a_function_is_known_by_what_it_does(backbone, first, second):
    def called(function):
        own = function if isinstance(function, PatchNorms) else OnPatches("a", function, -1)
        return name(backbone, reducers=[own])

    assert called(first) == called(copied(first)) != called(second)


def copied(function):
    """The same function as another process would have it."""
    if isinstance(function, partial):
        return partial(copied(function.func), **function.keywords)
    if isinstance(function, PatchNorms) or function.__closure__:
        return function
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )


def test_a_name_is_the_same_in_another_process():
    """Also where strings have other hashes."""
    code = """
        from functools import partial; import torch; from helpers.capture import OnQKV, Sinks
        from helpers.capture.store import names_of; from helpers.models import load_backbone
        from helpers.measures.object_discovery import lost_boxes
        reducers = [OnQKV("a", partial(lost_boxes, k=3, bias=0.5)), Sinks()]
        backbone = load_backbone("control-content")
        names = names_of(backbone, torch.ones(1, 3, 8, 8), reducers, torch.float32, "cpu", 0)
        """
    exec(code := textwrap.dedent(code), here := {})
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command, env = [sys.executable, "-c", code + "print(names)"], {"PYTHONHASHSEED": seed}
    there = subprocess.run(command, capture_output=True, text=True, env=os.environ | env).stdout
    assert len(re.findall(r"[0-9a-f]{64}", there)) == 2 and there == f"{here['names']}\n"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": torch.bfloat16},
        {"kind": "cuda"},
        {"reducers": [PatchNorms((-1,))]},
        {"reducers": [TokenNorms()]},
        {"images": 1 - PIXELS},
        {"images": PIXELS[:1]},
        {"images": PIXELS.flip(0)},
        {"backbone": load_backbone("control-clean")},
        {"backbone": load_backbone("control-content", image_size=64)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_capture_has_another_name(backbone, change):
    assert name(**{"backbone": backbone} | change) != name(backbone)


def test_code_and_versions_count(backbone, monkeypatch):
    before = name(backbone)
    with monkeypatch.context() as patch:
        patch.setattr(module, "SOURCES", "other")
        assert name(backbone) != before
    with monkeypatch.context() as patch:
        patch.setattr(module.timm, "__version__", "0")
        assert name(backbone) != before
    ours = [OnPatches("a", like, -1)]
    before = name(backbone), name(backbone, reducers=ours)
    monkeypatch.setattr(module, "MEASURES", "other")
    assert name(backbone) == before[0] and name(backbone, reducers=ours) != before[1]


@pytest.mark.parametrize(
    "what",
    ["framing", "normalised", "activation", "heads", "weight", "buffer", "attribute", "forward"]
    + ["lambda", "layout"],
)
def test_what_a_model_is_told_by(what):
    """As it is now, and as it is shown images."""
    model, other = load_backbone("control-clean"), load_backbone("control-clean")
    for one, number in ((model, 0), (other, 1)):  # which the model does not use
        one.model.register_buffer("more", torch.zeros(2), persistent=False)
        one.model.loose = torch.zeros(2)
        if what == "lambda":
            one.transform = Compose([one.transform, Lambda(lambda x, n=number: x + n)])
    if what != "lambda":
        assert name(model) == name(other)
    block = other.model.blocks[2]
    if what == "framing":
        other.transform.transforms[0] = Resize((96, 96))
    if what == "normalised":
        other.transform = Compose([other.transform, Normalize((0.5,) * 3, (0.5,) * 3)])
    if what == "activation":
        block.mlp.act = nn.Tanh()
    if what == "heads":  # which timm's attention does not print
        block.attn.num_heads //= 2
    if what == "weight":
        block.mlp.fc1.weight.data[0, 0] += 1  # which counts in no version of the tensor
    if what == "buffer":
        other.model.more += 1
    if what == "attribute":
        other.model.loose += 1
    if what == "forward":
        model.model.blocks[2].mlp.forward = lambda x, n=1: n * x
        block.mlp.forward = lambda x, n=2: n * x
    if what == "layout":
        other.layout = replace(other.layout, registers=1)
    assert name(model) != name(other)


def test_pictures_are_told_by_their_pixels(backbone, images, tmp_path):
    """Whatever they are called, and as they are changed when they are read."""
    (folder := tmp_path / "pictures").mkdir()

    def called(shift):
        for i in range(3):
            images[(i + shift) % 5].save(folder / f"{i}.png")
        return name(backbone, load_images(f"folder:{folder}"))

    first = called(0)
    assert called(0) == first != called(1)
    few = images.select(range(3))
    turned = [image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) for image in few]
    sets = [few, few.changed("flipped"), few.corrupted("blur", 1), few.corrupted("blur", 2)]
    sets += [replace(few, read=turned.__getitem__, contents=None), [*few]]
    sets += [[str(folder / f"{i}.png") for i in range(3)], tuple(np.asarray(x) for x in few)]
    sets.append(turned)
    names = [name(backbone, own) for own in sets]
    assert len({*names}) == len(sets) - 1 and names[4] == names[-1]  # the same pictures
    with pytest.raises(Untold, match="images in a Dataset"):
        name(backbone, type("Dataset", (), {"__len__": lambda self: 2})())


@pytest.mark.parametrize("change, arguments", CHANGES, ids=lambda x: getattr(x, "__name__", ""))
def test_inside_an_intervention_names_are_others(change, arguments):
    model, pixels = load_backbone("control-clean", image_size=64), torch.rand(3, 3, 64, 64)
    plain = name(model, pixels)
    with change(model, **arguments):
        inside = name(model, pixels)
        with appended_registers(model, 1):
            deeper = name(model, pixels)
        assert name(model, pixels) == inside
    assert len({plain, inside, deeper}) == 3 and name(model, pixels) == plain
    assert model.interventions == () and model.own_hooks == frozenset()


def test_an_intervention_of_ones_own_is_told_by_its_code(backbone):
    def added(count):
        @intervention
        def own(backbone):
            with appended_registers(backbone, 1, seed=count):
                yield backbone

        return own

    @intervention
    def hooked(backbone):
        with backbone.change_input(lambda x: 2 * x):
            yield backbone

    called = []
    for count in (0, 0, 1):
        with added(count)(backbone):
            called.append(name(backbone))
    assert called[0] == called[1] != called[2]
    with hooked(backbone), pytest.raises(Untold, match="a hook that no intervention"):
        name(backbone)


# ---- What cannot be told is computed


class Opaque:
    of = staticmethod(torch.zeros_like)

    def __call__(self, x):
        return x.mean(dim=(1, 2))


def importing(x):
    from zoo import NEURONS

    return x.mean(dim=(1, 2)) * len(NEURONS)


@contextmanager
def forward(backbone):
    mlp, doubling = backbone.model.blocks[2].mlp, Opaque()
    mlp.forward = lambda x: 2 * x + 0 * doubling.of(x)
    yield
    del mlp.forward


@contextmanager
def inserted(backbone):
    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    block = backbone.model.blocks[2]
    mlp, block.mlp = block.mlp, Twice()
    yield
    block.mlp = mlp


@contextmanager
def replaced(backbone):
    kind = type(backbone.model)
    before, kind.pool = kind.pool, lambda self, x, pool_type=None: 2 * x[:, 0]
    yield
    kind.pool = before


UNTOLD = {
    "object": (nullcontext, Opaque()),
    "generator": (nullcontext, partial(scaled, within=np.random.default_rng(0))),
    "bound": (nullcontext, Opaque().__call__),
    "class": (nullcontext, lambda x: Opaque()(x)),
    "import": (nullcontext, importing),
    "hook": (lambda b: b.model.blocks[1].register_forward_hook(lambda *_: None), scaled),
    "input hook": (lambda b: b.change_input(lambda x: 2 * x), scaled),
    "watcher": (lambda b: b.watch("residual", 1, lambda x: None), scaled),
    "global hook": (
        lambda b: nn.modules.module.register_module_forward_hook(lambda *_: None),
        scaled,
    ),
    "autocast": (lambda b: torch.autocast("cpu", torch.bfloat16), scaled),
    "mode": (lambda b: FlopCounterMode(display=False), scaled),
    **{function.__name__: (function, scaled) for function in (forward, inserted, replaced)},
}


@pytest.mark.parametrize("around, function", UNTOLD.values(), ids=UNTOLD)
def test_what_cannot_be_told_is_computed_with_a_warning(images, store, around, function):
    model, reducers = (
        load_backbone("control-content", image_size=64),
        [OnPatches("a", function, -1)],
    )
    few = images.select(range(2))
    place = around() if around is nullcontext else around(model)
    with place:
        plain = capture(model, few, reducers)
        for _ in range(2):
            with untold():
                assert equal(capture(model, few, reducers, store=store), plain)
    assert not store.files()


# ---- Where it is


def test_it_is_a_setting_of_the_machine(backbone, images, tmp_path, monkeypatch, passed):
    """Off unless the variable names a folder; small passes are not worth a file."""
    monkeypatch.setattr(module, "FEWEST", SHARD)
    monkeypatch.chdir(tmp_path)
    get = partial(capture, backbone, reducers=REDUCERS[:1])
    for value in (None, "", "none"):
        if value is not None:
            monkeypatch.setenv(CACHE, value)
        assert Store.of_machine() is None
        get(images)
        assert not [*tmp_path.iterdir()]
    monkeypatch.setenv(CACHE, str(tmp_path / "captures"))
    get(images.select(range(SHARD - 1)))
    get(images, store=None)
    assert not [*tmp_path.iterdir()]
    first = get(images)
    passed.clear()
    assert equal(get(images), first) and not passed
    assert Store.of_machine().gigabytes == 20
    monkeypatch.setenv(module.LIMIT, "0.5")
    assert Store.of_machine() == Store(tmp_path / "captures", 0.5, SHARD)
    for text in ("much", "0", "-1", "nan"):
        monkeypatch.setenv(module.LIMIT, text)
        with pytest.raises(ValueError, match=f"REGISTERS_CACHE_GB is '{text}'; give the gigab"):
            Store.of_machine()


def test_the_books_example_runs(tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[2] / "book" / "methods.md").read_text()
    section = text.partition("## Many images")[2].partition("\n## ")[0]
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.S)), {})
    lines = capsys.readouterr().out.splitlines()
    assert float(lines[0]) > 400 and lines[1:] == ["torch.Size([6, 197, 64])", "True"]


# ---- What a run hears


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """The one of a run that begins now."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "workspace"))
    workspace = Workspace(tmp_path / "workspace")
    workspace.begin()
    return workspace


def test_of_a_stub_as_many_numbers_are_listed_as_its_model_would_keep(workspace):
    stub, images = load_backbone(f"stub:{STANDS_FOR}"), load_images("scenes", 2)
    whole = stub.stands_for
    assert stub.depth < whole.depth and stub.layout.tokens < whole.layout.tokens
    captured = capture(stub, images, [PatchNorms(), FinalTokens()], batch_size=2)
    assert ["released" in entry for entry in workspace.listed()] == [False]
    del captured
    gone = [entry["released"] for entry in workspace.listed() if "released" in entry]
    assert sorted(gone) == [[0, "final_tokens"], [0, "patch_norms"]]
    (listed,) = (entry for entry in workspace.listed() if "model" in entry)
    assert listed["kept"] == {
        "patch_norms": whole.depth * whole.layout.patches,
        "final_tokens": whole.layout.tokens * stub.width,
    }
    told = [listed[name] for name in ("model", "images", "depth", "tokens", "parameters")]
    assert told == [stub.name, 2, whole.depth, whole.layout.tokens, whole.parameters]
    assert len({*listed["names"]}) == 2
    capture(stub, load_images("scenes", 3), [PatchNorms()])  # more of the same
    more = [entry for entry in workspace.listed() if "model" in entry][-1]
    assert more["names"] == listed["names"][:1]


def test_passes_that_were_read_are_counted(workspace, store, backbone, images):
    get = partial(capture, backbone, images)
    for reducers, read in ((REDUCERS[:1], 0), (REDUCERS[:1], 1), (REDUCERS, 2)):
        get(reducers, store=store)
        assert workspace.read == read
    get(REDUCERS)
    assert (workspace.finished, workspace.read) == (4, 2)


def test_batches_are_counted_over_all_images(workspace, store, backbone, images, monkeypatch):
    said, report = [], Workspace.report
    monkeypatch.setattr(
        Workspace, "report", lambda self, *text: (said.append(text), report(self, *text))
    )
    get = partial(capture, backbone, images, REDUCERS[:1], batch_size=BATCH)
    get()
    assert said == [(done, 5) for done in range(1, 6)] and workspace.batches() is None
    get(store=store)
    names = names_of(backbone, images, REDUCERS[:1], torch.float32, "cpu", 0)
    store.path(names[1][0]).unlink()
    said.clear()
    get(store=store)
    assert said == [(3, 5), (4, 5)]
    workspace.report(1, 2)
    assert workspace.batches() == (1, 2)
    (workspace.folder / "batch").write_text("4")  # half written
    assert workspace.batches() is None
    (workspace.folder / "batch").unlink()
    (workspace.folder / "batch").mkdir()  # it cannot be written, which stops no capture
    workspace.report(1, 2)


def test_every_model_in_its_turn(images, tmp_path, monkeypatch, passed):
    """As notebooks capture, with an intervention."""
    monkeypatch.setattr(module, "FEWEST", 0)
    monkeypatch.setenv(CACHE, str(tmp_path))
    dropped = partial(dropped_patches, rate=0.5)
    names = ["control-content", "control-clean"]
    got = [capture_each(names, images, REDUCERS, intervention=dropped)[0] for _ in range(2)]
    assert sum(passed) == 2 * IMAGES
    for own in names:
        assert equal(got[0][own].tensors, got[1][own].tensors)
