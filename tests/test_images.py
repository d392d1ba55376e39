"""Images by name: the right rows with the right ground truth, whatever the files look like."""

import hashlib
import io
import os
import re
import warnings

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from helpers import images as module
from helpers.images import check_name, load_images

real_data = pytest.mark.skipif("REGISTERS_DATA" not in os.environ, reason="REGISTERS_DATA does not name a folder of data sets")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def picture(value: int, size: tuple[int, int] = (12, 8)) -> Image.Image:
    """A picture that its top left pixel tells apart."""
    pixels = np.full((size[1], size[0], 3), 90, dtype=np.uint8)
    pixels[0, 0] = value
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def table(rows: list[int], **columns) -> datasets.Dataset:
    """A data set with one picture for each of `rows`, without file names."""
    return datasets.Dataset.from_dict({"image": [{"bytes": png(picture(row)), "path": None} for row in rows]} | columns)


def write(path, dataset: datasets.Dataset) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    dataset.to_parquet(path)
    return f"parquet:{path}"


def values(images) -> list[int]:
    return [image.getpixel((0, 0))[0] for image in images]


# Scenes and photographs


def test_scenes():
    images = load_images("scenes", 12, seed=3)
    assert len(images) == len(images.boxes) == len(images.masks) == 12
    assert images.ids[2] == "scene-3-00002"
    assert images[2].mode == "RGB" and images[2].size == (224, 224)
    assert images[-1].tobytes() == images[11].tobytes()
    assert images.masks[2].shape == (len(images.boxes[2]), 224, 224)
    assert images.class_names[images.labels[2]]
    assert load_images("scenes", 5, seed=3).ids == images.ids[:5]
    with pytest.raises(IndexError):
        images[12]
    with pytest.raises(ValueError, match="number of images n"):
        load_images("scenes")


def test_photographs_come_with_scikit_image():
    images = load_images("photographs")
    assert len(images) == 19 and "astronaut.png" in images.ids and images.labels is None
    assert {image.mode for image in images} == {"RGB"}
    camera = np.asarray(images[images.ids.index("camera.png")])
    assert (camera[..., :1] == camera).all(), "a grey photograph stays grey"


# Which images


def test_choice_is_by_the_smallest_hash_whatever_the_order(tmp_path):
    names = [f"image-{row}" for row in range(30)]
    forwards = load_images(write(tmp_path / "a.parquet", table(range(30), id=names)), 10, seed=5)
    backwards = load_images(write(tmp_path / "b.parquet", table(range(29, -1, -1), id=names[::-1])), 10, seed=5)
    expected = sorted(names, key=lambda name: hashlib.sha256(f"5:{name}".encode()).hexdigest())[:10]
    assert forwards.ids == backwards.ids == expected
    assert values(forwards) == values(backwards) == [int(name.split("-")[1]) for name in expected]
    name = f"parquet:{tmp_path}/a.parquet"
    assert load_images(name, 4, seed=5).ids == expected[:4]
    assert load_images(name, 10, seed=6).ids != expected
    assert sorted(load_images(name).ids) == sorted(names)


def test_digest_covers_name_and_ids(tmp_path):
    name = write(tmp_path / "a.parquet", table(range(5)))
    images = load_images(name, 3)
    assert (
        images.digest == load_images(name, 3).digest == hashlib.sha256("\n".join([name, *images.ids]).encode()).hexdigest()[:16]
    )
    assert images.digest != load_images(name, 2).digest
    assert images.describe() == {"name": name, "n": 3, "seed": 0, "digest": images.digest, "skipped": [], "hub": None}


def test_ids_without_names_are_hashes_of_the_bytes(tmp_path):
    images = load_images(write(tmp_path / "a.parquet", table([1, 2, 2])))
    hashes = [hashlib.sha1(png(picture(row))).hexdigest()[:16] for row in (1, 2)]
    assert sorted(images.ids) == sorted([*hashes, f"{hashes[1]}-2"])


