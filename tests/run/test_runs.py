"""What a run executes, keeps and writes."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from unittest.mock import Mock

import nbformat
import pytest
from conftest import PARAMETERS, edit_profiles, edit_registry

from helpers.claims import numbers
from helpers.claims.notebook import MIME, bundle, displayed
from helpers.claims.project import Project
from helpers.claims.result import read_result
from helpers.run import execute, parameters, provenance
from helpers.run.execute import Outcome

IDS = ["aa1-first", "aa2-second"]


def run(project, ids=("aa1-first",), name="controls", **options):
    return execute.run_claims(project, list(ids), name, **options)


def statuses(outcomes):
    return {one.id: one.status for one in outcomes}


def written(project):
    """Every file below `book`, as paths from the project's root."""
    files = (path for path in project.root.glob("book/**/*") if path.is_file())
    return sorted(path.relative_to(project.runs).as_posix() for path in files)


def edit_source(project, id, old, new):
    path = project.notebook_path(id)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def margin(project, value):
    """Change the criterion of aa1-first."""

    def change(data):
        data["claims"]["aa1-first"]["criterion"]["tests"][0]["margin"] = value

    edit_registry(project.root, change)
    return Project(project.root)


def test_run_writes_notebook_and_result(project, monkeypatch, tmp_path):
    # A kernel of the same name that does not work, found before the environment's own.
    other = tmp_path / "jupyter" / "kernels" / "python3"
    other.mkdir(parents=True)
    about = {"argv": ["/bin/false"], "display_name": "other", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(about))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    outcomes = execute.run_claims(project, [*IDS, IDS[0]], jobs=2)
    assert statuses(outcomes) == dict.fromkeys(IDS, "supported")
    assert written(project) == [f"controls/{id}{end}" for id in IDS for end in (".ipynb", ".json")]
    result = read_result(project.runs / "controls" / "aa1-first.json")
    origin = result.pop("provenance")
    criterion = project.registry["aa1-first"].criterion.digest
    known = {"id": "aa1-first", "run": "controls", "criterion": criterion}
    known |= dict.fromkeys(("verdict", "first_verdict"), "supported")
    assert result == result | known | {"status": "our own question", "parameters": PARAMETERS}
    (value,) = result["values"]
    assert (value["name"], value["model"], value["value"]) == ("score", "control-clean", 2)
    assert [one["name"] for one in origin["sources"]] == ["scenes"] and origin["seed"] == 0
    energy = origin["wall_s"] / 3.6 * origin["energy_kw"]
    assert origin["energy_wh"] == pytest.approx(energy, abs=0.002)
    made_with = "git_revision git_dirty packages python device threads started inputs code"
    assert {*made_with.split()} <= origin.keys()

    text = (project.runs / "controls" / "aa1-first.ipynb").read_text()
    notebook = nbformat.reads(text, 4)
    nbformat.validate(notebook)
    assert str(project.root) not in text and "papermill" not in text and "injected" not in text
    assert notebook.metadata.kernelspec.name == "python3"
    threads, here = notebook.cells[2].outputs[0].text.split()
    assert (threads, here) == ("1", "here")
    assert (project.root / "python").read_text() == sys.executable


