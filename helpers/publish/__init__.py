"""publish."""

from helpers.publish.criteria import Value
from helpers.publish.registry import load_registry
from helpers.publish.values import Values

__all__ = ["Value", "Values", "load_registry"]
