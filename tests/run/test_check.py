"""Whether `check` names each disagreement, and each old result, in a line of its own."""

import gzip
import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import getitem
from pathlib import Path

import nbformat
import pytest
from conftest import edit_yaml, make_project, write_notebook

from helpers.claims import numbers
from helpers.claims.notebook import read_notebook
from helpers.claims.project import Project
from helpers.files import compressed, digest_of_json, locked, read_content, write_together
from helpers.run import check, execute
from helpers.run import publish as publishing

CLAIMS, PROFILES = "notebooks/claims/beyond.yml", "notebooks/profiles.yml"
SOURCE = "notebooks/beyond/aa1-first.ipynb: "
RESULT = "book/runs/mine/aa1-first.json: "
OTHER = "its values now give other verdicts: "
JUDGED = "judged by an earlier criterion; by today's "
EARLIER = f"{JUDGED}supported, now refuted; on control-clean supported, now refuted"
STALE = "stale, made with other "
SAME = f"{STALE}criterion; {JUDGED}the verdicts are the same"
UNREADABLE = "it cannot be read ("
AGREEMENT = "agreement 'agrees', by today's registry 'not stated'; `run --force` renews it"


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


def problems(project):
    return list(check.problems(Project(project.root)))


def old(project, revisions=None):
    return list(check.outdated(Project(project.root), revisions))


def put(data, fields):
    """Set what stands at each place, as `values/0/model`; None takes it away."""
    for place, value in fields.items():
        *parents, last = [int(part) if part.isdecimal() else part for part in place.split("/")]
        node = reduce(getitem, parents, data)
        node.pop(last) if value is None else node.update({last: value})


def edit_result(project, fields, signed=True):
    """Edit the published result as a hand would, and sign it anew unless told otherwise."""
    path = project.runs / "mine" / "aa1-first.json"
    result = json.loads(path.read_text())
    put(result, fields)
    if signed:
        result.pop("sha256")
        result["sha256"] = digest_of_json(result)
    path.write_text(json.dumps(result))


def edit_registry(project, fields, file=CLAIMS):
    edit_yaml(project.root / file, lambda data: put(data, fields))


MARGIN = "claims/aa1-first/criterion/tests/0/margin"


@pytest.mark.parametrize(
    ("fields", "wrong", "outdated"),
    [
        ({}, [], []),
        ({"verdict": "refuted"}, [f"{OTHER}refuted, now supported"], []),
        (
            {"verdicts/0/verdict": "refuted"},
            [f"{OTHER}on control-clean refuted, now supported"],
            [],
        ),
        (
            {"criterion": "another", "verdicts/0/verdict": "refuted"},
            [],
            [f"{JUDGED}on control-clean refuted, now supported"],
        ),
        # As long as nothing else is another, values were judged by today's criterion.
        ({"criterion": None, "verdict": "refuted"}, [f"{OTHER}refuted, now supported"], []),
        ({"agreement": "agrees"}, [], [AGREEMENT]),
        ({"agreement": None}, [], []),
        ({"values/0/model": None}, [f"{UNREADABLE}values.0: "], []),
        ({"provenance/git_dirty": True}, [], ["made with local changes"]),
        ({"provenance/inputs": None}, [], [f"{STALE}inputs"]),
    ],
)
def test_an_edited_result(published, fields, wrong, outdated):
    edit_result(published, fields)
    for line, start in zip(problems(published), wrong, strict=True):
        assert line.startswith(RESULT + start)
    assert old(published) == [RESULT + line for line in outdated]


@pytest.mark.parametrize(
    ("file", "fields", "outdated"),
    [
        (CLAIMS, {MARGIN: 3}, f"{STALE}criterion; {EARLIER}"),
        (CLAIMS, {MARGIN: 0.5}, SAME),
        (CLAIMS, {"claims/aa1-first/criterion/quantifier": "any"}, SAME),
        (
            CLAIMS,
            {"claims/aa1-first/criterion/needs": [{"value": "score", "op": ">", "margin": 0}]},
            SAME,
        ),
        (PROFILES, {"profiles/aa1-first/mine": {"n": 3}}, f"{STALE}parameters"),
        # Prose and other profiles make nothing stale.
        (PROFILES, {"profiles/aa1-first/mine": {}, "profiles/aa1-first/small": {"n": 1}}, None),
        (
            CLAIMS,
            {
                "claims/aa1-first/title": "Another",
                "claims/aa1-first/statement": "Other words.",
                "claims/aa1-first/headline": "three",
                "claims/aa1-first/criterion/why": "since two is enough",
                "claims/aa1-first/criterion/tests/0/extension": "no paper asks it",
            },
            None,
        ),
    ],
)
def test_a_registry_that_has_changed_since(published, file, fields, outdated):
    edit_registry(published, fields, file)
    assert problems(published) == []
    assert old(published) == ([RESULT + outdated] if outdated else [])


