"""One capture on every GPU or CPU that Ray can reach, and calls that are sent to the same cluster.

A capture is cut into pieces of whole batches. Each piece goes through `capture` on some worker, an
actor with a copy of the model, and what it keeps comes back in the order of the images.
A batch therefore holds the same images as on one machine: the result is the same to the bit
wherever the arithmetic is, that is with the same kind of device and, on the CPU, the same number of
threads. What a worker had in hand when it died is computed again by another one.

Every machine needs the project at the same path with the same environment; workers compare. Ray is
optional.
"""

import functools
import io
import os
import platform
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset
from torch.utils.hooks import RemovableHandle
from tqdm import tqdm

from helpers.capture.engine import Accumulator, capture, keep
from helpers.capture.inputs import MOST_WORKERS
from helpers.capture.reducers import Reducer
from helpers.files import digest_of
from helpers.models import Backbone

BATCHES = 16  # in one piece: what is lost with a worker, and what its memory holds of the result
RETRIES = 3  # times that a piece or a call is tried again after its worker died
ACTORS = "REGISTERS_ACTORS"  # environment variable: at most so many actors


def connect(address: str | None = None) -> Any:
    """The module `ray`, connected to the cluster at `address`.

    Unless given, that is the one that this process is connected to, or that the variable
    RAY_ADDRESS names, or that runs on this machine; where there is none, one is started of this
    machine alone and ends with this process.

    Raises:
        ValueError: Ray is not installed.
        ConnectionError: no cluster answers.
    """
    ray = load_ray()
    if ray.is_initialized():
        return ray
    address = address or os.environ.get("RAY_ADDRESS")
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would wait for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(address, include_dashboard=False, logging_level="WARNING")
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConnectionError(
            f"no Ray cluster answers at {address!r} ({reason}); start it, or give another address"
        ) from None
    return ray


def load_ray() -> Any:
    """The module `ray`. Raises ValueError where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to nobody
    try:
        import ray
        import ray.util
    except ImportError:
        raise ValueError(
            "a cluster needs Ray, which is not installed; pip install -e '.[ray]'"
        ) from None
    return ray


def places(needs: Mapping[str, int]) -> int:
    """How many workers that need so much, such as {"GPU": 1, "CPU": 1}, the cluster holds at once.

    Raises ValueError for none.
    """
    count = sum(
        min(int(has.get(key, 0) // need) for key, need in needs.items()) for has in _machines()
    )
    if not count:
        wanted = " and ".join(f"{need} {key}" for key, need in needs.items())
        raise ValueError(
            f"no machine of the cluster has {wanted} for a worker; start one that has, use device "
            "cpu, or set OMP_NUM_THREADS lower"
        )
    return count


def _machines() -> list[dict[str, float]]:
    """What each machine of the cluster has, by resource."""
    return [node["Resources"] for node in load_ray().nodes() if node["Alive"]]


def capture_ray(
    backbone: Backbone,
    images: Any,
    reducers: Sequence[Reducer],
    *,
    batch_size: int,
    device: Any,
    dtype: torch.dtype,
    workers: int | None,
    progress: bool | None,
    into: Mapping[str, Sequence[Accumulator]],
    first: int,
) -> dict[str, Tensor]:
    """`capture`, whose arguments these are, on the workers of a cluster.

    Where `device` (unless given, where the model is now) is a GPU, there is one actor for each GPU
    of the cluster, with its share of the CPUs, which load its images unless `workers` says
    otherwise. Else an actor has as many CPUs as this process computes with threads
    (OMP_NUM_THREADS), and there are as many as the cluster has room for. REGISTERS_ACTORS sets a
    limit to both. The model stays where it is. This process holds what is kept and one piece more.

    Raises:
        ValueError: an intervention draws at random image after image, the cluster has no worker, or
            `capture` raises it on one.
        RuntimeError: workers died again and again.
    """
    ray, total = connect(), len(images)
    kind = torch.device(backbone.device if device is None else device).type
    if kind == "cpu":
        threads = torch.get_num_threads()
        needs = {"CPU": threads + (workers or 0)}
    else:
        shares = [int(has.get("CPU", 0) // has["GPU"]) for has in _machines() if has.get("GPU")]
        threads = max(1, min(shares, default=1))
        needs = {"GPU": 1, "CPU": threads}
        workers = min(MOST_WORKERS, threads) if workers is None else workers
    limit = os.environ.get(ACTORS) or str(total)
    if not limit.isdecimal() or int(limit) == 0:
        raise ValueError(f"{ACTORS} is {limit!r}; give the largest number of actors, at least 1")
    actors = min(places(needs), int(limit))
    length = batch_size * max(1, min(BATCHES, -(-total // batch_size) // actors))
    pieces = [(start, min(start + length, total)) for start in range(0, total, length)]
    pixels = None
    if isinstance(images, Tensor):  # as an array, of which an actor maps its pieces into memory
        pixels = ray.put(images.detach().to("cpu", torch.float32).numpy())
        images = None
    options = {"batch_size": batch_size, "device": kind, "dtype": dtype, "workers": workers}
    job = ray.put(packed((backbone, images, reducers, options, first), threads))
    worker = ray.remote(
        num_cpus=needs["CPU"],
        num_gpus=needs.get("GPU", 0),
        max_restarts=-1,
        max_task_retries=RETRIES,
    )(Worker)
    pool = [worker.remote() for _ in range(min(actors, len(pieces)))]
    arriving = ray.util.ActorPool(pool).map(
        lambda one, piece: one.of.remote(job, pixels, piece), pieces
    )
    results: dict[str, Tensor] = {}
    bar = tqdm(pieces, disable=None if progress is None else not progress, unit="piece")
    try:
        with _told(ray, "one worker after another died; look at the images and at its memory"):
            for start, stop in bar:
                values = {key: torch.tensor(value) for key, value in next(arriving).items()}
                for at in range(0, stop - start, batch_size):
                    batch = {key: value[at : at + batch_size] for key, value in values.items()}
                    keep(batch, start + at, total, into, results)
    finally:
        for one in pool:
            ray.kill(one)
    return results


@contextmanager
def _told(ray: Any, died: str) -> Iterator[None]:
    """What a function raised on a worker is raised here; RuntimeError where workers died."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise RuntimeError(died) from error


