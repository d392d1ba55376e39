"""An edition: what lies in it, that it is the same each time, and what it refuses."""

import subprocess
from zipfile import ZipFile

import pytest

from helpers.book import build as book
from helpers.book import release
from helpers.cli import main
from helpers.files import digest_of
from helpers.run import check

PAGES = {"index.html": "<p>first</p>", "data/values.csv": "run\n", "book/a.html": "a"}


@pytest.fixture
def ready(project, monkeypatch):
    """The small project, committed with what an edition needs, and a book that takes no time."""
    (project.root / "pyproject.toml").write_text('[project]\nname = "small"\nversion = "1.2.0"\n')
    (project.root / ".gitignore").write_text("_build/\n")
    for name in release.FILES:
        (project.root / name).write_text(name)
    author = "-c user.name=a -c user.email=a@b.c"
    for command in ("init -q", "add .", f"{author} commit -qm All"):
        subprocess.run(["git", "-C", project.root, *command.split()], check=True)

    def build(root, place, stored):
        assert stored
        for name, text in {**PAGES, **{f"data/{table}": table for table in release.TABLES}}.items():
            path = place / "html" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return place / "html"

    monkeypatch.setattr(book, "build", build)
    monkeypatch.setattr(check, "problems", lambda project: iter(()))
    return project


def test_an_edition_holds_the_book_all_values_and_checksums(ready, capsys):
    assert main(["release"], ready.root) == 0
    folder = ready.root / "_build" / "release" / "small-1.2.0"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    names = {"small-1.2.0-html.zip", *release.FILES, *release.TABLES}
    assert first.keys() == names | {release.SUMS}
    assert all(first[name] == name.encode() for name in (*release.FILES[1:], *release.TABLES))
    with ZipFile(folder / "small-1.2.0-html.zip") as archive:
        assert archive.read("small-1.2.0/index.html").decode() == PAGES["index.html"]
    sums = [line.split("  ") for line in first[release.SUMS].decode().splitlines()]
    assert {name: digest for digest, name in sums} == {n: digest_of(first[n]) for n in names}
    assert "small-1.2.0-html.zip" in capsys.readouterr().out
    (folder / "left").touch()
    assert release.release(ready) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_local_changes_are_refused_but_for_a_draft(ready, capsys):
    (ready.root / "LICENSE").write_text("other")
    (ready.root / "new.md").touch()
    assert main(["release"], ready.root) == 1
    out, error = capsys.readouterr()
    assert out.splitlines() == ["LICENSE: not committed", "new.md: not committed"]
    assert (
        error == "error: 2 things stand against an edition, see above; mend them, or give --draft\n"
    )
    assert not (ready.root / "_build" / "release").exists()
    assert main(["release", "--draft"], ready.root) == 0
    assert (
        ready.root / "_build" / "release" / "small-1.2.0-draft" / "LICENSE"
    ).read_text() == "other"


def test_what_check_finds_is_refused(ready, monkeypatch, capsys):
    monkeypatch.setattr(check, "problems", lambda project: iter(["a.ipynb: is alone"]))
    monkeypatch.setattr(
        check, "outdated", lambda project, known: ["b.json: stale"] if known else []
    )
    monkeypatch.setattr(check, "survey", lambda project: iter(["book/portability.json: old"]))
    assert main(["release"], ready.root) == 1
    found = capsys.readouterr().out.splitlines()
    assert found == ["a.ipynb: is alone", "b.json: stale", "book/portability.json: old"]


def test_without_a_history_nobody_knows_what_it_is(ready, monkeypatch):
    monkeypatch.setattr(release, "local_changes", lambda *_: None)
    monkeypatch.setattr(check, "git", lambda *_: None)
    (line,) = release.obstacles(ready)
    assert line.startswith("the git history is not here")


@pytest.mark.parametrize(
    ("missing", "most", "status", "message"),
    [
        ("CHANGELOG.md", release.MOST, 2, "error: there is no CHANGELOG.md in "),
        (None, 10, 1, "error: small-1.2.0 weighs 0 MB, more than 0"),
    ],
)
def test_what_is_missing_or_too_heavy_is_refused(
    ready, monkeypatch, capsys, missing, most, status, message
):
    monkeypatch.setattr(release, "MOST", most)
    if missing:
        (ready.root / missing).unlink()
    assert main(["release"], ready.root) == status
    out, error = capsys.readouterr()
    assert out == "" and error.startswith(message) and error.count("\n") == 1
    assert not (ready.root / "_build" / "release" / "small-1.2.0").exists()


@pytest.mark.parametrize("text", ["[tool]\n", "[project", "project = 3\n", "\xff"])
def test_a_project_without_a_version_is_refused(ready, capsys, text):
    (ready.root / "pyproject.toml").write_text(text, encoding="latin-1")
    assert main(["release", "--draft"], ready.root) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: pyproject.toml cannot be read (") and error.count("\n") == 1
