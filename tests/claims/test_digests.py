import ast

import pytest

from helpers.claims.notebook import form
from helpers.files import digest_of, digest_of_json

SAMPLE = """
@decorated
class A(B, metaclass=C):
    x: "int" = 1

    async def f(self, a, /, *b, c=None, **d) -> None:
        return {**a, 1: None, "fool": "\\U0001fae8"}, lambda: (yield), -0.0, b"\\xff", 1j, ...


match f"{a!r:>{w}} {{}} {b=} {c:%Y-%m-%d}" "tail" f"{d:{e}}":
    case {"a": 1, **r} | [*_] | A(b=None):
        from helpers import x
try:
    pass
except* OSError:
    raise
"""


def same(one, other):
    return form(ast.parse(one)) == form(ast.parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "\n\nx=1  # one"),
        ("def f():\n    return 'a'", "def f():\n    '''Doc.'''\n    return \"a\""),
        ("class A:\n    x: int", "class A:\n    'Doc.'\n\n    x: int\n    'What x is.'"),
        ("f(a,\n  b,\n)", "f(a, b)"),
        ("x = 'ab'", "x = 'a' 'b'"),
    ],
)
def test_wording_is_no_part_of_the_digest(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = None", "x = ..."),
        ("f(x)", "f(x=x)"),
        ("x = []", "x = ['']"),
        ("x = ['a']", "x = ['a', '']"),
        ("f'{x:.1f}'", "f'{x:.2f}'"),
        ("f'{x}'", "f'{x!r}'"),
        ("{**a, 'b': 1}", "{None: a, 'b': 1}"),
        ("if a:\n    b()\nc()", "if a:\n    b()\n    c()"),
        ("return_ = a\nb", "return_ = b\na"),
    ],
)
def test_what_computes_is(one, other):
    assert not same(one, other)


def test_every_python_gives_the_same_digest():
    """CI runs this on each version that is supported."""
    digest = digest_of(form(ast.parse(SAMPLE)))
    assert digest == "dd6cabb14b3ce040af38971e2286814d15767e59182cfd9370212f50d76b778a"


def test_the_digest_of_data_is_that_of_canonical_json():
    """Against coreutils: `printf '{"a":["é",1.5],"b":null}' | sha256sum`."""
    digest = "6f7fa1bab9a908edab17d26a52fff29e1000ce076b321e2af54e6eee5f31d3f7"
    assert (
        digest_of_json({"b": None, "a": ["é", 1.5]})
        == digest_of_json({"a": ["é", 1.5], "b": None})
        == digest
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest_of_json([float("nan")])
