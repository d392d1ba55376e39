"""What readers can touch in the book, measured of one model: patches through the blocks, the
threshold of an outlier, and moved positions.

Each raises ModelUnavailable where the model's weights cannot be had.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from helpers.capture import (
    Captured,
    ClsAttention,
    OnPatches,
    PatchNorms,
    QKVNorms,
    Reducer,
    capture_conditions,
    register_neurons_of,
)
from helpers.images import Images, load_images
from helpers.images.changes import CHANGES
from helpers.interventions import (
    expected_at,
    neuron_conditions,
    position_conditions,
    rolled_content,
    test_time_registers,
)
from helpers.measures.norms import outliers, threshold
from helpers.measures.outliers import PRESENT, after_rolling, counts_at, placement, under_rule
from helpers.measures.similarity import neighbour_cosine
from helpers.measures.stats import Estimate
from helpers.models import load_backbone
from helpers.names import plural
from helpers.quantised import dequantise, quantise

# Three of scikit-image's photographs that may be passed on: title, author and licence, as the
# docstring of each one's function in `skimage.data` states them.
PHOTOGRAPHS = {
    "chelsea.png": ("a cat", "Stefan van der Walt", "CC0"),
    "coffee.png": ("a cup of coffee", "Rachel Michetti", "CC0"),
    "astronaut.png": ("an astronaut", "NASA", "public domain"),
}
QUALITY = 75  # of the JPEG that a page shows; models see the picture itself
SMALL = (112, 112)  # pixels of the example of `moves`; noise takes many bytes
STATES = ("before", "moved", "set to zero", "empty token")
# In medians: about a tenth apart, from what half of all patches may exceed to what hardly any patch
# does.
MULTIPLES = (
    1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.2, 2.5, 2.8, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 28,  # noqa: E501
    30, 35, 40,
)  # fmt: skip
# The claims of xx4-threshold-sensitivity -> end of the names of what is measured for it alone.
JUDGED = {
    **dict.fromkeys(
        ("nr1-artifacts", "nr2-model-size", "nr3-redundancy", "nr6-qkv-maps", "nr7-block-maps"), ""
    ),
    "so3-neighbour-similarity": "_8",
}
MEASURES = ("outlier_tokens", "outlier_images", "auc", "iou_top", "onset_depth")
RULES = ("median:3", "mad:10", "percentile:98", "fixed:150")  # of xx4; their thresholds are marked
# Claim, model, estimates, end of their names -> verdict.
Judge = Callable[[str, str, Mapping[str, Any], str], str]


def patches(model: str, *, device: str = "cpu") -> dict[str, Any]:
    """Norm and [CLS] attention of every patch after every block, the model as it is and with the
    neuron that makes its outliers moved or off, on three photographs.

    The neuron is searched on the photographs of scikit-image that are not shown. A model without
    outliers has none, and two states.

    Returns:
        `model`; `grid`; `neuron`, (block, unit) or None; `states`: "before", "moved" (the neuron
        acts at one appended token), "set to zero", "empty token" (that token alone); `photographs`;
        `norms` and `attention`, packed (state, photograph, block, patch): L2 norm of the residual
        stream after the block, before the final LayerNorm, and the attention of [CLS] to the patch
        in the block, mean over heads, a share of its attention to all tokens; `medians`
        (photograph, block) of the norms before; `outliers` (state, photograph, block), the number
        of patches above three medians of the same photograph and block before; `sources`.

    Raises ValueError for a model without [CLS].
    """
    photographs, others = shown(load_backbone(model).image_size)
    neurons, _ = register_neurons_of([model], others, top_k=1, device=device)
    conditions = {"before": nullcontext, **neuron_conditions(neurons)}
    conditions["empty token"] = lambda backbone: test_time_registers(backbone, [])
    states = {state: conditions[state] for state in STATES}
    kept = [PatchNorms(), ClsAttention("all")]
    captured = _captured(model, photographs, kept, states, whole=True, device=device)
    norms = quantise(np.stack([c["patch_norms"].numpy() for c in captured.values()]))
    # Medians and counts are those of the numbers as they are stored, so that a page that computes
    # with these agrees.
    stored, before = dequantise(norms), captured["before"]
    limits = np.apply_along_axis(threshold, -1, stored[0], PRESENT)
    attention = [c.patches("cls_attention").numpy() for c in captured.values()]
    return {
        "model": model,
        "grid": list(before.layout.grid),
        "corners": before.layout.corners,
        "neuron": list(neurons[model][0][:2]) if neurons else None,
        "states": list(captured),
        "photographs": _described(photographs),
        "norms": norms,
        "attention": quantise(np.stack(attention)),
        "medians": np.median(stored[0], axis=-1).round(6).tolist(),
        "outliers": (stored > limits[..., None]).sum(-1).tolist(),
        "sources": [before.source, photographs.describe(), others.describe()],
    }


def maps(model: str, *, device: str = "cpu") -> dict[str, Any]:
    """Norm and [CLS] attention of every patch in the last block, on three photographs.

    Returns:
        `model`; `grid`; `norms` and `attention`, packed (photograph, patch), as in `patches`;
        `sources`.

    Raises ValueError for a model without [CLS].
    """
    photographs, _ = shown(load_backbone(model).image_size)
    kept = [PatchNorms(-1), ClsAttention(-1)]
    (found,) = _captured(model, photographs, kept, whole=True, device=device).values()
    return {
        "model": model,
        "grid": list(found.layout.grid),
        "norms": quantise(found["patch_norms"].numpy()),
        "attention": quantise(found.patches("cls_attention").numpy()),
        "sources": [found.source, photographs.describe()],
    }


def thresholds(
    model: str,
    images: Images,
    judge: Judge,
    *,
    multiples: Sequence[float] = MULTIPLES,
    **options: Any,
) -> dict[str, Any]:
    """What becomes of six claims when the threshold of an outlier moves: everything for every
    threshold, judged here and nowhere else.

    Each threshold is a multiple of the median norm, as the rule 'median:3' is; by it alone it is
    said which patches are outliers, whether there are any, and from which block on.

    Args:
        images: those that are measured; only sums over them are stored.
        judge: the verdict on a claim, by the estimates of one threshold.
        multiples: rising.
        options: as in `capture`.

    Returns:
        `model`, `grid`, `multiples`; `median`, the median norm after the last block, over all
        images; `rules`, other rules and the multiple that their threshold is; `measures`, name ->
        [value, low, high, n] a multiple, as `helpers.measures.outliers` defines them; `verdicts`,
        claim -> verdict a multiple; `photographs` with their patch `norms` after the last block,
        and `passed`, how many of the thresholds each exceeds; `sources`.
    """
    four, eight = (partial(neighbour_cosine, neighbours=count) for count in (4, 8))
    reducers = [
        PatchNorms(),
        ClsAttention(-1),
        QKVNorms(-1),
        OnPatches("similarity", four),
        OnPatches("similarity_8", eight),
        OnPatches("similarity_final_8", eight, at=-1),
    ]
    states = {"as it is": nullcontext, "rolled": rolled_content}
    plain, rolled = _captured(model, images, reducers, states, **options).values()
    norms, last = plain["patch_norms"], plain["patch_norms"][:, -1]
    attention = plain.patches("cls_attention")
    similarities = {end: plain[f"similarity{end}"].flatten(1) for end in ("", "_8", "_final_8")}
    parts = {part: plain[f"{part}_norms"] for part in ("q", "k", "v")}
    limits = [threshold(last, f"median:{multiple}") for multiple in multiples]
    estimates = []
    for multiple, limit in zip(multiples, limits, strict=True):
        rule = f"median:{multiple}"
        found, moved = outliers(last, rule), rolled["patch_norms"][:, -1] > limit
        similarity = rolled["similarity"].flatten(1)
        estimates.append(
            under_rule(rule, norms, attention, similarities, parts)
            | after_rolling(found, moved, plain.layout.rolled(found), similarity)
            | {"parameters": plain.parameters}
        )
    photographs, _ = shown(plain.image_size)
    (seen,) = _captured(model, photographs, [PatchNorms((-1,))], whole=True, **options).values()
    own = seen["patch_norms"][:, 0].double().numpy()
    passed = (own[..., None] > limits).sum(-1).tolist()
    median = float(np.median(last))
    return {
        "model": model,
        "grid": list(plain.layout.grid),
        "multiples": list(multiples),
        "median": median,
        "rules": [[rule, threshold(last, rule) / median] for rule in RULES],
        "measures": {name: [_row(one[name]) for one in estimates] for name in MEASURES},
        "verdicts": {
            id: [judge(id, model, one, end) for one in estimates] for id, end in JUDGED.items()
        },
        "photographs": [
            {**about, "norms": own[i].round(2).tolist(), "passed": passed[i]}
            for i, about in enumerate(_described(photographs))
        ],
        "sources": [plain.source, images.describe(), photographs.describe()],
    }


def moves(
    model: str,
    images: Images,
    *,
    changed: int | None = None,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Where outliers go when the picture changes and positions do not, and when positions change
    and the picture does not: how often each patch is an outlier, and one example.

    Conditions are those of xx2-corner-outliers, as is the threshold: three medians of the
    unchanged images, for all conditions.

    Args:
        images: those that are measured; only sums over them are stored.
        changed: the first so many are changed, all of them unless given.
        seed: of the permutation.
        options: as in `capture`.

    Returns:
        `model`, `grid`; `limit`, the norm above which a patch is an outlier; `n`, the images in
        each condition; `usual`, the patches that most images have an outlier at; `photograph`, the
        terms of the example; `conditions`, name -> `frequency` (patch), in how many of the n images
        the patch is an outlier; `expected`, where outliers are that follow position; `count`,
        `images`, `share` and `filled` of `counts_at`, each [value, low, high]; `picture`, the
        example as JPEG in base64; `norms`, packed, of its patches after the last block. `sources`.

    Raises ValueError for a model without outliers in these images.
    """
    (c,) = _captured(model, images, [PatchNorms()], **options).values()
    placed = placement(c["patch_norms"], c.layout.corners, PRESENT, seed)
    if not placed.usual:
        raise ValueError(
            f"'{model}' has no outlier in {plural(len(images), 'image')} of {images.name!r}; "
            "choose a model that has some"
        )
    conditions = dict.fromkeys(("as it is", *CHANGES), nullcontext)
    conditions |= position_conditions({model: placed.usual}, seed)

    last = [PatchNorms((-1,))]

    def changed_by(kind: str, pictures: Images) -> Images:
        return pictures.changed(kind) if kind in CHANGES else pictures

    few, (example, _) = images.select(range(changed or len(images))), shown(c.image_size)
    pictures, examples = (
        {kind: changed_by(kind, own) for kind in conditions} for own in (few, example[:1])
    )
    norms = _captured(model, pictures, last, conditions, **options)
    of_example = _captured(model, examples, last, conditions, whole=True, **options)
    measured = {}
    for kind, own in norms.items():
        mask = own["patch_norms"][:, 0] > placed.limit
        expected = expected_at(c.layout, placed.usual, kind, seed)
        measured[kind] = {
            "frequency": mask.sum(0).tolist(),
            "expected": expected,
            **{name: _row(x)[:3] for name, x in counts_at(mask, expected).items()},
            "picture": _jpeg(examples[kind][0].resize(SMALL)),
            "norms": quantise(of_example[kind]["patch_norms"][0, 0].numpy()),
        }
    (about,) = _described(example[:1])
    return {
        "model": model,
        "grid": list(c.layout.grid),
        "limit": round(placed.limit, 4),
        "n": len(few),
        "usual": placed.usual,
        "photograph": {key: text for key, text in about.items() if key != "jpeg"},
        "conditions": measured,
        "sources": [c.source, images.describe(), few.describe(), example[:1].describe()],
    }


