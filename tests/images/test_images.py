"""Images by name: the right rows with the right ground truth, whatever the files look like."""

import hashlib
import io
import os
import re
import warnings
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from helpers.images import check_name, load_images, load_train_test, scenes
from helpers.images import sets as module

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


def test_16_bits_a_channel_keep_their_brightness(tmp_path):
    """Mid grey in every kind of file that holds 16 bits; Pillow would clip some of them at 255."""
    grey = np.full((8, 12), 126 * 256 + 9, dtype=np.uint16)
    for name in ("deep.png", "deep.tiff"):
        Image.fromarray(grey).save(tmp_path / name)
    (tmp_path / "deep.pgm").write_bytes(b"P5 12 8 65535 " + grey.astype(">u2").tobytes())
    (tmp_path / "ten.pgm").write_bytes(b"P5 12 8 1023 " + (grey >> 6).astype(">u2").tobytes())
    images = load_images(f"folder:{tmp_path}")
    assert {id: image.getpixel((5, 5)) for id, image in zip(images.ids, images, strict=True)} == dict.fromkeys(
        images.ids, (126, 126, 126)
    )
    assert len(images) == 4


@pytest.mark.parametrize("pixels", [np.full((8, 12), 2**30, dtype=np.int32), np.full((8, 12), 0.5, dtype=np.float32)])
def test_numbers_without_a_white_are_refused(tmp_path, pixels):
    Image.fromarray(pixels).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match=r"do not decode: a\.tiff; .*32 bits .* no white is known; save it with 8 or 16 bits"):
        load_images(f"folder:{tmp_path}")


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
        ("data:../b", "data:NAME/SPLIT"),
        ("data:a/*", "data:NAME/SPLIT"),
        ("data:a/v[a]l", "data:NAME/SPLIT"),
        ("data:a/va?", "data:NAME/SPLIT"),
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


@pytest.mark.parametrize("here", [True, False])
def test_a_table_reads_no_file_of_this_machine(tmp_path, monkeypatch, here):
    """A path without bytes, absolute or relative, would show whatever lies there to who reads the page."""
    (tmp_path / "private.png").write_bytes(png(picture(7)))
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "private.png") if here else "private.png"
    rows = datasets.Dataset.from_dict({"image": [{"bytes": png(picture(1)), "path": "1.png"}, {"bytes": None, "path": path}]})
    with pytest.raises(ValueError, match="names the file '.*private.png' of this machine in place of an image; put the bytes"):
        load_images(write(tmp_path / "a.parquet", rows))
    hub = rows.cast_column("image", datasets.Image(decode=False))
    monkeypatch.setattr(module.datasets, "load_dataset", lambda repository, split: hub)
    with pytest.raises(ValueError, match="names the file '.*private.png' of this machine"):
        load_images("hf:owner/name/test")
    monkeypatch.setattr(module.datasets.config, "HF_DATASETS_CACHE", tmp_path)  # where the library itself puts files
    assert sorted(values(load_images("hf:owner/name/test"))) == [1, 7]


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


# Changes of content


def test_changes_do_what_they_say(tmp_path):
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(whole).save(tmp_path / f"{name}.png")
    images = load_images(f"folder:{tmp_path}")
    pixels = {kind: np.asarray(images.changed(kind)[0]) for kind in module._CHANGES}
    assert all(changed.shape == whole.shape and changed.dtype == np.uint8 for changed in pixels.values())
    assert np.unique(pixels["constant"]).size == 1
    grey = np.asarray(Image.fromarray(whole).convert("L"))
    assert abs(int(pixels["constant"][0, 0, 0]) - grey.mean()) <= 0.5
    assert (pixels["rolled"] == np.roll(whole, (20, 30), (0, 1))).all()
    assert (pixels["flipped"] == whole[:, ::-1]).all()
    frame = np.ones((40, 60), dtype=bool)
    frame[10:30, 15:45] = False
    assert (pixels["padded"][frame] == 128).all() and (pixels["padded"][~frame] != 128).mean() > 0.9
    # Half the size averages about four pixels each; the centre enlarged has only the pixels of the centre.
    assert np.asarray(pixels["padded"])[~frame].std() < 0.7 * whole.std()
    centre = np.asarray(Image.fromarray(whole[10:30, 15:45]).resize((60, 40)), dtype=float)
    assert np.corrcoef(pixels["cropped"].ravel(), centre.ravel())[0, 1] > 0.95


