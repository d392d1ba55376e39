"""The commands that run notebooks: which are kept, how many run at a time, and what is written when they end.

A notebook computes in a kernel, which is a process of its own; a thread per notebook is therefore enough to run several at
once. No result is written before a notebook has finished. Then the executed notebook and its result are renamed into
`_build/runs/<run>/` (those on the controls into `book/runs/controls/`), so an interrupted run leaves the finished ones, and of
the others the shards of long captures (`_build/shards`) and the notebook as far as it came (`_build/failed`).
"""

import os
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import nbformat

from helpers.files import digest_of, write_together
from helpers.publish import digests, numbers, plan, preflight
from helpers.publish.claims import Result
from helpers.publish.kernel import OwnKernel, execute
from helpers.publish.parameters import read_notebook
from helpers.publish.progress import Outcome, Progress
from helpers.publish.project import CONTROLS, Project
from helpers.publish.provenance import hardware, inputs_digest, provenance
from helpers.publish.publication import other_parameters
from helpers.publish.results import bundle, check_run, publish, read_result
from helpers.publish.selection import resolve_all


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
    watch: Callable[[Sequence[str]], None] | None = None,
    note: Callable[[str], object] = str,
    engine: str = "local",
    address: str | None = None,
) -> list[Outcome]:
    """Execute the notebooks of `ids` into `_build/runs/<run>/`, `jobs` at a time, each with its share of the cores.

    A notebook whose result is there or published, intact and made from the same inputs is kept, unless `force`; `again` is as in
    `resolve`, and makes those with the same parameters and other code anew.
    `note` is called with each line of `selection.applied` before the first begins, `report` as each one ends, and `watch` each
    second with a line for each that runs here. A failed notebook, or one whose parameters fit nothing here, does not stop the
    others. With the engine "ray" they are executed by the machines of the cluster at `address` (see `cluster.connect`), each with
    a GPU where its parameter `device` is one, and written here.

    Raises ValueError before anything runs where an identifier, the run's name, a parameter or the engine is wrong, no machine is
    there for it, or, unless `force`, where a result of other inputs would be replaced.
    """
    check_run(run)
    if engine not in ("local", "ray") or (engine == "local" and address is not None):
        raise ValueError(f"engine {engine!r} with address {address!r}: choose 'local' without an address, or 'ray'")
    parameters, notes = resolve_all(project, ids, run, overrides, again=again)
    devices = {id: values.get("device", "cpu") for id, values in parameters.items()}
    folder, made = project.place(run), {id: inputs_digest(project, id, values) for id, values in parameters.items()}
    if not force and run != CONTROLS:
        for id, values in parameters.items():
            _refuse_to_replace(folder / f"{id}.json", values, made[id], again)
    if engine == "ray":
        from helpers.cluster import Calls  # here, since only this engine needs it

        calls = Calls(address)
        for gpu in {device != "cpu" for device in devices.values()}:
            calls.require(gpu)
        machines, stop = calls.cores, calls.stop
    else:
        machines, stop = None, OwnKernel.kill_all
    kept = {} if force else {id: why for id, digest in made.items() if (why := _kept(project, id, run, digest)) is not None}
    refused = _refused(project, {id: own for id, own in parameters.items() if id not in kept}) if engine == "local" else {}
    for line in notes:
        note(line)
    running: dict[str, Progress] = {}
    order = count()

    def one(id: str, threads: int) -> Outcome:
        if id in refused:
            return Outcome(id, "failed", reason=refused[id])
        if id in kept:
            return Outcome(id, "kept", reason=kept[id])
        arguments = project.root, id, run, parameters[id], threads, made[id]
        if engine == "ray":
            text, result = calls(computed, *arguments, threads=threads, gpu=devices[id] != "cpu")
        else:
            running[id] = _progress(project, id, parameters[id], f"{os.getpid()}-{next(order)}")
            try:
                text, result = computed(*arguments, running[id])
            finally:
                running.pop(id).batch.unlink(missing_ok=True)
        publish(folder, id, text, result)
        return Outcome(id, result["verdict"], result["provenance"]["wall_s"])

    tick = (lambda: watch([str(one) for one in list(running.values())])) if watch else None
    return parallel(one, list(parameters), jobs, report, machines, stop, tick)


def _refused(project: Project, parameters: Mapping[str, Mapping]) -> dict[str, str]:
    """The claims whose parameters fit nothing here, and why. All are asked before the first kernel starts: who asks for thirty
    does not wait for the last to hear of a slip."""
    refused = {}
    for id, values in parameters.items():
        try:
            preflight.require(project.registry[id], values, project.root)
        except (ValueError, OSError) as error:
            refused[id] = " ".join(str(error).split())
    return refused


