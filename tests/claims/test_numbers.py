"""What moved is noticed in the stored numbers of every notebook, and what rounding moves is not."""

import copy
import json
import math

import numpy as np
import pytest

from helpers.claims import load_registry, numbers
from helpers.claims.criteria import Value
from helpers.claims.numbers import compare
from helpers.claims.project import Project
from helpers.claims.result import MIME
from helpers.summary import FIGURE, figure_text, summary

PATHS = sorted(Project().root.glob(f"notebooks/*/*{numbers.SUFFIX}"))
every_file = pytest.mark.parametrize(
    "path", PATHS, ids=lambda path: path.name.removesuffix(numbers.SUFFIX)
)


def of(values=None, figures=()):
    """Numbers with these values of one model, and one axes for each dict of `figures`."""
    return {
        "verdict": "supported",
        "models": {},
        "values": {"a": values or {}},
        "figures": [list(figures)],
    }


def wrong(stored, fresh):
    """Paths of what differs too much."""
    return [deviation.path for deviation in compare(stored, fresh) if deviation.ratio > 1]


def values_of(path):
    return [
        (name, value)
        for of_model in json.loads(path.read_text())["values"].values()
        for name, value in of_model.items()
        if value["value"] is not None
    ]


def arrays(node, name="figures"):
    """Name and numbers of every array of a figure: a list of numbers, or the dict of a condensed
    one."""
    if isinstance(node, dict) and "finite" in node:
        yield name, {key: number for key, number in node.items() if key not in ("shape", "finite")}
    elif isinstance(node, list) and node and not isinstance(node[0], dict | list | str):
        yield name, dict(enumerate(node))
    elif isinstance(node, dict | list):
        for key, part in node.items() if isinstance(node, dict) else enumerate(node):
            yield from arrays(part, key)


# ---- Every notebook's own numbers
# ---------------------------------------------------------------------------------------


def test_there_are_numbers():
    assert len(PATHS) >= 31


@every_file
def test_the_same_numbers_pass_and_the_file_is_written_as_it_is_read(path):
    stored = numbers.read(path)
    assert compare(stored, copy.deepcopy(stored)) == []
    assert numbers.text(stored) == path.read_text() and path.stat().st_size < 60_000


@every_file
def test_rounding_passes(path):
    """Every number of the file moved by 1e-6 of itself, or of its array."""
    stored = numbers.read(path)
    rng = np.random.default_rng(0)

    def shaken(node):
        if isinstance(node, dict):
            kept = ("n", "finite", "step")
            return {key: part if key in kept else shaken(part) for key, part in node.items()}
        if isinstance(node, list):
            return [shaken(part) for part in node]
        return node if isinstance(node, str | None) else node * (1 + 1e-6 * rng.normal())

    fresh = {key: part if key == "models" else shaken(part) for key, part in stored.items()}
    assert wrong(stored, fresh) == [] != compare(stored, fresh)


@every_file
def test_one_value_moved_by_1_percent_is_noticed(path):
    for name, value in values_of(path):
        width = value.get("high", 0) - value.get("low", 0)
        moved = {**value, "value": 1.01 * value["value"]}
        if abs(value["value"]) > max(
            1.1e-4 * width, 1.1e-5
        ):  # less is rounding, of the interval's width or of float32
            assert wrong(of({name: value}), of({name: moved})) == [f"values/a/{name}/value"], (
                name,
                value,
            )


@every_file
def test_one_end_of_an_interval_moved_by_5_percent_is_noticed(path):
    for name, value in values_of(path):
        for end in {"low", "high"} & value.keys():
            width = value.get("high", 0) - value.get("low", 0)
            moved = {**value, end: 1.05 * value[end]}
            if abs(value[end]) > max(2.1e-5 * width, 2.1e-6):
                assert wrong(of({name: value}), of({name: moved})) == [f"values/a/{name}/{end}"], (
                    name,
                    value,
                )