def test_noise_is_drawn_anew_for_each_image_and_stays_the_same():
    images = load_images("scenes", 2)
    noise = [np.asarray(image, dtype=float) for image in images.changed("noise")]
    assert noise[0].mean() == pytest.approx(127.5, abs=1) and noise[0].std() == pytest.approx(73.9, abs=1)
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.02
    assert (np.asarray(images.select([1]).changed("noise")[0]) == noise[1]).all()


@pytest.mark.parametrize("kind", module._CHANGES)
def test_changes_keep_labels_and_drop_what_says_where(tmp_path, kind):
    images = load_images("scenes", 2)
    changed = images.changed(kind)
    assert (changed.labels == images.labels).all() and changed.ids == images.ids
    assert changed.boxes is None and changed.masks is None
    assert changed.name == f"scenes+{kind}" and changed.digest != images.digest
    assert changed[1].tobytes() != images[1].tobytes() and changed[1].tobytes() == images.changed(kind)[1].tobytes()
    picture(255, (1, 1)).save(tmp_path / "a.png")
    assert load_images(f"folder:{tmp_path}").changed(kind)[0].size == (1, 1)


def test_unknown_changes_are_refused():
    with pytest.raises(ValueError, match="unknown change 'roled'; did you mean 'rolled'"):
        load_images("scenes", 1).changed("roled")


# Parts and joins


def numbered(tmp_path, file: str, rows, **columns):
    """Images whose top left pixel is their row, all of them, in the order of their hashes."""
    return load_images(write(tmp_path / file, table(rows, id=[f"image-{row}" for row in rows], **columns)))


@pytest.mark.parametrize("kind", ["list", "array", "mask", "tensor"])
def test_select_takes_everything_along(tmp_path, kind):
    boxes = [[[0.0, 0.0, row + 1.0, 2.0]] for row in range(9)]
    images = numbered(
        tmp_path, "a.parquet", range(9), label=[row % 3 for row in range(9)], boxes=boxes, patient=list("ABCDEFGHI")
    )
    kept = [1, 4, 7] if kind == "mask" else [7, 1, -5]
    mask = [index in kept for index in range(9)]
    part = images.select({"list": kept, "array": np.array(kept), "mask": mask, "tensor": torch.tensor(kept)}[kind])
    rows = [values(images)[index] for index in kept]
    assert values(part) == rows and part.ids == [f"image-{row}" for row in rows]
    assert part.labels.tolist() == [row % 3 for row in rows] and part.labels.dtype == np.int64
    assert [box[0, 2] for box in part.boxes] == [row + 1 for row in rows]
    assert part.columns == {"id": part.ids, "patient": ["ABCDEFGHI"[row] for row in rows]}
    assert (part.name, part.seed, part.class_names) == (images.name, images.seed, images.class_names)
    assert part.digest == hashlib.sha256("\n".join([images.name, *part.ids]).encode()).hexdigest()[:16] != images.digest
    assert values(part.select([2, 0])) == [rows[2], rows[0]]
    with pytest.raises(IndexError):
        part[3]


def test_select_reads_no_image_before_it_is_asked_for(monkeypatch):
    drawn = []

    def draw_scene(seed, index):
        drawn.append(index)
        return scenes.draw_scene(seed, index)

    monkeypatch.setattr(module, "draw_scene", draw_scene)
    part = load_images("scenes", 200, seed=3).select([*range(3, 200), 2])
    assert len(drawn) < 20  # the test's own check of types looks at one now and then
    drawn.clear()
    scene = scenes.draw_scene(3, 2)
    assert (np.asarray(part[-1]) == scene.pixels).all() and (part.boxes[-1] == scene.boxes).all()
    assert (part.masks[-1] == scene.masks).all() and part.labels[-1] == scene.label
    assert set(drawn) == {2}


