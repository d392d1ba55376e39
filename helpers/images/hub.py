"""A large split on the hub, of which only the rows are fetched that are asked for.

ImageNet's training images are 294 Parquet files of half a gigabyte. What names and labels an image
are small columns, which are read of all rows; of the images themselves only the groups of rows are
fetched that hold a chosen one, and only the chosen ones are kept, in the cache of the `datasets`
library.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.extras import extra
from helpers.images.rows import ID_COLUMNS, image_column

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

AT_ONCE = 8  # files that are read at a time
LIFTED = ID_COLUMNS[-1]  # where the images' own file names stand in `Split.names`


class Split:
    """The rows of some Parquet files, in their order.

    Attributes:
        names: a table of all rows with all that is a number or a text; in place of the images,
            nothing.
    """

    def __init__(self, files: Sequence[str], features: "datasets.Features | None", name: str):
        """`files` as fsspec opens them: 'hf://...' or a path.

        `features` of the data set where they are known.

        Raises ValueError where there is no image column in `name`.
        """
        datasets, pa = extra("datasets"), extra("pyarrow")
        self.files = list(files)
        with _parquet(self.files[0]) as first:
            self.features = features or datasets.Features.from_arrow_schema(first.schema_arrow)
        image = image_column(self.features, name)
        kinds = {
            key: kind
            for key, kind in self.features.items()
            if isinstance(kind, datasets.Value | datasets.ClassLabel)
        }
        parts = list(_together(lambda file: _columns(file, [*kinds, f"{image}.path"]), self.files))
        self._ends = np.cumsum([len(part) for part in parts])
        table = pa.concat_tables(parts)
        paths = extra("pyarrow.compute").struct_field(table.column(image), "path")
        columns = {key: table.column(key) for key in kinds}
        if LIFTED not in columns and not any(
            path and os.path.isabs(path) for path in paths.to_pylist()
        ):
            columns[LIFTED], kinds[LIFTED] = paths, datasets.Value("string")
        kinds[image] = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
        columns[image] = pa.nulls(
            len(table), pa.struct({"bytes": pa.binary(), "path": pa.string()})
        )
        self.names = datasets.Dataset(
            pa.table(columns), info=datasets.DatasetInfo(features=datasets.Features(kinds))
        )

    def select(self, rows: Sequence[int]) -> "datasets.Dataset":
        """These rows in full, in their order here: fetched, or as they were fetched before."""
        order, parts = np.argsort(rows), []
        file = np.searchsorted(self._ends, np.asarray(rows)[order], side="right")
        starts = np.concatenate([[0], self._ends])[file]
        for index in np.unique(file).tolist():
            own = np.asarray(rows)[order][file == index] - starts[file == index]
            parts.append((self.files[index], own.tolist()))
        fetched = extra("datasets").Dataset.from_generator(
            _rows, features=self.features, gen_kwargs={"parts": parts}
        )
        return fetched.select(np.argsort(order))


def _rows(parts: Sequence[tuple[str, list[int]]]) -> Iterator[dict[str, Any]]:
    """The rows of each file whose indices there are given, ascending."""
    for table in _together(_chosen, parts):
        yield from table.to_pylist()


def _chosen(part: tuple[str, list[int]]) -> "pa.Table":
    """Rows of one file, of which only the groups are read that hold one of them."""
    path, rows = part
    found, first = [], 0
    with _parquet(path) as file:
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            own = [row - first for row in rows if first <= row < last]
            if own:
                found.append(file.read_row_group(group).take(own))
            first = last
    return extra("pyarrow").concat_tables(found)


def _columns(path: str, columns: list[str]) -> "pa.Table":
    with _parquet(path) as file:
        return file.read(columns=columns).replace_schema_metadata(None)


def _together(function: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[Any]:
    """The answers in the order of the items, with at most AT_ONCE of them in memory."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(items), AT_ONCE):
            yield from pool.map(function, items[start : start + AT_ONCE])


@contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """A Parquet file, here or on the hub, of which no more is read than what is asked for."""
    files, place = extra("fsspec.core").url_to_fs(path)
    with files.open(place, "rb", cache_type="none") as opened:
        yield extra("pyarrow.parquet").ParquetFile(opened, pre_buffer=True)