def test_a_result_of_times_without_criterion_and_agreement(published):
    edit_registry(published, {MARGIN: 3})
    for field in ("criterion", "agreement"):
        edit_result(published, {field: None})
        assert problems(published) == []
        assert old(published) == [f"{RESULT}{STALE}criterion; {EARLIER}"]
    edit_registry(published, {MARGIN: 1})
    assert problems(published) == old(published) == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", "null", '{"value": NaN}'])
def test_an_unreadable_result(published, text):
    (published.runs / "mine" / "aa1-first.json").write_text(text)
    (line,) = problems(published)
    assert line.startswith(RESULT + UNREADABLE)


def test_a_result_that_was_not_signed_anew(published):
    edit_result(published, {"values/0/value": 7.0}, signed=False)
    (line,) = problems(published)
    assert line.startswith(f"{RESULT}was changed after it was written")


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"null", b'{"cells": 3, "nbformat": 4}', b"\xff\xfe", b"[" * 100_000],
)
def test_a_broken_notebook_is_one_line_and_the_others_follow(published, text):
    """A source notebook, a published notebook: each has its line, and what comes after it too."""
    edit_result(published, {"verdict": "refuted"}, signed=False)
    published.source("aa1-first").write_bytes(text)
    (published.runs / "mine" / "aa0.ipynb").write_bytes(text)
    source, edited, executed = lines = problems(published)
    assert source.startswith(f"{SOURCE}not a readable notebook (")
    assert executed.startswith("book/runs/mine/aa0.ipynb: not a readable notebook (")
    assert "was changed after it was written" in edited and "\n" not in "".join(lines)
    assert old(published) == []


def test_folders_named_like_files_are_named(published):
    names = ["notebooks/beyond/aa9-ninth.ipynb", "book/runs/mine/aa2-second.json"]
    names.append("book/runs/mine/aa0.ipynb")
    for name in names:
        (published.root / name).mkdir()
    assert [line.partition(":")[0] for line in problems(published)] == names


MARKUP = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("before", "after", "fields", "line"),
    [
        (
            "mine",
            "yours",
            {},
            "yours/aa1-first.json: is the result of mine/aa1-first; move it back",
        ),
        (
            "mine",
            MARKUP,
            {"run": MARKUP},
            f"{MARKUP}/aa1-first.json: run name {MARKUP!r} is not a plain",
        ),
        (
            "mine/aa1-first.ipynb.gz",
            "mine/aa2-second.ipynb.gz",
            {},
            "mine/aa1-first.json: aa1-first.ipynb is missing beside it",
        ),
    ],
)
def test_a_result_in_another_place(published, before, after, fields, line):
    edit_result(published, fields)
    (published.runs / before).rename(published.runs / after)
    assert problems(published)[0].startswith(f"book/runs/{line}")


def test_notebook_and_result_belong_together(published):
    notebook = published.runs / "mine" / "aa1-first.ipynb"
    compressed(notebook).write_bytes(gzip.compress(read_content(notebook) + b"\n"))
    assert "aa1-first.ipynb beside it is not the one it was written with" in problems(published)[0]
    notebook.with_suffix(".json").unlink()
    (line,) = problems(published)
    assert line.startswith("book/runs/mine/aa1-first.ipynb: its result aa1-first.json is missing")


def test_a_notebook_is_published_compressed_and_may_lie_plain(published):
    plain = published.runs / "mine" / "aa1-first.ipynb"
    packed = compressed(plain)
    content = read_content(plain)
    assert not plain.exists() and packed.stat().st_size < len(content) / 2
    packed.unlink()
    plain.write_bytes(content)
    assert problems(published) == []
    plain.unlink()
    packed.write_bytes(gzip.compress(content)[:-9])
    lines = problems(published)
    assert len(lines) == 2 and all("aa1-first.ipynb.gz cannot be decompressed" in x for x in lines)


