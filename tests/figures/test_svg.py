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


def shapes(svg):
    """What is drawn: kind, style by its own, the rule of its class or that of its group, where it
    is cut off, and its numbers. What has neither line nor filling is left out.
    """
    root = ET.fromstring(svg)
    rules = dict(re.findall(rf"#{root.get('id')} \.(\w+){{([^}}]*)}}", svg))
    tags = ("path", "use", "text", "image", "rect")

    def walk(node, style, clip):
        style = rules.get(node.get("class"), node.get("style")) or style
        clip = "clip-path" in node.attrib or clip
        kind = node.tag.partition("}")[2]
        if kind in tags and style != "fill: none":
            at = "".join(f" {node.get(name)}" for name in ("d", "x", "y") if node.get(name))
            numbers = [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", at)]
            yield kind, style, clip, numbers
        for child in node:
            yield from walk(child, style, clip)

    return list(walk(root, "", False))


def test_less_text_and_the_same_drawing(figure):
    before, after = large(figure), small(large(figure))
    assert len(after) < 0.5 * len(before) and small(after) == after
    assert ">0.123456 of 1<" in after and "DejaVu" not in after
    families = re.compile(r"(font: [\d.]+px|font-family:) '[^;]*")
    drawn = list(zip(shapes(before), shapes(after), strict=True))
    assert len(drawn) > 30 and sum(len(one[-1]) for one, _ in drawn) > 100
    for (kind, style, clip, numbers), same in drawn:
        style = families.sub(r"\1 sans-serif", style)
        assert same == (kind, style, clip, pytest.approx(numbers, abs=0.051))
    assert drawn_small(figure) == drawn_small(figure)


def test_marks_in_a_row_share_their_look_and_what_is_empty_is_left_out():
    with plt.rc_context(figures.STYLE):
        figure, ax = plt.subplots()
        ax.plot(range(50), [x % 7 for x in range(50)], marker="s")
        ax.vlines(range(40), float("nan"), 1)
        text = small(large(figure))
        plt.close(figure)
    root = ET.fromstring(text)
    groups = [[*group] for group in root.iter() if len(group) == 50]
    assert len(groups) == 1 and all(set(mark.attrib) == {"href", "x", "y"} for mark in groups[0])
    paths = [node for node in root.iter() if node.tag.endswith("path")]
    assert all(node.get("d") for node in paths) and not re.search(r"<g[^>]*(/|></g)>", text)
    (curve,) = (node.get("d") for node in paths if len(node.get("d")) > 300)
    assert set(re.findall("[A-Za-z]", curve)) == {"M"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("M 0 1 L 2 3 L 4 5 z", "M0 1 2 3 4 5z"),
        ("M 0 1 M 2 3 L 4 5", "M0 1M2 3 4 5"),
        ("M 0 1 L 2 3 C 1 2 3 4 5 6 C 1 2 3 4 5 6 L 1 2", "M0 1 2 3C1 2 3 4 5 6 1 2 3 4 5 6L1 2"),
        ("M 0.04 -0.04\nL 1.06 7", "M0 0 1.1 7"),
    ],
)
def test_a_command_of_a_path_goes_on(before, after):
    path = f'<path d="{before}" style="fill: red"/>'
    assert f' d="{after}" ' in small(f'<svg viewBox="0 0 1 1">{path}</svg>')


def test_a_photograph_loses_little_and_a_map_nothing(figure):
    (_, photograph), (_, values) = pictures(large(figure))
    (one, near), (two, same) = pictures(small(large(figure)))
    assert one == two == "webp" and np.array_equal(same, values)
    assert np.abs(near - photograph).mean() < 25


def test_greys_are_a_photograph():
    grey = np.random.default_rng(0).integers(0, 256, (60, 60), dtype=np.uint8)
    with plt.rc_context(figures.STYLE):
        figure, ax = plt.subplots()
        ax.imshow(grey, cmap="gray")
        ((_, before),), ((_, after),) = pictures(large(figure)), pictures(small(large(figure)))
        plt.close(figure)
    assert 0 < np.abs(before - after).mean() < 25


def test_a_drawing_refers_within_itself_and_shares_no_id_with_another(figure):
    first = small(large(figure))
    used = set(re.findall(r'(?:href="|url\()#([\w.-]+)', first))
    assert used and used <= ids(first)
    assert all(name.startswith(ET.fromstring(first).get("id")) for name in ids(first))
    assert "<g>" not in first and first.count("<g ") == first.count("</g>")
    figure.axes[0].set_title("another")
    assert not ids(first) & ids(small(large(figure)))


def test_an_empty_group_is_closed_by_itself():
    inside = '<g/><g clip-path="url(#a)"/>\n<g id="b"></g>\n<path id="a" d="M 0 0"/>'
    found = ET.fromstring(small(f'<svg viewBox="0 0 1 1"><g>{inside}</g></svg>'))
    assert [node.tag for node in found.iter()] == ["svg", "path"]


def test_what_is_transformed_is_no_part_of_a_group():
    """Its clip is transformed as well."""
    path = '<path d="M 0 1L 1 1" clip-path="url(#a)" transform="scale(2)" style="stroke: red"/>'
    found = ET.fromstring(small(f'<svg viewBox="0 0 1 1"><clipPath id="a"/>{path}{path}</svg>'))
    assert not [node for node in found.iter() if node.tag == "g"]


def test_a_figure_is_stored_with_its_numbers_and_an_empty_one_not_at_all(figure):
    assert set(shown(figure)) == {FIGURE, "image/svg+xml"}
    assert shown(plt.figure()) is None
