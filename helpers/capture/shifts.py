"""Register neurons moved to appended tokens, and what Jiang et al. compare that with, in one model
after another.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from helpers.capture.passes import Captured, Condition, capture_conditions, capture_each
from helpers.capture.reducers import Feature, Output, Pooled, TokenNorms
from helpers.capture.replacements import attention_bias
from helpers.capture.studies import probe_study, searched_neurons
from helpers.interventions import RegisterNeuron, shift_conditions
from helpers.measures.stats import Estimates, over_images

READ = {"feature": "cls", "central": "central", "highest": "outlier"}
# A token may hold nothing of its image. What is left after large parts have cancelled is rounding.
NOISE = 5e-4  # of the tokens' size
STARTS = {"moved": "", "normal": "_normal", "mean": "_mean"}


@dataclass(frozen=True)
class ShiftStudy:
    """What became of the tested images.

    Attributes:
        neurons: model -> the register neurons that are moved; only models with an outlier.
        conditions: name -> those of `helpers.interventions.shift_conditions`, and "bias", that of
            `attention_bias`.
        plain: model -> what was kept of all images in the model as it is: `Feature`, `Output`,
            `TokenNorms(-1)` and `Pooled(norm=False)`.
        passes: condition -> model -> the same under it, of models with neurons. "moved" and "bias"
            have all images, "zeroed" and the draws of random neurons the first `n_zeroed`, the
            variants the first `n_few`.
        not_run: model -> why it is not here.
    """

    neurons: Mapping[str, Sequence[RegisterNeuron]]
    conditions: Mapping[str, Condition]
    plain: Mapping[str, Captured]
    passes: Mapping[str, Mapping[str, Captured]]
    not_run: Mapping[str, str]


def shift_study(
    models: Sequence[str],
    learn: Any,
    images: Any,
    n_zeroed: int,
    n_few: int,
    *,
    shared_k: int = 0,
    by_model: Sequence[str] = (),
    rule: str = "median:3",
    layer: int = -1,
    top_layer: int = -1,
    top_k: int = 1,
    seed: int = 0,
    **options: Any,
) -> ShiftStudy:
    """Move the register neurons, set them and others to zero, and keep outliers as a bias.

    Args:
        learn: other images, for the neurons and for the mean key and value.
        images: as in `capture_conditions`.
        n_zeroed, n_few: numbers of the first images, see `ShiftStudy`.
        shared_k: neurons of a model that several tokens share; 0: those that are moved.
        by_model, rule, layer, top_layer, top_k: as in `searched_neurons`.
        seed: of all draws.
        options: as in `capture_conditions`.
    """
    search = {"rule": rule, "layer": layer, "top_layer": top_layer, "top_k": top_k}
    search |= {"by_model": by_model, "most": shared_k, "seed": seed}
    found = searched_neurons(models, learn, **search, **options)
    several = found.first(shared_k) if shared_k else found.moved
    kept = [Feature(), Output(), TokenNorms(-1), Pooled(norm=False)]
    plain, not_run = capture_each(models, images, kept, **options)
    conditions = shift_conditions(found.moved, several, seed)
    conditions["bias"] = attention_bias([*found.moved], learn, plain, **options)
    part, few = (images.select(range(min(n, len(images)))) for n in (n_zeroed, n_few))
    shown = {x: part if x.startswith(("zeroed", "random")) else few for x in conditions}
    shown |= {"moved": images, "bias": images}
    passes, _ = capture_conditions([*found.moved], shown, kept, conditions, **options)
    return ShiftStudy(found.moved, conditions, plain, passes, not_run)


def token_probes(
    study: ShiftStudy, train: Any, images: Any, **options: Any
) -> dict[str, Estimates]:
    """Linear probes on single tokens (Jiang et al., Tables 1 and 10).

    Returns:
        model -> accuracies in %: "probe_cls", "probe_central" and "probe_outlier" of the model as
        it is, on [CLS], the central patch and that of the highest norm; "probe_register", on the
        appended token with the neurons moved, from zero, and with "_normal" and "_mean" from that
        initial token. All after the final LayerNorm.
    """
    sets = [*study.neurons], train, images
    states = {end: study.conditions[start] for start, end in STARTS.items()}
    options |= {"noise": NOISE}
    plain = probe_study(*sets, {"": nullcontext}, readouts=[*READ], **options)
    moved = probe_study(*sets, states, readouts=["registers"], **options)
    estimates = {}
    for model in study.neurons:
        right = {f"probe_{READ[x]}": own for x, own in plain.right[""][model].items()}
        right |= {f"probe_register{x}": y[model]["registers"] for x, y in moved.right.items()}
        estimates[model] = {x: over_images(100.0 * y, (0, 100)) for x, y in right.items()}
    return estimates
