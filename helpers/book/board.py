"""Which models count as one, and which test gave a verdict."""

import re
from collections.abc import Collection

from helpers.book.finding import Decision, Finding
from helpers.claims.criteria import CONTROL, NO
from helpers.claims.project import CONTROLS

SEED = re.compile(r"-seed\d+$")
OUTCOME = {"supported": True, "inconclusive": None}  # of the tests that give a verdict; else False


def column_of(model: str) -> str:
    """Of trainings that differ in their seed the first, of all controls one."""
    return CONTROLS if model.startswith(CONTROL) else SEED.sub("", model)


def deciding(found: Finding, models: Collection[str], verdict: str) -> Decision | None:
    """The test that gave these models their verdict: of a refuted one the clearest, else that
    nearest to its margin.
    """
    rows = [row for row in found.rows if row.model in models and row.verdict == verdict]
    rows = [row for row in rows if row.role != "needs"]
    rows = [row for row in rows if row.outcome is OUTCOME.get(verdict, False)] or rows
    choose = max if verdict in NO else min
    return choose(rows, key=lambda row: row.clearness, default=None)
