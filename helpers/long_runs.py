"""What a kernel does besides computing while `run` executes a notebook in it: it tells the batch that it is at, and it keeps long
captures on disk, so that a run that was killed goes on from there.

It is loaded as an extension of IPython; no notebook imports it and no number hangs on it, since a capture in shards of whole
batches gives the same to the bit. `helpers.publish.kernel` sets the variables that it reads.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tqdm

BATCH = "REGISTERS_BATCH"  # the file in which to say `done total` of the batches of the present pass
SHARDS = "REGISTERS_SHARDS"  # the folder in which captures are kept; none are where it is not set
_inside = ExitStack()  # never left: a kernel keeps its captures until it ends
IMAGES = 256  # in a shard, more where a batch has more: what is lost at most when a run is killed


class Told(tqdm.tqdm):
    """A progress bar that is written into a file in place of a terminal.

    Attributes:
        before, whole: of a pass in shards the batches of the shards before this one, and of all; each shard has its own bar.
    """

    before, whole = 0, None
    monitor_interval = 0

    def __init__(self, *arguments: Any, **options: Any):
        path = os.environ.get(BATCH)
        self.path = Path(path) if path else None
        super().__init__(*arguments, **options | {"disable": path is None, "mininterval": 0.5})

    def display(self, *_: Any, **__: Any) -> None:
        """Say where it is; that nobody can read it is no reason to stop."""
        if self.total:
            self._write(f"{Told.before + self.n} {Told.whole or self.total}")

    def close(self) -> None:
        """The pass is over, and what comes next has no batches; or it is the next shard's turn."""
        if not self.disable:
            self.disable = True
            Told.before += self.n if Told.whole else 0
            if not Told.whole:
                self._write("")

    def _write(self, text: str) -> None:
        try:
            self.path.write_text(text, encoding="utf-8")
        except OSError:
            pass


class Kept:
    """An engine of `helpers.capture.capture` that computes here, and keeps each shard of a long capture below `folder`.

    Captures are told apart by their place among those of the notebook, which are the same each time it runs with the same inputs;
    `capture_shards` refuses what it would not make itself, and then the capture is computed as if nothing had been kept.
    """

    def __init__(self, folder: Path):
        self.folder, self.calls = folder, 0

    def __call__(
        self,
        backbone: Any,
        images: Any,
        reducers: Any,
        *,
        batch_size: int,
        into: Any,
        first: int,
        **options: Any,
    ) -> dict[str, Any]:
        """As `capture` with these arguments."""
        from helpers.capture import capture, capture_shards

        self.calls += 1
        options["batch_size"] = batch_size
        size = max(1, IMAGES // batch_size) * batch_size
        if into or first or len(images) <= size or not hasattr(images, "describe"):
            return capture(backbone, images, reducers, into=into, first=first, **options)
        place = self.folder / f"{self.calls:04d}"
        Told.before, Told.whole = len(list(place.glob("*.safetensors"))) * (size // batch_size), -(-len(images) // batch_size)
        try:
            shards = capture_shards(place, backbone, images, reducers, size=size, **options)
        except (ValueError, OSError):  # it cannot be kept, or cannot be computed: then this says why
            Told.whole = None
            return capture(backbone, images, reducers, **options)
        finally:
            Told.before, Told.whole = 0, None
        return _joined(shards, [key for reducer in reducers for key in reducer.keys])


def _joined(shards: Any, keys: list[str]) -> dict[str, Any]:
    """The tensors of all shards, one shard at a time beside them in memory."""
    import torch

    whole: dict[str, Any] = {}
    for index, part in enumerate(shards):
        start = index * shards.size
        for key in keys:
            if key not in whole:
                whole[key] = torch.empty(shards.images, *part[key].shape[1:])
            whole[key][start : start + len(part[key])] = part[key]
    return whole


def load_ipython_extension(_: Any) -> None:
    """Make the bars of the kernel tell where they are, and its captures keep what they have, where the variables say so."""
    tqdm.tqdm = Told
    if folder := os.environ.get(SHARDS):
        from helpers.capture import computed_by  # here, since a notebook need not capture anything

        _inside.enter_context(computed_by(Kept(Path(folder))))
