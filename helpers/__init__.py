"""Capture, measures and claims for the reproducible study of outlier tokens and registers in Vision
Transformers.
"""

from importlib.metadata import version

__version__ = version("registers-reproduced")
