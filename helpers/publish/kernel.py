"""Notebooks executed: a kernel in the Python that runs this process, and a notebook that names no machine."""

import logging
import os
import signal
from asyncio import run as run_async
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import ClassVar
from weakref import WeakSet

import nbformat
import papermill
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets import Dict, Int
from traitlets.config import Config

from helpers import dry_runs, long_runs
from helpers.publish.place import HELPERS

# What papermill would say on the terminal (a kernel died) comes back as the outcome of its notebook.
logging.getLogger("papermill").addHandler(logging.NullHandler())


START = 600  # seconds that a kernel may take to start: on a busy machine to import torch alone takes a minute

# A kernel that has our `helpers` before it looks into any folder.
LAUNCH = (
    f"import sys; sys.path.insert(0, {str(HELPERS.parent)!r}); import helpers; del sys.path[0]; "
    "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()"
)


class OwnKernel(AsyncKernelManager):
    """A kernel in the Python that runs this process, whatever kernels the user has installed."""

    live: ClassVar[WeakSet] = WeakSet()
    threads = Int(1, help="threads that the kernel may compute with").tag(config=True)
    variables = Dict(help="more variables of its environment").tag(config=True)

    @property
    def kernel_spec(self) -> KernelSpec:
        """This environment's ipykernel, silent on the terminal; a notebook's errors come back as outputs."""
        extensions = [f"--IPKernelApp.extra_extensions={module.__name__}" for module in (long_runs, dry_runs) if self.variables]
        command = get_kernel_dict(extra_arguments=["--IPKernelApp.log_level=CRITICAL", *extensions])
        # The `helpers` of this process, also where another lies in the project's folder, which a kernel searches first.
        at = command["argv"].index("ipykernel_launcher")
        command["argv"][at - 1 : at + 1] = ["-P", "-c", LAUNCH]
        # Some library imports tqdm.auto, which warns, with its own path, where there are no widgets. There are none by choice.
        environment = {"OMP_NUM_THREADS": str(self.threads), "PYTHONWARNINGS": "ignore:IProgress not found"}
        environment |= self.variables
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


def execute(
    path: Path,
    parameters: Mapping,
    root: Path,
    threads: int = 1,
    *,
    failed: Path | None = None,
    batch: Path | None = None,
    shards: Path | None = None,
    dry: Path | None = None,
    at_cell: Callable[[int], object] | None = None,
) -> nbformat.NotebookNode:
    """The notebook at `path`, executed with `parameters` in the project's root, with nothing of this machine in its metadata.

    Args:
        failed: where it is kept as far as it came, with its traceback, if it fails; it is removed otherwise.
        batch: the file in which the kernel says which batch it is at.
        shards: the folder in which it keeps long captures.
        dry: the file in which it tells of its captures in a dry run, whose numbers are none; the run is no dry one unless given.
        at_cell: called with the index of each code cell, from 0, when its turn comes.

    Raises RuntimeError with the notebook's last exception as one sentence, and where it was kept.
    """
    variables = {long_runs.BATCH: batch, long_runs.SHARDS: shards, dry_runs.CAPTURES: dry}
    options: dict = {"threads": threads, "transport_encryption": "auto"}
    if variables := {name: str(place) for name, place in variables.items() if place}:
        options["variables"] = variables
    index = count()

    def started(cell: nbformat.NotebookNode, **_: object) -> None:
        if at_cell is not None and cell.cell_type == "code":
            at_cell(next(index))

    if failed is not None:
        failed.parent.mkdir(parents=True, exist_ok=True)
    told = f"; see {failed.relative_to(root) if failed.is_relative_to(root) else failed}" if failed else ""
    try:
        notebook = papermill.execute_notebook(
            path,
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
    except PapermillExecutionError as error:
        message = next((line.strip() for line in error.evalue.splitlines() if line.strip()), "no message")
        raise RuntimeError(f"{error.ename}: {message} (cell {error.exec_count} of {path.name}){told}") from None
    except DeadKernelError:
        raise RuntimeError(f"the kernel died while it ran {path.name}; it may have run out of memory{told}") from None
    if failed is not None:
        failed.unlink(missing_ok=True)
    return neutral(notebook, root)


def neutral(notebook: nbformat.NotebookNode, root: Path) -> nbformat.NotebookNode:
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
