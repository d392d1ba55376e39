import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from conftest import edit_profiles, edit_registry, make_project, write_notebook

from helpers.claims import numbers
from helpers.claims.project import Project
from helpers.claims.result import MIME
from helpers.files import digest_of_json, locked, write_together
from helpers.run import check, execute
from helpers.run import publish as publishing


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The small project with one published result."""
    project = make_project(tmp_path_factory.mktemp("check") / "project")
    execute.run_claims(project, ["aa1-first"], "mine", report=lambda outcome: None)
    publishing.publish_run(project, "mine")
    return project


@pytest.fixture
def published(original, tmp_path):
    """A copy of it to spoil."""
    return Project(Path(shutil.copytree(original.root, tmp_path / "copy")))


OTHER = "book/runs/mine/aa1-first.json: its values now give other verdicts: "


def problems(project):
    return list(check.problems(Project(project.root)))


def edit_result(project, change, renewed=True):
    """Edit a published result as a hand would; `renewed`: with its digest computed again."""
    path = project.runs / "mine" / "aa1-first.json"
    result = json.loads(path.read_text())
    change(result)
    if renewed:
        result.pop("sha256")
        result["sha256"] = digest_of_json(result)
    path.write_text(json.dumps(result))


def test_agreement(published):
    assert problems(published) == []


def test_edited_result(published):
    edit_result(published, lambda result: result["values"][0].update(value=7.0), renewed=False)
    (problem,) = problems(published)
    assert problem.startswith("book/runs/mine/aa1-first.json: was changed after it was written")


def test_edited_verdict_with_its_digest_renewed(published):
    edit_result(published, lambda result: result.update(verdict="refuted"))
    assert problems(published) == [f"{OTHER}refuted, now supported"]
    edit_result(
        published,
        lambda result: (
            result.update(verdict="supported"),
            result["verdicts"][0].update(verdict="refuted"),
        ),
    )
    assert problems(published) == [f"{OTHER}on control-clean refuted, now supported"]


def set_margin(project, margin):
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=margin),
    )


JUDGED = "judged by an earlier criterion; by today's "
EARLIER = f"{JUDGED}supported, now refuted; on control-clean supported, now refuted"


def test_a_changed_criterion_is_no_problem_and_is_told(published):
    set_margin(published, 3)
    assert problems(published) == []
    assert old(published) == [f"{STALE}criterion; {EARLIER}"]
    edit_result(published, lambda result: result.pop("criterion"))  # as results of old
    assert problems(published) == [] and old(published) == [f"{STALE}criterion; {EARLIER}"]
    edit_result(published, lambda result: result.pop("agreement"))
    assert problems(published) == [] and old(published) == [f"{STALE}criterion; {EARLIER}"]
    set_margin(published, 1)
    assert problems(published) == old(published) == []


def test_where_the_whole_is_the_same_the_models_that_differ_are_told(published):
    edit_result(
        published,
        lambda result: (
            result.update(criterion="another"),
            result["verdicts"][0].update(verdict="refuted"),
        ),
    )
    assert problems(published) == []
    assert old(published) == [
        f"book/runs/mine/aa1-first.json: {JUDGED}on control-clean refuted, now supported"
    ]


def test_an_edited_verdict_is_a_problem_also_where_no_criterion_was_kept(published):
    """As long as nothing else is another: the values of a result that is not stale were judged by
    today's criterion."""
    edit_result(
        published, lambda result: (result.pop("criterion"), result.update(verdict="refuted"))
    )
    assert problems(published) == [f"{OTHER}refuted, now supported"]
    assert old(published) == []


AGREEMENT = "agreement {!r}, by today's registry {!r}; `run --force` renews it"


def test_an_agreement_that_the_registry_no_longer_gives_is_told(published):
    edit_result(published, lambda result: result.update(agreement="agrees"))
    assert problems(published) == []
    assert old(published) == [
        "book/runs/mine/aa1-first.json: " + AGREEMENT.format("agrees", "not stated")
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not a readable result"),
        ("[]", "not a readable result"),
        ("{}", "not a readable result"),
        ("null", "not a readable"),
    ],
)
def test_unreadable_result(published, text, problem):
    (published.runs / "mine" / "aa1-first.json").write_text(text)
    (line,) = problems(published)
    assert line.startswith(f"book/runs/mine/aa1-first.json: {problem}")


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"null", b'{"cells": 3, "nbformat": 4}', b"\xff\xfe", b"[" * 100_000],
)
def test_a_broken_notebook_is_one_line_and_the_others_follow(published, text):
    """A source notebook, its numbers, a published notebook: each has its line, and what comes after
    it too."""
    edit_result(published, lambda result: result.update(verdict="refuted"), renewed=False)
    published.source("aa1-first").write_bytes(text)
    (published.runs / "mine" / "aa0.ipynb").write_bytes(text)
    lines = problems(published)
    assert [line.partition("(")[0] for line in lines if "not a readable notebook" in line] == [
        "notebooks/beyond/aa1-first.ipynb: not a readable notebook ",
        "book/runs/mine/aa0.ipynb: not a readable notebook ",
    ]
    assert [line for line in lines if "was changed after it was written" in line] and all(
        "\n" not in line for line in lines
    )
    assert list(check.outdated(published, None)) == []


