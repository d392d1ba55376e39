"""Values as a notebook collects them, what they take of each image, and the claim that judges.

`<id>.images.parquet` beside a result holds one number of one image a row, with a digest of its
picture where that is known; `part` tells apart several numbers of an image, such as those of
several trainings. Values of which an image gives many, and plain numbers, have no rows.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.claims.claim import Claim
from helpers.claims.criteria import INTERVAL, Value
from helpers.claims.result import Result, by_model, judge
from helpers.files import digest_of

FOLDER = "REGISTERS_RUN_FOLDER"  # the environment variable by which a run says where to write
NAME = "images.parquet"
COLUMNS = ["model", "dataset", "value", "part", "image", "picture", "number"]


class Values(list[Value]):
    """The measured values of one claim's notebook, in the order in which they were added.

    Attributes:
        claim: by which they are judged.
        dataset: on which they were measured, where `add` says no other.
    """

    def __init__(self, claim: Claim, dataset: str):
        super().__init__()
        self.claim, self.dataset = claim, dataset
        self._per_image: list[tuple[str, str, str | None, Any]] = []

    def add(
        self, model: str, estimates: Mapping[str, Any], *, dataset: str | None = None, end: str = ""
    ) -> None:
        """Add name -> estimate or plain number of one model; `end` is put after each name.

        An interval of a single image is left out: `1 [1, 1]` would tell of a false certainty.
        """
        for name, x in estimates.items():
            value = Value.of(name + end, x, model=model, dataset=dataset or self.dataset)
            self.append(value.of_enough(2))
            if getattr(x, "per_image", None) is not None:
                self._per_image.append((model, value.name, value.dataset, x.per_image))

    def of(
        self,
        name: str,
        models: Iterable[str] | None = None,
        called: Mapping[str, str] | None = None,
    ) -> list[Value | None]:
        """The value called `name` of each of the models, None where it has none.

        Args:
            models: unless given, those that have it.
            called: model -> what figures call it, where that is not its name.
        """
        named = called or {}
        own = {
            value.model: replace(value, model=named.get(value.model, value.model))
            for value in self
            if value.name == name
        }
        return [own.get(model) for model in (own if models is None else models)]

    def curve(self, model: str, names: Iterable[str]) -> tuple[list, list, list]:
        """Values, lower and upper ends of one model's values, as `figures.response` draws them."""
        own = by_model(self).get(model, {})
        curve = [own[name] for name in names]
        return tuple([getattr(value, part) for value in curve] for part in INTERVAL)

    def judge(
        self,
        captured: Mapping[str, Any],
        images: Sequence[Any],
        not_run: Mapping[str, str] | None = None,
    ) -> Result:
        """The verdict, with its sources; a run keeps what the values take of each image.

        Args:
            captured: model -> what `capture_each` kept of it, or anything else with a `source`.
            images: every set behind the values: those measured, learnt from and searched.
            not_run: model -> why it could not be had.
        """
        sources = [*(one.source for one in captured.values()), *(x.describe() for x in images)]
        once = {str(source): source for source in sources}
        if folder := os.environ.get(FOLDER):
            write_per_image(Path(folder), self._per_image, images)
        return judge(self.claim, self, list(once.values()), not_run)


class RegisteredClaim(Claim):
    """A claim as `load_registry` gives it to a notebook: it collects values and judges them."""

    def values(self, dataset: str) -> Values:
        """An empty collection for what is measured of this claim on `dataset`."""
        return Values(self, dataset)

    def verdict_on(self, model: str, estimates: Mapping[str, Any], end: str = "") -> str:
        """The verdict that is shown of `model` alone.

        Args:
            estimates: name -> estimate or plain number; that with `end` behind its name is taken
                where there is one.
        """
        tests = (*self.criterion.applies, *self.criterion.tests)
        named = (x for test in tests if test.concerns(model) for x in (test.value, test.baseline))
        names = {name: name + end for name in named if name}
        values = self.values("")
        values.add(
            model, {name: estimates[x if x in estimates else name] for name, x in names.items()}
        )
        return self.judge(values).shown[""]

    def judge(
        self,
        values: Iterable[Value],
        sources: Sequence[dict] = (),
        not_run: Mapping[str, str] | None = None,
    ) -> Result:
        """The verdict on measured values, see `helpers.claims.result.judge`."""
        return judge(self, values, sources, not_run)


def write_per_image(
    folder: Path, found: Iterable[tuple[str, str, str | None, Any]], images: Iterable[Any]
) -> None:
    """Write what values take of each image into `folder`.

    Args:
        found: model, name of the value, its data set, and what it takes of each image.
        images: the `Images` behind the result. A value's pictures are those of the one set that is
            called like its data set and has as many images.
    """
    pictures: dict[tuple[str | None, int], set[tuple[str, ...]]] = defaultdict(set)
    for one in images:
        own = tuple(digest_of(x, length=16) for x in one.contents or one.ids)
        pictures[one.name, len(own)].add(own)
    frames = [pd.DataFrame(columns=COLUMNS)]
    for model, value, dataset, taken in found:
        for part, numbers in enumerate(taken.pieces):
            frame = pd.DataFrame({"number": np.asarray(numbers, np.float32)})
            known = pictures[dataset, len(frame)]
            picture = next(iter(known)) if len(known) == 1 else None
            frame = frame.assign(model=model, dataset=dataset, value=value, part=part)
            frames.append(frame.assign(image=frame.index, picture=picture)[COLUMNS])
    table = pd.concat(frames[1:] or frames)
    table.to_parquet(folder / NAME, index=False, compression="zstd")
