"""What moved is noticed in the stored numbers of every notebook, and what rounding moves is not."""

import copy
import json

import numpy as np
import pytest
from conftest import rows

from helpers.claims import numbers
from helpers.claims.numbers import compare
from helpers.claims.project import Project
from helpers.files import digest_of_json

PATHS = sorted(Project().root.glob(f"notebooks/*/*{numbers.NUMBERS_SUFFIX}"))


def of(values=None, figures=()):
    """Numbers with these values of one model, and one axes for each dict of `figures`."""
    numbers = {"verdict": "supported", "models": {}, "values": {"a": values or {}}}
    return numbers | {"figures": [list(figures)]}


def wrong(stored, fresh):
    """Paths of what differs too much."""
    return [deviation.path for deviation in compare(stored, fresh) if deviation.ratio > 1]


def moved(stored, **changes):
    """What of a value is wrong after these changes, without its place; None takes a part away."""
    fresh = {key: part for key, part in {**stored, **changes}.items() if part is not None}
    return [path.removeprefix("values/a/x/") for path in wrong(of({"x": stored}), of({"x": fresh}))]


def drawn(kind, stored, fresh):
    """What of a part of a figure is wrong."""
    sides = (of(figures=[{"steps": [{kind: part}]}]) for part in (stored, fresh))
    return [path.removeprefix("figures/0/0/steps/0/") for path in wrong(*sides)]


# ---- Every notebook's own numbers


def shaken(node, rng):
    """Every number moved by 1e-6 of itself, as rounding does."""
    if isinstance(node, dict):
        exact = ("n", "finite", "step", "models", "spread")
        return {x: part if x in exact else shaken(part, rng) for x, part in node.items()}
    if isinstance(node, list):
        return [shaken(part, rng) for part in node]
    return node if isinstance(node, str | None) else node * (1 + 1e-6 * rng.normal())


def wrong_values(value):
    """A stored value by 1 % of itself, an end by 5 %, n by one: what rounding never does."""
    width = value.get("high", 0) - value.get("low", 0)
    if abs(value["value"]) > max(1.1e-4 * width, 1.1e-5):
        yield "value", 1.01 * value["value"]
    for end in {"low", "high"} & value.keys():
        if abs(value[end]) > max(2.1e-5 * width, 2.1e-6):
            yield end, 1.05 * value[end]
    if "n" in value:
        yield "n", value["n"] + 1


@pytest.mark.parametrize(
    "path", PATHS, ids=lambda path: path.name.removesuffix(numbers.NUMBERS_SUFFIX)
)
def test_rounding_passes_in_every_file_and_what_is_wrong_does_not(path):
    stored = numbers.read(path)
    assert compare(stored, copy.deepcopy(stored)) == []
    assert numbers.text(stored) == path.read_text()
    fresh = shaken(stored, np.random.default_rng(0))
    assert wrong(stored, fresh) == [] != compare(stored, fresh)
    for value in (value for own in stored["values"].values() for value in own.values()):
        if value["value"] is not None:
            for part, number in wrong_values(value):
                assert moved(value, **{part: number}) == [part], value
            assert "value" in moved(value, value=None)
    for model, own in stored["models"].items():
        fresh = copy.deepcopy(stored)
        fresh["models"][model]["tests"] = dict.fromkeys(own["tests"], "other")
        assert wrong(stored, fresh) == [f"models/{model}/tests/{test}" for test in own["tests"]]
    assert wrong(stored, {**stored, "verdict": "other"}) == ["verdict"]
    assert wrong(stored, {**stored, "figures": stored["figures"][:-1]})


# ---- One rule at a time

SHARE = {"value": 0.75, "low": 0.645, "high": 0.832, "step": 0.0125, "n": 80}


@pytest.mark.parametrize("images", [1, -1, 0.5, 2, 0.8, 0])
def test_a_share_may_move_by_one_image(images):
    by = images * SHARE["step"]
    ends = {"low": SHARE["low"] + 1.5 * by, "high": SHARE["high"] + 0.9 * by}
    assert (moved(SHARE, value=0.75 + by, **ends) == []) is (images in (-1, 0, 1))
    without = {key: part for key, part in SHARE.items() if key != "step"}
    assert (moved(without, value=0.75 + by, step=0.0, **ends) == []) is (images == 0)


