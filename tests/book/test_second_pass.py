"""A second pass over a published run: with what it is compared, what it says, and what it
refuses."""

import json

import pytest

from helpers.__main__ import main
from helpers.book import second_pass
from helpers.run import check, portable
from helpers.run.portable import MACHINES, Setting

OTHER = Setting("other")


@pytest.fixture
def published(project, capsys, monkeypatch):
    """The small project with one published result, and a setting that every machine has."""
    assert main(["run", "aa1-first", "--run", "mine"], project.root) == 0
    assert main(["publish", "mine"], project.root) == 0
    capsys.readouterr()
    monkeypatch.setattr(second_pass, "PROCESSORS", (OTHER,))
    return project


def test_a_fresh_result_is_compared_with_what_is_published(published, tmp_path, capsys):
    file = tmp_path / "second.json"
    assert (
        main(
            ["portable", "--run", "mine", "--setting", "other", "--json", str(file)], published.root
        )
        == 0
    )
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["run"], row["claim"], row["n"], row["against"], row["given"]) == (
        "mine",
        "aa1-first",
        2,
        "published",
        {},
    )
    assert row["verdicts"] == {"": ["supported"] * 2, "control-clean": ["supported"] * 2} and list(
        row["seconds"]
    ) == ["other"]
    assert (
        row["worst"] == {"path": "", "ratio": 0}
        and row["processor"]["torch"]
        and "git_revision" in row
    )
    assert (
        "2 verdicts, none moved; largest deviation 0 of its tolerance (none)"
        in capsys.readouterr().out
    )


def test_with_other_parameters_both_sides_run_here(published, monkeypatch, tmp_path, capsys):
    asked, outcomes = [], portable.outcomes_of

    def moving(project, setting, ids):
        asked.append((setting.name, setting.parameters["n"]))
        (outcome,) = outcomes(project, setting, ids)
        if setting.name == "other":
            outcome["numbers"]["verdict"] = outcome["numbers"]["models"]["control-clean"][
                "verdict"
            ] = "refuted"
            outcome["numbers"]["values"]["control-clean"]["score"]["value"] *= 2
        yield outcome

    monkeypatch.setattr(second_pass, "outcomes_of", moving)
    file = tmp_path / "book" / "second-pass.json"
    file.parent.mkdir()
    command = [
        "portable",
        "aa1-first",
        "--run",
        "mine",
        "--setting",
        "other",
        "-p",
        "n=5",
        "--json",
        str(file),
    ]
    assert main(command, published.root) == 1
    assert asked == [(MACHINES[0].name, 5), ("other", 5)]
    assert (
        "MOVED: all together supported -> refuted; control-clean supported -> refuted"
        in capsys.readouterr().out
    )
    main([*command, "-p", "n=7"], published.root)  # in place of the row before
    (row,) = second_pass.read(file)
    assert row["given"] == {"n": "7"} and row["worst"]["ratio"] > 1
    text = second_pass.fragment(tmp_path)
    assert text.startswith("0 of 2 verdicts are the same.") and " | 0 of 2 | " in text
    moved = [
        line
        for line in text.partition("Those that are not:")[2].splitlines()
        if "aa1-first" in line
    ]
    page = "[aa1-first](runs/mine/aa1-first.ipynb) (mine)"
    assert f"| {page} | 7 |" in text
    assert [line.split(" | ")[:2] for line in moved] == [
        [f"| {page}", "all together"],
        [f"| {page}", "clean (control)"],
    ]


def test_what_stayed_the_same_takes_one_line(published, tmp_path):
    file = tmp_path / "book" / "second-pass.json"
    file.parent.mkdir()
    assert (
        main(
            ["portable", "--run", "mine", "--setting", "other", "--json", str(file)], published.root
        )
        == 0
    )
    text = second_pass.fragment(tmp_path)
    assert text.startswith("2 of 2 verdicts are the same.") and text.count("aa1-first.ipynb") == 1
    assert " | 2 of 2 | 0 |" in text and "Those that are not" not in text


def test_a_stale_result_is_not_compared_with_what_it_was(published, monkeypatch):
    monkeypatch.setattr(check, "changed", lambda project: {"mine": ["aa1-first"]})
    (row,) = second_pass.second_pass(published, "mine", [], {}, OTHER)
    assert row["against"] == MACHINES[0].name and list(row["seconds"]) == [
        MACHINES[0].name,
        "other",
    ]


def test_a_notebook_that_fails_is_told(published, monkeypatch, capsys):
    monkeypatch.setattr(
        second_pass, "outcomes_of", lambda *_: [{"id": "aa1-first", "failed": "OSError: gone"}]
    )
    assert main(["portable", "--run", "mine", "--setting", "other"], published.root) == 1
    assert (
        capsys.readouterr().out
        == "mine/aa1-first: other beside published: failed, other: OSError: gone\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--run", "nowhere", "--setting", "other"],
            "nothing of run 'nowhere' is published; choose one of mine",
        ),
        (
            ["aa2-second", "--run", "mine", "--setting", "other"],
            "claim 'aa2-second' has no result in run 'mine'",
        ),
        (["--run", "mine", "--setting", "odd"], "unknown setting 'odd'; choose one of other"),
        (
            ["--run", "mine", "--setting", "other", "-p", "m=3"],
            "claim 'aa1-first': unknown parameter 'm'",
        ),
        (
            ["--run", "mine", "--quick"],
            "--quick and --spread are for the controls; leave out --run",
        ),
        (["-p", "n=3"], "-p and --setting are for a published run; name it with --run"),
        (
            ["--run", "mine", "--setting", "other", "--json", "_toc.yml"],
            "_toc.yml holds something else; name another file",
        ),
    ],
)
def test_what_cannot_be_repeated_is_one_sentence(
    published, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(published.root)
    assert main(["portable", *arguments], published.root) == 2
    out, error = capsys.readouterr()
    assert out == "" and message in error and error.count("\n") == 1


def test_what_this_machine_has_not_is_told(monkeypatch):
    monkeypatch.setattr(second_pass, "PROCESSORS", (Setting("odd", needs="no_such_flag"),))
    with pytest.raises(
        ValueError, match="setting 'odd' cannot be had: this processor has no no_such_flag"
    ):
        second_pass.setting_of("odd")


def test_a_book_without_a_second_pass_says_so(tmp_path):
    assert (
        second_pass.fragment(tmp_path)
        == "No published run has been repeated on other instructions yet."
    )