@pytest.mark.parametrize("source", ["scenes", "folder", "table"])
def test_a_slice_is_a_sequence_of_its_images(tmp_path, source):
    if source == "scenes":
        images = load_images("scenes", 5)
    elif source == "folder":
        for row in range(5):
            picture(row).save(tmp_path / f"{row}.png")
        images = load_images(f"folder:{tmp_path}")
    else:
        images = numbered(
            tmp_path, "a.parquet", range(5), label=[0] * 5, boxes=[[[0.0, 0.0, row + 1.0, 2.0]] for row in range(5)]
        )
    for cut in (slice(3), slice(1, None, 2), slice(None, None, -1), slice(9, 12)):
        part, kept = images[cut], list(range(5))[cut]
        assert len(part) == len(kept) and part.ids == [images.ids[index] for index in kept] and part.name == images.name
        assert list(part) == [images[index] for index in kept]
        if images.boxes is not None:
            found, wanted = (images.select(range(5)).boxes[cut], [images.boxes[index] for index in kept])
            assert len(found) == len(wanted) and all((a == b).all() for a, b in zip(found, wanted, strict=True))
    if images.masks is not None:
        assert [mask.shape for mask in images.masks[:2]] == [images.masks[index].shape for index in range(2)]
    both = images + images
    assert list(both[4:6]) == [images[4], images[0]]


def test_select_nothing_and_what_is_not_there():
    images = load_images("scenes", 4)
    for nothing in ([], [False] * 4, images.labels == -1):
        part = images.select(nothing)
        assert len(part) == len(part.labels) == len(part.boxes) == 0 and list(part) == []
    for wrong, reason in [([0, 4], "index 4 is out of bounds"), ([True] * 3, "boolean"), (np.array([0.5]), "integer")]:
        with pytest.raises(ValueError, match=f"cannot select from 4 images of 'scenes': .*{reason}"):
            images.select(wrong)


def test_corruption_and_selection_commute():
    images = load_images("scenes", 4)
    one, other = images.select([3]).corrupted("gaussian-noise", 2), images.corrupted("gaussian-noise", 2).select([3])
    assert one[0].tobytes() == other[0].tobytes() and one.name == other.name and one.ids == other.ids


def test_joined_sets_stand_one_after_the_other(tmp_path):
    def columns(rows):
        boxes = [[[0.0, 0.0, row + 1.0, 2.0]] for row in rows]
        return {"label": [row % 2 for row in rows], "name": ["even" if row % 2 == 0 else "odd" for row in rows], "boxes": boxes}

    first = numbered(tmp_path, "a.parquet", range(3), **columns(range(3)), patient=list("ABC"))
    second = numbered(tmp_path, "b.parquet", range(3, 8), **columns(range(3, 8)), eye=list("LRLRL"))
    both = first + second
    rows = values(first) + values(second)
    assert values(both) == rows and both.ids == [f"image-{row}" for row in rows] and len(both) == 8
    assert both.name == f"{first.name} and {second.name}" and both.class_names == ["even", "odd"]
    assert both.labels.tolist() == [row % 2 for row in rows] and both.labels.dtype == np.int64
    assert [box[0, 2] for box in both.boxes] == [row + 1 for row in rows]
    assert both.columns == {"id": both.ids, "name": ["odd" if row % 2 else "even" for row in rows]}, "columns that both have"
    assert values(both.select([-1, 0])) == [rows[-1], rows[0]]
    with pytest.raises(IndexError):
        both[8]


def test_a_set_divided_and_joined_is_the_set():
    images = load_images("scenes", 5, seed=2)
    again = images.select(range(2)) + images.select(range(2, 5))
    assert again.describe() == images.describe()
    lame = replace(images, skipped=["lost"])
    assert (lame.select([0]) + lame.select([1])).skipped == ["lost"], "named once"
    assert [image.tobytes() for image in again] == [image.tobytes() for image in images]
    for one, other in zip(again.boxes, images.boxes, strict=True):
        assert (one == other).all()
    assert [mask.sum() for mask in again.masks] == [mask.sum() for mask in images.masks]


def test_ground_truth_that_only_one_has_is_dropped(tmp_path):
    first = numbered(tmp_path, "a.parquet", [1], boxes=[[[0.0, 0.0, 1.0, 1.0]]])
    both = first + numbered(tmp_path, "b.parquet", [2])
    assert both.boxes is None and both.masks is None and both.labels is None
    named, unnamed = (numbered(tmp_path, f"{label}.parquet", [1], label=[label]) for label in ("cat", 0))
    assert (named + unnamed).class_names is (unnamed + named).class_names is None
    noisy = both.corrupted("gaussian-noise", 1)
    assert noisy[0].tobytes() == first.corrupted("gaussian-noise", 1)[0].tobytes(), "corruption knows the image, not its place"


