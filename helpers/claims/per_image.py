"""What each value of a result takes of each image: `<id>.images.parquet` beside the result.

A row holds one number of one image. From the rows of a value and the options in the file's metadata
its interval follows (`Numbers.estimate`), and two results on the same images can be compared image
by image. Values of which an image gives more than a few numbers, such as the norms of all its
patches, and plain numbers, such as a p-value, have no rows.
"""

import io
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from helpers.extras import extra
from helpers.files import digest_of

if TYPE_CHECKING:
    from helpers.images.sets import Images
    from helpers.measures.stats import Estimate, PerImage

HEAD = b"registers"  # of the metadata: JSON, deflated and in base64
BITS = 17  # of a number that are kept, since the others do not compress
MOVED = 1e-5  # of an estimate or its interval's width, by which so many bits may move it
FORMAT = 1
PAGE = 2**28  # bytes and rows, of which no result has as many
ENCODED = {"image": "DELTA_BINARY_PACKED", "picture": "PLAIN", "number": "BYTE_STREAM_SPLIT"}
COLUMNS = {  # as the book's dictionary describes them
    "model": "The checkpoint.",
    "dataset": "The set of images.",
    "value": "The name of the value, as in the result.",
    "part": "Which of several numbers of an image it is, from 0: a column of a ratio, a group of "
    "images, or a training.",
    "image": "The place of the image in its set, from 0.",
    "picture": "A digest of the picture as it was loaded: of its pixels, or of its name where it "
    "is drawn here; empty where the value is of a choice of images, whose places in the set are "
    "not known.",
    "number": "What the image gives, as a 32-bit float, to 17 bits (five digits) where the value "
    "and its interval follow from that too. Not a number where it gives none.",
}


class Numbers(NamedTuple):
    """The numbers of one value.

    Attributes:
        per_image: as the measures take them.
        pictures: a digest of each image, in the order of its pieces; None where they are unknown.
    """

    per_image: "PerImage"
    pictures: tuple[str, ...] | None

    def estimate(self) -> "Estimate":
        """The value with its interval, as they follow from the numbers."""
        return self.per_image.estimate()


def packed(
    found: Iterable[tuple[str, str, str | None, "PerImage"]], images: Iterable["Images"]
) -> bytes:
    """The file's content.

    Args:
        found: model, name of the value, its data set, and what it takes of each image.
        images: the sets behind the result. A value's pictures are those of the one set that is
            called like its data set and has as many images.
    """
    pa, pq = extra("pyarrow"), extra("pyarrow.parquet")
    digests: dict[tuple[str, int], set[tuple[str, ...]]] = {}
    for one in images:
        own = tuple(digest_of(x, length=16) for x in one.contents or one.ids)
        digests.setdefault((one.name, len(own)), set()).add(own)
    told, columns = [], {name: [] for name in COLUMNS}
    for model, value, dataset, own in found:
        about = {"model": model, "dataset": dataset, "value": value}
        told.append({**about, "how": own.how, "options": own.options, "parts": len(own.pieces)})
        for part, piece in enumerate(_rounded(own).pieces):
            n, known = len(piece), digests.get((dataset or "", len(piece)), set())
            rows = {name: [x] * n for name, x in (about | {"part": part}).items()}
            rows |= {"image": range(n), "number": piece}
            rows["picture"] = next(iter(known)) if len(known) == 1 else [None] * n
            for name in COLUMNS:
                columns[name].extend(rows[name])
    types = dict.fromkeys(COLUMNS, pa.string())
    types |= {"part": pa.int16(), "image": pa.int32(), "number": pa.float32()}
    table = pa.table({name: pa.array(columns[name], type) for name, type in types.items()})
    head = json.dumps({"format": FORMAT, "values": told}, allow_nan=False)
    # Images and pictures come again with each value: in one page of whole bytes zstd finds them.
    layout = {"use_dictionary": ["model", "dataset", "value", "part"], "column_encoding": ENCODED}
    layout |= {"data_page_size": PAGE, "max_rows_per_page": PAGE}
    layout |= {"compression": "zstd", "compression_level": 19, "store_schema": False}
    file = io.BytesIO()
    with pq.ParquetWriter(file, table.schema, **layout) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({HEAD: b64encode(zlib.compress(head.encode(), 9))})
    return file.getvalue()


def read(content: bytes) -> dict[tuple[str, str], Numbers]:
    """(model, name of the value) -> its numbers.

    Raises ValueError where the content is no such file.
    """
    pq, pa = extra("pyarrow.parquet"), extra("pyarrow")
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        told = json.loads(zlib.decompress(b64decode((file.metadata.metadata or {})[HEAD])))
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']}, not {FORMAT}")
        pieces = file.read().to_pandas().groupby(["model", "value", "part"], sort=False)
        found = {key: own for key, own in pieces[["number", "picture"]]}
        return {(one["model"], one["value"]): _numbers(one, found) for one in told["values"]}
    except (pa.ArrowException, KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"these are no numbers of images ({error}); run the claim again") from None


def _rounded(own: "PerImage") -> "PerImage":
    """With numbers rounded, where the estimate stays: thirds are told from others by all bits."""
    short = replace(own, pieces=tuple(map(_shortened, own.pieces)))
    full, found = (one.estimate()[:3] for one in (own, short))
    most = MOVED * np.nanmax([abs(full[0]), full[2] - full[1], 0])
    return short if np.allclose(full, found, rtol=0, atol=most, equal_nan=True) else own


def _shortened(numbers: np.ndarray) -> np.ndarray:
    """Numbers (row,) rounded to `BITS` bits, infinite ones as they are."""
    parts, exponents = np.frexp(numbers.astype(np.float64))
    rounded = np.ldexp(np.round(parts * 2**BITS), exponents - BITS)
    return np.where(np.isfinite(numbers), rounded, numbers).astype(np.float32)


def _numbers(one: Mapping, found: Mapping[tuple[str, str, int], Any]) -> Numbers:
    """What the file holds of one value; `found` has its numbers and pictures, part by part."""
    from helpers.measures.stats import PerImage  # here: `check` and `compare` need no torch

    own = [found[one["model"], one["value"], part] for part in range(one["parts"])]
    names = [*own[0]["picture"]]
    pictures = tuple(names) if all(isinstance(x, str) for x in names) else None
    rows = tuple(piece["number"].to_numpy() for piece in own)
    return Numbers(PerImage(one["how"], one["options"], rows), pictures)
