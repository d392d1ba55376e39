"""A large split on the hub: what is chosen of it is what would be chosen of all of it, and no more
is fetched than that needs."""

from pathlib import Path

import datasets
import pyarrow.parquet
import pytest
import yaml
from pictures import picture, png, values

from helpers.images import load, load_images

pytestmark = pytest.mark.usefixtures("own_cache")
NAME, ROWS, FILES, GROUP = "hf:owner/name/train", 24, 3, 2


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Writes a folder that the library takes for a repository when it is called as one: files of
    groups of rows, and a card."""

    def write(large=True, **columns):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(load, "LARGE", 10 if large else 10**9)
        table = {
            "image": [{"bytes": png(picture(row)), "path": f"{row}.png"} for row in range(ROWS)]
        } | columns
        table = datasets.Dataset.from_dict(table).cast_column("image", datasets.Image())
        folder, own = Path("owner/name/data"), ROWS // FILES
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(FILES):
            part = table.select(range(own * i, own * (i + 1)))
            part.to_parquet(folder / f"train-{i:05d}-of-{FILES:05d}.parquet", batch_size=GROUP)
        card = {
            "dataset_info": {"splits": [{"name": "train", "num_bytes": 1, "num_examples": ROWS}]}
        }
        (folder.parent / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n")

    return write


@pytest.fixture
def fetched(monkeypatch):
    """The groups of rows whose images were read."""
    read, groups = pyarrow.parquet.ParquetFile.read_row_group, []
    monkeypatch.setattr(
        pyarrow.parquet.ParquetFile,
        "read_row_group",
        lambda self, group, **how: groups.append(group) or read(self, group, **how),
    )
    return groups


def told(images):
    facts = (
        images.ids,
        values(images),
        images.class_names,
        images.columns,
        images.contents,
        images.skipped,
        images.describe(),
    )
    return *facts, None if images.labels is None else images.labels.tolist()


@pytest.mark.parametrize(
    "columns",
    [
        {"label": [row % 3 for row in range(ROWS)]},
        {
            "label": ["cat" if row % 2 else "dog" for row in range(ROWS)],
            "weight": [row / 2 for row in range(ROWS)],
        },
        {
            "image_id": [100 - row for row in range(ROWS)],
            "boxes": [[[0.0, 0.0, 1.0, row + 1.0]] for row in range(ROWS)],
        },
        {
            "image_path": ["all the same"] * ROWS
        },  # not what the images are called, and no place for what is
    ],
    ids=["numbers", "texts", "boxes", "no names"],
)
def test_the_chosen_are_those_that_would_be_chosen_of_all(repository, fetched, columns):
    repository(large=False, **columns)
    whole = [load_images(NAME, n, seed) for n, seed in ((5, 1), (3, 1), (None, 2))]
    assert not fetched
    repository(**columns)
    for all_rows, (n, seed) in zip(whole, ((5, 1), (3, 1), (None, 2)), strict=True):
        few = load_images(NAME, n, seed)
        assert told(few) == told(all_rows)
        assert (few.boxes is None) == ("boxes" not in columns)
        if few.boxes is not None:
            assert [x.tolist() for x in few.boxes] == [x.tolist() for x in all_rows.boxes]
    assert bool(fetched) == ("image_path" not in columns)


@pytest.mark.parametrize("named", [True, False])
def test_arrow_s_large_types_are_read_alike(repository, fetched, named):
    """With names a struct of large types, without them `large_binary` alone."""
    repository(id=[f"row {row}" for row in range(ROWS)])
    plain = told(load_images(NAME, 5, 1))
    for path in Path("owner/name/data").iterdir():
        table = pyarrow.parquet.read_table(path)
        files = table.column("image").combine_chunks()
        contents, paths = (files.field(key) for key in ("bytes", "path"))
        odd = contents.cast("large_binary")
        if named:
            kinds = {"bytes": odd.type, "path": pyarrow.large_string()}
            odd = pyarrow.StructArray.from_arrays([odd, paths.cast("large_string")], list(kinds))
        table = table.replace_schema_metadata().set_column(0, "image", odd)
        pyarrow.parquet.write_table(table, path, row_group_size=GROUP)
    fetched.clear()
    assert told(load_images(NAME, 5, 1)) == plain and 0 < len(fetched) <= 5


def test_only_the_groups_of_the_chosen_are_read(repository, fetched, monkeypatch):
    repository(label=[0] * ROWS)
    images = load_images(NAME, 4, 7)
    groups = {(row // (ROWS // FILES), row % (ROWS // FILES) // GROUP) for row in values(images)}
    assert len(fetched) == len(groups) < ROWS // GROUP
    fetched.clear()
    assert (
        told(load_images(NAME, 4, 7)) == told(images) and not fetched
    )  # they lie in the library's cache
    with pytest.raises(ValueError, match="25 images asked of 'hf:owner/name/train', which has 24"):
        load_images(NAME, 25)


def test_a_path_in_place_of_an_image_is_refused(repository, tmp_path):
    (tmp_path / "private.png").write_bytes(png(picture(7)))
    files = [{"bytes": None, "path": str(tmp_path / "private.png")} for _ in range(ROWS)]
    repository(image=files, id=[f"row {row}" for row in range(ROWS)])
    with pytest.raises(
        ValueError, match="names the file '.*private.png' of this machine in place of an image"
    ):
        load_images(NAME, 3)


def test_an_image_that_does_not_decode_is_left_out(repository):
    broken = [
        {"bytes": b"no image" if row in (3, 4) else png(picture(row)), "path": f"{row}.png"}
        for row in range(ROWS)
    ]
    repository(image=broken)
    with pytest.raises(
        ValueError,
        match="2 of 24 images of 'hf:owner/name/train' do not decode: [34].png, [34].png",
    ):
        load_images(NAME)
