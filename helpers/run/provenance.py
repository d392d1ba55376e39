"""With what a result was made: revision, packages, processor, device, and the digest of all that
decides its numbers.
"""

import os
import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path

from helpers.claims.project import git

# What chooses the instructions of torch, oneDNN, MKL and OpenBLAS.
ARITHMETIC = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OPENBLAS_CORETYPE")
EXTRAS = ("book", "data", "clip")  # of pyproject.toml, with what notebooks compute
CPU_KW, GPU_KW = 0.105, 0.7
ENERGY = (
    f"estimate: wall time x ({CPU_KW} kW for the CPU + {GPU_KW} kW for a GPU in use), the power "
    "of the reproduction's section 3.6"
)


def provenance(root: Path) -> dict:
    """With what the runs of this call are made.

    `git_dirty` says whether code or notebooks differ from the revision.
    """
    changes = git(root, "status", "--porcelain", "--", "helpers", "notebooks", "requirements.lock")
    requirements = (
        re.match(r"[\w.-]+|", text)[0]
        for text in metadata.requires("registers-reproduced")
        if not _aside(text)
    )
    return {
        "git_revision": git(root, "rev-parse", "HEAD"),
        "git_dirty": None if changes is None else changes != "",
        "python": platform.python_version(),
        "packages": {
            name: metadata.version(name) for name in sorted(requirements) if _is_installed(name)
        },
    }


def _aside(requirement: str) -> bool:
    """Whether a requirement is of an extra that decides no number: tests, the cluster, peers."""
    extra = re.search(r"extra == ['\"](\w+)", requirement)
    return extra is not None and extra[1] not in EXTRAS


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


@cache
def processor() -> dict:
    """What decides how a number is rounded: the instructions that libraries choose on this
    processor, their versions, and those of the variables that choose among instructions which are
    set. A kernel inherits them, so it computes with the same.
    """
    import scipy.linalg  # noqa: F401  (here, since `list` and `check` need not wait for it; it brings a BLAS of its own)
    import torch
    from threadpoolctl import threadpool_info

    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    details = [
        [library.get(key) for key in ("internal_api", "version", "architecture")]
        for library in libraries
    ]
    built = re.findall(r"(Math Kernel Library Version|MKL-DNN) v?([\d.]+)", torch.__config__.show())
    return {
        "torch": torch.backends.cpu.get_cpu_capability(),
        "blas": sorted({" ".join(filter(None, parts)) for parts in details}),
        **{
            {"Math Kernel Library Version": "mkl", "MKL-DNN": "onednn"}[name]: version
            for name, version in built
        },
        "environment": {name: os.environ[name] for name in ARITHMETIC if name in os.environ},
    }


def hardware(device: str) -> dict:
    """On what a notebook with this `device` parameter runs, and the power that its energy is
    estimated from.

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
    return {
        "device": name,
        "processor": processor(),
        "energy_kw": power,
        "energy_assumption": ENERGY,
    }
