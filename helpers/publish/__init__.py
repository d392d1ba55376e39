"""The publishing house: claims and their verdicts, notebooks run and published, the book. Nothing here measures."""

from helpers.publish.claims import Values
from helpers.publish.criteria import Value
from helpers.publish.registry import load_registry

__all__ = ["Value", "Values", "load_registry"]
