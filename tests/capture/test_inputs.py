"""What people give as images, reducers and precision: it works, or ends in one sentence."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor
from zoo import build

from helpers.capture import ClsTokens, Output, PatchNorms, capture, images_of, inputs
from helpers.models import load_backbone


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("control-clean", image_size=64)


@pytest.fixture(scope="module")
def pictures():
    noise = np.random.default_rng(0).integers(0, 256, (3, 40, 60, 3), dtype=np.uint8)
    return [Image.fromarray(picture) for picture in noise]


@pytest.fixture(scope="module")
def expected(backbone, pictures):
    return capture(backbone, pictures, [PatchNorms()])["patch_norms"]


@pytest.fixture
def folder(tmp_path, pictures):
    for index, picture in enumerate(pictures):
        place = tmp_path / "pictures" / f"class{index % 2}"
        place.mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{index}.png")
    return tmp_path / "pictures"


class Normalised(Dataset):
    """A data set whose items are ready for the model, with a label."""

    def __init__(self, backbone, pictures):
        self.items = [(backbone.preprocess(picture), 1) for picture in pictures]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def norms(backbone, images, **options):
    return capture(backbone, images, [PatchNorms()], batch_size=2, **options)["patch_norms"]


@pytest.mark.parametrize(
    "kind", [str, Path, np.asarray, lambda p: np.asarray(p.convert("RGBA")), lambda p: (p, 3)]
)
def test_lists(backbone, pictures, expected, folder, kind):
    paths = sorted(folder.rglob("*.png"), key=lambda path: path.name)
    images = (
        [kind(path) for path in paths]
        if kind in (str, Path)
        else [kind(picture) for picture in pictures]
    )
    torch.testing.assert_close(norms(backbone, images), expected)


def test_one_array_of_all_and_grey_ones(backbone, pictures, expected):
    torch.testing.assert_close(
        norms(backbone, np.stack([np.asarray(picture) for picture in pictures])), expected
    )
    grey = [np.asarray(picture.convert("L")) for picture in pictures]
    whole = [Image.fromarray(picture).convert("RGB") for picture in grey]
    torch.testing.assert_close(norms(backbone, grey), norms(backbone, whole))
    torch.testing.assert_close(
        norms(backbone, [picture[..., None] for picture in grey]), norms(backbone, whole)
    )


def test_data_sets_and_loaders(backbone, pictures, expected, folder):
    order = [0, 2, 1]  # by class
    torch.testing.assert_close(norms(backbone, ImageFolder(folder)), expected[order])
    ready = Normalised(backbone, pictures)
    torch.testing.assert_close(norms(backbone, ready), expected)
    rows = [[{"label": 1, "image": x} for x in pictures], [{"pixel_values": x} for x, _ in ready]]
    for named in rows:
        torch.testing.assert_close(norms(backbone, named), expected)
    with pytest.raises(ValueError, match="image 0 is a dict; give a PIL image"):
        norms(backbone, [{"picture": pictures[0]}])
    torch.testing.assert_close(
        norms(backbone, DataLoader(ready, batch_size=1, shuffle=True)), expected
    )
    with pytest.raises(
        ValueError, match=r"image 0 is a Tensor \(3, 40, 60\) of torch.float32; give a PIL image"
    ):
        norms(backbone, ImageFolder(folder, transform=ToTensor()))


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


NO_IMAGES = [
    "pictures",
    Path("pictures"),
    Image.new("RGB", (9, 9)),
    np.zeros((9, 9, 3), np.uint8),
    torch.zeros(3, 64, 64),
    iter([1]),
    DataLoader(Stream()),
    None,
    {"a": 1},
]


@pytest.mark.parametrize("images", NO_IMAGES, ids=lambda images: type(images).__name__)
def test_what_are_no_images(backbone, images):
    kind = "Stream" if isinstance(images, DataLoader) else type(images).__name__
    message = rf"images are one {kind}, [^\n]*; give a list of PIL images, paths or [^\n]*$"
    with pytest.raises(ValueError, match=message):
        capture(backbone, images, [PatchNorms()])


@pytest.mark.parametrize(
    "item, reason",
    [
        ("gone.png", ", 'gone.png', cannot be read .*No such file.*; correct the path, or leave"),
        (__file__, ", .*, cannot be read"),
        (np.zeros((9, 9, 3)), r" is a ndarray \(9, 9, 3\) of float64; give .* of uint8"),
        (np.zeros((3, 9, 9), np.uint8), r" is a ndarray \(3, 9, 9\) of uint8; give"),
        (torch.zeros(3, 9, 9), r" is a Tensor \(3, 9, 9\) of torch.float32; .*\(3, 64, 64\)"),
        (7, " is a int; give a PIL image, a path"),
    ],
    ids=["missing", "text", "float", "channels first", "size", "number"],
)
def test_what_is_no_image(backbone, item, reason):
    with pytest.raises(ValueError, match=f"image 0{reason}") as error:
        capture(backbone, [item], [PatchNorms()])
    assert "\n" not in str(error.value)


def test_pixels_that_nobody_normalised_are_refused(backbone):
    """They would be measured without a word, and look like a model without outliers."""
    pixels = torch.rand(2, 3, 64, 64)
    pixels[1] *= 255
    for given in (pixels, [*pixels]):
        with pytest.raises(ValueError, match=r"pixels reach 25\d.*; give them normalised"):
            capture(backbone, given, [PatchNorms()])


@pytest.mark.parametrize("reducers", [[PatchNorms], PatchNorms(), PatchNorms, "norms", ["norms"]])
def test_what_are_no_reducers(backbone, pictures, reducers):
    message = r"reducers: .* is no (reducer|list); give a list of those of helpers.capture"
    with pytest.raises(ValueError, match=message):
        capture(backbone, pictures, reducers)


def test_precision_as_text(backbone, pictures, expected):
    for name in ("bfloat16", "torch.bfloat16", torch.bfloat16):
        got = norms(backbone, pictures, dtype=name)
        assert torch.equal(
            got, norms(backbone, pictures, dtype=torch.bfloat16)
        ) and not torch.equal(got, expected)
    for wrong in ("bf16", "float64"):
        with pytest.raises(
            ValueError,
            match=f"capture does not run in dtype {wrong}; choose one of torch.float32, torch.bf",
        ):
            norms(backbone, pictures, dtype=wrong)


def test_what_needs_cls_says_so_and_the_rest_goes_on():
    pooled = build("pooled")
    x = torch.zeros(1, 3, 32, 32)
    assert capture(pooled, x, [PatchNorms(), Output()])["patch_norms"].shape == (1, 3, 16)
    with pytest.raises(
        ValueError, match=r"ClsTokens needs a \[CLS\] token, and this model has no .*; leave it out"
    ):
        capture(pooled, x, [PatchNorms(), ClsTokens()])


def test_images_of_whatever_capture_takes(backbone, pictures, expected, folder):
    """The same pictures or pixels, with names and, of an ImageFolder, labels."""
    paths = sorted(folder.rglob("*.png"), key=lambda path: path.name)
    ready = [backbone.preprocess(picture) for picture in pictures]
    kinds = {
        "0.png": [*map(str, paths)],
        "0": pictures,
        "class0/0.png": ImageFolder(folder),
    }
    for name, images in kinds.items():
        found = images_of(backbone, images)
        assert found.ids[0] == name and images_of(backbone, found) is found
        order = [int(id[-5]) for id in found.ids] if ".png" in name else [0, 1, 2]
        torch.testing.assert_close(norms(backbone, found), expected[order])
    assert images_of(backbone, ImageFolder(folder)).labels.tolist() == [0, 0, 1]
    assert images_of(backbone, ImageFolder(folder)).class_names == ["class0", "class1"]
    items = [{"pixel_values": one} for one in ready], [{"image": one} for one in pictures]
    for images in (*items, DataLoader(Normalised(backbone, pictures)), torch.stack(ready)):
        found = images_of(backbone, images)
        torch.testing.assert_close(norms(backbone, found), expected)
        torch.testing.assert_close(norms(backbone, found.select([2])), expected[2:])
    assert images_of(backbone, [paths[0], paths[0]]).ids == ["0", "1"]  # no two of one name


def test_pixels_are_rolled_and_made_plain(backbone, pictures):
    found = images_of(backbone, torch.randn(2, 3, 64, 64))
    rolled, plain = found.changed("rolled")[0], found.changed("constant")[1]
    assert torch.equal(rolled[:, 32:, 32:], found[0][:, :32, :32])
    torch.testing.assert_close(plain, found[1].mean((1, 2))[:, None, None].expand(3, 64, 64))
    with pytest.raises(ValueError, match="pixels cannot be changed by 'noise'; give pictures"):
        found.changed("noise")[0]


@pytest.mark.parametrize(("images", "threads", "processes"), [(40, 4, 4), (5, 4, 3), (99, 30, 16)])
def test_on_a_gpu_so_many_processes_load_images(images, threads, processes, backbone, monkeypatch):
    """As many as this one computes with threads, at most 16 and one a batch."""
    asked = {}
    monkeypatch.setattr(inputs, "DataLoader", lambda *_, **options: asked.update(options) or [])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(type(backbone), "device", SimpleNamespace(type="cuda"))
    assert [*inputs.batches_of(backbone, [None] * images, 2, None)] == []
    assert (asked["num_workers"], asked["pin_memory"]) == (processes, True)
