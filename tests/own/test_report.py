"""What is written of a diagnosis, of one that is made by hand."""

import json
from dataclasses import replace
from math import inf, nan

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from helpers.interventions import RegisterNeuron
from helpers.measures.outliers import Firing
from helpers.measures.stats import NONE, Estimate
from helpers.own import Diagnosis, advice, drawn, page, svg, to_json
from helpers.own.diagnose import Answers, FoundSinks, Neuron, Place, State, Thumbnails
from helpers.own.report import RULES, _number, against, beside, page_of_two

GRID, PICTURE = torch.arange(16.0).reshape(4, 4) / 100, torch.zeros(8, 8, 3)


def of(value, n=10, step=None):
    return Estimate(value, value - 0.1, value + 0.1, n, step)


def fires(ratio):
    return Firing(of(4.0), of(2.0), ratio, of(0.5))


def state(largest, share, **optional):
    return State([of(1.0), of(largest)], of(largest), of(share), of(0.987), **optional)


STATES = {
    "before": state(300.0, 0.8, agreement=of(1.0)),
    "moved": state(40.0, 0.1, agreement=of(0.9), register_norm=of(250.0)),
    "matched units moved": state(290.0, 0.8, agreement=of(1.0)),
}
WITH = Diagnosis(
    model={"name": "a vit", "image_size": (64, 64), "registers": 0, "weights_hash": "abc"},
    images={"name": "scenes", "digest": "def", "seed": 3},
    n=20,
    tested=10,
    outliers=True,
    images_with_outliers=of(0.75, 20),
    rules={"median:3": (0.0125, of(0.75, 20))},
    per_image=of(1.5),
    ratio=of(7.0),
    share_map=GRID,
    norms=[of(1.0), of(2.0), of(280.0)],
    onset=1,
    channels=[(7, 0.91)],
    place=Place(of(0.25), [5, 6, 9, 10], of(1.0), of(1.0), of(2.0)),
    neurons=[Neuron(RegisterNeuron(1, 2, *[1.0] * 5), fires(of(2.0)), (1, 9), fires(of(1e5)))],
    moved=[RegisterNeuron(1, 2, *[1.0] * 5), RegisterNeuron(3, 4, *[1.0] * 5)],
    states=STATES,
    pictures=[{"image": PICTURE, "norm\nbefore": GRID, "norm\nmoved": GRID}] * 2,
)
WITHOUT = replace(
    WITH,
    outliers=False,
    images_with_outliers=Estimate(0.0, 0.0, 0.17, 20),
    onset=None,
    channels=[],
    place=None,
    neurons=[],
    moved=[],
    states={},
    pictures=[{"image": PICTURE, "norm\n": GRID, "attention\n": GRID}] * 2,
)


def moved(**values):
    return replace(WITH, states=STATES | {"moved": replace(STATES["moved"], **values)})


def test_the_numbers():
    found = to_json(WITH)
    assert found["neurons"] == [[1, 2, 2.0]] and found["moved"] == [[1, 2], [3, 4]]
    assert (found["max_norm_before"], found["max_norm_after"]) == (300, 40)
    assert (found["corner_share"], found["onset_block"], found["n"]) == (0.25, 1, 20)
    per_image = {"value": 1.5, "low": 1.4, "high": 1.6, "n": 10}
    assert found["details"]["outliers_per_image"] == per_image
    assert found["details"]["rules"]["median:3"][0] == 0.0125
    assert found["details"]["neurons"][0]["matched"] == [1, 9]
    assert found["details"]["states"]["before"]["accuracy"] is None
    found = to_json(WITHOUT)
    assert (found["max_norm_before"], found["max_norm_after"]) == (280, None)
    assert (found["corner_share"], found["details"]["place"]) == (None, None)


@pytest.mark.parametrize("number", [nan, inf])
def test_what_is_not_defined_is_null(number):
    found = to_json(replace(WITH, ratio=Estimate(3.0, number, -number, 2, 0.5)))
    written = found["details"]["largest_over_median"]
    assert written == {"value": 3.0, "low": None, "high": None, "n": 2}
    json.dumps(found, allow_nan=False)


