"""The class of each pixel: where it comes from, and that it stays with its image."""

import datasets
import numpy as np
import pytest
from pictures import picture, png, write
from PIL import Image

from helpers.images import load_images, load_segments, scenes
from helpers.models import load_backbone

pytestmark = pytest.mark.usefixtures("own_cache")
CLASSES = 5


def classes(seed, size=(90, 64)):
    """Blocks of classes, (height, width)."""
    blocks = np.random.default_rng(seed).integers(0, CLASSES, (4, 5), dtype=np.uint8)
    return np.asarray(Image.fromarray(blocks).resize(size, Image.Resampling.NEAREST))


def painted(mask):
    """An image whose grey tells the class."""
    return Image.fromarray(50 * mask).convert("RGB")


def paired(tmp_path, paths):
    for seed, path in enumerate(paths):
        for folder, suffix in (("images", ".jpg"), ("masks", ".png")):
            file = tmp_path / folder / f"{path}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            mask = classes(seed)
            image = painted(mask) if folder == "images" else Image.fromarray(mask)
            image.save(file, **({"quality": 95} if suffix == ".jpg" else {}))
    return load_images(f"folder:{tmp_path}")


def masked(seeds, column="mask", masks=None):
    """A table of images with their masks."""
    masks = [Image.fromarray(classes(seed)) for seed in seeds] if masks is None else masks
    rows = {
        "id": [f"image-{seed}" for seed in seeds],
        "image": [{"bytes": png(painted(classes(seed))), "path": None} for seed in seeds],
        column: [{"bytes": mask and png(mask), "path": None} for mask in masks],
        "sequence": [f"drive-{seed % 2}" for seed in seeds],
    }
    return datasets.Dataset.from_dict(rows).cast_column(column, datasets.Image())


def test_a_folder_of_images_and_masks(tmp_path):
    images = paired(tmp_path, ["a/1", "a/2", "b/1"])
    assert sorted(images.ids) == ["images/a/1.jpg", "images/a/2.jpg", "images/b/1.jpg"]
    assert images.labels is None and images.class_names is None
    drives = dict(zip(images.ids, images.columns["sequence"], strict=True))
    assert drives["images/b/1.jpg"] == "b" and sorted(drives.values()) == ["a", "a", "b"]
    for id, segments in zip(images.ids, images.segments, strict=True):
        seed = ["images/a/1.jpg", "images/a/2.jpg", "images/b/1.jpg"].index(id)
        assert (segments == classes(seed)).all()
    again = images[1:]
    assert (again.segments[0] == images.segments[1]).all()


def test_masks_are_never_measured_as_pictures(tmp_path):
    paired(tmp_path, ["a/1", "a/2"])
    (tmp_path / "masks/a/2.png").unlink()
    with pytest.raises(ValueError, match="a/2"):
        load_images(f"folder:{tmp_path}")
    picture(3).save(tmp_path / "preview.png")
    with pytest.raises(ValueError, match="preview.png"):
        load_images(f"folder:{tmp_path}")


@pytest.mark.parametrize("column", ["mask", "annotation", "segmentation"])
def test_a_column_of_masks(tmp_path, column):
    images = load_images(write(tmp_path / "own.parquet", masked(range(6), column)), 4, seed=1)
    assert len(images.segments) == 4 and column not in images.columns
    for id, segments in zip(images.ids, images.segments, strict=True):
        assert (segments == classes(int(id[-1]))).all() and segments.dtype == np.int32


def test_a_palette_gives_its_index(tmp_path):
    mask = Image.fromarray(classes(3)).convert("P")
    mask.putpalette([200, 10, 10, 5, 5, 250] + [7] * 750)
    images = load_images(write(tmp_path / "own.parquet", masked([3], masks=[mask])))
    assert (images.segments[0] == classes(3)).all()


@pytest.mark.parametrize("size", [(180, 128), (448, 300), (150, 200)])
def test_masks_stay_with_what_a_model_sees_of_the_whole_picture(tmp_path, size):
    """Grey tells the class; away from borders it does so after the model's own resizing."""
    mask = classes(5, size)
    rows = {
        "image": [{"bytes": png(painted(mask)), "path": None}],
        "mask": [{"bytes": png(Image.fromarray(mask)), "path": None}],
    }
    dataset = datasets.Dataset.from_dict(rows).cast_column("mask", datasets.Image())
    images = load_images(write(tmp_path / "own.parquet", dataset))
    backbone = load_backbone("control-clean", whole=True)  # means and deviations of 0.5
    grey = 255 * (backbone.preprocess(images[0]).mean(0) / 2 + 0.5)
    seen = (grey / 50).round().long()
    found = images.segments_at(backbone.image_size)[0]
    edges = np.zeros(found.shape, dtype=bool)
    reach = 1 + int(np.ceil(2 * max(1, 224 / min(size))))
    for axis in (0, 1):
        for shift in (-reach, reach):
            edges |= np.roll(found.numpy(), shift, axis) != found.numpy()
    assert (~edges).mean() > 0.5
    assert (seen == found)[~edges].all()
    assert (seen == found).float().mean() > 0.9


def test_the_segments_of_scenes_are_their_objects():
    images = load_images("scenes", 3, seed=2)
    for index in range(3):
        scene, segments = scenes.draw_scene(2, index), images.segments[index]
        assert ((segments == scene.label + 1) == scene.masks.any(0)).all()
        assert ((segments == 0) == ~scene.masks.any(0)).all()
    assert images.segments_at((14, 14)).shape == (3, 14, 14)
    middle = images.segments[1][8::16, 8::16]
    assert (images.segments_at((14, 14))[1].numpy() == middle).all()


def test_segments_go_where_images_go(tmp_path):
    one, other = (load_images("scenes", 3, seed=2).select(own) for own in ([2, 0], [1]))
    both = one + other
    for index, own in enumerate((2, 0, 1)):
        assert (both.segments[index] == load_images("scenes", 3, seed=2).segments[own]).all()
    assert both.changed("rolled").segments is None
    assert both.corrupted("blur", 1).segments is not None


def test_sets_that_share_no_picture(tmp_path):
    first, second = load_segments(["scenes", "scenes"], [3, 2], seed=4)
    assert first.ids + second.ids == load_images("scenes", 5, seed=4).ids
    names = [write(tmp_path / f"{part}.parquet", masked(part)) for part in ((1, 2), (2, 3))]
    with pytest.raises(ValueError, match="image-2"):
        load_segments(names, [2, 2])
    assert [len(own) for own in load_segments(names[:1] * 2, [1, 1])] == [1, 1]
    with pytest.raises(ValueError, match="photographs"):
        load_segments(["photographs"], [2])
