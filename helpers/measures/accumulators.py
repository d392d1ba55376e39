"""Summaries of any number of images in bounded memory: moments, histogram, quantiles and the largest values.

Each takes a batch with `update` and another summary of the same kind with `merge`, and both return the summary itself, as
`similarity.Comoments` does. A set of images divided in any way and merged in order gives what one pass over all of them gives: to
the bit for counts and largest values, up to the rounding of float64 sums for moments. `empty` gives another one of the same kind,
so that parts can be made elsewhere: to merge one that has a single batch is, to the bit, to update with that batch.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64, Num

from helpers.measures._arrays import Array, to_numpy


class Moments:
    """Mean, variance, smallest and largest value over images of each entry of (image, ...), in float64.

    Batches are joined by the update of Chan, Golub and LeVeque (1983), which loses no precision to a large mean.
    """

    def __init__(self) -> None:
        self.n = 0
        self.mean: Any = math.nan
        self._squares: Any = math.nan
        self.smallest: Any = math.nan
        self.largest: Any = math.nan

    @property
    def variance(self) -> Float64[np.ndarray, "..."]:
        """With n - 1 in the denominator; nan for fewer than two images."""
        return self._squares / (self.n - 1) if self.n > 1 else self.mean * math.nan

    def empty(self) -> "Moments":
        """Another one without images, which can be merged into this one."""
        return Moments()

    def update(self, values: Float[Array, "image ..."]) -> "Moments":
        """Add images. Raises ValueError where they have another shape than those before."""
        values = to_numpy(values).astype(np.float64)
        if len(values):
            batch = Moments()
            batch.n, batch.mean = len(values), values.mean(0)
            batch._squares = np.square(values - batch.mean).sum(0)
            batch.smallest, batch.largest = values.min(0), values.max(0)
            self.merge(batch)
        return self

    def merge(self, other: "Moments") -> "Moments":
        """Add the images of another. Raises ValueError where they have another shape."""
        if not self.n or not other.n:
            vars(self).update(vars(other) if other.n else {})
            return self
        if np.shape(self.mean) != np.shape(other.mean):
            raise ValueError(f"images of shape {np.shape(other.mean)} do not go with those of shape {np.shape(self.mean)}")
        n, apart = self.n + other.n, other.mean - self.mean
        self._squares = self._squares + other._squares + np.square(apart) * (self.n * other.n / n)
        self.mean = self.mean + apart * (other.n / n)
        self.smallest, self.largest = np.minimum(self.smallest, other.smallest), np.maximum(self.largest, other.largest)
        self.n = n
        return self


class Histogram:
    """How many values fall into each bin, left edge included, of all entries of all images.

    Attributes:
        counts: (bins,); `below` and `above` count what lies outside the edges (the last edge counts as above).
    """

    def __init__(self, edges: Sequence[float] | Num[Array, " edge"]):
        """`edges` increase strictly. Raises ValueError where they do not, or are fewer than two."""
        self.edges = np.asarray(edges, dtype=np.float64)
        if len(self.edges) < 2 or not (np.diff(self.edges) > 0).all():
            raise ValueError(f"the edges of a histogram must increase, and be at least two; got {self.edges.tolist()}")
        self._counts = np.zeros(len(self.edges) + 1, dtype=np.int64)

    @property
    def counts(self) -> Int64[np.ndarray, " bin"]:
        """Values in each bin."""
        return self._counts[1:-1]

    @property
    def below(self) -> int:
        """Values below the first edge."""
        return int(self._counts[0])

    @property
    def above(self) -> int:
        """Values at the last edge and above it."""
        return int(self._counts[-1])

    def empty(self) -> "Histogram":
        """Another one with these edges, without values."""
        return Histogram(self.edges)

    def update(self, values: Float[Array, "..."]) -> "Histogram":
        """Add values. Raises ValueError for NaN."""
        places = np.searchsorted(self.edges, _numbers(values), side="right")
        self._counts += np.bincount(places, minlength=len(self._counts))
        return self

    def merge(self, other: "Histogram") -> "Histogram":
        """Add the values of another. Raises ValueError where it has other edges."""
        if not np.array_equal(self.edges, other.edges):
            raise ValueError("two histograms with different edges cannot be merged; make both with the same")
        self._counts = self._counts + other._counts
        return self


class Quantiles:
    """Quantiles of all entries of all images, each within a relative error: a count for each bucket of a logarithmic scale.

    The scale of DDSketch (Masson, Rim and Lee 2019), which suits norms and attention: they are not negative and span orders of
    magnitude. Unlike a sampling sketch it gives the same answer however the images are divided.
    """

    def __init__(self, error: float = 0.005, smallest: float = 1e-12):
        """`error`: largest relative error, in (0, 1); `smallest`: what is below counts as zero. Raises ValueError otherwise."""
        if not 0 < error < 1 or not 0 < smallest < math.inf:
            raise ValueError(f"error {error} must lie between 0 and 1, and smallest {smallest} be positive")
        self.error, self.smallest = error, smallest
        self._step = math.log((1 + error) / (1 - error))
        self._counts: dict[int, int] = {}
        self._zeros = 0

    @property
    def n(self) -> int:
        """Number of values so far."""
        return self._zeros + sum(self._counts.values())

    def empty(self) -> "Quantiles":
        """Another one with this error, without values."""
        return Quantiles(self.error, self.smallest)

    def update(self, values: Float[Array, "..."]) -> "Quantiles":
        """Add values. Raises ValueError for NaN, infinity and negative values."""
        values = _numbers(values)
        if values.size and (values.min() < 0 or not math.isfinite(values.max())):
            raise ValueError(f"quantiles are kept of finite values that are not negative; got {values.min()} to {values.max()}")
        positive = values[values >= self.smallest]
        self._zeros += values.size - positive.size
        for bucket, count in zip(*np.unique(np.ceil(np.log(positive) / self._step), return_counts=True), strict=True):
            self._counts[int(bucket)] = self._counts.get(int(bucket), 0) + int(count)
        return self

    def merge(self, other: "Quantiles") -> "Quantiles":
        """Add the values of another. Raises ValueError where it has another error."""
        if (self.error, self.smallest) != (other.error, other.smallest):
            raise ValueError("two sketches with different errors cannot be merged; make both with the same")
        self._zeros += other._zeros
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        return self

    def __call__(self, q: float) -> float:
        """The value that a share `q` of all values do not exceed (the one of rank ceil(q n)), within the relative error.

        Raises ValueError where there is no value, or q lies outside [0, 1].
        """
        if not self.n or not 0 <= q <= 1:
            raise ValueError(f"no quantile {q} of {self.n} values; q lies in [0, 1], and there must be a value")
        rank, seen = max(1, math.ceil(q * self.n)), self._zeros
        if rank <= seen:
            return 0.0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if rank <= seen:
                break
        return 2 * math.exp(bucket * self._step) / (1 + math.exp(self._step))


class Largest(NamedTuple):
    """One of the largest values: the image it is of, and its place in the image's entries in row-major order."""

    value: float
    image: int
    place: int


