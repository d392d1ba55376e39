"""What captures leave beside a notebook while it runs: how far the present pass is, a list of the
captures that were made, and shards of long ones, so that a run that was killed goes on from there.

The executor of notebooks names the folder in the environment variable REGISTERS_WORKSPACE; nothing
is written where it is not set. No number depends on it: shards of whole batches give the same to
the bit.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "REGISTERS_WORKSPACE"


@dataclass(frozen=True)
class Workspace:
    """A folder of one run of a notebook.

    Attributes:
        folder: with a file for the progress of the present pass, a list of captures, and a folder
            of shards for each long capture, numbered in the order of the notebook.
    """

    folder: Path

    @classmethod
    def of_this_run(cls) -> "Workspace | None":
        """The one that the executor has named; None where there is none."""
        folder = os.environ.get(VARIABLE)
        return cls(Path(folder)) if folder else None

    def begin(self) -> bool:
        """Make the folder ready for a run; whether an earlier one left shards there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.end_pass()
        self._captures.write_text("")
        return any(self.folder.rglob("*.safetensors"))

    def report(self, done: int, batches: int) -> None:
        """Say how many of the batches of the present pass are done."""
        self._batch.write_text(f"{done} {batches}")

    def end_pass(self) -> None:
        """The pass is over, and what comes next has no batches."""
        self._batch.unlink(missing_ok=True)

    def batches(self) -> tuple[int, int] | None:
        """The batches done and all of them in the present pass, None where there is none."""
        try:
            done, whole = map(int, self._batch.read_text().split())
        except (OSError, ValueError):  # no file, or one that is being written
            return None
        return done, whole

    def add(self, line: Mapping[str, Any]) -> None:
        """Put an entry into the list of captures."""
        with suppress(OSError), self._captures.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)

    def listed(self) -> list[dict[str, Any]]:
        """The entries: of each capture that this run has finished, and of each tensor of theirs
        that was let go.
        """
        return [
            json.loads(line) for line in self._captures.read_text(encoding="utf-8").splitlines()
        ]

    @property
    def finished(self) -> int:
        """The number of captures that this run has finished."""
        return sum("model" in entry for entry in self.listed())

    @property
    def _batch(self) -> Path:
        return self.folder / "batch"

    @property
    def _captures(self) -> Path:
        return self.folder / "captures"