def test_folders_named_like_files_are_named(published):
    for path in (
        published.runs / "mine" / "aa2-second.json",
        published.runs / "mine" / "aa0.ipynb",
    ):
        path.mkdir()
    (published.root / "notebooks" / "beyond" / "aa9-ninth.ipynb").mkdir()
    names = [line.partition(":")[0] for line in problems(published)]
    assert names == [
        "notebooks/beyond/aa9-ninth.ipynb",
        "book/runs/mine/aa2-second.json",
        "book/runs/mine/aa0.ipynb",
    ]


def test_a_run_whose_name_is_markup_is_named(published):
    (published.runs / "mine").rename(published.runs / "<img src=x onerror=alert(1)>")
    edited = published.runs / "<img src=x onerror=alert(1)>" / "aa1-first.json"
    result = json.loads(edited.read_text()) | {"run": edited.parent.name}
    result.pop("sha256")
    edited.write_text(json.dumps({**result, "sha256": digest_of_json(result)}))
    assert "is not a plain folder name" in problems(published)[0]


def test_value_that_json_cannot_hold(published):
    path = published.runs / "mine" / "aa1-first.json"
    path.write_text(path.read_text().replace('"value": 2.0', '"value": NaN'))
    assert "not a readable result" in problems(published)[0]


def test_result_without_a_field(published):
    edit_result(published, lambda result: result["values"][0].pop("model"))
    (line,) = problems(published)
    assert "not a readable result (TypeError: " in line


def test_result_in_another_place(published):
    (published.runs / "mine").rename(published.runs / "yours")
    assert problems(published) == [
        "book/runs/yours/aa1-first.json: is the result of mine/aa1-first; move it back to its place"
    ]


def test_notebook_and_result_belong_together(published):
    notebook = published.runs / "mine" / "aa1-first.ipynb"
    notebook.write_text(notebook.read_text() + "\n")
    assert "aa1-first.ipynb beside it is not the one it was written with" in problems(published)[0]
    notebook.rename(notebook.with_name("aa2-second.ipynb"))
    assert [line.split(";")[0] for line in problems(published)] == [
        "book/runs/mine/aa1-first.json: aa1-first.ipynb is missing beside it",
        "book/runs/mine/aa2-second.ipynb: its result aa2-second.json is missing beside it",
    ]


def test_result_of_no_claim(published):
    for path in list((published.runs / "mine").iterdir()):
        path.rename(path.with_stem("aa1-frist"))
    path = published.runs / "mine" / "aa1-frist.json"
    result = json.loads(path.read_text())
    result.update(id="aa1-frist")
    result.pop("sha256")
    path.write_text(json.dumps({**result, "sha256": digest_of_json(result)}))
    assert problems(published) == [
        "book/runs/mine/aa1-frist.json: unknown claim 'aa1-frist'; did you mean 'aa1-first'?"
    ]


@pytest.mark.parametrize(
    ("text", "absolute"),
    [
        ("/home/me/x.py:3: UserWarning", True),
        ("dataset = 'folder:/data/birds'", True),
        ("see https://example.org/a/b and docs/a/b", False),
        ("a/b and ~/c/d and ./e/f and 1/2/3 and /", False),
        ("see [the page](/notebooks/papers/aa1-first.ipynb)", False),
    ],
)
def test_absolute_path(published, text, absolute):
    path = published.runs / "mine" / "aa1-first.ipynb"
    for cell in ("markdown", "output"):
        notebook = nbformat.read(path, 4)
        if cell == "markdown":
            notebook.cells[0].source = text
        else:
            notebook.cells[2].outputs[0].text = text
        nbformat.write(notebook, path)
        line = "book/runs/mine/aa1-first.ipynb: contains an absolute path of the machine it ran on"
        assert (line in problems(published)) is absolute


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"n": "five"}, "parameter n='five': expected int"),
        ({"modles": []}, "unknown parameter 'modles'; did you mean 'models'?"),
    ],
)
def test_profile_and_parameters_cell(project, change, problem):
    edit_profiles(project.root, lambda profiles: profiles["aa1-first"]["large"].update(change))
    (line,) = problems(project)
    assert line.startswith("notebooks/beyond/aa1-first.ipynb: large: ") and problem in line