@every_file
def test_counts_and_missing_values_are_noticed(path):
    for name, value in values_of(path):
        stored = of({name: value})
        if "n" in value:
            assert wrong(stored, of({name: {**value, "n": value["n"] + 1}})) == [
                f"values/a/{name}/n"
            ]
        assert wrong(stored, of()) == wrong(of(), stored) == [f"values/a/{name}"]
        assert f"values/a/{name}/value" in wrong(stored, of({name: {**value, "value": None}}))
        for end in {"low", "high"} & value.keys():
            assert f"values/a/{name}/{end}" in wrong(
                stored, of({name: {k: v for k, v in value.items() if k != end}})
            )


@every_file
def test_a_verdict_and_the_outcome_of_a_test_are_noticed(path):
    stored = numbers.read(path)
    assert wrong(stored, {**stored, "verdict": "other"}) == ["verdict"]
    for model, told in stored["models"].items():
        fresh = {**stored, "models": {**stored["models"], model: {**told, "verdict": "other"}}}
        assert wrong(stored, fresh) == [f"models/{model}/verdict"]
        for test in told["tests"]:
            fresh["models"][model] = {**told, "tests": {**told["tests"], test: "other"}}
            assert wrong(stored, fresh) == [f"models/{model}/tests/{test}"]


@every_file
def test_one_number_of_a_figure_is_noticed(path):
    """Every tenth number, moved by 1 % of the largest in its array."""
    checked = 0
    for name, array in arrays(json.loads(path.read_text())["figures"]):
        largest = max((abs(x) for x in array.values() if x is not None), default=0)
        for key in list(array)[checked % 10 :: 10] if largest > 1.1e-5 else ():
            if array[key] is not None:
                moved = {**array, key: array[key] + 0.0101 * largest}
                stored, fresh = (
                    [{name: [*x.values()] if 0 in x else {"finite": 1, **x}}]
                    for x in (array, moved)
                )
                assert wrong(of(figures=stored), of(figures=fresh)) == [f"figures/0/0/{name}/{key}"]
                checked += 1
    assert checked


@every_file
def test_a_figure_or_an_axes_less_is_noticed(path):
    stored = numbers.read(path)
    last = len(stored["figures"]) - 1
    assert wrong(stored, {**stored, "figures": stored["figures"][:-1]}) == [f"figures/{last}"]
    without = {**stored, "figures": [*stored["figures"][:-1], stored["figures"][-1][:-1]]}
    assert any(path.startswith(f"figures/{last}") for path in wrong(stored, without))


# ---- One rule at a time
# -------------------------------------------------------------------------------------------------

SHARE = {"value": 0.75, "low": 0.645, "high": 0.832, "step": 0.0125, "n": 80}


@pytest.mark.parametrize(
    ("images", "passes"), [(1, True), (-1, True), (0.5, False), (2, False), (0.8, False), (0, True)]
)
def test_a_share_may_move_by_one_image(images, passes):
    by = images * SHARE["step"]
    fresh = SHARE | {
        "value": SHARE["value"] + by,
        "low": SHARE["low"] + 1.5 * by,
        "high": SHARE["high"] + 0.9 * by,
    }
    assert (wrong(of({"x": SHARE}), of({"x": fresh})) == []) is passes
    without = {k: v for k, v in SHARE.items() if k != "step"}
    assert (wrong(of({"x": without}), of({"x": {**fresh, "step": 0.0}})) == []) is (images == 0)


def test_ends_move_by_steps_only_with_the_value():
    assert wrong(of({"x": SHARE}), of({"x": SHARE | {"low": 0.645 + 0.0125}})) == ["values/a/x/low"]
    fresh = SHARE | {"value": 0.7625, "low": 0.645 + 0.03}
    assert wrong(of({"x": SHARE}), of({"x": fresh})) == ["values/a/x/low"]
    assert wrong(of({"x": SHARE}), of({"x": SHARE | {"value": 0.7625}})) == ["values/a/x/value"]


def test_a_share_of_none_takes_its_step_from_the_other_side():
    none, one = (
        {"value": 0, "low": 0, "high": 0, "n": 80},
        {"value": 1.25, "low": 0, "high": 2.5, "n": 80, "step": 1.25},
    )
    assert wrong(of({"x": none}), of({"x": one})) == wrong(of({"x": one}), of({"x": none})) == []
    assert wrong(of({"x": none}), of({"x": one | {"value": 2.5}}))


