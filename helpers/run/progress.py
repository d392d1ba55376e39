"""How far a notebook is that runs now (its cell, its batch, the time that is left), how long it
should take by earlier results, and what became of it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from helpers.claims.project import Project
from helpers.claims.result import read_result
from helpers.files import Workspace

# Parameters that choose which images, not how many: the time does not depend on them.
IDLE = ("seed", "examples")


class Outcome(NamedTuple):
    """What became of one notebook: a verdict, 'stored', 'works' (of a dry run), 'kept' (nothing to
    do) or 'failed' with the reason.
    """

    id: str
    status: str
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.id}  {self.status}: {self.reason}"
        return f"{self.id}  {self.status}" + (f"  ({self.seconds:.1f} s)" if self.seconds else "")


@dataclass
class Progress:
    """One notebook while it runs.

    Attributes:
        id: of its claim.
        cells: code cells that it has; `cell`: the one that is computed now, from 1, and 0 before
            the first.
        expected: seconds that it should take in all, None where nobody knows.
        workspace: where its captures say which batch they are at.
        clock: gives the time in seconds.
    """

    id: str
    cells: int
    expected: float | None = None
    workspace: Workspace | None = None
    clock: Callable[[], float] = time.monotonic
    cell: int = 0
    _started: float = field(init=False)
    # Of the present pass: the first batch that was seen, all batches, and when.
    _pass: tuple[int, int, float] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._started = self.clock()

    def at_cell(self, index: int) -> None:
        """Cell `index`, from 0, is computed from now on."""
        self.cell, self._pass = index + 1, None
        if self.workspace is not None:
            self.workspace.end_pass()

    def __str__(self) -> str:
        """`so7 cell 9/18, batch 40/188, 11 min left`."""
        now = self.clock()
        parts = [f"{self.id.partition('-')[0]} cell {self.cell}/{self.cells}"]
        of_pass = None
        if self.workspace is not None and (batches := self.workspace.batches()):
            done, whole = batches
            parts.append(f"batch {done}/{whole}")
            if self._pass is None or self._pass[1] != whole or done < self._pass[0]:
                self._pass = done, whole, now
            first, _, since = self._pass
            of_pass = (now - since) / (done - first) * (whole - done) if done > first else None
        return ", ".join([*parts, self._left(now - self._started, of_pass)])

    def _left(self, spent: float, of_pass: float | None) -> str:
        """The time left: what was expected and is not spent.

        That of the present pass where it is more, or all that is known.
        """
        left = None if self.expected is None else self.expected - spent
        if left is not None and left > 0 and left >= (of_pass or 0):
            return f"{duration(left)} left"
        if of_pass is not None:
            return f"{duration(of_pass)} left in this pass"
        known = "" if self.expected is None else f", {duration(self.expected)} expected"
        return f"{duration(spent)} so far{known}"


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
    best, found = None, None
    for path in (*project.own_results(), *project.results()):
        if path.stem != id:
            continue
        try:
            result = read_result(path)
            # A parameter that is younger than the result was then what is now its default.
            old = {**project.registry[id].parameters, **result["parameters"]}
            made = result["provenance"]
            seconds = float(made["wall_s"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        names = {name for name in {**old, **parameters} if old.get(name) != parameters.get(name)}
        differ = names - {*IDLE}
        if differ - {"n"} or made.get("resumed"):  # the time of a resumed run is that of the rest
            continue
        ratio = parameters["n"] / old["n"] if differ else 1.0
        if not 0.1 <= ratio <= 10 or (best is not None and abs(ratio - 1) >= best):
            continue
        best = abs(ratio - 1)
        took = f"run {result['run']} took {duration(seconds)} on {made['device']}"
        by = f"{took}, threads: {made['threads']}" + (f" for n = {old['n']}" if differ else "")
        found = Expected(seconds * ratio, by)
    return found
