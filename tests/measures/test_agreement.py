import pytest

from helpers.measures.agreement import disagreement

TABLE = {
    "one": {"a": "supported", "b": "supported", "c": "refuted"},
    "two": {"a": "refuted", "b": "refuted", "c": "refuted"},
    "three": {"a": "supported", "b": "refuted", "c": "refuted"},
    "four": {"a": "not run", "b": "not run", "c": "not run"},
}


@pytest.mark.parametrize("columns, expected", [("abc", 0.5), ("ab", 0.25), ("bc", 0.25), ("ac", 0.5), ("a", 0), ("", 0)])
def test_disagreement_counts_rows_that_change(columns, expected):
    assert disagreement(TABLE, columns) == expected


def test_a_column_that_is_not_there():
    with pytest.raises(KeyError):
        disagreement(TABLE, ["a", "d"])