def test_a_figure_may_show_a_value_that_moved_so_and_nothing_else():
    fresh = SHARE | {"value": 0.7625, "low": 0.66, "high": 0.841}
    shown = [
        {
            "lines": [{"x": [SHARE["value"], 3.0], "y": [0, 1]}],
            "segments": [{"x": [SHARE["low"], SHARE["high"]]}],
        }
    ]
    now = [
        {
            "lines": [{"x": [fresh["value"], 3.0], "y": [0, 1]}],
            "segments": [{"x": [fresh["low"], fresh["high"]]}],
        }
    ]
    assert wrong(of({"x": SHARE}, shown), of({"x": fresh}, now)) == []
    assert wrong(of(figures=shown), of(figures=now))
    now[0]["lines"][0]["x"][0] = 0.7626
    assert wrong(of({"x": SHARE}, shown), of({"x": fresh}, now)) == ["figures/0/0/lines/0/x/0"]


@pytest.mark.parametrize(
    ("name", "stored", "fresh", "passes"),
    [
        ("mcnemar_p", 1e-5, 1.005e-5, True),
        ("mcnemar_p", 1e-5, 1.01e-5, False),
        ("p_scenes", 0.5, 0.51, False),
        ("spread_p_x", 1e-14, 1e-13, True),
        ("mcnemar_p", 1e-9, 0, False),
        ("mcnemar_p", None, 0.5, False),
        ("map", 1e-9, 1e-8, True),
        ("map", 0.5, 0.5025, False),
    ],
)
def test_p_values_are_compared_by_decades(name, stored, fresh, passes):
    assert (wrong(of({name: {"value": stored}}), of({name: {"value": fresh}})) == []) is passes
    ends = [{"value": stored, "low": 0.1, "high": high} for high in (0.2, 0.3)]
    assert wrong(*(of({name: value}) for value in ends)) == [f"values/a/{name}/high"]


@pytest.mark.parametrize(
    ("stored", "fresh", "passes"),
    [
        ((0, -1, 1), (9e-7, -1, 1), True),  # rounding about 0, where the interval is wide
        ((0, -1, 1), (3e-6, -1, 1), False),
        ((0.01, -1, 1), (0.0101, -1, 1), False),
        ((0, 0, 0), (9e-8, 0, 0), True),
        ((0, 0, 0), (2e-7, 0, 0), False),
        ((0.5, 0, 1), (0.5, 9e-7, 1.0009), True),
        ((9.5, 0.5, 10), (9.5, 0.509, 10), True),  # an end: 1e-3 of the width
        ((0.5, 0.01, 1), (0.5, 0.0105, 1), False),  # but not 5 % of itself
        ((0.5, 0.01, 1), (0.5, 0.0103, 1), True),
        ((-2.0, None, None), (2.0, None, None), False),
    ],
)
def test_values_and_intervals(stored, fresh, passes):
    one, other = (
        {k: x for k, x in zip(("value", "low", "high"), v, strict=True) if x is not None}
        for v in (stored, fresh)
    )
    assert (wrong(of({"x": one}), of({"x": other})) == []) is passes


def test_a_measured_spread_widens_a_tolerance():
    stored, fresh = (
        of({"x": {"value": 5.0}, "some_p": {"value": 0.1}}),
        of({"x": {"value": 5.39}, "some_p": {"value": 0.12}}),
    )
    assert sorted(wrong(stored, fresh)) == ["values/a/some_p/value", "values/a/x/value"]
    stored["spread"] = {"values/a/x/value": 0.1, "values/a/some_p/value": 0.02}
    assert wrong(stored, fresh) == []
    fresh["values"]["a"]["x"]["value"] = 5.41
    (worst, _) = compare(stored, fresh)
    assert worst.path == "values/a/x/value" and worst.tolerance == pytest.approx(0.4)
    assert worst.ratio == pytest.approx(
        0.41 / 0.4
    ) and "stored 5.0, fresh 5.41, tolerance 0.4" in str(worst)
    drawn = [{"lines": [{"x": [1.0, 2.0]}]}], [{"lines": [{"x": [1.1, 2.0]}]}]
    stored, fresh = (of(figures=figures) for figures in drawn)
    assert wrong(stored, fresh) == ["figures/0/0/lines/0/x/0"]
    assert wrong({**stored, "spread": {"figures/0/0/lines/0/x/0": 0.05}}, fresh) == []


