"""Runs of one's own: planned, refused before a kernel starts, kept apart, published when asked."""

import shutil
import subprocess
import sys
import time
from contextlib import nullcontext

import nbformat
import pytest
from conftest import edit_profiles
from PIL import Image

from helpers.claims.project import Project
from helpers.claims.result import read_result
from helpers.cli import Lines, main
from helpers.files import Workspace
from helpers.run import check, execute, parameters
from helpers.run import publish as publishing
from helpers.run.progress import Progress, duration, expected

ROOT = Project().root
BOB = "run aa1-first --run bob"


def run(project, ids=("aa1-first",), name="bob", overrides=None, **options):
    return execute.run_claims(project, list(ids), name, overrides, report=str, **options)


def published(project):
    """Every file of a run below `book`."""
    return sorted(path.name for path in project.root.glob("book/**/*") if path.is_file())


def test_other_inputs_replace_nothing_without_force(project, typed):
    made = "aa1-first  supported"
    assert made in typed(f"{BOB} -p n=3")
    path = project.own / "bob" / "aa1-first.json"
    before = path.read_bytes()
    assert (
        "_build/runs/bob/aa1-first.json is a result of other parameters (n: 3, now 4); give --force"
        in typed(f"{BOB} -p n=4", 2)
    )
    assert path.read_bytes() == before and "kept" in typed(f"{BOB} -p n=3")
    source = project.source("aa1-first")
    source.write_text(source.read_text().replace("time.sleep(600)", "time.sleep(601)"))
    told = "is a result of other inputs (the code, or the criterion); give --force"
    assert told in typed(f"{BOB} -p n=3", 2) and path.read_bytes() == before
    # --all makes anew what has the same parameters.
    assert made in typed("run --all --run bob") and made in typed(f"{BOB} -p n=4 --force")
    assert read_result(path)["parameters"]["n"] == 4


