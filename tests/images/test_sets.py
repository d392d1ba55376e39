"""Images by name: the right rows with the right ground truth, in parts and joined."""

import hashlib
import io
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from pictures import numbered, picture, png, table, values, write
from PIL import Image

from helpers.images import load, load_images, scenes

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(
    ("name", "id"), [("scenes", "scene-3-00002"), ("scenes-hard", "scene-hard-3-00002")]
)
def test_scenes(name, id):
    images = load_images(name, 12, seed=3)
    assert len(images) == len(images.boxes) == len(images.masks) == 12
    assert images.name == name and images.ids[2] == id
    assert images[2].mode == "RGB" and images[2].size == (224, 224)
    assert images[-1].tobytes() == images[11].tobytes()
    assert images.masks[2].shape == (len(images.boxes[2]), 224, 224)
    assert images.class_names == scenes.SCENES[name]
    scene = scenes.draw_scene(3, 2, name)
    assert (np.asarray(images[2]) == scene.pixels).all() and images.labels[2] == scene.label
    assert (images.masks[2] == scene.masks).all() and (images.boxes[2] == scene.boxes).all()
    assert load_images(name, 5, seed=3).ids == images.ids[:5]


def test_choice_is_by_the_smallest_digest_whatever_the_order(tmp_path):
    names = [f"image-{row}" for row in range(30)]
    forwards = load_images(write(tmp_path / "a.parquet", table(range(30), id=names)), 10, seed=5)
    backwards = load_images(
        write(tmp_path / "b.parquet", table(range(29, -1, -1), id=names[::-1])), 10, seed=5
    )
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
        images.digest
        == load_images(name, 3).digest
        == hashlib.sha256("\n".join([name, *images.ids]).encode()).hexdigest()[:16]
    )
    assert images.digest != load_images(name, 2).digest
    assert images.describe() == {
        "name": name,
        "n": 3,
        "seed": 0,
        "digest": images.digest,
        "skipped": [],
        "hub": None,
    }


@pytest.mark.parametrize("broken", [b"", b"no image", png(picture(1, (64, 64)))[:60], None])
def test_an_undecodable_image_is_skipped_and_named(tmp_path, broken):
    rows = [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(120)]
    rows[7] = broken if broken is None else {"bytes": broken, "path": "7.png"}
    columns = {"label": list(range(120)), "id": [f"{row}.png" for row in range(120)]}
    dataset = datasets.Dataset.from_dict({"image": rows} | columns)
    name = write(tmp_path / "a.parquet", dataset)
    with pytest.warns(UserWarning, match="7.png"):
        images = load_images(name)
    assert images.skipped == images.describe()["skipped"] == ["7.png"]
    assert len(images) == 119 and "7.png" not in images.ids
    assert values(images) == images.labels.tolist()


def test_too_many_undecodable_images_are_refused(tmp_path):
    """More than one, and more than 1 %."""
    for broken, n, refused in ((1, 20, False), (2, 20, True), (1, 1, True)):
        rows = [png(picture(row)) if row >= broken else b"broken" for row in range(n)]
        files = [{"bytes": content, "path": f"{row}.png"} for row, content in enumerate(rows)]
        dataset = datasets.Dataset.from_dict({"image": files})
        name = write(tmp_path / f"{broken}-{n}.parquet", dataset)
        with pytest.raises(ValueError) if refused else pytest.warns(UserWarning, match="0.png"):
            assert len(load_images(name)) == n - broken


def test_images_are_read_when_asked_for(tmp_path):
    (tmp_path / "a.png").write_bytes(png(picture(1)))
    images = load_images(f"folder:{tmp_path}")
    (tmp_path / "a.png").write_bytes(png(picture(2)))
    assert values(images) == [2]


