"""Runs of one's own: planned, refused before a kernel starts, kept apart, published when asked."""

import json
import os
import subprocess
import sys
import time

import nbformat
import pytest
from conftest import edit_profiles

from helpers.claims.project import Project
from helpers.claims.result import read_result
from helpers.cli import Lines, main
from helpers.files import Workspace
from helpers.run import check, execute, parameters
from helpers.run import publish as publishing
from helpers.run.progress import Progress, duration, expected

ROOT = Project().root


def run(project, ids=("aa1-first",), name="bob", overrides=None, **options):
    return execute.run_claims(
        project, list(ids), name, overrides, report=lambda outcome: None, **options
    )


def published(project):
    """Every file below `book`."""
    return sorted(
        path.relative_to(project.root).as_posix()
        for path in project.root.glob("book/**/*")
        if path.is_file()
    )


def test_other_inputs_replace_nothing_without_force(project):
    (outcome,) = run(project, overrides={"n": "3"})
    path = project.own / "bob" / "aa1-first.json"
    before = path.read_bytes()
    with pytest.raises(
        ValueError,
        match=r"_build/runs/bob/aa1-first.json is a result of other parameters \(n: 3, now 4\); "
        r"give --force",
    ):
        run(project, overrides={"n": "4"})
    assert path.read_bytes() == before and run(project, overrides={"n": "3"})[0].status == "kept"
    source = project.source("aa1-first")
    source.write_text(source.read_text().replace("time.sleep(600)", "time.sleep(601)"))
    with pytest.raises(
        ValueError,
        match=r"is a result of other inputs \(the code, or the criterion\); give --force",
    ):
        run(project, overrides={"n": "3"})
    assert path.read_bytes() == before
    assert (
        run(project, again=True)[0].status == outcome.status
    )  # --all makes anew what has the same parameters
    assert run(project, overrides={"n": "4"}, force=True)[0].status == outcome.status
    assert read_result(path)["parameters"]["n"] == 4


def test_a_run_of_ones_own_is_seen_by_the_book_alone(project, capsys, tmp_path):
    """A folder of this machine among its parameters breaks neither the check nor git, and is not
    published."""
    from PIL import Image

    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(2):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(pictures / f"{i}.png")
    assert (
        main(["run", "aa1-first", "--run", "bob", "-p", f"dataset=folder:{pictures}"], project.root)
        == 0
    )
    assert str(pictures) in (project.own / "bob" / "aa1-first.json").read_text()
    assert list(check.problems(project)) == [] and published(project) == []
    assert "_build/" in (ROOT / ".gitignore").read_text().split()
    capsys.readouterr()
    assert main(["publish", "bob"], project.root) == 2
    err = capsys.readouterr().err
    assert (
        "parameter dataset names 'folder:" in err
        and "nothing was published" in err
        and err.count("\n") == 1
    )
    assert published(project) == [] and (project.own / "bob" / "aa1-first.json").is_file()


def test_publish_moves_a_run(project, capsys):
    run(project, ("aa1-first", "aa2-second"), overrides={"n": "1"})
    (project.own / "bob" / "aa1-first.reading.md").write_text("It is refuted.")
    assert main(["publish", "bob"], project.root) == 0
    assert "aa1-first  published in book/runs/bob\n" in capsys.readouterr().out
    names = [
        f"book/runs/bob/{id}{end}"
        for id in ("aa1-first", "aa2-second")
        for end in (".ipynb", ".json", ".reading.md")
    ]
    assert published(project) == [
        name for name in names if name != "book/runs/bob/aa2-second.reading.md"
    ]
    assert list(check.problems(project)) == [] and list(project.own_results()) == []
    assert run(project, overrides={"n": "1"})[0] == execute.Outcome(
        "aa1-first", "kept", reason="published as it is"
    )
    # With other parameters it replaces nothing unless it is asked to.
    run(project, overrides={"n": "5"})
    with pytest.raises(
        ValueError, match=r"the published result has other parameters \(n: 1, now 5\); give --force"
    ):
        publishing.publish_run(project, "bob")
    publishing.publish_run(project, "bob", force=True)
    assert read_result(project.runs / "bob" / "aa1-first.json")["parameters"]["n"] == 5
    # What was edited is not published.
    run(project, ("aa2-second",), overrides={"n": "7"})
    path = project.own / "bob" / "aa2-second.json"
    path.write_text(path.read_text().replace('"supported"', '"refuted"'))
    with pytest.raises(ValueError, match="was changed after it was written"):
        publishing.publish_run(project, "bob", force=True)


