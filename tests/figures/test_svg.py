"""A figure as SVG: rounded lengths, pictures as WebP, the same text twice."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from helpers import figures
from helpers.figures.data import FIGURE, drawn_small, shown


@pytest.fixture
def figure():
    with plt.rc_context(figures.STYLE):
        figure, (curve, photograph, values) = plt.subplots(1, 3)
        curve.plot([0, 1 / 3, 1], [0.1234567, 2 / 3, 1])
        curve.set_title("0.123456 of 1")
        noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
        photograph.imshow(Image.fromarray(noise).resize((240, 240)))
        values.imshow(np.arange(196.0).reshape(14, 14))
        yield figure
    plt.close(figure)


def large(figure):
    file = io.StringIO()
    figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    return file.getvalue()


def pictures(svg):
    """Kind and pixels of each picture in a drawing."""
    for kind, text in re.findall(r'data:image/(\w+);base64,([^"]*)"', svg):
        picture = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
        yield kind, np.asarray(picture, float)


def paths(svg):
    found = [node.get("d") for node in ET.fromstring(svg).iter() if node.get("d")]
    return [[float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", path)] for path in found]


def test_lengths_are_rounded_and_texts_are_not(figure):
    before, after = paths(large(figure)), paths(drawn_small(figure))
    for one, other in zip(before, after, strict=True):
        assert other == pytest.approx(one, abs=0.051) and other == [round(x, 1) for x in other]
    assert ">0.123456 of 1<" in drawn_small(figure) and drawn_small(figure) == drawn_small(figure)


def test_a_photograph_loses_little_and_a_map_nothing(figure):
    (_, photograph), (_, values) = pictures(large(figure))
    (one, near), (two, same) = pictures(drawn_small(figure))
    assert one == two == "webp" and np.array_equal(same, values)
    assert np.abs(near - photograph).mean() < 25


def test_a_figure_is_stored_with_its_numbers_and_an_empty_one_not_at_all(figure):
    assert set(shown(figure)) == {FIGURE, "image/svg+xml"}
    assert shown(plt.figure()) is None