class TopK:
    """The `k` largest entries of all images, largest first; of equal ones the first in order of images and places."""

    def __init__(self, k: int):
        """Raises ValueError for k below 1."""
        if k < 1:
            raise ValueError(f"k = {k}: keep at least one value")
        self.k, self.n, self.largest = k, 0, list[Largest]()

    def empty(self) -> "TopK":
        """Another one for as many values, without images."""
        return TopK(self.k)

    def update(self, values: Float[Array, "image ..."]) -> "TopK":
        """Add images. Raises ValueError for NaN."""
        values = to_numpy(values)
        rows = _numbers(values).reshape(len(values), math.prod(values.shape[1:]))
        order = np.argsort(-rows, axis=None, kind="stable")[: self.k]
        found = [Largest(float(rows.flat[i]), *map(int, np.unravel_index(i, rows.shape))) for i in order]
        return self._join(found, len(rows))

    def merge(self, other: "TopK") -> "TopK":
        """Add the images of another, which come after the own. Raises ValueError where it keeps another number."""
        if self.k != other.k:
            raise ValueError(f"the {other.k} largest values cannot be merged with the {self.k} largest; keep the same number")
        return self._join(other.largest, other.n)

    def _join(self, found: list[Largest], images: int) -> "TopK":
        moved = [one._replace(image=one.image + self.n) for one in found]
        self.largest = sorted([*self.largest, *moved], key=lambda one: (-one.value, one.image, one.place))[: self.k]
        self.n += images
        return self


def _numbers(values: Float[Array, "..."]) -> Float64[np.ndarray, " value"]:
    """All entries, flat. Raises ValueError for NaN."""
    flat = to_numpy(values).astype(np.float64).ravel()
    if np.isnan(flat).any():
        raise ValueError("a value is not a number; look at what was captured")
    return flat
