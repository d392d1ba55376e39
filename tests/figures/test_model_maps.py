import matplotlib.pyplot as plt
import numpy as np
import pytest

from helpers import figures


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def test_one_row_a_model_and_image():
    rng = np.random.default_rng(0)
    images = rng.uniform(size=(2, 8, 8, 3))
    maps = {model: tuple(rng.uniform(1, 2, (2, 2, 4, 4))) for model in ("small", "large")}
    axes = figures.model_maps(images, maps, figures.rows(4, 3))
    expected = [(label, image, n, a) for label, both in maps.items() for image, n, a in zip(images, *both, strict=True)]
    for row, (label, *pictures) in zip(axes, expected, strict=True):
        assert row[0].get_ylabel() == label
        for ax, picture in zip(row, pictures, strict=True):
            np.testing.assert_array_equal(ax.images[0].get_array(), picture)


def test_maps_of_other_images_are_refused():
    pair = (np.ones((1, 4, 4)), np.ones((1, 4, 4)))
    with pytest.raises(ValueError, match="shorter|longer"):
        figures.model_maps(np.ones((2, 8, 8, 3)), {"small": pair}, figures.rows(2, 3))
