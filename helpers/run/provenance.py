"""With what a result was made: revision, packages, device; and the digest of today's code."""

import os
import platform
import re
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from helpers.claims.project import Project, git
from helpers.files import digest_of

PACKAGE = Path(__file__).resolve().parents[1]
EXTRAS = ("book", "data", "clip")  # of pyproject.toml, with what notebooks compute
CPU_KW, GPU_KW = 0.105, 0.7  # of the reproduction's section 3.6


def provenance(root: Path, device: str) -> dict:
    """Revision, local changes of code or notebooks, and versions, of the checkout at `root`; the
    machine with this `device`, and the power that its energy follows from, in kW.
    """
    import torch  # here, since `list` and `check` need not wait for it

    name = f"cpu ({platform.machine()})" if device == "cpu" else torch.cuda.get_device_name(device)
    changes = git(root, "status", "--porcelain", "--", "helpers", "notebooks", "requirements.lock")
    return {
        "git_revision": git(root, "rev-parse", "HEAD"),
        "git_dirty": None if changes is None else changes != "",
        "python": platform.python_version(),
        "packages": _packages(),
        "device": name,
        "processor": {"torch": torch.backends.cpu.get_cpu_capability()},
        "energy_kw": round(CPU_KW + GPU_KW * (device != "cpu"), 3),
        "energy_assumption": f"estimate: wall time x ({CPU_KW} kW for the CPU + {GPU_KW} kW for a "
        "GPU in use), the power of the reproduction's section 3.6",
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
    """Digest of all code that a result rests on; a result with the same one is kept.

    Package, weights, notebook, its file of claims, versions, and what torch computes with here.
    """
    claims = project.root / "notebooks" / "claims" / f"{project.registry[id].paper.file}.yml"
    contents = project.notebook_path(id).read_bytes(), claims.read_bytes()
    capability = os.environ.get("ATEN_CPU_CAPABILITY", "")
    return digest_of(_package(), *contents, f"{_packages()} {capability}", length=16)


@cache  # the package is imported once as well
def _package() -> str:
    kinds = ("py", "yml", "safetensors")
    files = sorted(path for kind in kinds for path in PACKAGE.rglob(f"*.{kind}"))
    return digest_of(*(part for path in files for part in (path.name, path.read_bytes())))
