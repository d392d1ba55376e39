"""Family: what a library or format of models supplies beside its Backbone.

`load_backbone` reads its names.
"""

from collections.abc import Callable
from dataclasses import dataclass

from helpers.models.backbone import Backbone

Size = tuple[int, int]  # height and width in pixels
# What `whole` replaces in the recipe of a timm model: both sides are resized on their own, and
# there is no margin.
WHOLE = {"crop_mode": "squash", "crop_pct": 1.0}


@dataclass(frozen=True)
class Family:
    """A source of models, registered in helpers/models/load.py.

    Attributes:
        prefixes: how its names begin.
        forms: how they look, for a message.
        known: (name, pretrained) -> whether it is the name of a model, without loading anything.
        names: the models that may be suggested in place of an unknown name.
        load: (name, size, pretrained, whole, fit), as in `load_backbone`, -> Backbone, still with
            gradients.
        absent: name -> why an unknown name is not there, where the nearest name is no answer; ''
            where it is.
    """

    prefixes: tuple[str, ...]
    forms: tuple[str, ...]
    known: Callable[[str, bool], bool]
    names: Callable[[], list[str]]
    load: Callable[[str, Size | None, bool, bool, bool], Backbone]
    absent: Callable[[str], str] = lambda name: ""


def fitting(name: str, size: Size, patch: tuple[int, int], fit: bool) -> Size:
    """The image size that the patches divide.

    Raises ValueError where they do not, and it must not be rounded.
    """
    if fit:
        size = tuple(max(1, s // p) * p for s, p in zip(size, patch, strict=True))
    if any(s < p or s % p for s, p in zip(size, patch, strict=True)):
        near = [
            sorted({max(s // p, 1) * p, max(-(-s // p), 1) * p})
            for s, p in zip(size, patch, strict=True)
        ]
        hint = " and ".join(
            " or ".join(map(str, n)) for n in (near if near[0] != near[1] else near[:1])
        )
        raise ValueError(
            f"image size {size[0]}x{size[1]} is not divisible by the patch size "
            f"{patch[0]}x{patch[1]} of '{name}'; use {hint}"
        )
    return size
