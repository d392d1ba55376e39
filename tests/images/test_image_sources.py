"""Names of data sets, and the table behind each: the right rows whatever the files look like."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from pictures import picture, png, real_data, table, values, write

from helpers.images import check_name, load_images, rows
from helpers.images.load import DRAWN

pytestmark = pytest.mark.usefixtures("own_cache")


def test_photographs_come_with_scikit_image():
    images = load_images("photographs")
    assert len(images) == 19 and "astronaut.png" in images.ids and images.labels is None
    assert {image.mode for image in images} == {"RGB"}
    camera = np.asarray(images[images.ids.index("camera.png")])
    assert (camera[..., :1] == camera).all(), "a grey photograph stays grey"


def test_folder(tmp_path):
    for row, path in enumerate(
        ["cat/1.png", "cat/more/2.png", "dog/1.PNG", "dog/notes.txt", "dog/._1.png"]
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(png(picture(row)))
    images = load_images(f"folder:{tmp_path}")
    assert dict(zip(images.ids, images.labels.tolist(), strict=True)) == {
        "cat/1.png": 0,
        "cat/more/2.png": 0,
        "dog/1.PNG": 1,
    }
    assert images.class_names == ["cat", "dog"]
    assert dict(zip(images.ids, values(images), strict=True)) == {
        "cat/1.png": 0,
        "cat/more/2.png": 1,
        "dog/1.PNG": 2,
    }
    assert load_images(f"folder:{tmp_path}/dog").labels is None


def test_tables_are_made_one_at_a_time(tmp_path, monkeypatch):
    """The library's bars share a lock that each call makes and deletes."""
    made, inside, most = datasets.load_dataset, [], []

    def counted(*args, **options):
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        try:
            return made(*args, **options)
        finally:
            inside.pop()

    monkeypatch.setattr(datasets, "load_dataset", counted)
    for name in "abc":
        rows = {"image": [{"bytes": png(picture(1)), "path": None}], "label": [0]}
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / f"{name}.parquet")
    names = [f"parquet:{tmp_path}/{name}.parquet" for name in "abc"]
    with ThreadPoolExecutor(3) as pool:
        assert [len(images) for images in pool.map(load_images, names)] == [1, 1, 1]
    assert most == [1, 1, 1]


@pytest.mark.parametrize("pictures", [0, 1])
def test_what_a_folder_has_that_is_not_read_is_counted(tmp_path, pictures):
    for path in ("a/1.HEIC", "a/2.heic", "a/.DS_Store", "b/n.txt", "b/README"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"none")
    told = r"Pillow does not read.*: 2 .heic, 1 .txt, 1 without a suffix; convert|\(2 .heic, 1 "
    if pictures:
        (tmp_path / "1.png").write_bytes(png(picture(1)))
        with pytest.warns(UserWarning, match=told):
            assert load_images(f"folder:{tmp_path}").ids == ["1.png"]
    else:
        with pytest.raises(ValueError, match=told):
            load_images(f"folder:{tmp_path}")


