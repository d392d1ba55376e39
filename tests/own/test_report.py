"""What is written of a diagnosis, of one that is made by hand."""

import json
from dataclasses import replace
from math import inf, nan

import matplotlib.pyplot as plt
import pytest
import torch

from helpers.interventions import RegisterNeuron
from helpers.measures.outliers import Firing
from helpers.measures.stats import Estimate
from helpers.own import Diagnosis, advice, page, pictures, to_json
from helpers.own.diagnosis import FoundSinks, Neuron, Place, State
from helpers.own.report import RULES, _number, draw

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
    outliers_per_image=of(1.5),
    largest_over_median=of(7.0),
    share_map=GRID,
    norms=[of(1.0), of(2.0), of(280.0)],
    onset=1,
    channels=[(7, 0.91)],
    place=Place(of(0.25), [5, 6, 9, 10], of(1.0), of(1.0), of(2.0)),
    neurons=[Neuron(RegisterNeuron(1, 2, *[1.0] * 5), fires(of(2.0)), (1, 9), fires(of(1e5)))],
    moved=[RegisterNeuron(1, 2, *[1.0] * 5), RegisterNeuron(3, 4, *[1.0] * 5)],
    states=STATES,
    pictures=[{"image": PICTURE, "norm": {"before": GRID, "moved": GRID}}] * 2,
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
    pictures=[{"image": PICTURE, "norm": {"": GRID}, "attention": {"": GRID}}] * 2,
)
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
)


def test_the_numbers():
    found = to_json(WITH)
    assert found["neurons"] == [[1, 2, 2.0]] and found["moved"] == [[1, 2], [3, 4]]
    assert (found["max_norm_before"], found["max_norm_after"]) == (300, 40)
    assert (found["corner_share"], found["onset_block"], found["n"]) == (0.25, 1, 20)
    per_image = {"value": 1.5, "low": 1.4, "high": 1.6, "n": 10}
    assert found["details"]["outliers_per_image"] == per_image
    assert found["details"]["rules"]["median:3"][0] == 0.0125
    assert found["details"]["neurons"][0]["matched"] == [1, 9]
    assert found["details"]["states"]["before"]["sinks"] is None
    found = to_json(WITHOUT)
    assert (found["max_norm_before"], found["max_norm_after"]) == (280, None)
    assert (found["corner_share"], found["details"]["place"]) == (None, None)
    assert found["cell"] is None and found["sinks"] is None  # the attention was not read


@pytest.mark.parametrize("number", [nan, inf])
def test_what_is_not_defined_is_null(number):
    found = to_json(replace(WITH, largest_over_median=Estimate(3.0, number, -number, 2, 0.5)))
    written = found["details"]["largest_over_median"]
    assert written == {"value": 3.0, "low": None, "high": None, "n": 2}
    json.dumps(found, allow_nan=False)


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
    sentence = advice(found)[1]
    assert f"the same few patches in {round(20 * share)} of 20 images, [CLS] in 4." in sentence
    assert "75 % write almost nothing" in sentence


def test_the_command_names_model_and_neurons():
    (line,) = [line for line in advice(WITH, "it's") if "helpers edit" in line]
    assert line.endswith("helpers edit 'it'\"'\"'s' --neurons 1:2,3:4 --out edited")
    assert not any("helpers edit" in line for line in advice(WITHOUT))


@pytest.mark.parametrize("high, kept", [(0.89, True), (0.9, False), (1.0, False), (nan, False)])
def test_what_costs_too_many_answers_is_left(high, kept):
    """Where the whole interval says so, which a few images do not have."""
    states = STATES | {"moved": replace(STATES["moved"], agreement=of(0.7)._replace(high=high))}
    words = advice(replace(WITH, states=states))[-1]
    assert ("keep the model as it is" in words) == kept


@pytest.mark.parametrize(
    "place, words",
    [
        # By chance it is 0.25 here, and half of what is beyond that 0.625.
        ({"usual": 0.63, "rolled": 0.45}, "Position decides: they stay"),
        ({"usual": 0.63, "rolled": 0.43}, "Content decides: they leave"),
        ({"usual": 0.63, "rolled": nan}, "Content decides: they leave"),
        ({"usual": 0.62, "rolled": 0.62}, "no fixed places"),
        ({"grey": 0.05}, "but content whether there are any"),
        ({"grey": 0.06}, "Position decides: they stay"),
    ],
)
def test_position_or_content(place, words):
    changed = replace(WITH.place, **{name: of(value) for name, value in place.items()})
    assert words in advice(replace(WITH, place=changed))[1]


@pytest.mark.parametrize(
    "number, text",
    [
        *((10400.0, "10,400"), (1e6, "1,000,000"), (123456.0, "123,000"), (99.96, "100")),
        *((0.7012, "0.701"), (-2.0, "-2"), (0.0, "0"), (0.000123, "0.000123"), (nan, "nan")),
    ],
)
def test_numbers_have_one_form(number, text):
    assert _number(number) == text


def cells(text):
    return [cell.partition("<")[0] for cell in text.split("<td>")[1:]]


def test_the_cells_of_the_page():
    text = page(WITH, {"one": ("<svg></svg>", "what it is")})
    assert cells(text)[:4] == ["median:3", RULES["median:3"], "1.25 %", "75 % [65, 85]"]
    assert "<svg></svg><figcaption>what it is" in text
    # A column for what any state has.
    heads = [head.partition("<")[0] for head in text.split("<th scope='col'>")[1:]]
    at = heads.index("state")
    assert heads[at + 3 : at + 5] == ["norm of the appended token", "same answer"]
    at = cells(text).index("before")
    assert cells(text)[at : at + 6] == [
        "before", "300 [300, 300]", "80 % [70, 90]", "-", "100 % [90, 110]", "0.987 [0.887, 1.09]"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "diagnosis, axes, ends",
    [
        (WITH, {"norm-maps": 2 * 3, "norms-by-block": 1, "where": 1}, (300, 40, 290)),
        (WITHOUT, {"norm-maps": 4, "attention-maps": 4, "norms-by-block": 1}, (280,)),
    ],
    ids=["with", "without"],
)
def test_the_figures(diagnosis, axes, ends):
    made = draw(diagnosis)
    assert {*made} == {*axes}
    for name, count in axes.items():
        assert len([ax for ax in made[name][0].axes if ax.get_label() != "<colorbar>"]) == count
    lines = made["norms-by-block"][0].axes[0].lines
    assert {line.get_ydata()[-1] for line in lines if len(line.get_ydata())} == {*ends}
    plt.close("all")
    assert all(svg.startswith("<svg") for svg, _ in pictures(diagnosis).values())
