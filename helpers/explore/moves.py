"""Where outliers go when the picture changes and positions do not, and when positions change and
the picture does not.
"""

from contextlib import nullcontext
from typing import Any

from helpers.capture import PatchNorms, capture_conditions, capture_each
from helpers.explore.photographs import described, jpeg, shown
from helpers.images import Images
from helpers.interventions import expected_at, position_conditions
from helpers.measures.outliers import PRESENT, counts_at, placement
from helpers.models import ModelUnavailable
from helpers.quantised import quantise

PLAIN = "as it is"
CONTENT = ("constant", "noise", "rolled", "padded", "flipped", "cropped")
THUMB = (112, 112)  # pixels of the example; noise takes many bytes


def moves(
    model: str,
    images: Images,
    *,
    changed: int | None = None,
    rule: str = PRESENT,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "cpu",
) -> dict[str, Any]:
    """What the intervention switch shows of one model: how often each patch is an outlier in each
    condition, and one example.

    Conditions are those of xx2-corner-outliers, as is the threshold: `rule` put to the unchanged
    images, and kept.

    Args:
        images: those that are measured; only sums over them are kept.
        changed: the first so many are changed, all of them unless given.
        seed: of the permutation.

    Returns:
        `model`, `grid`; `limit`, the norm above which a patch is an outlier; `n`, the images in
        each condition; `usual`, the patches that most images have an outlier at; `photograph`, the
        terms of the example; `conditions`, name -> `frequency` (patch), in how many of the n images
        the patch is an outlier; `expected`, where outliers are that follow position; `count`,
        `images`, `share` and `filled` of `counts_at`, each [value, low, high]; `picture`, the
        example as JPEG in base64; `norms`, quantised, of its patches at the end; `sources`.

    Raises ModelUnavailable where its weights cannot be had, ValueError for a model without outliers
    in these images.
    """
    options = {"batch_size": batch_size, "device": device}
    captured, not_run = capture_each([model], images, [PatchNorms()], **options)
    if not_run:
        raise ModelUnavailable(not_run[model])
    c = captured[model]
    placed = placement(c["patch_norms"], c.layout.corners, rule, seed)
    if not placed.usual:
        raise ValueError(
            f"'{model}' has no outlier in {len(images)} images of {images.name!r}; choose a model "
            "that has some"
        )
    few, last = images.select(range(changed or len(images))), [PatchNorms((-1,))]
    moved = position_conditions({model: placed.usual}, seed)
    conditions = dict.fromkeys((PLAIN, *CONTENT), nullcontext) | moved
    sets = {PLAIN: few} | {kind: few.changed(kind) for kind in CONTENT} | dict.fromkeys(moved, few)
    passes, _ = capture_conditions([model], sets, last, conditions, **options)

    example = shown(c.image_size)[0][:1]
    pictures = (
        {PLAIN: example}
        | {kind: example.changed(kind) for kind in CONTENT}
        | dict.fromkeys(moved, example)
    )
    seen, _ = capture_conditions([model], pictures, last, conditions, whole=True, **options)
    told = {}
    for kind in conditions:
        mask = passes[kind][model]["patch_norms"][:, 0] > placed.limit
        expected = expected_at(c.layout, placed.usual, kind, seed)
        told[kind] = {
            "frequency": mask.sum(0).tolist(),
            "expected": expected,
            **{name: _rounded(x) for name, x in counts_at(mask, expected).items()},
            "picture": jpeg(pictures[kind][0], THUMB),
            "norms": quantise(seen[kind][model]["patch_norms"][0, 0].numpy()),
        }
    return {
        "model": model,
        "grid": list(c.layout.grid),
        "limit": round(placed.limit, 4),
        "n": len(few),
        "usual": placed.usual,
        "photograph": {key: text for key, text in described(example)[0].items() if key != "jpeg"},
        "conditions": told,
        "sources": [c.source, images.describe(), few.describe(), example.describe()],
    }


def _rounded(estimate: Any) -> list:
    return [
        None if x is None or x != x else round(float(x), 6)
        for x in (estimate.value, estimate.low, estimate.high)
    ]
