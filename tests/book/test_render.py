"""Values in words and on bars, and templates that let nothing in data become markup."""

import re
import xml.etree.ElementTree as ET

import pytest

from helpers.book.render import (
    WIDTH,
    each_training,
    interval_over,
    macro,
    raw,
    sample_size,
    threshold,
    with_interval,
)
from helpers.claims.criteria import Test, Value
from helpers.claims.registry import Term

SHARE, PLAIN = Term("share", "share of images"), Term("x")
TRAININGS = Term("x", "share of images", of="trainings")


@pytest.mark.parametrize(
    ("value", "low", "high", "n", "term", "text"),
    [
        (0.5, 0.3, 0.7, 6, SHARE, "3 of 6 images (30 to 70 %)"),
        (1.0, 1.0, 1.0, 6, SHARE, "6 of 6 images"),
        (0.55, 0.3, 0.7, 6, SHARE, "55 % [30, 70]"),
        (1.0, 0.3, 1.0, 3, TRAININGS, "100 % [30, 100]"),
        (1 / 3, None, None, None, Term("x", "share of 6 claims"), "2 of 6 claims"),
        (0.25, None, None, None, Term("x", "share of 6 claims"), "25 %"),
        (1.0, 1.0, 1.0, 6, PLAIN, "1"),
        (1.25, -1.0, 3.5, 6, Term("x", "points"), "+1.25 points [-1, +3.5]"),
        (5717416.0, None, None, None, Term("x", "count"), "5,717,416"),
        (1e-7, None, None, None, Term("x", "p-value"), "p < 0.001"),
        (0.0314, None, None, None, Term("x", "p-value"), "p = 0.031"),
        (-1e-12, None, None, None, PLAIN, "0"),
        (2.0, 1.5, 2.5, 6, Term("x", "nats"), "2 nats [1.5, 2.5]"),
        (None, None, None, None, PLAIN, "not defined"),
    ],
)
def test_values_in_words(value, low, high, n, term, text):
    assert with_interval(Value("x", "m", None, value, low, high, n), term) == text


def test_margins_and_numbers_in_words():
    assert with_interval(None, PLAIN) == "not measured"
    assert threshold(Test("x", ">=", 0.05), SHARE.unit) == "at least 5 %"
    assert threshold(Test("x", "<", -0.5), "points") == "below -0.5 points"
    assert sample_size(Value("x", "m", value=1.0, n=100), SHARE) == "n = 100 images"
    assert sample_size(Value("x", "m", value=1.0), SHARE) == ""


def mean(singles, how="images", **ends):
    value, ends = sum(singles) / len(singles), {"low": 0.0, "high": 40.0} | ends
    each = [(x, x - 0.5, x + 0.5) for x in singles]
    n = len(singles)
    return Value("x", "m", value=value, n=n, over=how, trainings=each, **ends)


def test_what_an_interval_is_over_is_said():
    classes, of_images = Term("x", of="classes"), Value("x", "m", None, 1.0, 0.5, 2.0, 9)
    spread, alike = mean([1.0, 2.0, 4.0], "trainings"), mean([1.0] * 3)
    assert (interval_over(of_images, PLAIN), interval_over(of_images, classes)) == (
        "images",
        "classes",
    )
    assert (
        interval_over(spread, PLAIN),
        interval_over(alike, PLAIN),
        interval_over(alike, classes),
    ) == (("trainings", "images", "classes"))
    none = mean([1.0] * 3, low=None, high=None)
    assert interval_over(none, PLAIN) == "" and sample_size(none, PLAIN) == "n = 3 trainings"
    assert sample_size(spread, PLAIN) == "n = 3 trainings"
    assert sample_size(alike, classes) == "n = 3 trainings, interval over classes of these"
    assert with_interval(alike, SHARE) == "100 % [0, 4,000]"  # of trainings, so not 3 of 3 images


def test_what_each_training_gave():
    assert each_training(mean([0.5] * 3), SHARE) == "50 %, 50 %, 50 %"
    two = each_training(mean([26.0, 1.0, 27.0, 1.5, 25.0]), PLAIN)
    assert two == "26, 1, 27, 1.5, 25; 3 of 5 trainings [15, 95 %] in the higher of two clusters"


def bar(value, test, reported=(), span=(0, 4), label="AUC"):
    return macro("interval_bar", value, test, reported, span, label, "holds")


def drawn(*args):
    """class -> attributes of what an interval bar draws of that class."""
    parts = {}
    for element in ET.fromstring(bar(*args)).iter():
        parts.setdefault(element.get("class"), []).append(element.attrib)
    return parts


def test_places_on_a_bar_follow_the_numbers():
    value = Value("auc", "m", value=0.5, low=0.25, high=0.75, n=9)
    parts = drawn(value, Test("auc", ">", 0.75), [1.0], (0, 1))
    (middle,), (interval,) = parts["measured"], parts["interval"]
    start, end = float(interval["x1"]), float(interval["x2"])
    assert float(middle["cx"]) == pytest.approx(WIDTH / 2) and start + end == pytest.approx(WIDTH)
    assert float(parts["margin"][0]["x1"]) == pytest.approx(end)
    (passes,) = parts["passes"]
    assert float(passes["x"]) == pytest.approx(end)
    assert float(passes["x"]) + float(passes["width"]) == pytest.approx(WIDTH)
    assert float(re.match(r"M([\d.]+) ", parts["reported"][0]["d"])[1]) > end


def test_smaller_values_pass_on_the_left_and_nothing_is_drawn_of_no_value():
    (passes,) = drawn(Value("drop", "m", value=2.0), Test("drop", "<", 1.0))["passes"]
    assert float(passes["x"]) == 0 and 0 < float(passes["width"]) < WIDTH / 2
    assert "measured" not in drawn(None, Test("auc", ">", 0.5))


def test_what_comes_from_data_is_no_markup():
    hostile = "'<b>\n```\n{include}`x`"
    badge = macro("badge", hostile, hostile)
    drawing = bar(Value("a", "m", value=1.0), Test("a", ">", 0.5), label=hostile)
    for text in (drawing, badge):
        assert "<b>" not in text and "\n```" not in raw(text).removesuffix("\n```")
    assert raw(badge).count("\n") == 2
