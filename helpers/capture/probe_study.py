"""Linear probes trained and tested on a model in several states, such as before and after an
intervention.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.passes import Captured, Condition, capture_conditions
from helpers.capture.reducers import Feature, Pooled, Reducer
from helpers.measures.answers import probe_answers
from helpers.measures.probes import Schedule


class Readout(NamedTuple):
    """What of an image a probe reads: the reducer that keeps it, and the vector in what was
    kept.
    """

    reducer: Reducer
    read: Callable[[Captured], Float[Tensor, "image width"]]


READOUTS = {
    "feature": Readout(Feature(), lambda captured: captured["feature"]),
    "registers": Readout(
        Pooled(), lambda captured: captured["registers"].mean(1)
    ),  # trained and appended ones
}


@dataclass(frozen=True)
class ProbeStudy:
    """What became of the test images.

    Attributes:
        passes: state -> model -> what was kept of them.
        right: state -> model -> readout -> whether the probe trained in that state names the class
            of each image; only of models that can be had in every state.
        not_run: model -> why it cannot be had here.
    """

    passes: Mapping[Hashable, Mapping[str, Captured]]
    right: Mapping[Hashable, Mapping[str, Mapping[str, Bool[Tensor, " image"]]]]
    not_run: Mapping[str, str]


def probe_study(
    models: Sequence[str],
    train: Any,
    images: Any,
    states: Mapping[Hashable, Condition],
    more: Sequence[Reducer] = (),
    *,
    readouts: Sequence[str] = ("feature",),
    schedule: Schedule | None = None,
    seed: int = 0,
    **options: Any,
) -> ProbeStudy:
    """In each state a probe for each readout, trained on one set of images and tested on another.

    Args:
        train, images: labelled sets, as from `load_train_test`.
        states: name -> what changes the forward pass, as the conditions of `capture_conditions`. A
            model that one of them leaves out is captured in the others, and gets no probe.
        more: what to keep of the test images beside the readouts.
        readouts: names in READOUTS.
        schedule, seed: as in `fit_classifier`.
        options: as in `capture_conditions`; the probes are fitted on its device, too.

    Raises ValueError for another readout and for images without labels, and what
    `capture_conditions` and `fit_classifier` raise.
    """
    if unknown := {*readouts}.difference(READOUTS):
        raise ValueError(f"no readout '{min(unknown)}'; choose from {', '.join(READOUTS)}")
    kept, labels = [READOUTS[name].reducer for name in readouts], images.require_labels()
    passes, not_run = capture_conditions(models, images, [*kept, *more], states, **options)
    in_all = [model for model in models if all(model in own for own in passes.values())]
    learnt, _ = capture_conditions(in_all, train, kept, states, **options)
    how, right = {"schedule": schedule, "seed": seed, "device": options.get("device")}, {}
    for state, of_model in learnt.items():
        right[state] = {model: {} for model in of_model}
        for model, own in of_model.items():
            for name in readouts:
                x, y = (READOUTS[name].read(captured) for captured in (own, passes[state][model]))
                right[state][model][name] = probe_answers(
                    x, train.require_labels(), y, labels, **how
                )
    return ProbeStudy(passes, right, not_run)
