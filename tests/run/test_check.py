"""Whether `check` names each disagreement and each old result, and what is published."""

import json
import shutil
import subprocess
from functools import reduce
from operator import getitem
from pathlib import Path

import nbformat
import pytest
from conftest import edit_yaml, make_project, rows, write_notebook
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from helpers.claims import numbers
from helpers.claims.project import SAME_CODE, Project, values_digest
from helpers.claims.result import read_result
from helpers.run import check, execute
from helpers.run.check import absolute_path, publish_run

CLAIMS, PROFILES = "notebooks/claims/beyond.yml", "notebooks/profiles.yml"
SOURCE = "notebooks/beyond/aa1-first.ipynb: "
RESULT = "book/runs/mine/aa1-first.json: "
OTHER = "its values now give other verdicts: "
JUDGED = "judged by an earlier criterion; by today's "
EARLIER = f"{JUDGED}supported, now refuted; on control-clean supported, now refuted"
STALE = "stale, made with other "
VERDICT, MOVED = "verdicts/0/verdict", "control-clean refuted, now supported"
MARGIN = "claims/aa1-first/criterion/tests/0/margin"


def run(project, name, **overrides):
    """Run aa1-first, without a word."""
    texts = {key: str(value) for key, value in overrides.items()}
    execute.run_claims(project, ["aa1-first"], name, texts)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The small project with one published result."""
    project = make_project(tmp_path_factory.mktemp("check") / "project")
    run(project, "mine")
    publish_run(project, "mine")
    return project


@pytest.fixture
def published(original, tmp_path):
    """A copy of it to spoil."""
    return Project(Path(shutil.copytree(original.root, tmp_path / "copy")))


def problems(project):
    return list(check.problems(Project(project.root)))


def old(project, revisions=None):
    return list(check.outdated(Project(project.root), revisions))


def put(data, fields):
    """Set what stands at each place, as `values/0/model`."""
    for place, value in fields.items():
        *parents, last = [int(part) if part.isdecimal() else part for part in place.split("/")]
        reduce(getitem, parents, data)[last] = value


def edit_result(project, fields):
    """Edit the published result as a hand would."""
    path = project.runs / "mine" / "aa1-first.json"
    put(result := json.loads(path.read_text()), fields)
    path.write_text(json.dumps(result))


def edit_registry(project, fields, file=CLAIMS):
    edit_yaml(project.root / file, lambda data: put(data, fields))


@pytest.mark.parametrize(
    ("fields", "wrong", "outdated"),
    [
        ({"verdict": "refuted"}, f"{OTHER}refuted, now supported", ""),
        ({VERDICT: "refuted"}, f"{OTHER}on {MOVED}", ""),
        ({"criterion": "x", VERDICT: "refuted"}, "", f"{STALE}criterion; {JUDGED}on {MOVED}"),
        ({"run": "yours"}, "is the result of yours/aa1-first; move it back to its place", ""),
        ({"provenance/git_dirty": True}, "", "made with local changes"),
        ({"provenance/inputs/notebook": "0"}, "", ""),
    ],
)
def test_an_edited_result(published, fields, wrong, outdated):
    edit_result(published, fields)
    assert problems(published) == [RESULT + wrong] * bool(wrong)
    assert old(published) == [RESULT + outdated] * bool(outdated)


@pytest.mark.parametrize(
    ("file", "fields", "outdated"),
    [
        (CLAIMS, {MARGIN: 3}, f"{STALE}criterion; {EARLIER}"),
        (CLAIMS, {MARGIN: 0.5}, f"{STALE}criterion; {JUDGED}the verdicts are the same"),
        (PROFILES, {"profiles/aa1-first/mine": {"n": 3}}, f"{STALE}parameters"),
        # Prose and other profiles make nothing stale.
        (PROFILES, {"profiles/aa1-first/mine": {}, "profiles/aa1-first/small": {"n": 1}}, None),
        (CLAIMS, {"claims/aa1-first/title": "A", "claims/aa1-first/criterion/why": "two"}, None),
    ],
)
def test_a_registry_that_has_changed_since(published, file, fields, outdated):
    edit_registry(published, fields, file)
    assert problems(published) == []
    assert old(published) == ([RESULT + outdated] if outdated else [])
    stale = outdated is not None
    assert check.changed(Project(published.root)) == ({"mine": ["aa1-first"]} if stale else {})


def test_other_numbers_make_a_result_stale_but_not_those_of_the_same_code(published):
    beside = numbers.beside(published.notebook_path("aa1-first"))
    before = values_digest(published.stored_numbers("aa1-first"))
    moved = {"values": {"control-clean": {"score": {"value": 2.001}}}}
    beside.write_text(json.dumps(moved))
    assert old(published) == [f"{RESULT}{STALE}numbers"]
    beside.write_text(json.dumps(moved | {SAME_CODE: [before]}))  # under earlier defaults
    assert old(published) == []


def test_what_cannot_be_read_is_a_line_and_the_others_follow(published):
    (published.runs / "mine" / "aa1-first.json").write_text("{")
    published.notebook_path("aa1-first").write_text("{")
    places = [line.partition(": ")[0] for line in problems(published)]
    assert places == [SOURCE[:-2], RESULT[:-2]]
    assert old(published) == []


PATHS = """
    /home/me/x.py:3: UserWarning                       True
    dataset = 'folder:/data/birds'                     True
    see https://example.org/a/b and docs/a/b           False
    a/b and ~/c/d and ./e/f and 1/2/3 and /            False
    see [the page](/notebooks/papers/aa1-first.ipynb)  False
