"""Notebooks executed in a kernel of the Python that runs this process.

What comes back names nothing of this machine. A kernel with one thread is forked from a process
that has imported torch once; others are started anew.
"""

import atexit
import logging
import multiprocessing
import os
import signal
from asyncio import run as run_async
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar
from uuid import uuid4
from weakref import WeakSet

import nbformat
import papermill
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import LocalProvisioner
from nbclient.exceptions import DeadKernelError
from nbformat.v4 import new_code_cell
from papermill.exceptions import PapermillExecutionError
from traitlets import Bool, Dict, Int
from traitlets.config import Config

from helpers.claims.project import HELPERS
from helpers.files import CACHE, VARIABLE, DiskFull, told_if_full

# What papermill would say on the terminal (a kernel died) comes back as the outcome of its
# notebook.
logging.getLogger("papermill").addHandler(logging.NullHandler())


START = 600  # seconds that a kernel may take to start: on a busy machine a minute is for torch

# A kernel that has our `helpers` before it looks into any folder.
LAUNCH = (
    f"import sys; sys.path.insert(0, {str(HELPERS.parent)!r}); import helpers; del sys.path[0]; "
    "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
)


# What every notebook and every kernel imports (the debugger takes a third of a second), in the
# process from which kernels are forked; none of it is ours.
PRELOADED = ["timm", "seaborn", "scipy.stats", "papermill", "ipykernel.kernelapp"]
PRELOADED += ["ipykernel.debugger"]


class ForkedProcess:
    """A kernel forked from a process with `PRELOADED`, in the form of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, argv: list[str], environment: Mapping[str, str], folder: str):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        # Else the debugger that a kernel has warns on the terminal when it is imported.
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        arguments = argv, dict(environment), folder
        # No daemon, which could have no processes of its own, such as those that load images; what
        # daemons are spared at the end of this process, waiting for each other, `kill` does.
        self.process = context.Process(target=_serve, args=arguments)
        self.process.start()
        self.pid = self.process.pid
        self.kill, self.terminate = self.process.kill, self.process.terminate
        atexit.register(self.kill)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int | None:
        self.process.join()
        atexit.unregister(self.kill)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        if self.process.is_alive():
            os.kill(self.pid, number)


def _serve(argv: list[str], environment: Mapping[str, str], folder: str) -> None:
    """Be a kernel, in the forked process."""
    import warnings

    import matplotlib
    import torch
    from ipykernel.kernelapp import IPKernelApp
    from threadpoolctl import threadpool_limits

    # A kernel ends where the command does, however that was ended. The process from which it was
    # forked lives as long as the kernel.
    Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # Libraries that are loaded already do not read it any more.
    threadpool_limits(threads := int(environment["OMP_NUM_THREADS"]))
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", message="IProgress not found")
    # What a kernel's environment says of it was not said when matplotlib was imported.
    matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"
    with open(os.devnull, "r+") as nowhere:
        for stream in range(3):
            os.dup2(nowhere.fileno(), stream)
    IPKernelApp.launch_instance(argv=argv)


def _end_with(process: BaseProcess) -> None:
    """End this process when another one has ended."""
    process.join()
    os._exit(1)


class ForkingProvisioner(LocalProvisioner):
    """Launches kernels as `ForkedProcess`."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> KernelConnectionInfo:
        # The arguments behind the interpreter and its `-c CODE`.
        self.process = ForkedProcess(cmd[4:], options["env"], str(options["cwd"]))
        self.pid = self.process.pid
        return self.connection_info


