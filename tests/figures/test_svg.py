"""A small SVG shows what the large one did."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from helpers import figures
from helpers.figures.svg import drawn_small, small


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


def large(figure: Figure) -> str:
    file = io.StringIO()
    with plt.rc_context(figures.STYLE):
        figure.savefig(
            file, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None}
        )
    return file.getvalue()


def pictures(svg: str) -> list[tuple[str, np.ndarray]]:
    found = re.findall(r'data:image/(\w+);base64,([^"]*)"', svg)
    return [
        (kind, np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"), float))
        for kind, text in found
    ]


def test_less_text_and_the_same_drawing(figure):
    before, after = large(figure), small(large(figure))
    assert len(after) < 0.5 * len(before) and small(after) == after
    assert ">0.123456 of 1<" in after and "DejaVu" not in after
    paths = [" ".join(re.findall(r' d="([^"]*)"', svg)) for svg in (before, after)]
    numbers = [[float(x) for x in re.findall(r"(?<=[ LM])-?[\d.]+", path)] for path in paths]
    assert len(numbers[0]) > 70 and numbers[1] == pytest.approx(numbers[0], abs=0.01)


def test_a_photograph_loses_little_and_a_map_nothing(figure):
    before, after = pictures(large(figure)), pictures(small(large(figure)))
    assert [kind for kind, _ in after] == ["webp", "webp"]
    assert np.abs(after[0][1] - before[0][1]).mean() < 25 and np.array_equal(
        after[1][1], before[1][1]
    )


def test_the_same_figure_is_the_same_text(figure):
    with plt.rc_context(figures.STYLE):
        assert drawn_small(figure) == drawn_small(figure)


def styles(svg: str) -> list[tuple[str, str]]:
    """What is drawn: tag and style of each element, by its own or by the rule of its class."""
    root = ET.fromstring(svg)
    rules = dict(re.findall(rf"#{root.get('id')} \.(\w+){{([^}}]*)}}", svg))
    drawn = [
        node for node in root.iter() if node.tag.endswith(("path", "use", "text", "image", "rect"))
    ]
    return [(node.tag, rules.get(node.get("class"), node.get("style"))) for node in drawn]


def test_every_part_keeps_its_style_and_refers_within_its_drawing(figure):
    before, after = large(figure), small(large(figure))
    families = [
        re.sub(r"(font: [\d.]+px|font-family:) '[^;]*", r"\1 sans-serif", style or "")
        for _, style in styles(before)
    ]
    assert [style or "" for _, style in styles(after)] == families and len(families) > 30
    own = ET.fromstring(after).get("id")
    ids, used = (
        set(re.findall(r' id="([^"]*)"', after)),
        set(re.findall(r'(?:href="|url\()#([\w.-]+)', after)),
    )
    assert used and used <= ids and all(name.startswith(own) for name in ids)
    assert "<g>" not in after and after.count("<g ") == after.count("</g>")


def test_two_drawings_share_no_id(figure):
    first = small(large(figure))
    figure.axes[0].set_title("another")
    second = small(large(figure))
    assert not set(re.findall(r' id="([^"]*)"', first)) & set(re.findall(r' id="([^"]*)"', second))


def test_an_empty_group_is_closed_by_itself():
    inside = '<g/><g clip-path="url(#a)"/>\n<g id="b"/>\n<path id="a" d="M 0 0"/>'
    empty = f'<svg viewBox="0 0 1 1"><g>{inside}</g></svg>'
    assert [node.tag for node in ET.fromstring(small(empty)).iter()] == [
        "svg",
        "g",
        "g",
        "g",
        "path",
    ]
