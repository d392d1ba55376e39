"""The one way in which notebooks are executed, and what a run writes when they end.

A run renames a finished notebook and its result into `_build/runs/<run>/` (those on the controls
into `book/runs/controls/`), so an interrupted run leaves the finished ones. Of a failed notebook
`_build/failed` keeps what it came to.
"""

import json
import os
import sys
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
from helpers.claims.project import CONTROLS, Project, differing, inputs
from helpers.claims.result import (
    IMAGES_SUFFIX,
    Calibration,
    Result,
    as_expected,
    read_result,
    unexpected,
)
from helpers.claims.values import FOLDER, NAME
from helpers.files import write_bytes, write_text
from helpers.names import plural
from helpers.run.kernel import OwnKernel, executed
from helpers.run.parameters import check_run, resolve_all
from helpers.run.provenance import fingerprint, hardware, provenance

CACHE = "REGISTERS_CACHE"  # where kernels find the folder of captures, see capture/cache.py


class Outcome(NamedTuple):
    """What became of one notebook: a verdict, 'stored', 'kept' (nothing to do) or 'failed', and
    why; and what the controls gave, where it ran on them alone.
    """

    id: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    calibration: Calibration = MappingProxyType({})

    def __str__(self) -> str:
        said = self.status
        if self.calibration:  # a verdict on models that were built to be refuted would mislead
            said = f"{self.status}, " if self.status in ("kept", "stored") else ""
            said += as_expected(self.calibration)
        seconds = f"  ({self.seconds:.1f} s)" if self.seconds else ""
        return f"{self.id}  {said}{seconds}" + (f": {self.reason}" if self.reason else "")

    @property
    def is_calibrated(self) -> bool:
        """Whether every control gave what was expected of it."""
        return not unexpected(self.calibration)


def calibrated(outcomes: Sequence[Outcome]) -> str:
    """In a sentence how many controls gave what was expected; '' where none ran alone."""
    found = [one.calibration for one in outcomes if one.calibration]
    if not found:
        return ""
    count = sum(map(len, found))
    right = count - sum(len(unexpected(own)) for own in found)
    claims = f"{plural(len(found), 'claim')} on reference models"
    return f"{claims}: {right} of {count} as expected. This is validation, not a finding."


class Made(NamedTuple):
    """The result of an executed claim as JSON data, its notebook, and its values by image."""

    result: dict
    notebook: bytes
    images: bytes | None = None

    def write(self, folder: Path) -> None:
        """Write the files of the claim into `folder`, the result last."""
        id = self.result["id"]
        write_bytes(folder / f"{id}.ipynb", self.notebook)
        images = folder / f"{id}{IMAGES_SUFFIX}"
        if self.images is None:
            images.unlink(missing_ok=True)
        else:
            write_bytes(images, self.images)
        text = json.dumps(self.result, indent=1, ensure_ascii=False, allow_nan=False)
        write_text(folder / f"{id}.json", text + "\n")


class Executed(NamedTuple):
    """An executed notebook, its result, the file of its values by image, and the wall time."""

    notebook: nbformat.NotebookNode
    result: Result
    images: bytes | None
    seconds: float


def execute(
    project: Project,
    id: str,
    parameters: Mapping[str, Any] | None = None,
    threads: int = 1,
    *,
    cache: str = "none",
    failed: Path | None = None,
    bar: bool = False,
) -> Executed:
    """Execute the notebook of a claim with these parameters, else its own.

    Args:
        threads: with which its kernel computes.
        cache: the folder in which captures are kept, or 'none'.
        failed: where the notebook is kept if it fails.
        bar: show progress over its cells.

    Raises RuntimeError where the notebook fails.
    """
    claim, started = project.registry[id], time.perf_counter()
    given = {x: y for x, y in (parameters or {}).items() if y != claim.parameters[x]}
    with tempfile.TemporaryDirectory() as folder:
        variables = {FOLDER: folder, CACHE: cache}
        notebook = executed(
            project.source(id),
            given,
            project.root,
            threads,
            variables=variables,
            failed=failed,
            bar=bar,
        )
        images = Path(folder) / NAME
        content = images.read_bytes() if images.is_file() else None
    result = Result.from_json(claim, bundle(notebook))
    return Executed(notebook, result, content, time.perf_counter() - started)