def test_a_run_of_ones_own_is_seen_by_the_book_alone(project, typed, tmp_path):
    """A folder of this machine among its parameters breaks neither the check nor git, and is not
    published."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for i in range(2):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(pictures / f"{i}.png")
    typed(f"{BOB} -p dataset=folder:{pictures}")
    result = project.own / "bob" / "aa1-first.json"
    assert str(pictures) in result.read_text()
    assert list(check.problems(project)) == []
    assert "_build/" in (ROOT / ".gitignore").read_text().split()
    told = typed("publish bob", 2)
    assert "parameter dataset names 'folder:" in told and "nothing was published" in told
    assert told.count("\n") == 1 and published(project) == [] and result.is_file()


def test_publish_moves_a_run(project, typed):
    typed("run aa1-first aa2-second --run bob -p n=1")
    (project.own / "bob" / "aa1-first.reading.md").write_text("It is refuted.")
    assert "aa1-first  published in book/runs/bob\n" in typed("publish bob")
    ends = [".ipynb.gz", ".json", ".reading.md"]
    names = [f"{id}{end}" for id in ("aa1-first", "aa2-second") for end in ends]
    assert published(project) == names[:-1]
    assert list(check.problems(project)) == [] and list(project.own_results()) == []
    assert "aa1-first  kept: published as it is\n" in typed(f"{BOB} -p n=1")
    # With other parameters it replaces nothing unless it is asked to.
    typed(f"{BOB} -p n=5")
    told = "the published result has other parameters (n: 1, now 5); give --force"
    assert told in typed("publish bob", 2)
    typed("publish bob --force")
    assert read_result(project.runs / "bob" / "aa1-first.json")["parameters"]["n"] == 5
    # What was edited is not published.
    typed("run aa2-second --run bob -p n=7")
    path = project.own / "bob" / "aa2-second.json"
    path.write_text(path.read_text().replace('"supported"', '"refuted"'))
    assert "was changed after it was written" in typed("publish bob --force", 2)


def test_publish_deletes_nothing_where_source_and_target_are_one(project, typed):
    typed(f"{BOB} -p n=1")
    typed("publish bob")
    own, runs = project.own, project.runs
    before = {path: path.read_bytes() for path in (runs / "bob").iterdir()}
    assert len(before) == 2

    def refused(run, told):
        assert told in typed(f"publish {run} --force", 2)
        assert {path: path.read_bytes() for path in (runs / "bob").iterdir()} == before

    refused("../../book/runs/bob", "is not a plain folder name")
    refused("..", "is not a plain folder name")
    elsewhere = project.root / "elsewhere"
    (runs / "bob").rename(elsewhere)
    (runs / "bob").symlink_to(elsewhere)
    shutil.copytree(elsewhere, own / "bob", dirs_exist_ok=True)
    refused("bob", "book/runs/bob is a link; put the files themselves there")
    assert len(list((own / "bob").iterdir())) == 2
    (runs / "bob").unlink()
    elsewhere.rename(runs / "bob")
    shutil.rmtree(own / "bob")
    (own / "bob").symlink_to(runs / "bob")
    refused("bob", "_build/runs/bob is a link; put the files themselves there")
    (own / "bob").unlink()
    (own / "bob").mkdir()
    for path in before:
        (own / "bob" / path.name).symlink_to(path)
    refused("bob", "_build/runs/bob/aa1-first.json is a link")
    shutil.rmtree(own)
    own.symlink_to(runs)
    refused("bob", "_build/runs and book/runs are one place; undo the link between them")


def test_a_full_disk_publishes_nothing_of_a_run(project, typed, no_room_for):
    typed("run aa1-first aa2-second --run bob -p n=1")
    before = {path.name: path.read_bytes() for path in (project.own / "bob").iterdir()}
    with no_room_for("aa2-second"):
        told = typed("publish bob", 2)
    assert told.count("\n") == 1 and "the disk is full: aa2-second.ipynb.gz was not written" in told
    assert not (project.runs / "bob").exists()
    assert {path.name: path.read_bytes() for path in (project.own / "bob").iterdir()} == before
    typed("publish bob")
    assert published(project) == sorted(name.replace("ipynb", "ipynb.gz") for name in before)


def test_what_is_published_is_deleted_once_its_copy_is_there(project, typed, monkeypatch):
    typed(f"{BOB} -p n=1")
    monkeypatch.setattr(publishing, "publish", lambda *_, **__: None)
    assert "No such file" in typed("publish bob", 2)
    assert sorted(path.suffix for path in (project.own / "bob").iterdir()) == [".ipynb", ".json"]


def test_a_failed_notebook_is_kept_with_its_traceback(project, typed):
    kept = "_build/failed/bob/aa1-first.ipynb"
    assert typed(f"{BOB} -p mode=fail", 1).endswith(f"; see {kept}\n")
    cells = nbformat.read(project.root / kept, 4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    (error,) = (output for output in outputs if output.output_type == "error")
    assert "the score of nothing is not defined" in "\n".join(error.traceback)
    assert published(project) == [] and list(project.own_results()) == []
    typed(BOB)  # and goes when it runs through
    assert not (project.root / kept).exists()


def test_the_claims_of_a_paper_and_those_that_changed(project, typed):
    lines = typed("run --paper beyond --run large --plan").splitlines()
    assert lines == ["large/aa1-first", "large/aa2-second"]
    assert typed("run --changed") == "no published result is stale\n"
    typed("run --all --run large")
    typed("publish large")
    edit_profiles(project.root, lambda profiles: profiles["aa2-second"]["large"].update(n=6))
    for more in ("", "--run large", "--paper beyond"):
        assert typed(f"run --changed --plan {more}") == "large/aa2-second\n"
    told = "no published result is stale in run 'other'\n"
    assert typed("run --changed --run other") == told


def test_show_lists_parameters_and_profiles(typed, capsys):
    typed("run aa1-first --run large")
    out = typed("show aa1-first")
    for line in (
        "  rate     0.5",
        "profile large (`run aa1-first --run large`):\n  n        5",
        "  large (not published): supported",
    ):
        assert line in out
    assert "none yet: needs probes" in typed("show aa3-later")
    assert main(["show", "nr1-artifacts"], ROOT) == 0
    shown = capsys.readouterr().out
    for line in (
        "448  # second resolution in pixels, rounded to the model's patch",
        "\ncriterion: iou_top > 0.5, on all of the models to which it applies",
        "\n  vit-tiny: supported, not stated, after the fact\n    1 supported, 1 not applicable: "
        "iou_top = 0.777 [0.754, 0.798] > 0.5 holds on vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    ):
        assert line in shown


# --- before a kernel starts
# ------------------------------------------------------------------------------------------


TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
CLIP = "open_clip:ViT-B-32/laion2b_s34b_b79k"
NO_LABELS = "parameter treated='photographs': data set 'photographs' has no labels"
# Claim and parameters -> what is told, '' where they fit.
FITS = {
    "tt1-register-neurons layer=99": "parameter layer=99: 'control-content' has",
    f"tt1-register-neurons layer=-12 models={TINY}": "",
    f"tt1-register-neurons layer=-13 models={TINY}": "has 12 blocks; choose from -12 to 11",
    f"tt1-register-neurons layer=40 models={CLIP}": "has 12 blocks",
    "so5-register-ablation blocks=-2,-77": "parameter blocks=[-2, -77]: 'control-content' has",
    "nr1-artifacts dataset=photographs n=500": "parameter n=500: n = 500 images of dataset",
    "nr1-artifacts examples=photographs n_examples=99": "parameter n_examples=99: ",
    "tt1-register-neurons dataset=photographs n=10 n_train=15": "n + n_train = 10 + 15 = 25 images",
    "nr1-artifacts dataset=folder:nowhere": "dataset='folder:nowhere': there is no folder",
    "nr1-artifacts dataset=folder:tests/run n=5": "dataset='folder:tests/run': there are no images",
    "nr1-artifacts examples=parquet:nowhere": "examples='parquet:nowhere': there is no",
    "xx2-corner-outliers treated=folder:nowhere": "parameter treated='folder:nowhere': there is no",
    "nr4-local train_dataset=data:no/train": "parameter train_dataset='data:no/train': ",
    "nr4-global dataset=photographs n=10": "dataset='photographs': data set 'photographs' has",
    # Nothing is classified unless asked.
    "xx2-corner-outliers treated=photographs n_treated=8": "",
    "xx2-corner-outliers treated=photographs n_treated=8 classifier=published": NO_LABELS,
    "so7-patch-drop modes=delete": "parameter modes=['delete']: modes is 'delete'; choose one of",
    "so8-attention-entropy inits=zeros,ones": "parameter inits=['zeros', 'ones']: inits is 'ones'",
    "so1-norm-distribution corruptions=fog": "parameter corruptions=['fog']: corruptions is 'fog'",
    "nr4-local schedule=papers": "parameter schedule='papers': schedule is 'papers'; choose",
    "nr1-artifacts device=cuda:99": "device='cuda:99': there is no device 'cuda:99' here",
}


@pytest.mark.parametrize("line", FITS)
def test_what_fits_nothing_is_told_with_the_parameter(line):
    """Within two seconds of computing, which the imports that any run needs are no part of."""
    from helpers import images, models  # noqa: F401

    id, *texts = line.split()
    claim = Project().registry[id]
    own = dict(claim.parameters)
    for name, _, text in (pair.partition("=") for pair in texts):
        own[name] = parameters.parse(name, text, own[name])
    started = time.process_time()
    with pytest.raises(ValueError) if FITS[line] else nullcontext() as caught:
        parameters.require(claim, own, ROOT)
    if caught:
        assert FITS[line] in str(caught.value) and "\n" not in str(caught.value)
    assert time.process_time() - started < 2


def test_the_runs_of_this_project_fit():
    """Every control run, whatever machine this is; profiles name data and devices that need not be
    here."""
    for claim in filter(lambda claim: claim.notebook, Project().registry.claims.values()):
        parameters.require(claim, claim.parameters, ROOT)
        for profile in claim.profiles.values():
            assert not {*profile} - {*claim.parameters}


def test_all_are_asked_before_the_first_runs(project, monkeypatch):
    """And those that can run do."""
    monkeypatch.delenv("REGISTERS_DATA", raising=False)
    started = []
    monkeypatch.setattr(
        execute, "computed", lambda root, id, *_: started.append(id) or pytest.fail("ran")
    )
    outcomes = run(project, ("aa1-first", "aa2-second"), overrides={"dataset": "data:no/train"})
    assert {outcome.status for outcome in outcomes} == {"failed"} and started == []
    assert all(
        outcome.reason.startswith("parameter dataset='data:no/train': 'data:no/train' is a local")
        for outcome in outcomes
    )


@pytest.mark.parametrize("text", ["folder:nowhere", "parquet:nowhere.parquet"])
def test_a_path_that_was_typed_is_refused_before_anything_is_imported(text):
    """Within a second of computing, torch's import not among it."""
    for line in (
        ["run", "nr1-artifacts", "-p", f"dataset={text}"],
        ["diagnose", TINY, "--images", text],
        ["edit", TINY, "--images", text, "--out", "nowhere"],
    ):
        code = f"""
import sys, time
from helpers.cli import main
status = main({line})
assert "torch" not in sys.modules and time.process_time() < 2
sys.exit(status)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert "there is no" in done.stderr


# --- while it runs
# --------------------------------------------------------------------------------------------------


def test_progress_tells_cell_batch_and_time(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    clock, workspace = [0.0], Workspace(tmp_path)
    progress = Progress("so7-patch-drop", 18, 900.0, workspace)
    assert str(progress) == "so7 cell 0/18, 15 min left"
    progress.at_cell(8)
    for clock[0], done, told in (
        (200, 30, "so7 cell 9/18, batch 30/188, 12 min left"),
        # Ten batches a minute: what the pass still takes is more than what was expected of all.
        (260, 40, "so7 cell 9/18, batch 40/188, 15 min left in this pass"),
        (300, 140, "so7 cell 9/18, batch 140/188, 10 min left"),
    ):
        workspace.report(done, 188)
        assert str(progress) == told
    progress.at_cell(9)
    clock[0] = 1000.0
    assert str(progress) == "so7 cell 10/18, 17 min so far, 15 min expected"
    assert str(Progress("so7-patch-drop", 18)) == "so7 cell 0/18, 0 s so far"
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
from helpers.capture import PatchNorms, capture
from helpers.images import load_images
from helpers.models import load_backbone
capture(load_backbone("control-clean", image_size=64), load_images("scenes", 300), [PatchNorms()])
if not Path("go").exists():
    raise ValueError("not yet")"""