SINKS = FoundSinks(
    patches=of(0.6, 20),
    registers=None,
    cls=of(0.2, 20),
    one=of(0.5, 20),
    nop=of(0.75),
    broadcast=of(0.25),
    other=of(0.0),
    block=1,
    received={"[CLS]": [of(0.5)], "other patches": [of(0.5)]},
    concentration={"top": [of(0.3)], "peak": [of(9.0)], "entropy": [of(2.0)]},
)


@pytest.mark.parametrize(
    "outliers, share, cell",
    [
        (True, 0.6, "outliers and sinks"),
        (True, 0.05, "outliers alone"),
        (False, 0.6, "sinks alone"),
        (False, 0.05, "neither"),
    ],
)
def test_four_cells(outliers, share, cell):
    found = replace(WITH if outliers else WITHOUT, sinks=replace(SINKS, patches=of(share, 20)))
    written = to_json(found)
    assert (written["cell"], written["sinks"], written["version"]) == (cell, share > 0.05, 2)
    assert written["details"]["sinks"]["nop"]["value"] == 0.75
    told = advice(found)
    assert told[1] == (
        "Sinks take at least half of the attention of nearly all queries of some head: the same "
        f"few patches in {round(20 * share)} of 20 images, [CLS] in 4. Of the sinks of one token "
        "75 % write almost nothing (no-op), 25 % the same to all queries (broadcast), and 0 % "
        "neither."
    )
    assert any("its attention is not" in line for line in told) == (cell == "sinks alone")
    assert any("nothing for registers" in line for line in told) == (cell == "neither")
    none = replace(found.sinks, **dict.fromkeys(("nop", "broadcast", "other"), NONE))
    assert advice(replace(found, sinks=none))[1].endswith(", [CLS] in 4.")


def test_a_model_whose_attention_cannot_be_read_has_no_cell():
    assert to_json(WITH)["cell"] is None and to_json(WITH)["sinks"] is None


def test_advice_by_hand():
    assert advice(WITH, "it's") == [
        "Outliers: 15 of 20 images have a patch above three times the median norm, 1.5 outliers "
        "per image; they appear after block 1 (0 is the first).",
        "25 % of the outliers are in the corners. Position decides: they stay where they are "
        "when the content is rolled, and a grey image has 2 of them.",
        "On the images that were not searched, neuron 2 of block 1 is 2 times as active at "
        "outliers as elsewhere; a matched neuron of that block, which writes nearly as much, "
        "is active at outliers alone.",
        "With 1:2, 3:4 moved to an appended token, the largest norm of an image goes, on "
        "average, from 300 to 40, and the images with outliers from 8 to 1 of 10. With matched "
        "neurons moved instead, it is 290.",
        "For maps and dense features move them: python -m helpers edit 'it'\"'\"'s' --neurons "
        "1:2,3:4 --out edited",
        "The answer stays the same on 9 of 10 images. This rests on 10 images: measure on your "
        "own task before you rely on it.",
    ]
    assert "edit 'a vit' --neurons" in advice(WITH)[4]
    assert advice(WITHOUT) == [
        "No outliers: 0 of 20 images have a patch above three times the median norm. At 95 % "
        "confidence this excludes only that more than 17 % of such images have one.",
        "There is nothing for registers to take over. If attention maps look noisy all the "
        "same, norms are not the cause.",
    ]


@pytest.mark.parametrize("same, kept", [(0.89, True), (0.9, False), (1.0, False)])
def test_what_costs_too_many_answers_is_left(same, kept):
    words = advice(moved(agreement=of(same)))[-1]
    assert ("For classification keep the model as it is." in words) == kept


def test_without_answers_the_feature_is_told():
    assert advice(moved(agreement=None))[-1].startswith("The pooled feature has a cosine of 0.98")


