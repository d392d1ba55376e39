import shutil
import subprocess
import sys

import pytest
from conftest import edit_registry

from helpers.book import build as book
from helpers.cli import main


def test_list(project, capsys):
    assert main(["run", "aa1-first", "--run", "mine"], project.root) == 0
    (project.runs / "other").mkdir(parents=True)
    (project.runs / "other" / "aa1-first.json").write_text("{}")
    capsys.readouterr()
    assert main(["list"], project.root) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {"claim", "aa1-first", "aa2-second", "aa3-later"}
    assert lines["claim"].endswith("verdict of each run, and whether it agrees with the paper")
    assert lines["aa1-first"].endswith(
        "  other: unreadable, see `check`; mine (not published): supported, not stated"
    )
    assert "notebooks/beyond/aa2-second.ipynb" in lines["aa2-second"] and lines[
        "aa2-second"
    ].endswith("  -")
    assert "none yet: needs probes" in lines["aa3-later"]


def test_list_tells_todays_verdict_where_an_earlier_criterion_judged(project, capsys):
    assert main(["run", "aa1-first", "--run", "mine"], project.root) == 0
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=3),
    )
    capsys.readouterr()
    assert main(["list"], project.root) == 0
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("aa1-first")
    ]
    assert line.endswith(
        "mine (not published): supported, not stated (by an earlier criterion; by today's refuted, "
        "not stated)"
    )


def test_list_goes_on_after_what_is_broken(project, capsys):
    folder = project.runs / "other"
    (folder / "aa1-first.json").mkdir(parents=True)
    (folder / "aa2-second.json").write_text("[" * 100_000)
    assert main(["list"], project.root) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["aa1-first"].endswith("other: unreadable, see `check`")
    assert lines["aa2-second"].endswith("other: unreadable, see `check`") and "aa3-later" in lines


@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_leaves_is_no_error(project, buffered):
    """As of `list | head -1`, whether the lines are written as they come or when the command ends."""  # noqa: E501
    command = [
        sys.executable,
        *([] if buffered else ["-u"]),
        "-m",
        "helpers",
        "--project",
        str(project.root),
        "list",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 141)


