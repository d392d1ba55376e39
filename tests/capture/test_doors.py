"""The same file by each way in is the same number, or is refused by each."""

import struct
import warnings
import zlib

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.transforms import v2

from helpers.capture import PatchNorms, capture
from helpers.images import decode, load_images
from helpers.models import load_backbone

pytestmark = pytest.mark.usefixtures("own_cache")
SIZE = (60, 40)
Y, X = np.mgrid[: SIZE[1], : SIZE[0]]
RGB = np.stack([4 * X, 6 * Y, (X ^ Y) * 4 % 256], -1).astype(np.uint8)
COLOUR, DEEP = Image.fromarray(RGB), (1000 * Y + 400 * X).astype(np.uint16)


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def png_of_16_bits(pixels):
    """A PNG of colours with 16 bits each, which Pillow does not write."""

    def chunk(kind, content):
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    height, width, _ = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


PALETTE = COLOUR.convert("P", palette=Image.Palette.ADAPTIVE)
FRAMES = {"save_all": True, "append_images": [Image.new("RGB", SIZE)]}
FILES = {
    "turned.jpg": (COLOUR, {"exif": turned(6)}),
    "mirrored.png": (COLOUR, {"exif": turned(2)}),
    "turned.webp": (COLOUR, {"exif": turned(8), "lossless": True}),
    "grey-16.png": (Image.fromarray(DEEP), {}),
    "grey-16.tif": (Image.fromarray(DEEP), {"compression": "tiff_lzw"}),
    "grey-16-turned.png": (Image.fromarray(DEEP), {"exif": turned(3)}),
    "grey-12-in-16.png": (Image.fromarray(DEEP >> 4), {}),
    "grey-16.pgm": (b"P5 60 40 65535 " + DEEP.astype(">u2").tobytes(), {}),
    "colour-16.png": (png_of_16_bits(np.dstack([DEEP, DEEP[::-1], DEEP])), {}),
    "palette.png": (PALETTE, {"transparency": bytes([0, 128] * 128)}),
    "palette.bmp": (PALETTE, {}),
    "cmyk.jpg": (COLOUR.convert("CMYK"), {}),
    "lab.tif": (COLOUR.convert("LAB"), {}),
    "alpha.png": (Image.fromarray(np.dstack([RGB, 4 * X.astype(np.uint8)])), {}),
    "alpha.webp": (Image.fromarray(np.dstack([RGB, 4 * X.astype(np.uint8)])), {"lossless": True}),
    "grey-alpha.png": (Image.fromarray(RGB[..., :2], "LA"), {}),
    "one-bit.png": (Image.fromarray(X > Y), {}),
    "one-bit.tif": (Image.fromarray(X > Y), {"compression": "group4"}),
    "frames.tif": (COLOUR, FRAMES),
    "frames.png": (COLOUR, FRAMES),
}
REFUSED = {
    "fractions.tif": Image.fromarray((Y / 40).astype(np.float32)),
    "numbers.tif": Image.fromarray(Y.astype(np.int32)),
    "signed.tif": Image.fromarray(Y.astype(np.int16)),
    "half.png": b"\x89PNG\r\n\x1a\n" + bytes(30),
}


def write(folder, files):
    """The files below `folder`, as the one class of a data set of torchvision."""
    (folder / "label").mkdir(parents=True)
    for name, (picture, options) in files.items():
        if isinstance(picture, bytes):
            (folder / "label" / name).write_bytes(picture)
        else:
            picture.save(folder / "label" / name, **options)
    return sorted((folder / "label").iterdir())


def table_of(files):
    rows = [{"image": {"bytes": x.read_bytes(), "path": x.name}, "label": 0} for x in files]
    return datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())


def parquet_of(files):
    table_of(files).to_parquet(files[0].parents[2] / "table.parquet")
    return load_images(f"parquet:{files[0].parents[2]}/table.parquet")


def resized(files):
    """As large as they are; what is turned is turned only after this."""
    return ImageFolder(files[0].parents[1], transform=v2.Lambda(lambda x: x))