def run_claims(
    project: Project,
    ids: Sequence[str],
    run: str = CONTROLS,
    overrides: Mapping[str, str] | None = None,
    *,
    profile: str | None = None,
    again: bool = False,
    force: bool = False,
    jobs: int | None = None,
    ray: str | None = None,
    report: Callable[[Outcome], object] = print,
) -> list[Outcome]:
    """Execute the notebooks of `ids` into `_build/runs/<run>/`, each with its share of the cores.

    A claim whose result is there or published, of the same inputs, is kept. A notebook that fails
    does not stop the others.

    Args:
        overrides: parameter -> value as text, for the claims that have the parameter.
        profile, again: as in `parameters.resolve`.
        force: execute what would be kept, and replace results of other parameters.
        jobs: notebooks at a time; one per core unless given.
        ray: the address of a Ray cluster whose machines execute the notebooks, '' for the one that
            RAY_ADDRESS names or that runs here.
        report: called as each notebook ends.

    Raises ValueError, before anything runs, where a parameter is wrong, or an own result of other
    parameters would be replaced.
    """
    check_run(run)
    resolved = resolve_all(project, ids, run, overrides, profile=profile, again=again)
    code = {id: fingerprint(project, id) for id in resolved}
    kept = {} if force else _kept(project, run, resolved, code)
    folder = project.place(run)
    for id, own in resolved.items():
        path = folder / f"{id}.json"
        if run != CONTROLS and not force and path.is_file() and id not in kept:
            _refuse_to_replace(path, own)
    compute = computed if ray is None else _on_ray(ray, resolved)

    def run_one(id: str, threads: int) -> Outcome:
        if id in kept:
            return kept[id]
        threads = 1 if run == CONTROLS else threads  # so that sums have one order
        bar = len(resolved) == 1 and sys.stderr.isatty()
        made = compute(project.root, id, run, resolved[id], threads, code[id], bar)
        made.write(folder)
        controls = Result.from_json(project.registry[id], made.result).calibration()
        seconds, verdict = made.result["provenance"]["wall_s"], made.result["verdict"]
        if run == CONTROLS:
            return Outcome(id, verdict, seconds, calibration=controls)
        missing = [f"{x} was not run ({why})" for x, why in made.result["not_run"].items()]
        return Outcome(id, verdict, seconds, "; ".join([made.result["reason"], *missing]))

    return parallel(run_one, list(resolved), jobs if ray is None else len(resolved), report)


def computed(
    root: Path,
    id: str,
    run: str,
    parameters: Mapping[str, Any],
    threads: int,
    code: str,
    bar: bool = False,
) -> Made:
    """Execute the notebook of a claim on this machine: the notebook, its result with the provenance
    of this machine, and its values by image.

    Raises ValueError where the code is another one here than `code` on the machine that asks.
    """
    project = Project(root)
    if fingerprint(project, id) != code:
        raise ValueError(f"other code lies at {root} on {os.uname().nodename} than here")
    machine = hardware(parameters.get("device", "cpu"))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    done = execute(
        project,
        id,
        parameters,
        threads,
        cache="none" if run == CONTROLS else cache_of(root),
        failed=root / "_build" / "failed" / run / f"{id}.ipynb",
        bar=bar,
    )
    if run != CONTROLS:  # these are compared and shown without their file
        refer_to_file(done.notebook)
    result = done.result.to_json()
    log = history.load(root)
    made_with = {
        **provenance(root),
        **machine,
        "threads": threads,
        "sources": result.pop("sources"),
        "seed": parameters.get("seed"),
        "started": started,
        "wall_s": round(done.seconds, 1),
        "energy_wh": round(done.seconds / 3600 * machine["energy_kw"] * 1000, 3),
        "inputs": inputs(project, id, parameters),
        "code": code,
    }
    head = {
        "id": id,
        "run": run,
        "verdict": result["verdict"],
        "first_verdict": history.first_verdict(log, done.result),
        "after_the_fact": history.is_after_the_fact(log.get(id, ()), parameters),
    }
    text = (nbformat.writes(done.notebook) + "\n").encode()
    whole = {**head, **result, "parameters": parameters, "provenance": made_with}
    return Made(whole, text, done.images)


