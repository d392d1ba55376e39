"""The one way in which notebooks are executed: which are kept, how many run at a time, and what is
written when they end.

A notebook computes in a kernel, which is a process of its own; a thread per notebook is therefore
enough to run several at once. No result is written before a notebook has finished. Then the
executed notebook and its result are renamed into `_build/runs/<run>/` (those on the controls into
`book/runs/controls/`), so an interrupted run leaves the finished ones, and of the others what they
captured (`_build/captures`, unless REGISTERS_CACHE names another folder) and the notebook as far as
it came (`_build/failed`). On the controls nothing is stored.
"""

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import nbformat

from helpers.claims import history, numbers
from helpers.claims.notebook import differing, inputs, read_notebook
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Made, Result, bundle, check_run, publish, refer_to_file
from helpers.files import CACHE, Workspace, digest_of, locked, write_together
from helpers.foreign import one_line
from helpers.run.kernel import OwnKernel, execute
from helpers.run.parameters import require, resolve_all, told_with
from helpers.run.progress import Outcome, Progress, expected, readable
from helpers.run.provenance import fingerprint, hardware, provenance
from helpers.run.publish import other_parameters
from helpers.settings import require_path


def run_claims(
    project: Project,
    ids: Sequence[str],
    run: str = CONTROLS,
    overrides: Mapping[str, str] | None = None,
    *,
    again: bool = False,
    profile: str | None = None,
    force: bool = False,
    exploratory: bool = False,
    jobs: int | None = None,
    report: Callable[[Outcome], None] = print,
    watch: Callable[[Sequence[str]], None] = lambda lines: None,
    note: Callable[[str], object] = lambda line: None,
    engine: str = "local",
    address: str | None = None,
) -> list[Outcome]:
    """Execute the notebooks of `ids` into `_build/runs/<run>/`, each with its share of the cores.

    A notebook whose result is there or published, intact and made from the same inputs is kept. A
    failed notebook, or one whose parameters fit nothing here, does not stop the others.

    Args:
        overrides: parameter -> value as text, for the claims that have the parameter.
        again: take parameters as in `resolve`, and replace results of other code.
        profile: as in `resolve`.
        force: execute what would be kept, and replace results of any other inputs.
        exploratory: run also claims whose criterion is not committed, and mark their results.
        jobs: notebooks at a time; one per core unless given.
        report: called as each notebook ends.
        watch: called each second with a line for each notebook that runs here.
        note: called with each line of `applied` before the first notebook begins.
        engine: "local", or "ray": the machines of a cluster execute the notebooks, each with a GPU
            where its parameter `device` is one, and this process writes the results.
        address: of the cluster, see `helpers.run.cluster.connect`.

    Returns:
        The outcomes, in the order in which the notebooks ended.

    Raises:
        ValueError: before anything runs, where an identifier, the run's name, a parameter or the
            engine is wrong, a folder or file among the overrides or a machine is not there, a
            criterion is not committed and the run not `exploratory`, or, unless `force`, where a
            result of other inputs would be replaced.
    """
    check_run(run)
    if engine not in ("local", "ray") or (engine == "local" and address is not None):
        raise ValueError(
            f"engine {engine!r} with address {address!r}: choose 'local' without an address, "
            "or 'ray'"
        )
    if engine == "local":  # else the machine that executes a notebook looks for what it needs
        for name, text in (overrides or {}).items():
            with told_with(f"parameter {name}={text}"):
                require_path(text, project.root)
    parameters, notes = resolve_all(project, ids, run, overrides, again=again, profile=profile)
    made = {id: inputs(project, id, own) for id, own in parameters.items()}
    gpu = {id: own.get("device", "cpu") != "cpu" for id, own in parameters.items()}
    folder = project.place(run)
    if not force and run != CONTROLS:
        for id, own in parameters.items():
            _refuse_to_replace(project, folder / f"{id}.json", own, made[id], again)
    drafts = history.uncommitted(project, ids) if run != CONTROLS else []
    if drafts and not exploratory:
        raise ValueError(
            f"the criterion of {', '.join(drafts)} is not committed, so that nobody could see that "
            "it was written before the run; commit it, or give --exploratory"
        )
    calls = None
    if engine == "ray":
        from helpers.run.cluster import Calls  # here, since only this engine needs Ray

        calls = Calls(address)
        for one in {*gpu.values()}:
            calls.require(one)
    settled = {} if force else _kept(project, run, made)
    if calls is None:
        settled |= _refused(project, parameters, settled)
    for line in notes:
        note(line)
    running: dict[str, Progress] = {}

    def run_one(id: str, threads: int) -> Outcome:
        if id in settled:
            return settled[id]
        threads = 1 if run == CONTROLS else threads  # so that sums have one order
        job = project.root, id, run, parameters[id], threads, made[id]
        if calls is not None:
            executed = calls(computed, *job, threads=threads, gpu=gpu[id])
        else:
            running[id] = _progress(project, id, parameters[id])
            try:
                executed = computed(*job, running[id])
            finally:
                del running[id]
        result = executed.result
        if id in drafts:
            result["provenance"]["exploratory"] = True
        publish(folder, {id: executed})
        controls = Result.from_json(project.registry[id], result).calibration()
        told = {"calibration": controls} if run == CONTROLS else {"reason": _told(result)}
        return Outcome(id, result["verdict"], result["provenance"]["wall_s"], **told)

    return parallel(
        run_one,
        list(parameters),
        jobs,
        report,
        machines=calls.cores if calls else None,
        stop=calls.stop if calls else OwnKernel.kill_all,
        tick=lambda: watch([str(progress) for progress in [*running.values()]]),
    )