def test_sets_that_do_not_fit_are_not_joined(tmp_path):
    scenes_ = load_images("scenes", 2)
    with pytest.raises(ValueError, match="only one of 'scenes' and 'photographs' has labels"):
        scenes_ + load_images("photographs", 2)
    with pytest.raises(ValueError, match=r"different classes \(label 0: 'red striped disc' and 'cat'\)"):
        scenes_ + numbered(tmp_path, "a.parquet", [1], label=["cat"])
    with pytest.raises(ValueError, match="'scenes' and 'scenes' were chosen with the seeds 0 and 1"):
        scenes_ + load_images("scenes", 2, seed=1)


@pytest.mark.parametrize(
    "label, message",
    [
        ([0.5, 1.0], "holds numbers with a fraction, such as .*; give whole numbers from 0, or text"),
        ([[0, 1], [1]], "holds lists, such as .*; give whole numbers from 0, or text"),
    ],
)
def test_labels_that_are_none_are_named(tmp_path, label, message):
    images = load_images(write(tmp_path / "a.parquet", table([0, 1], label=label)))
    with pytest.raises(ValueError, match=f"the column 'label' of 'parquet:.*' {message}"):
        images.require_labels()


def test_true_and_false_are_two_classes(tmp_path):
    images = load_images(write(tmp_path / "a.parquet", table([0, 1], label=[True, False])))
    assert dict(zip(values(images), images.require_labels().tolist(), strict=True)) == {0: 1, 1: 0}


def test_labels_below_minus_one_are_refused(tmp_path):
    with pytest.raises(ValueError, match="label -5 .* count from 0, with -1 for an image without one"):
        load_images(write(tmp_path / "a.parquet", table([0, 1], label=[-5, 1])))


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
    with pytest.raises(ValueError, match=rf"boxes of 'image-3' .*{message}; give \[xmin, ymin, xmax, ymax\]"):
        load_images(name)


def test_required_labels(tmp_path):
    images = load_images("scenes", 3)
    assert images.require_labels() is images.labels
    with pytest.raises(ValueError, match="data set 'photographs' has no labels; choose one that has them"):
        load_images("photographs", 2).require_labels()
    images = numbered(tmp_path, "a.parquet", range(4), label=["dog", None, "cat", None])
    missing = next(id for id in images.ids if id in ("image-1", "image-3"))
    with pytest.raises(ValueError, match=f"has no labels for 2 of 4 images, such as '{missing}'; leave them out with"):
        images.require_labels()
    assert sorted(images.select(images.labels >= 0).require_labels()) == [0, 1], "the remedy helps"


def test_relative_boxes(tmp_path):
    pictures = [{"bytes": png(picture(row, size)), "path": None} for row, size in enumerate([(12, 8), (40, 20)])]
    boxes = [[[3.0, 2.0, 12.0, 6.0], [-1.0, 0.0, 6.0, 9.0]], []]
    dataset = datasets.Dataset.from_dict({"image": pictures, "boxes": boxes})
    images = load_images(write(tmp_path / "a.parquet", dataset))
    found = dict(zip(values(images), images.relative_boxes, strict=True))
    assert found[0].tolist() == [[0.25, 0.25, 1, 0.75], [0, 0, 0.5, 1]] and found[0].dtype == np.float32
    assert found[1].shape == (0, 4)
    with pytest.raises(ValueError, match="data set 'photographs' has no boxes"):
        load_images("photographs", 1).relative_boxes  # noqa: B018


def test_relative_boxes_follow_a_picture_that_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter turn: 12x8 is seen as 8x12
    file = io.BytesIO()
    picture(1).save(file, "PNG", exif=exif)
    rows = {"image": [{"bytes": file.getvalue(), "path": None}], "boxes": [[[2.0, 3.0, 8.0, 6.0]]]}
    images = load_images(write(tmp_path / "a.parquet", datasets.Dataset.from_dict(rows)))
    assert images.relative_boxes[0].tolist() == [[0.25, 0.25, 1, 0.5]]


# Training and test


@pytest.mark.parametrize("n_train", [1, 7, 11])
def test_one_set_is_divided_into_first_and_rest(tmp_path, n_train):
    name = write(tmp_path / "a.parquet", table(range(30), label=[row % 3 for row in range(30)]))
    for source, seed in [(name, 5), ("scenes", 4)]:
        train, test = load_train_test(source, source, n_train, 12 - n_train, seed=seed)
        whole = load_images(source, 12, seed)
        assert train.ids == whole.ids[:n_train] and test.ids == whole.ids[n_train:]
        assert train.labels.tolist() + test.labels.tolist() == whole.labels.tolist()
        assert (train.name, train.seed) == (test.name, test.seed) == (source, seed)


