"""A checkout of the project: where it lies, its registry, source notebooks and runs.

A project is a folder with `notebooks/claims/PAPER.yml`. Like git, commands and notebooks work on
the one that they are called in: the nearest upwards. `--project DIR`, or the environment variable
REGISTERS_PROJECT, names another. Where there is none, it is what comes with the package.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.claims.registry import Registry

HELPERS = Path(__file__).resolve().parents[1]
PROJECT = "REGISTERS_PROJECT"
# The run on the models whose answers are known, which calibrates and is no finding.
CONTROLS = "controls"
# What git would run: a monitor of files, hooks, a program that looks at signatures.
SILENT = {"core.fsmonitor": "false", "core.hooksPath": os.devnull, "log.showSignature": "false"}


def shipped(name: str = "notebooks") -> Path:
    """What comes with the package, by its path in the checkout; without one, the wheel's copy.

    The registry, terms and schemas are `notebooks`.
    """
    is_checkout = (HELPERS.parent / "notebooks" / "claims.schema.json").is_file()
    return (HELPERS.parent if is_checkout else HELPERS / "_checkout") / name


def root(folder: Path | None = None) -> Path | None:
    """The project in which `folder` (the current one) lies, None where there is none.

    Where REGISTERS_PROJECT names one, it is that one.
    """
    if folder is None and (named := os.environ.get(PROJECT)):
        return Path(named).resolve()
    folder = (folder or Path.cwd()).resolve()
    return next((place for place in (folder, *folder.parents) if is_project(place)), None)


@contextmanager
def chosen(folder: Path | None) -> Iterator[None]:
    """Work on the project in `folder`, which need hold none yet.

    So do kernels that start meanwhile. None changes nothing.

    Raises ValueError where there is no such folder.
    """
    if folder is None:
        yield
        return
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}; make it first, or correct --project")
    before = os.environ.pop(PROJECT, None)
    os.environ[PROJECT] = str(folder.resolve())
    try:
        yield
    finally:
        del os.environ[PROJECT]
        if before is not None:
            os.environ[PROJECT] = before


def default() -> Path:
    """The project of a command that names none.

    It is that of `root`, else the package's checkout, else the current folder.
    """
    return root() or (HELPERS.parent if is_project(HELPERS.parent) else Path.cwd())


def registry() -> Path:
    """The folder with `claims`, `profiles.yml` and `terms.yml`.

    It is that of the project, else what comes with the package.
    """
    here = root()
    return here / "notebooks" if here and is_project(here) else shipped()


def others() -> list[Path]:
    """Other modules called `helpers` on Python's search path.

    Which of them is imported is decided by its order alone.
    """
    specs = [PathFinder.find_spec("helpers", [folder]) for folder in dict.fromkeys(sys.path)]
    found = [Path(spec.origin).resolve() for spec in specs if spec and spec.origin]
    return [path for path in dict.fromkeys(found) if path.parent != HELPERS]


def check_own(project: Path) -> None:
    """Raise ValueError where a checkout has helpers of its own, and others were imported.

    The revision that its results name would not be that of the code.
    """
    own = project.resolve() / "helpers"
    if (own / "claims" / "project.py").is_file() and own != HELPERS:
        raise ValueError(
            f"{project} has helpers of its own, but those of {HELPERS.parent} were imported; run "
            "the Python of its environment, "
            f"or set PYTHONPATH={project}"
        )


def is_project(folder: Path) -> bool:
    """Whether a registry lies in `folder`."""
    return (folder / "notebooks" / "profiles.yml").is_file() and any(
        (folder / "notebooks" / "claims").glob("*.yml")
    )


@dataclass(frozen=True)
class Project:
    """A checkout: the registry, the source notebooks, and the runs below `root`.

    There are published runs and a reader's own.
    """

    root: Path = field(default_factory=default)

    @cached_property
    def registry(self) -> "Registry":
        """The claims of `notebooks/claims`, with the runs of `notebooks/profiles.yml`.

        Where `notebooks` is not there, those that come with the package, which can be read and not
        run.
        """
        from helpers.claims.registry import load_registry  # here, since it asks where a project is

        folder = self.root / "notebooks"
        return load_registry(folder if folder.is_dir() else shipped())

    @property
    def runs(self) -> Path:
        """The folder with one folder per published run."""
        return self.root / "book" / "runs"

    @property
    def own(self) -> Path:
        """The folder with one folder per run that is not published.

        Git and `check` do not see it, the book shows it.
        """
        return self.root / "_build" / "runs"

    def place(self, run: str) -> Path:
        """The folder that `run` writes into.

        The controls are the project's, all else is its reader's until it is published.
        """
        return (self.runs if run == CONTROLS else self.own) / run

    def results(self) -> Iterator[Path]:
        """The `<id>.json` of every published run, and of that on the controls.

        In order of run and identifier.
        """
        return iter(sorted(self.runs.glob("*/*.json")))

    def executed(self) -> set[Path]:
        """Where `read_notebook` reads the executed notebooks of these runs."""
        found = self.runs.glob("*/*.ipynb*")
        return {path.with_name(path.name.removesuffix(".gz")) for path in found}

    def own_results(self) -> Iterator[Path]:
        """The `<id>.json` of every run that is not published, in order of run and identifier."""
        return iter(sorted(self.own.glob("*/*.json")))

    def with_notebook(self) -> list[str]:
        """Identifiers of the claims that have a notebook."""
        return [claim.id for claim in self.registry.claims.values() if claim.notebook]

    def source(self, id: str) -> Path:
        """The source notebook of a claim.

        Raises ValueError where there is none yet, FileNotFoundError where it is missing.
        """
        claim = self.registry[id]
        if claim.notebook is None:
            raise ValueError(f"claim {id!r} has no notebook yet: {claim.waiting}")
        path = self.root / claim.notebook
        if not path.is_file():
            # The package alone, as it is installed, brings the claims and no notebooks.
            remedy = (
                "restore it or correct the registry"
                if is_project(self.root)
                else "run this in a checkout of the project that has it"
            )
            raise FileNotFoundError(
                f"claim {id!r}: its notebook {claim.notebook} is missing; {remedy}"
            )
        return path


def git(root: Path, *arguments: str, settings: Mapping[str, str] = SILENT) -> str | None:
    """What git says of the checkout at `root`.

    It runs no program that the checkout's own settings name, reaches no other machine and writes
    nothing: the checkout may be somebody else's. (Settings by the environment: git 2.31.)

    None where there is no git, or none of its checkouts.
    """
    first = int(os.environ.get("GIT_CONFIG_COUNT", 0))  # after the user's own, and over them
    given = {"GIT_CONFIG_COUNT": str(first + len(settings)), "GIT_ALLOW_PROTOCOL": "none"}
    for number, (name, text) in enumerate(settings.items(), first):
        given |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": text}
    command = ["git", "--no-optional-locks", "-C", root, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | given)
    except FileNotFoundError:  # no git here
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def local_changes(root: Path, *paths: str) -> str | None:
    """What differs from the last commit, a line each as in `git status --porcelain`, within `paths`
    where some are given; None as in `git`.

    No filter runs either, such as that of git-lfs, whose files may count as changed. Of submodules
    nothing is asked.
    """
    named = git(root, "config", "--null", "--name-only", "--get-regexp", r"^filter\.") or ""
    drivers = {name.rpartition(".")[0] for name in named.split("\0") if name}
    off = {f"{driver}.{kind}": "" for driver in drivers for kind in ("clean", "process")}
    off |= {f"{driver}.required": "false" for driver in drivers}
    asked = ("status", "--porcelain", "--ignore-submodules=all", "--", *paths)
    return git(root, *asked, settings=SILENT | off)