def test_numbers_of_figures():
    def moved(kind, stored, fresh):
        return wrong(
            of(figures=[{"steps": [{kind: stored}]}]), of(figures=[{"steps": [{kind: fresh}]}])
        )

    assert (
        moved("edges", [0.0, 100.0], [9e-4, 100.09]) == []
        and moved("edges", [0.0, 100.0], [2e-3, 100.2]) != []
    )
    bars = [0.0, 0.02, 0.03, 5.0]  # of 0, 2, 3 and 500 items
    assert (
        moved("heights", bars, [0.0, 0.03, 0.03, 4.99])
        == []
        == moved("heights", bars, [0.01, 0.02, 0.02, 5.0])
    )
    assert moved("heights", bars, [0.0, 0.02, 0.035, 5.0]) and moved(
        "heights", bars, [0.0, 0.02, 0.05, 5.0]
    )
    assert moved("edges", bars, [0.0, 0.03, 0.03, 4.99]) and moved(
        "heights", [0.0, 0.0], [0.0, 0.01]
    )
    assert moved("edges", [1.0, None], [1.0, 2.0]) == ["figures/0/0/steps/0/edges/1"]
    for missing in (None, "none"):  # of a histogram without items, and of a file that was edited
        assert moved("heights", [missing, 2.0], [1.0, 2.0]) == ["figures/0/0/steps/0/heights/0"]
    assert moved("edges", [1.0], [1.0, 2.0]) == ["figures/0/0/steps/0/edges"]
    small = {
        "shape": "200",
        "finite": 200,
        "mean": 1e-4,
        "sd": 2e-5,
    }  # how many there are is not how large they are
    assert moved("edges", small, {**small, "sd": 2.1e-5}) == ["figures/0/0/steps/0/edges/sd"]
    assert moved("edges", small, {**small, "finite": 199}) == ["figures/0/0/steps/0/edges/finite"]
    assert wrong(of(figures=[{"texts": ["refuted"]}]), of(figures=[{"texts": ["supported"]}])) == [
        "figures/0/0/texts/0"
    ]
    assert wrong(
        of(figures=[{"axis": {"title": "a"}}]), of(figures=[{"axis": {"title": "b"}}])
    ) == ["figures/0/0/axis/title"]


def test_the_worst_comes_first_and_nothing_stored_is_all_wrong():
    stored, fresh = (
        of({"x": {"value": 1.0}, "y": {"value": 1.0}}),
        of({"x": {"value": 1.0005}, "y": {"value": 1.1}}),
    )
    assert [d.path for d in compare(stored, fresh)] == ["values/a/y/value", "values/a/x/value"]
    assert wrong({}, fresh) == ["verdict", "models", "values", "figures"]


# ---- Arrays, files and notebooks
# ----------------------------------------------------------------------------------------


def test_condensed_arrays():
    assert summary([1.0, math.nan, math.inf, 1e-12, 2 / 3]) == [1, None, None, 0, 0.666667]
    assert summary(np.eye(2)) == {"shape": "2x2", "numbers": [1, 0, 0, 1]}
    assert summary([]) == [] and summary(np.ma.masked_equal([1, 2], 2)) == [1, None]
    x = np.random.default_rng(0).normal(size=(20, 10))
    x[3, 3] = np.nan
    found = summary(x)
    assert found["shape"] == "20x10" and found["finite"] == 199
    expected = {"mean": np.nanmean(x), "sd": np.nanstd(x), "min": np.nanmin(x), "max": np.nanmax(x)}
    expected |= {f"q{q}": np.nanquantile(x, q / 100) for q in range(10, 100, 10)}
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    backwards = summary(x[::-1, ::-1])
    assert {key for key in found if found[key] != backwards[key]} == {"order"}
    assert summary(np.full(200, np.nan)) == {"shape": "200", "finite": 0}
    assert summary(np.full((4, 4, 3), 7, dtype=np.uint8), whole=False) == {
        "shape": "4x4x3",
        "finite": 48,
        "mean": 7,
        "sd": 0,
    }


