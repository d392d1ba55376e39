"""From the rows of a table to ids, labels, boxes and pictures: the right ground truth."""

import hashlib
import warnings

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pictures import picture, png, table, values, write
from PIL import Image

from helpers.images import decode, load_images, tables

pytestmark = pytest.mark.usefixtures("own_cache")
NAN = float("nan")


def test_ids_without_names_are_digests_of_the_bytes(tmp_path):
    images = load_images(write(tmp_path / "a.parquet", table([1, 2, 2])))
    digests = [hashlib.sha1(png(picture(row))).hexdigest()[:16] for row in (1, 2)]
    assert sorted(images.ids) == sorted([*digests, f"{digests[1]}-2"])


def test_ids_are_names_where_these_differ(tmp_path):
    files = [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(3)]
    for columns, ids in (
        ({}, ["0.png", "1.png", "2.png"]),
        ({"image_id": [5.0, 7.0, 6.0]}, ["5", "6", "7"]),  # whole numbers stored as floats
        ({"image_id": [5, 5, 6], "path": list("abc")}, ["a", "b", "c"]),
    ):
        rows = datasets.Dataset.from_dict({"image": files} | columns)
        assert sorted(load_images(write(tmp_path / "a.parquet", rows)).ids) == ids


def test_a_relative_path_is_no_picture(tmp_path, monkeypatch):
    """Whatever lies there would be measured instead."""
    (tmp_path / "other.png").write_bytes(png(picture(7)))
    monkeypatch.chdir(tmp_path)
    files = [{"bytes": png(picture(1)), "path": "1.png"}, {"bytes": None, "path": "other.png"}]
    with pytest.warns(UserWarning, match="other.png"):
        images = load_images(
            write(tmp_path / "a.parquet", datasets.Dataset.from_dict({"image": files}))
        )
    assert values(images) == [1] and images.skipped == ["other.png"]


@pytest.mark.parametrize(
    "column, names, labels",
    [
        ({"species": [1, 0]}, ["cat", "dog"], [1, 0]),
        ({"label": ["dog", "cat"]}, ["cat", "dog"], [1, 0]),
        ({"label": ["dog", None]}, ["dog"], [0, -1]),
        ({"label": [True, False]}, None, [1, 0]),
        ({"label": [1.0, NAN]}, None, [1, -1]),
        ({"label": [1, 0], "name": ["b", "a"]}, ["a", "b"], [1, 0]),
        ({"label": [1, 1], "name": ["b", "a"]}, None, [1, 1]),
    ],
)
def test_kinds_of_labels(tmp_path, column, names, labels):
    dataset = table([0, 1], **column)
    if "species" in column:
        dataset = dataset.cast_column("species", datasets.ClassLabel(names=names))
    images = load_images(write(tmp_path / "a.parquet", dataset))
    assert images.class_names == names
    assert dict(zip(values(images), images.labels.tolist(), strict=True)) == dict(enumerate(labels))


@pytest.mark.parametrize("image", ["bytes", "dictionary", "bytes alone", "large"])
def test_pictures_are_found_in_any_binary_column(tmp_path, image):
    content = [png(picture(row)) for row in range(3)]
    files = [{"bytes": file, "path": f"{row}.png"} for row, file in enumerate(content)]
    arrays = {
        "bytes": pa.array(content),
        "dictionary": pa.array(content).dictionary_encode(),
        "bytes alone": pa.array(files, pa.struct({"bytes": pa.binary()})),
        "large": pa.array(files, pa.struct({"bytes": pa.large_binary(), "path": pa.string()})),
    }
    parquet.write_table(pa.table({"img": arrays[image], "id": list("abc")}), tmp_path / "a.parquet")
    images = load_images(f"parquet:{tmp_path}/a.parquet")
    assert dict(zip(images.ids, values(images), strict=True)) == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("as_list", [False, True])
