"""An environment of the peers' own, beside the same build of torch: they are no dependency of this project."""

import json
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata, util
from pathlib import Path

from helpers.bench.peers import PEERS, Peer
from helpers.files import written_whole

SHARED = ("torch", "torchvision", "timm", "numpy")  # no peer may replace them, or it would be timed on another build
STAMP = "peers.json"


def environment(folder: Path, report: Callable[[str], object] = print, peers: Mapping[str, Peer] = PEERS) -> Path:
    """The Python of a virtual environment in `folder` with the peers, made where it is not there yet.

    It sees this environment's packages behind its own: torch, timm and this project are the same in both, and pip adds only what
    is missing. A peer that does not install stops no other; `report` gets the reason, and `not_installed` keeps it.

    Raises ValueError where `folder` holds something else, and OSError where it cannot be written.
    """
    shared = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    constraints = [f"{name}=={metadata.version(name)}" for name in SHARED]
    wanted = {
        "python": sys.version,
        "shared": shared,
        "constraints": constraints,
        "peers": {name: [*peer.requirements, *peer.alone] for name, peer in peers.items()},
    }
    python, stamp = folder / "bin" / "python", folder / STAMP
    if not stamp.is_file() or json.loads(stamp.read_text())["wanted"] != wanted:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (folder / "pyvenv.cfg").is_file():
            raise ValueError(f"'{folder}' is no environment of the peers; name a new folder for it")
        report(f"making an environment for the peers in {folder}")
        venv.create(folder, clear=True, symlinks=True, with_pip=util.find_spec("pip") is None)
        _share(python, shared)
        (folder / "constraints.txt").write_text("\n".join(constraints))
        failed = {name: reason for name, peer in peers.items() if (reason := _install(folder, python, peer))}
        with written_whole(stamp) as new:
            new.write_text(json.dumps({"wanted": wanted, "not_installed": failed}, indent=1))
    for name, reason in not_installed(folder).items():
        report(f"{name} did not install: {reason}; remove {folder} to try again")
    return python


def not_installed(folder: Path) -> dict[str, str]:
    """Peer -> reason, for those that did not install when `environment` made `folder`. Raises OSError where it did not."""
    return json.loads((folder / STAMP).read_text())["not_installed"]


def _share(python: Path, shared: Sequence[str]) -> None:
    """Append the folders to the search path of another environment, for good."""
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    # Not the bare paths: only addsitedir reads the .pth files there, which is how an editable install is found.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in shared]
    (Path(own) / "shared.pth").write_text("".join(lines))


def _install(folder: Path, python: Path, peer: Peer) -> str | None:
    """Install a peer; None, or one line on why it failed."""
    pip = [str(python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    calls = (["--constraint", str(folder / "constraints.txt")], peer.requirements), (["--no-deps"], peer.alone)
    for options, requirements in calls:
        if requirements:
            done = subprocess.run([*pip, *options, *requirements], capture_output=True, text=True)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
                reason = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])
                return reason.removeprefix("ERROR: ")[:300]
    return None
