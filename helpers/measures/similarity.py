"""Similarity of neighbouring patches, and of two representations of the same images."""

import numpy as np
import torch
from jaxtyping import Float
from torch.nn import functional as F

from helpers.measures._arrays import Array, to_numpy

FOUR = ((-1, 0), (1, 0), (0, -1), (0, 1))
OFFSETS = {4: FOUR, 8: FOUR + ((-1, -1), (-1, 1), (1, -1), (1, 1))}


def neighbour_cosine(grid: Float[Array, "batch rows columns width"], neighbours: int = 4) -> Float[Array, "batch rows columns"]:
    """Mean cosine similarity of each patch with its 4 or 8 neighbours (Darcet et al., Fig. 5a; METHODS, claim 3).

    The mean is over the neighbours that exist: patches at the border have fewer. A vector of zeros has similarity 0; a grid
    of one patch gives nan. Runs on the device of `grid`. Raises ValueError for another number of neighbours.
    """
    if neighbours not in OFFSETS:
        raise ValueError(f"a patch has 4 or 8 neighbours, not {neighbours}; use neighbours=4 or neighbours=8")
    patches = torch.as_tensor(grid)
    patches = F.normalize(patches.to(torch.promote_types(patches.dtype, torch.float32)), dim=-1)
    exists = torch.ones_like(patches[..., :1])

    def neighbour_sum(x):
        rows, columns = x.shape[1:3]
        padded = F.pad(x, (0, 0, 1, 1, 1, 1))
        return sum(padded[:, 1 + r : 1 + r + rows, 1 + c : 1 + c + columns] for r, c in OFFSETS[neighbours])

    # The sum of cosines with unit vectors is the product with their sum.
    cosine = (patches * neighbour_sum(patches)).sum(-1) / neighbour_sum(exists).squeeze(-1)
    return cosine if isinstance(grid, torch.Tensor) else cosine.numpy()


def linear_cka(x: Float[Array, "n width_x"], y: Float[Array, "n width_y"], debiased: bool = False) -> float:
    """Linear centred kernel alignment of two representations of the same n images, in float64; nan where one is constant.

    Plain: ||Y'X||^2 / (||X'X|| ||Y'Y||) of the centred features (Kornblith et al. 2019, eq. 5). It is biased upwards when n is
    not much larger than the widths. `debiased` uses the unbiased HSIC (Song et al. 2012, eq. 5; Nguyen et al. 2021), which is
    about 0 for independent features. Both work on features, so no n x n matrix is built.
    Raises ValueError for fewer than 4 images where debiased.
    """
    if debiased and len(x) < 4:
        raise ValueError(f"debiased CKA needs at least 4 images, not {len(x)}; give more images or use debiased=False")
    x, y = (to_numpy(z).astype(np.float64) for z in (x, y))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    hsic = _unbiased_hsic if debiased else _biased_hsic
    scale = np.sqrt(hsic(x, x) * hsic(y, y))
    return float(hsic(x, y) / scale) if scale > 0 else float("nan")


def _biased_hsic(x: np.ndarray, y: np.ndarray) -> float:
    return ((x.T @ y) ** 2).sum()


def _unbiased_hsic(x: np.ndarray, y: np.ndarray) -> float:
    """Song et al. 2012, eq. 5, for K = XX' and L = YY' with their diagonals set to zero, times n (n - 3)."""
    n = len(x)
    diagonal_x, diagonal_y = (x**2).sum(axis=1), (y**2).sum(axis=1)
    rows_x, rows_y = x @ x.sum(axis=0) - diagonal_x, y @ y.sum(axis=0) - diagonal_y  # row sums of K and L
    trace = ((x.T @ y) ** 2).sum() - diagonal_x @ diagonal_y
    return trace + rows_x.sum() * rows_y.sum() / ((n - 1) * (n - 2)) - 2 * (rows_x @ rows_y) / (n - 2)
