"""Two runs side by side: what differs is named, and whether a verdict moved."""

import json
import math

import pytest

from helpers.claims.compare import compare, difference
from helpers.claims.criteria import Value
from helpers.claims.project import Project
from helpers.cli import main

PROJECT = Project()
CLAIM = "nr1-artifacts"


@pytest.fixture
def stored():
    """A published result."""
    return json.loads((PROJECT.runs / "vit-tiny" / f"{CLAIM}.json").read_text(encoding="utf-8"))


def value(number, low, high, n=100):
    return Value("auc", "m", "scenes", number, low, high, n)


def test_intervals_combine_as_independent_ones():
    found = difference(value(0.5, 0.4, 0.6), value(0.9, 0.6, 1.0))
    ends = 0.4 - math.hypot(0.3, 0.1), 0.4 + math.hypot(0.1, 0.1)
    assert (found.value, found.low, found.high) == pytest.approx((0.4, *ends))
    # Each end from the end of A that is opposite, and the smaller n.
    found = difference(value(0.5, 0.1, 0.6, n=9), value(0.9, 0.6, 1.0))
    ends = 0.4 - math.hypot(0.3, 0.1), 0.4 + math.hypot(0.1, 0.4)
    assert (found.low, found.high, found.n) == pytest.approx((*ends, 9))


def test_nothing_is_said_of_what_has_no_interval():
    plain = difference(value(5.0, None, None), value(7.0, None, None))
    assert (plain.value, plain.low, plain.high) == (2, None, None)
    assert difference(value(None, None, None), value(0.5, 0.4, 0.6)) is None


def test_what_differs_is_named(stored, tmp_path):
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_text(json.dumps(stored))
    text, moved = compare(PROJECT, str(one), str(one))
    assert not moved and " -> " not in text and "not measured" not in text
    model = stored["verdicts"][0]["model"]
    stored["verdict"] = stored["verdicts"][0]["verdict"] = "refuted"
    stored["values"][0]["value"] = 0.25
    stored["parameters"]["n"] = 7
    stored["provenance"]["sources"][0]["weights_hash"] = "ffff"
    other.write_text(json.dumps(stored))
    text, moved = compare(PROJECT, str(one), str(other))
    lines = text.splitlines()
    assert moved and lines[-1] == f"a verdict moved on {CLAIM}"
    assert f"{CLAIM}: supported -> does not extend  MOVED" in lines
    assert f"  {model}: supported -> does not extend  MOVED" in lines
    assert "  parameter n: 1000 -> 7" in lines and any("-> ffff" in line for line in lines)
    (row,) = (line for line in lines if line.split()[:1] == [stored["values"][0]["model"]])
    assert row.split()[1] == stored["values"][0]["name"] and "-0.75" in row


def test_the_command_ends_with_1_where_a_verdict_moved(capsys):
    assert main(["compare", "vit-tiny-2", "vit-tiny-2"]) == 0
    assert "no verdict moved" in capsys.readouterr().out
    assert main(["compare", "vit-tiny", "vit-tiny-2"]) == 1
    assert "de4-one-shot: does not extend -> not tested  MOVED" in capsys.readouterr().out
    assert main(["compare", "vit-tiny", "vit-tinny"]) == 2
    assert "'vit-tinny'" in capsys.readouterr().err
