import io
import json
import re
import shutil
import subprocess
import sys
import textwrap

import pandas as pd
import pytest
from conftest import edit_profiles, edit_registry

from helpers.book import build as book
from helpers.claims.project import Project
from helpers.cli import commands, main


def margin(project, value):
    """Change the criterion of aa1-first."""
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=value),
    )


def listed(typed):
    return {line.split()[0]: line for line in typed("list").splitlines()}


def test_list_goes_on_after_what_is_broken(project, typed):
    typed("run aa1-first --run mine")
    broken = project.runs / "other"
    broken.mkdir(parents=True)
    (broken / "aa1-first.json").write_text("[")
    lines = listed(typed)
    assert set(lines) == {"claim", "aa1-first", "aa2-second"}
    assert "other: unreadable" in lines["aa1-first"]
    assert lines["aa1-first"].endswith("mine (not published): our own question; supported")
    assert lines["aa2-second"].endswith("  no result yet")
    margin(project, 3)
    assert listed(typed)["aa1-first"].endswith("supported, by today's criterion refuted")


def test_the_values_of_a_claim_can_be_read_by_a_program(project, typed):
    typed("run aa1-first --run mine")
    line = typed("list --run mine").splitlines()[-1]
    assert line.startswith("aa1-first") and line.endswith("our own question; supported")
    typed("baselines aa1")
    table = pd.read_csv(io.StringIO(typed("show aa1 --values")))
    assert [*table.run] == ["mine", "controls"] and [*table.value] == [2, 2]
    (project.runs / "controls").mkdir(parents=True)
    shutil.copy(
        project.own / "mine" / "aa1-first.json", project.runs / "controls" / "aa0-went.json"
    )
    typed("check")  # what a removed claim left there is no disagreement


def test_what_the_criterion_asks_for_and_nobody_measured_is_named(project, typed):
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(value="socre"),
    )
    missing = "the criterion asks for socre, not measured here"
    assert missing in typed("run aa1-first") and missing in typed("show aa1")
    typed("baselines aa1", 1)
    assert f"aa1-first.ipynb: aa1-first: {missing}" in typed("check", 1)


def test_run_prints_a_line_a_notebook(typed):
    line, where = typed("run aa1-first -p n=1").splitlines()
    assert re.match(r"aa1-first  refuted  \([.\d]+ s\): 1 refuted: score = 1 > 1 fails on", line)
    assert where == "results in _build/runs/mine"
    assert typed("run aa1-first -p n=1") == f"aa1-first  kept\n{where}\n"
    failed = typed("run aa1-first aa2-second --run other -p mode=fail", 1).splitlines()[:2]
    heads = sorted(line.split(":")[0] for line in failed)
    assert heads == ["aa1-first  failed", "aa2-second  failed"]


def test_what_would_run(project, typed):
    assert typed("run --paper beyond --run large --plan").splitlines() == [
        "large/aa1-first  to run",
        "large/aa2-second  to run",
    ]
    assert typed("run aa1-first -p n=1 --plan") == "mine/aa1-first  to run\n"
    assert typed("run --changed") == "nothing is to be run\n"
    typed("run --all --run large")
    assert "large/aa1-first  kept" in typed("run --all --run large --plan").splitlines()
    typed("publish large")
    edit_profiles(project.root, lambda profiles: profiles["aa2-second"]["large"].update(n=6))
    for more in ("", "--run large", "--paper beyond"):
        assert typed(f"run --changed --plan {more}") == "large/aa2-second  to run\n"


REFUSED = {
    "rnu": "rnu",
    "run": "name claims",
    "run aa1-first --all": "name claims",
    "run --paper beyonf": "beyonf",
    "run --changed -p n=1": "-p",
    "run aa1-first --run controls -p n=1": "--run",
    "run aa1-first --profile lagre": "lagre",
    "run --all --html": "--html",
    "run --all -p m=1": "'m'",
    "run --all --run lagre": "lagre",
    "run aa1-frist": "did you mean 'aa1-first'",
    "run aa1-first -p n": "n: write it as NAME=VALUE",
    "run aa1-first -p rates=1": "did you mean 'rate'",
    "run aa1-first -p n=many": "many",
    "run aa1-first --run a/b": "a/b",
    "run aa1-first --jobs 0": "--jobs",
    "list --run mine": "mine",
    "show aa1-frist": "did you mean 'aa1-first'",
    "publish mine": "mine",
    "publish controls": "controls",
    "edit control-clean --out x": "--auto",
    "edit control-clean --out x --neurons 7": "'7'",
    "diagnose control-clean control-position --out x": "--out",
    "diagnose vit_nothing": "vit_nothing",
    "diagnose notebooks/profiles.yml": "file:notebooks/profiles.yml@ARCH",
    "diagnose control-clean --images nothing": "nothing",
    "diagnose control-clean --images scenes -n 3": "3 images",
}


