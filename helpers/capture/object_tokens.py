"""Tokens on objects and tokens off them, of two sets of images, for a probe that tells them apart
in one set and is tested in the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.capture.engine import capture
from helpers.capture.passes import Captured, backbones
from helpers.capture.reducers import Reducer, SelectedTokens
from helpers.measures.one_token import PatchTokens
from helpers.measures.registers import object_places
from helpers.models import Backbone, ModelUnavailable


@dataclass(frozen=True)
class ObjectTokens(Captured):
    """What `object_tokens` kept of one model.

    `tensors` has what the reducers asked for, of the tested images.

    Attributes:
        learnt, tested: output tokens (after the final LayerNorm) of random patches, half of them on
            objects, of either set of images; None where it is not known where the objects are.
    """

    learnt: PatchTokens | None
    tested: PatchTokens | None


def object_tokens(
    names: Sequence[str],
    learnt: Any,
    tested: Any,
    count: int,
    reducers: Callable[[Backbone], Sequence[Reducer]] = lambda backbone: (),
    *,
    seed: int = 0,
    image_size: int | None = None,
    whole: bool = False,
    **options: Any,
) -> tuple[dict[str, ObjectTokens], dict[str, str]]:
    """Each model's tokens, loaded once, with no more than one model in memory.

    Args:
        learnt, tested: images, with `masks` of their objects or None.
        count: patches on objects of an image, and as many off them.
        reducers: what else to keep of the tested images, by model.
        seed: of the choice of patches, as in `helpers.measures.registers.object_places`.
        image_size: as in `capture_conditions`.
        whole: as in `load_backbone`.
        options: as in `capture`.

    Returns:
        model -> what was kept, and model -> why it cannot be had here.

    Raises ModelUnavailable where none can be had, and what `capture` raises.
    """
    if not names:
        raise ModelUnavailable("no model was named; give at least one")
    kept, not_run = {}, dict[str, str]()
    for backbone in backbones(names, not_run, image_size, whole=whole):
        grid, groups = backbone.layout.grid, []
        for images, more in ((learnt, ()), (tested, reducers(backbone))):
            places = object_places(images.masks, [grid], count, seed).get(grid)
            asked = [*more, *(() if places is None else (SelectedTokens(places),))]
            tensors = capture(backbone, images, asked, **options) if asked else {}
            groups.append(None if places is None else PatchTokens(places, tensors.pop("tokens")))
        kept[backbone.name] = ObjectTokens.of(backbone, tensors, *groups)
    return kept, not_run
