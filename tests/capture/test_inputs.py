"""What people give as images: it is measured as it should be, or refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.capture import PatchNorms, capture, images_of
from helpers.models import load_backbone


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("control-clean", image_size=64)


@pytest.fixture(scope="module")
def pictures():
    noise = np.random.default_rng(0).integers(0, 256, (3, 40, 60, 3), dtype=np.uint8)
    return [Image.fromarray(picture) for picture in noise]


@pytest.fixture
def paths(tmp_path, pictures):
    for index, picture in enumerate(pictures):
        picture.save(tmp_path / f"{index}.png")
    return sorted(tmp_path.iterdir())


def norms(backbone, images, **options):
    return capture(backbone, images, [PatchNorms()], batch_size=2, **options)["patch_norms"]


def test_pictures_paths_arrays_and_pixels_are_the_same_images(backbone, pictures, paths):
    """Also as Images, whose names are those of the files."""
    expected = norms(backbone, pictures)
    arrays = [np.asarray(picture) for picture in pictures]
    pixels = [backbone.preprocess(picture) for picture in pictures]
    kinds = [paths, [*map(str, paths)], arrays, np.stack(arrays), pixels, torch.stack(pixels)]
    for images in [*kinds, [picture.convert("RGBA") for picture in pictures]]:
        found = images_of(images)
        assert found.ids[2] == ("2.png" if isinstance(images[0], str | Path) else "2")
        torch.testing.assert_close(norms(backbone, images), expected)
        torch.testing.assert_close(norms(backbone, found), expected)
        torch.testing.assert_close(norms(backbone, found.select([2])), expected[2:])
    assert images_of([paths[0], paths[0]]).ids == ["0", "1"]  # no two of one name
    grey = [picture.convert("L") for picture in pictures]
    torch.testing.assert_close(norms(backbone, [*map(np.asarray, grey)]), norms(backbone, grey))


@pytest.mark.parametrize(
    ("images", "value"),
    [
        ([], "no images"),
        ([7], "int"),
        ([np.zeros((9, 9))], "32 bits"),
        (torch.zeros(3, 64, 64), r"\(3, 64, 64\)"),
        (torch.zeros(2, 3, 60, 60), "60"),
        ([torch.zeros(3, 9, 9)], "9, 9"),
        (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), "uint8"),
        (255 * torch.ones(2, 3, 64, 64), "255"),
        ([255 * torch.ones(3, 64, 64)], "255"),
    ],
)
def test_what_would_be_measured_wrongly_is_refused(backbone, images, value):
    with pytest.raises(ValueError, match=value):
        norms(backbone, images)


def test_pixels_are_rolled_and_made_plain():
    found = images_of(torch.randn(2, 3, 64, 64))
    rolled, plain = found.changed("rolled")[0], found.changed("constant")[1]
    assert torch.equal(rolled[:, 32:, 32:], found[0][:, :32, :32])
    torch.testing.assert_close(plain, found[1].mean((1, 2))[:, None, None].expand(3, 64, 64))
