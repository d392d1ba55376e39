"""Stored pictures turned for dark pages."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from helpers.publish.site.pixels import for_dark_pages, size_of, turned

matplotlib.use("agg")


@pytest.fixture
def figure():
    """White, with a black cross, a blue line, a photograph and a colour bar."""
    pixels = np.full((120, 200, 3), 255, dtype=np.uint8)
    pixels[10:20, 14] = pixels[14, 10:20] = 0
    pixels[30, 10:190] = (1, 115, 178)
    pixels[50:110, 20:80] = np.random.default_rng(0).integers(0, 200, (60, 60, 3))
    pixels[50:110, 100:110] = (255 * colormaps["magma"](np.linspace(0, 0.99, 60))[:, None, :3]).astype(np.uint8)
    pixels[60:61, 110:115] = 0  # its tick
    return pixels


def test_ink_is_light_on_nothing_and_pictures_stay(figure):
    dark = turned(figure)
    assert dark.shape == (120, 200, 4) and dark.dtype == np.uint8
    assert (dark[..., 3] == 0).sum() == (figure == 255).all(axis=-1).sum()  # what was white is not there
    assert (dark[10:20, 14, :3] > 200).all() and (dark[10:20, 14, 3] == 255).all()
    red, green, blue = dark[30, 100, :3].astype(int)
    assert red < green < blue and blue > 200  # the same hue, lighter
    for box in (np.s_[50:110, 20:80], np.s_[50:110, 100:110]):
        np.testing.assert_array_equal(dark[box][..., :3], figure[box])
        assert (dark[box][..., 3] == 255).all()
    assert (dark[60, 110:115, :3] > 200).all() and (dark[61:100, 110:115, 3] == 0).all()


def test_a_thin_ink_keeps_its_strength():
    """Grey on white, as the edge of a letter, is as much ink over a dark page."""
    (((_, _, _, alpha),),) = turned(np.full((1, 1, 3), 155, dtype=np.uint8))
    assert alpha == 100


@plt.style.context("default")  # whatever a notebook has set in this process
def test_a_drawn_figure_is_legible_on_a_dark_page(tmp_path):
    _, ax = plt.subplots(figsize=(4, 3))
    ax.plot([0, 1, 2], [3, 1, 2])
    ax.set_title("a title")
    plt.savefig(tmp_path / "light.png", dpi=100)
    plt.close()
    for_dark_pages(tmp_path / "light.png", tmp_path / "dark.webp")
    assert size_of(tmp_path / "dark.webp") == size_of(tmp_path / "light.png") == (400, 300)
    page = Image.new("RGBA", (400, 300), "#14181e")
    page.alpha_composite(Image.open(tmp_path / "dark.webp"))
    bright = np.asarray(page.convert("L"))
    assert np.median(bright) < 30 and (bright > 200).sum() > 500  # no plate; text and axes