WAYS = {
    "folder": lambda files: load_images(f"folder:{files[0].parent}"),
    "parquet": parquet_of,
    "paths": list,
    "texts": lambda files: (*map(str, files),),
    "array of texts": lambda files: np.array([*map(str, files)]),
    "pictures": lambda files: [*map(Image.open, files)],
    "bytes": lambda files: [file.read_bytes() for file in files],
    "files of rows": lambda files: [{"bytes": x.read_bytes(), "path": None} for x in files],
    "rows": lambda files: [{"image": Image.open(file), "label": 0} for file in files],
    "pairs": lambda files: [(file, "label") for file in files],
    "ImageFolder": lambda files: ImageFolder(files[0].parents[1]),
    "samples": lambda files: ImageFolder(files[0].parents[1]).samples,
    "transform": resized,
    "Subset": lambda files: Subset(ImageFolder(files[0].parents[1]), range(len(files))),
    "Dataset": table_of,
    "column": lambda files: table_of(files)["image"],
    "batch": lambda files: table_of(files)[:],
    "DataLoader": lambda files: DataLoader(ImageFolder(files[0].parents[1]), batch_size=2),
    "rows of a DataLoader": lambda files: DataLoader(table_of(files)),
}


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("control-clean", image_size=64)


@pytest.fixture(scope="module")
def expected(tmp_path_factory, backbone):
    """The files, and their norms."""
    files = write(tmp_path_factory.mktemp("doors") / "folder", FILES)
    pictures = [decode(file) for file in files]
    return files, capture(backbone, pictures, [PatchNorms()])["patch_norms"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_is_the_same_number(expected, backbone, way):
    files, norms = expected
    images = WAYS[way](files)
    if way in ("folder", "parquet"):  # in an order of their choice
        images = images.select([images.ids.index(file.name) for file in files])
    found = capture(backbone, images, [PatchNorms()])["patch_norms"]
    torch.testing.assert_close(found, norms, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", REFUSED)
def test_each_way_in_is_refused(tmp_path, backbone, name):
    files = write(tmp_path / "folder", {name: (REFUSED[name], {})})
    for way in WAYS.values():
        with pytest.raises((ValueError, OSError)):
            capture(backbone, way(files), [PatchNorms()])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("grey-12-in-16.png", "4095"),
        ("frames.png", "several"),
        ("frames.tif", "several"),
        ("grey-16.png", None),
        ("colour-16.png", None),
        ("turned.jpg", None),
    ],
)
def test_what_is_read_otherwise_than_one_may_expect_is_said(tmp_path, name, said):
    (file,) = write(tmp_path / "folder", {name: FILES[name]})
    for way in (lambda: load_images(f"folder:{file.parent}"), lambda: decode(file)):
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            found = way()
        assert {bool(said) and said in str(note.message) for note in notes} == {True} & {bool(said)}
        if said and hasattr(found, "notes"):
            assert said in found.describe()["notes"][0]


class Rows:
    def __init__(self, row):
        self.row = row

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.row


@pytest.mark.parametrize(
    "images",
    [
        DataLoader(Rows((torch.zeros(3, 64, 64), 0)), shuffle=True),
        DataLoader(Rows((torch.zeros(3, 64, 64), 0)), batch_size=2, drop_last=True),
        DataLoader(Rows((COLOUR, 0)), collate_fn=list),
        DataLoader(Rows((COLOUR, 0)), sampler=[2]),
        Rows({"photo": COLOUR}),
        Rows((torch.zeros(3, 64, 64), torch.ones(3, 64, 64))),
        Rows([torch.zeros(3, 64, 64)] * 10),
        Rows((0, COLOUR)),
        Rows(np.zeros((3, 64, 64), np.int16)),
        Rows({"bytes": None, "path": "picture.png"}),
    ],
)
def test_what_may_be_another_picture_is_refused(backbone, images):
    with pytest.raises((ValueError, TypeError, OSError)):
        capture(backbone, images, [PatchNorms()])


def test_the_transform_and_the_loader_of_a_data_set_stay(tmp_path, backbone):
    (file,) = write(tmp_path / "folder", {"grey-16.png": FILES["grey-16.png"]})
    made = v2.Compose([v2.Resize((64, 64)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    folder = ImageFolder(file.parents[1], transform=v2.Compose([made, v2.Normalize([0.5], [0.5])]))
    loader = folder.loader
    found = capture(backbone, DataLoader(folder), [PatchNorms()])["patch_norms"]
    expected = capture(backbone, [file], [PatchNorms()])["patch_norms"]
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0.1)  # another way to resize
    assert folder.loader is loader
    other = DatasetFolder(file.parents[1], lambda path: COLOUR, (".png",))
    found = capture(backbone, other, [PatchNorms()])["patch_norms"]
    assert torch.equal(found, capture(backbone, [COLOUR], [PatchNorms()])["patch_norms"])
    with pytest.warns(UserWarning, match="normalised"):
        capture(backbone, ImageFolder(file.parents[1], transform=made), [PatchNorms()])