@pytest.mark.parametrize("kind", ["list", "array", "mask", "tensor"])
def test_select_takes_everything_along(tmp_path, kind):
    images = numbered(
        tmp_path,
        "a.parquet",
        range(9),
        label=[row % 3 for row in range(9)],
        name=["a", "b", "c"] * 3,
        boxes=[[[0.0, 0.0, row + 1.0, 2.0]] * (1 + row % 3) for row in range(9)],
        patient=list("ABCDEFGHI"),
    )
    assert images.class_names == ["a", "b", "c"]
    kept = [1, 4, 7] if kind == "mask" else [7, 1, -5]
    mask = [index in kept for index in range(9)]
    part = images.select(
        {"list": kept, "array": np.array(kept), "mask": mask, "tensor": torch.tensor(kept)}[kind]
    )
    rows = [values(images)[index] for index in kept]
    assert values(part) == rows and part.ids == [f"image-{row}" for row in rows]
    assert part.labels.tolist() == [row % 3 for row in rows] and part.labels.dtype == np.int64
    assert [box[0, 2] for box in part.boxes] == [row + 1 for row in rows]
    assert [len(box) for box in part.boxes] == [1 + row % 3 for row in rows]
    assert part.columns.keys() == {"id", "name", "patient"} and part.columns["id"] == part.ids
    assert part.columns["patient"] == ["ABCDEFGHI"[row] for row in rows]
    assert (part.name, part.seed, part.class_names) == (
        images.name,
        images.seed,
        images.class_names,
    )
    assert part.digest != images.digest
    assert values(part.select([2, 0])) == [rows[2], rows[0]]
    with pytest.raises(IndexError):
        part[3]


def test_select_reads_no_image_before_it_is_asked_for(monkeypatch):
    drawn = []

    def draw_scene(seed, index, name):
        drawn.append(index)
        return scenes.draw_scene(seed, index, name)

    monkeypatch.setattr(load, "draw_scene", draw_scene)
    part = load_images("scenes", 200, seed=3).select([*range(3, 200), 2])
    assert len(drawn) < 20  # the test's own check of types looks at one now and then
    scene = scenes.draw_scene(3, 2)
    assert (np.asarray(part[-1]) == scene.pixels).all() and (part.boxes[-1] == scene.boxes).all()
    assert (part.masks[-1] == scene.masks).all() and part.labels[-1] == scene.label
    assert drawn.count(2) == 1  # once for picture, boxes and masks


@pytest.mark.parametrize("source", ["scenes", "table"])
def test_a_slice_is_a_sequence_of_its_images(tmp_path, source):
    if source == "scenes":
        images = load_images("scenes", 5)
        assert [len(mask) for mask in images.masks[:2]] == [len(images.masks[i]) for i in range(2)]
    else:
        boxes = [[[0.0, 0.0, row + 1.0, 2.0]] for row in range(5)]
        images = numbered(tmp_path, "a.parquet", range(5), label=[0] * 5, boxes=boxes)
    for cut in (slice(3), slice(1, None, 2), slice(None, None, -1), slice(9, 12)):
        part, kept = images[cut], list(range(5))[cut]
        assert part.ids == [images.ids[index] for index in kept] and part.name == images.name
        assert list(part) == [images[index] for index in kept]
        found = images.select(range(5)).boxes[cut]
        for own, index in zip(found, kept, strict=True):
            assert (own == images.boxes[index]).all()
    assert list((images + images)[4:6]) == [images[4], images[0]]


def test_select_nothing_and_what_is_not_there():
    images = load_images("scenes", 4)
    for nothing in ([], [False] * 4, images.labels == -1):
        part = images.select(nothing)
        assert len(part) == len(part.labels) == len(part.boxes) == 0 and list(part) == []
    for wrong in ([0, 4], [True] * 3, np.array([0.5])):
        with pytest.raises(IndexError):
            images.select(wrong)


