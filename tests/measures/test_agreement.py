import math

import pytest

from helpers.measures.agreement import contradictions, disagreement

TABLE = {
    "one": {"a": "supported", "b": "supported", "c": "refuted"},
    "two": {"a": "refuted", "b": "refuted", "c": "refuted"},
    "three": {"a": "supported", "b": "refuted", "c": "refuted"},
    "four": {"a": "not run", "b": "not run", "c": "not run"},
}


@pytest.mark.parametrize(
    "columns, expected", [("abc", 0.5), ("ab", 0.25), ("bc", 0.25), ("ac", 0.5), ("a", 0), ("", 0)]
)
def test_disagreement_counts_rows_that_change(columns, expected):
    assert disagreement(TABLE, columns) == expected


@pytest.mark.parametrize(
    "columns, expected", [("abc", 4 / 9), ("ab", 1 / 3), ("bc", 1 / 3), ("ac", 2 / 3)]
)
def test_contradictions_count_pairs_of_opposite_verdicts(columns, expected):
    assert contradictions(TABLE, columns) == pytest.approx(expected)
    assert contradictions(TABLE, iter(columns)) == pytest.approx(expected)


@pytest.mark.parametrize("columns", ["a", ""])
def test_one_judge_contradicts_nobody(columns):
    assert math.isnan(contradictions(TABLE, columns))


def test_only_decided_verdicts_contradict():
    table = {
        "one": {"a": "supported", "b": "inconclusive", "c": "not applicable"},
        "two": {"a": "refuted", "b": "not run", "c": ""},
    }
    assert math.isnan(contradictions(table, "abc"))
    table["three"] = {"a": "supported", "b": "inconclusive", "c": "refuted"}
    assert contradictions(table, "abc") == 1 and disagreement(table, "abc") == 1
    table["four"] = {"a": "refuted", "b": "inconclusive", "c": "refuted"}
    assert contradictions(table, "abc") == 0.5


def test_a_column_that_is_not_there():
    for measure in (disagreement, contradictions):
        with pytest.raises(KeyError):
            measure(TABLE, ["a", "d"])
