"""How far a notebook is that runs now (its cell, its batch, the time that is left), how long it
should take by earlier results, and what became of it.
"""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from helpers.claims.project import Project
from helpers.claims.result import Calibration, as_expected, read_result, unexpected
from helpers.files import Workspace
from helpers.names import plural

# Parameters that choose which images, not how many: the time does not depend on them.
IDLE = ("seed", "examples")


class Outcome(NamedTuple):
    """What became of one notebook: a verdict, 'stored', 'works' (of a dry run), 'kept' (nothing to
    do) or 'failed', and why; and what the controls gave, where it ran on them alone.
    """

    id: str
    status: str
    seconds: float = 0.0
    reason: str = ""
    calibration: Calibration = MappingProxyType({})

    def __str__(self) -> str:
        told = self.status
        if self.calibration:  # a verdict on models that were built to be refuted would mislead
            told = f"{self.status}, " if self.status in ("kept", "stored") else ""
            told += as_expected(self.calibration)
        seconds = f"  ({self.seconds:.1f} s)" if self.seconds else ""
        return f"{self.id}  {told}{seconds}" + (f": {self.reason}" if self.reason else "")

    @property
    def is_calibrated(self) -> bool:
        """Whether every control gave what was expected of it."""
        return not unexpected(self.calibration)


def calibrated(outcomes: Iterable[Outcome]) -> str:
    """In a sentence how many controls gave what was expected; '' where none ran alone."""
    found = [one.calibration for one in outcomes if one.calibration]
    if not found:
        return ""
    count = sum(map(len, found))
    right = count - sum(len(unexpected(own)) for own in found)
    claims = f"{plural(len(found), 'claim')} on reference models"
    return f"{claims}: {right} of {count} as expected. This is validation, not a finding."


@dataclass
class Progress:
    """One notebook while it runs.

    Attributes:
        id: of its claim.
        cells: code cells that it has; `cell`: the one that is computed now, from 1, and 0 before
            the first.
        expected: seconds that it should take in all, None where nobody knows.
        workspace: where its captures say which batch they are at.
        started: when, in seconds; `seen`: of the present pass the first batch that was seen, all
            batches, and when.
    """

    id: str
    cells: int
    expected: float | None = None
    workspace: Workspace | None = None
    cell: int = 0
    started: float = field(default_factory=lambda: time.monotonic())
    seen: tuple[int, int, float] | None = None

    def at_cell(self, index: int) -> None:
        """Cell `index`, from 0, is computed from now on."""
        self.cell, self.seen = index + 1, None
        if self.workspace is not None:
            self.workspace.end_pass()

    def __str__(self) -> str:
        """`so7 cell 9/18, batch 40/188, 11 min left`: the time that was expected and is not spent,
        that of the present pass where it is more, or all that is known.
        """
        now, of_pass = time.monotonic(), 0.0
        told = f"{self.id.partition('-')[0]} cell {self.cell}/{self.cells}"
        if batches := self.workspace and self.workspace.batches():
            done, whole = batches
            told += f", batch {done}/{whole}"
            if self.seen is None or self.seen[1] != whole or done < self.seen[0]:
                self.seen = done, whole, now
            first, _, since = self.seen
            of_pass = (now - since) / max(done - first, 1) * (whole - done)
        spent = now - self.started
        if self.expected is not None and self.expected - spent > of_pass:
            return f"{told}, {duration(self.expected - spent)} left"
        if of_pass:
            return f"{told}, {duration(of_pass)} left in this pass"
        known = "" if self.expected is None else f", {duration(self.expected)} expected"
        return f"{told}, {duration(spent)} so far{known}"


def duration(seconds: float) -> str:
    """A time for people, in the unit that fits: `40 s`, `11 min`, `2 h 10 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class Expected(NamedTuple):
    """The seconds that a notebook should take, and how that is known."""

    seconds: float
    by: str

    def __str__(self) -> str:
        return f"about {duration(self.seconds)} ({self.by})"


def expected(project: Project, id: str, parameters: Mapping) -> Expected | None:
    """The time of the same claim with the same parameters, from the provenance of an earlier
    result; None where there is none.

    Where only `n`, the number of images, differs, the time is taken in proportion: too long for a
    smaller n, since what is loaded and learnt beside the images stays as it is, and as much too
    short for a larger one. Nothing is said of more than tenfold.
    """
    nearest, found = math.inf, None
    for path in (*project.own_results(), *project.results()):
        if path.stem != id or (result := readable(path)) is None:
            continue
        # A parameter that is younger than the result was then what is now its default.
        old = {**project.registry[id].parameters, **result["parameters"]}
        names = {name for name in {**old, **parameters} if old.get(name) != parameters.get(name)}
        differ, made = names - {*IDLE}, result["provenance"]
        # Where passes were stored before, the time is that of the rest.
        if differ - {"n"} or made.get("stored_passes"):
            continue
        ratio = parameters["n"] / old["n"] if differ else 1.0
        if not 0.1 <= ratio <= 10 or abs(ratio - 1) >= nearest:
            continue
        nearest = abs(ratio - 1)
        took = f"run {result['run']} took {duration(made['wall_s'])} on {made['device']}"
        by = f"{took}, threads: {made['threads']}" + (f" for n = {old['n']}" if differ else "")
        found = Expected(made["wall_s"] * ratio, by)
    return found


def readable(path: Path) -> dict | None:
    """The result at `path`, None where there is none that can be read."""
    try:
        return read_result(path)
    except (OSError, ValueError):
        return None