@pytest.mark.parametrize(("told", "threads"), [("", 4), ("3", 3), ("9", 4), ("all", 4)])
def test_notebooks_share_the_cores_that_the_environment_leaves(told, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    given = execute.parallel(lambda id, own: Outcome(id, "done", own), ["a", "b"])
    assert [outcome.seconds for outcome in given] == [threads, threads]


def test_only_what_differs_from_the_defaults_is_on_the_page(project):
    run(project, name="large", overrides={"rate": "2", "mode": "measure"})
    result = read_result(project.own / "large" / "aa1-first.json")
    assert result["parameters"] == {**PARAMETERS, "n": 5, "rate": 2.0}
    assert result["values"][0]["value"] == 5
    notebook = nbformat.read(project.own / "large" / "aa1-first.ipynb", 4)
    (injected,) = [cell for cell in notebook.cells if cell.id == "injected-parameters"]
    assert injected.source.split("\n")[1:3] == ["n = 5", "rate = 2.0"]
    assert displayed(notebook, MIME) == [{"id": "aa1-first"}]  # its numbers stand in the .json


def test_finished_is_kept_until_an_input_changes(project, monkeypatch):
    monkeypatch.setattr(execute, "execute_claim", counted := Mock(wraps=execute.execute_claim))

    def status(project, **options):
        before = counted.call_count
        (outcome,) = run(project, **options)
        return outcome.status, counted.call_count - before

    assert status(project) == ("supported", 1) and status(project) == ("kept", 0)
    edit_profiles(project.root, lambda profiles: profiles["aa1-first"].update(small={"n": 1}))
    assert status(Project(project.root)) == ("kept", 0)
    edit_source(project, "aa1-first", "# A claim", "# The same claim in other words")
    assert status(project) == ("supported", 1)  # its page shows them
    monkeypatch.setattr(provenance, "_package", lambda: "another")
    assert status(project) == ("supported", 1)
    assert status(project := margin(project, 3)) == ("refuted", 1)
    assert status(project, force=True) == ("refuted", 1) and status(project) == ("kept", 0)


def test_an_own_result_of_other_parameters_is_not_replaced_unless_forced(project):
    run(project, name="bob", overrides={"n": "3"})
    path = project.own / "bob" / "aa1-first.json"
    before = path.read_bytes()
    with pytest.raises(ValueError, match="n=3, now 4"):
        run(project, name="bob", overrides={"n": "4"})
    assert path.read_bytes() == before
    assert statuses(run(project, name="bob", overrides={"n": "3"})) == {"aa1-first": "kept"}
    run(project, name="bob", overrides={"n": "4"}, force=True)
    assert read_result(path)["parameters"]["n"] == 4


def test_whole_run(project):
    """A profile's claims, with its parameters, and those that have a result in the run, with the
    parameters of that."""
    edit_profiles(project.root, lambda profiles: profiles.pop("aa2-second"))
    project = Project(project.root)
    assert parameters.claims_of_run(project, "large") == IDS[:1]
    assert parameters.claims_of_run(project, "controls") == IDS
    run(project, ["aa2-second"], "large", overrides={"n": "3"})
    assert parameters.claims_of_run(project, "large") == IDS
    again = run(project, IDS, "large", reuse_parameters=True)
    assert statuses(again) == {"aa1-first": "supported", "aa2-second": "kept"}
    results = [read_result(project.own / "large" / f"{id}.json") for id in IDS]
    assert [result["parameters"]["n"] for result in results] == [5, 3]
    # A claim by its name begins with the defaults.
    assert parameters.resolve(project, "aa2-second", "large") == PARAMETERS
    with pytest.raises(ValueError, match="lagre"):
        parameters.claims_of_run(project, "lagre")


def test_a_failed_notebook_stops_no_other_and_is_kept(project):
    edit_source(project, "aa1-first", 'mode == \\"fail\\"', "True")
    failed, done = sorted(run(project, IDS, "mine"))
    kept = project.root / "_build" / "failed" / "aa1-first.ipynb"
    assert failed.status == "failed" and done.status == "supported"
    assert "the score of nothing is not defined" in failed.reason and str(kept) in failed.reason
    outputs = [x for cell in nbformat.read(kept, 4).cells for x in cell.get("outputs", ())]
    assert [x for x in outputs if x.output_type == "error"]
    assert [path.stem for path in project.own_results()] == ["aa2-second"]
    edit_source(project, "aa1-first", "if True", "if False")
    run(project, name="mine")  # and goes when it runs through
    assert not kept.exists()


def test_ctrl_c_ends_the_kernels_and_leaves_what_had_finished(project):
    edit_source(project, "aa2-second", 'mode == \\"sleep\\"', "True")
    program = f"""
        import signal, sys
        from pathlib import Path
        from helpers.cli import main
        # A process started in the background hands down that it ignores Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if __name__ == "__main__":
            command = ["run", "aa1-first", "aa2-second", "--jobs", "1"]
            sys.exit(main(command, Path({str(project.root)!r})))
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("aa1-first  1/1 controls as expected")
    pid_file = project.root / "measure.pid"
    first = pid_file.read_text()
    deadline = time.monotonic() + 120
    while pid_file.read_text() in ("", first) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and errors.splitlines()[-1].startswith("stopped")
    assert written(project) == ["controls/aa1-first.ipynb", "controls/aa1-first.json"]
    assert (kernel := int(pid_file.read_text())) != int(first)
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)
    edit_source(project, "aa2-second", "time.sleep(600)", "time.sleep(0)")
    assert statuses(run(project, IDS)) == {"aa1-first": "kept", "aa2-second": "supported"}


def test_store_outputs_in_place(project):
    path = project.notebook_path("aa1-first")
    (outcome,) = execute.store_outputs(project, ["aa1-first"])
    assert outcome.status == "stored"
    stored = nbformat.read(path, 4)
    assert [cell.execution_count for cell in stored.cells[1:]] == [1, 2, 3]
    assert bundle(stored)["verdict"] == "supported"
    beside = numbers.beside(path)
    found = json.loads(beside.read_text())
    assert found["values"] == {"control-clean": {"score": {"value": 2}}}
    spread = {"spread": {"values/control-clean/score/value": 0.1}}
    beside.write_text(numbers.text({**found, "verdict": "other", **spread}))
    execute.store_outputs(project, ["aa1-first"])
    assert json.loads(beside.read_text()) == {**found, **spread}
    edit_source(project, "aa1-first", 'mode == \\"fail\\"', "True")
    before = path.read_bytes(), beside.read_bytes()
    (outcome,) = execute.store_outputs(project, ["aa1-first"])
    assert outcome.status == "failed" and before == (path.read_bytes(), beside.read_bytes())


@pytest.mark.slow  # a cluster takes half a minute to start
def test_notebooks_run_on_the_workers_of_a_ray_cluster(project):
    """Two of them on this machine; one with other code refuses."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        outcomes = run(project, IDS, "mine", overrides={"n": "3"}, ray="")
        assert statuses(outcomes) == dict.fromkeys(IDS, "supported")
        results = [read_result(path) for path in project.own_results()]
        assert [one["values"][0]["value"] for one in results] == [3, 3]
        pids = [(project.root / "measure.pid").read_text()]
        assert int(pids[0]) != os.getpid()
        with pytest.raises(ray.exceptions.RayTaskError, match="other code"):
            compute = execute._on_ray("")
            compute(project.root, "aa1-first", "mine", PARAMETERS, 1, "another")
        (failed,) = run(project, name="other", overrides={"mode": "fail"}, ray="")
        assert failed.status == "failed" and "the score of nothing" in failed.reason
    finally:
        ray.shutdown()
