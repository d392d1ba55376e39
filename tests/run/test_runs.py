import errno
import hashlib
import itertools
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import nbformat
import papermill
import pytest
from conftest import PARAMETERS, edit_profiles, edit_registry
from PIL import Image

from helpers.claims import numbers
from helpers.claims.notebook import notebook_parameters
from helpers.claims.project import Project
from helpers.claims.result import MIME, Made, bundle, displayed, read_result
from helpers.claims.result import publish as publish_result
from helpers.run import execute, parameters, provenance
from helpers.run.progress import Outcome
from helpers.run.provenance import ARITHMETIC, processor


def silent(outcome):
    """A report that says nothing."""


def run(project, ids=("aa1-first",), name="controls", **options):
    return execute.run_claims(project, list(ids), name, report=silent, **options)


def written(project):
    """Every file below `book`, as paths from the project's root."""
    return sorted(
        path.relative_to(project.root).as_posix()
        for path in project.root.glob("book/**/*")
        if path.is_file()
    )


FINISHED = [
    f"book/runs/controls/{id}{end}"
    for id in ("aa1-first", "aa2-second")
    for end in (".ipynb", ".json")
]


def edit_source(project, id, old, new):
    path = project.source(id)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_run_writes_notebook_and_result(project, monkeypatch, tmp_path):
    # A kernel of the same name that does not work, found before the environment's own.
    other = tmp_path / "jupyter" / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "other", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))

    reported = []
    outcomes = execute.run_claims(
        project, ["aa1-first", "aa2-second", "aa1-first"], jobs=2, report=reported.append
    )

    assert reported == outcomes
    statuses = {outcome.id: outcome.status for outcome in outcomes}
    assert statuses == dict.fromkeys(("aa1-first", "aa2-second"), "supported")
    assert written(project) == FINISHED
    result = read_result(project.runs / "controls" / "aa1-first.json")
    origin = result.pop("provenance")
    value = {"name": "score", "model": "control-clean", "dataset": "scenes", "value": 2}
    unknown = dict.fromkeys(("low", "high", "n", "step"))
    assert result["agreement_reason"].startswith("Only controls were measured")
    assert result.keys() >= {"reason", "verdicts", "not_run"} and result == result | {
        "id": "aa1-first",
        "run": "controls",
        "verdict": "supported",
        "first_verdict": "supported",
        "agreement": "not stated",
        "criterion": project.registry["aa1-first"].criterion.digest,
        "parameters": PARAMETERS,
        "values": [value | unknown | {"unit": ""}],
    }
    assert [one["name"] for one in origin["sources"]] == ["scenes"] and origin["seed"] == 0
    assert origin["energy_wh"] == pytest.approx(
        origin["wall_s"] / 3.6 * origin["energy_kw"], abs=0.002
    )
    made_with = "git_revision git_dirty packages python device threads started inputs"
    assert {*made_with.split()} <= origin.keys()
    assert origin["processor"] == processor()

    text = (project.runs / "controls" / "aa1-first.ipynb").read_text()
    notebook = nbformat.reads(text, 4)
    nbformat.validate(notebook)
    assert str(project.root) not in text and "papermill" not in text and "injected" not in text
    assert notebook.metadata.kernelspec == {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    threads, here = notebook.cells[2].outputs[0].text.split()
    assert here == "here" and (project.root / "python").read_text() == sys.executable
    assert int(threads) == origin["threads"] == max(1, os.cpu_count() // 2)


@pytest.mark.parametrize(("told", "threads"), [("", 4), ("1", 1), ("3", 3), ("9", 4), ("all", 4)])
def test_notebooks_share_the_cores_and_keep_to_what_the_environment_says(
    told, threads, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    given = execute.parallel(
        lambda id, own: Outcome(id, "done", float(own)), ["a", "b"], None, lambda outcome: None
    )
    assert [outcome.seconds for outcome in given] == [threads, threads]


def test_profile_and_command_line(project):
    run(project, name="large", overrides={"rate": "2", "mode": "measure"})
    result = read_result(project.own / "large" / "aa1-first.json")
    assert result["parameters"] == {**PARAMETERS, "n": 5, "rate": 2.0}
    assert result["values"][0]["value"] == 5
    notebook = nbformat.read(project.own / "large" / "aa1-first.ipynb", 4)
    injected = [
        cell for cell in notebook.cells if "injected-parameters" in cell.metadata.get("tags", ())
    ]
    # Only what differs from the defaults is shown on the page.
    assert [cell.source.split("\n")[1:3] for cell in injected] == [["n = 5", "rate = 2.0"]]
    assert injected[0].id == "injected-parameters"
    assert displayed(notebook, MIME) == [{"id": "aa1-first"}]  # its numbers stand in the .json


def test_a_profile_in_a_run_of_another_name(project, typed):
    """The run has a folder of its own, and who gives some parameters hears which others stay."""
    assert "n=7" not in typed("run aa1-first --profile large -p rate=2")
    mine = read_result(project.own / "mine" / "aa1-first.json")["parameters"]
    assert mine == {**PARAMETERS, "n": 5, "rate": 2.0}
    edit_profiles(project.root, lambda profiles: profiles["aa1-first"].update(other={"n": 7}))
    typed("run --all --run large --profile other")
    large = project.own / "large"
    assert read_result(large / "aa1-first.json")["parameters"]["n"] == 7
    assert not (large / "aa2-second.json").exists()
    typed("run aa1-first --run large -p n=5 --force")  # called like a profile, it takes that
    typed("publish large")


def test_finished_is_kept_until_an_input_changes(project, monkeypatch):
    monkeypatch.setattr(execute, "execute", executed := Mock(wraps=execute.execute))
    path = project.runs / "controls" / "aa1-first.json"

    def status():
        before = executed.call_count
        (outcome,) = run(project)
        return outcome.status, executed.call_count - before

    assert status() == ("supported", 1)
    edit_profiles(project.root, lambda profiles: profiles["aa1-first"].update(small={"n": 1}))
    project = Project(project.root)
    assert status() == ("kept", 0)
    edit_source(project, "aa1-first", "# A claim", "# The same claim in other words")
    assert status() == ("supported", 1)  # its page shows them
    monkeypatch.setattr(provenance, "_package", lambda: "another")
    assert status() == ("supported", 1)
    edit_registry(
        project.root,
        lambda data: data["claims"]["aa1-first"]["criterion"]["tests"][0].update(margin=3),
    )
    project = Project(project.root)
    assert status() == ("refuted", 1)
    path.write_text(path.read_text().replace('"refuted"', '"supported"'))
    assert status() == ("refuted", 1)
    path.with_suffix(".ipynb").unlink()
    assert status() == ("refuted", 1)
    assert [outcome.status for outcome in run(project, force=True)] == ["refuted"]
    assert status() == ("kept", 0)


def test_whole_run(project):
    """A profile's claims, with its parameters, and those that have a result in the run, with the
    parameters of that."""
    edit_profiles(project.root, lambda profiles: profiles.pop("aa2-second"))
    project = Project(project.root)
    ids = ["aa1-first", "aa2-second"]
    assert parameters.whole(project, "large") == ids[:1]
    assert parameters.whole(project, "controls") == ids
    run(project, ["aa2-second"], "large", overrides={"n": "3"})
    assert parameters.whole(project, "large") == ids

    def again():
        return {one.id: one.status for one in run(project, ids, "large", again=True)}

    assert again() == {"aa1-first": "supported", "aa2-second": "kept"}
    edit_source(project, "aa2-second", "time.sleep(600)", "time.sleep(601)")
    assert again() == {"aa1-first": "kept", "aa2-second": "supported"}
    results = [read_result(project.own / "large" / f"{id}.json") for id in ids]
    assert [result["parameters"]["n"] for result in results] == [5, 3]
    # A claim by its name begins with the defaults.
    assert parameters.resolve(project, "aa2-second", "large") == PARAMETERS
    edit_source(project, "aa2-second", "rate", "rates")
    told = "run it by its ID; its result in run 'large' gives no parameters: unknown parameter"
    with pytest.raises(ValueError, match=told):
        run(Project(project.root), ids, "large", again=True)


KEPT = "see _build/failed/controls/aa1-first.ipynb"
# What is replaced in a notebook, by what, and why it then has no result.
BROKEN = {
    'mode == \\"fail\\"': (
        "True",
        f"ValueError: the score of nothing is not defined (cell 2 of aa1-first.ipynb); {KEPT}",
    ),
    'mode == \\"sleep\\"': (
        "os.kill(os.getpid(), 9)",
        f"the kernel died while it ran aa1-first.ipynb; it may have run out of memory; {KEPT}",
    ),
    'load_registry(\\"': ('result = load_registry(\\"', "displays 0 results"),
    '[\\"aa1-first\\"]': ('[\\"aa2-second\\"]', "belongs to 'aa2-second'"),
}


@pytest.mark.parametrize("old", BROKEN)
def test_a_failure_is_one_sentence_and_leaves_what_is_finished(project, typed, old):
    new, why = BROKEN[old]
    typed("run aa1-first")
    before = {path: path.read_bytes() for path in project.runs.glob("*/*")}
    edit_source(project, "aa1-first", old, new)
    told = typed("run aa1-first aa2-second", 1)
    (line,) = (line for line in told.splitlines() if line.startswith("aa1-first  failed: "))
    assert why in line and "aa2-second  1/1 controls" in told and written(project) == FINISHED
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_a_kernel_ends_with_the_command(project, how):
    """However that is ended: nothing computes on for nobody."""
    edit_source(project, "aa1-first", 'mode == \\"sleep\\"', "True")
    program = f"""
        from pathlib import Path
        from helpers.cli import main
        if __name__ == "__main__":
            main(["run", "aa1-first"], Path({str(project.root)!r}))
        """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    pid_file, deadline = project.root / "measure.pid", time.monotonic() + 120
    while not (pid_file.is_file() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(how)
    process.wait(timeout=60)
    kernel, deadline = int(pid_file.read_text()), time.monotonic() + 60
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(kernel, 0)
            time.sleep(0.05)


def test_interrupted_run_leaves_nothing_and_resumes(project):
    edit_source(project, "aa2-second", 'mode == \\"sleep\\"', "True")
    program = f"""
        import signal, sys
        from pathlib import Path
        from helpers.cli import main
        # A process started in the background, as by nohup or a CI runner, hands down that it
        # ignores Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if __name__ == "__main__":
            sys.exit(main(["run", "aa1-first", "aa2-second", "--jobs", "1"], Path({str(project.root)!r})))
        """  # noqa: E501
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = (
        process.stdout.readline()
    )  # printed when the first has finished; the second sleeps from then on
    pid_file = project.root / "measure.pid"
    first_pid = pid_file.read_text()
    deadline = time.monotonic() + 120
    while pid_file.read_text() in ("", first_pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)

    assert first.startswith("aa1-first  1/1 controls as expected")
    assert process.returncode == 130
    # Before it, on a slow machine, what runs.
    assert errors.splitlines()[-1] == (
        "stopped; `run` and `train` given again go on from what had finished"
    )
    assert written(project) == FINISHED[:2]
    assert (kernel := int(pid_file.read_text())) != int(first_pid)
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)
    edit_source(project, "aa2-second", "time.sleep(600)", "time.sleep(0)")
    statuses = {outcome.id: outcome.status for outcome in run(project, ("aa1-first", "aa2-second"))}
    assert statuses == {"aa1-first": "kept", "aa2-second": "supported"}


def test_a_reader_finds_no_result_beside_the_notebook_of_another(project, tmp_path):
    """Two publish the same claim over and over, each time with another notebook, while it is
    read."""
    folder, times = tmp_path / "mine", 100
    run(project, name="mine")
    whole = read_result(project.own / "mine" / "aa1-first.json")

    def publish(name):
        for i in range(times):
            notebook = f"{name} {i}" + " " * 100_000
            digest = hashlib.sha256(notebook.encode()).hexdigest()
            origin = whole["provenance"] | {"notebook": digest}
            made = Made(whole | {"provenance": origin}, notebook.encode())
            publish_result(folder, {"aa1-first": made})

    publish("first")
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(publish, name) for name in ("one", "other")]
        read = 0
        while not all(writer.done() for writer in writers):
            read_result(folder / "aa1-first.json")
            read += 1
    assert [writer.result() for writer in writers] == [None, None] and read > 10
    assert sorted(path.name for path in folder.iterdir()) == ["aa1-first.ipynb", "aa1-first.json"]


def test_a_full_disk_fails_one_notebook_with_one_sentence(project, monkeypatch):
    run(project)
    before = {path: path.read_bytes() for path in project.runs.glob("*/*")}

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    executed = execute.execute(project.source("aa1-first"), {}, project.root)
    monkeypatch.setattr(execute, "execute", lambda *_, **__: executed)
    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    (outcome,) = run(project, force=True)
    assert (
        outcome.status == "failed"
        and "the disk is full: aa1-first.ipynb was not written; make room, and" in outcome.reason
    )
    assert {path: path.read_bytes() for path in project.runs.glob("*/*")} == before


@pytest.mark.parametrize("written", [0, 3], ids=["at the start", "after some cells"])
def test_a_notebook_that_does_not_fit_is_not_kept_by_half(project, monkeypatch, written):
    """papermill writes it anew after each cell."""
    write, count = papermill.iorw.LocalHandler.write, itertools.count()

    def full(self, text, path):
        if next(count) >= written:
            write(self, text[:100], path)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, text, path)

    monkeypatch.setattr(papermill.iorw.LocalHandler, "write", full)
    (outcome,) = run(project, name="mine")
    place = project.root / "_build" / "failed" / "mine"
    told = "the disk is full: aa1-first.ipynb was not written; make room, and give the same command"
    assert outcome.status == "failed" and outcome.reason.startswith(f"{place}: {told}")
    assert not [*place.iterdir()] and not (project.own / "mine").exists()
    assert not [*(project.root / "_build" / "running" / "mine").iterdir()]


@pytest.mark.parametrize("rule", ["median", "median:-1", "percentile:101", "mean:3", "fixed:nan"])
@pytest.mark.parametrize("name", ["rule", "fixed_rule", "guard", "rules"])
def test_a_bad_rule_is_refused(name, rule):
    good, bad = ("median:3", rule) if name != "rules" else (["median:3"], [rule])
    parameters.check_values({name: good}, {name: good})
    with pytest.raises(ValueError, match=f"unknown outlier rule '{rule}'; use 'percentile:98'"):
        parameters.check_values({name: bad}, {name: good})


def test_the_parameters_of_this_project_are_not_refused():
    for claim in Project().registry.claims.values():
        for profile in ({}, *claim.profiles.values()):
            parameters.check_values(claim.parameters | profile, claim.parameters)


def test_a_model_of_this_machine_is_published_by_the_last_part_of_its_path(
    project, monkeypatch, tmp_path
):
    """Kernels find it by the variable, which they inherit."""
    monkeypatch.setattr(os, "environ", {**os.environ, "REGISTERS_MODELS": ""})
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "mine.pth").touch()
    (outcome,) = run(
        project,
        name="own",
        overrides={"models": f"control-clean,file:{folder}/mine.pth@vit_tiny_patch16_224"},
    )
    assert outcome.status == "supported", outcome.reason
    result = read_result(project.own / "own" / "aa1-first.json")
    assert result["parameters"]["models"] == ["control-clean", "file:mine.pth@vit_tiny_patch16_224"]
    for path in (project.own / "own").iterdir():
        assert "my models" not in path.read_text(), path
    assert os.environ["REGISTERS_MODELS"] == str(folder)
    (outcome,) = run(
        project,
        name="own",
        overrides={"models": "control-clean,file:mine.pth@vit_tiny_patch16_224"},
    )
    assert outcome.status == "kept"
    with pytest.raises(ValueError, match="there is no file 'gone.pth'"):
        run(project, name="own", overrides={"models": "file:gone.pth@vit_tiny_patch16_224"})


