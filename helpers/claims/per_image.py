"""What each value of a result takes of each image: `<id>.images.parquet` beside the result.

A row holds one number of one image. Values of which an image gives more than a few numbers, such as
the norms of all its patches, and plain numbers, such as a p-value, have no rows.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.files import digest_of

FOLDER = "REGISTERS_RUN_FOLDER"  # the environment variable by which a run says where to write
NAME = "images.parquet"
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
    "number": "What the image gives, as a 32-bit float. Not a number where it gives none.",
}


def write(
    folder: Path, found: Iterable[tuple[str, str, str | None, Any]], images: Iterable[Any]
) -> None:
    """Write the numbers into `folder`.

    Args:
        found: model, name of the value, its data set, and what it takes of each image.
        images: the `Images` behind the result. A value's pictures are those of the one set that is
            called like its data set and has as many images.
    """
    pictures: dict[tuple[str, int], set[tuple[str, ...]]] = {}
    for one in images:
        own = tuple(digest_of(x, length=16) for x in one.contents or one.ids)
        pictures.setdefault((one.name, len(own)), set()).add(own)
    frames = []
    for model, value, dataset, taken in found:
        for part, numbers in enumerate(taken.pieces):
            n = len(numbers)
            known = pictures.get((dataset or "", n), set())
            frames.append(
                pd.DataFrame(
                    {
                        "model": model,
                        "dataset": dataset,
                        "value": value,
                        "part": part,
                        "image": range(n),
                        "picture": next(iter(known)) if len(known) == 1 else None,
                        "number": np.asarray(numbers, np.float32),
                    }
                )
            )
    table = pd.concat(frames) if frames else pd.DataFrame(columns=[*COLUMNS])
    table.to_parquet(folder / NAME, index=False, compression="zstd")