def test_labels_and_parameters_cell(project):
    edit_registry(
        project.root, lambda data: data["claims"]["aa1-first"].update(labels=["datasets"])
    )
    assert problems(project) == [
        "notebooks/beyond/aa1-first.ipynb: labels: unknown parameter 'datasets'; did you mean "
        "'dataset'?"
    ]


def test_table_of_contents(project):
    path = project.root / "_toc.yml"
    path.write_text(path.read_text().replace("aa2-second", "aa9-none"))
    assert problems(project) == [
        "_toc.yml: no line for notebooks/beyond/aa2-second.ipynb",
        "_toc.yml: notebooks/beyond/aa9-none.ipynb is not the notebook of any claim",
    ]


def test_missing_and_unknown_notebooks(project):
    project.source("aa1-first").rename(project.root / "elsewhere")
    write_notebook(project.root / "notebooks" / "beyond" / "aa4-extra.ipynb", "aa4-extra")
    assert problems(project) == [
        "notebooks/beyond/aa1-first.ipynb: missing, although notebooks/claims has its claim",
        "notebooks/beyond/aa4-extra.ipynb: no claim of notebooks/claims has this notebook",
    ]


def test_what_was_measured_on_other_machines_is_of_todays_claims(published):
    """A claim too few and a verdict that is expected no longer are told; what agrees is not, nor a
    project without a survey."""
    assert list(check.survey(published)) == []
    ids = published.with_notebook()
    verdicts = {
        id: {c: {"expected": v} for c, v in published.registry[id].expected.items()} for id in ids
    }
    path = published.root / "book" / "portability.json"
    path.write_text(json.dumps({"verdicts": verdicts}))
    assert list(check.survey(published)) == [] and len(ids) > 1

    first, *rest = ids
    control = next(iter(verdicts[first]))
    verdicts[first][control]["expected"] = "another"
    del verdicts[rest[-1]]
    path.write_text(json.dumps({"verdicts": verdicts}))
    (line,) = check.survey(published)
    assert line.startswith(f"book/portability.json: not of today's {first}, {rest[-1]};")


# ---- Old results
# --------------------------------------------------------------------------------------------------


def old(project, revisions=None):
    return list(check.outdated(Project(project.root), revisions))


def edit_provenance(project, **changes):
    """Keys that are None are taken away."""

    def change(result):
        origin = {**result["provenance"], **changes}
        result["provenance"] = {key: value for key, value in origin.items() if value is not None}

    edit_result(project, change)


# Two criteria by which the verdict is the same.
SAME = f"{JUDGED}the verdicts are the same"
STALE = "book/runs/mine/aa1-first.json: stale, made with other "


def test_todays_result_is_not_old(published):
    assert old(published) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda claim: claim["criterion"]["tests"][0].update(margin=0.5),
        lambda claim: claim["criterion"].update(quantifier="any"),
        lambda claim: claim["criterion"].update(needs=[{"value": "score", "op": ">", "margin": 0}]),
    ],
)
def test_result_of_another_criterion(published, change):
    edit_registry(published.root, lambda data: change(data["claims"]["aa1-first"]))
    assert old(published) == [f"{STALE}criterion; {SAME}"]


def test_result_of_another_profile(published):
    edit_profiles(published.root, lambda profiles: profiles["aa1-first"].update(mine={"n": 3}))
    assert old(published) == [f"{STALE}parameters"]


def test_prose_and_other_profiles_make_nothing_stale(published):
    def words(data):
        data["claims"]["aa1-first"].update(
            title="Another", statement="Other words.", headline="three"
        )
        data["claims"]["aa1-first"]["criterion"].update(why="since two is enough")
        data["claims"]["aa1-first"]["criterion"]["tests"][0].update(extension="no paper asks it")

    edit_registry(published.root, words)
    edit_profiles(
        published.root, lambda profiles: profiles["aa1-first"].update(mine={}, small={"n": 1})
    )
    assert old(published) == []


def test_result_of_other_code_or_of_none_that_is_known(published):
    path = published.source("aa1-first")
    path.write_text(path.read_text().replace("float(n)", "float(2 * n)"))
    assert old(published) == [f"{STALE}notebook"]
    edit_provenance(published, inputs=None, git_dirty=None, git_revision=None)
    assert old(published) == [f"{STALE}inputs"]
    path.write_text("{")
    assert old(published) == []  # which `problems` names


