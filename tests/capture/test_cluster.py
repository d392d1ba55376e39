"""A local Ray cluster of two workers gives what one process gives, to the bit, and outlives its
workers."""

import importlib.util
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.hooks import RemovableHandle
from zoo import randomise

from helpers import interventions
from helpers.capture import (
    ClsAttention,
    FinalTokens,
    NeuronActivation,
    OnPatches,
    PatchNorms,
    SelectedTokens,
    Store,
    capture,
    cluster,
)
from helpers.capture.cluster import capture_ray
from helpers.claims.result import read_result
from helpers.cli import main
from helpers.images import load_images
from helpers.models import load_backbone
from helpers.run import execute


@pytest.fixture(scope="session")
def ray():
    """Two CPUs, with a token of its own, so that nothing is written into the home folder."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
    ):
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Else, at 15, workers starve beside the suite's other process.
        patch.setenv("RAY_worker_niceness", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        module, quiet = cluster.load_ray(), {"log_to_driver": False, "logging_level": "ERROR"}
        quiet |= {"include_dashboard": False, "_temp_dir": folder}
        for last in (False, False, True):
            try:
                module.init(num_cpus=2, object_store_memory=80 * 2**20, **quiet)
                break
            except Exception:  # Ray gives its processes 30 s to start: too few on a busy machine
                module.shutdown()
                if last:
                    raise
        yield module
        module.shutdown()


@pytest.fixture(autouse=True)
def one_thread():
    """A worker has as many CPUs as this process has threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("control-content")


@pytest.fixture(scope="module")
def images():
    return load_images("scenes", 11, seed=1)


def deadly(images, index, marker):
    """The same images, where reading number `index` kills the process that reads it, once."""

    class Deadly:  # inside, so that a worker need not import this file
        def __len__(self):
            return len(images)

        def __getitem__(self, at):
            if at == index and not marker.exists():
                marker.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return images[at]

    return Deadly()


class Batches(list):
    """A summary that keeps each batch."""

    update = list.append


def test_equals_one_process_to_the_bit_though_a_worker_is_killed(
    ray, backbone, images, tmp_path, monkeypatch
):
    monkeypatch.setattr(cluster, "BATCHES", 2)  # pieces of images 0 to 3, 4 to 7 and 8 to 10
    marker, reducers = tmp_path / "killed", [PatchNorms(), ClsAttention("all"), FinalTokens()]
    reducers += [SelectedTokens(torch.arange(22).reshape(11, 2))]
    kept, summaries = [], []
    for shown, engine in ((images, None), (deadly(images, 7, marker), capture_ray)):
        summaries.append(Batches())
        options = {"into": {"patch_norms": summaries[-1:]}, "engine": engine, "batch_size": 2}
        kept.append(capture(backbone, shown, reducers, **options))
    assert int(marker.read_text()) != os.getpid()
    wanted, found = kept
    assert found.keys() == wanted.keys() == {"cls_attention", "final_tokens", "tokens"}
    for key, value in wanted.items():
        assert torch.equal(found[key], value) and found[key].dtype == value.dtype, key
    assert len(summaries[1]) == 6 and all(map(torch.equal, *summaries))


def test_what_a_cluster_captures_is_stored_by_the_process_that_asks(ray, tmp_path, monkeypatch):
    monkeypatch.setenv("REGISTERS_ACTORS", "1")
    pixels = torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    get = partial(capture, load_backbone("scratch-reg2"), pixels, [FinalTokens()], batch_size=3)
    there = get(engine=capture_ray, store=Store(tmp_path))
    assert torch.equal(there["final_tokens"], get()["final_tokens"])
    ((_, _, path),) = Store(tmp_path).files()
    monkeypatch.setattr("helpers.capture.engine._Pass", None)  # no pass is made any more
    assert torch.equal(get(store=Store(tmp_path))["final_tokens"], there["final_tokens"])
    assert path.is_file()


def unchecked(name, monkeypatch):
    """A module of interventions as users have it: the check of types, which only tests make, leaves
    its hooks unfit to travel."""
    place = Path(interventions.__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"unchecked_{name}", place)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    if name == "neurons":
        tokens = unchecked("tokens", monkeypatch)
        monkeypatch.setattr(module, "appended_registers", tokens.appended_registers)
    return module


@pytest.mark.parametrize(
    ("module", "intervention", "arguments"),
    [
        ("tokens", "appended_registers", (2, "mean")),
        ("tokens", "moved_positions", (range(195, -1, -1),)),
        ("neurons", "test_time_registers", ([(0, 1), (2, 2)], 2)),
    ],
)
def test_random_weights_and_interventions_survive(
    images, module, intervention, arguments, monkeypatch
):
    backbone = load_backbone("vit_tiny_patch16_224", pretrained=False)
    randomise(backbone.model)
    # These look where the interventions act. The numbers of hooks begin anew in a worker, and must
    # not be given twice.
    reducers = [OnPatches("embedding", torch.clone), NeuronActivation("neuron", 3, 0)]
    reducers, images = [*reducers, FinalTokens()], images.select(range(4))
    plain = capture(backbone, images, reducers)["final_tokens"]
    monkeypatch.setattr(RemovableHandle, "next_id", 0)
    with getattr(unchecked(module, monkeypatch), intervention)(backbone, *arguments):
        options = {"batch_size": 2, "device": "cpu"}
        job = cluster.packed((backbone, images, reducers, options, 0), threads=1)
        wanted = capture(backbone, images, reducers, batch_size=2)
        RemovableHandle.next_id = 0
        values = cluster.Worker().of(job, None, (2, 4))
    for key, value in wanted.items():
        assert torch.equal(torch.from_numpy(values[key]), value[2:]), key
    assert not torch.equal(wanted["final_tokens"], plain)