def test_a_value_and_its_ends_move_by_steps_only_together():
    """A share of none takes its step from the other side."""
    assert moved(SHARE, low=0.645 + 0.0125) == ["low"]
    assert moved(SHARE, value=0.7625, low=0.645 + 0.03) == ["low"]
    assert moved(SHARE, value=0.7625) == ["value"]
    none = {"value": 0, "low": 0, "high": 0, "n": 80}
    one = {"value": 1.25, "low": 0, "high": 2.5, "n": 80, "step": 1.25}
    assert moved(none, **one) == moved(one, **none, step=None) == []
    assert moved(none, **one | {"value": 2.5})


def test_a_figure_may_show_a_value_that_moved_so_and_nothing_else():
    """Also an end of its interval, which may lie near zero as far as that is wide."""
    fresh = SHARE | {"value": 0.7625, "low": 0.66, "high": 0.841}

    def axes(value):
        return [{"lines": [{"x": [value["value"], 3.0, value["low"]], "y": [0, 1, 2]}]}]

    assert wrong(of({"x": SHARE}, axes(SHARE)), of({"x": fresh}, axes(fresh))) == []
    assert wrong(of(figures=axes(SHARE)), of(figures=axes(fresh)))
    other = axes(fresh | {"value": 0.7626})
    path = "figures/0/0/lines/0/x/0"
    assert wrong(of({"x": SHARE}, axes(SHARE)), of({"x": fresh}, other)) == [path]
    wide = {"value": 5, "low": 0.01, "high": 1000}
    near = wide | {"low": 0.0105}
    assert wrong(of({"x": wide}, axes(wide)), of({"x": near}, axes(near))) == []
    path = "figures/0/0/lines/0/x/2"
    assert wrong(of({"x": wide}, axes(wide)), of({"x": wide}, axes(near))) == [path]


P_VALUES = """
    mcnemar_p   1e-5   1.005e-5  True
    mcnemar_p   1e-5   1.01e-5   False
    p_scenes    0.5    0.51      False
    spread_p_x  1e-14  1e-13     True
    mcnemar_p   1e-9   0         False
    mcnemar_p   None   0.5       False
    map         1e-9   1e-8      True
    map         0.5    0.5025    False
"""


@pytest.mark.parametrize(("name", "stored", "fresh", "passes"), rows(P_VALUES))
def test_p_values_are_compared_by_decades(name, stored, fresh, passes):
    assert (wrong(of({name: {"value": stored}}), of({name: {"value": fresh}})) == []) is passes
    ends = [{"value": stored, "low": 0.1, "high": high} for high in (0.2, 0.3)]
    assert wrong(*(of({name: value}) for value in ends)) == [f"values/a/{name}/high"]


INTERVALS = """
    0     -1    1     9e-7    -1      1       True   rounding about 0, where the interval is wide
    0     -1    1     3e-6    -1      1       False  more
    0.01  -1    1     0.0101  -1      1       False  1 %
    0     0     0     9e-8    0       0       True   less than float32 has
    0     0     0     2e-7    0       0       False  more
    0.5   0     1     0.5     9e-7    1.0009  True   ends
    9.5   0.5   10    9.5     0.509   10      True   an end by 1e-3 of the width
    0.5   0.01  1     0.5     0.0105  1       False  but not by 5 % of itself
    0.5   0.01  1     0.5     0.0103  1       True   3 %
    -2.0  None  None  2.0     None    None    False  the sign
"""


@pytest.mark.parametrize(
    ("stored", "fresh", "passes"),
    [pytest.param(row[:3], row[3:6], row[6], id=row[7]) for row in rows(INTERVALS)],
)
def test_values_and_intervals(stored, fresh, passes):
    old, new = (dict(zip(("value", "low", "high"), x, strict=True)) for x in (stored, fresh))
    assert (moved(old, **new) == []) is passes


def test_a_measured_spread_widens_a_tolerance():
    def side(x, some_p, drawn):
        lines = [{"lines": [{"x": [drawn, 2.0]}]}]
        return of({"x": {"value": x}, "some_p": {"value": some_p}}, lines)

    stored, fresh = side(5.0, 0.1, 1.0), side(5.39, 0.12, 1.1)
    paths = ("values/a/x/value", "values/a/some_p/value", "figures/0/0/lines/0/x/0")
    assert set(wrong(stored, fresh)) == {*paths}
    stored["spread"] = dict(zip(paths, (0.1, 0.02, 0.05), strict=True))
    assert wrong(stored, fresh) == []
    worst = compare(stored, side(5.41, 0.12, 1.1))[0]
    assert (worst.tolerance, worst.ratio) == pytest.approx((0.4, 0.41 / 0.4))
    assert str(worst) == f"{paths[0]}: stored 5.0, fresh 5.41, tolerance 0.4"


