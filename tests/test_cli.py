import json
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from conftest import edit_registry

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
    rows, _, _ = typed("list").partition("\n\n")  # below them what the words mean
    return {line.split()[0]: line for line in rows.splitlines()}


def test_list(project, typed):
    """It goes on after what is broken."""
    typed("run aa1-first --run mine")
    broken = project.runs / "other"
    (broken / "aa2-second.json").mkdir(parents=True)
    (broken / "aa1-first.json").write_text("[" * 100_000)
    lines = listed(typed)
    assert set(lines) == {"claim", "aa1-first", "aa2-second", "aa3-later"}
    assert lines["claim"].endswith("verdict of each run, and whether it agrees with the paper")
    assert lines["aa1-first"].endswith(
        "  other: unreadable, see `check`; mine (not published): supported, not stated"
    )
    assert lines["aa2-second"].endswith("other: unreadable, see `check`")
    assert lines["aa3-later"].endswith("  no notebook yet")
    assert "\n\nnot stated: the paper gives no answer that can be compared\n" in typed("list")
    margin(project, 3)
    assert listed(typed)["aa1-first"].endswith(
        "mine (not published): supported, not stated (by an earlier criterion; by today's refuted, "
        "not stated)"
    )


def test_another_broken_pipe_is_told(typed, monkeypatch):
    def broken(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("helpers.cli._project", broken)
    assert typed("list", 2) == "error: Broken pipe\n"


def test_run_prints_a_line_a_notebook(typed):
    note, out = typed("run aa1-first -p n=1 --jobs 1").split("\n", 1)
    assert note.startswith("note: left at the controls' values: models=")
    where = "results in _build/runs/mine; `book` shows them, `publish mine` publishes them\n"
    assert re.match(r"aa1-first  refuted  \([.\d]+ s\): 1 refuted: score = 1 > 1 fails on", out)
    assert out.endswith(where) and out.count("\n") == 2
    assert typed("run aa1-first -p n=1") == f"{note}\naa1-first  kept\n{where}"
    failed = typed("run aa1-first aa2-second --run other -p mode=fail", 1).splitlines()[1:3]
    heads = sorted(line.split(":")[0] for line in failed)
    assert heads == ["aa1-first  failed", "aa2-second  failed"]


NAMES = "name the claims to run, or give --all, --paper PAPER or --changed without names"
REFUSED = {
    "rnu": "No such command 'rnu'",
    "run": NAMES,
    "run aa1-first --all": NAMES,
    "run --paper beyonf": "--paper is 'beyonf'; choose one of beyond",
    "run --changed -p n=1": "--changed makes published results anew, with the parameters",
    "run aa1-first --run controls -p n=1": "the run 'controls' has the parameters of the notebooks",
    "run aa1-first --run controls --profile large": "has the parameters of the notebooks; give -p",
    "run aa1-first --profile lagre": "it has no profile 'lagre'; did you mean 'large'?",
    "run --all --profile lagre": "--profile is 'lagre'; choose one of large",
    "run --changed --profile large": "--changed makes published results anew, with the parameters",
    "run aa1-first --html --plan": "--html shows results; leave out --plan",
    f"run aa1-first -p n={'x' * 5000}": f"parameter n={'x' * 96} ...: expected int",
    "run --all -p m=1": "claim 'aa1-first': unknown parameter 'm'; choose one of models, ",
    "run --all --run lagre": "no claim has a profile 'lagre' or a result in that run; choose one",
    "run aa1-frist": "unknown claim 'aa1-frist'; did you mean 'aa1-first'?",
    "run aa2-second aa1-frist": "unknown claim 'aa1-frist'",
    "run aa3-later": "claim 'aa3-later' has no notebook yet: needs probes",
    "run aa1-first -p n": "'-p' / '--parameter': n: write it as NAME=VALUE",
    "run aa1-first -p rates=1": "claim 'aa1-first': unknown parameter 'rates'; did you mean 'rate'",
    "run aa1-first -p n=many": "claim 'aa1-first': parameter n=many: expected int, as in its",
    "run aa1-first -p n=2.5": "parameter n=2.5: expected int",
    "run aa1-first -p n=-5": "claim 'aa1-first': parameter n=-5: give at least 1",
    "run aa1-first -p seed=-1": "parameter seed=-1: give at least 0",
    "run aa1-first -p strict=yes": "parameter strict=yes: expected bool",
    "run aa1-first -p models=": "parameter models=[]: give at least one",
    "run aa1-first -p models=control-claen": "parameter models: unknown model 'control-claen'",
    "run aa1-first -p dataset=scene": "parameter dataset: unknown data set 'scene'; did you mean",
    "run aa1-first -p rate=nan": "parameter rate=nan: give a finite number",
    "run aa1-first --run a/b": "run name 'a/b' is not a plain folder name",
    "run aa1-first --run ''": "run name '' is not a plain folder name",
    "run aa1-first --run ..": "run name '..' is not a plain folder name",
    f"run aa1-first --run {'x' * 300}": "is not a plain folder name; use letters, digits, '.', '-'",
    "run aa1-first --address auto": "engine 'local' with address 'auto': choose",
    "run aa1-first --jobs 0": "'--jobs': 0 is not in the range 1<=x<=",
    "run aa1-first -p 'a\nb'": "argument 'a\\nb' holds what is no printable text; leave it out",
    "run aa1-first -p dataset=folder:\udcff": "argument 'dataset=folder:\\udcff' holds",
    "show aa": "unknown claim 'aa'; choose one of aa1-first, aa2-second, aa3-later",
    "show aa1-frist": "unknown claim 'aa1-frist'; did you mean 'aa1-first'?",
    "publish mine": "there is no run 'mine' in _build/runs; make it with `run ID --run mine`",
    "publish controls": "the run 'controls' is no finding and is not published",
    "baselines aa1 --was k=3": "--was: aa1-first has no parameter k",
    "baselines aa1-first --was n=two": "parameter n=two: expected int, as in its default 2",
    "baselines aa3-later": "claim 'aa3-later' has no notebook yet: needs probes",
    "edit control-clean --out x": "give either --neurons B:U,B:U or --auto",
    "edit control-clean --out x --neurons 7": "'7' is not a list of neurons such as 7:417,7:12",
    "train": "Missing argument 'PRESET'",
    "train no-op --base vit_tiny_patch16_224": "--base: 'quiet' trains from scratch; leave it out",
    "train cpo": "unknown preset 'cpo'; choose one of cpu, gap, ",
    "train cpu --out /dev/null": "/dev/null is no place for files; choose another",
    "train cpu --set stpes=20": "unknown parameter 'stpes'; did you mean 'steps'?",
    "train cpu --set steps=many": "parameter steps=many: expected int, as in its default 2000",
    "train cpu --set steps": "'--set': steps: write it as NAME=VALUE",
    "train cpu --set registers=2": "--set registers: give it as --registers",
    "train cpu --set seed=2": "--set seed: give it as --seeds",
    "train cpu --set image_size=60": "image size 60 must be a multiple of the patch size 8",
    "train cpu --set batch_size=3": "batch_size is 3; give an even number",
    "train cpu --set lr=nan": "lr is nan; give at least 0",
    "train cpu --set train=scene": "unknown data set 'scene'; did you mean 'scenes'?",
    "train cpu --registers x": "'x' is not a list of whole numbers such as 0,1,2",
    "train cpu --seeds 0,-1": "'0,-1' is not a list of whole numbers",
    "train cpu --workers two": "'--workers': 'two' is not a valid integer",
    "train cpu --workers -1": "'--workers': -1 is not in the range 0<=x<=",
    f"train cpu --jobs {'9' * 5000}": "9' is not a valid integer",
    "train cpu --name \u2028": "argument '\\u2028' holds what is no printable text",
    "train cpu --name a/b": "--name a/b: it becomes part of a file's name; leave out '/'",
    "train cpu --device cuda:99": "there is no device 'cuda:99' here; use --device cpu",
}


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: ascii(line[:60]))
def test_user_errors_are_one_sentence(project, typed, monkeypatch, line):
    """And nothing is written."""
    monkeypatch.chdir(project.root)
    before = {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
    told = typed(line, 2)
    assert told.startswith("error: ") and told.count("\n") == 1 and REFUSED[line] in told
    assert {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()} == before


def test_invalid_registry(project, typed):
    edit_registry(project.root, lambda data: data["claims"]["aa1-first"].pop("title"))
    told = typed("list", 2)
    assert "error: claims/beyond.yml: claims.aa1-first: 'title' is a required property" in told
    (project.root / "notebooks" / "profiles.yml").unlink()
    assert typed("check", 2).startswith("error: no registry at ")


def test_check_ends_with_1_where_something_disagrees(project, typed):
    typed("check")
    shutil.rmtree(project.root / "notebooks" / "beyond")
    assert typed("check", 1).splitlines() == [
        f"notebooks/beyond/{id}.ipynb: missing, although notebooks/claims has its claim"
        for id in ("aa1-first", "aa2-second")
    ]


def test_check_names_old_results_and_fails_on_them_only_if_strict(project, typed):
    typed("run --all --run large")
    typed("publish large")
    agree, unchecked = typed("check --strict").splitlines()
    assert agree == "registry, notebooks, table of contents and results agree"
    assert unchecked == (
        "note: the revisions of the results were not checked, since the whole git history is not "
        "here"
    )
    margin(project, 7)
    assert typed("check") == (told := typed("check --strict", 1))
    assert "judged by an earlier criterion; by today's supported, now refuted" in told


def test_book_runs_the_controls_and_prints_the_page(project, typed, monkeypatch):
    monkeypatch.setattr(book, "build", lambda root: root / "_build" / "html")
    typed("run aa1-first aa2-second --run large -p n=3")
    typed("publish large")
    *ran, controls, agree, old, page = typed("book").splitlines()
    assert controls.startswith(
        "2 claims on reference models: 2 of 2 as expected. This is validation"
    )
    assert {line.split()[0] for line in ran} == {"aa1-first", "aa2-second"}
    assert agree == "registry, notebooks, table of contents and results agree"
    assert old == "2 of 2 published results are not of today's code; `check` names them"
    assert page == str(project.root / "_build" / "html" / "index.html")
    written = {path.stem for path in (project.runs / "controls").glob("*.json")}
    assert written == {"aa1-first", "aa2-second"}


def test_a_wrong_calibration_is_told_and_fails_check_and_baselines(project, typed):
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=9),
    )
    told = typed("run aa1-first")
    wrong = "0/1 controls as expected: control-clean is refuted, not supported"
    assert told.startswith(f"aa1-first  {wrong}  (")
    said = "1 claim on reference models: 0 of 1 as expected. This is validation, not a finding."
    assert told.splitlines()[1] == said
    first, second, place = typed("run aa1-first").splitlines()
    assert (first, second) == (f"aa1-first  kept, {wrong}", said)
    assert place.startswith("results in book/runs/controls; -p models=MODEL ")
    assert f"aa1-first  stored, {wrong}" in typed("baselines aa1", 1)
    (line,) = typed("check", 1).splitlines()[:1]
    assert f"aa1-first.ipynb: {wrong}; mend the measure, or what is expected" in line