def test_a_failed_notebook_is_kept_with_its_traceback(project):
    (outcome,) = run(project, overrides={"mode": "fail"})
    assert outcome.status == "failed" and outcome.reason.endswith(
        "; see _build/failed/bob/aa1-first.ipynb"
    )
    notebook = nbformat.read(project.root / "_build" / "failed" / "bob" / "aa1-first.ipynb", 4)
    errors = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type == "error"
    ]
    assert len(errors) == 1 and "the score of nothing is not defined" in "\n".join(
        errors[0].traceback
    )
    assert published(project) == [] and list(project.own_results()) == []
    assert run(project)[0].status == "supported"  # and goes when it runs through
    assert not (project.root / "_build" / "failed" / "bob" / "aa1-first.ipynb").exists()


def test_p_applies_where_a_claim_has_the_parameter(project, capsys):
    path = project.source("aa2-second")
    notebook = nbformat.read(path, 4)
    notebook.cells[1].source += "\ndraws = 3"
    nbformat.write(notebook, path)
    assert main(["run", "--all", "--plan", "-p", "draws=4", "-p", "n=3"], project.root) == 0
    assert capsys.readouterr().out.splitlines() == [
        "note: -p draws is no parameter of aa1-first, which run without it",
        "aa1-first: n = 3, time unknown",
        "aa2-second: n = 3, time unknown",
        "  draws = 4",
        "2 claims into _build/runs/mine: 0 s of notebooks, and 2 whose time is unknown"
        + several(2),
    ]
    assert published(project) == [] and list(project.own_results()) == []


def several(claims):
    return f"; {jobs} at a time" if (jobs := min(os.cpu_count(), claims)) > 1 else ""


def test_the_claims_of_a_paper_and_those_that_changed(project, capsys):
    assert main(["run", "--paper", "beyond", "--run", "large", "--plan"], project.root) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()][:2] == [
        "aa1-first",
        "aa2-second",
    ]
    assert (
        main(["run", "--changed"], project.root) == 0
        and capsys.readouterr().out == "no published result is stale\n"
    )
    run(project, ("aa1-first", "aa2-second"), "large")
    publishing.publish_run(project, "large")
    edit_profiles(project.root, lambda profiles: profiles["aa2-second"]["large"].update(n=6))
    for more in ([], ["--run", "large"], ["--paper", "beyond"]):
        assert main(["run", "--changed", "--plan", *more], project.root) == 0
        first, *_, last = capsys.readouterr().out.splitlines()
        assert first.startswith("aa2-second: n = 6, time about ") and last.startswith(
            "1 claims into _build/runs/large"
        )
    assert main(["run", "--changed", "--run", "other"], project.root) == 0
    assert capsys.readouterr().out == "no published result is stale in run 'other'\n"


def test_show_lists_parameters_and_profiles(project, capsys):
    run(project, name="large")
    assert main(["show", "aa1-first"], project.root) == 0
    out = capsys.readouterr().out
    for line in (
        "  rate     0.5",
        "profile large (`run aa1-first --run large`):\n  n        5",
        "  large (not published): supported",
    ):
        assert line in out
    assert (
        main(["show", "aa3-later"], project.root) == 0
        and "none yet: needs probes" in capsys.readouterr().out
    )
    assert main(["show", "nr1-artifacts"], ROOT) == 0
    assert (
        "448  # second resolution in pixels, rounded to the model's patch"
        in capsys.readouterr().out
    )