def test_a_run_that_failed_goes_on_with_what_it_captured(project, monkeypatch):
    """In the folder of the project, or where the variable says; on the controls nowhere."""
    monkeypatch.delenv("REGISTERS_CACHE", raising=False)
    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[2].source += CAPTURE
    nbformat.write(notebook, path)
    place = project.root / "_build" / "captures"
    assert run(project)[0].status == "failed"
    kept = {file: file.read_bytes() for file in place.iterdir()}
    assert len(kept) == 2 and not [*project.root.glob("_build/running/*/*")]
    (project.root / "go").touch()
    (outcome,) = run(project)
    assert outcome.status == "supported"
    assert {file: file.read_bytes() for file in place.iterdir()} == kept
    # Its time is that of the rest alone, from which nothing is expected.
    assert read_result(project.own / "bob" / "aa1-first.json")["provenance"]["stored_passes"] == 1
    assert expected(project, "aa1-first", project.registry["aa1-first"].parameters) is None
    for value, files in (("none", 0), ("elsewhere", 2)):
        monkeypatch.chdir(project.root)
        monkeypatch.setenv("REGISTERS_CACHE", value)
        shutil.rmtree(place, ignore_errors=True)
        assert run(project, force=True)[0].status == "supported"
        assert len([*(project.root / value).glob("*.safetensors")]) == files and not place.exists()
        made = read_result(project.own / "bob" / "aa1-first.json")["provenance"]
        assert "stored_passes" not in made
    monkeypatch.setenv("REGISTERS_CACHE", str(place))
    assert run(project, name="controls", force=True)[0].status != "failed"
    assert not place.exists()


