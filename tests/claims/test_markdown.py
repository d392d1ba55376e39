"""Tables are whole whatever a cell holds, and what data say is shown and never markup."""

import pytest

from helpers.claims.markdown import code, inert, pivot, table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a < b and 3<4", "a < b and 3<4"),
        ("<b>", "&#60;b>"),
        ("[x](y) [[x]] [y]: z ![^1]", "&#91;x&#93;(y) &#91;[x]&#93; &#91;y&#93;: z !&#91;^1&#93;"),
        ("[CLS] 1 [0.5, 2.5]", "[CLS] 1 [0.5, 2.5]"),
        ("{cite}`x` {a}", "&#123;cite}`x` &#123;a}"),
        ("$x$ `$x$` ``a`$`` ` $", "&#36;x&#36; `$x$` ``a`$`` &#96; &#36;"),
        (r"\(x\) \$", "&#92;(x&#92;) &#92;&#36;"),
        ("&lt; & &#36;", "&#38;lt; & &#38;#36;"),
        ("*a* _b_ c_d __e", "&#42;a&#42; &#95;b&#95; c_d &#95;&#95;e"),
        ("two\n\nlines", "two lines"),
        (3, "3"),
    ],
)
def test_inert(text, shown):
    assert inert(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", "`''`"), ("<$x$>", "`<$x$>`"), ("a`b``c", "```a`b``c```"), ("`", "`` ` ``")],
)
def test_a_value_in_code_font_is_shown_as_it_is(text, shown):
    assert code(text) == shown and inert(shown) == shown


def test_a_cell_stays_in_its_row():
    shown = table(("a", "b"), [("x|y", "two\nlines")])
    assert shown == "| a | b |\n| --- | --- |\n| x\\|y | two lines |"


def test_pivot_has_a_row_for_source_and_model_with_n_first():
    cells = [("ours", "m", "auc", "0.7"), ("ours", "m", "n", "64")]
    cells += [("paper", "m", "auc", "0.8"), ("paper", "m", "auc", "0.9")]
    assert pivot(cells).splitlines() == [
        "| source | model | n | auc |",
        "| --- | --- | --- | --- |",
        "| ours | m | 64 | 0.7 |",
        "| paper | m |  | 0.8; 0.9 |",
    ]
    assert pivot([]) == ""