@pytest.mark.parametrize(
    "place, words",
    [
        # By chance it is 0.25 here, and half of what is beyond that 0.625.
        ({"usual": 0.63, "rolled": 0.45}, "Position decides: they stay"),
        ({"usual": 0.63, "rolled": 0.43}, "Content decides: they leave"),
        ({"usual": 0.63, "rolled": nan}, "Content decides: they leave"),
        ({"usual": 0.62, "rolled": 0.62}, "no fixed places: content decides where"),
        ({"grey": 0.05}, "but content whether there are any: a grey image has 0.05"),
        ({"grey": 0.06}, "Position decides: they stay"),
    ],
)
def test_position_or_content(place, words):
    changed = replace(WITH.place, **{name: of(value) for name, value in place.items()})
    assert words in advice(replace(WITH, place=changed))[1]


@pytest.mark.parametrize(
    "ratio, words",
    [
        (of(99_999.0), "100,000 times as active"),
        (of(1e5), "active at outliers alone"),
        (of(nan), "silent at both"),
        (NONE, "silent at both"),
    ],
)
def test_how_a_neuron_fires(ratio, words):
    neuron = replace(WITH.neurons[0], firing=fires(ratio))
    assert f"neuron 2 of block 1 is {words}" in advice(replace(WITH, neurons=[neuron]))[2]


@pytest.mark.parametrize(
    "number, text",
    [
        *((10400.0, "10,400"), (1e6, "1,000,000"), (123456.0, "123,000"), (99.96, "100")),
        *((0.7012, "0.701"), (-2.0, "-2"), (0.0, "0"), (0.000123, "0.000123"), (nan, "nan")),
    ],
)
def test_numbers_have_one_form(number, text):
    assert _number(number) == text


def test_how_many_outliers_an_empty_count_excludes():
    told = advice(replace(WITHOUT, images_with_outliers=Estimate(0.0, 0.0, 0.24, 12), n=12))[0]
    assert told.endswith("this excludes only that more than 24 % of such images have one.")


def test_the_registers_of_a_model_are_told():
    model = WITHOUT.model | {"registers": 4}
    sinks = replace(SINKS, received=SINKS.received | {"registers": [of(0.1), of(0.3)]})
    found = replace(WITHOUT, model=model, register_norm=of(530.0), sinks=sinks)
    words = advice(found)
    assert words[2] == (
        "Registers: the highest of the model's 4 has a norm of 530 after the last block, mean over "
        "images; the highest patch has 280. In block 1 registers get 30 % of all attention."
    )
    assert "There is nothing for registers" not in " ".join(words)
    assert "norm of the highest after the last block" in page(found, {})


def test_labels_are_told_where_the_head_does_not_know_them():
    for right, commonest, told in ((0.0, 0.1, True), (0.2, 0.1, False), (0.75, 1.0, False)):
        found = replace(WITHOUT, answers=Answers(of(right, 20), commonest, (0, 9), 1000))
        line = f"Labels: {round(20 * right)} of 20 answers are right"
        (own,) = [x for x in advice(found) if x.startswith(line)]
        assert own.startswith(f"{line}, no more than the commonest") if told else own == f"{line}."


THUMBNAILS = Thumbnails(
    [1, 0], np.zeros((2, 8, 8, 3), np.uint8), torch.stack([9 * GRID, GRID]), GRID.expand(2, 4, 4)
)
NAMES = [
    {"image": name, "outliers": i, "largest_over_median": 7.0 + i, "shared_attention": None}
    for i, name in enumerate(("<a>", "b"))
]


def shown(diagnosis, answers=(3, 4), received=True, **changes):
    rows = [row | {"answer": answer} for row, answer in zip(NAMES, answers, strict=True)]
    maps = THUMBNAILS if received else replace(THUMBNAILS, received=None)
    return replace(diagnosis, by_image=rows, thumbnails=maps, classes=5, **changes)


@pytest.mark.parametrize("received", [True, False])
def test_each_image_is_shown_with_its_maps(received):
    text = page(shown(WITH, received=received), {})
    assert text.count("<img ") == 2 * (2 + received) and "&lt;a&gt;: 7 x the median, 0 out" in text
    first, second = text.split('<figure style="order: ')[1:]
    assert first.startswith("0; --place: 1") and second.startswith("1; --place: 0")
    assert "b: 8 x the median, 1 outlier<" in first
    assert ("attention received (0 % to 15 %" in text) == received
    assert "patch norms (0.000001 to 1.35, dark to bright, logarithmic)" in text