def _captured(
    model: str,
    images: Images | Mapping[str, Images],
    reducers: Sequence[Reducer],
    states: Mapping[str, Callable] = {"as it is": nullcontext},  # noqa: B006
    **options: Any,
) -> dict[str, Captured]:
    """State -> what was kept of the model in it; without those that it has not."""
    passes, _ = capture_conditions([model], images, reducers, states, **options)
    return {state: own[model] for state, own in passes.items() if own}


def shown(size: tuple[int, int]) -> tuple[Images, Images]:
    """The three photographs, and those of scikit-image that are not shown.

    Args:
        size: (height, width) in pixels, to which the three are resized after what does not fit is
            cut off at the edges. A model of this size that is loaded `whole` sees all of them.
    """
    every, (height, width) = load_images("photographs"), size
    chosen = every.select([every.ids.index(id) for id in PHOTOGRAPHS])
    others = every.select([id not in PHOTOGRAPHS for id in every.ids])

    def read(index: int) -> Image.Image:
        return ImageOps.fit(chosen[index], (width, height), Image.Resampling.BICUBIC)

    return replace(chosen, read=read), others


def _described(photographs: Images) -> list[dict]:
    """Of each photograph its id, title, author, licence and the picture as JPEG in base64."""
    about = []
    for id, image in zip(photographs.ids, photographs, strict=True):
        title, author, licence = PHOTOGRAPHS[id]
        about.append(
            {"id": id, "title": title, "by": author, "licence": licence, "jpeg": _jpeg(image)}
        )
    return about


def _jpeg(image: Image.Image) -> str:
    file = BytesIO()
    image.save(file, "JPEG", quality=QUALITY, optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _row(estimate: Estimate | float) -> list:
    """[value, low, high, n] of an estimate or of a plain number, None for what there is not."""
    is_plain = not isinstance(estimate, Estimate)
    *numbers, n = (estimate, math.nan, math.nan, None) if is_plain else estimate[:4]
    return [*(round(float(x), 6) if math.isfinite(x) else None for x in numbers), n]