@pytest.fixture
def wide(project, monkeypatch):
    """The claim aa1-first with parameters more, in a project where no kernel starts."""
    monkeypatch.delenv("REGISTERS_DATA", raising=False)
    monkeypatch.setattr(execute, "execute", lambda *_, **__: pytest.fail("a kernel was started"))
    edit_registry(project.root, lambda data: data["claims"]["aa1-first"].update(labels=["dataset"]))
    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[1].source += "\ndatasets = [['scenes', 'scenes', '']]\nmore = []"
    nbformat.write(notebook, path)


FOLDER, PARQUET = "there is no folder '", "there is no parquet file '"
DATA = "is a local data set: set the environment variable REGISTERS_DATA"
ABSENT = {
    "dataset=folder:nowhere": FOLDER,
    "dataset=parquet:nowhere.parquet": PARQUET,
    "dataset=data:nothing/test": DATA,
    "dataset=photographs": "'photographs' has no labels; choose one that has them",
    "datasets=[[scenes, scenes, ''], [scenes, 'folder:nowhere', '']]": FOLDER,
    "datasets=[['parquet:nowhere', scenes, '']]": PARQUET,
    "more=[[data:nothing/train, scenes, patient]]": DATA,
}
NO_SETS = {
    "more=[[scenes, scene, '']]": "unknown data set 'scene'; did you mean 'scenes'?",
    "more=[[scenes, scenes]]": "more: ['scenes', 'scenes'] is no data set; give each as [train, ",
    "more=[[scenes, scenes, 3]]": "parameter more: ['scenes', 'scenes', 3] is no data set",
    "more=scenes": "parameter more: 'scenes' is no data set",
    "more=[[!!float ]]": "parameter more=[[!!float ]]: expected list",
    "more=[[scenes": "parameter more=[[scenes: expected list, as in its default []",
}