class OwnKernel(AsyncKernelManager):
    """A kernel in the Python that runs this process, whatever kernels the user has installed."""

    live: ClassVar[WeakSet] = WeakSet()
    threads = Int(1, help="threads that the kernel may compute with").tag(config=True)
    variables = Dict(help="more variables of its environment").tag(config=True)
    forks = Bool(True, help="whether it may be forked, with what is imported already").tag(
        config=True
    )

    @property
    def kernel_spec(self) -> KernelSpec:
        """This environment's ipykernel, silent on the terminal.

        A notebook's errors come back as outputs.
        """
        command = get_kernel_dict(extra_arguments=["--IPKernelApp.log_level=CRITICAL"])
        # The `helpers` of this process, also where another lies in the project's folder, which a
        # kernel searches first.
        at = command["argv"].index("ipykernel_launcher")
        command["argv"][at - 1 : at + 1] = ["-P", "-c", LAUNCH]
        # Some library imports tqdm.auto, which warns, with its own path, where there are no
        # widgets. There are none by choice.
        environment = {
            "OMP_NUM_THREADS": str(self.threads),
            # Threads that wait in a loop take the cores from what others compute.
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
            "PYTHONWARNINGS": "ignore:IProgress not found",
            **self.variables,
        }
        return KernelSpec(resource_dir=RESOURCES, **command, env=environment)

    async def start_kernel(self, **options) -> None:
        """Start, and stay known to `kill_all`."""
        self.live.add(self)
        can_fork = "forkserver" in multiprocessing.get_all_start_methods()
        if self.forks and self.threads == 1 and can_fork:
            self.provisioner = ForkingProvisioner(
                kernel_id=str(uuid4()), kernel_spec=self.kernel_spec, parent=self
            )
        await super().start_kernel(**options)

    @classmethod
    def kill_all(cls) -> None:
        """Kill every kernel that is running."""
        for kernel in list(cls.live):
            if kernel.has_kernel:
                run_async(kernel.signal_kernel(signal.SIGKILL))


def execute(
    path: Path,
    parameters: Mapping,
    root: Path,
    threads: int = 1,
    *,
    failed: Path | None = None,
    workspace: Path | None = None,
    store: str = "none",
    at_cell: Callable[[int], object] | None = None,
    instructions: Mapping[str, str] | None = None,
    first: str = "",
) -> nbformat.NotebookNode:
    """The notebook at `path`, executed with `parameters` in the project's root.

    Args:
        failed: where it is kept as far as it came, with its traceback, if it fails; it is removed
            otherwise.
        workspace: the folder in which its captures say how far they are (see helpers/files.py).
        store: the folder in which they are stored (see helpers/capture/cache.py), 'none' for none.
        at_cell: called with the index of each code cell, from 0, when its turn comes.
        instructions: variables by which libraries choose their code paths when they are imported.
        first: code of one more cell, before all others.

    Raises RuntimeError with the notebook's last exception as one sentence, and where it was kept,
    and DiskFull where it could not be.
    """
    variables = {**(instructions or {}), CACHE: store}
    if workspace is not None:
        variables[VARIABLE] = str(workspace)
    options = {
        "threads": threads,
        "variables": variables,
        "forks": not instructions,
        "transport_encryption": "auto",
    }
    notebook, index, where = nbformat.read(path, 4), count(), ""
    if first:
        notebook.cells.insert(0, new_code_cell(first))
    if failed is not None:
        failed.parent.mkdir(parents=True, exist_ok=True)
        where = f"; see {failed.relative_to(root) if failed.is_relative_to(root) else failed}"

    def started(cell: nbformat.NotebookNode, **_: object) -> None:
        if at_cell is not None and cell.cell_type == "code":
            at_cell(next(index))

    run = partial(
        papermill.execute_notebook,
        notebook,
        failed,
        dict(parameters),
        kernel_name="python3",
        language="python",
        progress_bar=False,
        start_timeout=START,
        resources={"metadata": {"path": str(root)}},
        kernel_manager_class=OwnKernel,
        config=Config({"OwnKernel": options}),
        on_cell_start=started,
    )
    try:
        with told_if_full(failed or path):
            try:
                notebook = run()
            except RuntimeError as error:
                # Another process took a port between its choice and its use: nothing ran yet.
                if "before replying" not in str(error):
                    raise
                notebook = run()
    except DiskFull:
        if failed is not None:  # papermill has written half of it
            failed.unlink(missing_ok=True)
        raise
    except PapermillExecutionError as error:
        message = next(filter(None, map(str.strip, error.evalue.splitlines())), "no message")
        cell = f"cell {error.exec_count} of {path.name}"
        raise RuntimeError(f"{error.ename}: {message} ({cell}){where}") from None
    except DeadKernelError:
        raise RuntimeError(
            f"the kernel died while it ran {path.name}; it may have run out of memory{where}"
        ) from None
    if failed is not None:
        failed.unlink(missing_ok=True)
    return neutral(notebook, root)


def neutral(notebook: nbformat.NotebookNode, root: Path) -> nbformat.NotebookNode:
    """Remove what names this machine or this moment.

    So a published notebook changes only where its content does.
    """
    notebook.metadata.pop("papermill", None)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata.kernelspec = kernel
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        elif "injected-parameters" in cell.metadata.get("tags", ()):
            cell.id = "injected-parameters"
    return nbformat.reads(nbformat.writes(notebook).replace(f"{root}{os.sep}", ""), 4)
