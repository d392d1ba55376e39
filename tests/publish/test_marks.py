"""The marks that every page shares: what is drawn lies where its number does, and every mark says in words what it shows."""

import re
import xml.etree.ElementTree as ET

import pytest

from helpers.publish.criteria import Test, Value
from helpers.publish.site.marks import WIDTH, badge, interval_bar


def drawn(svg):
    """class -> attributes of the elements of that class."""
    parts = {}
    for element in ET.fromstring(svg).iter():
        if "class" in element.attrib:
            parts.setdefault(element.get("class"), []).append(element.attrib)
    return parts


def test_places_follow_the_numbers():
    parts = drawn(interval_bar(Value("auc", "m", value=0.5, low=0.25, high=0.75, n=9), Test("auc", ">", 0.75), [1.0], (0, 1)))
    center, (start, end) = float(parts["measured"][0]["cx"]), (float(parts["interval"][0][x]) for x in ("x1", "x2"))
    assert center == pytest.approx(WIDTH / 2) and start + end == pytest.approx(2 * center)
    assert float(parts["margin"][0]["x1"]) == pytest.approx(end)
    passes = parts["passes"][0]
    assert float(passes["x"]) == pytest.approx(end) and float(passes["x"]) + float(passes["width"]) == pytest.approx(WIDTH)
    assert float(re.match(r"M([\d.]+) ", parts["reported"][0]["d"])[1]) > end


def test_the_passing_side_of_a_smaller_value_is_on_the_left():
    passes = drawn(interval_bar(Value("drop", "m", value=2.0), Test("drop", "<", 1.0)))["passes"][0]
    assert float(passes["x"]) == 0 and 0 < float(passes["width"]) < WIDTH / 2


def test_an_unbounded_interval_ends_with_the_axis():
    interval = drawn(interval_bar(Value("auc", "m", value=0.5, n=1), None, (), (0, 1)))["interval"][0]
    assert (float(interval["x1"]), float(interval["x2"])) == (6, WIDTH - 6)


def test_a_value_that_is_missing_is_not_drawn_and_said():
    svg = interval_bar(None, Test("auc", ">", 0.5), label="AUC")
    assert "measured" not in drawn(svg) and "AUC: not measured; &gt; 0.5 undecided" in svg


def test_what_comes_from_data_is_shown_and_not_run():
    assert "<b>" not in interval_bar(Value("a", "m", value=1.0), label="<b>") and "<i>" not in badge("refuted", "'<i>")