# --- before a kernel starts
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "given", "message"),
    [
        ("tt1-register-neurons", {"layer": 99}, "parameter layer=99: 'control-content' has"),
        (
            "tt1-register-neurons",
            {"layer": -12, "models": ["vit_tiny_patch16_224.augreg_in21k_ft_in1k"]},
            None,
        ),
        (
            "tt1-register-neurons",
            {"layer": -13, "models": ["vit_tiny_patch16_224.augreg_in21k_ft_in1k"]},
            "parameter layer=-13: 'vit_tiny_patch16_224.augreg_in21k_ft_in1k' has 12 blocks; "
            "choose from -12 to 11",
        ),
        (
            "tt1-register-neurons",
            {"layer": 40, "models": ["open_clip:ViT-B-32/laion2b_s34b_b79k"]},
            "has 12 blocks",
        ),
        (
            "so5-register-ablation",
            {"blocks": [-2, -77]},
            "parameter blocks=[-2, -77]: 'control-content' has",
        ),
        (
            "nr1-artifacts",
            {"dataset": "photographs", "n": 500},
            "parameter n=500: n = 500 images of dataset 'photographs', which has",
        ),
        (
            "nr1-artifacts",
            {"examples": "photographs", "n_examples": 99},
            "parameter n_examples=99: ",
        ),
        (
            "tt1-register-neurons",
            {"dataset": "photographs", "n": 10, "n_train": 15},
            "n + n_train = 25 images of dataset",
        ),
        (
            "nr1-artifacts",
            {"dataset": "folder:nowhere"},
            "parameter dataset='folder:nowhere': there is no folder",
        ),
        (
            "nr1-artifacts",
            {"examples": "parquet:nowhere"},
            "parameter examples='parquet:nowhere': there is no parquet file",
        ),
        (
            "xx2-corner-outliers",
            {"treated": "folder:nowhere"},
            "parameter treated='folder:nowhere': there is no folder",
        ),
        (
            "nr4-local",
            {"train_dataset": "data:nothing/train"},
            "parameter train_dataset='data:nothing/train': ",
        ),
        (
            "nr4-global",
            {"dataset": "photographs", "n": 10},
            "parameter dataset='photographs': data set 'photographs' has no labels",
        ),
        (
            "xx2-corner-outliers",
            {"treated": "photographs", "n_treated": 8},
            None,
        ),  # nothing is classified unless asked
        (
            "xx2-corner-outliers",
            {"treated": "photographs", "n_treated": 8, "classifier": "published"},
            "parameter treated='photographs': data set 'photographs' has no labels",
        ),
        (
            "so7-patch-drop",
            {"modes": ["delete"]},
            "parameter modes=['delete']: modes is 'delete'; choose one of remove, zero",
        ),
        (
            "so8-attention-entropy",
            {"inits": ["zeros", "ones"]},
            "parameter inits=['zeros', 'ones']: inits is 'ones'; choose one of",
        ),
        (
            "so1-norm-distribution",
            {"corruptions": ["fog"]},
            "parameter corruptions=['fog']: corruptions is 'fog'; choose",
        ),
        (
            "nr4-local",
            {"schedule": "papers"},
            "parameter schedule='papers': schedule is 'papers'; choose",
        ),
        (
            "nr1-artifacts",
            {"device": "cuda:99"},
            "parameter device='cuda:99': there is no device 'cuda:99' here; use -p device=cpu",
        ),
    ],
)
def test_what_fits_nothing_is_told_with_the_parameter(id, given, message):
    """Within two seconds of computing, which the imports that any run needs are no part of."""
    from helpers import images, models  # noqa: F401

    claim = Project().registry[id]
    own = claim.parameters | given
    started = time.process_time()
    if message is None:
        parameters.require(claim, own, ROOT)
    else:
        with pytest.raises((ValueError, OSError)) as caught:
            parameters.require(claim, own, ROOT)
        assert message in str(caught.value) and "\n" not in str(caught.value)
    assert time.process_time() - started < 2


def test_the_runs_of_this_project_fit():
    """Every control run, whatever machine this is; profiles name data and devices that need not be
    here."""
    for claim in Project().registry.claims.values():
        parameters.require(claim, claim.parameters, ROOT)
        for profile in claim.profiles.values():
            assert not {*profile} - {*claim.parameters}


def test_all_are_asked_before_the_first_runs(project, monkeypatch):
    """And those that can run do."""
    started = []
    monkeypatch.setattr(
        execute, "computed", lambda root, id, *_: started.append(id) or pytest.fail("ran")
    )
    outcomes = run(project, ("aa1-first", "aa2-second"), overrides={"dataset": "folder:nowhere"})
    assert {outcome.status for outcome in outcomes} == {"failed"} and started == []
    assert all(
        outcome.reason.startswith("parameter dataset='folder:nowhere': there is no folder")
        for outcome in outcomes
    )


def test_names_are_told_with_the_parameter(project):
    for given, message in (
        ({"models": "control-claen"}, "parameter models: unknown model"),
        ({"dataset": "scene"}, "parameter dataset: "),
    ):
        with pytest.raises(ValueError, match=f"claim 'aa1-first': {message}"):
            run(project, overrides=given)
    assert [*parameters.names_in({"a": "x", "b": ["y", ["z"]], "n": 3})] == [
        ("a", "x"),
        ("b", "y"),
        ("b", "z"),
    ]


