import numpy as np
import torch

from helpers.measures.blocks import growth, thirds


def test_thirds_are_numpys():
    x = torch.from_numpy(np.random.default_rng(0).lognormal(size=(5, 11)))
    early, middle, late = (np.mean(part, axis=1) for part in np.array_split(x.numpy(), 3, axis=1))
    found = thirds(x)
    for got, expected in ((found.early, early), (found.middle, middle), (found.late, late)):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert [part.shape[1] for part in np.array_split(x.numpy(), 3, axis=1)] == [4, 4, 3]


def test_planted_growth():
    """Twice as large in the second third and five times in the last block: only that block is growth."""
    x = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 5.0]).repeat(4, 1) * torch.tensor([[1.0], [2.0], [3.0], [10.0]])
    assert growth(x).tolist() == [5.0] * 4
    assert thirds(x)[1].tolist() == [2.0, 4.0, 6.0, 20.0]
    assert growth(torch.ones(2, 12)).tolist() == [1.0, 1.0]
