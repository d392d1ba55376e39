"""One capture on every GPU or CPU that Ray can reach, and calls that are sent to the same cluster.

A capture is cut into pieces of whole batches. Each piece goes through `capture` on some worker, an actor of Ray Data with a copy
of the model, and what it keeps comes back in the order of the images. A batch therefore holds the same images as on one machine,
and a summary is merged with what it would have been updated with: the result is the same to the bit wherever the arithmetic is,
that is with the same kind of device and, on the CPU, the same number of threads. What a worker had in hand when it died is
computed again by another one.

Every machine needs the project at the same path with the same environment; workers compare. Ray is optional.
"""

import functools
import io
import os
import pickle
import platform
import random
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, no_type_check, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset
from torch.utils.hooks import RemovableHandle
from tqdm import tqdm

from helpers.capture import MOST_WORKERS, Reducer, capture
from helpers.files import digest_of
from helpers.models import Backbone

BATCHES = 16  # in one piece: what is lost with a worker, and what its memory holds of the result
RETRIES = 3  # times that a piece or a call is tried again after its worker died
# Ray reports to nobody, and Ray Data tells on the terminal of errors only.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_LOG_LEVEL": "ERROR"}
ACTORS = "REGISTERS_ACTORS"  # environment variable: at most so many actors


@runtime_checkable
class Mergeable(Protocol):
    """A summary whose parts can be made on different machines."""

    def empty(self) -> Any: ...

    def update(self, values: Tensor) -> object: ...

    def merge(self, other: Any) -> object: ...


def connect(address: str | None = None) -> Any:
    """The module `ray`, connected to the cluster at `address`.

    Unless given, that is the one that this process is connected to, or that the variable RAY_ADDRESS names, or that runs on this
    machine; where there is none, one is started of this machine alone and ends with this process.

    Raises ValueError where Ray is not installed, and OSError where no cluster answers.
    """
    ray = _ray()
    if not ray.is_initialized():
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