class Worker:
    """Does one piece after another, with a copy of the model that it unpacks with the first one."""

    def __init__(self) -> None:
        self.job: tuple | None = None

    def of(
        self, job: tuple, pixels: np.ndarray | None, piece: tuple[int, int]
    ) -> dict[str, np.ndarray]:
        """What is kept of the images, `pixels` or those in `job`, from the first to before the
        second of `piece`.

        Raises ValueError where this machine computes with something else, and what `capture`
        raises.
        """
        self.job = self.job or unpacked(*job)
        (backbone, images, reducers, options, first), (start, stop) = self.job, piece
        if pixels is None:
            part = Subset(images, range(start, stop))
        else:
            part = torch.tensor(pixels[start:stop])
        own = [reducer.of(start, stop) for reducer in reducers]
        # The process that asks for the capture stores it, and says how far it is.
        options = options | {"progress": False, "report": lambda done: None, "store": None}
        kept = capture(backbone, part, own, first=first + start, **options)
        return {key: value.numpy() for key, value in kept.items()}


def packed(content: Any, threads: int) -> tuple[str, int, int, np.ndarray]:
    """What `unpacked` takes: `content` as bytes, with the functions in it that have no name, such
    as hooks; before it what made it, the threads to compute with, and the number of the next hook.

    Raises ValueError for a source of random numbers: a copy of it would draw anew on each worker.
    """

    class Pickler(load_ray().cloudpickle.CloudPickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, np.random.Generator | torch.Generator):
                raise ValueError(
                    "something draws at random for one image after another, such as "
                    "dropped_patches, and would draw anew on each worker; leave out `engine`"
                )
            if isinstance(value, functools._lru_cache_wrapper):  # anew and empty over there
                return functools.lru_cache(**value.cache_parameters()), (value.__wrapped__,)
            return super().reducer_override(value)

    module = SimpleNamespace(__name__=__name__, Pickler=Pickler)
    torch.save(content, file := io.BytesIO(), pickle_module=module)
    array = np.frombuffer(file.getbuffer(), dtype=np.uint8)
    return made_with(), threads, RemovableHandle.next_id, array


def unpacked(made: str, threads: int, next_hook: int, content: np.ndarray) -> Any:
    """What was packed, in a process that computes from now on as the one that packed it.

    Raises ValueError where this machine computes with something else.
    """
    if made != made_with():
        raise ValueError(
            f"{platform.node()} has other helpers, another Python or another torch than the "
            "machine that calls it; bring checkout and environment of both to the same state"
        )
    torch.set_num_threads(threads)
    # Hooks came along with their numbers; new ones must not take their places.
    RemovableHandle.next_id = max(RemovableHandle.next_id, next_hook)
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)


@functools.cache
def made_with() -> str:
    """What decides a number beside the machine, as a digest: helpers, Python and torch."""
    helpers = [path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    return digest_of(*helpers, platform.python_version(), torch.__version__)


class Calls:
    """Calls of functions on the cluster at `address`, as `connect` finds it.

    Each blocks the thread that makes it.
    """

    def __init__(self, address: str | None = None):
        self._ray, self._running = connect(address), set()

    @property
    def cores(self) -> list[int]:
        """The CPUs of each machine."""
        return [int(has.get("CPU", 0)) for has in _machines()]

    def require(self, gpu: bool) -> None:
        """Raise ValueError where no machine has a CPU, with `gpu` and a GPU."""
        places({"CPU": 1, "GPU": 1} if gpu else {"CPU": 1})

    def __call__(self, function: Callable, *arguments: Any, threads: int, gpu: bool) -> Any:
        """function(*arguments), where so many CPUs, with `gpu` and a GPU, are free.

        Again, up to RETRIES times, where its worker died. Raises what the function raises, and
        RuntimeError where worker after worker died.
        """
        options = {"num_cpus": threads, "num_gpus": int(gpu), "max_retries": RETRIES}
        result = self._ray.remote(**options)(function).remote(*arguments)
        self._running.add(result)
        died = f"its worker died {RETRIES + 1} times; it may have run out of memory"
        try:
            with _told(self._ray, died):
                return self._ray.get(result)
        finally:
            self._running.discard(result)

    def stop(self) -> None:
        """End what is running, with the processes that it started."""
        for result in list(self._running):
            self._ray.cancel(result, force=True)