def test_result_with_local_changes(published):
    edit_provenance(published, git_dirty=True)
    assert old(published) == ["book/runs/mine/aa1-first.json: made with local changes"]


def test_result_at_an_unknown_revision(published):
    def git(*arguments, at=published.root):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=at, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert check.history(published) is None  # no git: nothing is said
    git("init", "-q")
    assert check.history(published) is None
    for message in ("one", "two"):
        git("commit", "-q", "--allow-empty", "-m", message)
    first, last = git("rev-parse", "HEAD~1"), git("rev-parse", "HEAD")
    assert check.history(published) == {first, last}
    for revision, says in (
        (first, []),
        ("0123456789abcdef", ["made at revision 0123456789ab, which the history does not have"]),
        (None, ["made at no known revision"]),
    ):
        edit_provenance(published, git_revision=revision)
        assert old(published, {first, last}) == [
            f"book/runs/mine/aa1-first.json: {line}" for line in says
        ]
        assert old(published) == []
    shallow = published.root.parent / "shallow"
    git("clone", "-q", "--depth", "1", published.root.as_uri(), str(shallow))
    assert check.history(Project(shallow)) is None


def test_the_controls_are_not_published(published):
    (published.runs / "mine").rename(published.runs / "controls")
    edit_registry(
        published.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=0.5),
    )
    assert check.published(published) == [] and old(published) == []


def test_numbers_beside_a_notebook(project):
    execute.store_outputs(project, ["aa1-first"], report=lambda outcome: None)
    assert problems(project) == []
    beside = numbers.beside(project.source("aa1-first"))
    stored = numbers.read(beside)
    beside.write_text(numbers.text({**stored, "spread": {"values/control-clean/score/value": 0.1}}))
    assert problems(project) == []
    stored["values"]["control-clean"]["score"]["value"] = 3
    beside.write_text(numbers.text(stored))
    assert problems(project) == [
        "notebooks/beyond/aa1-first.ipynb: aa1-first.numbers.json holds other numbers; "
        "run `python -m helpers baselines aa1-first`"
    ]
    beside.rename(beside.with_name("aa9-none.numbers.json"))
    assert problems(project) == [
        "notebooks/beyond/aa9-none.ipynb: missing, although its numbers are there",
        "notebooks/beyond/aa1-first.ipynb: aa1-first.numbers.json is missing beside the notebook; "
        "store them with `python -m helpers baselines aa1-first`",
    ]


def test_a_reader_finds_no_notebook_beside_the_numbers_of_another(project):
    """While outputs are stored over and over, each time with other numbers, they are read."""
    execute.store_outputs(project, ["aa1-first"], report=lambda outcome: None)
    path, claim, times = project.source("aa1-first"), project.registry["aa1-first"], 50
    text, beside = path.read_text(), numbers.beside(path)

    def store():
        for score in range(times):
            notebook = nbformat.reads(text, 4)
            (result,) = [
                out.data
                for cell in notebook.cells
                for out in cell.get("outputs", ())
                if MIME in out.get("data", ())
            ]
            result[MIME]["values"][0]["value"] = score
            write_together(
                {
                    path: nbformat.writes(notebook),
                    beside: numbers.renewed(beside, numbers.of_notebook(notebook, claim)),
                }
            )

    with ThreadPoolExecutor(1) as pool:
        writer, read = pool.submit(store), 0
        while not writer.done():
            check._check_source(path, claim)
            read += 1
    assert writer.result() is None and read > 3


def test_a_notebook_that_is_being_published_is_waited_for(published):
    """It gets its name before its result does."""
    result = published.runs / "mine" / "aa1-first.json"
    text = result.read_text()
    result.unlink()
    with ThreadPoolExecutor(1) as pool:
        with locked(result.parent):
            reader = pool.submit(problems, published)
            with pytest.raises(TimeoutError):
                reader.result(timeout=1)
            result.write_text(text)
        assert reader.result() == []


@pytest.mark.parametrize(
    "text",
    [b"parts: [", b"\xff", b"[" * 1000, b"a: 2026-99-99", b"a: !!x b", b"a: !!float"],
)
def test_broken_contents_are_one_sentence(project, text):
    (project.root / "_toc.yml").write_bytes(text)
    with pytest.raises(ValueError, match="^_toc.yml: not readable as YAML .*; restore it$"):
        problems(project)


def test_this_project_agrees():
    assert list(check.problems(Project())) == []