def test_scope_tells_what_was_searched_alone():
    none = replace(WITH, neurons=[], left_out={"register neurons": "none"})
    for found, told in ((WITH, "neurons and places"), (none, "places")):
        assert f"searched for {told}, which" in page(found, {})
    assert "searched" not in page(WITHOUT, {})


def test_two_models_beside_each_other():
    a, b = shown(WITH), shown(WITHOUT, (3, 2), model=WITH.model | {"name": "b<b>", "registers": 1})
    found = against(a, b)
    assert [one["model"] for one in found["models"]] == ["a vit", "b<b>"]
    assert (found["same_answer"]["value"], found["version"]) == (0.5, 2)
    json.dumps(found, allow_nan=False)
    rows = beside(a, b)
    assert rows["images with an outlier"] == ("75 % [65, 85]", "0 % [0, 17]")
    assert rows["registers"] == ("0", "1") and rows["first block with one"] == ("1", "-")
    assert rows["same answer as the first"] == ("-", "50 %") and "right answer" not in rows
    text = page_of_two(a, b)
    assert "b&lt;b&gt;" in text and "b<b>" not in text and text.count("<img ") == 2 * 5
    assert "<svg" in text and not plt.get_fignums()
    other = replace(b, classes=6)
    assert against(a, other)["same_answer"] is None and page_of_two(a, other)
    assert against(a, replace(shown(b, (None, None))))["same_answer"] is None


def cells(text):
    return [cell.partition("<")[0] for cell in text.split("<td>")[1:]]


def test_the_cells_of_the_page():
    rules = {
        "median:3": (0.0125, of(0.5)),
        "mad:10": (0.0, Estimate(0.25, nan, nan, 1)),
        "none": (0.0, NONE),
    }
    text = page(replace(WITH, rules=rules), {"one": ("<svg></svg>", "what it is")})
    assert cells(text)[:12] == [
        "median:3", RULES["median:3"], "1.25 %", "50 % [40, 60]",
        "mad:10", RULES["mad:10"], "0 %", "25 %", "none", "", "0 %", "-"
    ]  # fmt: skip
    assert "<svg></svg><figcaption>what it is" in text
    assert "at the 4 most frequent positions" in text
    # A column for what any state has.
    heads = [head.partition("<")[0] for head in text.split("<th scope='col'>")[1:]]
    at = heads.index("state")
    assert heads[at : at + 6] == [
        "state", "largest norm", "images with outliers", "norm of the appended token",
        "same answer", "cosine of the feature"
    ]  # fmt: skip
    at = cells(text).index("before")
    assert cells(text)[at : at + 6] == [
        "before", "300 [300, 300]", "80 % [70, 90]", "-", "100 % [90, 110]", "0.987 [0.887, 1.09]"
    ]  # fmt: skip
    at = cells(text).index("7")
    assert cells(text)[at : at + 2] == ["7", "91 %"]
    assert cells(text)[-4:] == ["weights, digest", "abc", "images, digest and seed", "def, 3"]


@pytest.mark.parametrize(
    "diagnosis, figures, states, ends",
    [
        (
            WITH,
            {"norm-maps": 2 * 3, "norms-by-block": 1, "where": 1},
            "before and moved",
            (300, 40, 290),
        ),
        (WITHOUT, {"norm-maps": 4, "attention-maps": 4, "norms-by-block": 1}, "as it is", (280,)),
    ],
    ids=["with", "without"],
)
def test_the_figures(diagnosis, figures, states, ends):
    made = drawn(diagnosis)
    assert {*made} == {*figures}
    for name, axes in figures.items():
        assert len([ax for ax in made[name][0].axes if ax.get_label() != "<colorbar>"]) == axes
    assert f", {states}; one colour scale a row." in made["norm-maps"][1]
    lines = made["norms-by-block"][0].axes[0].lines
    assert {line.get_ydata()[-1] for line in lines if len(line.get_ydata())} == {*ends}
    assert svg(made["norm-maps"][0], "a").startswith("<svg")
    plt.close("all")