# --- while it runs
# --------------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_progress_tells_cell_batch_and_time(tmp_path):
    clock, workspace = Clock(), Workspace(tmp_path)
    progress = Progress("so7-patch-drop", 18, 900.0, workspace, clock)
    assert str(progress) == "so7 cell 0/18, 15 min left"
    progress.at_cell(8)
    said = []
    for now, done in ((200, 30), (260, 40), (300, 140)):
        clock.now = now
        workspace.report(done, 188)
        said.append(str(progress))
    assert said == [
        "so7 cell 9/18, batch 30/188, 12 min left",
        # Ten batches a minute: what the pass still takes is more than what was expected of all.
        "so7 cell 9/18, batch 40/188, 15 min left in this pass",
        "so7 cell 9/18, batch 140/188, 10 min left",
    ]
    progress.at_cell(9)
    clock.now = 1000.0
    assert str(progress) == "so7 cell 10/18, 17 min so far, 15 min expected"
    assert str(Progress("so7-patch-drop", 18, clock=clock)) == "so7 cell 0/18, 0 s so far"
    assert [duration(x) for x in (40, 660, 7800)] == ["40 s", "11 min", "2 h 10 min"]


def test_without_a_terminal_it_is_a_log(capsys, monkeypatch):
    lines = Lines(2)
    lines.watch(["so7 cell 1/18"])
    assert capsys.readouterr().err == ""
    lines.due = 0
    lines.watch(["so7 cell 9/18, batch 40/188, 11 min left", "so8 cell 1/9"])
    lines.watch(["so7 cell 9/18, batch 41/188, 11 min left"])
    out, err = capsys.readouterr()
    assert err == "so7 cell 9/18, batch 40/188, 11 min left\nso8 cell 1/9\n" and out == ""


def test_a_kernel_tells_where_it_is(project):
    """Its batches too, of a notebook that only reports them."""
    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[
        2
    ].source += "\nfrom helpers.files import Workspace\nfor done in range(40):\n    Workspace.of_this_run().report(done, 40); time.sleep(0.1)"  # noqa: E501
    nbformat.write(notebook, path)
    seen = []
    (outcome,) = run(project, watch=lambda lines: seen.extend(lines))
    assert outcome.status == "supported", outcome.reason
    assert any(line.startswith("aa1 cell 2/3, batch ") and "/40, " in line for line in seen), seen


CAPTURE = """
from helpers.capture import PatchNorms, capture_each
from helpers.images import load_images
capture_each(["control-clean"], load_images("scenes", 300), [PatchNorms()])
kept = sorted(Path(os.environ["REGISTERS_WORKSPACE"]).rglob("*.safetensors"))
Path("seen").write_text(str([path.stat().st_mtime_ns for path in kept]))
if not Path("go").exists():
    raise ValueError("not yet")"""


def test_a_run_that_failed_goes_on_from_its_shards(project):
    """They are kept until the run has finished, and removed where the inputs are others."""
    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[2].source += CAPTURE
    nbformat.write(notebook, path)
    shards = project.root / "_build" / "shards" / "bob" / "aa1-first"
    assert run(project)[0].status == "failed"
    kept = [file.stat().st_mtime_ns for file in sorted(shards.rglob("*.safetensors"))]
    assert len(kept) == 2 and (project.root / "seen").read_text() == str(kept)
    (project.root / "go").touch()
    (outcome,) = run(project)
    assert outcome.status == "supported" and (project.root / "seen").read_text() == str(kept)
    assert not shards.exists()
    # Its time is that of the rest alone, from which nothing is expected.
    assert read_result(project.own / "bob" / "aa1-first.json")["provenance"]["resumed"]
    assert expected(project, "aa1-first", project.registry["aa1-first"].parameters) is None


# --- the command line
# ------------------------------------------------------------------------------------------------


def test_bare_it_prints_the_help(capsys):
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: python -m helpers") and "publish" in out and err == ""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("registers-reproduced ")


def test_list_starts_in_half_a_second():
    """Of computing: what the disk and other processes take is not ours."""
    code = (
        "import contextlib, io, json, sys, time\nfrom helpers.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()): main(['list'])\n"
        "print(json.dumps([time.process_time(), sorted({'torch', 'numpy', 'papermill', 'nbformat', "
        "'scipy'} & {*sys.modules})]))"
    )
    best, loaded = min(
        json.loads(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT))
        for _ in range(3)
    )
    assert loaded == [] and best < 0.5
