"""Which models count as one."""

import re

from helpers.claims.criteria import CONTROL
from helpers.claims.project import CONTROLS

SEED = re.compile(r"-seed\d+$")


def column_of(model: str) -> str:
    """Of trainings that differ in their seed the first, of all controls one."""
    return CONTROLS if model.startswith(CONTROL) else SEED.sub("", model)