def test_another_broken_pipe_is_told(project, monkeypatch, capsys):
    def broken(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("helpers.cli._project", broken)
    assert main(["list"], project.root) == 2
    assert capsys.readouterr().err == "error: [Errno 32] Broken pipe\n"


def test_run_prints_a_line_a_notebook(project, capsys):
    assert main(["run", "aa1-first", "-p", "n=1", "--jobs", "1"], project.root) == 0
    out, err = capsys.readouterr()
    where = "results in _build/runs/mine; `book` shows them, `publish mine` publishes them\n"
    assert (
        out.startswith("aa1-first  ") and out.endswith(where) and out.count("\n") == 2 and err == ""
    )
    assert main(["run", "aa1-first", "-p", "n=1"], project.root) == 0
    assert capsys.readouterr().out == f"aa1-first  kept\n{where}"
    assert (
        main(["run", "aa1-first", "aa2-second", "--run", "other", "-p", "mode=fail"], project.root)
        == 1
    )
    out = capsys.readouterr().out
    assert sorted(line.split(":")[0] for line in out.splitlines()[:2]) == [
        "aa1-first  failed",
        "aa2-second  failed",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rnu"], "No such command 'rnu'"),
        (
            ["run"],
            "name the claims to run, or give --all, --paper PAPER or --changed without names",
        ),
        (
            ["run", "aa1-first", "--all"],
            "name the claims to run, or give --all, --paper PAPER or --changed without names",
        ),
        (
            ["run", "--paper", "beyonf"],
            "--paper is 'beyonf'; choose one of beyond",
        ),
        (
            ["run", "--changed", "-p", "n=1"],
            "--changed makes published results anew, with the parameters that they have",
        ),
        (
            ["run", "aa1-first", "--run", "controls", "-p", "n=1"],
            "the run 'controls' has the parameters of the notebooks; give",
        ),
        (["run", "--all", "-p", "m=1"], "claim 'aa1-first': unknown parameter 'm'; did you mean"),
        (["show", "aa1-frist"], "unknown claim 'aa1-frist'; did you mean 'aa1-first'?"),
        (
            ["publish", "mine"],
            "there is no run 'mine' in _build/runs; make it with `run ID --run mine`",
        ),
        (["publish", "controls"], "the run 'controls' is no finding and is not published"),
        (
            ["run", "--all", "--run", "lagre"],
            "no claim has a profile 'lagre' or a result in that run; choose one of controls,",
        ),
        (["run", "aa1-frist"], "unknown claim 'aa1-frist'; did you mean 'aa1-first'?"),
        (["run", "aa1-first", "-p", "n"], "'-p' / '--parameter': n: write it as NAME=VALUE"),
        (["run", "aa1-first", "-p", "m=1"], "unknown parameter 'm'"),
        (["run", "aa1-first", "--run", "a/b"], "run name 'a/b' is not a plain folder name"),
        (["run", "aa1-first", "--jobs", "0"], "'--jobs': 0 is not in the range 1<=x<="),
        (["baselines", "aa3-later"], "claim 'aa3-later' has no notebook yet: needs probes"),
        (
            ["criteria"],
            "there is no log of criteria (notebooks/criteria) yet; name a claim to begin one",
        ),
        (["criteria", "--seen", "nothing"], "name the claim whose criterion changed"),
        (
            ["criteria", "aa1-first", "--reason", "Why."],
            "aa1-first: say what had been seen (--seen 'nothing', 'controls', 'real",
        ),
        (["criteria", "aa1-first", "--seen", "controls"], "and why (--reason TEXT)"),
        (
            ["criteria", "aa1-frist", "--seen", "nothing", "--reason", "x"],
            "unknown claim 'aa1-frist'; did you mean 'aa1-first'?",
        ),
        (["train"], "Missing argument 'PRESET'"),
        (["train", "cpo"], "unknown preset 'cpo'; choose one of cpu, gap, "),
        (["train", "cpu", "--set", "stpes=20"], "unknown parameter 'stpes'; did you mean 'steps'?"),
        (
            ["train", "cpu", "--set", "steps=many"],
            "parameter steps=many: expected int, as in its default 2000",
        ),
        (["train", "cpu", "--set", "steps"], "'--set': steps: write it as NAME=VALUE"),
        (["train", "cpu", "--set", "registers=2"], "--set registers: give it as --registers"),
        (["train", "cpu", "--set", "seed=2"], "--set seed: give it as --seeds"),
        (
            ["train", "cpu", "--set", "image_size=60"],
            "image size 60 must be a multiple of the patch size 8",
        ),
        (["train", "cpu", "--set", "batch_size=3"], "batch_size is 3; give an even number"),
        (["train", "cpu", "--set", "lr=nan"], "lr is nan; give at least 0"),
        (
            ["train", "cpu", "--set", "train=scene"],
            "unknown data set 'scene'; did you mean 'scenes'?",
        ),
        (["train", "cpu", "--registers", "x"], "'x' is not a list of whole numbers such as 0,1,2"),
        (["train", "cpu", "--seeds", "0,-1"], "'0,-1' is not a list of whole numbers"),
        (
            ["train", "cpu", "--workers", "two"],
            "'--workers': 'two' is not a valid integer",
        ),
        (
            ["train", "cpu", "--workers", "-1"],
            "'--workers': -1 is not in the range 0<=x<=",
        ),
        (
            ["train", "cpu", "--jobs", "9" * 5000],
            "9' is not a valid integer",
        ),
        (
            ["run", "aa1-first", "-p", "a\nb"],
            "argument 'a\\nb' holds what is no printable text; leave it out",
        ),
        (
            ["run", "aa1-first", "-p", "dataset=folder:\udcff"],
            "argument 'dataset=folder:\\udcff' holds what is no printable text",
        ),
        (
            ["train", "cpu", "--name", "\u2028"],
            "argument '\\u2028' holds what is no printable text",
        ),
        (
            ["train", "cpu", "--name", "a/b"],
            "--name a/b: it becomes part of a file's name; leave out '/'",
        ),
        (
            ["train", "cpu", "--device", "cuda:99"],
            "there is no device 'cuda:99' here; use --device cpu",
        ),
    ],
)
def test_user_errors_are_one_sentence(project, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(project.root)
    before = sorted(project.root.rglob("*"))
    assert main(arguments, project.root) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err
    assert sorted(project.root.rglob("*")) == before


def test_invalid_registry(project, capsys):
    edit_registry(project.root, lambda data: data["claims"]["aa1-first"].pop("title"))
    assert main(["list"], project.root) == 2
    assert (
        "error: claims/beyond.yml: claims.aa1-first: 'title' is a required property"
        in capsys.readouterr().err
    )
    (project.root / "notebooks" / "profiles.yml").unlink()
    assert main(["check"], project.root) == 2
    assert capsys.readouterr().err.startswith("error: no registry at ")


def test_check_ends_with_1_where_something_disagrees(project, capsys):
    assert main(["check"], project.root) == 0
    shutil.rmtree(project.root / "notebooks" / "beyond")
    assert main(["check"], project.root) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"notebooks/beyond/{id}.ipynb: missing, although notebooks/claims has its claim"
        for id in ("aa1-first", "aa2-second")
    ]


