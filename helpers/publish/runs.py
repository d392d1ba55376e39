"""From a claim's notebook to a published run: parameters, execution through papermill, and `<id>.json` with its provenance.

A notebook computes in a kernel, which is a process of its own; a thread per notebook is therefore enough to run several at
once. Nothing is written before a notebook has finished. Then the executed notebook and its result are renamed into
`book/runs/<run>/`, so an interrupted run leaves the finished ones and nothing else.
"""

import hashlib
import json
import logging
import os
import platform
import re
import signal
import subprocess
import time
from asyncio import run as run_async
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import ClassVar, NamedTuple
from weakref import WeakSet

import nbformat
import papermill
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets import Int
from traitlets.config import Config

from helpers.files import locked, write_together
from helpers.publish import digests, numbers
from helpers.publish.parameters import check_values, checked, data_sets, notebook_parameters, parse, read_notebook
from helpers.publish.registry import Claim, Registry, Result, bundle, load_registry

CONTROLS = "controls"
# What chooses the instructions of torch, oneDNN, MKL and OpenBLAS.
ARITHMETIC = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OPENBLAS_CORETYPE")
CPU_KW, GPU_KW = 0.105, 0.7
ENERGY = (
    f"estimate: wall time x ({CPU_KW} kW for the CPU + {GPU_KW} kW for a GPU in use), the power of the reproduction's section 3.6"
)

# What papermill would say on the terminal (a kernel died) comes back as the outcome of its notebook.
logging.getLogger("papermill").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Project:
    """A checkout: the registry, the source notebooks and the published runs below `root`."""

    root: Path = digests.HELPERS.parent

    @cached_property
    def registry(self) -> Registry:
        """The claims of `notebooks/claims.yml`."""
        return load_registry(self.root / "notebooks" / "claims.yml")

    @property
    def runs(self) -> Path:
        """The folder with one folder per run."""
        return self.root / "book" / "runs"

    def results(self) -> Iterator[Path]:
        """The `<id>.json` of every run, in order of run and identifier."""
        return iter(sorted(self.runs.glob("*/*.json")))

    def with_notebook(self) -> list[str]:
        """Identifiers of the claims that have a notebook."""
        return [claim.id for claim in self.registry.claims.values() if claim.notebook]

    def source(self, id: str) -> Path:
        """The source notebook of a claim. Raises ValueError where there is none yet, FileNotFoundError where it is missing."""
        claim = self.registry[id]
        if claim.notebook is None:
            raise ValueError(f"claim {id!r} has no notebook yet: {claim.waiting}")
        path = self.root / claim.notebook
        if not path.is_file():
            raise FileNotFoundError(f"claim {id!r}: its notebook {claim.notebook} is missing; restore it or correct the registry")
        return path


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
    path, claim = project.source(id), project.registry[id]
    defaults = notebook_parameters(path)
    if defaults != claim.parameters:
        raise ValueError(f"claim {id!r}: the parameters in the registry and in {claim.notebook} differ; make them equal")
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
        sets = data_sets(parameters)
    except ValueError as error:
        raise ValueError(f"claim {id!r}: {error}") from None
    # Here, since both take seconds to import and `list` and `check` need neither.
    from helpers import images
    from helpers.models import load as models

    for model in parameters.get("models", ()):
        models.check_name(model)
    for data in sets:
        images.check_name(data)
    return parameters


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


