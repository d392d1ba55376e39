"""A checkout of the project: its registry, source notebooks and runs, and what is stale in it.

A result is fresh while its parameters, its criterion and its claim's numbers on the controls are
those of its run.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from helpers.claims.registry import Registry, default, load_registry
from helpers.files import digest_of_json

CONTROLS = "controls"  # the run on the reference models, which calibrates and is no finding
NUMBERS_SUFFIX = ".numbers.json"  # of the file beside a notebook; see numbers.py
SAME_CODE = "same_code"  # in it: `values_digest` under earlier defaults, by the code of today's


@dataclass(frozen=True)
class Project:
    """A checkout at `root`, with published runs and a reader's own."""

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
        """The folder with one folder per run that is not published; the book shows them."""
        return self.root / "_build" / "runs"

    def run_folder(self, run: str) -> Path:
        """The folder that `run` writes into: a reader's own, but of the controls."""
        return (self.runs if run == CONTROLS else self.own) / run

    def results(self) -> list[Path]:
        """The `<id>.json` of every published run and of the controls, by run and identifier."""
        return sorted(self.runs.glob("*/*.json"))

    def own_results(self) -> list[Path]:
        """The `<id>.json` of every run that is not published, by run and identifier."""
        return sorted(self.own.glob("*/*.json"))

    def notebook_path(self, id: str) -> Path:
        """The source notebook of a claim."""
        return self.root / self.registry[id].notebook

    def stored_numbers(self, id: str) -> dict:
        """The numbers beside a notebook, without values where there are none."""
        path = self.notebook_path(id).with_suffix(NUMBERS_SUFFIX)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"values": {}}


def values_digest(stored: Mapping) -> str:
    """The digest of the values on the controls among the numbers stored beside a notebook."""
    return digest_of_json(stored["values"])[:16]


def other_inputs(project: Project, data: Mapping, parameters: Mapping) -> list[str]:
    """In what today's project, run with these parameters, differs from that which gave a result.

    Numbers of the same code under earlier defaults (`SAME_CODE`) are no others.
    """
    id, made = data["id"], data["provenance"]["inputs"]["numbers"]
    numbers = project.stored_numbers(id)
    is_same = {
        "parameters": data["parameters"] == parameters,
        "criterion": data["criterion"] == project.registry[id].criterion.digest,
        "numbers": made in (values_digest(numbers), *numbers.get(SAME_CODE, ())),
    }
    return [part for part, same in is_same.items() if not same]


def stale(project: Project, data: Mapping) -> list[str]:
    """The `other_inputs` of a published result.

    What a run is called it has to be; only on which device it was made is free.
    """
    claim, parameters = project.registry[data["id"]], data["parameters"]
    if (profile := claim.profiles.get(data["run"])) is not None:
        device = {key: value for key, value in parameters.items() if key == "device"}
        parameters = {**claim.parameters, **profile, **device}
    return other_inputs(project, data, parameters)


def git(root: Path, *arguments: str) -> str | None:
    """What git says of the checkout at `root`; None where there is no git, or none of its."""
    if not shutil.which("git"):
        return None
    done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None
