"""What makes a result stale: its notebook's own code, parameters, criterion and numbers."""

import ast
import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from conftest import rows
from nbformat.v4 import new_code_cell, new_notebook

from helpers.claims import numbers
from helpers.claims.notebook import PARTS, SAME, differing, form, inputs, of_code, of_numbers
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import read_result
from helpers.files import digest_of, digest_of_json
from helpers.run import check

SOURCE = """from helpers import figures
from helpers.measures.norms import outliers as found
import torch
mask = found(norms, rule="median:3")
figures.norm_maps(mask)
print(torch.sum(mask))"""


@pytest.fixture
def digest(tmp_path):
    """The digest of the code of a notebook with one cell."""

    def digest(source, name="some.ipynb"):
        defaults = new_code_cell("n = 1", metadata={"tags": ["parameters"]})
        nbformat.write(new_notebook(cells=[defaults, new_code_cell(source)]), tmp_path / name)
        return of_code(tmp_path / name)

    return digest


# Part of SOURCE, what it becomes, and whether that is the same code.
CODE = r"""
    outliers as found       high_norm as found         True
    helpers.measures.norms  helpers.measures.thresholds  True
    figures.norm_maps       figures.maps_of_norms      True
    "import torch\n"        "import torch # sum\n\n"  True
    median:3                median:4                   False
    rule=                   by=                        False
    torch.sum               torch.amax                 False
    print                   repr                       False
    "mask = "               "mask = 1 - "              False
"""


@pytest.mark.parametrize(("old", "new", "same"), rows(CODE))
def test_names_of_ours_do_not_count_and_all_else_does(digest, old, new, same):
    changed = SOURCE.replace(old, new)
    assert changed != SOURCE and (digest(SOURCE) == digest(changed)) is same
    renamed = SOURCE.replace("outliers as found", "high_norm").replace("found(", "high_norm(")
    assert digest(renamed) == digest(SOURCE)


def test_which_of_two_functions_is_meant_counts(digest):
    imports = "from helpers.measures.norms import a, b\n"
    assert digest(f"{imports}a(b(x))") == digest(f"{imports}b(a(x))")  # renamed: numbers tell
    assert digest(f"{imports}a(a(x))") != digest(f"{imports}a(b(x))")


def test_no_python_is_one_sentence(project):
    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[2].source = "%matplotlib inline"
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match="aa1-first.ipynb: no Python .*'%matplotlib inline'"):
        inputs(project, "aa1-first", {})