def check_run(name: str) -> None:
    """Raise ValueError where a run cannot be called so: its name is that of a folder, and stands on pages."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(f"run name {name!r} is not a plain folder name; use letters, digits, '.', '-' and '_', at most 100")


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


# ---- Execution ----------------------------------------------------------------------------------------------------------


class OwnKernel(AsyncKernelManager):
    """A kernel in the Python that runs this process, whatever kernels the user has installed."""

    live: ClassVar[WeakSet] = WeakSet()
    threads = Int(1, help="threads that the kernel may compute with").tag(config=True)

    @property
    def kernel_spec(self) -> KernelSpec:
        """This environment's ipykernel, silent on the terminal; a notebook's errors come back as outputs."""
        command = get_kernel_dict(extra_arguments=["--IPKernelApp.log_level=CRITICAL"])
        # Some library imports tqdm.auto, which warns, with its own path, where there are no widgets. There are none by choice.
        environment = {"OMP_NUM_THREADS": str(self.threads), "PYTHONWARNINGS": "ignore:IProgress not found"}
        return KernelSpec(resource_dir=RESOURCES, **command, env=environment)

    async def start_kernel(self, **options) -> None:
        """Start, and stay known to `kill_all`."""
        self.live.add(self)
        await super().start_kernel(**options)

    @classmethod
    def kill_all(cls) -> None:
        """Kill every kernel that is running."""
        for kernel in list(cls.live):
            if kernel.has_kernel:
                run_async(kernel.signal_kernel(signal.SIGKILL))


def execute(path: Path, parameters: Mapping, root: Path, threads: int = 1) -> nbformat.NotebookNode:
    """The notebook at `path`, executed with `parameters` in the project's root, with nothing of this machine in its metadata.

    Raises RuntimeError with the notebook's last exception as one sentence.
    """
    try:
        notebook = papermill.execute_notebook(
            path,
            None,
            dict(parameters),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            resources={"metadata": {"path": str(root)}},
            kernel_manager_class=OwnKernel,
            config=Config({"OwnKernel": {"threads": threads, "transport_encryption": "auto"}}),
        )
    except PapermillExecutionError as error:
        message = next((line.strip() for line in error.evalue.splitlines() if line.strip()), "no message")
        raise RuntimeError(f"{error.ename}: {message} (cell {error.exec_count} of {path.name})") from None
    except DeadKernelError:
        raise RuntimeError(f"the kernel died while it ran {path.name}; it may have run out of memory") from None
    return _neutral(notebook, root)


def _neutral(notebook: nbformat.NotebookNode, root: Path) -> nbformat.NotebookNode:
    """Remove what names this machine or this moment, so that a published notebook changes only where its content does."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata.kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        elif "injected-parameters" in cell.metadata.get("tags", ()):
            cell.id = "injected-parameters"
    return nbformat.reads(nbformat.writes(notebook).replace(f"{root}{os.sep}", ""), 4)


# ---- Results ------------------------------------------------------------------------------------------------------------


def sha256(data: object) -> str:
    """Digest of canonical JSON: sorted keys, no spaces, no NaN."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_result(path: Path) -> dict:
    """A run's `<id>.json`, whole and as it was written, with the errors of `read_published`."""
    return read_published(path)[0]


def read_published(path: Path) -> tuple[dict, bytes]:
    """A run's `<id>.json`, whole and as it was written, and the executed notebook that belongs to it. Where they are being
    published just now, that is waited for.

    Raises ValueError where it is not JSON, was edited by hand, lies in another place than its own, or where the executed
    notebook beside it is missing or not the one it was written with.
    """
    try:
        return _intact(path)
    except ValueError:
        pass
    with locked(path.parent):  # between the two renames of `publish` notebook and result differ
        return _intact(path)