@pytest.mark.parametrize("line", REFUSED)
def test_user_errors_are_one_line(project, typed, monkeypatch, line):
    """And nothing is written."""
    monkeypatch.chdir(project.root)
    before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    said = typed(line, 2)
    assert said.startswith("error: ") and said.count("\n") == 1 and REFUSED[line] in said
    assert {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()} == before


def test_several_models_have_a_file_each(tmp_path, capsys):
    """And one that is not there does not stop the others."""
    command = "diagnose control-clean vit_nothing control-position --images scenes -n 4 --json"
    assert main([*command.split(), str(tmp_path)]) == 1
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["control-clean", "control-position"]
    found = json.loads((tmp_path / "control-position.json").read_text())
    assert found["outliers"] is True and "vit_nothing: failed: " in capsys.readouterr().out


def test_check_names_old_results_and_fails_on_them_only_if_strict(project, typed):
    typed("run --all --run large")
    typed("publish large")
    agree, _ = typed("check --strict").splitlines()
    assert agree == "registry, notebooks, table of contents and results agree"
    edit_profiles(project.root, lambda profiles: profiles["aa1-first"]["large"].update(n=6))
    assert "large: our own question; supported, stale" in listed(typed)["aa1-first"]
    assert typed("check") == (said := typed("check --strict", 1))
    assert "note: book/runs/large/aa1-first.json: stale, made with other parameters" in said
    out = typed("run --changed")
    assert out.startswith("aa1-first  supported") and "aa2-second" not in out
    assert "aa2-second  kept: published as it is\n" in typed("run --all --run large")
    typed("publish large --force")
    typed("check --strict")
    margin(project, 7)
    assert "by today's supported, now refuted" in typed("check --strict", 1)


def test_book_runs_the_controls_and_prints_the_page(project, typed, monkeypatch, capsys):
    monkeypatch.setattr(book, "build", lambda root: root / "_build" / "html")
    *ran, controls, page = typed("book").splitlines()
    assert controls.startswith("2 claims on reference models: 2 of 2 as expected.")
    assert {line.split()[0] for line in ran} == {"aa1-first", "aa2-second"}
    assert page == str(project.root / "_build" / "html" / "index.html")
    written = {path.stem for path in (project.runs / "controls").glob("*.json")}
    assert written == {"aa1-first", "aa2-second"}
    monkeypatch.setattr(book, "build", lambda root: pytest.fail("built"))
    path = project.notebook_path("aa1-first")
    path.write_text(path.read_text().replace('mode == \\"fail\\"', "True"))
    assert main(["book"], project.root) == 1
    assert "was not built" in capsys.readouterr().err


def test_a_wrong_calibration_is_told_and_fails_check_and_baselines(project, typed):
    margin(project, 9)
    wrong = "0/1 controls as expected: control-clean is refuted, not supported"
    assert typed("run aa1-first").startswith(f"aa1-first  {wrong}  (")
    assert typed("run aa1-first").startswith(f"aa1-first  kept, {wrong}")
    assert f"aa1-first  stored, {wrong}" in typed("baselines aa1", 1)
    assert f"aa1-first.ipynb: aa1-first: {wrong}" in typed("check", 1)


def test_help_carries_an_example_for_each_command(typed):
    text = typed("")
    assert text.startswith("Usage: python -m helpers") and len(commands.commands) == 10
    for name in commands.commands:
        assert f"  {name}  " in text
        assert f"example: python -m helpers {name}" in " ".join(typed(f"{name} -h").split())
    assert typed("--version").startswith("registers-reproduced ")


def test_list_starts_at_once():
    """Nothing that takes seconds to import."""
    code = """
    import contextlib, io, json, sys
    from helpers.cli import main
    with contextlib.redirect_stdout(io.StringIO()):
        main(["list"])
    print(sorted({"torch", "papermill", "scipy"} & {*sys.modules}))"""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.check_output(command, cwd=Project().root, text=True) == "[]\n"