def test_result_of_no_claim(published):
    edit_result(published, {"id": "aa1-frist"})
    for path in list((published.runs / "mine").iterdir()):
        path.rename(path.with_name(path.name.replace("first", "frist")))
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
        notebook = read_notebook(path)
        if cell == "markdown":
            notebook.cells[0].source = text
        else:
            notebook.cells[2].outputs[0].text = text
        nbformat.write(notebook, path)
        line = "book/runs/mine/aa1-first.ipynb: contains an absolute path of the machine it ran on"
        assert (line in problems(published)) is absolute


@pytest.mark.parametrize(
    ("file", "fields", "problem"),
    [
        (
            PROFILES,
            {"profiles/aa1-first/large/n": "five"},
            "large: parameter n='five': expected int",
        ),
        (
            PROFILES,
            {"profiles/aa1-first/large/modles": []},
            "large: unknown parameter 'modles'; did you mean 'models'?",
        ),
        (
            CLAIMS,
            {"claims/aa1-first/labels": ["datasets"]},
            "labels: unknown parameter 'datasets'; did you mean 'dataset'?",
        ),
    ],
)
def test_registry_and_parameters_cell(project, file, fields, problem):
    edit_registry(project, fields, file)
    (line,) = problems(project)
    assert line.startswith(SOURCE + problem)


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
    unknown = f"{RESULT}made at revision 0123456789ab, which the history does not have"
    for revision, says in (
        (first, []),
        ("0123456789abcdef", [unknown]),
        ("", [f"{RESULT}made at no known revision"]),
    ):
        edit_result(published, {"provenance/git_revision": revision})
        assert old(published, {first, last}) == says and old(published) == []
    shallow = published.root.parent / "shallow"
    git("clone", "-q", "--depth", "1", published.root.as_uri(), str(shallow))
    assert check.history(Project(shallow)) is None


def test_the_controls_are_not_published(published):
    (published.runs / "mine").rename(published.runs / "controls")
    edit_registry(published, {MARGIN: 0.5})
    assert check.published(published) == [] and old(published) == []


def test_a_control_that_is_not_as_expected(published):
    edit_result(published, {"run": "controls"})
    (published.runs / "mine").rename(published.runs / "controls")
    edit_registry(published, {"claims/aa1-first/expected/control-clean": "refuted"})
    (line,) = problems(published)
    assert line == (
        "book/runs/controls/aa1-first.json: 0/1 controls as expected: control-clean is supported, "
        "not refuted; mend the measure, or what is expected"
    )


def test_a_control_that_an_earlier_criterion_judged(published):
    edit_result(published, {"run": "controls", "criterion": "0" * 12})
    (published.runs / "mine").rename(published.runs / "controls")
    edit_registry(published, {"claims/aa1-first/expected/control-clean": "refuted"})
    (line,) = problems(published)
    assert "not refuted; run it again, since its criterion changed; else mend the measure" in line


def test_a_judged_value_without_a_term(published):
    assert list(check.unfinished(published)) == []
    terms = published.root / "notebooks" / "terms.yml"
    terms.write_text("claims: {}\ncommon: {other: {label: Other}}\nendings: {}\n")
    first, *_ = check.unfinished(published)
    assert first == "aa1-first: notebooks/terms.yml does not say what score is called"


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
    path, claim = project.source("aa1-first"), project.registry["aa1-first"]
    states = []
    for score in (2.0, 3.0):
        text = path.read_text().replace('"value": 2.0', f'"value": {score}')
        stored = numbers.of_notebook(nbformat.reads(text, 4), claim)
        states.append({path: text, numbers.beside(path): numbers.text(stored)})

    def store():
        for turn in range(50):
            write_together(states[turn % 2])

    with ThreadPoolExecutor(1) as pool:
        writer, read = pool.submit(store), 0
        while not writer.done():
            check._check_source(path, claim)
            read += 1
    assert writer.result() is None and read > 3
    assert all(
        one != other for one, other in zip(*(state.values() for state in states), strict=True)
    )


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
