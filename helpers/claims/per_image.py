"""What each value of a result takes of each image: `<id>.images.parquet` beside the result.

A row holds one number of one image, with a digest of its picture where that is known; `part` tells
apart several numbers of an image, such as those of several trainings. Values of which an image
gives many, such as the norms of its patches, and plain numbers have no rows.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.files import digest_of

FOLDER = "REGISTERS_RUN_FOLDER"  # the environment variable by which a run says where to write
NAME = "images.parquet"
COLUMNS = ["model", "dataset", "value", "part", "image", "picture", "number"]


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
    table = pd.concat(frames) if frames else pd.DataFrame(columns=COLUMNS)
    table.to_parquet(folder / NAME, index=False, compression="zstd")