def _progress(project: Project, id: str, parameters: Mapping, name: str) -> Progress:
    """Where the notebook is that begins now; its kernel says its batch in the file `name`."""
    batch = project.root / "_build" / "progress" / name
    batch.parent.mkdir(parents=True, exist_ok=True)
    code = [cell for cell in read_notebook(project.source(id)).cells if cell.cell_type == "code"]
    injected = dict(parameters) != project.registry[id].parameters  # a cell more, with what differs from the defaults
    expected = plan.expected(project, id, parameters)
    return Progress(id, len(code) + injected, batch, expected.seconds if expected else None)


def _refuse_to_replace(path: Path, parameters: dict, digest: str, again: bool) -> None:
    """Raise ValueError where the result at `path` has other inputs; `again` is for those whose code alone is another."""
    try:
        result = read_result(path)
        there, differs = result["parameters"], result["provenance"]["inputs"] != digest
    except (OSError, ValueError, KeyError):
        return  # none, or none that can be read
    told = other_parameters(there, parameters)
    if told or (differs and not again):
        what = f"parameters ({told})" if told else "inputs (the code, or the criterion)"
        place = f"{path.parent.name}/{path.name}"
        raise ValueError(f"_build/runs/{place} is a result of other {what}; give --force to replace it, or another --run")


def computed(
    root: Path, id: str, run: str, parameters: Mapping, threads: int, digest: str, progress: Progress | None = None
) -> tuple[str, dict]:
    """The executed notebook of a claim as text, and its result with the provenance of this machine.

    Raises ValueError where the inputs have another `digest` on this machine, and what `preflight.require` and `execute` raise.
    """
    project = Project(root)
    if inputs_digest(project, id, parameters) != digest:
        state = f"{platform.node()} has other helpers, another notebook or another criterion below {root}"
        raise ValueError(f"{state} than the machine that calls it; bring both to the same state")
    machine = hardware(parameters.get("device", "cpu"))
    started, clock = datetime.now(UTC), time.perf_counter()
    claim = project.registry[id]
    if progress is None:  # on a machine of a cluster: it was not asked before
        preflight.require(claim, parameters, root)
    changed = {name: value for name, value in parameters.items() if value != claim.parameters[name]}
    shards = _shards(project, id, run, digest)
    resumed = shards is not None and any(shards.rglob("*.safetensors"))
    notebook = execute(
        project.source(id),
        changed,
        root,
        threads,
        failed=root / "_build" / "failed" / run / f"{id}.ipynb",
        batch=progress.batch if progress else None,
        shards=shards,
        at_cell=progress.at_cell if progress else None,
    )
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
    if resumed:  # then the wall time is that of the rest alone
        details["resumed"] = True
    head = {"id": result.pop("id"), "run": run}
    if shards:
        shutil.rmtree(shards.parent, ignore_errors=True)
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

    return parallel(one, [project.source(id) and id for id in ids], jobs, report)


def _shards(project: Project, id: str, run: str, digest: str) -> Path | None:
    """Where the kernel keeps long captures of this run until it has finished; None where it makes none. Those of the same claim
    with other inputs are removed."""
    texts = [cell.source for cell in read_notebook(project.source(id)).cells if cell.cell_type == "code"]
    if run == CONTROLS or "helpers.capture" not in digests.reached(texts):
        return None
    own = project.root / "_build" / "shards" / run / id
    for other in own.glob("*"):
        if other.name != digest[:16]:
            shutil.rmtree(other, ignore_errors=True)
    return own / digest[:16]


def _kept(project: Project, id: str, run: str, digest: str) -> str | None:
    """Why a claim need not run again, '' where its result is in its place; None where it has to."""
    for folder, why in ((project.place(run), ""), (project.runs / run, "published as it is")):
        try:
            if read_result(folder / f"{id}.json")["provenance"]["inputs"] == digest:
                return why
        except (OSError, ValueError):
            continue
    return None


def parallel(
    one: Callable[[str, int], Outcome],
    ids: Sequence[str],
    jobs: int | None,
    report: Callable[[Outcome], None],
    machines: Sequence[int] | None = None,
    stop: Callable[[], None] = OwnKernel.kill_all,
    tick: Callable[[], None] | None = None,
) -> list[Outcome]:
    """`one(id, threads)` for each identifier, in threads, with a share of the cores of all `machines` (of this one).

    After Ctrl-C `stop` ends the notebooks that run, and none is left running. `tick` is called each second.
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
                done, pending = wait(pending, timeout=1 if tick else None, return_when=FIRST_COMPLETED)
                if tick:
                    tick()
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
