"""The one way in which notebooks are executed, and what a run writes when they end.

A run renames a finished notebook and its result into `_build/runs/<run>/` (those on the controls
into `book/runs/controls/`), so an interrupted run leaves the finished ones. Of a failed notebook
`_build/failed` keeps what it came to.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import nbformat

from helpers.claims import history, numbers
from helpers.claims.notebook import bundle, refer_to_file
from helpers.claims.project import CONTROLS, Project, other_inputs, values_digest
from helpers.claims.result import IMAGES_SUFFIX, Calibration, Result, as_expected, read_result
from helpers.claims.values import IMAGES_FILE, RUN_FOLDER
from helpers.files import write_bytes, write_text
from helpers.run.kernel import OwnKernel, run_notebook
from helpers.run.parameters import check_replaced, check_run, resolve_all
from helpers.run.provenance import fingerprint, provenance

CACHE = "REGISTERS_CACHE"  # where kernels find the folder of captures, see capture/cache.py


class Outcome(NamedTuple):
    """What became of one notebook: a verdict, 'stored', 'kept' (nothing to do), 'to run' or
    'failed', and why; and what the controls gave, where it ran on them alone.
    """

    id: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    calibration: Calibration = MappingProxyType({})

    def __str__(self) -> str:
        said = self.status
        if self.calibration:  # one verdict over reference models, built to differ, would mislead
            said = f"{self.status}, " if self.status in ("kept", "stored") else ""
            said += as_expected(self.calibration)
        seconds = f"  ({self.seconds:.1f} s)" if self.seconds else ""
        return f"{self.id}  {said}{seconds}" + (f": {self.reason}" if self.reason else "")


class ExecutedClaim(NamedTuple):
    """An executed notebook, its result as JSON data, the table of what its values take of each
    image as the bytes of its file, and the wall time.
    """

    notebook: nbformat.NotebookNode
    result: dict
    per_image: bytes | None
    seconds: float

    def write(self, folder: Path) -> None:
        """Write the files of the claim into `folder`, the result last."""
        id = self.result["id"]
        write_text(folder / f"{id}.ipynb", nbformat.writes(self.notebook) + "\n")
        path = folder / f"{id}{IMAGES_SUFFIX}"
        if self.per_image is None:
            path.unlink(missing_ok=True)
        else:
            write_bytes(path, self.per_image)
        text = json.dumps(self.result, ensure_ascii=False, allow_nan=False)
        write_text(folder / f"{id}.json", text + "\n")


def execute_claim(
    project: Project,
    id: str,
    parameters: Mapping[str, Any] | None = None,
    threads: int = 1,
    cache: str = "none",
) -> ExecutedClaim:
    """Execute the notebook of a claim with these parameters, else its own, and with captures in the
    folder `cache`.
    """
    claim, started = project.registry[id], time.perf_counter()
    # papermill writes what it is given into a cell of its own; the defaults are there already.
    given = {x: y for x, y in (parameters or {}).items() if y != claim.parameters[x]}
    with tempfile.TemporaryDirectory() as folder:
        variables = {RUN_FOLDER: folder, CACHE: cache}
        notebook = run_notebook(project.notebook_path(id), given, project.root, threads, variables)
        path = Path(folder) / IMAGES_FILE
        per_image = path.read_bytes() if path.is_file() else None
    return ExecutedClaim(notebook, bundle(notebook), per_image, time.perf_counter() - started)


def run_claims(
    project: Project,
    ids: Sequence[str],
    run: str = CONTROLS,
    overrides: Mapping[str, str] | None = None,
    *,
    profile: str | None = None,
    reuse_parameters: bool = False,
    force: bool = False,
    jobs: int | None = None,
    ray: str | None = None,
    plan: bool = False,
) -> list[Outcome]:
    """Execute the notebooks of `ids` into `_build/runs/<run>/`, each with its share of the cores.

    A claim whose result is there or published, of the same inputs, is kept. A notebook that fails
    does not stop the others.

    Args:
        overrides: parameter -> value as text, for the claims that have the parameter.
        profile, reuse_parameters: as in `parameters.resolve`.
        force: execute what would be kept, and replace results of other parameters.
        jobs: notebooks at a time; one per core unless given.
        ray: the address of a Ray cluster whose machines execute the notebooks, '' for the one that
            RAY_ADDRESS names or that runs here.
        plan: execute nothing; say what would be kept, and what not.

    Raises ValueError, before anything runs, where a parameter is wrong, or an own result of other
    parameters would be replaced.
    """
    check_run(run)
    resolved = resolve_all(
        project, ids, run, overrides, profile=profile, reuse_parameters=reuse_parameters
    )
    code = {id: fingerprint(project, id) for id in resolved}
    folder, kept = project.run_folder(run), {}
    for id, own in [] if force else resolved.items():
        if there := _kept(project, run, id, own, code[id]):
            kept[id] = there
        elif run != CONTROLS:
            check_replaced(folder / f"{id}.json", own)
    if plan:
        return [kept.get(id, Outcome(id, "to run")) for id in resolved]
    execute_one = run_here if ray is None else _on_ray(ray)

    def keep_or_run(id: str, threads: int) -> Outcome:
        if id in kept:
            return kept[id]
        threads = 1 if run == CONTROLS else threads  # so that sums have one order
        done = execute_one(project.root, id, run, resolved[id], threads, code[id])
        done.write(folder)
        verdict, reason = done.result["verdict"], done.result["reason"]
        if run == CONTROLS:
            found = Result.from_json(project.registry[id], done.result)
            return Outcome(id, verdict, done.seconds, found.unmeasured, found.calibration())
        missing = [f"{x} was not run ({why})" for x, why in done.result["not_run"].items()]
        return Outcome(id, verdict, done.seconds, "; ".join([reason, *missing]))

    return parallel(keep_or_run, list(resolved), jobs if ray is None else len(resolved))


def run_here(
    root: Path,
    id: str,
    run: str,
    parameters: Mapping[str, Any],
    threads: int,
    code: str,
) -> ExecutedClaim:
    """Execute the notebook of a claim on this machine; the result has its provenance."""
    project = Project(root)
    if fingerprint(project, id) != code:
        raise ValueError(f"other code lies at {root} on {os.uname().nodename} than here")
    origin = provenance(root, parameters.get("device", "cpu"))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    cache = os.environ.get(CACHE) or str(root / "_build" / "captures")
    cache = "none" if run == CONTROLS else cache
    done = execute_claim(project, id, parameters, threads, cache)
    if run != CONTROLS:  # these are compared and shown without their file
        refer_to_file(done.notebook)
    judged = Result.from_json(project.registry[id], done.result)
    entries = history.load(root).get(id, ())
    result = done.result | {
        "run": run,
        "first_verdict": history.first_verdict(entries, judged),
        "parameters": parameters,
    }
    origin |= {
        "threads": threads,
        "sources": result.pop("sources"),
        "seed": parameters.get("seed"),
        "started": started,
        "wall_s": round(done.seconds, 1),
        "energy_wh": round(done.seconds / 3600 * origin["energy_kw"] * 1000, 3),
        "inputs": {"numbers": values_digest(project.stored_numbers(id))},
        "code": code,
    }
    return done._replace(result=result | {"provenance": origin})


def _on_ray(address: str) -> Callable[..., ExecutedClaim]:
    """`run_here` as a task of a Ray cluster, with a GPU where the parameter `device` is one.

    Every machine needs the project at the same path. A task computes with OMP_NUM_THREADS threads,
    one unless set, and has as many CPUs.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to nobody
    import ray  # here, since it is an extra

    if not ray.is_initialized():
        ray.init(address or None, include_dashboard=False, logging_level="WARNING")
    threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    task = ray.remote(run_here)

    def run_there(root: Path, id: str, run: str, own: Mapping, _: int, code: str) -> ExecutedClaim:
        gpus = int(own.get("device", "cpu") != "cpu")
        sent = task.options(num_cpus=threads, num_gpus=gpus, max_retries=0)
        return ray.get(sent.remote(root, id, run, own, threads, code))

    return run_there