"""


@pytest.mark.parametrize(("text", "absolute"), rows(PATHS))
def test_absolute_path(tmp_path, text, absolute):
    path, said = tmp_path / "a.ipynb", new_output("stream", text=text)
    for cell in (new_markdown_cell(text), new_code_cell("", outputs=[said])):
        nbformat.write(new_notebook(cells=[cell]), path)
        assert absolute_path(path) is absolute


def test_registry_and_notebooks(project):
    edit_registry(project, {"profiles/aa1-first/large/modles": []}, PROFILES)
    project.notebook_path("aa2-second").unlink()
    write_notebook(project.root / "notebooks" / "beyond" / "aa4-extra.ipynb", "aa4-extra")
    *lines, last = problems(project)
    assert lines == [
        "notebooks/beyond/aa2-second.ipynb: missing, although notebooks/claims has its claim",
        "notebooks/beyond/aa4-extra.ipynb: no claim of notebooks/claims has this notebook",
    ]
    assert last.startswith(f"{SOURCE}unknown parameter 'modles'")


def test_result_at_an_unknown_revision(published):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.check_output(command, cwd=published.root, text=True).strip()

    assert check.history(published) is None  # no git: nothing is said
    git("init", "-q")
    for message in ("one", "two"):
        git("commit", "-q", "--allow-empty", "-m", message)
    first, last = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    assert check.history(published) == {first, last}
    unknown = f"{RESULT}made at revision 0123456789abcdef, which the history does not have"
    for revision, says in ((first, []), ("0123456789abcdef", [unknown])):
        edit_result(published, {"provenance/git_revision": revision})
        assert old(published, {first, last}) == says and old(published) == []
    shallow = published.root.parent / "shallow"
    git("clone", "-q", "--depth", "1", published.root.as_uri(), str(shallow))
    assert check.history(Project(shallow)) is None


def test_the_controls_are_not_published_and_give_what_is_expected(published):
    edit_result(published, {"run": "controls"})
    (published.runs / "mine").rename(published.runs / "controls")
    assert old(published) == []
    edit_registry(published, {"claims/aa1-first/expected/control-clean": "refuted"})
    (line,) = problems(published)
    assert "0/1 controls as expected: control-clean is supported, not refuted" in line


def test_numbers_beside_a_notebook(project):
    execute.store_outputs(project, ["aa1-first"])
    beside = numbers.beside(project.notebook_path("aa1-first"))
    stored = json.loads(beside.read_text())
    beside.write_text(numbers.text({**stored, "spread": {"values/control-clean/score/value": 0.1}}))
    assert problems(project) == []
    stored["values"]["control-clean"]["score"]["value"] = 3
    beside.write_text(numbers.text(stored))
    (line,) = problems(project)
    assert line.startswith(f"{SOURCE}aa1-first.numbers.json holds other numbers")
    beside.unlink()
    (line,) = problems(project)
    assert line.startswith(SOURCE) and "aa1-first.numbers.json" in line


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_publish_moves_a_run(project):
    run(project, "bob", n=1)
    (project.own / "bob" / "aa1-first.reading.md").write_text("It is refuted.")
    assert publish_run(project, "bob") == ["aa1-first"]
    moved = ["aa1-first.ipynb.xz", "aa1-first.json", "aa1-first.reading.md"]
    assert names(project.runs / "bob") == moved and names(project.own / "bob") == []
    assert problems(project) == []
    run(project, "bob", n=5)
    with pytest.raises(ValueError, match="other parameters"):
        publish_run(project, "bob")
    publish_run(project, "bob", force=True)
    assert read_result(project.runs / "bob" / "aa1-first.json")["parameters"]["n"] == 5


def test_nothing_is_published_of_a_run_with_a_place_of_this_machine(project):
    run(project, "bob", dataset=f"folder:{project.root}")
    with pytest.raises(ValueError, match="folder:"):
        publish_run(project, "bob")
    assert not project.runs.exists()
    assert names(project.own / "bob") == ["aa1-first.ipynb", "aa1-first.json"]


def test_this_project_agrees():
    assert problems(Project()) == []