@pytest.mark.parametrize("text", [*ABSENT, *NO_SETS])
def test_data_are_looked_for_before_a_kernel_starts(wide, typed, text):
    """What is not here fails one claim, a typed path and what is no data set the command."""
    slip = text in NO_SETS or re.match("dataset=(folder|parquet):", text)
    said = typed(f"run aa1-first -p {shlex.quote(text)}", 2 if slip else 1)
    lines = [line for line in said.splitlines() if not line.startswith("note: left at")]
    assert {**ABSENT, **NO_SETS}[text] in said and len(lines) == 1


def test_a_folder_is_looked_for_where_the_notebook_looks(project):
    (project.root / "pictures").mkdir()
    for i in range(2):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(project.root / "pictures" / f"{i}.png")
    (outcome,) = run(project, name="x", overrides={"dataset": "folder:pictures"})
    assert outcome.status == "supported"


def test_labels_of_no_parameter_are_refused(project):
    edit_registry(
        project.root, lambda data: data["claims"]["aa1-first"].update(labels=["datasets"])
    )
    with pytest.raises(
        ValueError,
        match="claim 'aa1-first': its labels name the unknown parameter 'datasets'; correct them",
    ):
        run(project)


@pytest.mark.parametrize(
    ("text", "default", "value"),
    [
        ("3", 2, 3),
        ("3", 2.0, 3.0),
        ("1e-3", 2.0, 0.001),
        ("7", "text", "7"),
        ("True", False, True),
        ("a,b", ["x"], ["a", "b"]),
        ("[a, 'b']", ["x"], ["a", "b"]),
        ("open_clip:ViT-B-32/laion2b_s34b_b79k", ["x"], ["open_clip:ViT-B-32/laion2b_s34b_b79k"]),
        ("1, 2", [0], [1, 2]),
        ("", ["x"], []),
        ("['']", ["x"], [""]),
        ("a,'',b", ["x"], ["a", "", "b"]),
        ("[[a, b, ''], [hf:c/d, e, f]]", [["x", "y", ""]], [["a", "b", ""], ["hf:c/d", "e", "f"]]),
        ("[[a, b, '']]", [], [["a", "b", ""]]),
        ("3", None, 3),
    ],
)
def test_parse(text, default, value):
    parsed = parameters.parse("name", text, default)
    assert parsed == value and type(parsed) is type(value)


