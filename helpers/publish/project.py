"""A checkout of the project: its registry, its source notebooks, its published runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from helpers.publish import place
from helpers.publish.registry import Registry, load_registry

CONTROLS = "controls"  # the run on the models whose answers are known, which calibrates and is no finding


@dataclass(frozen=True)
class Project:
    """A checkout: the registry, the source notebooks and the published runs below `root`."""

    root: Path = field(default_factory=place.default)

    @cached_property
    def registry(self) -> Registry:
        """The claims of `notebooks/claims`, with the runs of `notebooks/profiles.yml`; where `notebooks` is not there, those that
        come with the package, which can be read and not run."""
        folder = self.root / "notebooks"
        return load_registry(folder if folder.is_dir() else place.shipped())

    @property
    def runs(self) -> Path:
        """The folder with one folder per run."""
        return self.root / "book" / "runs"

    def results(self) -> Iterator[Path]:
        """The `<id>.json` of every run, in order of run and identifier."""
        return iter(sorted(self.runs.glob("*/*.json")))

    def with_notebook(self) -> list[str]:
        """Identifiers of the claims that have a notebook."""
        return [claim.id for claim in self.registry.claims.values() if claim.notebook]

    def source(self, id: str) -> Path:
        """The source notebook of a claim. Raises ValueError where there is none yet, FileNotFoundError where it is missing."""
        claim = self.registry[id]
        if claim.notebook is None:
            raise ValueError(f"claim {id!r} has no notebook yet: {claim.waiting}")
        path = self.root / claim.notebook
        if not path.is_file():
            raise FileNotFoundError(f"claim {id!r}: its notebook {claim.notebook} is missing; restore it or correct the registry")
        return path