def test_boxes_of_objects_are_read_where_they_are_corners(as_list):
    objects = [{"bbox": [[1.0, 2.0, 3.0, 4.0]], "area": [4.0]}, {"bbox": [], "area": []}]
    if as_list:
        objects = [
            [{"bbox": box, "area": area} for box, area in zip(*row.values(), strict=True)]
            for row in objects
        ]
    dataset = datasets.Dataset.from_dict({"objects": objects})
    rows = ["a", "b"], [(12, 8)] * 2
    boxes = tables.boxes_of(dataset, "hf:detection-datasets/coco/val", *rows)
    assert [x.tolist() for x in boxes] == [[[1, 2, 3, 4]], []] and boxes[1].shape == (0, 4)
    assert tables.boxes_of(dataset, "hf:owner/name/val", *rows) is None


Y, X = np.mgrid[:40, :60]
DEEP = (1000 * Y + 400 * X).astype(np.uint16)
COLOUR = Image.fromarray(np.stack([4 * X, 6 * Y, (X ^ Y) * 4 % 256], -1).astype(np.uint8))


@pytest.mark.parametrize(
    ("name", "image", "said"),
    [
        ("grey-16.png", DEEP, ""),
        ("grey-12-in-16.png", DEEP >> 4, "4095"),
        ("frames.png", COLOUR, "several"),
        ("frames.tif", COLOUR, "several"),
    ],
)
def test_what_is_read_otherwise_than_one_may_expect_is_said(tmp_path, name, image, said):
    frames = {"save_all": True, "append_images": [COLOUR]} if name.startswith("frames") else {}
    (Image.fromarray(image) if frames == {} else image).save(tmp_path / name, **frames)
    for way in (lambda: load_images(f"folder:{tmp_path}"), lambda: decode(tmp_path / name)):
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            found = way()
        assert {said in str(note.message) for note in notes} == {True} & {bool(said)}
        if said and hasattr(found, "notes"):
            assert said in found.describe()["notes"][0]


@pytest.mark.parametrize(
    "content", [(Y / 40).astype(np.float32), Y.astype(np.int32), Y.astype(np.int16), b"\x89PNG\r\n"]
)
def test_numbers_that_are_no_colours_are_refused(tmp_path, content):
    if isinstance(content, bytes):
        (tmp_path / "a.png").write_bytes(content)
    else:
        Image.fromarray(content).save(tmp_path / "a.tif")
    (file,) = tmp_path.iterdir()
    for way in (lambda: load_images(f"folder:{tmp_path}"), lambda: decode(file)):
        with pytest.raises((ValueError, OSError)):
            way()


def test_every_kind_of_file_becomes_upright_rgb(tmp_path):
    colour = Image.new("RGB", (12, 8), (200, 100, 50))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter turn
    colour.save(tmp_path / "exif.png", exif=exif)
    colour.convert("CMYK").save(tmp_path / "cmyk.tiff")
    colour.convert("RGBA").save(tmp_path / "alpha.png")
    colour.convert("P").save(tmp_path / "palette.png", transparency=b"\x00" * 256)
    Image.new("L", (12, 8), 77).save(tmp_path / "grey.png")
    # 16 bits, which Pillow would clip at 255 in some kinds of files.
    deep = np.full((8, 12), 77 * 256 + 9, dtype=np.uint16)
    for suffix in ("png", "tiff"):
        Image.fromarray(deep).save(tmp_path / f"deep.{suffix}")
    (tmp_path / "deep.pgm").write_bytes(b"P5 12 8 65535 " + deep.astype(">u2").tobytes())
    (tmp_path / "deep-10.pgm").write_bytes(b"P5 12 8 1023 " + (deep >> 6).astype(">u2").tobytes())
    with warnings.catch_warnings(action="error"):
        images = load_images(f"folder:{tmp_path}")
        found = dict(zip(images.ids, images, strict=True))
    assert {image.mode for image in found.values()} == {"RGB"}
    for name, image in found.items():
        assert image.size == ((8, 12) if name == "exif.png" else (12, 8))
        grey = name.startswith(("grey", "deep"))
        expected = (77, 77, 77) if grey else (200, 100, 50)
        wrong = np.abs(np.subtract(image.getpixel((5, 5)), expected)).max()
        assert wrong <= (26 if name == "palette.png" else 1), name
        with Image.open(tmp_path / name) as opened:
            assert decode(opened).tobytes() == decode(tmp_path / name).tobytes() == image.tobytes()