def test_check_names_old_results_and_fails_on_them_only_if_strict(project, capsys):
    assert (
        main(["run", "--all", "--run", "large"], project.root)
        == main(["publish", "large"], project.root)
        == 0
    )
    capsys.readouterr()
    assert main(["check", "--strict"], project.root) == 0
    agree, unchecked = capsys.readouterr().out.splitlines()
    assert agree == "registry, notebooks, table of contents and results agree"
    assert (
        unchecked
        == "note: the revisions of the results were not checked, since the whole git history is not here"  # noqa: E501
    )
    path = project.source("aa1-first")
    path.write_text(path.read_text().replace("time.sleep(600)", "time.sleep(601)"))
    for arguments, status in ((["check"], 0), (["check", "--strict"], 1)):
        assert main(arguments, project.root) == status
        assert capsys.readouterr().out.splitlines() == [
            agree,
            "note: book/runs/large/aa1-first.json: stale, made with other notebook",
            "note: 1 of 2 published results are not of today's code; `run --changed` makes them "
            "anew",
            unchecked,
        ]
    assert main(["run", "--changed"], project.root) == 0
    out = capsys.readouterr().out
    assert out.startswith("aa1-first  supported") and "aa2-second" not in out
    assert (
        main(["run", "--all", "--run", "large"], project.root)
        == main(["publish", "large"], project.root)
        == 0
    )
    out = capsys.readouterr().out
    assert "aa1-first  kept\n" in out and "aa2-second  kept: published as it is\n" in out
    assert main(["check", "--strict"], project.root) == 0
    (project.root / "book" / "portability.json").write_text('{"verdicts": {}}')
    for arguments, status in ((["check"], 0), (["check", "--strict"], 1)):
        assert main(arguments, project.root) == status
        assert (
            "note: book/portability.json: not of today's aa1-first, aa2-second; "
            in capsys.readouterr().out
        )


def test_check_tells_what_an_earlier_criterion_judged_and_fails_on_it_only_if_strict(
    project, capsys
):
    assert (
        main(["run", "--all", "--run", "large"], project.root)
        == main(["publish", "large"], project.root)
        == 0
    )
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=7),
    )
    capsys.readouterr()
    told = "judged by an earlier criterion; by today's supported, now refuted"
    for arguments, status in ((["check"], 0), (["check", "--strict"], 1)):
        assert main(arguments, project.root) == status
        assert told in capsys.readouterr().out


def test_a_changed_criterion_needs_an_entry(project, capsys):
    for id in ("aa1-first", "aa2-second", "aa3-later"):
        main(["criteria", id, "--seen", "nothing", "--reason", "First criterion."], project.root)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("aa1-first: ") and out[-1] == "every criterion has its entry"
    assert main(["criteria"], project.root) == main(["check"], project.root) == 0
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=1.5),
    )
    capsys.readouterr()
    for command in ("criteria", "check"):
        assert main([command], project.root) == 1
        (line,) = (
            line for line in capsys.readouterr().out.splitlines() if not line.startswith("note: ")
        )
        assert line.startswith(
            "notebooks/criteria/beyond.yml: aa1-first: criterion or expected verdicts differ"
        )
        assert (
            "`python -m helpers criteria aa1-first --seen 'nothing'|'controls'|'real data' "
            "--reason WHY`" in line
        )
    assert (
        main(["criteria", "aa1-first", "--seen", "real data", "--reason", "A guard."], project.root)
        == 0
    )
    assert main(["check"], project.root) == 0


def test_book_runs_the_controls_and_prints_the_page(project, capsys, monkeypatch):
    monkeypatch.setattr(book, "build", lambda root: root / "_build" / "html")
    assert (
        main(["run", "aa1-first", "aa2-second", "--run", "large", "-p", "n=3"], project.root) == 0
    )
    assert main(["publish", "large"], project.root) == 0
    capsys.readouterr()
    assert main(["book"], project.root) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines[:2]} == {"aa1-first", "aa2-second"}
    assert lines[2:] == [
        "registry, notebooks, table of contents and results agree",
        "2 of 2 published results are not of today's code; `check` names them",
        str(project.root / "_build" / "html" / "index.html"),
    ]
    assert {path.stem for path in (project.runs / "controls").glob("*.json")} == {
        "aa1-first",
        "aa2-second",
    }


def test_book_is_not_built_over_failures(project, capsys, monkeypatch):
    monkeypatch.setattr(book, "build", lambda root: pytest.fail("built"))
    path = project.source("aa1-first")
    path.write_text(
        path.read_text().replace("time.sleep(600)", "pass").replace('mode == \\"fail\\"', "True")
    )
    assert main(["book"], project.root) == 1
    assert "was not built" in capsys.readouterr().err


def test_help_carries_an_example_for_each_command():
    command = [sys.executable, "-m", "helpers"]
    text = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    for name in (
        "list",
        "run",
        "show",
        "publish",
        "train",
        "book",
        "check",
        "criteria",
        "baselines",
    ):
        assert name in text
        shown = subprocess.run(
            [*command, name, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert f"example: python -m helpers {name}" in " ".join(shown.split())
