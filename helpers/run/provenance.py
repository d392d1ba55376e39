"""With what a result was made: revision, packages, processor, device, and the digest of all on
which an execution on this machine hangs.
"""

import os
import platform
import re
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from helpers.claims.project import HELPERS, Project, git, local_changes
from helpers.files import digest_of

# What chooses the instructions of torch, oneDNN, MKL and OpenBLAS.
ARITHMETIC = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OPENBLAS_CORETYPE")
EXTRAS = ("book", "data", "clip")  # of pyproject.toml, with what notebooks compute
LIBRARIES = {"mkl": "Math Kernel Library Version", "onednn": "MKL-DNN"}  # as torch names them
CPU_KW, GPU_KW = 0.105, 0.7
ENERGY = (
    f"estimate: wall time x ({CPU_KW} kW for the CPU + {GPU_KW} kW for a GPU in use), the power "
    "of the reproduction's section 3.6"
)


def provenance(root: Path) -> dict:
    """With what the runs of this call are made.

    `git_dirty` says whether code or notebooks differ from the revision.
    """
    changes = local_changes(root, "helpers", "notebooks", "requirements.lock")
    return {
        "git_revision": git(root, "rev-parse", "HEAD"),
        "git_dirty": None if changes is None else changes != "",
        "python": platform.python_version(),
        "packages": _packages(),
    }


def _packages() -> dict[str, str]:
    """The versions of what the package requires and what is installed of its `EXTRAS`."""
    found = {}
    for requirement in metadata.requires("registers-reproduced"):
        name = re.match(r"[\w.-]+", requirement)[0]
        extra = re.search(r"extra == ['\"](\w+)", requirement)
        if extra is None or extra[1] in EXTRAS:
            with suppress(metadata.PackageNotFoundError):
                found[name] = metadata.version(name)
    return dict(sorted(found.items()))


def fingerprint(project: Project, id: str) -> str:
    """Digest of the package with its weights, the notebook, the claims and the libraries.

    What has been executed with the same need not be executed again on this machine. Published
    results are bound to the code by their numbers (`helpers.claims.notebook`), not by this digest,
    which any edit of the package changes.
    """
    claims = project.root / "notebooks" / "claims" / f"{project.registry[id].paper}.yml"
    instructions = [os.environ.get(name) for name in ARITHMETIC]
    libraries = f"{platform.python_version()} {_packages()} {instructions}"
    contents = project.source(id).read_bytes(), claims.read_bytes()
    return digest_of(_package(), *contents, libraries, length=16)


@cache  # the package is imported once as well
def _package() -> str:
    files = sorted(path for kind in ("py", "safetensors") for path in HELPERS.rglob(f"*.{kind}"))
    return digest_of(*(part for path in files for part in (path.name, path.read_bytes())))


@cache
def processor() -> dict:
    """What decides how a number is rounded: the instructions that libraries choose on this
    processor, their versions, and those of the variables that choose among instructions which are
    set. A kernel inherits them, so it computes with the same.
    """
    import scipy.linalg  # noqa: F401  (here, since `list` and `check` need not wait for it; it brings a BLAS of its own)
    import torch
    from threadpoolctl import threadpool_info

    keys = ("internal_api", "version", "architecture")
    blas = [
        [library[key] for key in keys if library.get(key)]
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    built = {
        name: re.search(rf"{library} v?([\d.]+)", torch.__config__.show())
        for name, library in LIBRARIES.items()
    }
    return {
        "torch": torch.backends.cpu.get_cpu_capability(),
        "blas": sorted({" ".join(parts) for parts in blas}),
        **{name: version[1] for name, version in built.items() if version},
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
    return {
        "device": name,
        "processor": processor(),
        "energy_kw": round(CPU_KW + GPU_KW * (device != "cpu"), 3),
        "energy_assumption": ENERGY,
    }
