"""Similarity: of neighbouring patches, of images, and of two representations of the same images."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from helpers.measures._arrays import Array, PerImage, Vectors, to_numpy
from helpers.measures.stats import Estimate, bootstrap, jackknife, ratio_of_means

# Of two representations; a check of the numbers of images has a message of its own.
Left = Float[Array, "n_x width_x"]
Right = Float[Array, "n_y width_y"]
FOUR = ((-1, 0), (1, 0), (0, -1), (0, 1))
ROUNDING = 3e-3  # of the whole: what is shorter is left of numbers that cancel
OFFSETS = {4: FOUR, 8: FOUR + ((-1, -1), (-1, 1), (1, -1), (1, 1))}


def neighbour_cosine(
    grid: Float[Array, "batch rows columns width"], neighbours: int = 4
) -> Float[Array, "batch rows columns"]:
    """Mean cosine similarity of each patch with its 4 or 8 neighbours (Darcet et al., Fig. 5a).

    The mean is over the neighbours that exist. A vector of zeros has similarity 0; a grid of one
    patch gives nan.
    """
    if neighbours not in OFFSETS:
        raise ValueError(f"neighbours is {neighbours}; choose one of {[*OFFSETS]}")
    patches = torch.as_tensor(grid)
    patches = F.normalize(patches.to(torch.promote_types(patches.dtype, torch.float32)), dim=-1)
    exists = torch.ones_like(patches[..., :1])

    def neighbour_sum(x):
        rows, columns = x.shape[1:3]
        padded = F.pad(x, (0, 0, 1, 1, 1, 1))
        return sum(
            padded[:, 1 + r : 1 + r + rows, 1 + c : 1 + c + columns] for r, c in OFFSETS[neighbours]
        )

    # The sum of cosines with unit vectors is the product with their sum.
    found = (patches * neighbour_sum(patches)).sum(-1) / neighbour_sum(exists).squeeze(-1)
    return found if isinstance(grid, Tensor) else found.numpy()


def cosine(
    a: Float[Array, "*#batch width"], b: Float[Array, "*#batch width"]
) -> Float[Array, "..."]:
    """Cosine similarity of rows of `a` and `b`, at least in float32; nan for a row of zeros."""
    x, y = (torch.as_tensor(z) for z in (a, b))
    x, y = (z.to(torch.promote_types(z.dtype, torch.float32)) for z in (x, y))
    x, y = (z / torch.linalg.vector_norm(z, dim=-1, keepdim=True) for z in (x, y))
    found = (x * y).sum(-1)
    return found if isinstance(a, Tensor) else found.numpy()


def pairwise_cosine_over_images(x: Vectors) -> Estimate:
    """Mean cosine over all pairs of different images, in float64 (decoupling, section 3.2).

    Nan where a row is zero. The interval is by `jackknife`: each image is in many pairs.
    """
    return jackknife(*_pairwise_and_without(x), (-1, 1))


def pairwise_cosine_drop(before: Vectors, after: Vectors) -> Estimate:
    """`pairwise_cosine_over_images` of `before` minus that of `after`, paired."""
    (one, without_one), (two, without_two) = map(_pairwise_and_without, (before, after))
    return jackknife(round(one - two, 6), without_one - without_two, (-2, 2))


def varying_share(x: Vectors, seed: int = 0) -> Estimate:
    """The share of the squared norm, summed over images, that is not their mean."""
    spread = torch.stack([((x - x.mean(0)) ** 2).sum(1), (x**2).sum(1)], dim=1)
    return bootstrap((spread / spread[:, 1].mean()).round(decimals=6), ratio_of_means, seed=seed)


class Components(NamedTuple):
    """The first principal components of vectors, in float64."""

    centre: Float[Tensor, "*batch 1 width"]
    directions: Float[Tensor, "*batch width component"]  #: the first of the largest entries is > 0
    shares: Float[Tensor, "*batch component"]  #: of the variance
    own: Float[Tensor, "*every item component"]  #: scores of all vectors that were given

    def scores(self, x: Float[Tensor, "*batch n width"]) -> Float[Tensor, "*batch n component"]:
        """Of these vectors, or of any others."""
        return (x.double() - self.centre) @ self.directions

    def overlap(self, other: "Components") -> Float[Tensor, "*batch"]:
        """How alike the spaces of both are: the mean squared cosine of their principal angles."""
        return ((self.directions.mT @ other.directions) ** 2).sum((-2, -1)) / self.shares.shape[-1]


def principal_components(
    x: Float[Tensor, "*batch item width"],
    among: Bool[Tensor, "*batch item"] | None = None,
    count: int = 3,
) -> Components:
    """The `count` directions of largest variance in each batch, or `among` these items of all
    batches together, the largest first; exact, where `torch.pca_lowrank` is random.
    """
    x = x.double()
    fitted = x if among is None else x[among]
    centre = fitted.mean(-2, keepdim=True)
    # The smallest first.
    variances, directions = torch.linalg.eigh((fitted - centre).mT @ (fitted - centre))
    shares = variances.flip(-1).clamp(min=0) / variances.sum(-1, keepdim=True)
    directions = directions.flip(-1)[..., :count]
    sizes = directions.abs()
    # The first of those that are equal but for rounding, on every processor.
    first = (sizes > 0.99 * sizes.amax(-2, keepdim=True)).int().argmax(-2, keepdim=True)
    directions = directions * directions.gather(-2, first).sign()
    return Components(centre, directions, shares[..., :count], (x - centre) @ directions)


def linear_cka(x: Left, y: Right, debiased: bool = False) -> float:
    """Linear centred kernel alignment of two representations of the same n images, in float64.

    Plain: `||Y'X||^2 / (||X'X|| ||Y'Y||)` of the centred features (Kornblith et al. 2019, eq. 5;
    decoupling, eq. 4). It is biased upwards when n is not much larger than the widths: see
    `cka_floor`. `debiased` uses the unbiased HSIC (Song et al. 2012, eq. 5; Nguyen et al. 2021).
    Nan where one representation is constant; ValueError for fewer than 2 images (4 where debiased).
    """
    x, y = _paired(x, y, 4 if debiased else 2)
    xx, xy, yy = (_hsic_of(a, b, debiased) for a, b in ((x, x), (x, y), (y, y)))
    return float(_ratio(xy, xx * yy))


def cka_over_images(x: Left, y: Right, debiased: bool = False) -> Estimate:
    """`linear_cka` with its interval over images, by `jackknife`.

    A bootstrap draws images twice, and copies are alike in both representations: of 256 pairs of
    independent 192-d features CKA is 0.43, and after such draws 0.58 to 0.62. The interval is one
    for CKA of this many images, whose bias it keeps. It takes one image more.
    """
    return jackknife(*_cka_and_without(x, y, debiased), (-1 if debiased else 0, 1))


def cka_difference(
    first: tuple[Left, Right],
    second: tuple[Float[Array, "n_z width_z"], Float[Array, "n_w width_w"]],
) -> Estimate:
    """`linear_cka` of the `first` two representations minus that of the `second` two, paired."""
    one, other = (_cka_and_without(x, y, False) for x, y in (first, second))
    return jackknife(one[0] - other[0], one[1] - other[1], (-1, 1))


def expected_cka(x: Left, y: Right) -> float:
    """`linear_cka` of unrelated images: the mean over all n! ways to pair those of x with those
    of y.

    It is `tr(K) tr(L) / ((n - 1) |K| |L|)` for the centred K = XX' and L = YY' (Kazi-Aoual et al.
    1995). Debiased, it is 0.
    """
    x, y = _paired(x, y)
    scale = _hsic_of(x, x) * _hsic_of(y, y)
    return float(_ratio((x**2).sum() * (y**2).sum(), scale)) / (len(x) - 1)


def rank_share(x: Left) -> Estimate:
    """The effective rank of representations of n images over their width, in float64.

    It is the participation ratio of the eigenvalues l of their covariance, `(sum l)^2 / sum l^2`: 1
    where all lie on a line, at most the width and n - 1. With few images it is too low, and the
    interval, by `jackknife`, is for so many. Nan where all are alike.
    """
    rows = _centred(to_numpy(x).astype(np.float64))
    n, width = rows.shape
    total, without = (rows**2).sum(), n / (n - 1) * (rows**2).sum(axis=1)
    value = _ratio(total, _hsic_of(rows, rows)) ** 2
    each = _ratio(total - without, _hsic_without_each(rows, rows)) ** 2
    return jackknife(value / width, each / width, (0, 1))


class Floor(NamedTuple):
    """What CKA is where the images of x and y do not belong together: the `mean` over permutations,
    and `high`, their 95th percentile.
    """

    mean: float
    high: float


def cka_floor(
    x: Left,
    y: Right,
    permutations: int = 100,
) -> Floor:
    """`linear_cka` after seeded permutations of the images of y; nan where one is constant."""
    x, y = _paired(x, y)
    rng = np.random.default_rng(0)
    scale = _hsic_of(x, x) * _hsic_of(y, y)
    orders = (rng.permutation(len(y)) for _ in range(permutations))
    draws = [_ratio(_hsic_of(x, y[order]), scale) for order in orders]
    return Floor(float(np.mean(draws)), float(np.quantile(draws, 0.95)))


def _hsic(squared, products, total_x, total_y, n, debiased):
    """HSIC of centred features, times (n - 1)^2; debiased, times n (n - 3) (Song et al. 2012).

    `squared` is ||X'Y||^2; the others are sums over the images, of |x|^2 |y|^2, |x|^2 and |y|^2.
    With the diagonals of XX' and YY' set to zero their rows sum to -|x|^2 and -|y|^2.
    """
    if not debiased:
        return squared
    return squared - n / (n - 2) * products + total_x * total_y / ((n - 1) * (n - 2))


def _hsic_of(x: np.ndarray, y: np.ndarray, debiased: bool = False) -> float:
    """Of centred features."""
    a, b = (x**2).sum(axis=1), (y**2).sum(axis=1)
    return _hsic(((x.T @ y) ** 2).sum(), a @ b, a.sum(), b.sum(), len(x), debiased)


def _hsic_without_each(x: np.ndarray, y: np.ndarray, debiased: bool = False) -> np.ndarray:
    """Of centred features, for each image: what it is without that image.

    The others have their mean at -x_i / m where m = n - 1, so X'Y loses (n / m) x_i y_i', and
    |x_j|^2 becomes |x_j|^2 + 2 x_i.x_j / m + |x_i|^2 / m^2.
    """
    n, m, c, a, b = len(x), len(x) - 1, x.T @ y, (x**2).sum(axis=1), (y**2).sum(axis=1)
    along, product = ((x @ c) * y).sum(axis=1), a * b
    squared = (c**2).sum() - 2 * n / m * along + (n / m) ** 2 * product
    products = a @ b - product + 2 / m * (x @ (b @ x) + y @ (a @ y) - 2 * product)
    products += (b * a.sum() + a * b.sum() + 4 * along - 6 * product) / m**2 - 3 * product / m**3
    return _hsic(squared, products, a.sum() - n / m * a, b.sum() - n / m * b, m, debiased)


def _cka_and_without(x: Array, y: Array, debiased: bool) -> tuple[float, np.ndarray]:
    """CKA of all images, and without each of them."""
    value, (x, y) = linear_cka(x, y, debiased), _paired(x, y, 5 if debiased else 3)
    xy, xx, yy = (_hsic_without_each(a, b, debiased) for a, b in ((x, y), (x, x), (y, y)))
    return value, _ratio(xy, xx * yy)


def _pairwise_and_without(x: Tensor) -> tuple[float, np.ndarray]:
    """The mean cosine of pairs of all images, and without each of them."""
    n, rows = len(x), to_numpy(x).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        total = units.sum(axis=0)
        whole = (total @ total - n) / (n * (n - 1))
        with_others = (units @ total - 1) / (n - 1)  # mean over the pairs of each image
        return float(whole), ((n * whole - 2 * with_others) / (n - 2)).round(6)


def _ratio(hsic, scale):
    """`hsic` over the root of `scale`; nan where that is no positive number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale > 0, hsic / np.sqrt(scale), np.nan)


