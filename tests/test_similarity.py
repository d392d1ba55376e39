import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

from helpers.measures.similarity import linear_cka, neighbour_cosine


def neighbour_cosine_by_loop(grid, neighbours):
    batch, rows, columns, _ = grid.shape
    out = np.zeros((batch, rows, columns))
    for i, r, c in np.ndindex(out.shape):
        near = [
            grid[i, r + dr, c + dc]
            for dr in (-1, 0, 1)
            for dc in (-1, 0, 1)
            if (dr, dc) != (0, 0) and (neighbours == 8 or 0 in (dr, dc)) and 0 <= r + dr < rows and 0 <= c + dc < columns
        ]
        out[i, r, c] = cosine_similarity(grid[i, r, c][None], near).mean()
    return out


def cka_by_gram(x, y, debiased):
    """Centred or U-centred n x n Gram matrices (Song et al. 2012; Szekely & Rizzo 2014), independent of the feature form."""
    n = len(x)

    def centred(gram):
        if not debiased:
            h = np.eye(n) - 1 / n
            return h @ gram @ h
        gram = gram - np.diag(np.diag(gram))
        rows = gram.sum(axis=0)
        gram = gram - rows[:, None] / (n - 2) - rows[None] / (n - 2) + gram.sum() / ((n - 1) * (n - 2))
        return gram - np.diag(np.diag(gram))

    k, m = centred(x @ x.T), centred(y @ y.T)
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("shape", [(2, 5, 4, 7), (1, 1, 3, 2), (1, 2, 1, 2)])
def test_neighbour_cosine_against_a_loop(shape, neighbours):
    grid = np.random.default_rng(0).normal(size=shape)
    expected = neighbour_cosine_by_loop(grid, neighbours)
    found = neighbour_cosine(torch.from_numpy(grid), neighbours)
    assert found.dtype == torch.float64 and found.numpy() == pytest.approx(expected)
    assert neighbour_cosine(grid.astype(np.float32), neighbours) == pytest.approx(expected, abs=1e-5)


def test_neighbour_cosine_of_known_grids():
    redundant = torch.ones(1, 3, 3, 8) * torch.arange(1.0, 10.0).reshape(1, 3, 3, 1)  # same direction, any length
    assert neighbour_cosine(redundant) == pytest.approx(torch.ones(1, 3, 3))
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    chequered = torch.eye(2)[(rows + columns) % 2][None]
    assert neighbour_cosine(chequered, 4).abs().max() == 0
    assert neighbour_cosine(chequered, 8)[0, 1, 1] == 0.5  # the diagonal half of the neighbours
    black = torch.ones(1, 1, 2, 3)
    black[0, 0, 0] = 0
    assert neighbour_cosine(black).tolist() == [[[0, 0]]]
    assert neighbour_cosine(torch.ones(1, 1, 1, 3)).isnan().all()


def test_neighbour_cosine_batch_equals_single_images_and_half_precision_is_raised():
    grid = torch.randn(3, 4, 4, 16, generator=torch.Generator().manual_seed(0))
    single = torch.cat([neighbour_cosine(image[None]) for image in grid])
    assert torch.equal(neighbour_cosine(grid), single)
    assert neighbour_cosine(grid.bfloat16()).dtype == torch.float32


def test_neighbour_cosine_refuses_other_neighbourhoods():
    with pytest.raises(ValueError, match="not 6; use neighbours=4"):
        neighbour_cosine(torch.ones(1, 2, 2, 2), 6)


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("n, width_x, width_y", [(4, 3, 2), (60, 8, 5), (40, 100, 70)])
def test_linear_cka_against_gram_matrices(debiased, n, width_x, width_y):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, width_x)) + 3
    y = rng.normal(size=(n, width_y)) - 5 + 0.7 * x[:, :1]
    assert linear_cka(x, y, debiased) == pytest.approx(cka_by_gram(x, y, debiased), rel=1e-9)
    assert linear_cka(torch.from_numpy(x), torch.from_numpy(y), debiased) == linear_cka(x, y, debiased)


@pytest.mark.parametrize("debiased", [False, True])
def test_linear_cka_of_related_features(debiased):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 16))
    rotation = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    assert linear_cka(x, 5 * x @ rotation + 2, debiased) == pytest.approx(1)
    assert linear_cka((x + 1e4).astype(np.float32), x, debiased) == pytest.approx(1, abs=1e-5)  # a large common offset
    assert np.isnan(linear_cka(x, np.ones((200, 3)), debiased))


def test_linear_cka_of_independent_features():
    x, y = np.random.default_rng(0).normal(size=(2, 1000, 1536)).astype(np.float32)
    assert linear_cka(x, y) == pytest.approx(0.606, abs=0.005)
    assert linear_cka(x, y, debiased=True) == pytest.approx(0, abs=0.005)


def test_debiased_cka_refuses_too_few_images():
    with pytest.raises(ValueError, match="at least 4 images, not 3"):
        linear_cka(np.ones((3, 2)), np.ones((3, 2)), debiased=True)
