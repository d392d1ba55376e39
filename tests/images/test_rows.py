"""From the rows of a table to ids, labels, boxes and pictures: the right ground truth, and a
sentence where there is none."""

import hashlib
import warnings
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from pictures import picture, png, table, values, write
from PIL import Image

from helpers.images import load_images

pytestmark = pytest.mark.usefixtures("own_cache")


def test_ids_without_names_are_digests_of_the_bytes(tmp_path):
    images = load_images(write(tmp_path / "a.parquet", table([1, 2, 2])))
    digests = [hashlib.sha1(png(picture(row))).hexdigest()[:16] for row in (1, 2)]
    assert sorted(images.ids) == sorted([*digests, f"{digests[1]}-2"])


def test_ids_are_file_names_where_these_differ(tmp_path):
    rows = [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(3)]
    images = load_images(write(tmp_path / "a.parquet", datasets.Dataset.from_dict({"image": rows})))
    assert sorted(images.ids) == ["0.png", "1.png", "2.png"]
    images = load_images(write(tmp_path / "b.parquet", table([1, 2], file_name=["same", "same"])))
    assert "same" not in images.ids


@pytest.mark.parametrize("here", [True, False])
def test_a_table_reads_no_file_of_this_machine(tmp_path, monkeypatch, here):
    """A path without bytes, absolute or relative, would show whatever lies there to who reads the
    page."""
    (tmp_path / "private.png").write_bytes(png(picture(7)))
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "private.png") if here else "private.png"
    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": png(picture(1)), "path": "1.png"}, {"bytes": None, "path": path}]}
    )
    with pytest.raises(
        ValueError,
        match="names the file '.*private.png' of this machine in place of an image; put the bytes",
    ):
        load_images(write(tmp_path / "a.parquet", rows))
    hub = rows.cast_column("image", datasets.Image(decode=False))
    builder = SimpleNamespace(config=SimpleNamespace(data_files=None))
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda repository: builder)
    monkeypatch.setattr(datasets, "load_dataset", lambda repository, split: hub)
    with pytest.raises(ValueError, match="names the file '.*private.png' of this machine"):
        load_images("hf:owner/name/test")
    monkeypatch.setattr(
        datasets.config, "HF_DATASETS_CACHE", tmp_path
    )  # where the library itself puts files
    assert sorted(values(load_images("hf:owner/name/test"))) == [1, 7]


@pytest.mark.parametrize(
    "column, names, labels",
    [
        ({"species": [1, 0]}, ["cat", "dog"], [1, 0]),
        ({"label": ["dog", "cat"]}, ["cat", "dog"], [1, 0]),
        ({"label": ["dog", None]}, ["dog"], [0, -1]),
        ({"label": [True, False]}, None, [1, 0]),
    ],
    ids=["class label", "text", "missing", "true and false"],
)
def test_kinds_of_labels(tmp_path, column, names, labels):
    dataset = table([0, 1], **column)
    if "species" in column:
        dataset = dataset.cast_column("species", datasets.ClassLabel(names=names))
    images = load_images(write(tmp_path / "a.parquet", dataset))
    assert images.class_names == names
    assert dict(zip(values(images), images.labels.tolist(), strict=True)) == dict(enumerate(labels))


@pytest.mark.parametrize(
    "label, reason",
    [
        ([0.5, 1.0], "holds numbers with a fraction, such as .*; give whole numbers from 0, or"),
        ([[0, 1], [1]], "holds no labels, such as .*; give whole numbers from 0, or text"),
        ([-5, 1], "label -5 .* count from 0, with -1 for an image without one"),
    ],
)
def test_labels_that_are_none_are_named(tmp_path, label, reason):
    with pytest.raises(ValueError, match=reason):
        load_images(write(tmp_path / "a.parquet", table([0, 1], label=label))).require_labels()


@pytest.mark.parametrize(
    "box, message",
    [
        ([[1.0, 2.0, 3.0]] * 4, r"shape \(3,\)"),
        ([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0]], r"shape \(2,\)"),
        ([1.0, 2.0, 3.0, 4.0], r"shape \(\)"),
        ([[1.0, 2.0, float("nan"), 4.0]], r"\[1\.0, 2\.0, nan, 4\.0\]"),
        ([[5.0, 2.0, 3.0, 4.0]], r"\[5\.0, 2\.0, 3\.0, 4\.0\]"),
        ([[1.0, 6.0, 3.0, 4.0]], r"\[1\.0, 6\.0, 3\.0, 4\.0\]"),
    ],
)
def test_boxes_that_are_none_are_refused(tmp_path, box, message):
    name = write(tmp_path / "a.parquet", table([3], id=["image-3"], boxes=[box]))
    with pytest.raises(
        ValueError, match=rf"boxes of 'image-3' .*{message}; give \[xmin, ymin, xmax, ymax\]"
    ):
        load_images(name)


def test_every_kind_of_file_becomes_upright_rgb(tmp_path):
    colour = Image.new("RGB", (12, 8), (200, 100, 50))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter turn
    colour.save(tmp_path / "exif.png", exif=exif)
    colour.convert("CMYK").save(tmp_path / "cmyk.tiff")
    colour.convert("RGBA").save(tmp_path / "alpha.png")
    colour.convert("P").save(tmp_path / "palette.png", transparency=b"\x00" * 256)
    Image.new("L", (12, 8), 77).save(tmp_path / "grey.png")
    Image.fromarray(np.full((8, 12), 77 * 256 + 9, dtype=np.uint16)).save(tmp_path / "deep.png")
    with warnings.catch_warnings(action="error"):
        images = load_images(f"folder:{tmp_path}")
        found = {name: images[index] for index, name in enumerate(images.ids)}
    assert {image.mode for image in found.values()} == {"RGB"}
    assert found.pop("exif.png").size == (8, 12)
    for name, image in found.items():
        expected = (77, 77, 77) if name in ("grey.png", "deep.png") else (200, 100, 50)
        assert image.size == (12, 8)
        assert np.abs(np.subtract(image.getpixel((5, 5)), expected)).max() <= (
            26 if name == "palette.png" else 1
        ), name


def test_16_bits_a_channel_keep_their_brightness(tmp_path):
    """Mid grey in every kind of file that holds 16 bits; Pillow would clip some of them at 255."""
    grey = np.full((8, 12), 126 * 256 + 9, dtype=np.uint16)
    for name in ("deep.png", "deep.tiff"):
        Image.fromarray(grey).save(tmp_path / name)
    (tmp_path / "deep.pgm").write_bytes(b"P5 12 8 65535 " + grey.astype(">u2").tobytes())
    (tmp_path / "ten.pgm").write_bytes(b"P5 12 8 1023 " + (grey >> 6).astype(">u2").tobytes())
    images = load_images(f"folder:{tmp_path}")
    assert {
        id: image.getpixel((5, 5)) for id, image in zip(images.ids, images, strict=True)
    } == dict.fromkeys(images.ids, (126, 126, 126))
    assert len(images) == 4


@pytest.mark.parametrize(
    "pixels", [np.full((8, 12), 2**30, dtype=np.int32), np.full((8, 12), 0.5, dtype=np.float32)]
)
def test_numbers_without_a_white_are_refused(tmp_path, pixels):
    Image.fromarray(pixels).save(tmp_path / "a.tiff")
    with pytest.raises(
        ValueError,
        match=r"do not decode: a\.tiff; .*32 bits .* no white is known; save it with 8 or 16 bits",
    ):
        load_images(f"folder:{tmp_path}")
