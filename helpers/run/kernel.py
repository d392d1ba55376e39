"""Notebooks executed in kernels of the Python that runs this process.

A kernel with one thread is forked from a process that has imported torch once, since that takes
seconds; others are started anew.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from multiprocessing.forkserver import set_forkserver_preload
from pathlib import Path
from threading import Thread
from types import MappingProxyType
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
from papermill.exceptions import PapermillExecutionError
from traitlets import Dict, Int
from traitlets.config import Config

START_TIMEOUT = 600  # seconds that a kernel may take to start on a busy machine
PRELOADED = ["timm", "seaborn", "scipy.stats", "papermill", "ipykernel.kernelapp"]
PRELOADED += ["ipykernel.debugger"]
# It warns of comments with '='; parameters.py has checked the parameters.
logging.getLogger("papermill").setLevel(logging.ERROR)


class ForkedProcess(ForkServerProcess):
    """A kernel forked from a process with `PRELOADED`, with the methods of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        if self.is_alive():
            os.kill(self.pid, number)


def _serve(argv: list[str], environment: Mapping[str, str], folder: str) -> None:
    """Be a kernel of one thread, in the forked process."""
    import warnings

    import matplotlib
    import torch
    from ipykernel.kernelapp import IPKernelApp
    from threadpoolctl import threadpool_limits

    # A kernel ends where the command does, however that was ended.
    Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    # What is imported already reads neither the variables nor the backend any more.
    threadpool_limits(1)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="IProgress not found")
    matplotlib.rcParams["backend"] = "module://matplotlib_inline.backend_inline"
    with open(os.devnull, "r+") as nowhere:
        for stream in range(3):
            os.dup2(nowhere.fileno(), stream)
    IPKernelApp.launch_instance(argv=argv)


def _end_with(process: Any) -> None:
    """End this process when another one has ended."""
    process.join()
    os._exit(1)


class ForkingProvisioner(LocalProvisioner):
    """Launches kernels as `ForkedProcess`."""

    async def launch_kernel(self, cmd: list[str], **options: Any) -> KernelConnectionInfo:
        set_forkserver_preload(PRELOADED)
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # else a warning is printed
        arguments = cmd[3:], options["env"], str(options["cwd"])  # after `-m ipykernel_launcher`
        # No daemon, which could have no processes of its own, such as those that load images.
        self.process = ForkedProcess(target=_serve, args=arguments)
        self.process.start()
        self.pid = self.process.pid
        return self.connection_info


class OwnKernel(AsyncKernelManager):
    """A kernel in the Python that runs this process, whatever kernels the user has installed."""

    live: ClassVar[WeakSet] = WeakSet()
    threads = Int(1, help="threads that the kernel may compute with").tag(config=True)
    variables = Dict(help="more variables of its environment").tag(config=True)

    @property
    def kernel_spec(self) -> KernelSpec:
        """This environment's ipykernel, silent on the terminal."""
        command = get_kernel_dict(extra_arguments=["--IPKernelApp.log_level=CRITICAL"])
        environment = {
            "OMP_NUM_THREADS": str(self.threads),
            # Threads that wait in a loop take the cores from what others compute.
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
            "PYTHONWARNINGS": "ignore:IProgress not found",
            **self.variables,
        }
        return KernelSpec(resource_dir=RESOURCES, **command, env=environment)

    async def start_kernel(self, **options) -> None:
        """Start it as `threads` asks; `kill_all` knows it."""
        self.live.add(self)
        if self.threads == 1:
            self.provisioner = ForkingProvisioner(
                kernel_id=str(uuid4()), kernel_spec=self.kernel_spec, parent=self
            )
        await super().start_kernel(**options)

    @classmethod
    def kill_all(cls) -> None:
        """Kill every kernel that is running."""
        for kernel in list(cls.live):
            if kernel.has_kernel:
                asyncio.run(kernel.signal_kernel(signal.SIGKILL))


def run_notebook(
    path: Path,
    parameters: Mapping[str, Any],
    root: Path,
    threads: int = 1,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> nbformat.NotebookNode:
    """The notebook at `path`, executed with `parameters` in the project's root, and with more
    `variables` in the kernel's environment.

    Raises RuntimeError with the notebook's last exception. `_build/failed` keeps it as far as it
    came, with its traceback.
    """
    failed = root / "_build" / "failed" / path.name
    failed.parent.mkdir(parents=True, exist_ok=True)
    options = {"threads": threads, "variables": dict(variables)}
    try:
        notebook = papermill.execute_notebook(
            nbformat.read(path, 4),
            failed,
            dict(parameters),
            kernel_name="python3",
            language="python",
            # One that has all cores is alone, so that its bar runs into no other.
            progress_bar=sys.stderr.isatty() and threads == os.cpu_count(),
            start_timeout=START_TIMEOUT,
            resources={"metadata": {"path": str(root)}},
            kernel_manager_class=OwnKernel,
            config=Config({"OwnKernel": options}),
        )
    except PapermillExecutionError as error:
        message = next(iter(error.evalue.strip().splitlines()), "")
        cell = f"cell {error.exec_count} of {path.name}"
        raise RuntimeError(f"{error.ename}: {message} ({cell}); see {failed}") from None
    except DeadKernelError:
        reason = f"the kernel died while it ran {path.name}; it may have run out of memory"
        raise RuntimeError(f"{reason}; see {failed}") from None
    failed.unlink(missing_ok=True)
    return without_machine_names(notebook, root)


def without_machine_names(notebook: nbformat.NotebookNode, root: Path) -> nbformat.NotebookNode:
    """Without what names this machine or this moment."""
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
