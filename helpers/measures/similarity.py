"""Similarity of neighbouring patches, and of two representations of the same images."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch.nn import functional as F

from helpers.measures._arrays import Array, to_numpy
from helpers.measures.stats import Estimate, jackknife

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


def cosine(a: Float[Array, "*#batch width"], b: Float[Array, "*#batch width"]) -> Float[Array, "..."]:
    """Cosine similarity of the rows of `a` with those of `b`, which broadcast; nan where one is zero and so has no direction.

    Runs on the device of `a`, at least in float32.
    """
    x, y = (torch.as_tensor(z) for z in (a, b))
    x, y = (z.to(torch.promote_types(z.dtype, torch.float32)) for z in (x, y))
    x, y = (z / torch.linalg.vector_norm(z, dim=-1, keepdim=True) for z in (x, y))
    found = (x * y).sum(-1)
    return found if isinstance(a, torch.Tensor) else found.numpy()


def pairwise_cosine(x: Float[Array, "n width"]) -> float:
    """Mean cosine similarity over all pairs of different rows, in float64 (decoupling, section 3.2); nan where a row is zero.

    Raises ValueError for fewer than 2 rows.
    """
    n, rows = len(x), to_numpy(x).astype(np.float64)
    if n < 2:
        raise ValueError(f"{n} row makes no pair; give at least 2")
    with np.errstate(invalid="ignore"):
        total = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).sum(axis=0)
    return float((total @ total - n) / (n * (n - 1)))


class Comoments:
    """What linear CKA needs to know of two representations of the same images, added up batch by batch in float64.

    Neither the features nor an n x n matrix are kept: memory depends on the widths alone. The sums are those of all products of
    (x, |x|^2, 1) with (y, |y|^2, 1), counted from the first image, so that a large common offset costs no precision. They hold
    everything about the centred features, since another origin is a linear map of such vectors.
    """

    def __init__(self) -> None:
        self._origins: tuple[np.ndarray, ...] = ()  # the first image, as x and as y
        self._sums: list[np.ndarray] = []  # of x with x, x with y, and y with y

    @property
    def n(self) -> int:
        """Number of images so far."""
        return round(self._sums[0].item(-1)) if self._sums else 0

    def update(self, x: Float[Array, "n_x width_x"], y: Float[Array, "n_y width_y"]) -> "Comoments":
        """Add images and return self. Raises ValueError for an unlike number of rows, or widths unlike those before."""
        x, y = _paired(x, y)
        if len(x):
            batch = Comoments()
            batch._origins = x[0].copy(), y[0].copy()
            a, b = (_augmented(z - z[0]) for z in (x, y))
            batch._sums = [a.T @ a, a.T @ b, b.T @ b]
            self.merge(batch)
        return self

    def merge(self, other: "Comoments") -> "Comoments":
        """Add the images that another has seen and return self. Raises ValueError for unlike widths."""
        if self.n and other.n:
            widths, others = ([len(origin) for origin in each._origins] for each in (self, other))
            if widths != others:
                raise ValueError(f"features of widths {others} do not go with those of widths {widths}; give the same ones")
            a, b = (there - here for there, here in zip(other._origins, self._origins, strict=True))
            moved = (_moved(sums, *by) for sums, by in zip(other._sums, ((a, a), (a, b), (b, b)), strict=True))
            self._sums = [mine + theirs for mine, theirs in zip(self._sums, moved, strict=True)]
        elif other.n:
            self._origins, self._sums = other._origins, other._sums
        return self

    def cka(self, debiased: bool = False) -> float:
        """`linear_cka` of the images so far. Raises ValueError for fewer than 2, or 4 where debiased."""
        _require(self.n, debiased)
        xx, xy, yy = (_hsic(*sums, debiased) for sums in self._centred())
        return float(_ratio(xy, xx * yy))

    def floor(self) -> float:
        """The mean of plain CKA over all n! ways to pair the images of x with those of y: tr(K) tr(L) / ((n - 1) |K| |L|) for
        the centred K = XX' and L = YY' (Kazi-Aoual et al. 1995). What is not above it says nothing. Debiased, it is 0."""
        _require(self.n, False)
        xx, _, yy = self._centred()
        return float(_ratio(xx.total_x * yy.total_x, xx.squared * yy.squared)) / (self.n - 1)

    def _centred(self) -> list["_Sums"]:
        x, y = (-sums[:-2, -1] / self.n for sums in (self._sums[0], self._sums[2]))
        moved = (_moved(sums, *by) for sums, by in zip(self._sums, ((x, x), (x, y), (y, y)), strict=True))
        return [_Sums((m[:-2, :-2] ** 2).sum(), m[-2, -2], m[-2, -1], m[-1, -2], self.n) for m in moved]


def linear_cka(x: Float[Array, "n_x width_x"], y: Float[Array, "n_y width_y"], debiased: bool = False) -> float:
    """Linear centred kernel alignment of two representations of the same n images, in float64; nan where one is constant.

    Plain: ||Y'X||^2 / (||X'X|| ||Y'Y||) of the centred features (Kornblith et al. 2019, eq. 5; decoupling, eq. 4). It is biased
    upwards when n is not much larger than the widths: see `cka_floor`. `debiased` uses the unbiased HSIC (Song et al. 2012,
    eq. 5; Nguyen et al. 2021), which is about 0 for independent features. Both work on features, so no n x n matrix is built;
    `Comoments` does the same batch by batch.

    Raises ValueError for fewer than 2 images (4 where debiased), or where x and y have not the same number.
    """
    return Comoments().update(x, y).cka(debiased)


def cka_over_images(
    x: Float[Array, "n_x width_x"], y: Float[Array, "n_y width_y"], debiased: bool = False, level: float = 0.95
) -> Estimate:
    """`linear_cka` with its interval over images, by `helpers.measures.stats.jackknife`.

    Images drawn with replacement come twice, and copies are alike in both representations: of 256 pairs of independent 192-d
    features CKA is 0.43, and after such draws 0.58 to 0.62. The interval is one for CKA of this many images, whose bias it keeps,
    and has no ends where CKA is nan without one of the images. Costs about as much as CKA itself.

    Raises ValueError for fewer than 3 images (5 where debiased), or where x and y have not the same number.
    """
    return jackknife(*_with_and_without(x, y, debiased), (-1 if debiased else 0, 1), level)


def cka_difference(
    first: tuple[Float[Array, "n_x width_x"], Float[Array, "n_y width_y"]],
    second: tuple[Float[Array, "n_z width_z"], Float[Array, "n_w width_w"]],
    debiased: bool = False,
    level: float = 0.95,
) -> Estimate:
    """`linear_cka` of the `first` two representations minus that of the `second` two, of the same images, and its interval.

    Paired: each image is left out of both. Raises ValueError as `cka_over_images`, and where the images are not as many.
    """
    one, other = (_with_and_without(x, y, debiased) for x, y in (first, second))
    if len(one[1]) != len(other[1]):
        raise ValueError(f"{len(one[1])} and {len(other[1])} images do not go together; give representations of the same images")
    return jackknife(one[0] - other[0], one[1] - other[1], (-2, 2) if debiased else (-1, 1), level)


class Floor(NamedTuple):
    """What CKA is where the images of x and y do not belong together: the mean, and a high quantile, over permutations."""

    mean: float
    high: float
    permutations: int


def cka_floor(
    x: Float[Array, "n_x width_x"],
    y: Float[Array, "n_y width_y"],
    debiased: bool = False,
    permutations: int = 100,
    quantile: float = 0.95,
    seed: int = 0,
) -> Floor:
    """`linear_cka` after seeded permutations of the images of y, which leave each representation as it is; nan where one is
    constant. Each permutation costs one product of the features; the mean over all of them costs nothing (`Comoments.floor`).

    Raises ValueError as `linear_cka` does, and for fewer than one permutation.
    """
    if permutations < 1:
        raise ValueError(f"{permutations} permutations; give at least 1")
    x, y = map(_centred, _paired(x, y))
    _require(len(x), debiased)
    rng = np.random.default_rng(seed)
    scale = _hsic_of(x, x, debiased) * _hsic_of(y, y, debiased)
    draws = [_ratio(_hsic_of(x, y[rng.permutation(len(y))], debiased), scale) for _ in range(permutations)]
    return Floor(float(np.mean(draws)), float(np.quantile(draws, quantile)), permutations)


class _Sums(NamedTuple):
    """Of centred features: ||X'Y||^2; the sums of |x|^2 |y|^2, of |x|^2 and of |y|^2 over the images; and their number."""

    squared: float
    products: float
    total_x: float
    total_y: float
    n: float