def computed(
    root: Path,
    id: str,
    run: str,
    parameters: Mapping,
    threads: int,
    made: Mapping[str, str],
    progress: Progress | None = None,
) -> Made:
    """Execute the notebook of a claim on this machine.

    Args:
        root: of the project.
        made: its inputs on the machine of the command.
        progress: what to tell how far it is, None on another machine.

    Returns:
        The executed notebook, its result with the provenance of this machine, and the numbers of
        single images.

    Raises ValueError where the inputs are others on this machine, and what `require` and
    `execute` raise.
    """
    project = Project(root)
    claim = project.registry[id]
    if inputs(project, id, parameters) != made:
        raise ValueError(
            f"{platform.node()} has other helpers, another notebook or another criterion below "
            f"{root} than the machine that calls it; bring both to the same state"
        )
    if progress is None:  # then nobody has asked before
        require(claim, parameters, root)
    machine = hardware(parameters.get("device", "cpu"))
    started, clock = datetime.now(UTC), time.perf_counter()
    with _workspace(project, id, run) as workspace:
        if progress is not None:
            progress.workspace = workspace
        notebook = execute(
            project.source(id),
            _changed(project, id, parameters),
            root,
            threads,
            failed=root / "_build" / "failed" / run / f"{id}.ipynb",
            workspace=workspace and workspace.folder,
            store="none" if run == CONTROLS else store_of(root),
            at_cell=progress and progress.at_cell,
        )
        read = workspace.read if workspace is not None else 0
        judged = Result.from_json(claim, bundle(notebook))
        if run != CONTROLS:  # these are compared and shown without their file
            refer_to_file(notebook)
        kept = workspace is not None and workspace.images.is_file()
        images = workspace.images.read_bytes() if kept else None
    result = judged.to_json()
    wall, text = time.perf_counter() - clock, (nbformat.writes(notebook) + "\n").encode()
    details = {
        **provenance(root),
        **machine,
        "threads": threads,
        "sources": result.pop("sources"),
        "seed": parameters.get("seed"),
        "started": started.isoformat(timespec="seconds"),
        "wall_s": round(wall, 1),
        "energy_wh": round(wall / 3600 * machine["energy_kw"] * 1000, 3),
        "inputs": made,
        "code": fingerprint(project, id),
        "notebook": digest_of(text),
    }
    if images is not None:
        details["images"] = digest_of(images)
    if read:  # then the wall time is that of the rest alone
        details["stored_passes"] = read
    log = history.load(root)
    head = {
        "id": result.pop("id"),
        "run": run,
        "verdict": judged.verdict,
        "first_verdict": history.first_verdict(log, judged),
        "after_the_fact": history.is_after_the_fact(log.get(id, ()), parameters),
    }
    whole = {**head, **result, "parameters": parameters, "provenance": details}
    return Made(whole, text, images)


def _told(result: Mapping) -> str:
    """Why a result has its verdict, and which models could not be had."""
    gone = [f"{model} was not run ({reason})" for model, reason in result["not_run"].items()]
    return "; ".join([result["reason"].rstrip("."), *gone])


def store_outputs(
    project: Project,
    ids: Sequence[str],
    jobs: int | None = None,
    report: Callable[[Outcome], None] = print,
    was: Mapping | None = None,
) -> list[Outcome]:
    """Execute source notebooks in place with their defaults, so that their outputs, and their
    numbers beside them, are what the code gives today.

    Measured spreads among the stored numbers stay. Each computes with one thread, whatever `jobs`
    is, as `make test` does: sums in another order train another probe.

    Args:
        was: parameter -> its default before it was changed. Where today's code gives the stored
            numbers with these, only the defaults changed, and published results stay fresh.
    """

    def store_one(id: str, _: int) -> Outcome:
        path, clock = project.source(id), time.perf_counter()
        notebook, beside = execute(path, {}, project.root), numbers.beside(path)
        earlier = execute(path, was, project.root) if was else None
        found = [x and numbers.of_notebook(x, project.registry[id]) for x in (notebook, earlier)]
        stored = numbers.renewed(beside, *found)
        write_together({path: nbformat.writes(notebook) + "\n", beside: stored})
        controls = Result.from_json(project.registry[id], bundle(notebook)).calibration()
        return Outcome(id, "stored", time.perf_counter() - clock, calibration=controls)

    for id in ids:  # an unknown one is refused before the first runs
        project.source(id)
    return parallel(store_one, ids, jobs, report)