def test_book_is_not_built_over_failures(project, capsys, monkeypatch):
    monkeypatch.setattr(book, "build", lambda root: pytest.fail("built"))
    path = project.source("aa1-first")
    path.write_text(path.read_text().replace('mode == \\"fail\\"', "True"))
    assert main(["book"], project.root) == 1
    assert "was not built" in capsys.readouterr().err


def test_help_carries_an_example_for_each_command(typed):
    text = typed("--help")
    for name in commands.commands:
        assert f"  {name}  " in text
        if name != "bench":  # which has the help of its script
            assert f"example: python -m helpers {name}" in " ".join(typed(f"{name} -h").split())


def test_bare_it_prints_the_help(typed):
    assert typed("").startswith("Usage: python -m helpers") and "publish" in typed("")
    assert typed("--version").startswith("registers-reproduced ")


def test_list_starts_at_once():
    """Nothing that takes seconds to import; a second of computing here, more where a processor
    is shared."""
    code = """
    import contextlib, io, json, sys, time
    from helpers.cli import main
    with contextlib.redirect_stdout(io.StringIO()):
        main(["list"])
    late = {"torch", "numpy", "papermill", "scipy"}
    print(json.dumps([time.process_time(), sorted(late & {*sys.modules})]))"""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    runs = [json.loads(subprocess.check_output(command, cwd=Project().root)) for _ in range(3)]
    best, loaded = min(runs)
    assert loaded == [] and best < 2