class TestRefused:
    def test_an_error_on_a_worker_is_the_same_here(self, ray, backbone, images):
        def fail(grid):
            raise ValueError("no such thing; take another")

        with pytest.raises(ValueError, match="^no such thing; take another$"):
            capture(backbone, images.select([0]), [OnPatches("thing", fail)], engine=capture_ray)

    def test_images_that_end_one_worker_after_another(self, ray, backbone, images, monkeypatch):
        monkeypatch.setattr(cluster, "RETRIES", 0)
        never = type("Never", (), {"exists": lambda _: False, "write_text": lambda *_: None})()
        with pytest.raises(RuntimeError, match="one worker after another died"):
            capture(backbone, deadly(images, 1, never), [PatchNorms()], engine=capture_ray)

    def test_chance_from_one_image_to_the_next(self, backbone):
        with (
            interventions.dropped_patches(backbone, 0.5),
            pytest.raises(ValueError, match="draws at random for one image after another"),
        ):
            cluster.packed(backbone, 1)

    def test_other_code_on_the_worker(self):
        with pytest.raises(ValueError, match="has other helpers, another Python or another torch"):
            cluster.unpacked("another", *cluster.packed((), 1)[1:])

    @pytest.mark.parametrize(
        ("device", "threads", "limit", "message"),
        [
            ("cuda", 1, "", "has 1 GPU and 1 CPU for a worker; start one that has"),
            ("cpu", 3, "", "has 3 CPU for a worker; .* set OMP_NUM_THREADS lower"),
            ("cpu", 1, "0", "REGISTERS_ACTORS is '0'; give the largest number"),
        ],
    )
    def test_a_cluster_without_workers(
        self, ray, backbone, images, device, threads, limit, message, monkeypatch
    ):
        monkeypatch.setenv("REGISTERS_ACTORS", limit)
        torch.set_num_threads(threads)
        with pytest.raises(ValueError, match=message):
            capture(backbone, images, [PatchNorms()], device=device, engine=capture_ray)

    def test_without_ray_the_remedy_is_named(self, project, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "ray", None)
        assert main(["run", "aa1-first", "--engine", "ray"], project.root) == 2
        told = "a cluster needs Ray, which is not installed; pip install -e '.[ray]'"
        assert capsys.readouterr().err == f"error: {told}\n"

    def test_nobody_at_the_address(self, project, monkeypatch, capsys):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setattr(cluster.load_ray(), "is_initialized", lambda: False)
        asked = ["run", "aa1-first", "--engine", "ray", "--address", address]
        assert main(asked, project.root) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: no Ray cluster answers at '{address}' (")
        assert error.count("\n") == 1


class TestNotebooks:
    def run(self, project, *ids, **options):
        options = {"report": lambda _: None, "engine": "ray", **options}
        return {outcome.id: outcome for outcome in execute.run_claims(project, ids, **options)}

    def edit(self, project, id, new):
        path = project.source(id)
        path.write_text(
            path.read_text().replace("time.sleep(600)", new).replace('mode == \\"sleep\\"', "True")
        )

    @pytest.mark.slow
    def test_published_as_from_here_though_a_worker_is_killed(self, ray, project):
        die = "Path('once').exists() or (Path('once').touch(), os.kill(os.getppid(), 9))"
        self.edit(project, "aa2-second", die)
        outcomes = self.run(project, "aa1-first", "aa2-second")
        assert {one.status for one in outcomes.values()} == {"supported"} and len(outcomes) == 2
        assert (project.root / "once").exists()
        result = read_result(project.runs / "controls" / "aa1-first.json")
        assert result["provenance"]["device"].startswith("cpu (")
        assert result["provenance"]["threads"] == 1
        assert str(project.root) not in (project.runs / "controls" / "aa1-first.ipynb").read_text()
        for engine in ("ray", "local"):
            assert self.run(project, "aa1-first", engine=engine)["aa1-first"].status == "kept"

    def test_a_failure_is_that_of_the_notebook(self, ray, project):
        (outcome,) = self.run(project, "aa1-first", overrides={"mode": "fail"}).values()
        assert outcome.status == "failed"
        told = "ValueError: the score of nothing is not defined (cell 3 of aa1-first.ipynb)"
        assert outcome.reason == f"{told}; see _build/failed/controls/aa1-first.ipynb"
        assert not project.runs.exists()

    @pytest.mark.slow
    def test_ctrl_c_ends_the_notebooks_of_the_cluster(self, ray, project):
        wait = "Path('second.pid').write_text(str(os.getpid())), time.sleep(600)"
        self.edit(project, "aa2-second", wait)
        pid = project.root / "second.pid"

        def report(_):
            while not pid.exists():
                time.sleep(0.1)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.run(project, "aa1-first", "aa2-second", report=report)
        assert [path.name for path in project.results()] == ["aa1-first.json"]
        until = time.monotonic() + 120
        while Path(f"/proc/{pid.read_text()}/cmdline").exists() and time.monotonic() < until:
            time.sleep(0.1)
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)
