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


def cka_by_gram(x, y, debiased=False):
    """Centred or U-centred n x n Gram matrices (Kornblith et al. 2019; Song et al. 2012; Szekely &
    Rizzo 2014), independent of the feature form."""
    n = len(x)

    def centred(gram):
        if not debiased:
            h = np.eye(n) - 1 / n
            return h @ gram @ h
        gram = gram - np.diag(np.diag(gram))
        rows = gram.sum(axis=0) / (n - 2)
        gram = gram - rows[:, None] - rows + rows.sum() / (n - 1)
        return gram - np.diag(np.diag(gram))

    k, m = (centred(z @ z.T) for z in (np.asarray(x), np.asarray(y)))
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