@pytest.mark.parametrize("share", [0.1, 0.4, 0.99])
@pytest.mark.parametrize("sizes", [[1] * 40, [1, 2, 4] * 6, [9, 9, 9], [30, 2, 2]])
def test_groups_stay_whole(tmp_path, sizes, share):
    patients = [patient for patient, size in enumerate(sizes) for _ in range(size)]
    rows = range(len(patients))
    name = write(tmp_path / "a.parquet", table(rows, label=[row % 2 for row in rows], patient=patients))
    divisions = set()
    n_train = int(share * len(rows))
    for seed in range(4):
        train, test = load_train_test(name, name, n_train, len(rows) - n_train, seed=seed, by="patient")
        assert not set(train.columns["patient"]) & set(test.columns["patient"])
        assert sorted(values(train) + values(test)) == list(rows), "every image once"
        assert len(train) and len(test)
        # Two possible cuts are at most one group apart, so that the nearest is half of one away; where it would leave a side
        # empty, that side has one group.
        assert abs(len(train) - n_train) <= max(sizes) / 2 or len(set(train.columns["patient"])) in (1, len(sizes) - 1)
        again = load_train_test(name, name, n_train, len(rows) - n_train, seed=seed, by="patient")
        assert [part.ids for part in again] == [train.ids, test.ids]
        divisions.add(frozenset(train.columns["patient"]))
    assert len(divisions) > 1, "the seed decides which groups are for training"


def test_large_groups_are_no_likelier_to_be_trained_on(tmp_path):
    """In the order of the images a patient with 9 images would come before one with a single image in 9 of 10 choices."""
    sizes = [9] * 10 + [1] * 10
    patients = [patient for patient, size in enumerate(sizes) for _ in range(size)]
    name = write(tmp_path / "a.parquet", table(range(100), label=[0] * 100, patient=patients))
    trained = [load_train_test(name, name, 50, 50, seed=seed, by="patient")[0] for seed in range(20)]
    large, small = (
        np.mean([sum(patient in kind for patient in set(train.columns["patient"])) for train in trained])
        for kind in (range(10), range(10, 20))
    )
    assert abs(large - small) < 1  # standard error of the difference 0.4


def test_two_sets_are_each_loaded_with_the_seed(tmp_path):
    names = [
        write(tmp_path / f"{file}.parquet", table(rows, id=[f"image-{row}" for row in rows], label=["a", "b"] * 10, patient=rows))
        for file, rows in (("a", range(20)), ("b", range(20, 40)))
    ]
    for by in (None, "patient"):
        train, test = load_train_test(*names, 8, 5, seed=3, by=by)
        assert train.ids == load_images(names[0], 8, 3).ids and test.ids == load_images(names[1], 5, 3).ids


def test_images_and_groups_in_both_sets_are_refused(tmp_path):
    def source(file, rows, **columns):
        ids = [f"{number}.png" for number in range(len(rows))]
        return write(tmp_path / f"{file}.parquet", table(rows, id=ids, label=[0] * len(rows), **columns))

    first = source("a", [1, 2, 3], patient=["x", "y", "z"])
    load_train_test(first, source("b", [4, 5, 6]), 3, 3)  # other images under the same names
    with pytest.raises(ValueError, match="1 images lie in both .* such as '1.png'; give one name for both"):
        load_train_test(first, source("c", [4, 2, 6]), 3, 3)
    with pytest.raises(ValueError, match="3 images lie in both"):  # the same set by another name
        load_train_test(first, f"parquet:{tmp_path}/../{tmp_path.name}/a.parquet", 3, 3)
    with pytest.raises(ValueError, match="patient 'y' lies in both .*; choose data sets that share no patient"):
        load_train_test(first, source("d", [4, 5], patient=["y", "w"]), 3, 2, by="patient")