def test_a_model_that_was_not_run_is_told(project, typed):
    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    judged = "judge(values, sources=[images]"
    notebook.cells[3].source = notebook.cells[3].source.replace(
        judged, f"{judged}, not_run={{'vit-z': 'no weights'}}"
    )
    nbformat.write(notebook, path)
    told = typed("run aa1-first --run bob -p n=3")
    assert "supported" in told and "vit-z was not run (no weights)" in told
    assert "bob (not published): supported, not stated, 1 model not run" in typed("list")


def test_neither_parts_of_the_images_nor_draws_may_be_none():
    for name in ("n_learn", "n_zeroed", "n_few", "n_controls", "n_sweep", "draws"):
        with pytest.raises(ValueError, match=f"parameter {name}=0: give at least 1"):
            parameters.check_values({name: 0}, {name: 20})


def test_each_model_has_its_own_twin_or_original():
    for name in ("twins", "with_registers", "before", "ends", "singles", "removed"):
        given = {"models": ["a"], name: ["b"]}
        parameters.check_values(given, given)
        with pytest.raises(ValueError) as raised:
            parameters.check_values({**given, name: ["b", ""]}, given)
        told = (
            f"parameter {name}=['b', '']: it has 2, models has 1; give one for each model, such as"
        )
        assert str(raised.value) == f"{told} -p '{name}=[\"b\"]'"