def _ray() -> Any:
    """The module. Raises ValueError where it is not installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError:
        raise ValueError("a cluster needs Ray, which is not installed; pip install -e '.[ray]'") from None
    return ray


def places(needs: Mapping[str, int]) -> int:
    """How many workers with these `needs`, such as {"GPU": 1, "CPU": 1}, the machines of the cluster hold at the same time.

    Raises ValueError for none.
    """
    count = sum(min(int(has.get(key, 0) // need) for key, need in needs.items()) for has in _machines())
    if not count:
        wanted = " and ".join(f"{need} {key}{'s' * (need > 1)}" for key, need in needs.items())
        remedy = "start one with GPUs, or use device cpu" if "GPU" in needs else "start one, or set OMP_NUM_THREADS lower"
        raise ValueError(f"no machine of the cluster has {wanted} for a worker; {remedy}")
    return count


def _machines() -> list[dict[str, float]]:
    """What each machine of the cluster has, by resource."""
    return [node["Resources"] for node in _ray().nodes() if node["Alive"]]


# ---- Capture ------------------------------------------------------------------------------------------------------------


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
    into: Mapping[str, Sequence[Any]],
    first: int,
) -> dict[str, Tensor]:
    """`capture`, whose arguments these are, on the workers of a cluster.

    Where `device` (unless given, where the model is now) is a GPU, there is one actor for each GPU of the cluster, with its share
    of the CPUs, which load its images unless `workers` says otherwise. Else an actor has as many CPUs as this process computes
    with threads (OMP_NUM_THREADS), and there are as many as the cluster has room for. REGISTERS_ACTORS sets a limit to both. The
    model stays where it is. This process holds what is kept and one batch more; summaries travel, their values do not.

    Raises ValueError for what cannot be divided among workers (a summary without `empty` and `merge`, an intervention that draws
    at random image after image, a reducer that changes), for a cluster without a worker, and what `capture` raises, on a worker
    too; RuntimeError where a worker died again and again, or what came back is not every batch once.
    """
    _check_mergeable(into)
    kind = torch.device(backbone.device if device is None else device).type
    empty = {key: [summary.empty() for summary in summaries] for key, summaries in into.items()}
    pixels = isinstance(images, Tensor)
    job = _packed((backbone, None if pixels else images, reducers, empty))

    ray = connect()
    needs, threads, workers = _needs(kind, workers)
    actors, total = min(places(needs), _limit()), len(images)
    batches = -(-total // batch_size)
    length = batch_size * max(1, min(BATCHES, batches // actors))
    pieces = [{"start": start, "stop": min(start + length, total)} for start in range(0, total, length)]
    arguments = {
        "job": ray.put(job),
        # As an array, of which each actor maps its pieces into memory and copies no others.
        "pixels": ray.put(images.detach().to("cpu", torch.float32).numpy()) if pixels else None,
        "options": {"batch_size": batch_size, "device": kind, "dtype": dtype, "workers": workers, "progress": False},
        "first": first,
        "made_with": made_with(),
        "threads": max(1, threads),
        "next_hook": RemovableHandle.next_id,
        "tries": _tries(ray, RETRIES + 1),
    }
    dataset = ray.data.from_items(pieces, override_num_blocks=len(pieces)).flat_map(
        _Actor,
        fn_constructor_kwargs=arguments,
        compute=ray.data.ActorPoolStrategy(size=min(actors, len(pieces))),
        num_cpus=needs["CPU"],
        num_gpus=needs.get("GPU", 0),
    )
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False

    with (
        tqdm(total=batches, disable=None if progress is None else not progress, unit="batch") as bar,
        closing(iter(dataset.iter_rows())) as rows,
    ):
        return _gathered(_received(ray, rows), into, total, bar.update)


def _check_mergeable(into: Mapping[str, Sequence[Any]]) -> None:
    """Raise ValueError for a summary whose parts cannot be put together."""
    for key, summaries in into.items():
        for summary in summaries:
            if not isinstance(summary, Mergeable):
                name = type(summary).__name__
                raise ValueError(f"{name}, which sums up '{key}', has no empty() and merge(); add them, or leave out `engine`")


def _needs(kind: str, workers: int | None) -> tuple[dict[str, int], int, int | None]:
    """What a worker needs of a machine, its threads, and the processes that load its images."""
    threads = torch.get_num_threads()
    if kind == "cpu":
        return {"CPU": threads + (workers or 0)}, threads, workers
    threads = min([int(has.get("CPU", 0) // has["GPU"]) for has in _machines() if has.get("GPU")], default=1)
    return {"GPU": 1, "CPU": max(1, threads)}, threads, min(MOST_WORKERS, threads) if workers is None else workers


def _gathered(
    received: Iterator[tuple[int, int, dict, dict]], into: Mapping[str, Sequence[Any]], total: int, step: Callable[[], object]
) -> dict[str, Tensor]:
    """The results of all batches, and their summaries in `into`; `step` is called after each batch.

    Raises RuntimeError where a batch is missing or came twice.
    """
    results: dict[str, Tensor] = {}
    done = 0
    for start, stop, kept, parts in received:
        if start != done:
            raise RuntimeError(f"images from {start} on came back where those from {done} on were due; run it again")
        for key, values in kept.items():
            if key not in results:
                results[key] = torch.empty(total, *values.shape[1:])
            results[key][start:stop] = torch.from_numpy(values)
        for key, summaries in parts.items():
            for summary, its_parts in zip(into[key], summaries, strict=True):
                for part in its_parts:
                    summary.merge(part)
        done = stop
        step()
    if done != total:
        raise RuntimeError(f"{total - done} of {total} images did not come back from the workers; run it again")
    return results


def _tries(ray: Any, most: int) -> Any:
    """Counts how often each piece was begun, beyond the reach of a dying actor; Ray Data itself would try for ever."""

    @no_type_check  # a check of types, as tests make it, does not travel
    class Tries:  # in here, so that Ray sends its code along, and its process need not load torch with this module
        def __init__(self) -> None:
            self.begun: dict[int, int] = {}

        def begin(self, piece: int) -> bool:
            self.begun[piece] = self.begun.get(piece, 0) + 1
            return self.begun[piece] <= most

    return ray.remote(num_cpus=0, max_restarts=-1)(Tries).remote()


def _received(ray: Any, rows: Iterator[dict[str, Any]]) -> Iterator[tuple[int, int, dict, dict]]:
    """What workers sent; an error of theirs is raised here."""
    try:
        for row in rows:
            content = pickle.loads(row["content"])
            if isinstance(content, Exception):
                raise content
            yield row["start"], row["stop"], *content
    except ray.exceptions.RayActorError as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise RuntimeError(f"the workers died and could not be started again ({reason})") from error


class _Actor:
    """Does one piece after another, with a copy of the model that it unpacks with the first one."""

    def __init__(
        self,
        job: Any,
        pixels: Any,
        options: Mapping[str, Any],
        made_with: Mapping[str, str],
        threads: int,
        next_hook: int,
        tries: Any,
        first: int = 0,
    ):
        self.job, self.pixels, self.options, self.first = job, pixels, options, first
        self.made_with, self.threads, self.next_hook, self.tries = made_with, threads, next_hook, tries
        self.ready = False

    def __call__(self, piece: dict[str, int]) -> Iterator[dict[str, Any]]:
        """One row a batch, or one with the error: an error raised here would come back with Ray's own around it."""
        try:
            yield from self.rows(piece["start"], piece["stop"])
        except Exception as error:
            yield {**piece, "content": pickle.dumps(error)}

    def rows(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        first_piece, self.ready = not self.ready, True
        if first_piece:
            self.unpack()
        if not _ray().get(self.tries.begin.remote(start)):
            raise RuntimeError(f"images {start} to {stop - 1} ended one worker after another; look at them, and at its memory")
        reducers, size = [reducer.of(start, stop) for reducer in self.reducers], self.options["batch_size"]
        parts = {key: [_Parts(empty) for empty in summaries] for key, summaries in self.empty.items()}
        images = Subset(self.images, range(start, stop)) if self.pixels is None else torch.tensor(self.pixels[start:stop])
        before = _packed(reducers) if first_piece else None
        kept = capture(self.backbone, images, reducers, into=parts, first=self.first + start, **self.options)
        if first_piece and not np.array_equal(before, _packed(reducers)):
            names = ", ".join(type(reducer).__name__ for reducer in reducers)
            raise ValueError(f"a reducer keeps count in itself ({names}), and each worker has its own; leave out `engine`")
        for low in range(start, stop, size):
            high = min(low + size, stop)
            values = {key: value[low - start : high - start].numpy() for key, value in kept.items()}
            merges = {key: [each.parts for each in summaries] for key, summaries in parts.items()} if low == start else {}
            yield {"start": low, "stop": high, "content": pickle.dumps((values, merges), protocol=5)}

    def unpack(self) -> None:
        """Load the model and what goes with it. Raises ValueError where this machine computes with something else."""
        ray = _ray()
        check_same(self.made_with)
        torch.set_num_threads(self.threads)
        # Hooks came along with their numbers; new ones must not take their places.
        RemovableHandle.next_id = max(RemovableHandle.next_id, self.next_hook)
        if self.pixels is not None:
            self.pixels = ray.get(self.pixels)
        self.backbone, self.images, self.reducers, self.empty = _unpacked(ray.get(self.job))


class _Parts:
    """Takes the place of a summary in `capture`: what it would be updated with, as one summary a batch, to be merged in order."""

    def __init__(self, empty: Mergeable):
        self._empty, self.parts = empty, []

    def update(self, values: Tensor) -> None:
        """Sum up one batch."""
        part = self._empty.empty()
        part.update(values)
        self.parts.append(part)


def _limit() -> int:
    """The largest number of actors that the user wants."""
    text = os.environ.get(ACTORS, "")
    if text and (not text.isdecimal() or int(text) == 0):
        raise ValueError(f"{ACTORS} is {text!r}; give the largest number of actors, at least 1")
    return int(text or 2**31)


# ---- Calls --------------------------------------------------------------------------------------------------------------


class Calls:
    """Calls of functions on the cluster at `address`, as `connect` finds it; each blocks the thread that makes it."""

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
        """function(*arguments), where so many CPUs, with `gpu` and a GPU, are free; again, up to RETRIES times, where its worker
        died.

        Raises what the function raises, and RuntimeError where worker after worker died.
        """
        remote = self._ray.remote(num_cpus=threads, num_gpus=int(gpu), max_retries=RETRIES)(function)
        result = remote.remote(*arguments)
        self._running.add(result)
        try:
            return self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError:
            raise RuntimeError(f"its worker died {RETRIES + 1} times; it may have run out of memory") from None
        finally:
            self._running.discard(result)

    def stop(self) -> None:
        """End what is running, with the processes that it started."""
        for result in list(self._running):
            self._ray.cancel(result, force=True)


# ---- The same everywhere ------------------------------------------------------------------------------------------------


@functools.cache
def made_with() -> dict[str, str]:
    """What decides a number beside the machine: the digest of each file of the helpers, by module, and the versions of Python
    and torch."""
    folder = Path(__file__).parent
    files = {".".join(["helpers", *path.relative_to(folder).with_suffix("").parts]): path for path in folder.rglob("*.py")}
    digests = {module: digest_of(path.read_bytes()) for module, path in files.items()}
    return {**digests, "Python": platform.python_version(), "torch": torch.__version__}


def check_same(theirs: Mapping[str, str]) -> None:
    """Raise ValueError where `made_with` of another machine is not that of this one, in what this process uses."""
    used = {key: value for key, value in made_with().items() if not key.startswith("helpers") or key in sys.modules}
    if differ := sorted(key for key, value in used.items() if theirs.get(key) != value):
        differs = f"{platform.node()} has another state of {', '.join(differ)} than the machine that calls it"
        raise ValueError(f"{differs}; bring checkout and environment of both to the same state")


def _packed(content: Any) -> Any:
    """`content` as an array of bytes, with the functions in it that have no name, such as hooks.

    Raises ValueError for a source of random numbers, whose next draw depends on what was drawn before.
    """

    class Pickler(_ray().cloudpickle.CloudPickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, np.random.Generator | torch.Generator | random.Random):
                raise ValueError(
                    "something draws at random for one image after another, such as dropped_patches, and would draw anew on each "
                    "worker; leave out `engine`"
                )
            if isinstance(value, functools._lru_cache_wrapper):
                return functools.lru_cache(value.cache_parameters()["maxsize"]), (value.__wrapped__,)
            return super().reducer_override(value)

    file = io.BytesIO()
    torch.save(content, file, pickle_module=SimpleNamespace(__name__=__name__, Pickler=Pickler))
    return np.frombuffer(file.getbuffer(), dtype=np.uint8)


def _unpacked(data: Any) -> Any:
    """What was packed, on the CPU."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
