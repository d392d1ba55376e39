"""What tests of several measures look at, or compute by hand."""

import numpy as np
import pytest
import torch

BOTH = pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


def values(estimates):
    """Name -> value of each estimate; what is a number already stays one."""
    return {name: getattr(x, "value", x) for name, x in estimates.items()}


def counts(estimates):
    """On how many images the estimates rest."""
    return {x.n for x in estimates.values()}


def without_each(statistic, *arrays):
    """The statistic of arrays (image, ...) without each image in turn."""
    every = np.arange(len(arrays[0]))
    return np.array([statistic(*(x[every != i] for x in arrays)) for i in every])