def test_joined_sets_stand_one_after_the_other(tmp_path):
    def columns(rows):
        boxes = [[[0.0, 0.0, row + 1.0, 2.0]] for row in rows]
        return {
            "label": [row % 2 for row in rows],
            "name": ["even" if row % 2 == 0 else "odd" for row in rows],
            "boxes": boxes,
        }

    first = numbered(tmp_path, "a.parquet", range(3), **columns(range(3)), patient=list("ABC"))
    second = numbered(tmp_path, "b.parquet", range(3, 8), **columns(range(3, 8)), eye=list("LRLRL"))
    both = first + second
    rows = values(first) + values(second)
    assert values(both) == rows and both.ids == [f"image-{row}" for row in rows] and len(both) == 8
    assert both.name == f"{first.name} and {second.name}" and both.class_names == ["even", "odd"]
    assert both.labels.tolist() == [row % 2 for row in rows] and both.labels.dtype == np.int64
    assert [box[0, 2] for box in both.boxes] == [row + 1 for row in rows]
    assert both.columns == {
        "id": both.ids,
        "name": ["odd" if row % 2 else "even" for row in rows],
    }, "columns that both have"
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
    named, unnamed = (
        numbered(tmp_path, f"{label}.parquet", [1], label=[label]) for label in ("cat", 0)
    )
    assert (named + unnamed).class_names is (unnamed + named).class_names is None
    noisy = both.corrupted("gaussian-noise", 1)
    assert noisy[0].tobytes() == first.corrupted("gaussian-noise", 1)[0].tobytes(), (
        "corruption knows the image, not its place"
    )


@pytest.mark.parametrize(
    "other, value",
    [
        (lambda _: load_images("photographs", 2), "photographs"),
        (lambda folder: numbered(folder, "a.parquet", [1], label=["cat"]), "cat"),
        (lambda _: load_images("scenes", 2, 1), "0 and 1"),
    ],
)
def test_sets_that_do_not_fit_are_not_joined(tmp_path, other, value):
    with pytest.raises(ValueError, match=value):
        load_images("scenes", 2) + other(tmp_path)


def test_required_labels(tmp_path):
    images = load_images("scenes", 3)
    assert images.require_labels() is images.labels
    with pytest.raises(ValueError, match="photographs"):
        load_images("photographs", 2).require_labels()
    images = numbered(tmp_path, "a.parquet", range(4), label=["dog", None, "cat", None])
    with pytest.raises(ValueError, match="2 of 4"):
        images.require_labels()
    assert sorted(images.select(images.labels >= 0).require_labels()) == [0, 1]


def test_relative_boxes(tmp_path):
    pictures = [
        {"bytes": png(picture(row, size)), "path": None}
        for row, size in enumerate([(12, 8), (40, 20)])
    ]
    boxes = [[[3.0, 2.0, 12.0, 6.0], [-1.0, 0.0, 6.0, 9.0]], []]
    dataset = datasets.Dataset.from_dict({"image": pictures, "boxes": boxes})
    images = load_images(write(tmp_path / "a.parquet", dataset))
    found = dict(zip(values(images), images.relative_boxes, strict=True))
    assert (
        found[0].tolist() == [[0.25, 0.25, 1, 0.75], [0, 0, 0.5, 1]]
        and found[0].dtype == np.float32
    )
    assert found[1].shape == (0, 4)
    assert len(images.with_objects()) == 1
    unknown = load_images("photographs", 1)
    assert unknown.relative_boxes is None and unknown.with_objects() is unknown


def test_relative_boxes_follow_a_picture_that_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter turn: 12x8 is seen as 8x12
    file = io.BytesIO()
    picture(1).save(file, "PNG", exif=exif)
    rows = {"image": [{"bytes": file.getvalue(), "path": None}], "boxes": [[[2.0, 3.0, 8.0, 6.0]]]}
    images = load_images(write(tmp_path / "a.parquet", datasets.Dataset.from_dict(rows)))
    assert images.relative_boxes[0].tolist() == [[0.25, 0.25, 1, 0.5]]
