"""The constants that verdicts hang on, each by its value: who changes one, changes verdicts."""

import importlib

import pytest

CONSTANTS = {
    "capture.register_neurons.NEAREST": 5,
    "capture.register_neurons.PAIRS": 4,
    "claims.criteria.MIN_N": 3,
    "claims.criteria.FEWEST": 5,
    "claims.criteria.WHOLE": 100.0,
    "claims.statistics.ALPHA": 0.05,
    "measures.answers.SIGNIFICANT": 0.05,
    "measures.answers.WHOLE": 0.02,
    "measures.attention.MOST": 4,
    "measures.attention.EVENT": 0.5,
    "measures.similarity.ROUNDING": 3e-3,
    "measures.massive.ABOVE": 100.0,
    "measures.massive.TOP": 3,
    "measures.massive.MOST_IMAGES": 0.5,
    "measures.norms.BIN": 0.025,
    "measures.norms.WINDOWS": (4, 8, 16, 32),
    "measures.norms.MINIMAL_SHARE": 5e-4,
    "measures.norms.STANDARD_ERRORS": 3.5,
    "measures.outliers.PRESENT": "median:3",
    "measures.outliers.FEW": 0.05,
    "measures.outliers.LARGEST_RATIO": 1e6,
    "measures.outliers.USUAL": 4,
    "measures.probes.RIDGE": 1e-4,
    "measures.registers.LOADED": 3,
    "measures.registers.MOST_IMAGES": 0.5,
    "measures.segmentation.TEMPERATURE": 0.07,
    "measures.registers.LEAST": 1e-3,
    "measures.stats.FEWEST": 5,
    "measures.stats.LEVEL": 0.95,
    "measures.stats.REPETITIONS": 12,
    "measures.stats.ALIKE": 1e-6,
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_verdicts_hang_on(name):
    module, _, constant = name.rpartition(".")
    assert getattr(importlib.import_module(f"helpers.{module}"), constant) == CONSTANTS[name]