def test_checked_types():
    defaults = {"n": 2, "rate": 0.5, "models": ["a"], "limit": None}
    assert parameters.checked(defaults, {"rate": 1, "limit": 3}) == {
        **defaults,
        "rate": 1,
        "limit": 3,
    }
    for wrong in ({"n": True}, {"n": 2.0}, {"models": "a"}, {"models": ["a", 1]}, {"rate": "high"}):
        with pytest.raises(ValueError, match="expected"):
            parameters.checked(defaults, wrong)


@pytest.mark.parametrize("source", ["n = len('ab')", "n, m = 1, 2", "n: int = 2", "n ="])
def test_parameters_cell_holds_only_literals(project, source):
    path = project.source("aa1-first")
    notebook = nbformat.read(path, 4)
    notebook.cells[1].source = source
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match="only lines of the form"):
        notebook_parameters(path)
    notebook.cells[1].metadata.tags = []
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match="0 cells are tagged 'parameters'"):
        notebook_parameters(path)


def test_store_outputs_in_place(project):
    path = project.source("aa1-first")
    (outcome,) = execute.store_outputs(project, ["aa1-first"], report=silent)
    assert outcome.status == "stored"
    stored = nbformat.read(path, 4)
    assert [cell.execution_count for cell in stored.cells[1:]] == [1, 2, 3]
    assert bundle(stored)["verdict"] == "supported"
    beside = path.with_name("aa1-first.numbers.json")
    found = json.loads(beside.read_text())
    assert (
        found["values"] == {"control-clean": {"score": {"value": 2}}}
        and found["verdict"] == "supported"
    )
    beside.write_text(
        numbers.text(
            {**found, "verdict": "other", "spread": {"values/control-clean/score/value": 0.1}}
        )
    )
    execute.store_outputs(project, ["aa1-first"], report=silent)
    assert json.loads(beside.read_text()) == {
        **found,
        "spread": {"values/control-clean/score/value": 0.1},
    }
    (outcome,) = execute.store_outputs(project, ["aa1-first"], report=silent, was={"n": 4})
    assert outcome.status == "failed" and "gives other numbers" in outcome.reason
    before = path.read_bytes(), beside.read_bytes()
    edit_source(project, "aa1-first", 'mode == \\"fail\\"', "True")
    broken = path.read_bytes()
    (outcome,) = execute.store_outputs(project, ["aa1-first"], report=silent)
    assert (
        outcome.status == "failed"
        and path.read_bytes() == broken != before[0]
        and beside.read_bytes() == before[1]
    )
    assert [other.name for other in path.parent.iterdir() if other.name.startswith(".")] == []
    with pytest.raises(ValueError, match="unknown claim"):
        execute.store_outputs(project, ["aa9-none"], report=silent)


