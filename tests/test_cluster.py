"""A local Ray cluster of two workers gives what one process gives, to the bit, and outlives its workers."""

import importlib.util
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.hooks import RemovableHandle

from helpers import cluster, interventions
from helpers.__main__ import main
from helpers.bench import randomise
from helpers.capture import (
    ClsAttention,
    FinalTokens,
    NeuronActivation,
    OnPatches,
    PatchNorms,
    SelectedTokens,
    capture,
    capture_shards,
    find_register_neurons,
)
from helpers.cluster import capture_ray
from helpers.images import load_images
from helpers.measures.accumulators import Histogram, Moments, Quantiles, TopK
from helpers.models import load_backbone
from helpers.publish import runs


@pytest.fixture(scope="module")
def ray():
    """Two CPUs, with a token of its own, so that nothing is written into the home folder."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_worker_niceness", "0")  # else, at 15, workers starve beside the suite's other process
        patch.delenv("RAY_ADDRESS", raising=False)
        module = cluster._ray()
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR", "_temp_dir": folder}
        for last in (False, False, True):
            try:
                module.init(num_cpus=2, object_store_memory=80 * 2**20, **options)
                break
            except Exception:  # Ray gives its own processes 30 s to start, which a busy machine may not
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


def summaries():
    return {
        "patch_norms": [Moments(), Quantiles(), TopK(5), Histogram(np.arange(0, 300, 10.0))],
        "cls_attention": [Moments(), TopK(3)],
    }


def test_equals_one_process_to_the_bit_though_a_worker_is_killed(ray, backbone, images, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "BATCHES", 2)  # pieces of images 0 to 3, 4 to 7 and 8 to 10
    reducers = [PatchNorms(), ClsAttention("all"), FinalTokens(), SelectedTokens(torch.arange(22).reshape(11, 2))]
    here, there = summaries(), summaries()
    wanted = capture(backbone, images, reducers, batch_size=2, into=here)
    marker = tmp_path / "killed"
    found = capture(backbone, deadly(images, 7, marker), reducers, batch_size=2, into=there, engine=capture_ray)
    assert int(marker.read_text()) != os.getpid()
    assert found.keys() == wanted.keys() == {"final_tokens", "tokens"}
    for key, value in wanted.items():
        assert torch.equal(found[key], value) and found[key].dtype == value.dtype, key
    for key, several in here.items():
        for one, other in zip(several, there[key], strict=True):
            np.testing.assert_equal(vars(other), vars(one))


def test_shards_of_a_cluster_with_one_actor(ray, tmp_path, monkeypatch):
    monkeypatch.setenv("REGISTERS_ACTORS", "1")
    backbone, pixels = load_backbone("scratch-reg2"), torch.rand(5, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    options = {"size": 5, "batch_size": 3}
    here = capture_shards(tmp_path / "here", backbone, pixels, [FinalTokens()], **options)
    there = capture_shards(tmp_path / "there", backbone, pixels, [FinalTokens()], engine=capture_ray, **options)
    assert here._files == there._files and len(there._files) == 1


def test_an_error_on_a_worker_is_the_same_here(ray, backbone, images):
    def fail(grid):
        raise ValueError("no such thing; take another")

    with pytest.raises(ValueError) as caught:
        capture(backbone, images.select([0]), [OnPatches("thing", fail)], engine=capture_ray)
    assert str(caught.value) == "no such thing; take another"


def actor(ray, backbone, images, reducers, **changed):
    """What a worker has, in this process."""
    job = cluster._packed((backbone, images, reducers, {}))
    options = {"batch_size": 2, "device": "cpu", "progress": False}
    arguments = {"made_with": cluster.made_with(), "threads": 1, "next_hook": RemovableHandle.next_id}
    arguments |= {"tries": cluster._tries(ray, 1), **changed}
    return cluster._Actor(ray.put(job), None, options, **arguments)


def unchecked(name, monkeypatch):
    """A module of interventions as users have it: the check of types, which only tests make, leaves its hooks unfit to travel."""
    spec = importlib.util.spec_from_file_location(f"unchecked_{name}", Path(interventions.__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    if name == "neurons":
        monkeypatch.setattr(module, "appended_registers", unchecked("tokens", monkeypatch).appended_registers)
    return module


@pytest.mark.parametrize(
    ("module", "intervention", "arguments"),
    [
        ("tokens", "appended_registers", (2, "mean")),
        ("tokens", "moved_positions", (range(195, -1, -1),)),
        ("neurons", "test_time_registers", ([(0, 1), (2, 2)], 2)),
    ],
)
def test_random_weights_and_interventions_survive(ray, images, module, intervention, arguments, monkeypatch):
    backbone = load_backbone("vit_tiny_patch16_224", pretrained=False)
    randomise(backbone.model)
    # These look where the interventions act. The numbers of hooks begin anew in a worker, and must not be given twice.
    reducers = [OnPatches("embedding", torch.clone), NeuronActivation("neuron", 3, 0), FinalTokens()]
    plain = capture(backbone, images.select([0, 1]), reducers)["final_tokens"]
    monkeypatch.setattr(RemovableHandle, "next_id", 0)
    with getattr(unchecked(module, monkeypatch), intervention)(backbone, *arguments):
        one = actor(ray, backbone, images, reducers)
        wanted = capture(backbone, images.select([0, 1]), reducers)
        RemovableHandle.next_id = 0
        (row,) = one.rows(0, 2)
    values, _ = cluster.pickle.loads(row["content"])
    for key, value in wanted.items():
        np.testing.assert_array_equal(values[key], value.numpy())
    assert not torch.equal(wanted["final_tokens"], plain)


def test_register_neurons_are_those_of_one_process(ray, backbone, images):
    search = {"top_k": 20, "batch_size": 2}
    assert find_register_neurons(backbone, images, **search, engine=capture_ray) == find_register_neurons(
        backbone, images, **search
    )


class NoMerge:
    def update(self, values):
        """Nothing."""


class TestRefused:
    def test_chance_from_one_image_to_the_next(self, ray, backbone, images):
        with (
            interventions.dropped_patches(backbone, 0.5),
            pytest.raises(ValueError, match="draws at random for one image after another"),
        ):
            capture(backbone, images, [FinalTokens()], engine=capture_ray)

    def test_a_reducer_that_counts_in_itself(self, ray, backbone, images):
        class Counts(PatchNorms):
            seen = []

            def reduce(self, x, layout):
                self.seen.append(len(x))
                return super().reduce(x, layout)

        counts = Counts()
        object.__setattr__(counts, "seen", [])
        with pytest.raises(ValueError, match=r"keeps count in itself \(Counts\)"):
            list(actor(ray, backbone, images, [counts]).rows(0, 2))

    def test_a_summary_that_cannot_be_merged(self, ray, backbone, images):
        with pytest.raises(ValueError, match=r"NoMerge, which sums up 'patch_norms', has no empty\(\) and merge\(\)"):
            capture(backbone, images, [PatchNorms()], into={"patch_norms": [NoMerge()]}, engine=capture_ray)

    def test_images_that_end_one_worker_after_another(self, ray, backbone, images):
        one = actor(ray, backbone, images, [PatchNorms()])  # which gives a piece one try
        assert [(row["start"], row["stop"]) for row in one.rows(2, 5)] == [(2, 4), (4, 5)]
        with pytest.raises(RuntimeError, match="images 2 to 4 ended one worker after another"):
            list(one.rows(2, 5))

    def test_other_code_on_the_worker(self, ray, backbone, images):
        told = cluster.made_with() | {"torch": "2.0", "helpers.models.tokens": "another", "helpers.no_such_module": "another"}
        with pytest.raises(
            ValueError, match="another state of helpers.models.tokens, torch than the machine that calls it; bring"
        ):
            list(actor(ray, backbone, images, [PatchNorms()], made_with=told).rows(0, 2))

    @pytest.mark.parametrize(
        ("device", "threads", "message"),
        [
            ("cuda", 1, "no machine of the cluster has 1 GPU and 1 CPU for a worker; start one with GPUs"),
            ("cpu", 3, "no machine of the cluster has 3 CPUs for a worker; start one, or set OMP_NUM_THREADS lower"),
        ],
    )
    def test_a_cluster_without_workers(self, ray, backbone, images, device, threads, message):
        torch.set_num_threads(threads)
        with pytest.raises(ValueError, match=message):
            capture(backbone, images, [PatchNorms()], device=device, engine=capture_ray)

    def test_a_limit_that_is_none(self, ray, backbone, images, monkeypatch):
        monkeypatch.setenv("REGISTERS_ACTORS", "0")
        with pytest.raises(ValueError, match="REGISTERS_ACTORS is '0'; give the largest number"):
            capture(backbone, images, [PatchNorms()], engine=capture_ray)

    @pytest.mark.parametrize(
        ("came", "message"),
        [
            ([(0, 4), (8, 11)], "images from 8 on came back where those from 4 on were due"),
            ([(0, 4), (0, 4)], "images from 0 on came back where those from 4 on were due"),
            ([(0, 4), (4, 8)], "3 of 11 images did not come back"),
        ],
    )
    def test_what_is_lost_or_doubled(self, ray, backbone, images, monkeypatch, came, message):
        monkeypatch.setattr(cluster, "_received", lambda *_: iter((*span, {}, {}) for span in came))
        with pytest.raises(RuntimeError, match=message):
            capture(backbone, images, [PatchNorms()], engine=capture_ray)


def test_without_ray_the_remedy_is_named(project, backbone, images, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[ray\]'"):
        capture(backbone, images, [PatchNorms()], engine=capture_ray)
    assert main(["run", "aa1-first", "--engine", "ray"], project.root) == 2
    assert capsys.readouterr().err == "error: a cluster needs Ray, which is not installed; pip install -e '.[ray]'\n"


def test_nobody_at_the_address(project, monkeypatch, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(cluster._ray(), "is_initialized", lambda: False)
    assert main(["run", "aa1-first", "--engine", "ray", "--address", address], project.root) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: no Ray cluster answers at '{address}' (") and error.count("\n") == 1


class TestNotebooks:
    def run(self, project, *ids, **options):
        options = {"report": lambda _: None, "engine": "ray", **options}
        return {outcome.id: outcome for outcome in runs.run_claims(project, ids, **options)}

    def edit(self, project, id, new):
        path = project.source(id)
        path.write_text(path.read_text().replace("time.sleep(600)", new).replace('mode == \\"sleep\\"', "True"))

    def test_published_as_from_here_though_a_worker_is_killed(self, ray, project):
        self.edit(project, "aa2-second", "Path('once').exists() or (Path('once').touch(), os.kill(os.getppid(), 9))")
        outcomes = self.run(project, "aa1-first", "aa2-second")
        assert {id: one.status for id, one in outcomes.items()} == {"aa1-first": "supported", "aa2-second": "supported"}
        assert (project.root / "once").exists()
        result = runs.read_result(project.runs / "controls" / "aa1-first.json")
        assert result["provenance"]["device"].startswith("cpu (") and result["provenance"]["threads"] == 1
        assert str(project.root) not in (project.runs / "controls" / "aa1-first.ipynb").read_text()
        assert self.run(project, "aa1-first")["aa1-first"].status == "kept"
        assert self.run(project, "aa1-first", engine="local")["aa1-first"].status == "kept"

    def test_a_failure_is_that_of_the_notebook(self, ray, project):
        (outcome,) = self.run(project, "aa1-first", overrides={"mode": "fail"}).values()
        assert outcome.status == "failed"
        told = "ValueError: the score of nothing is not defined (cell 3 of aa1-first.ipynb)"
        assert outcome.reason == f"{told}; see _build/failed/controls/aa1-first.ipynb"
        assert not project.runs.exists()

    def test_ctrl_c_ends_the_notebooks_of_the_cluster(self, ray, project):
        self.edit(project, "aa2-second", "Path('second.pid').write_text(str(os.getpid())), time.sleep(600)")
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