def test_known_names():
    files = ["hf:mnist", "hf:a/b/test", "data:a/train", "folder:x", "parquet:x/y.parquet"]
    for name in (*DRAWN, "photographs", *files):
        check_name(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("scens", "scenes"),
        ("scenes_hard", "scenes-hard"),
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
        ("tests", "folder:tests"),  # which is there
        ("pics", None),
        ("", None),
    ],
)
def test_unknown_names_get_the_nearest_that_is_near(name, nearest, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    hint = "known: scenes, " if nearest is None else f"did you mean '{nearest}"
    for check in (check_name, load_images):
        with pytest.raises(ValueError, match=re.escape(f"unknown data set {name!r}; {hint}")):
            check(name)


def test_data_is_found_below_the_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("REGISTERS_DATA", raising=False)
    with pytest.raises(
        FileNotFoundError,
        match="set the environment variable REGISTERS_DATA .* 'hf:uoft-cs/cifar10/test'",
    ):
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


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder of images that is empty, and tables that hold three images, or none."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "empty").mkdir()
    (folder / "text.parquet").write_bytes(b"not parquet")
    write(folder / "numbers.parquet", datasets.Dataset.from_dict({"number": [1]}))
    write(folder / "three.parquet", table(range(3)))
    write(folder / "none.parquet", table([]))
    return folder


@pytest.mark.parametrize(
    "name, n, error, message",
    [
        ("folder:{}/empty", None, ValueError, "no images in the folder"),
        ("folder:{}/nowhere", None, FileNotFoundError, "there is no folder"),
        ("parquet:{}/nowhere.parquet", None, FileNotFoundError, "no parquet file"),
        ("parquet:{}/empty", None, FileNotFoundError, "no parquet file"),
        ("parquet:{}/text.parquet", None, ValueError, "cannot be read .* save it again as a Par"),
        (
            "parquet:{}/numbers.parquet",
            None,
            ValueError,
            "has no column of images, .* are number .int64",
        ),
        ("parquet:{}/none.parquet", None, ValueError, "none.parquet' has no images"),
        ("parquet:{}/three.parquet", 4, ValueError, "^4 images.*has 3"),
        ("parquet:{}/three.parquet", 0, ValueError, "n = 0"),
        ("scenes", -1, ValueError, "n = -1"),
        ("scenes", None, ValueError, "'scenes' has no end; give the number of images n"),
        ("quiet", None, ValueError, "'quiet' has no end; give the number of images n"),
    ],
)
def test_what_cannot_be_loaded_is_refused(shelf, name, n, error, message):
    with pytest.raises(error, match=message):
        load_images(name.format(shelf), n)


def test_hub_names_are_taken_apart(monkeypatch):
    asked = []

    def load_dataset(repository, split, **files):
        asked.append((repository, split, *files.get("data_files", {}).items()))
        return table([0, 1]).rename_column("image", "img").cast_column("img", datasets.Image())

    config, info = (
        SimpleNamespace(data_files={"train": ["a"], "test": ["b", "c"]}),
        SimpleNamespace(splits=None),
    )
    files = SimpleNamespace(config=config, info=info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda repository: files)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda repository: ["train", "test"])
    assert sorted(values(load_images("hf:owner/name/extra"))) == [0, 1]
    load_images("hf:owner/name")
    assert asked == [("owner/name", "extra"), ("owner/name", "test", ("test", ["b", "c"]))]


def test_one_split_is_read_without_the_others(tmp_path, monkeypatch):
    """A folder called as a repository is one to the library; the other split cannot be read."""
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "owner/name/data/validation-00000-of-00001.parquet", table([3, 4], label=[0, 1])
    )
    (tmp_path / "owner/name/data/train-00000-of-00001.parquet").write_bytes(b"not parquet")
    images = load_images("hf:owner/name/validation")
    assert sorted(values(images)) == [3, 4] and sorted(images.labels) == [0, 1]


@pytest.mark.parametrize("as_list", [False, True])
def test_boxes_of_objects_are_read_where_they_are_corners(as_list):
    objects = [{"bbox": [[1.0, 2.0, 3.0, 4.0]], "area": [4.0]}, {"bbox": [], "area": []}]
    if as_list:
        objects = [
            [{"bbox": box, "area": area} for box, area in zip(*own.values(), strict=True)]
            for own in objects
        ]
    dataset = datasets.Dataset.from_dict({"objects": objects})
    assert rows.corners_of(dataset, "hf:detection-datasets/coco/val") == [
        [[1.0, 2.0, 3.0, 4.0]],
        [],
    ]
    assert rows.corners_of(dataset, "hf:owner/name/val") is None


def test_a_hub_out_of_reach_is_one_sentence(monkeypatch):
    def no_hub(repository):
        raise ConnectionError("no network\nRetrying in 1s")

    monkeypatch.setattr(datasets, "load_dataset_builder", no_hub)
    with pytest.raises(
        FileNotFoundError,
        match="^the hub data set 'hf:owner/name/test' cannot be had here: no network Retry",
    ):
        load_images("hf:owner/name/test")


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
