"""Studies that several claims share: classifiers, probes in several states of a model, and models
with a register at test time beside its controls.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from helpers.capture.lab import Captured, Condition, Lab, Passes, Reducers
from helpers.capture.reducers import Feature, PatchNorms, Pooled, Reducer, SinglePatches
from helpers.capture.register_neurons import Search, matched_neurons_of, register_neurons_of
from helpers.images import Images
from helpers.interventions import (
    MatchedNeuron,
    RegisterNeuron,
    expected_at,
    neuron_conditions,
    position_conditions,
)
from helpers.measures.answers import probe_answers
from helpers.measures.outliers import FEW, Placement, counts_at, outlier_images
from helpers.measures.probes import NOISE, SCHEDULES, Probe, fit_classifier
from helpers.measures.stats import Estimates
from helpers.settings import check_choice

Right = Mapping[str, Bool[Tensor, " image"]]  # readout -> whether the class of each image is named


@dataclass(frozen=True)
class Classifiers:
    """One for each model, of what was captured with `Feature()` and, for the published head,
    `Output()`.

    Attributes:
        probes: model -> probe on its feature; None for the published heads.
    """

    probes: Mapping[str, Probe] | None

    def scores(self, model: str, captured: Captured, images: Any) -> Float[Tensor, "image classes"]:
        """The logits of the images; the first of the labelled images were captured."""
        if self.probes is not None:
            return self.probes[model](captured["feature"])
        scores, classes = captured["output"], images.class_names or ()
        if classes and len(classes) != scores.shape[1]:
            raise ValueError(
                f"the head of {model!r} names {scores.shape[1]} classes, the images {len(classes)}"
            )
        return scores

    def correct(self, model: str, captured: Captured, images: Any) -> Float[Tensor, " image"]:
        """100 where the class of the highest score is the image's, else 0; arguments as in
        `scores`.
        """
        labels, scores = images.require_labels(), self.scores(model, captured, images)
        return 100 * (scores.argmax(-1) == torch.as_tensor(labels[: len(scores)])).float()

    def answers(
        self, model: str, passes: Mapping[Hashable, Captured], images: Any
    ) -> dict[Hashable, Float[Tensor, " image"]]:
        """`correct` under each condition."""
        return {name: self.correct(model, c, images) for name, c in passes.items()}


def classifiers_of(
    lab: Lab,
    kind: str,
    train: Any = None,
    models: Collection[str] | None = None,
    condition: Hashable = "plain",
    schedule: str = "",
) -> Classifiers:
    """A classifier of each model: "probe", fitted under a condition to the feature of the labelled
    images `train` by a schedule in `helpers.measures.probes.SCHEDULES`, or "published".
    """
    check_choice("classifier", kind, ("probe", "published"))
    if kind == "published":
        return Classifiers(None)
    captured = lab.passes(train, [Feature()], [condition], models)[condition]
    how = {"schedule": SCHEDULES[schedule], "seed": lab.seed, "device": lab.device}
    labels = train.require_labels()
    return Classifiers(
        {model: fit_classifier(c["feature"], labels, **how) for model, c in captured.items()}
    )


def classified(
    lab: Lab, kind: str, train: str, test: str, n_train: int, n: int, by: str = ""
) -> tuple[Images, Classifiers]:
    """The images `test`, and a classifier of each model for them: "published", or a "probe" fitted
    to the images `train`, none of which is among them (`Lab.train_test`).
    """
    if kind == "published":
        return lab.images(test, n), classifiers_of(lab, kind)
    learnt, images = lab.train_test(train, test, n_train, n, by)
    return images, classifiers_of(lab, kind, learnt)


# What of an image a probe reads: what keeps it, and the key of what was kept.
READOUTS = {
    "feature": (Feature(), "feature"),
    "registers": (Pooled(), "registers"),  # the mean of trained and appended ones
    "central": (SinglePatches(), "central_patch"),
    "highest": (SinglePatches(), "highest_patch"),
}


@dataclass(frozen=True)
class Study:
    """What became of several models; what a study does not ask for stays empty.

    Attributes:
        plain: model -> what was kept of it as it is.
        passes: state or condition -> model -> what was kept.
        changes: condition -> what it does, for further images.
        right: state -> model -> readout -> whether the probe trained in that state names the class
            of each image; only of models in every state.
        at: model -> its rule, layer and top_k.
        neurons: model -> its register neurons, the most active first; only models with an outlier.
        moved: model -> the first of them, those that are moved.
        matched: model -> others of an output similar to that of `moved`.
    """

    plain: Mapping[str, Captured] = field(default_factory=dict)
    passes: Mapping[Hashable, Mapping[str, Captured]] = field(default_factory=dict)
    changes: Mapping[Hashable, Condition] = field(default_factory=dict)
    right: Mapping[Hashable, Mapping[str, Right]] = field(default_factory=Passes)
    at: Mapping[str, SimpleNamespace] = field(default_factory=dict)
    neurons: Mapping[str, list[RegisterNeuron]] = field(default_factory=dict)
    moved: Mapping[str, list[RegisterNeuron]] = field(default_factory=dict)
    matched: Mapping[str, list[MatchedNeuron]] = field(default_factory=dict)

    @property
    def called(self) -> dict[str, str]:
        """Model -> its name in figures, which says where it was given a register."""
        given = {model for _, model, captured in self.each() if captured.layout.appended}
        return {x: f"{x}, test-time register" if x in given else x for x in self.plain}

    def each(self) -> Iterator[tuple[Hashable, str, Captured]]:
        """Condition, model and what was kept, in the order of the conditions."""
        return (
            (condition, model, captured)
            for condition, own in self.passes.items()
            for model, captured in own.items()
        )

    def first(self, count: int) -> dict[str, list[RegisterNeuron]]:
        """The first `count` neurons of each model that has as many."""
        return {model: own[:count] for model, own in self.neurons.items() if len(own) >= count}

    @property
    def table(self) -> pd.DataFrame:
        """The neurons of each model, with what they do in the images of the search."""
        tables = {model: pd.DataFrame(own) for model, own in self.neurons.items()}
        return pd.concat(tables) if tables else pd.DataFrame()

    def agreement(self, model: str, others: Sequence[RegisterNeuron]) -> dict[str, float]:
        """The share of a model's neurons that another search names, too, "mode_overlap", and
        whether both name the same one first, "same_first".
        """
        ours, theirs = ([neuron[:2] for neuron in found] for found in (self.neurons[model], others))
        shared = len({*ours} & {*theirs}) / len(ours)
        return {"mode_overlap": shared, "same_first": float(ours[0] == theirs[0])}

    def matched_writes(self, model: str) -> float:
        """What the matched neurons write over what the moved ones write; 1: as much."""
        own = self.matched[model]
        return sum(neuron.written for neuron in own) / sum(neuron.wanted for neuron in own)


def probe_study(
    lab: Lab,
    train: Any,
    images: Any,
    states: Sequence[Hashable] | Mapping[Hashable, Condition],
    more: Sequence[Reducer] = (),
    models: Collection[str] | None = None,
    *,
    readouts: Sequence[str] = ("feature",),
    schedule: str = "",
    noise: float = NOISE,
) -> Study:
    """In each state a probe for each readout, trained on one set of images and tested on another.

    Args:
        states: names of conditions, or name -> condition. A model that one of them leaves out is
            captured in the others, and gets no probe.
        more: what to keep of the test images beside the readouts.
        readouts: names in READOUTS.
        schedule: a name in `helpers.measures.probes.SCHEDULES`.
    """
    kept = [*dict.fromkeys(READOUTS[name][0] for name in readouts)]  # two may share a reducer
    labels = images.require_labels()
    passes = lab.passes(images, [*kept, *more], states, models)
    in_all = [model for model, *_ in passes.each(*states)]
    learnt = lab.passes(train, kept, states, in_all)
    how = {"schedule": SCHEDULES[schedule], "seed": lab.seed, "noise": noise, "device": lab.device}
    right = Passes()
    for state, of_model in learnt.items():
        right[state] = {model: {} for model in of_model}
        for model, own in of_model.items():
            for name in readouts:
                x, y = (_read(captured, name) for captured in (own, passes[state][model]))
                answers = probe_answers(x, train.require_labels(), y, labels, **how)
                right[state][model][name] = answers
    return Study(passes=passes, right=right)


def _read(captured: Captured, readout: str) -> Float[Tensor, "image width"]:
    """What a probe reads."""
    kept = captured[READOUTS[readout][1]]
    return kept.mean(1) if readout == "registers" else kept


def test_time_study(
    lab: Lab,
    images: Any,
    learn: Any,
    reducers: Reducers,
    count: int,
    controls: Mapping[str, str] = MappingProxyType({}),
) -> Study:
    """Capture each model as it is, and where it has outliers and no trained register with one at
    test time, too.

    A model has outliers where more than 5 % of the images have a patch above three times the median
    norm. Its register neurons (Jiang et al., arXiv:2506.08010) act on one appended token.
    `passes` have "": all models, those without a register as they are; of those with one "_plain",
    as they are, and the controls.

    Args:
        learn: other images, on which the register neurons are found. A model without an outlier
            there gets no register.
        reducers: among them `PatchNorms(-1)`, by which outliers are known.
        count: register neurons of a model; 0: no model gets a register.
        controls: name -> condition of `helpers.interventions.neuron_conditions`.
    """
    plain = lab.capture(images, reducers)
    free = {model: own for model, own in plain.items() if count and not own.layout.registers}
    shares = {model: outlier_images(own["patch_norms"]) for model, own in free.items()}
    chosen = [model for model, share in shares.items() if share.value > FEW]
    neurons = register_neurons_of(lab, learn, chosen, top_k=count)
    known = neuron_conditions(neurons, seed=lab.seed)
    changes = {name: known[condition] for name, condition in {"": "moved", **controls}.items()}
    passes = lab.passes(images, reducers, changes, [*neurons])
    own = {model: plain[model] for model in neurons}
    return Study(plain, {"": plain | passes.pop(""), "_plain": own, **passes}, changes)


def searched_neurons(
    lab: Lab,
    images: Any,
    search: Search,
    count: int = 1,
    *,
    most: int = 0,
    moved: int = 0,
    matched: bool = True,
) -> Study:
    """The register neurons of each model as in `register_neurons_of`, and as many others of its
    blocks or later ones of similar output; the laboratory learns the conditions of
    `helpers.interventions.neuron_conditions`.

    Args:
        search: its `top_k` neurons are moved, unless `moved` says otherwise.
        count: appended tokens that they are moved to.
        most: neurons to find where these are more.
        moved: neurons of every model that are moved, whatever its own `top_k`; 0: these.
        matched: whether to look for the others.
    """
    at = search.of(lab.models)
    neurons = register_neurons_of(lab, images, search=search, top_k=max(search.top_k, most))
    first = {model: own[: moved or at[model].top_k] for model, own in neurons.items()}
    others = matched_neurons_of(lab, first, images, search, among="later") if matched else None
    lab.conditions |= neuron_conditions(first, count, lab.seed, others)
    return Study(at=at, neurons=neurons, moved=first, matched=others or {})


class MovedOutliers(NamedTuple):
    """Outliers of models under the conditions of `moved_outliers`.

    Attributes:
        masks: model -> condition -> which patches are outliers, by their norms after the last block
            and the threshold of the unchanged images.
        counts: name -> model -> condition -> estimate, by `counts_at` the patches where outliers
            are expected that follow position.
    """

    masks: dict[str, dict[str, Bool[Tensor, "image row column"]]]
    counts: dict[str, dict[str, Estimates]]


def moved_outliers(
    lab: Lab, placed: Mapping[str, Placement], images: Any, kinds: Sequence[str]
) -> MovedOutliers:
    """Where outliers go when the content changes and positions do not, and the other way round.

    Under the condition "as it is", then the `kinds` of `Images.changed`, then the moves of
    `helpers.interventions.position_conditions`; models that have no outliers as `placed` are left
    out.
    """
    usual = {model: own.usual for model, own in placed.items() if own.usual}
    conditions = dict.fromkeys(("as it is", *kinds), nullcontext)
    conditions |= position_conditions(usual, lab.seed)
    shown = {name: images.changed(name) if name in kinds else images for name in conditions}
    passes = lab.passes(shown, [PatchNorms(-1)], conditions, [*usual])
    moved = MovedOutliers({model: {} for model in usual}, defaultdict(dict))
    for model, own in passes.by_model.items():
        for condition, c in own.items():
            mask = c["patch_norms"] > placed[model].limit
            moved.masks[model][condition] = c.layout.to_grid(mask)
            expected = expected_at(c.layout, usual[model], condition, lab.seed)
            for name, estimate in counts_at(mask, expected).items():
                moved.counts[name].setdefault(model, {})[condition] = estimate
    return moved