def test_the_same_pictures_by_other_names_are_refused(tmp_path):
    """Renamed, and stored in another kind of file: what counts is what is seen."""
    for row in range(8):
        for path, pixels in ((f"a/c/{row}.png", picture(row)), (f"b/c/other-{row}.bmp", picture(row + 7))):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            pixels.save(tmp_path / path)
    for folder in ("a", "b"):
        (tmp_path / folder / "d").mkdir()
        picture(90).save(tmp_path / folder / "d" / ("9.png" if folder == "a" else "x.png"))
    with pytest.raises(ValueError, match="2 images lie in both .* such as '.*'; give one name for both"):
        load_train_test(f"folder:{tmp_path}/a", f"folder:{tmp_path}/b", 9, 9)


def test_copies_within_a_set_stay_together(tmp_path):
    rows = [0, 1, 2, 0, 1, 3, 4, 5, 0, 6]
    columns = {"id": [f"image-{index}" for index in range(10)], "label": [0] * 10}
    name = write(tmp_path / "a.parquet", table(rows, **columns))
    for seed in range(6):
        train, test = load_train_test(name, name, 5, 5, seed=seed)
        assert not set(values(train)) & set(values(test)) and sorted(values(train) + values(test)) == sorted(rows)
    patients = write(tmp_path / "b.parquet", table(rows, **columns, patient=list("xxxyyyzzzz")))
    with pytest.raises(ValueError, match="the same picture .*'image-.*' and 'image-.* with different values of 'patient'"):
        load_train_test(patients, patients, 5, 5, by="patient")


@pytest.mark.parametrize(("n_train", "n"), [(0, 3), (3, 0), (-1, 5)])
def test_impossible_divisions_are_refused(n_train, n):
    with pytest.raises(ValueError, match=f"n_train = {n_train} and n = {n} images .* at least 1"):
        load_train_test("scenes", "scenes", n_train, n)


def test_divisions_that_cannot_be_made_are_refused(tmp_path):
    def source(file, **columns):
        return write(tmp_path / f"{file}.parquet", table(range(3), **columns))

    name = source("a", label=[0, 1, 0], patient=["x", "x", "x"], eye=["L", None, "R"])
    with pytest.raises(ValueError, match="4 images asked of .* has 3"):
        load_train_test(name, name, 2, 2)
    with pytest.raises(ValueError, match="has no column 'patent' to divide by; its columns: patient, eye"):
        load_train_test(name, name, 2, 1, by="patent")
    with pytest.raises(ValueError, match="has no column 'patient' to divide by; its columns: none"):
        load_train_test("scenes", "scenes", 2, 1, by="patient")
    with pytest.raises(ValueError, match="has no 'eye' for 1 of 3 images"):
        load_train_test(name, name, 2, 1, by="eye")
    with pytest.raises(ValueError, match="the 3 images of .* are one group by 'patient'"):
        load_train_test(name, name, 2, 1, by="patient")
    for train, test in [("photographs", "photographs"), ("scenes", "photographs"), ("photographs", "scenes")]:
        with pytest.raises(ValueError, match="'photographs' has no labels"):
            load_train_test(train, test, 2, 2)
    with pytest.raises(ValueError, match="has no labels for 1 of 3 images"):
        load_train_test(source("b", label=[0, 1, None]), "scenes", 3, 2)
    with pytest.raises(ValueError, match="different classes .label 0: 'cat' and 'red striped disc'"):
        load_train_test(source("c", label=["cat", "dog", "cat"]), "scenes", 3, 2)
    train, test = load_train_test(name, "scenes", 3, 2)  # classes without names are taken to be the same
    assert train.class_names is None and test.class_names


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


@real_data
def test_patients_of_the_local_fundus_photographs_are_not_divided():
    train, test = load_train_test("data:fundus-dme/train", "data:fundus-dme/train", 300, 100, by="patient")
    assert not set(train.columns["patient"]) & set(test.columns["patient"])
    assert len(train) + len(test) == 400 and abs(len(train) - 300) <= 2  # at most four images of a patient
    assert set(train.labels) == set(test.labels) == {0, 1}


@real_data
def test_local_training_and_test_sets_share_their_classes():
    train, test = load_train_test("data:imagenette-224/train", "data:imagenette-224/validation", 60, 30)
    assert (len(train), len(test)) == (60, 30) and train.class_names == test.class_names
    assert (train + test).name == "data:imagenette-224/train and data:imagenette-224/validation"
    boxes = load_images("data:photos-with-boxes/validation", 20).relative_boxes
    assert all(((0 <= box) & (box <= 1)).all() and (box[:, 2:] > box[:, :2]).all() for box in boxes)