def test_ids_are_file_names_where_these_differ(tmp_path):
    rows = [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(3)]
    images = load_images(write(tmp_path / "a.parquet", datasets.Dataset.from_dict({"image": rows})))
    assert sorted(images.ids) == ["0.png", "1.png", "2.png"]
    images = load_images(write(tmp_path / "b.parquet", table([1, 2], file_name=["same", "same"])))
    assert "same" not in images.ids


@pytest.mark.parametrize("n", [4, 0, -1])
def test_impossible_numbers_are_refused(tmp_path, n):
    name = write(tmp_path / "a.parquet", table(range(3)))
    with pytest.raises(ValueError, match=f"^{n} images.*has 3" if n > 0 else f"n = {n}"):
        load_images(name, n)


# Ground truth


def test_labels_boxes_and_columns_follow_their_images(tmp_path):
    boxes = [[[0.0, 0.0, row + 1.0, 2.0]] * (row % 3) for row in range(9)]
    dataset = table(
        range(9), label=[row % 3 for row in range(9)], name=["a", "b", "c"] * 3, boxes=boxes, patient=list("ABCDEFGHI")
    )
    images = load_images(write(tmp_path / "a.parquet", dataset), 6)
    assert images.class_names == ["a", "b", "c"]
    for row, label, box, patient in zip(values(images), images.labels, images.boxes, images.columns["patient"], strict=True):
        assert label == row % 3
        assert box.shape == (row % 3, 4) and (box[:, 2] == row + 1).all()
        assert patient == "ABCDEFGHI"[row]
    assert set(images.columns) == {"name", "patient"}


@pytest.mark.parametrize("kind", ["class label", "text", "missing"])
def test_kinds_of_labels(tmp_path, kind):
    if kind == "class label":
        dataset = table([0, 1], species=[1, 0]).cast_column("species", datasets.ClassLabel(names=["cat", "dog"]))
    else:
        dataset = table([0, 1], label=["dog", "cat" if kind == "text" else None])
    images = load_images(write(tmp_path / "a.parquet", dataset))
    labels = dict(zip(values(images), images.labels.tolist(), strict=True))
    assert images.class_names == (["dog"] if kind == "missing" else ["cat", "dog"])
    assert labels == ({0: 0, 1: -1} if kind == "missing" else {0: 1, 1: 0})


def test_a_column_of_numbers_is_no_class(tmp_path):
    images = load_images(write(tmp_path / "a.parquet", table([0, 1], label=[0.5, 0.7])))
    assert images.labels is None and sorted(images.columns["label"]) == [0.5, 0.7]


