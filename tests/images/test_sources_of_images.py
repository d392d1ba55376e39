"""Names of data sets, and the table behind each: the right rows whatever the files look like."""

from pathlib import Path

import datasets
import numpy as np
import pytest
import yaml
from pictures import picture, png, real_data, table, values, write

from helpers.images import load, load_images

pytestmark = pytest.mark.usefixtures("own_cache")


def test_photographs_come_with_scikit_image():
    images = load_images("photographs")
    assert len(images) == 19 and "astronaut.png" in images.ids and images.labels is None
    assert {image.mode for image in images} == {"RGB"}
    camera = np.asarray(images[images.ids.index("camera.png")])
    assert (camera[..., :1] == camera).all(), "a grey photograph stays grey"


PATHS = ("a[1]b", "[!a]1b", "what?", "star*", "a::b", "{a,b}", "~x", "label=3", "per%20cent")
PATHS += ("s3:x", "a b ", "ümläut-数据", "$HOME", "a\\b")


@pytest.mark.parametrize("folder", PATHS)
def test_a_path_is_no_pattern(tmp_path, monkeypatch, folder):
    name = write(tmp_path / folder / "val.parquet", table(range(3), species=["b", "a", "b"]))
    (tmp_path / folder / "._val.parquet").write_bytes(b"hidden")
    write(tmp_path / "a1b" / "val.parquet", table([9]))
    picture(5).save(tmp_path / folder / "5.png")
    monkeypatch.setenv("REGISTERS_DATA", str(tmp_path))
    for form in (name, f"parquet:{tmp_path}/{folder}", f"data:{folder}/val"):
        images = load_images(form)
        assert sorted(values(images)) == [0, 1, 2] and images.columns.keys() == {"species"}
    with pytest.warns(UserWarning, match="1 hidden"):
        assert values(load_images(f"folder:{tmp_path}/{folder}")) == [5]
    monkeypatch.chdir(tmp_path / folder)
    monkeypatch.setenv("REGISTERS_DATA", str(tmp_path / folder / ".."))
    for form in ("parquet:val.parquet", "parquet:.", f"data:{folder}/val"):
        assert sorted(values(load_images(form))) == [0, 1, 2]
    mapped = load._from_parquet([Path("val.parquet")], name).cache_files
    assert bool(mapped) != ("::" in folder or "$" in folder)  # and not held whole


@pytest.mark.parametrize(
    "name, n, error",
    [
        ("scens", 1, ValueError),
        ("folder:", 1, ValueError),
        ("data:a/../b", 1, ValueError),
        ("folder:{}", 1, ValueError),
        ("folder:{}/nowhere", 1, FileNotFoundError),
        ("parquet:{}/nowhere.parquet", 1, FileNotFoundError),
        ("data:nothing/train", 1, FileNotFoundError),
        ("scenes", None, ValueError),
        ("scenes", 0, ValueError),
        ("photographs", 20, ValueError),
    ],
)
def test_refusals(tmp_path, monkeypatch, name, n, error):
    monkeypatch.delenv("REGISTERS_DATA", raising=False)
    with pytest.raises(error):
        load_images(name.format(tmp_path), n)


ROWS, FILES = 24, 3
LABEL = datasets.ClassLabel(names=["a", "b", "c"])


def repository(tmp_path, monkeypatch, large):
    """A folder that the library takes for a repository when it is called as one, with a card."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(load, "LARGE", 10 if large else 10**9)
    files = [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(ROWS)]
    rows = datasets.Dataset.from_dict({"image": files, "label": [row % 3 for row in range(ROWS)]})
    rows = rows.cast_column("image", datasets.Image()).cast_column("label", LABEL)
    folder, each = Path("owner/name/data"), ROWS // FILES
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(FILES):
        part = rows.select(range(each * i, each * (i + 1)))
        part.to_parquet(folder / f"train-{i:05d}-of-{FILES:05d}.parquet")
    (folder / "test-00000-of-00001.parquet").write_bytes(b"not read")
    info = rows.info._to_yaml_dict() | {
        "splits": [{"name": "train", "num_bytes": 1, "num_examples": ROWS}]
    }
    (folder.parent / "README.md").write_text(f"---\n{yaml.safe_dump({'dataset_info': info})}---\n")


def test_one_split_is_read_and_a_large_one_streamed(tmp_path, monkeypatch):
    """What is chosen of a stream is what would be chosen of all rows."""
    found = []
    for large in (False, True):
        repository(tmp_path, monkeypatch, large)
        # Called like an image of the table, it must not be shown in its place.
        (tmp_path / "5.png").write_bytes(png(picture(200)))
        few = load_images("hf:owner/name/train", 9, 1)
        found.append((few.ids, values(few), few.labels.tolist(), few.class_names, few.describe()))
    assert found[0] == found[1] and found[0][3] == LABEL.names
    assert found[0][0] == [f"{value}.png" for value in found[0][1]] and "5.png" in found[0][0]
    assert len(load_images("hf:owner/name/train")) == ROWS


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
