"""What becomes of six claims when the threshold of an outlier moves."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from helpers.capture import ClsAttention, OnPatches, PatchNorms, QKVNorms, capture_conditions
from helpers.explore.photographs import described, shown
from helpers.images import Images
from helpers.interventions import rolled_content
from helpers.measures.norms import outliers, threshold
from helpers.measures.outliers import after_rolling, under_rule
from helpers.measures.similarity import neighbour_cosine
from helpers.models import ModelUnavailable

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
RULES = (
    "median:3",
    "mad:10",
    "percentile:98",
    "fixed:150",
)  # of xx4; where their thresholds lie is marked
Judge = Callable[
    [str, str, Mapping[str, Any], str], str
]  # claim, model, estimates, end of names -> verdict


def thresholds(
    model: str,
    images: Images,
    judge: Judge,
    *,
    multiples: Sequence[float] = MULTIPLES,
    batch_size: int = 32,
    device: str = "cpu",
) -> dict[str, Any]:
    """What the threshold slider shows of one model: everything for every threshold, judged here and
    nowhere else.

    Each threshold is a multiple of the median norm, as the rule 'median:3' is; by it alone it is
    said which patches are outliers, whether there are any, and from which block on.

    Args:
        images: those that are measured; only sums over them are kept.
        judge: the verdict on a claim, by the estimates of one threshold.
        multiples: rising.

    Returns:
        `model`, `grid`, `multiples`; `median`, the median norm after the last block, over all
        images; `rules`, other rules and the multiple that their threshold is; `measures`, name ->
        [value, low, high, n] a multiple, as `helpers.measures.outliers` defines them; `verdicts`,
        claim -> verdict a multiple; `photographs` with their patch `norms` after the last block,
        and `passed`, how many of the thresholds each exceeds; `sources`.

    Raises ModelUnavailable where its weights cannot be had.
    """
    four, eight = (partial(neighbour_cosine, neighbours=count) for count in (4, 8))
    reducers = [
        *(PatchNorms(), ClsAttention(-1), QKVNorms(-1)),
        *(
            OnPatches("similarity", four),
            OnPatches("similarity_8", eight),
            OnPatches("similarity_final_8", eight, at=-1),
        ),
    ]
    states, options = (
        {"as it is": nullcontext, "rolled": rolled_content},
        {"batch_size": batch_size, "device": device},
    )
    passes, not_run = capture_conditions([model], images, reducers, states, **options)
    if not_run:
        raise ModelUnavailable(not_run[model])
    c, rolled = passes["as it is"][model], passes["rolled"][model]
    norms, last = c["patch_norms"], c["patch_norms"][:, -1]
    alike = {end: c[f"similarity{end}"].flatten(1) for end in ("", "_8", "_final_8")}
    parts = {part: c[f"{part}_norms"] for part in ("q", "k", "v")}
    measures: dict[str, list] = {name: [] for name in MEASURES}
    verdicts: dict[str, list[str]] = {id: [] for id in JUDGED}
    limits = [threshold(last, f"median:{multiple}") for multiple in multiples]
    for multiple, limit in zip(multiples, limits, strict=True):
        rule = f"median:{multiple}"
        estimates = under_rule(rule, norms, c.patches("cls_attention"), alike, parts)
        found, moved = outliers(last, rule), rolled["patch_norms"][:, -1] > limit
        estimates |= after_rolling(
            found, moved, c.layout.rolled(found), rolled["similarity"].flatten(1)
        )
        estimates["parameters"] = c.parameters
        for name in MEASURES:
            measures[name].append(_row(estimates[name]))
        for id, end in JUDGED.items():
            verdicts[id].append(judge(id, model, estimates, end))
    photographs, _ = shown(c.image_size)
    seen, _ = capture_conditions(
        [model], photographs, [PatchNorms((-1,))], {"": nullcontext}, whole=True, **options
    )
    own = seen[""][model]["patch_norms"][:, 0].double().numpy()
    median = float(np.median(last))
    return {
        "model": model,
        "grid": list(c.layout.grid),
        "multiples": list(multiples),
        "median": median,
        "rules": [[rule, threshold(last, rule) / median] for rule in RULES],
        "measures": measures,
        "verdicts": verdicts,
        "photographs": [
            one
            | {
                "norms": row.round(2).tolist(),
                "passed": (row[:, None] > np.array(limits)).sum(1).tolist(),
            }
            for one, row in zip(described(photographs), own, strict=True)
        ],
        "sources": [c.source, images.describe(), photographs.describe()],
    }


def _row(estimate: Any) -> list:
    """[value, low, high, n] of an estimate or of a plain number, None for what there is not."""
    numbers = (
        [estimate.value, estimate.low, estimate.high]
        if hasattr(estimate, "value")
        else [estimate, None, None]
    )
    rounded = [None if x is None or not np.isfinite(x) else round(float(x), 6) for x in numbers]
    return [*rounded, getattr(estimate, "n", None)]
