"""Calls of functions that are sent to a Ray cluster."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

RETRIES = 3  # times that a call is tried again after its worker died


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


@contextmanager
def _told(ray: Any, died: str) -> Iterator[None]:
    """What a function raised on a worker is raised here; RuntimeError where workers died."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise RuntimeError(died) from error


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