def test_folder(tmp_path):
    for row, path in enumerate(["cat/1.png", "cat/more/2.png", "dog/1.PNG", "dog/notes.txt", "dog/._1.png"]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(png(picture(row)))
    images = load_images(f"folder:{tmp_path}")
    assert dict(zip(images.ids, images.labels.tolist(), strict=True)) == {"cat/1.png": 0, "cat/more/2.png": 0, "dog/1.PNG": 1}
    assert images.class_names == ["cat", "dog"]
    assert dict(zip(images.ids, values(images), strict=True)) == {"cat/1.png": 0, "cat/more/2.png": 1, "dog/1.PNG": 2}
    assert load_images(f"folder:{tmp_path}/dog").labels is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no images in the folder"):
        load_images(f"folder:{tmp_path}/empty")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_images(f"folder:{tmp_path}/nowhere")


# Decoding


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
        assert np.abs(np.subtract(image.getpixel((5, 5)), expected)).max() <= (26 if name == "palette.png" else 1), name


@pytest.mark.parametrize("broken", [b"", b"no image", png(picture(1, (64, 64)))[:60], None])
def test_an_undecodable_image_is_skipped_and_named(tmp_path, broken):
    rows = [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(120)]
    rows[7] = broken if broken is None else {"bytes": broken, "path": "7.png"}
    dataset = datasets.Dataset.from_dict({"image": rows, "label": list(range(120)), "id": [f"{row}.png" for row in range(120)]})
    name = write(tmp_path / "a.parquet", dataset)
    with pytest.warns(UserWarning, match="1 of 120 images .* do not decode: 7.png; they are skipped"):
        images = load_images(name)
    assert images.skipped == images.describe()["skipped"] == ["7.png"]
    assert len(images) == 119 and "7.png" not in images.ids
    assert values(images) == images.labels.tolist()


def test_too_many_undecodable_images_are_refused(tmp_path):
    rows = [{"bytes": png(picture(row)) if row else b"broken", "path": f"{row}.png"} for row in range(20)]
    name = write(tmp_path / "a.parquet", datasets.Dataset.from_dict({"image": rows}))
    with pytest.raises(ValueError, match="1 of 20 images .* do not decode: 0.png; more than 1 %"):
        load_images(name)


def test_images_are_read_when_asked_for(tmp_path):
    (tmp_path / "a.png").write_bytes(png(picture(1)))
    images = load_images(f"folder:{tmp_path}")
    (tmp_path / "a.png").write_bytes(png(picture(2)))
    assert values(images) == [2]


# Names and places


@pytest.mark.parametrize(
    "name", ["scenes", "photographs", "hf:mnist", "hf:a/b/test", "data:a/train", "folder:x", "parquet:x/y.parquet"]
)
def test_known_names(name):
    check_name(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("scens", "scenes"),
        ("photos", "photographs"),
        ("scenes:3", "scenes"),
        ("folder:", "folder:PATH"),
        ("dat:a/b", "data:NAME/SPLIT"),
        ("data:a", "data:NAME/SPLIT"),
        ("data:a/../b", "data:NAME/SPLIT"),
        ("", ""),
    ],
)
def test_unknown_names_get_the_nearest(name, nearest):
    for check in (check_name, load_images):
        with pytest.raises(ValueError, match=re.escape(f"unknown data set {name!r}; did you mean '{nearest}")):
            check(name)


def test_data_is_found_below_the_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("REGISTERS_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set the environment variable REGISTERS_DATA .* 'hf:uoft-cs/cifar10/test'"):
        load_images("data:cifar10-jpeg/test")
    monkeypatch.setenv("REGISTERS_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no data set 'pictures'"):
        load_images("data:pictures/test")
    write(tmp_path / "pictures" / "val-00000-of-00002.parquet", table([0, 1]))
    write(tmp_path / "pictures" / "val-00001-of-00002.parquet", table([2]))
    write(tmp_path / "pictures" / "valuable.parquet", table([3]))
    assert sorted(values(load_images("data:pictures/val"))) == [0, 1, 2]
    with pytest.raises(FileNotFoundError, match="did you mean 'pictures'"):
        load_images("data:picture/val")
    with pytest.raises(FileNotFoundError, match="no split 'test'; it has val, valuable"):
        load_images("data:pictures/test")