# Bars of 0, 2, 3 and 500 items may differ by one item; how many numbers there are is not how large
# they are. Last what is wrong, by its path.
FIGURES = """
    edges    [0, 100]               [9e-4, 100.09]           None
    edges    [0, 100]               [0, 100.2]               edges/1
    heights  [0, 0.02, 0.03, 5.0]   [0, 0.03, 0.03, 4.99]    None
    heights  [0, 0.02, 0.03, 5.0]   [0.01, 0.02, 0.02, 5.0]  None
    heights  [0, 0.02, 0.03, 5.0]   [0, 0.02, 0.035, 5.0]    heights/2
    heights  [0, 0.02, 0.03, 5.0]   [0, 0.02, 0.05, 5.0]     heights/2
    edges    [0, 0.02, 0.03, 5.0]   [0, 0.02, 0.03, 4.9]     edges/3
    heights  [0, 0]                 [0, 0.01]                heights/1
    edges    [1, None]              [1, 2]                   edges/1
    heights  [None, 2]              [1, 2]                   heights/0
    heights  ["none", 2]            [1, 2]                   heights/0
    edges    [1]                    [1, 2]                   edges/1
    edges    {"finite": 200, "sd": 2e-5}  {"finite": 200, "sd": 2.1e-5}  edges/sd
    edges    {"finite": 200, "sd": 2e-5}  {"finite": 199, "sd": 2e-5}    edges/finite
    texts    ["refuted"]            ["supported"]            texts/0
    axis     {"title": "a"}         {"title": "b"}           axis/title
"""


@pytest.mark.parametrize(("kind", "stored", "fresh", "path"), rows(FIGURES))
def test_numbers_of_figures(kind, stored, fresh, path):
    assert drawn(kind, stored, fresh) == ([path] if path else [])


def test_the_worst_comes_first_and_nothing_stored_is_all_wrong():
    stored, fresh = (of({"x": {"value": 1.0}, "y": {"value": y}}) for y in (1.0, 1.1))
    fresh["values"]["a"]["x"]["value"] = 1.0005
    assert [d.path for d in compare(stored, fresh)] == ["values/a/y/value", "values/a/x/value"]
    found = ["verdict", "models", "values/a/x/value", "values/a/y/value", "figures/0"]
    assert wrong({}, fresh) == found


# ---- Files and notebooks


def test_renewed_numbers_keep_the_parts_that_did_not_move_and_the_measured_spreads(tmp_path):
    path = numbers.beside(tmp_path / "aa1-first.ipynb")
    first = of({"x": {"value": 1}}, [{"x": [1]}]) | {"spread": {"values/a/x/value": 0.1}}
    path.write_text(numbers.text(first))
    rounded, moved = of({"x": {"value": 1.0001}}, [{"x": [1.0001]}]), of({"x": {"value": 2}})
    assert json.loads(numbers.renewed(path, rounded)) == first
    assert json.loads(numbers.renewed(path, moved)) == first | moved
    path.write_text(numbers.text(first | {numbers.SAME_CODE: ["of earlier defaults"]}))
    for value, is_same in ((1, True), (2, False)):  # another figure is no other code
        renewed = json.loads(numbers.renewed(path, of({"x": {"value": value}}, [{"x": [2]}])))
        assert (numbers.SAME_CODE in renewed) == is_same
    # Another figure shows the values that are stored.
    path.write_text(numbers.text(first))
    fresh = of({"x": {"value": 1.0002}}, [{"x": [1.0002, 7]}])
    assert json.loads(numbers.renewed(path, fresh)) == first | {"figures": [[{"x": [1, 7]}]]}
    path.unlink()
    assert json.loads(numbers.renewed(path, of())) == of()


def test_the_digest_of_data_is_that_of_canonical_json():
    """Against coreutils: `printf '{"a":["é",1.5],"b":null}' | sha256sum`."""
    digest = "6f7fa1bab9a908edab17d26a52fff29e1000ce076b321e2af54e6eee5f31d3f7"
    assert digest_of_json({"b": None, "a": ["é", 1.5]}) == digest