def _intact(path: Path) -> tuple[dict, bytes]:
    """The result at `path` and its notebook, with the errors of `read_published`."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        seal = result.pop("sha256")
        intact = seal == sha256(result)
        place, notebook_digest = (result["run"], result["id"]), result["provenance"]["notebook"]
        told = "/".join(place)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IsADirectoryError):
        raise ValueError("not a readable result; run the claim again with --force") from None
    if not intact:
        raise ValueError("was changed after it was written (its sha256 does not fit); run the claim again with --force")
    if place != (path.parent.name, path.stem):
        raise ValueError(f"is the result of {told}; move it back to its place")
    check_run(path.parent.name)
    notebook = path.with_suffix(".ipynb")
    if not notebook.is_file():
        raise ValueError(f"{notebook.name} is missing beside it; run the claim again")
    content = notebook.read_bytes()
    if hashlib.sha256(content).hexdigest() != notebook_digest:
        raise ValueError(f"{notebook.name} beside it is not the one it was written with; run the claim again with --force")
    return result, content


def inputs(project: Project, id: str, parameters: Mapping) -> str:
    """Digest of everything that decides the numbers of a result and their verdict.

    That is the code of the notebook, the parameters, the criterion, and the helpers that the notebook reaches by import; no
    prose, title or page. The packages are in the provenance, and so are the weights and images that the code reads, among them
    those of `helpers/weights`, each with its digest (`sources`). Raises ValueError where the notebook's code is no Python.
    """
    cells = [cell for cell in read_notebook(project.source(id)).cells if cell.cell_type == "code"]
    # Not the cell of defaults: what a run takes instead of them is given.
    texts = [cell.source for cell in cells if "parameters" not in cell.metadata.get("tags", ())]
    try:
        code, helpers = [digests.code(text).digest for text in texts], digests.reached(texts)
    except ValueError as error:
        raise ValueError(f"{project.registry[id].notebook}: {error}") from None
    criterion = asdict(project.registry[id].criterion)
    del criterion["why"]
    return sha256([code, parameters, helpers, criterion])


def git(root: Path, *arguments: str) -> str | None:
    """What git says of the checkout at `root`; None where there is no git, or none of its checkouts."""
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    except FileNotFoundError:  # no git here
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def provenance(root: Path) -> dict:
    """With what the runs of this call are made; `git_dirty` says whether code or notebooks differ from the revision."""
    changes = git(root, "status", "--porcelain", "--", "helpers", "notebooks", "requirements.lock")
    requirements = [text for text in metadata.requires("registers-reproduced") if "extra ==" not in text]
    names = sorted(re.match(r"[\w.-]+", text)[0] for text in requirements)
    return {
        "git_revision": git(root, "rev-parse", "HEAD"),
        "git_dirty": None if changes is None else changes != "",
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in names},
    }


@cache
def processor() -> dict:
    """What decides how a number is rounded: the instructions that libraries choose on this processor, their versions, and those
    of the variables that choose among instructions which are set. A kernel inherits them, so it computes with the same.
    """
    import scipy.linalg  # noqa: F401  (here, since `list` and `check` need not wait for it; it brings a BLAS of its own)
    import torch
    from threadpoolctl import threadpool_info

    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    told = [[library.get(key) for key in ("internal_api", "version", "architecture")] for library in libraries]
    built = re.findall(r"(Math Kernel Library Version|MKL-DNN) v?([\d.]+)", torch.__config__.show())
    return {
        "torch": torch.backends.cpu.get_cpu_capability(),
        "blas": sorted({" ".join(filter(None, parts)) for parts in told}),
        **{{"Math Kernel Library Version": "mkl", "MKL-DNN": "onednn"}[name]: version for name, version in built},
        "environment": {name: os.environ[name] for name in ARITHMETIC if name in os.environ},
    }


def hardware(device: str) -> dict:
    """On what a notebook with this `device` parameter runs, and the power that its energy is estimated from.

    Raises ValueError where there is no such device.
    """
    if device == "cpu":
        name = f"cpu ({platform.machine()})"
    else:
        import torch  # here, since `list` and `check` need not wait for it

        try:
            name = torch.cuda.get_device_name(device)
        except (RuntimeError, ValueError, AssertionError):
            raise ValueError(f"there is no device {device!r} here; use -p device=cpu") from None
    power = round(CPU_KW + GPU_KW * (device != "cpu"), 3)
    return {"device": name, "processor": processor(), "energy_kw": power, "energy_assumption": ENERGY}


def publish(folder: Path, id: str, notebook: str, result: Mapping) -> None:
    """Put the executed notebook and its sealed result into `folder`; the result carries the digest of its own notebook."""
    result = {**result, "sha256": sha256(result)}
    sealed = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_together({folder / f"{id}.ipynb": notebook, folder / f"{id}.json": sealed})


# ---- The commands -------------------------------------------------------------------------------------------------------


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
    `report` is called as each
    one ends; a failed notebook leaves no trace and does not stop the others. With the engine "ray" they are executed by the
    machines of the cluster at `address` (see `cluster.connect`), each with a GPU where its parameter `device` is one, and
    published here. Raises ValueError before anything runs where an identifier, the run's name, a parameter or the engine is
    wrong, or no machine is there for it.
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
        digest = inputs(project, id, parameters[id])
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

    Raises ValueError where this machine has not the `inputs` with this `digest`, and what `execute` raises.
    """
    project = Project(root)
    if inputs(project, id, parameters) != digest:
        told = f"{platform.node()} has other helpers, another notebook or another criterion below {root}"
        raise ValueError(f"{told} than the machine that calls it; bring both to the same state")
    machine = hardware(parameters.get("device", "cpu"))
    started, clock = datetime.now(UTC), time.perf_counter()
    claim = project.registry[id]
    _require_data(claim, parameters, root)
    changed = {name: value for name, value in parameters.items() if value != claim.parameters[name]}
    notebook = execute(project.source(id), changed, root, threads)
    found = Result.from_json(claim, bundle(notebook)).to_json()
    wall, text = time.perf_counter() - clock, nbformat.writes(notebook) + "\n"
    details = {
        **provenance(root),
        **machine,
        "threads": threads,
        "sources": found.pop("sources"),
        "seed": parameters.get("seed"),
        "started": started.isoformat(timespec="seconds"),
        "wall_s": round(wall, 1),
        "energy_wh": round(wall / 3600 * machine["energy_kw"] * 1000, 3),
        "inputs": digest,
        "notebook": hashlib.sha256(text.encode()).hexdigest(),
    }
    head = {"id": found.pop("id"), "run": run}
    return text, {**head, **found, "parameters": parameters, "provenance": details}


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
        found = numbers.renewed(beside, numbers.of_notebook(notebook, project.registry[id]))
        write_together({path: nbformat.writes(notebook) + "\n", beside: found})
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