def _kept(project: Project, run: str, id: str, parameters: dict, code: str) -> Outcome | None:
    """The outcome where a result of the same inputs is published, or there and of the same code."""
    for folder in (project.runs / run, project.run_folder(run)):
        path, published = folder / f"{id}.json", folder != project.run_folder(run)
        result = read_result(path) if path.is_file() else None
        if result and (published or result["provenance"].get("code") == code):
            if not other_inputs(project, result, parameters):
                reason = "published as it is" if published else ""
                controls = _calibration(project, id, result) if run == CONTROLS else {}
                return Outcome(id, "kept", reason=reason, calibration=controls)
    return None


def _calibration(project: Project, id: str, result: Mapping) -> Calibration:
    return Result.from_json(project.registry[id], result).calibration()


def store_outputs(project: Project, ids: Sequence[str], jobs: int | None = None) -> list[Outcome]:
    """Execute source notebooks in place with their defaults, so that their outputs, and their
    numbers beside them, are what the code gives today; with one thread, as the tests do.
    """

    def store_one(id: str, _: int) -> Outcome:
        path, done = project.notebook_path(id), execute_claim(project, id)
        found = numbers.of_notebook(done.notebook, project.registry[id])
        beside = numbers.beside(path)
        write_text(beside, numbers.renewed(beside, found))
        write_text(path, nbformat.writes(done.notebook) + "\n")
        controls = _calibration(project, id, done.result)
        return Outcome(id, "stored", done.seconds, calibration=controls)

    return parallel(store_one, ids, jobs)


def parallel(
    one: Callable[[str, int], Outcome], ids: Sequence[str], jobs: int | None = None
) -> list[Outcome]:
    """`one(id, threads)` for each identifier, `jobs` at a time, with a share of the cores, but no
    more threads than OMP_NUM_THREADS says; a line for each as it ends. Whatever one raises is the
    reason of its failure.
    """
    cores = os.cpu_count() or 1
    jobs = min(jobs or cores, max(1, len(ids)))
    most = os.environ.get("OMP_NUM_THREADS", "")
    threads = max(1, min(cores // jobs, int(most) if most.isdecimal() else cores))

    def guarded(id: str) -> Outcome:
        try:
            return one(id, threads)
        except Exception as error:  # the other notebooks go on
            return Outcome(id, "failed", reason=" ".join(str(error).split()))

    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        pending = [pool.submit(guarded, id) for id in ids]
        try:
            for future in as_completed(pending):
                outcomes.append(future.result())
                print(outcomes[-1], flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            # A kernel may have been starting just now: ask again until every thread has ended.
            while not all(future.done() for future in pending):
                OwnKernel.kill_all()
                time.sleep(0.2)
            raise
    return outcomes
