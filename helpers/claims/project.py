"""A checkout of the project: its registry, source notebooks and runs."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from helpers.claims.registry import HELPERS, Registry, default, load_registry

__all__ = ["CONTROLS", "HELPERS", "Project", "default", "git"]

# The run on the models whose answers are known, which calibrates and is no finding.
CONTROLS = "controls"


@dataclass(frozen=True)
class Project:
    """A checkout: the registry, the source notebooks, and the runs below `root`.

    There are published runs and a reader's own.
    """

    root: Path = field(default_factory=default)

    @cached_property
    def registry(self) -> Registry:
        """The claims of `notebooks/claims`, with the runs of `notebooks/profiles.yml`."""
        return load_registry(self.root / "notebooks")

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
            raise FileNotFoundError(f"claim {id!r}: its notebook {claim.notebook} is missing")
        return path


def git(root: Path, *arguments: str) -> str | None:
    """What git says of the checkout at `root`; None where there is no git, or none of its."""
    try:
        command = ["git", "-C", root, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:  # no git here
        return None
    return done.stdout.strip() if done.returncode == 0 else None