def test_parquet_that_is_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="no parquet file"):
        load_images(f"parquet:{tmp_path}/a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    with pytest.raises(ValueError, match="is not a readable parquet file"):
        load_images(f"parquet:{tmp_path}/a.parquet")
    with pytest.raises(ValueError, match="no image column; its columns are number"):
        load_images(write(tmp_path / "b.parquet", datasets.Dataset.from_dict({"number": [1]})))


def test_hub_names_are_taken_apart(monkeypatch):
    asked = []

    def load_dataset(repository, split):
        asked.append((repository, split))
        return table([0, 1]).rename_column("image", "img").cast_column("img", datasets.Image())

    monkeypatch.setattr(module.datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(module.datasets, "get_dataset_split_names", lambda repository: ["train", "test"])
    assert sorted(values(load_images("hf:owner/name/extra"))) == [0, 1]
    load_images("hf:owner/name")
    assert asked == [("owner/name", "extra"), ("owner/name", "test")]


def test_a_hub_out_of_reach_is_one_sentence(monkeypatch):
    def load_dataset(repository, split):
        raise ConnectionError("no network\nRetrying in 1s")

    monkeypatch.setattr(module.datasets, "load_dataset", load_dataset)
    with pytest.raises(FileNotFoundError, match="^the hub data set 'hf:owner/name/test' cannot be had here: no network$"):
        load_images("hf:owner/name/test")


# Corruptions


@pytest.mark.parametrize("kind", ["gaussian-noise", "blur", "jpeg", "contrast", "occlusion"])
def test_corruptions_grow_and_repeat(kind):
    images = load_images("scenes", 3)
    state = torch.random.get_rng_state()
    clean = np.asarray(images[1], dtype=float)
    distances = [np.abs(np.asarray(images.corrupted(kind, severity)[1], dtype=float) - clean).mean() for severity in range(1, 6)]
    assert 0 < distances[0] < distances[-1]
    worst = images.corrupted(kind, 5)
    assert worst[1].tobytes() == images.corrupted(kind, 5)[1].tobytes(), "the same again, whatever was read before"
    assert worst[1].size == (224, 224) and worst[1].mode == "RGB"
    assert worst.ids == images.ids and worst.name == f"scenes+{kind}:5" and worst.digest != images.digest
    assert (torch.random.get_rng_state() == state).all()


def test_corruptions_do_what_they_say(tmp_path):
    grey = np.full((120, 200, 3), 128, dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(grey).save(tmp_path / f"{name}.png")
    images = load_images(f"folder:{tmp_path}")
    noise = [np.asarray(image) / 255 for image in images.corrupted("gaussian-noise", 3)]
    assert noise[0].std() == pytest.approx(0.18, rel=0.05)
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.02, "each id has its own noise"
    assert (np.asarray(images.corrupted("blur", 5)[0]) == grey).all()

    ramp = np.repeat(np.arange(200, dtype=np.uint8)[None, :, None], 120, 0).repeat(3, 2)
    Image.fromarray(ramp).save(tmp_path / "a.png")
    index = images.ids.index("a.png")
    contrast = np.asarray(images.corrupted("contrast", 1)[index], dtype=float)
    assert np.abs(contrast - (0.4 * (ramp - ramp.mean()) + ramp.mean())).max() <= 1.5
    covered = (np.asarray(images.corrupted("occlusion", 3)[index]) != ramp).any(axis=-1)
    assert covered.mean() == pytest.approx(0.3, abs=0.02)
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "JPEG", quality=10)
    distance = np.abs(np.asarray(images.corrupted("jpeg", 4)[index], dtype=float) - np.asarray(Image.open(file)))
    assert distance.mean() < 1


def test_unknown_corruptions_are_refused():
    images = load_images("scenes", 1)
    with pytest.raises(ValueError, match="unknown corruption 'blurr'; did you mean 'blur'"):
        images.corrupted("blurr", 1)
    for severity in (0, 6):
        with pytest.raises(ValueError, match=f"severity {severity} of 'blur'"):
            images.corrupted("blur", severity)


def test_a_tiny_image_can_be_blurred(tmp_path):
    picture(255, (5, 3)).save(tmp_path / "a.png")
    assert load_images(f"folder:{tmp_path}").corrupted("blur", 5)[0].size == (5, 3)


# The local data sets, where there are any


@real_data
@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("imagenet-1per-class/validation", 1000),
        ("imagenette-224/validation", 10),
        ("cifar10-jpeg/test", 10),
        ("fundus-dme/train", None),
        ("photos-with-boxes/validation", None),
    ],
)
def test_local_data_sets(name, classes):
    images = load_images(f"data:{name}", 20)
    assert len(images) == 20 and not images.skipped and {image.mode for image in images} == {"RGB"}
    assert classes is None or len(images.class_names) == classes
    if "name" in images.columns:
        assert [images.class_names[label] for label in images.labels] == images.columns["name"]
    if images.boxes is not None:
        for image, boxes in zip(images, images.boxes, strict=True):
            assert (boxes >= 0).all() and (boxes[:, 2:] <= image.size).all()
