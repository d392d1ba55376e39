"""What changed since an earlier edition is computed from git, and no verdict moves without a
reason."""

import json
import subprocess

import pytest

from helpers.book.render import render
from helpers.claims import edition
from helpers.claims.project import Project
from helpers.cli import main
from helpers.run import check

PROJECT = Project()
RUN, CLAIM = "vit-tiny", "nr1-artifacts"
PLACE = (RUN, CLAIM)


def commit(root, message):
    """Commit everything, and return the revision."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", message)):
        subprocess.run(["git", "-C", root, *command], check=True)
    return subprocess.run(
        ["git", "-C", root, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def result(runs):
    """A published result, to be changed."""
    return json.loads(json.dumps(runs[RUN][CLAIM]))


def page(root, registry, now):
    """The parts of the page on changes."""
    data = edition.page(root, registry, now)
    return {part: render("changes.md.j2", part=part, **data) for part in edition.PARTS}


def compare(before, now):
    return edition.changes(PROJECT.registry, {RUN: {CLAIM: before}}, {RUN: {CLAIM: now}})


def test_every_verdict_that_moved_since_the_last_edition_says_why(runs):
    assert list(edition.problems(PROJECT.root, PROJECT.registry, runs)) == []


def test_an_edition_and_itself_do_not_differ(runs):
    found = edition.changes(PROJECT.registry, runs, runs)
    assert len(found.compared) == sum(map(len, runs.values())) and not (
        found.moved or found.values or found.new or found.gone
    )


def test_a_moved_verdict_and_a_moved_value_are_found(result):
    now = json.loads(json.dumps(result))
    model = now["verdicts"][0]["model"]
    now["verdict"] = now["verdicts"][0]["verdict"] = "refuted"
    uneven = [x for x in now["values"] if x["low"] is not None and x["low"] < x["high"]]
    wide, near, *_ = uneven
    wide |= {name: wide[name] + 9 for name in ("value", "low", "high")}
    near["value"] += (near["high"] - near["value"]) / 9
    found = compare(result, now)
    assert found.moved[PLACE].moved == dict.fromkeys(("", model), ("supported", "refuted"))
    (pair,) = found.values[PLACE]
    assert (pair.name, pair.models[0]) == (wide["name"], wide["model"])


def test_another_model_is_not_compared(result):
    now = json.loads(json.dumps(result))
    for one in (*now["values"], *now["verdicts"]):
        one["model"] = f"other-{one['model']}"
    found = compare(result, now)
    assert not found.moved and not found.values and found.compared[PLACE].pairs == []


def test_with_what_a_result_was_made(result):
    other = {**result, "criterion": "b", "parameters": {**result["parameters"], "n": 7}}
    n = f"n: {result['parameters']['n']} → 7"
    bare = {name: value for name, value in result.items() if name != "criterion"}
    for before, words in (
        ({**bare, "criterion": "b"}, n),
        ({**bare, "criterion": "a"}, f"another criterion; {n}"),
        (bare, f"criterion not recorded; {n}"),
        (other, "the same"),
    ):
        assert edition.made(compare(before, other).compared[PLACE]) == words


def test_what_was_published_at_a_revision_is_compared_with_today(project, capsys):
    """Through git, the command, the file and the page; the claim of a small project scores as many
    as it has images."""

    def run(*command):
        assert main(list(command), project.root) == 0

    run("run", "aa1-first", "--run", "mine")
    run("publish", "mine")
    first = commit(project.root, "First")
    run("run", "aa1-first", "aa2-second", "--run", "mine", "-p", "n=1", "--force")
    run("publish", "mine", "--force")
    capsys.readouterr()
    run("compare", "--edition", "HEAD")
    said = f"book/edition.json: 1 result of mine at {first[:7]} of 20"
    assert capsys.readouterr().out.startswith(said)
    stored = edition.load(project.root)
    assert stored["revision"] == first
    assert stored["runs"]["mine"]["aa1-first"]["values"][0]["value"] == 2

    why = project.root / edition.WHY
    moved = f"{edition.WHY}: a verdict of mine/aa1-first moved since the last edition; say why"
    assert moved in list(check.problems(project))
    why.write_text("mine/aa1-first: One image | was enough.\n")
    assert moved not in list(check.problems(project))
    paths = (project.runs / "mine").glob("*.json")
    now = {"mine": {path.stem: json.loads(path.read_text()) for path in paths}}
    text = page(project.root, project.registry, now)
    assert "Compared are 1 results" in text["edition-about"]
    assert "New: <a href='claims/aa2-second.html#mine'>aa2-second</a>" in text["edition-about"]
    for part in ("verdicts", "values"):
        assert "(mine): One image | was enough." in text[f"edition-{part}"], text
    assert "n: 2 → 1" in text["edition-verdicts"] and "| 2 | 1 | -1 |" in text["edition-values"]
    assert text["edition-verdicts"].count("class='verdict refuted'") == 2  # the claim and its model

    why.write_text("mine/aa2-second: It is new.\nother/aa1-first: It is not there.\n")
    lines = list(edition.problems(project.root, project.registry, now))
    gone = "nothing of other/aa1-first changed since the last edition; take the line out"
    assert lines[1:] == [f"{edition.WHY}: {gone}"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--edition", "nowhere"], "there is no revision 'nowhere' in the git history"),
        (["--edition", "HEAD"], "nothing was published at 'HEAD'; name a later revision"),
        (["--edition", "HEAD", "a"], "--edition compares all that is published; leave A and B out"),
        (["a"], "name two runs or result files to compare, or --edition REV"),
        ([], "name two runs or result files to compare, or --edition REV"),
    ],
)
def test_what_is_no_edition_is_one_sentence(project, capsys, arguments, message):
    commit(project.root, "First")
    assert main(["compare", *arguments], project.root) == 2
    out, error = capsys.readouterr()
    assert out == "" and message in error and error.count("\n") == 1


@pytest.mark.parametrize("text", ["- a", "a/b/c: why", "a: why", "a/b: ''", "a/b: 3"])
def test_a_reason_that_is_none_is_named(tmp_path, text):
    (tmp_path / edition.WHY).parent.mkdir()
    (tmp_path / edition.WHY).write_text(text)
    with pytest.raises(ValueError, match="^book/edition-why.yml: "):
        edition.reasons(tmp_path)


def test_a_book_without_an_earlier_edition_says_so(tmp_path):
    *parts, second = page(tmp_path, PROJECT.registry, {}).values()
    assert set(map(str.strip, parts)) == {"No earlier edition is compared with this one."}
    assert second.strip() == "No published run has been repeated on other instructions yet."
