"""How the book shows a reader's own runs."""

import shutil

from test_book import chapters, library, publish_run, read  # noqa: F401  (library is a fixture)

from helpers.book.build import assemble


def test_the_book_shows_them_apart(library):  # noqa: F811
    publish_run(library, "mine", "aa1-first")
    publish_run(library, "bob", "aa1-first", score=0.5)
    publish_run(library, "bob", "aa2-second")
    library.own.mkdir(parents=True)
    shutil.move(library.runs / "bob", library.own / "bob")
    (library.own / "bob" / "aa2-second.json").write_text("{}")
    source = assemble(library.root)
    contents = chapters(source)
    assert list(contents)[1:3] == ["Findings", "Your own runs"]
    [run] = contents["Your own runs"]
    assert run["file"] == "book/own/bob/index" and [one["file"] for one in run["sections"]] == [
        "book/own/bob/aa1-first"
    ]
    assert (source.parent / "data" / "own" / "bob" / "aa1-first.json").is_file()
    page = read(source, "book", "own", "bob", "index.md")
    assert (
        "`python -m helpers publish bob` makes it a finding" in page
        and "own/bob/aa1-first.html" in page
    )
    assert (source / "book" / "own" / "bob" / "aa1-first.ipynb").is_file()
    for name in ("scoreboard", "summary"):
        assert "bob" not in read(source, "book", "_generated", f"{name}.md")