def cache_of(root: Path) -> str:
    """The folder in which runs keep their captures, or 'none'."""
    return os.environ.get(CACHE) or str(root / "_build" / "captures")


def _on_ray(address: str, parameters: Mapping[str, Mapping]) -> Callable[..., Made]:
    """`computed` as a task of a Ray cluster, with a GPU where the parameter `device` is one.

    Every machine needs the project at the same path. A task computes with OMP_NUM_THREADS threads,
    one unless set, and has as many CPUs.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to nobody
    import ray  # here, since it is an extra

    if not ray.is_initialized():
        ray.init(address or None, include_dashboard=False, logging_level="WARNING")
    threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
    task = ray.remote(computed)

    def compute(root: Path, id: str, run: str, own: Mapping, _: int, *rest: Any) -> Made:
        gpus = int(own.get("device", "cpu") != "cpu")
        sent = task.options(num_cpus=threads, num_gpus=gpus, max_retries=0)
        return ray.get(sent.remote(root, id, run, own, threads, rest[0]))

    return compute


def _kept(
    project: Project, run: str, resolved: Mapping[str, Mapping], code: Mapping[str, str]
) -> dict[str, Outcome]:
    """The claims whose result of the same inputs is published, or there and of the same code."""
    kept = {}
    for id, parameters in resolved.items():
        today = inputs(project, id, parameters)
        for folder in (project.runs / run, project.place(run)):
            if (path := folder / f"{id}.json").is_file():
                result = read_result(path)
                origin = result["provenance"]
                is_published = folder == project.runs / run and run != CONTROLS
                same = is_published or origin.get("code") == code[id]
                if same and not differing(project, id, origin["inputs"], today):
                    reason = "published as it is" if is_published else ""
                    controls = {}
                    if run == CONTROLS:
                        controls = Result.from_json(project.registry[id], result).calibration()
                    kept[id] = Outcome(id, "kept", reason=reason, calibration=controls)
    return kept


def _refuse_to_replace(path: Path, parameters: Mapping[str, Any]) -> None:
    """Raise ValueError where the result at `path` has other parameters."""
    old = read_result(path)["parameters"]
    others = [f"{x}={old.get(x)!r}, now {y!r}" for x, y in parameters.items() if old.get(x, y) != y]
    if others:
        raise ValueError(
            f"{path.parent.name}/{path.name} has other parameters ({', '.join(others)}); give "
            "--force to replace it, or another --run"
        )


def store_outputs(
    project: Project,
    ids: Sequence[str],
    jobs: int | None = None,
    report: Callable[[Outcome], object] = print,
) -> list[Outcome]:
    """Execute source notebooks in place with their defaults, so that their outputs, and their
    numbers beside them, are what the code gives today; with one thread, as the tests do.
    """

    def store_one(id: str, _: int) -> Outcome:
        path, done = project.source(id), execute(project, id)
        found = numbers.of_notebook(done.notebook, project.registry[id])
        beside = numbers.beside(path)
        write_text(beside, numbers.renewed(beside, found))
        write_text(path, nbformat.writes(done.notebook) + "\n")
        return Outcome(id, "stored", done.seconds, calibration=done.result.calibration())

    return parallel(store_one, ids, jobs, report)


def parallel(
    one: Callable[[str, int], Outcome],
    ids: Sequence[str],
    jobs: int | None = None,
    report: Callable[[Outcome], object] = print,
) -> list[Outcome]:
    """`one(id, threads)` for each identifier, `jobs` at a time, with a share of the cores, but no
    more threads than OMP_NUM_THREADS says. Whatever one raises is the reason of its failure.
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
                report(outcomes[-1])
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            # A kernel may have been starting just now: ask again until every thread has ended.
            while not all(future.done() for future in pending):
                OwnKernel.kill_all()
                time.sleep(0.2)
            raise
    return outcomes