def test_a_line_for_each_value_and_array():
    stored = of({"x": SHARE}, [{"axis": {"title": "ä"}, "lines": [{"x": [1, 2], "y": []}]}])
    text = numbers.text(stored)
    assert json.loads(text) == stored and text.endswith("}\n") and "ä" in text
    assert (
        '   "x": {"value": 0.75, "low": 0.645, "high": 0.832, "step": 0.0125, "n": 80}'
        in text.splitlines()
    )
    assert '      "x": [1, 2],' in text.splitlines()
    with pytest.raises(ValueError, match="JSON compliant"):
        numbers.text(of({"x": {"value": math.nan}}))


def test_numbers_of_a_notebook():
    claim = load_registry()["nr3-redundancy"]
    values = [
        Value("auc", "m", "scenes", 0.71234567, 0.65, None, 80, "points", 0.0125),
        Value("outlier_images", "m", value=1.0),
        Value("enrichment", "m", n=3),
        Value("other", "unjudged", value=2.0),
    ]
    axes = [{"axis": {"title": "t"}}]
    outputs = [
        {"output_type": "stream", "text": "x"},
        {"data": {FIGURE: figure_text(axes), "image/png": "x"}},
    ]
    result = {"data": {MIME: claim.judge(values).to_json()}}
    notebook = {"cells": [{"cell_type": "markdown"}, {"outputs": outputs}, {"outputs": [result]}]}
    found = numbers.of_notebook(notebook, claim)
    assert found["verdict"] == "inconclusive" and found["figures"] == [axes]
    tests = {"outlier_images > 0.05": "holds", "auc > 0.6": "holds"}
    tests |= dict.fromkeys(
        ("auc_matched > 0.55", "auc_rolled > 0.6", "rolled_share < 0.5"), "undecided"
    )
    assert found["models"]["m"] == {"verdict": "inconclusive", "tests": tests}
    assert found["models"]["unjudged"]["verdict"] is None
    assert found["values"] == {
        "m": {
            "auc": {"value": 0.712346, "low": 0.65, "step": 0.0125, "n": 80, "unit": "points"},
            "outlier_images": {"value": 1},
            "enrichment": {"value": None, "n": 3},
        },
        "unjudged": {"other": {"value": 2}},
    }
    notebook["cells"].append({"outputs": [result]})
    with pytest.raises(ValueError, match="displays 2 results"):
        numbers.of_notebook(notebook, claim)


def test_renewed_numbers_keep_the_measured_spreads(tmp_path):
    path = numbers.beside(tmp_path / "aa1-first.ipynb")
    assert path.name == "aa1-first.numbers.json"
    first = {**of({"x": {"value": 1}}), "spread": {"values/a/x/value": 0.1}}
    path.write_text(numbers.text(first))
    assert json.loads(numbers.renewed(path, of({"x": {"value": 2}}))) == {
        **of({"x": {"value": 2}}), "spread": first["spread"]
    }  # fmt: skip
    path.unlink()
    assert json.loads(numbers.renewed(path, of())) == of()


def test_missing_and_unreadable_numbers(tmp_path):
    path = tmp_path / "aa1-first.numbers.json"
    with pytest.raises(
        ValueError,
        match="^aa1-first.numbers.json is missing beside the notebook; store them with "
        ".*aa1-first`$",
    ):
        numbers.read(path)
    for text, told in (("{", "is not readable"), ("[]", "holds no numbers")):
        path.write_text(text)
        with pytest.raises(ValueError, match=f"{told}.*; delete it, and store them with"):
            numbers.read(path)