def test_a_machine_with_another_state_does_not_compute(project):
    with pytest.raises(
        ValueError,
        match="has other helpers, another notebook or another criterion below .* than the machine",
    ):
        execute.computed(
            project.root, "aa1-first", "controls", PARAMETERS, 1, made={"notebook": "another"}
        )
    assert written(project) == [] and not (project.root / "measure.pid").exists()


def test_hardware_is_that_of_the_device():
    assert (
        provenance.hardware("cpu")["device"].startswith("cpu (")
        and provenance.hardware("cpu")["energy_kw"] == 0.105
    )
    for device in ("cuda:99", "abacus"):
        with pytest.raises(
            ValueError, match=f"there is no device '{device}' here; use -p device=cpu"
        ):
            provenance.hardware(device)


def test_processor_tells_what_was_chosen():
    """In a process of its own, since the libraries choose once."""
    code = (
        "from helpers.run.provenance import *; import json; print(json.dumps([processor(), "
        "hardware('cpu')['processor']]))"
    )
    variables = {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}
    others = {name: value for name, value in os.environ.items() if name not in ARITHMETIC}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=others | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    chosen, again = json.loads(done.stdout)
    assert chosen == again and chosen["environment"] == variables and chosen["torch"] == "DEFAULT"
    assert chosen["blas"]
    if platform.machine() == "x86_64":
        assert all(one.endswith("Nehalem") for one in chosen["blas"] if one.startswith("openblas"))
