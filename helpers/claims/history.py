"""The criteria history: by what each claim was judged at any time, and what had been seen by then.

It lies in `notebooks/criteria/FOLDER.yml`, written by hand: for each claim a list of entries, the
newest last, with the criterion and the expected verdicts as they were.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.claims.criteria import WHOLE, Criterion, Test
from helpers.claims.registry import read_yaml
from helpers.claims.result import Result

CRITERIA = "notebooks/criteria"
SEEN = ("nothing", "controls", "real data")
BLIND, IMPLIED, LATE = "blind", "implied by known values", "after the fact"
_KINDS = ("tests", "applies", "needs")
_TEST = re.compile(r"(\S+) ([<>]=?) (\S+)(?: on (\S+))?(?:, baseline (\S+?))?(?:, whole (\S+))?")


@dataclass
class Entry:
    """One state of a claim's criterion."""

    date: str  # of the change, as 2026-11-22
    seen: str  # what of this quantity had been seen when it was written, one of SEEN
    reason: str
    criterion: dict  # quantifier, tests, applies and needs; each test as a text
    expected: dict[str, str]  # the verdict that each control has to give
    # Data sets on which results had been measured, or were implied by what had been.
    photographs: list[str] = field(default_factory=list)
    commit: str | None = None  # of entries that a program wrote

    def judges_as(self, other: "Entry") -> bool:
        """Whether both have the same criterion; the order of tests does not count."""
        return not changes(self, other).keys() - {"expected"}


def load(root: Path) -> dict[str, list[Entry]]:
    """Claim -> its entries, the oldest first."""
    return {
        id: [Entry(**entry) for entry in entries]
        for path in sorted((root / CRITERIA).glob("*.yml"))
        for id, entries in read_yaml(path).items()
    }


def criterion(entry: Entry) -> Criterion:
    """The criterion of an entry; ValueError for a test that cannot be read."""
    parts = {name: part for name, part in entry.criterion.items() if name not in _KINDS}
    tests = {kind: tuple(map(_read_test, entry.criterion.get(kind, ()))) for kind in _KINDS}
    return Criterion(**parts, **tests)


def first_verdict(entries: Sequence[Entry], result: Result) -> str:
    """The verdict on the values of a result by the first of its claim's entries."""
    if not entries:
        return result.verdict
    claim = replace(result.claim, criterion=criterion(entries[0]))
    return replace(result, claim=claim).rejudged().verdict


def mark(entries: Sequence[Entry], parameters: Mapping[str, Any]) -> str:
    """What was known of the images of a result when the criterion that decides it was written.

    LATE where it is another than the first, and was changed when values on a data set that the
    result measures had been seen; IMPLIED where they had been when the first was written; else
    BLIND. Sets that something is fitted on are not measured. Empty without entries.
    """
    if not entries:
        return ""
    measured = {parameters.get(name) for name in ("dataset", "other_dataset", "treated")}
    measured |= {test for _, test, *_ in parameters.get("datasets", ())}
    changed = [new for old, new in pairwise(entries) if not new.judges_as(old)]
    seen = any(measured.intersection(entry.photographs) for entry in changed)
    if seen and not entries[-1].judges_as(entries[0]):
        return LATE
    return IMPLIED if measured.intersection(entries[0].photographs) else BLIND


def changes(before: Entry | None, after: Entry) -> dict[str, tuple[list[str], list[str]]]:
    """What differs between two entries: part of a criterion, or 'expected' -> (gone, new)."""
    old, new = _lines(before) if before else {}, _lines(after)
    found = {}
    for kind in {**old, **new}:
        one, other = old.get(kind, []), new.get(kind, [])
        gone = [line for line in one if line not in other]
        added = [line for line in other if line not in one]
        found |= {kind: (gone, added)} if gone or added else {}
    return found


def _read_test(text: str) -> Test:
    if not (found := _TEST.fullmatch(text)):
        raise ValueError(f"the log of criteria holds a test that cannot be read: {text!r}")
    value, op, margin, model, baseline, whole = found.groups()
    return Test(value, op, float(margin), model, "", baseline or "", float(whole or WHOLE))


def _lines(entry: Entry) -> dict[str, list[str]]:
    expected = [f"{name}: {verdict}" for name, verdict in entry.expected.items()]
    parts = {**entry.criterion, "expected": expected}
    return {kind: part if isinstance(part, list) else [str(part)] for kind, part in parts.items()}
