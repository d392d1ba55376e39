"""From the rows of a table to ids, labels, boxes and pictures: the right ground truth, and a
sentence where there is none."""

import hashlib
import warnings
from types import SimpleNamespace

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
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
        ([-5, 1], "label -5 .* count from 0 to .*, with -1 for an image without one"),
    ],
)
def test_labels_that_are_none_are_named(tmp_path, label, reason):
    with pytest.raises(ValueError, match=reason):
        load_images(write(tmp_path / "a.parquet", table([0, 1], label=label))).require_labels()


PLAIN = {
    "image": [png(picture(row)) for row in range(4)],
    "id": [3, 1, 0, 2],
    "label": ["cat", "dog", "dog", "cat"],
    "boxes": [[[0, 0, row + 1, 2]] for row in range(4)],
}
FILE = [{"bytes": file, "path": f"{row}.png"} for row, file in enumerate(PLAIN["image"])]
BOXES = pa.list_(pa.list_(pa.int64()))


def arrow(path, columns, **types):
    """A table of Parquet whose columns have these types of Arrow."""
    arrays = {key: pa.array(values, types.get(key)) for key, values in columns.items()}
    parquet.write_table(pa.table(arrays), path)
    return f"parquet:{path}"


def told(images):
    boxes = [own.tolist() for own in images.boxes]
    return images.ids, values(images), images.labels.tolist(), images.class_names, boxes


@pytest.mark.parametrize(
    "key, type",
    [
        ("image", pa.large_binary()),
        ("image", pa.dictionary(pa.int8(), pa.binary())),
        ("image", pa.struct({"bytes": pa.large_binary()})),
        ("image", pa.struct({"path": pa.large_string(), "bytes": pa.binary(), "size": pa.int8()})),
        ("id", pa.float64()),
        ("id", pa.large_string()),
        ("id", pa.string_view()),
        ("id", pa.uint64()),
        ("label", pa.large_string()),
        ("label", pa.string_view()),
        ("label", pa.dictionary(pa.int8(), pa.large_string())),
        ("boxes", pa.large_list(pa.large_list(pa.float32()))),
        ("boxes", pa.list_(pa.list_(pa.uint8(), 4))),
    ],
    ids=str,
)
def test_what_differs_in_room_alone_is_read_alike(tmp_path, key, type):
    odd = dict(PLAIN)
    if pa.types.is_struct(type):
        odd["image"] = FILE
    elif key == "id" and not pa.types.is_floating(type) and not pa.types.is_integer(type):
        odd["id"] = list(map(str, PLAIN["id"]))
    plain = load_images(arrow(tmp_path / "plain.parquet", PLAIN, boxes=BOXES))
    assert told(load_images(arrow(tmp_path / "odd.parquet", odd, **{key: type}))) == told(plain)


def test_whole_numbers_may_stand_as_floats(tmp_path):
    """As pandas stores them where one is missing, and what has no number is left without."""
    nan = float("nan")
    odd = {"label": [1.0, nan, 0.0, None], "id": [nan] * 4, "path": [None] * 4, "boxes": [[]] * 4}
    images = load_images(arrow(tmp_path / "a.parquet", PLAIN | odd))
    assert sorted(images.ids) == sorted(hashlib.sha1(x).hexdigest()[:16] for x in PLAIN["image"])
    assert dict(zip(values(images), images.labels, strict=True)) == {0: 1, 1: -1, 2: 0, 3: -1}
    assert [own.shape for own in images.boxes] == [(0, 4)] * 4


def test_names_of_the_images_are_not_those_of_the_classes(tmp_path):
    odd = {"label": [0, 1, 1, 0], "name": ["a.png", "b.png", "c.png", "d.png"]}
    assert load_images(arrow(tmp_path / "a.parquet", PLAIN | odd)).class_names is None


@pytest.mark.parametrize(
    "odd, types, reason",
    [
        ({"id": [[1], [2], [3], [4]]}, {}, "'id' of .* holds list<.*>, where text is wanted"),
        ({"image_id": PLAIN["image"]}, {}, "'image_id' of .* holds binary, where text is wanted"),
        ({"id": [0.5, 1, 2, 3]}, {}, "0.5 in the column 'id' is no id; give whole numbers"),
        ({"boxes": [[["0", "0", "1", "1"]]] * 4}, {}, "list<.*string>>, where list of list of num"),
        ({"boxes": [1.0] * 4}, {}, "'boxes' of .* holds double, where list of list of number is"),
        ({"image": ["/etc/passwd"] * 4}, {}, "columns are image .string., id .int64.,"),
        ({"image": [{"bytes": "text"}] * 4}, {}, "image .struct<bytes: string>., id"),
        ({"label": [2**64 - 1] * 4}, {"label": pa.uint64()}, "label 18446744073709551615 in the"),
        ({"more": [2**62] * 4}, {"more": pa.duration("s")}, "the column 'more' cannot be read .*C"),
        ({"more": [[("a", 1)]] * 4}, {"more": pa.map_("string", "int8")}, "'more' .*Arrow type"),
    ],
)
def test_columns_of_another_type_are_refused(tmp_path, capfd, odd, types, reason):
    with pytest.raises(ValueError, match=reason) as error:
        load_images(arrow(tmp_path / "a.parquet", PLAIN | odd, **types))
    assert "\n" not in str(error.value) and capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "box, message",
    [
        ([[1.0, 2.0, 3.0]] * 4, r"shape \(3,\)"),
        ([[1.0, 2.0, 3.0, 4.0], [1.0, 2.0]], r"shape \(2,\)"),
        ([None, [1.0, 2.0, 3.0, 4.0]], r"shape \(\)"),
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
