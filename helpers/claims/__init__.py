"""Claims, what is measured of them, and the verdicts that follow.

Nothing here measures.
"""

from helpers.claims.criteria import Value
from helpers.claims.registry import load_registry, term
from helpers.claims.values import Values

__all__ = ["Value", "Values", "load_registry", "term"]