def _hsic(squared, products, total_x, total_y, n, debiased):
    """HSIC of the features that the `_Sums` belong to, times (n - 1)^2; debiased, times n (n - 3).

    Song et al. 2012, eq. 5, for XX' and YY' with their diagonals set to zero: the rows of these then sum to -|x|^2 and -|y|^2.
    """
    return squared - n / (n - 2) * products + total_x * total_y / ((n - 1) * (n - 2)) if debiased else squared


def _hsic_of(x: np.ndarray, y: np.ndarray, debiased: bool) -> float:
    """Of centred features."""
    a, b = (x**2).sum(axis=1), (y**2).sum(axis=1)
    return _hsic(((x.T @ y) ** 2).sum(), a @ b, a.sum(), b.sum(), len(x), debiased)


def _hsic_without_each(x: np.ndarray, y: np.ndarray, debiased: bool) -> np.ndarray:
    """Of centred features, for each image: what it is without that image.

    The others have their mean at -x_i / m where m = n - 1, so X'Y loses (n / m) x_i y_i', and |x_j|^2 becomes
    |x_j|^2 + 2 x_i.x_j / m + |x_i|^2 / m^2.
    """
    n, m, c, a, b = len(x), len(x) - 1, x.T @ y, (x**2).sum(axis=1), (y**2).sum(axis=1)
    along, product = ((x @ c) * y).sum(axis=1), a * b
    squared = (c**2).sum() - 2 * n / m * along + (n / m) ** 2 * product
    products = a @ b - product + 2 / m * (x @ (b @ x) + y @ (a @ y) - 2 * product)
    products += (b * a.sum() + a * b.sum() + 4 * along - 6 * product) / m**2 - 3 * product / m**3
    return _hsic(squared, products, a.sum() - n / m * a, b.sum() - n / m * b, m, debiased)


