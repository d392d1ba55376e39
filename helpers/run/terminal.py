"""What the commands share: options and their forms, a line for each outcome, and where a run is
while it lasts.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from tqdm import tqdm

from helpers.run.progress import Outcome

DIGITS = 9  # of a number: more are a slip, and thousands of them Python refuses to read
FIRST, EVERY = (
    20,
    60,
)  # seconds until a log has its first line of what runs, and between two of them


class Lines(tqdm):
    """A progress bar on a terminal's stderr, and one line on stdout for each outcome it is called
    with.
    """

    def __init__(self, total: int, unit: str = "notebook"):
        super().__init__(total=total, unit=unit, disable=None, leave=False)
        self.due = time.monotonic() + FIRST

    def __call__(self, outcome: Outcome) -> None:
        self.write(str(outcome))
        sys.stdout.flush()
        self.update()

    def watch(self, running: Sequence[str]) -> None:
        """Show what runs now: behind the bar, or where there is no terminal as lines of a log on
        stderr, one now and then.
        """
        if not self.disable:
            self.set_postfix_str("; ".join(running))
        elif running and time.monotonic() >= self.due:
            self.due = time.monotonic() + EVERY
            print(*running, sep="\n", file=sys.stderr, flush=True)


def status(outcomes: Sequence[Outcome]) -> int:
    """The exit status: 1 where one failed."""
    return int(any(outcome.status == "failed" for outcome in outcomes))


def pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    """The NAME=VALUE texts of a repeated option."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{option} {text}: write it as NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def positive(text: str) -> int:
    """A whole number from 1, as an option's type."""
    return _number(text, 1, "a positive whole number")


def natural(text: str) -> int:
    """A whole number from 0, as an option's type."""
    return _number(text, 0, "a whole number from 0")


def _number(text: str, least: int, what: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} with at most {DIGITS} digits")
    return int(text)


Add = Callable[..., argparse.ArgumentParser]  # how a command gets its parser, see `__main__`
