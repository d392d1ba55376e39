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
    digest = hashlib.sha256("\n".join([name, *images.ids]).encode()).hexdigest()[:16]
    assert images.digest == digest
    described = {"name": name, "n": 3, "seed": 0, "digest": digest, "skipped": [], "hub": None}
    assert images.describe() == described


@pytest.mark.parametrize("content", [b"", png(picture(1, (64, 64)))[:60], None])
@pytest.mark.parametrize(
    "broken, n, refused", [(1, 20, False), (2, 20, True), (2, 200, False), (1, 1, True)]
)
def test_a_few_undecodable_images_are_skipped_and_named(tmp_path, content, broken, n, refused):
    files = [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(n)]
    undecodable = None if content is None else {"bytes": content, "path": None}
    files[:broken] = [undecodable] * broken
    columns = {"label": list(range(n)), "id": [f"{row}.png" for row in range(n)]}
    dataset = datasets.Dataset.from_dict({"image": files} | columns)
    name = write(tmp_path / "a.parquet", dataset)
    with pytest.raises(ValueError) if refused else pytest.warns(UserWarning, match="0.png"):
        images = load_images(name)
        assert sorted(images.skipped) == ["0.png", "1.png"][:broken]
        assert len(images) == n - broken and values(images) == images.labels.tolist()


@pytest.mark.parametrize("kind", ["list", "array", "mask", "tensor"])
def test_select_takes_everything_along(tmp_path, kind):
    columns = {
        "label": [row % 3 for row in range(9)],
        "name": ["a", "b", "c"] * 3,
        "boxes": [[[0.0, 0.0, row + 1.0, 2.0]] * (1 + row % 3) for row in range(9)],
        "patient": list("ABCDEFGHI"),
    }
    images = numbered(tmp_path, "a.parquet", range(9), **columns)
    assert images.class_names == ["a", "b", "c"]
    kept = [1, 4, 7] if kind == "mask" else [7, 1, -5]
    mask = [index in kept for index in range(9)]
    indices = {"list": kept, "array": np.array(kept), "mask": mask, "tensor": torch.tensor(kept)}
    part = images.select(indices[kind])
    rows = [values(images)[index] for index in kept]
    assert values(part) == rows and part.ids == [f"image-{row}" for row in rows]
    assert part.labels.tolist() == [row % 3 for row in rows] and part.labels.dtype == np.int64
    assert [box[0, 2] for box in part.boxes] == [row + 1 for row in rows]
    assert [len(box) for box in part.boxes] == [1 + row % 3 for row in rows]
    assert part.columns.keys() == {"id", "name", "patient"} and part.columns["id"] == part.ids
    assert part.columns["patient"] == ["ABCDEFGHI"[row] for row in rows]
    assert (part.name, part.class_names) == (images.name, images.class_names)
    assert values(part.select([2, 0])) == [rows[2], rows[0]]
    assert len(part.select([])) == len(part.select([False] * 3)) == 0
    for wrong in ([0, 3], [True] * 2):
        with pytest.raises(IndexError):
            part.select(wrong)


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


def test_a_slice_is_a_sequence_of_its_images():
    images = load_images("scenes", 5)
    for cut in (slice(3), slice(1, None, 2), slice(None, None, -1), slice(9, 12)):
        part, kept = images[cut], list(range(5))[cut]
        assert part.ids == [images.ids[index] for index in kept] and part.name == images.name
        assert list(part) == [images[index] for index in kept]
        found = images.select(range(5)).boxes[cut]
        for own, index in zip(found, kept, strict=True):
            assert (own == images.boxes[index]).all()
    assert list((images + images)[4:6]) == [images[4], images[0]]


def test_joined_sets_stand_one_after_the_other(tmp_path):
    def columns(rows):
        return {
            "label": [row % 2 for row in rows],
            "name": ["odd" if row % 2 else "even" for row in rows],
            "boxes": [[[0.0, 0.0, row + 1.0, 2.0]] for row in rows],
        }

    first = numbered(tmp_path, "a.parquet", range(3), **columns(range(3)), patient=list("ABC"))
    second = numbered(tmp_path, "b.parquet", range(3, 8), **columns(range(3, 8)), eye=list("LRLRL"))
    both = first + second
    rows = values(first) + values(second)
    assert values(both) == rows and both.ids == [f"image-{row}" for row in rows] and len(both) == 8
    assert both.name == f"{first.name} and {second.name}" and both.class_names == ["even", "odd"]
    assert both.labels.tolist() == [row % 2 for row in rows] and both.labels.dtype == np.int64
    assert [box[0, 2] for box in both.boxes] == [row + 1 for row in rows]
    assert both.columns == {"id": both.ids, "name": columns(rows)["name"]}  # that both have
    assert values(both.select([-1, 0])) == [rows[-1], rows[0]]
    again = first[:1] + first[1:]
    assert again.describe() == first.describe()
    broken = replace(first, skipped=["lost"])
    assert (broken[:1] + broken[1:]).skipped == ["lost"]


def test_ground_truth_that_only_one_has_is_dropped(tmp_path):
    first = numbered(tmp_path, "a.parquet", [1], boxes=[[[0.0, 0.0, 2.0, 1.0]]])
    both = first + numbered(tmp_path, "b.parquet", [2])
    assert both.boxes is None and both.masks is None and both.labels is None
    named, unnamed = (
        numbered(tmp_path, f"{label}.parquet", [1], label=[label]) for label in ("cat", 0)
    )
    assert (named + unnamed).class_names is (unnamed + named).class_names is None


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
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter turn: 12x8 is seen as 8x12
    turned = io.BytesIO()
    picture(2).save(turned, "PNG", exif=exif)
    contents = [png(picture(0)), png(picture(1, (40, 20))), turned.getvalue()]
    boxes = [[[3.0, 2.0, 12.0, 6.0], [-1.0, 0.0, 6.0, 9.0]], [], [[2.0, 3.0, 8.0, 6.0]]]
    files = [{"bytes": content, "path": None} for content in contents]
    dataset = datasets.Dataset.from_dict({"image": files, "boxes": boxes, "id": [0, 1, 2]})
    images = load_images(write(tmp_path / "a.parquet", dataset))
    found = dict(zip(images.ids, images.relative_boxes, strict=True))
    assert found["0"].tolist() == [[0.25, 0.25, 1, 0.75], [0, 0, 0.5, 1]]
    assert found["1"].shape == (0, 4) and found["2"].tolist() == [[0.25, 0.25, 1, 0.5]]
    assert len(images.with_objects()) == 2
    unknown = load_images("photographs", 1)
    assert unknown.relative_boxes is None and unknown.with_objects() is unknown
