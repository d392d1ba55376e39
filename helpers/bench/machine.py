"""Time and memory of this process and its device, and what the device could do at most."""

import ctypes
import gc
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch

SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices whose product shows what the device can do


def described(device: str) -> dict[str, Any]:
    """The device by its name, the threads, and the versions of what computes."""
    return {
        "device": torch.cuda.get_device_name(device) if device != "cpu" else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "timm": timm.__version__},
    }


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds that `run` takes, until the device is done with it."""
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def allocate(kept: bool) -> bool:
    """How memory is asked for and given back from now on: `kept` by this process for good, or each large tensor for itself.

    The first is for time: methods that take turns else take each other's memory away, and wait for the system to clear new pages.
    The second is for memory: gaps in one heap change the peak of the same pass by a tenth from one run to the next.
    Returns whether the C library was told so; another one than glibc goes on as it does.
    """
    if (library := _glibc()) is None:
        return False
    mapped = library.mallopt(-3, 2**30 if kept else 2**17)  # M_MMAP_THRESHOLD
    trimmed = library.mallopt(-1, 2**31 - 1 if kept else 2**17)  # M_TRIM_THRESHOLD
    return bool(mapped and trimmed)


def peak(run: Callable[[], object], device: str) -> float | None:
    """The largest memory in use while `run` runs, in MB: that of the GPU, or what this process has in RAM."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) / 1e6
    gc.collect()
    if (library := _glibc()) is None:
        return None
    library.malloc_trim(0)  # what was freed goes back to the system
    try:
        Path("/proc/self/clear_refs").write_text("5")  # begin to count anew
    except OSError:
        return None
    run()
    return resident()


def resident() -> float | None:
    """The largest memory of this process in MB since `peak` began to count; None where the system does not tell."""
    try:
        line = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(line[1]) * 1024 / 1e6 if line else None


def _glibc() -> Any:
    """The C library of this process where it is glibc, whose options and functions are used below; else None (macOS, musl)."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "gnu_get_libc_version") else None
    except (OSError, TypeError):  # a static build, Windows
        return None


def ceiling(device: str, dtype: torch.dtype) -> float:
    """Floating-point operations a second in a product of large matrices: the most that a model could reach."""
    side = SIDE[torch.device(device).type]
    a = torch.randn(side, side, device=device, dtype=dtype)
    seconds = [timed(lambda: a @ a, device) for _ in range(6)]
    return 2 * side**3 / min(seconds[1:])
