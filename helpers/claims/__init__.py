"""Claims, what is measured of them, and the verdicts that follow.

Nothing here measures.
"""

from helpers.claims.criteria import Value
from helpers.claims.registry import load_registry, term

__all__ = ["Value", "load_registry", "term"]
