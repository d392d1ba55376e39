"""The commands that run notebooks: which parameters, which claims, how many at a time.

A notebook computes in a kernel, which is a process of its own; a thread per notebook is therefore enough to run several at
once. Nothing is written before a notebook has finished. Then the executed notebook and its result are renamed into
`book/runs/<run>/`, so an interrupted run leaves the finished ones and nothing else.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import nbformat

from helpers.files import digest_of, write_together
from helpers.publish import numbers
from helpers.publish.claims import Claim, Result
from helpers.publish.kernel import OwnKernel, execute
from helpers.publish.parameters import check_values, checked, data_sets, parse
from helpers.publish.project import CONTROLS, Project
from helpers.publish.provenance import hardware, inputs_digest, provenance
from helpers.publish.results import bundle, check_run, publish, read_result

LOCAL = ("local-dir:", "file:", "scratch:", "transformers:")  # names of models that may be paths


class Outcome(NamedTuple):
    """What became of one notebook: a verdict, 'stored', 'kept' (nothing to do) or 'failed' with the reason."""

    id: str
    status: str
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        more = f": {self.reason}" if self.reason else f"  ({self.seconds:.1f} s)" if self.seconds else ""
        return f"{self.id}  {self.status}{more}"


def resolve(
    project: Project, id: str, run: str = CONTROLS, overrides: Mapping[str, str] | None = None, *, again: bool = False
) -> dict:
    """All parameters of one run: the notebook's defaults, the profile called `run` where there is one, the command line.

    Where there is no such profile, `again` takes the parameters of the claim's result in `run`, if it has one there.

    Raises ValueError for anything unknown (claim, parameter, model, data set) or of the wrong type, before anything runs.
    """
    project.source(id)
    claim = project.registry[id]
    defaults = claim.parameters
    profile, result = claim.profiles.get(run, {}), project.runs / run / f"{id}.json"
    if again and run not in claim.profiles and result.is_file():
        try:
            profile = checked(defaults, read_result(result)["parameters"])
        except ValueError as error:
            raise ValueError(f"claim {id!r}: its result in run {run!r} gives no parameters ({error}); run it by its ID") from None
    try:
        parameters = checked(defaults, profile)
        overrides = {name: parse(name, text, defaults.get(name, "")) for name, text in (overrides or {}).items()}
        parameters = checked(parameters, overrides)
        check_values(parameters, defaults)
        parameters = _without_folders(parameters)
        sets = data_sets(parameters)
        if unknown := set(claim.labels) - defaults.keys():
            raise ValueError(f"its labels name the unknown parameter {min(unknown)!r}; correct them in the registry")
    except ValueError as error:
        raise ValueError(f"claim {id!r}: {error}") from None
    # Here, since both take seconds to import and `list` and `check` need neither.
    from helpers import images, models

    for model in parameters.get("models", ()):
        models.check_name(model)
    for data in sets:
        images.check_name(data)
    return parameters


def _without_folders(parameters: Mapping) -> dict:
    """The parameters with models of this machine by the last part of their path; kernels find them by REGISTERS_MODELS."""
    names = [name for value in parameters.values() for name in (value if isinstance(value, list) else [value])]
    texts = [name for name in names if isinstance(name, str) and name.startswith(LOCAL)]
    if not texts:
        return dict(parameters)
    from helpers import models  # here, since it takes seconds to import, and `list` and `check` need it not

    short = dict(zip(texts, models.portable(texts), strict=True))

    def shortened(value: object) -> object:
        return short.get(value, value) if isinstance(value, str) else value

    return {
        key: [shortened(item) for item in value] if isinstance(value, list) else shortened(value)
        for key, value in parameters.items()
    }


def _require_data(claim: Claim, parameters: Mapping, root: Path) -> None:
    """Raise an error of `images` where local data, or labels that the claim asks for, are not there: before a kernel starts."""
    from helpers import images  # here, since it takes seconds to import

    def located(name: str) -> str:  # relative paths are the notebook's, which runs in the root
        kind, colon, path = name.partition(":")
        return f"{kind}{colon}{root / path}" if kind in ("folder", "parquet") else name

    for name in data_sets(parameters):
        images.require(located(name))
    for name in claim.labels:
        images.load_images(located(parameters[name]), 1, parameters.get("seed", 0)).require_labels()


def whole(project: Project, run: str) -> list[str]:
    """The claims of a run: those with a profile of its name or a result in it, and on the controls all that have a notebook.

    Raises ValueError where there are none.
    """
    claims = [project.registry[id] for id in project.with_notebook()]
    there = {path.stem for path in project.results() if path.parent.name == run}
    ids = [claim.id for claim in claims if run == CONTROLS or run in claim.profiles or claim.id in there]
    if not ids:
        named = sorted({name for claim in claims for name in claim.profiles})
        raise ValueError(f"no claim has a profile {run!r} or a result in that run; choose one of {', '.join([CONTROLS, *named])}")
    return ids


def run_claims(
    project: Project,
    ids: Sequence[str],
    run: str = CONTROLS,
    overrides: Mapping[str, str] | None = None,
    *,
    again: bool = False,
    force: bool = False,
    jobs: int | None = None,
    report: Callable[[Outcome], None] = print,
    engine: str = "local",
    address: str | None = None,
) -> list[Outcome]:
    """Execute the notebooks of `ids` into `book/runs/<run>/`, `jobs` at a time, each with its share of the cores.

    A notebook whose result is there, intact and made from the same inputs is kept, unless `force`; `again` is as in `resolve`.
    `report` is called as each one ends; a failed notebook leaves no trace and does not stop the others. With the engine "ray"
    they are executed by the machines of the cluster at `address` (see `cluster.connect`), each with a GPU where its parameter
    `device` is one, and published here. Raises ValueError before anything runs where an identifier, the run's name, a parameter
    or the engine is wrong, or no machine is there for it.
    """
    check_run(run)
    if engine not in ("local", "ray") or (engine == "local" and address is not None):
        raise ValueError(f"engine {engine!r} with address {address!r}: choose 'local' without an address, or 'ray'")
    parameters = {id: resolve(project, id, run, overrides, again=again) for id in ids}
    devices = {id: values.get("device", "cpu") for id, values in parameters.items()}
    folder = project.runs / run
    if engine == "ray":
        from helpers.cluster import Calls  # here, since only this engine needs it

        calls = Calls(address)
        for gpu in {device != "cpu" for device in devices.values()}:
            calls.require(gpu)
        machines, stop = calls.cores, calls.stop
    else:
        for device in devices.values():
            hardware(device)
        machines, stop = None, OwnKernel.kill_all

    def one(id: str, threads: int) -> Outcome:
        digest = inputs_digest(project, id, parameters[id])
        if not force and _finished(folder / f"{id}.json", digest):
            return Outcome(id, "kept")
        arguments = project.root, id, run, parameters[id], threads, digest
        if engine == "ray":
            text, result = calls(computed, *arguments, threads=threads, gpu=devices[id] != "cpu")
        else:
            text, result = computed(*arguments)
        publish(folder, id, text, result)
        return Outcome(id, result["verdict"], result["provenance"]["wall_s"])

    return _parallel(one, list(parameters), jobs, report, machines, stop)


def computed(root: Path, id: str, run: str, parameters: Mapping, threads: int, digest: str) -> tuple[str, dict]:
    """The executed notebook of a claim as text, and its result with the provenance of this machine.

    Raises ValueError where the inputs have another `digest` on this machine, and what `execute` raises.
    """
    project = Project(root)
    if inputs_digest(project, id, parameters) != digest:
        state = f"{platform.node()} has other helpers, another notebook or another criterion below {root}"
        raise ValueError(f"{state} than the machine that calls it; bring both to the same state")
    machine = hardware(parameters.get("device", "cpu"))
    started, clock = datetime.now(UTC), time.perf_counter()
    claim = project.registry[id]
    _require_data(claim, parameters, root)
    changed = {name: value for name, value in parameters.items() if value != claim.parameters[name]}
    notebook = execute(project.source(id), changed, root, threads)
    result = Result.from_json(claim, bundle(notebook)).to_json()
    wall, text = time.perf_counter() - clock, nbformat.writes(notebook) + "\n"
    details = {
        **provenance(root),
        **machine,
        "threads": threads,
        "sources": result.pop("sources"),
        "seed": parameters.get("seed"),
        "started": started.isoformat(timespec="seconds"),
        "wall_s": round(wall, 1),
        "energy_wh": round(wall / 3600 * machine["energy_kw"] * 1000, 3),
        "inputs": digest,
        "notebook": digest_of(text),
    }
    head = {"id": result.pop("id"), "run": run}
    return text, {**head, **result, "parameters": parameters, "provenance": details}


def store_outputs(
    project: Project, ids: Sequence[str], jobs: int | None = None, report: Callable[[Outcome], None] = print
) -> list[Outcome]:
    """Execute source notebooks in place with their defaults, so that their outputs, and their numbers beside them, are what the
    code gives today. Measured spreads among the stored numbers stay.

    Each computes with one thread, whatever `jobs` is, as `make test` does: sums in another order train another probe.
    """

    def one(id: str, _: int) -> Outcome:
        path, clock = project.source(id), time.perf_counter()
        notebook, beside = execute(path, {}, project.root), numbers.beside(path)
        stored = numbers.renewed(beside, numbers.of_notebook(notebook, project.registry[id]))
        write_together({path: nbformat.writes(notebook) + "\n", beside: stored})
        return Outcome(id, "stored", time.perf_counter() - clock)

    return _parallel(one, [project.source(id) and id for id in ids], jobs, report)


def _finished(path: Path, digest: str) -> bool:
    try:
        return read_result(path)["provenance"]["inputs"] == digest
    except (OSError, ValueError):
        return False


def _parallel(
    one: Callable[[str, int], Outcome],
    ids: Sequence[str],
    jobs: int | None,
    report: Callable[[Outcome], None],
    machines: Sequence[int] | None = None,
    stop: Callable[[], None] = OwnKernel.kill_all,
) -> list[Outcome]:
    """`one(id, threads)` for each identifier, in threads, with a share of the cores of all `machines` (of this one).

    After Ctrl-C `stop` ends the notebooks that run, and none is left running.
    """
    machines = machines or [os.cpu_count() or 1]
    jobs = min(jobs or sum(machines), max(1, len(ids)))
    threads = max(1, min(sum(machines) // jobs, max(machines)))

    def guarded(id: str) -> Outcome:
        try:
            return one(id, threads)
        except Exception as error:  # whatever it is, the other notebooks go on
            return Outcome(id, "failed", reason=" ".join(f"{error}".split()) or type(error).__name__)

    outcomes, pending = [], set[Future]()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            pending |= {pool.submit(guarded, id) for id in ids}
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    outcomes.append(future.result())
                    report(outcomes[-1])
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            while pending:  # a kernel may have been starting just now: ask again until every thread has ended
                stop()
                pending = wait(pending, timeout=0.2).not_done
            raise
    return outcomes
