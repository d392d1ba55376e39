"""Tables are whole whatever a cell holds, and what data say is shown and never markup."""

import pytest

from helpers.claims.markdown import inert, pivot, table, table_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a < b and 3<4", "a < b and 3<4"),
        ("<b>", "&#60;b>"),
        ("[x](y) (z)", "[x]&#40;y) (z)"),
        ("{cite}`x` {a}", "&#123;cite}`x` {a}"),
        ("two\n\nlines", "two lines"),
        (3, "3"),
    ],
)
def test_inert(text, shown):
    assert inert(text) == shown


def test_a_cell_stays_in_its_row():
    assert (
        table(("a", "b"), [("x|y", "two\nlines")])
        == "| a | b |\n| --- | --- |\n| x\\|y | two lines |"
    )
    assert table(("a",), [("<b> [x](y)",)], str).endswith("| <b> [x](y) |")


def test_a_column_for_every_key():
    assert table_of([{"a": 1}, {"b": 2, "a": 3}]).splitlines() == [
        "| a | b |",
        "| --- | --- |",
        "| 1 |  |",
        "| 3 | 2 |",
    ]


def test_pivot_has_a_row_for_source_and_model_with_n_first():
    cells = [
        ("ours", "m", "auc", "0.7"),
        ("ours", "m", "n", "64"),
        ("paper", "m", "auc", "0.8"),
        ("paper", "m", "auc", "0.9"),
    ]
    assert pivot(cells).splitlines() == [
        "| source | model | n | auc |",
        "| --- | --- | --- | --- |",
        "| ours | m | 64 | 0.7 |",
        "| paper | m |  | 0.8; 0.9 |",
    ]
    assert pivot([]) == ""
