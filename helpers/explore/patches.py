"""Norm and [CLS] attention of every patch after every block, the model as it is and with the neuron
that makes its outliers moved or off.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np

from helpers.capture import ClsAttention, PatchNorms, capture_conditions, register_neurons_of
from helpers.explore.photographs import described, shown
from helpers.interventions import neuron_conditions, test_time_registers
from helpers.measures.norms import threshold
from helpers.measures.outliers import PRESENT
from helpers.models import ModelUnavailable, load_backbone
from helpers.quantised import dequantise, quantise


def patches(model: str, *, rule: str = PRESENT, device: str = "cpu") -> dict[str, Any]:
    """What the patch explorer shows of one model on three photographs.

    The neuron is searched on the photographs of scikit-image that are not shown. A model without
    outliers has none, and two states.

    Args:
        rule: of an outlier, for the search; 'median:3' is three medians.

    Returns:
        `model`; `grid`; `neuron`, (block, unit) or None; `states`: "before", "moved" (the neuron
        acts at one appended token), "set to zero", "empty token" (that token alone); `photographs`;
        `norms` and `attention`, quantised (state, photograph, block, patch): norm of the residual
        stream after the block, before the final LayerNorm, and the attention of [CLS] to the patch
        in the block, mean over heads, a share of its attention to all tokens; `medians`
        (photograph, block) of the norms before; `outliers` (state, photograph, block), the number
        of patches above three medians of the same photograph and block before; `sources`.

    Raises ModelUnavailable where its weights cannot be had, and ValueError for a model without
    [CLS].
    """
    size = load_backbone(model).image_size
    photographs, others = shown(size)
    neurons, not_run = register_neurons_of([model], others, rule=rule, top_k=1, device=device)
    if not_run:
        raise ModelUnavailable(not_run[model])
    conditions = {"before": nullcontext, **neuron_conditions(neurons)} | {
        "empty token": lambda b: test_time_registers(b, [])
    }
    states = [
        name
        for name in ("before", "moved", "set to zero", "empty token")
        if neurons or name in ("before", "empty token")
    ]
    passes, _ = capture_conditions(
        [model],
        photographs,
        [PatchNorms(), ClsAttention("all")],
        {name: conditions[name] for name in states},
        whole=True,
        device=device,
    )
    captured = [passes[state][model] for state in states]
    norms = quantise(np.stack([c["patch_norms"].numpy() for c in captured]))
    # Medians and counts are those of the numbers as they are stored, so that a page that computes
    # with these agrees.
    stored = dequantise(norms)
    medians = np.median(stored[0], axis=-1)
    limits = [[threshold(block, PRESENT) for block in photograph] for photograph in stored[0]]
    return {
        "model": model,
        "grid": list(captured[0].layout.grid),
        "corners": captured[0].layout.corners,
        "neuron": list(neurons[model][0][:2]) if neurons else None,
        "states": states,
        "photographs": described(photographs),
        "norms": norms,
        "attention": quantise(np.stack([c.patches("cls_attention").numpy() for c in captured])),
        "medians": medians.round(6).tolist(),
        "outliers": (stored > np.array(limits)[..., None]).sum(-1).tolist(),
        "sources": [captured[0].source, photographs.describe(), others.describe()],
    }
