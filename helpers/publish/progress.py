"""How far a notebook is that runs now (its cell, its batch, the time that is left), and what became of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Outcome(NamedTuple):
    """What became of one notebook: a verdict, 'stored', 'kept' (nothing to do) or 'failed' with the reason."""

    id: str
    status: str
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        more = f": {self.reason}" if self.reason else f"  ({self.seconds:.1f} s)" if self.seconds else ""
        return f"{self.id}  {self.status}{more}"


@dataclass
class Progress:
    """One notebook while it runs.

    Attributes:
        id: of its claim.
        cells: code cells that it has; `cell`: the one that is computed now, from 1, and 0 before the first.
        batch: the file in which its kernel says which batch of how many it is at.
        expected: seconds that it should take in all, None where nobody knows.
        clock: gives the time in seconds.
    """

    id: str
    cells: int
    batch: Path | None = None
    expected: float | None = None
    clock: Callable[[], float] = time.monotonic
    cell: int = 0
    _started: float = field(init=False)
    _pass: tuple[int, int, float] | None = field(init=False, default=None)  # first batch seen of a pass, all of them, and when

    def __post_init__(self) -> None:
        self._started = self.clock()

    def at_cell(self, index: int) -> None:
        """Cell `index`, from 0, is computed from now on."""
        self.cell, self._pass = index + 1, None
        if self.batch is not None:
            self.batch.unlink(missing_ok=True)

    def batches(self) -> tuple[int, int] | None:
        """The batches done and all of them in the present pass, None where there is none."""
        try:
            done, whole = map(int, self.batch.read_text(encoding="utf-8").split())
        except (OSError, ValueError, AttributeError):  # no file, or one that is being written
            return None
        return done, whole

    def __str__(self) -> str:
        """`so7 cell 9/18, batch 40/188, 11 min left`."""
        now, batches = self.clock(), self.batches()
        parts = [f"{self.id.partition('-')[0]} cell {self.cell}/{self.cells}"]
        of_pass = None
        if batches:
            done, whole = batches
            parts.append(f"batch {done}/{whole}")
            if self._pass is None or self._pass[1] != whole or done < self._pass[0]:
                self._pass = done, whole, now
            first, _, since = self._pass
            of_pass = (now - since) / (done - first) * (whole - done) if done > first else None
        return ", ".join([*parts, self._left(now - self._started, of_pass)])

    def _left(self, spent: float, of_pass: float | None) -> str:
        """The time left: what was expected and is not spent; that of the present pass where it is more, or all that is known."""
        if self.expected is not None and spent < self.expected and self.expected - spent >= (of_pass or 0):
            return f"{duration(self.expected - spent)} left"
        if of_pass is not None:
            return f"{duration(of_pass)} left in this pass"
        return f"{duration(spent)} so far" + (f", {duration(self.expected)} expected" if self.expected is not None else "")


def duration(seconds: float) -> str:
    """A time for people, in the unit that fits: `40 s`, `11 min`, `2 h 10 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
