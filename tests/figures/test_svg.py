"""A small SVG shows what the large one did."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from helpers import figures
from helpers.figures.data import shown
from helpers.figures.svg import drawn_small, small
from helpers.summary import FIGURE


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
    plain = {"Date": None, "Creator": None}
    figure.savefig(file, format="svg", bbox_inches="tight", metadata=plain)
    return file.getvalue()


def pictures(svg):
    """Kind and pixels of each picture in a drawing."""
    for kind, text in re.findall(r'data:image/(\w+);base64,([^"]*)"', svg):
        picture = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
        yield kind, np.asarray(picture, float)


def ids(svg):
    return set(re.findall(r' id="([^"]*)"', svg))


def styles(svg):
    """What is drawn: the style of each element, by its own or by the rule of its class."""
    root = ET.fromstring(svg)
    rules = dict(re.findall(rf"#{root.get('id')} \.(\w+){{([^}}]*)}}", svg))
    tags = ("path", "use", "text", "image", "rect")
    drawn = [node for node in root.iter() if node.tag.endswith(tags)]
    return [rules.get(node.get("class"), node.get("style")) or "" for node in drawn]


def test_less_text_and_the_same_drawing(figure):
    before, after = large(figure), small(large(figure))
    assert len(after) < 0.5 * len(before) and small(after) == after
    assert ">0.123456 of 1<" in after and "DejaVu" not in after
    paths = [" ".join(re.findall(r' d="([^"]*)"', svg)) for svg in (before, after)]
    numbers = [[float(x) for x in re.findall(r"(?<=[ LM])-?[\d.]+", path)] for path in paths]
    assert len(numbers[0]) > 70 and numbers[1] == pytest.approx(numbers[0], abs=0.01)
    families = re.compile(r"(font: [\d.]+px|font-family:) '[^;]*")
    expected = [families.sub(r"\1 sans-serif", style) for style in styles(before)]
    assert styles(after) == expected and len(expected) > 30
    assert drawn_small(figure) == drawn_small(figure)


def test_a_photograph_loses_little_and_a_map_nothing(figure):
    (_, photograph), (_, values) = pictures(large(figure))
    (one, near), (two, same) = pictures(small(large(figure)))
    assert one == two == "webp" and np.array_equal(same, values)
    assert np.abs(near - photograph).mean() < 25


def test_a_drawing_refers_within_itself_and_shares_no_id_with_another(figure):
    first = small(large(figure))
    used = set(re.findall(r'(?:href="|url\()#([\w.-]+)', first))
    assert used and used <= ids(first)
    assert all(name.startswith(ET.fromstring(first).get("id")) for name in ids(first))
    assert "<g>" not in first and first.count("<g ") == first.count("</g>")
    figure.axes[0].set_title("another")
    assert not ids(first) & ids(small(large(figure)))


def test_an_empty_group_is_closed_by_itself():
    inside = '<g/><g clip-path="url(#a)"/>\n<g id="b"/>\n<path id="a" d="M 0 0"/>'
    found = ET.fromstring(small(f'<svg viewBox="0 0 1 1"><g>{inside}</g></svg>'))
    assert [node.tag for node in found.iter()] == ["svg", "g", "g", "g", "path"]


def test_a_figure_is_stored_with_its_numbers_and_an_empty_one_not_at_all(figure):
    assert set(shown(figure)) == {FIGURE, "image/svg+xml"}
    assert shown(plt.figure()) is None