def parallel(
    one: Callable[[str, int], Outcome],
    ids: Sequence[str],
    jobs: int | None,
    report: Callable[[Outcome], None],
    *,
    machines: Sequence[int] | None = None,
    stop: Callable[[], None] = OwnKernel.kill_all,
    tick: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """`one(id, threads)` for each identifier, in threads, with a share of the cores, but no more
    threads than OMP_NUM_THREADS says.

    After Ctrl-C `stop` ends the notebooks that run, and none is left running.

    Args:
        jobs: at a time; one per core unless given.
        machines: the cores of each machine; those of this one unless given.
        tick: called each second.
    """
    machines = machines or [os.cpu_count() or 1]
    jobs = min(jobs or sum(machines), max(1, len(ids)))
    told = os.environ.get("OMP_NUM_THREADS", "")
    most = int(told) if told.isdecimal() else max(machines)
    threads = max(1, min(sum(machines) // jobs, max(machines), most))

    def guarded(id: str) -> Outcome:
        try:
            return one(id, threads)
        except Exception as error:  # whatever it is, the other notebooks go on
            return Outcome(id, "failed", reason=one_line(error, None))

    outcomes = []
    with ThreadPoolExecutor(jobs) as pool:
        pending = set()
        try:
            pending |= {pool.submit(guarded, id) for id in ids}
            while pending:
                done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
                tick()
                for future in done:
                    outcomes.append(future.result())
                    report(outcomes[-1])
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            # A kernel may have been starting just now: ask again until every thread has ended.
            while pending:
                stop()
                pending = wait(pending, timeout=0.2).not_done
            raise
    return outcomes


def _changed(project: Project, id: str, parameters: Mapping) -> dict:
    """The parameters that differ from the notebook's own, which papermill injects."""
    defaults = project.registry[id].parameters
    return {name: value for name, value in parameters.items() if value != defaults[name]}


def _progress(project: Project, id: str, parameters: Mapping) -> Progress:
    """Where the notebook is that begins now."""
    cells = [cell for cell in read_notebook(project.source(id)).cells if cell.cell_type == "code"]
    injected = bool(_changed(project, id, parameters))  # then there is a cell more
    known = expected(project, id, parameters)
    return Progress(id, len(cells) + injected, known.seconds if known else None)


def store_of(root: Path) -> str:
    """The folder in which runs store their captures, or 'none'."""
    named = os.environ.get(CACHE) or str(root / "_build" / "captures")
    return named if named == "none" else str(Path(named).expanduser().absolute())


@contextmanager
def _workspace(project: Project, id: str, run: str) -> Iterator[Workspace | None]:
    """Where the kernel says how far its captures are; None on controls.

    Raises ValueError where another process executes the same claim in the same run.
    """
    if run == CONTROLS:
        yield None
        return
    workspace = Workspace(project.root / "_build" / "running" / run / id)
    with ExitStack() as held:
        try:
            held.enter_context(locked(workspace.folder, wait=False))
        except BlockingIOError:
            raise ValueError(
                f"another process executes {id} in run {run!r} just now; wait for it, or choose "
                "another --run"
            ) from None
        held.callback(shutil.rmtree, workspace.folder, ignore_errors=True)
        workspace.begin()
        yield workspace


def _refuse_to_replace(
    project: Project, path: Path, parameters: Mapping, made: Mapping[str, str], again: bool
) -> None:
    """Raise ValueError where the result at `path` has other inputs.

    `again` is for those whose code alone is another.
    """
    if (result := readable(path)) is None:
        return
    others = other_parameters(result["parameters"], parameters)
    before = result["provenance"]["inputs"]
    if others or (differing(project, path.stem, before, made) and not again):
        what = f"parameters ({others})" if others else "inputs (the code, or the criterion)"
        raise ValueError(
            f"_build/runs/{path.parent.name}/{path.name} is a result of other {what}; "
            "give --force to replace it, or another --run"
        )


def _kept(project: Project, run: str, made: Mapping[str, Mapping[str, str]]) -> dict[str, Outcome]:
    """The claims that need not run again, since their result is there or published.

    A result that is not published must have been made by the same code, to the letter.
    """
    kept = {}
    places = {project.runs / run: "published as it is"} | {project.place(run): ""}
    for id in made:
        for folder, reason in places.items():
            if (result := readable(folder / f"{id}.json")) is None:
                continue
            there = result["provenance"]
            same = reason or there.get("code") == fingerprint(project, id)
            if same and not differing(project, id, there["inputs"], made[id]):
                kept[id] = Outcome(id, "kept", reason=reason)
                if run == CONTROLS:
                    controls = Result.from_json(project.registry[id], result).calibration()
                    kept[id] = Outcome(id, "kept", calibration=controls)
    return kept


def _refused(
    project: Project, parameters: Mapping[str, Mapping], settled: Mapping[str, Outcome]
) -> dict[str, Outcome]:
    """The claims that are not settled and whose parameters fit nothing here.

    All are looked at before the first kernel starts: who runs thirty does not wait for the last to
    hear of a slip.
    """
    refused = {}
    for id in parameters.keys() - settled.keys():
        try:
            require(project.registry[id], parameters[id], project.root)
        except (ValueError, OSError) as error:
            refused[id] = Outcome(id, "failed", reason=one_line(error, None))
    return refused
