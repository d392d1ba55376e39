import nbformat
import pytest

from helpers.publish import digests
from helpers.publish.project import Project
from helpers.publish.provenance import inputs_digest

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
    return digests.code(one).digest == digests.code(other).digest


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
    assert digests.code(SAMPLE).digest == "dd6cabb14b3ce040af38971e2286814d15767e59182cfd9370212f50d76b778a"


def test_the_digest_of_data_is_that_of_canonical_json():
    """Against coreutils: `printf '{"a":["é",1.5],"b":null}' | sha256sum`."""
    digest = "6f7fa1bab9a908edab17d26a52fff29e1000ce076b321e2af54e6eee5f31d3f7"
    assert digests.of_json({"b": None, "a": ["é", 1.5]}) == digests.of_json({"a": ["é", 1.5], "b": None}) == digest
    with pytest.raises(ValueError, match="not JSON compliant"):
        digests.of_json([float("nan")])


def test_what_is_no_python_is_one_sentence():
    with pytest.raises(ValueError, match=r"no Python \(invalid syntax\): '%matplotlib inline'; correct it"):
        digests.code("%matplotlib inline")


@pytest.fixture
def helpers(tmp_path, monkeypatch):
    """Modules that import one another in every way."""
    texts = {
        "__init__": "",
        "publish/criteria": "import math",
        "a": "from helpers.b import f\nimport numpy",
        "b": "def f():\n    from . import c, nothing",
        "c": "import helpers.part.d as d, helpers.a\nfrom helpers.publish.criteria import Test",
        "figures": "from helpers import hidden",
        "hidden": "",
        "apart": "from helpers import a",
        "part/__init__": "from .e import g",
        "part/d": "from ..top import x",
        "part/e": "",
        "top": "x = 1",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(digests, "HELPERS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "from helpers import a",
        "import helpers.a",
        "from helpers.a import f as g",
        "def late():\n    from helpers import a, figures",
        "if False:\n    import helpers.figures, helpers.a",
    ],
)
def test_what_is_reached(helpers, text):
    names = {"", ".publish.criteria", ".a", ".b", ".c", ".part", ".part.d", ".part.e", ".top"}
    assert digests.reached(["import numpy", text]).keys() == {f"helpers{name}" for name in names}


def test_what_is_not_reached(helpers):
    assert digests.reached(["from helpers import figures", "from helpersome import a"]).keys() == {
        "helpers",
        "helpers.publish.criteria",
    }
    before = digests.reached(["import helpers.a"])
    (helpers / "hidden.py").write_text("x = 1")
    assert digests.reached(["import helpers.a"]) == before
    (helpers / "top.py").write_text("x = 2")
    assert [name for name, digest in digests.reached(["import helpers.a"]).items() if digest != before[name]] == ["helpers.top"]


def test_what_this_project_reaches():
    """The laboratory and the measures, and nothing that publishes: a word in a page must not rerun a GPU."""
    project, everything = Project(), set()
    for id in project.with_notebook():
        cells = nbformat.read(project.source(id), 4).cells
        reached = digests.reached([cell.source for cell in cells if cell.cell_type == "code"])
        assert reached.keys() >= {
            f"helpers.{name}" for name in ("capture.engine", "models.backbone", "publish.criteria", "models.load", "images.sets")
        }
        everything |= reached.keys()
        assert len(inputs_digest(project, id, {})) == 64
    house = ("helpers.publish", "helpers.figures", "helpers.bench", "helpers.training", "helpers.cluster", "helpers.__main__")
    assert not [name for name in everything - {digests.JUDGE} if name.startswith(house)]