def _centred(z: np.ndarray) -> np.ndarray:
    z = z - z[:1]  # first, so that what is constant becomes exactly zero
    return z - z.mean(axis=0)


def _paired(x: Array, y: Array, least: int = 2) -> list[np.ndarray]:
    """Centred features of the same images, in float64."""
    if len(x) != len(y) or len(x) < least:
        raise ValueError(f"CKA of {len(x)} and {len(y)} images; it needs the same, {least} or more")
    return [_centred(to_numpy(z).astype(np.float64)) for z in (x, y)]


# ---- Parts of [CLS] in one layer (decoupling, 3 and 4.1), as `helpers.capture.ClsParts` has them


def part_cosine(part: Vectors, total: Vectors) -> PerImage:
    """Cosine of a part with the total (decoupling, section 3.4), image by image.

    Nan for a part of less than 0.003 of the total, whose direction is rounding.
    """
    short = part.norm(dim=1, keepdim=True) < ROUNDING * total.norm(dim=1, keepdim=True)
    return cosine(part.masked_fill(short, 0), total)


def gram_shares_over_images(parts: Float[Array, "image part width"]) -> list[list[Estimate]]:
    """The share of each term A B' in the Gram matrix X X' of the sum of the parts, in float64.

    The terms are those of decoupling, eq. 5, which measures none. The share of a term is
    `<A B', X X'> / |X X'|^2` (Frobenius): the terms sum to one, a negative share works against the
    whole, and that of A A' is `CKA(A, X) |A A'| / |X X'|`.

    Returns:
        By part A, then by part B, with intervals by `jackknife`; nan where the sum is constant.
    """
    parts = _centred(to_numpy(parts).astype(np.float64))
    n, total = len(parts), parts.sum(axis=1)
    moments = np.einsum("iaw,iv->awv", parts, total, optimize=True)  # A'X
    inner = np.einsum("awv,bwv->ab", moments, moments, optimize=True)  # <A B', X X'> = <A'X, B'X>
    loss = n / (n - 1)  # A'X loses this times a x' with an image
    along = np.einsum("iaw,ibw->iab", parts, np.einsum("bwv,iv->ibw", moments, total))
    products = np.einsum("iaw,ibw->iab", parts, parts) * (total**2).sum(axis=1)[:, None, None]
    value = _shares(inner)
    without = _shares(inner - loss * (along + along.swapaxes(1, 2)) + loss**2 * products)
    return [
        [jackknife(float(value[a, b]), without[:, a, b]) for b in range(len(value))]
        for a in range(len(value))
    ]


def _shares(inner: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = inner.sum(axis=(-2, -1), keepdims=True)
        return np.where(whole > 0, inner / whole, np.nan)
