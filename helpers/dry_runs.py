"""What a kernel does in a dry run: stand-ins are loaded for models and images, and each capture tells what it would cost.

It is loaded as an extension of IPython; no notebook imports it. `helpers.publish.dry` sets the variable that it reads, reads what
it writes, and throws the notebook away: what was measured on stand-ins is no result.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

CAPTURES = "REGISTERS_DRY"  # the file in which to put a line of JSON for each capture
BLOCKS = 4  # of a stand-in: as many as a profile names from the end
PATCHES = 13  # of a stand-in along a side: a number that no model has heads, registers or channels of

_inside = ExitStack()  # never left: a kernel computes dry until it ends


class Told:
    """An engine of `helpers.capture.capture` that computes here and writes into `path` what was asked: the model and what it
    costs, the number of images, and what this and earlier captures hold now."""

    def __init__(self, path: Path):
        self.path = path
        self.held = list[tuple[Any, int, int]]()  # what is kept of some images: where it lies, how many they are, numbers of one

    def __call__(self, backbone: Any, images: Any, reducers: Any, **options: Any) -> dict[str, Any]:
        """As `capture` with these arguments."""
        from torch.multiprocessing.reductions import StorageWeakRef

        from helpers.capture import capture

        kept = capture(backbone, images, reducers, **options)
        for key, numbers in _kept(backbone, reducers, kept).items():
            self.held.append((StorageWeakRef(kept[key].untyped_storage()), len(images), numbers))
        self.held = [one for one in self.held if not one[0].expired()]
        held = Counter[int]()
        for _, size, numbers in self.held:
            held[size] += numbers
        line = {"model": backbone.name, "images": len(images), "held": [*held.items()]}
        if (whole := backbone.stands_for) is not None:
            names = ("image_size", "depth", "width", "widest", "parameters", "flops")
            line |= {name: getattr(whole, name) for name in names} | {"tokens": whole.layout.tokens}
        with self.path.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)
        return kept


def _kept(backbone: Any, reducers: Any, kept: dict[str, Any]) -> dict[str, int]:
    """Key -> numbers that are kept of one image by the model that `backbone` stands for: where a dimension is the blocks, tokens,
    patches or side of the stand-in, it is taken as that of the model."""
    of, whole = backbone.layout, backbone.stands_for
    if whole is None:
        return {key: tensor[0].numel() for key, tensor in kept.items()}
    to = whole.layout
    sizes = {of.tokens: to.tokens, of.patches: to.patches, of.grid[0]: to.grid[0]}
    numbers = {}
    for reducer in reducers:
        for key in kept.keys() & {*reducer.keys}:  # the others went into a summary
            shape = [sizes.get(size, size) for size in kept[key].shape[1:]]
            if reducer.blocks == "all" and shape:
                shape[0] = whole.depth
            numbers[key] = math.prod(shape)
    return numbers


@contextmanager
def dry(path: Path) -> Iterator[None]:
    """Inside, models and images are stand-ins, and each capture writes a line into `path`.

    Stand-ins for images have labels and no names of classes: a published head refuses images of other classes than its own.
    """
    from helpers import capture, images, models  # here, since a dry run alone needs them before the notebook does

    nameless = mock.patch.object(images.sets, "CLASS_NAMES", [])
    with models.stand_ins(BLOCKS, PATCHES), images.stand_ins(), nameless, capture.computed_by(Told(path)):
        yield


def load_ipython_extension(_: Any) -> None:
    """From now on the kernel computes dry, where the variable says so."""
    if path := os.environ.get(CAPTURES):
        _inside.enter_context(dry(Path(path)))