def _with_and_without(x: Array, y: Array, debiased: bool) -> tuple[float, np.ndarray]:
    """CKA of all images, and without each of them."""
    value, (x, y) = linear_cka(x, y, debiased), map(_centred, _paired(x, y))
    _require(len(x), debiased, spare=1)
    xy, xx, yy = (_hsic_without_each(a, b, debiased) for a, b in ((x, y), (x, x), (y, y)))
    return value, _ratio(xy, xx * yy)


def _ratio(hsic, scale):
    """`hsic` over the root of `scale`; nan where that is no positive number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(scale > 0, hsic / np.sqrt(scale), np.nan)


def _augmented(z: np.ndarray) -> np.ndarray:
    """Rows (z, |z|^2, 1)."""
    return np.hstack([z, (z**2).sum(axis=1, keepdims=True), np.ones((len(z), 1))])


def _moved(sums: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same sums of products with x + a in the place of x and y + b in the place of y."""
    for shift in (a, b):
        sums = sums.copy()
        sums[-2] += 2 * shift @ sums[:-2] + shift @ shift * sums[-1]
        sums[:-2] += np.outer(shift, sums[-1])
        sums = sums.T
    return sums


def _centred(z: np.ndarray) -> np.ndarray:
    z = z - z[:1]  # first, so that what is constant becomes exactly zero
    return z - z.mean(axis=0) if len(z) else z


def _paired(x: Array, y: Array) -> tuple[np.ndarray, np.ndarray]:
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} images do not go together; give both representations of the same images")
    return to_numpy(x).astype(np.float64), to_numpy(y).astype(np.float64)


def _require(n: int, debiased: bool, spare: int = 0) -> None:
    least = (4 if debiased else 2) + spare
    if n < least:
        what, remedy = ("debiased CKA", " or use debiased=False") if debiased else ("CKA", "")
        interval = "the interval of " if spare else ""
        raise ValueError(f"{interval}{what} needs at least {least} images, not {n}; give more images{remedy}")