def copy(tmp_path, *ids):
    """This checkout without results, but for those of some claims."""
    root = Project().root
    for folder in ("helpers", "notebooks"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(root / folder, tmp_path / folder, ignore=ignore)
    for path in (*root.glob("*.toml"), root / "_toc.yml", root / "requirements.lock"):
        shutil.copy(path, tmp_path)
    for path in root.glob("book/runs/*/*"):
        if path.parent.name != CONTROLS and path.name.split(".")[0] in ids:
            (tmp_path / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / path.relative_to(root))
    return Project(tmp_path)


def stale(project):
    return {id for ids in check.changed(project).values() for id in ids}


def test_a_value_that_moves_by_a_thousandth_makes_its_results_stale_alone(tmp_path):
    project = copy(tmp_path, "so2-layer-norms", "xx3-from-scratch")
    assert not stale(project)
    beside = numbers.beside(project.source("so2-layer-norms"))
    stored = numbers.read(beside)
    fresh = json.loads(json.dumps(stored))
    fresh["values"]["control-content"]["growth"]["value"] *= 1.0001
    beside.write_text(numbers.renewed(beside, fresh))
    assert numbers.read(beside) == stored and not stale(project)  # rounding moves nothing
    fresh["values"]["control-content"]["growth"]["value"] *= 1.001
    beside.write_text(numbers.renewed(beside, fresh))
    assert of_numbers(numbers.read(beside)) != of_numbers(stored)
    assert stale(project) == {"so2-layer-norms"}
    (line,) = {line.partition(": ")[2] for line in check.outdated(project, None)}
    assert line.startswith("stale, made with other numbers")


def test_other_defaults_of_the_same_code_leave_results_fresh(tmp_path):
    project = copy(tmp_path, "so2-layer-norms")
    beside = numbers.beside(project.source("so2-layer-norms"))
    stored = numbers.read(beside)

    def grown(factor):
        fresh = json.loads(json.dumps(stored))
        fresh["values"]["control-content"]["growth"]["value"] *= factor
        return fresh

    with pytest.raises(ValueError, match="today's code gives other numbers .*growth/value"):
        numbers.renewed(beside, grown(1.1), before=grown(1.01))
    for factor, before in ((1.1, stored), (1.2, grown(1.1))):  # a change after another
        beside.write_text(numbers.renewed(beside, grown(factor), before))
        assert not stale(project)
    assert len(numbers.read(beside)[SAME]) == 2
    result = read_result(project.runs / "vit-tiny" / "so2-layer-norms.json")
    today = inputs(project, "so2-layer-norms", result["parameters"])
    made = result["provenance"]["inputs"]
    assert made != today and not differing(project, "so2-layer-norms", made, today)
    beside.write_text(numbers.renewed(beside, grown(1.2)))
    assert not stale(project)
    # Another measure: no result of either is its own.
    beside.write_text(numbers.renewed(beside, grown(1.3)))
    assert stale(project) == {"so2-layer-norms"} and SAME not in numbers.read(beside)


@pytest.mark.slow
def test_a_helper_changed_by_a_thousandth_makes_the_results_stale_that_use_it(tmp_path):
    project = copy(tmp_path, "so2-layer-norms", "de3-cka")
    measure = tmp_path / "helpers" / "measures" / "similarity.py"
    text = measure.read_text()

    def baselines():
        command = [sys.executable, "-m", "helpers", "baselines", "so2-layer-norms", "de3-cka"]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)

    renamed = text.replace("def linear_cka(", "def cka_of(").replace("linear_cka(", "cka_of(")
    measure.write_text(f"{renamed}\n\nlinear_cka = cka_of\n")
    baselines()
    assert not stale(project)
    assert text.count("return ") and "def linear_cka" in text
    measure.write_text(
        f"{text}\n\n_exact = linear_cka\n\n\ndef linear_cka(*a, **k):\n"
        "    return 0.999 * _exact(*a, **k)\n"
    )
    baselines()
    assert stale(project) == {"de3-cka"}


def test_the_parts_are_those_that_results_carry(runs):
    for results in runs.values():
        for result in results.values():
            assert tuple(result["provenance"]["inputs"]) == PARTS


# ---- Digests
# ------------------------------------------------------------------------------------------------

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


FORMS = r"""
    x = 1                     "\n\nx=1 # one"                       True
    "def f():\n return 'a'"   "def f():\n 'Doc.'\n return 'a'"  True
    "class A:\n x: int"       "class A:\n 'Doc.'\n\n x: int\n 'X.'"  True
    "f(a,\n b,\n)"            f(a, b)          True
    "x = 'ab'"                "x = 'a' 'b'"    True
    "x = 'a'"                 'x = "a"'        True
    x = 1                     x = 1.0          False
    x = 1                     x = True         False
    x = None                  x = ...          False
    f(x)                      f(x=x)           False
    x = []                    x = ['']         False
    x = ['a']                 x = ['a', '']    False
    "f'{x:.1f}'"              "f'{x:.2f}'"     False
    "f'{x}'"                  "f'{x!r}'"       False
    "{**a, 'b': 1}"           "{None: a, 'b': 1}"             False
    "if a:\n b()\nc()"        "if a:\n b()\n c()"             False
    "return_ = a\nb"          "return_ = b\na"                False
"""


@pytest.mark.parametrize(("one", "other", "same"), rows(FORMS))
def test_wording_is_no_part_of_the_form_and_what_computes_is(one, other, same):
    assert (form(ast.parse(one)) == form(ast.parse(other))) is same


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
