"""Models that have outliers and no trained register, with a register at test time beside its
controls.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from helpers.capture.matched_neurons import MatchedNeuron, matched_neurons_of
from helpers.capture.passes import Captured, Condition, Reducers, capture_conditions, capture_each
from helpers.capture.register_neurons import register_neurons_of
from helpers.interventions import RegisterNeuron, neuron_conditions
from helpers.measures.outliers import outlier_images
from helpers.settings import settings_of

FEW = 0.05  # of the images; outliers in no more of them make no model with outliers


@dataclass(frozen=True)
class TestTimeStudy:
    """What was captured with and without test-time registers.

    Attributes:
        plain: model -> what was kept of it as it is.
        passes: condition -> model -> what was kept. Under a condition "moved" stand all models,
            those that get no register as they are; under all others those that get one.
        changes: condition -> what it does, for further images.
        not_run: model -> why it cannot be had here.
    """

    __test__ = False  # pytest must not collect it
    plain: Mapping[str, Captured]
    passes: Mapping[Hashable, Mapping[str, Captured]]
    changes: Mapping[Hashable, Condition]
    not_run: Mapping[str, str]

    def each(self) -> Iterator[tuple[Hashable, str, Captured]]:
        """Condition, model and what was kept, in the order of the conditions."""
        return (
            (condition, model, captured)
            for condition, own in self.passes.items()
            for model, captured in own.items()
        )


def test_time_study(
    models: Sequence[str],
    images: Any,
    learn: Any,
    reducers: Reducers,
    count: int,
    conditions: Mapping[Hashable, str],
    *,
    seed: int = 0,
    **options: Any,
) -> TestTimeStudy:
    """Capture each model as it is.

    And where it has outliers and no trained register, under `conditions`, too.

    A model has outliers where more than 5 % of the images have a patch above three times the median
    norm. Its register neurons are those most active at the outliers of other images (Jiang et al.,
    arXiv:2506.08010); they act on one appended token.

    Args:
        models, images: as in `capture_each`.
        learn: other images, on which the register neurons are found. A model without an outlier
            there gets no register.
        reducers: as in `capture_each`; among them `PatchNorms` with the last block first, by which
            outliers are known.
        count: register neurons of a model; 0: no model gets a register.
        conditions: name -> "plain" for the model as it is, or one of those of
            `helpers.interventions.neuron_conditions`.
        seed: of the random and of the matched neurons; the latter are found on `learn`, too.
        options: as in `capture`.

    Raises ValueError for another condition, and what `capture_each` and `find_register_neurons`
    raise.
    """
    known = ("plain", *neuron_conditions({}, matched={}))
    if unknown := {*conditions.values()}.difference(known):
        raise ValueError(f"no condition '{min(unknown)}'; choose from {', '.join(known)}")
    plain, not_run = capture_each(models, images, reducers, **options)
    chosen = [
        model for model, c in plain.items() if count and not c.layout.registers and _has_outliers(c)
    ]
    neurons = register_neurons_of(chosen, learn, top_k=count, **options)[0] if chosen else {}
    asked = neurons if "matched neurons" in conditions.values() else {}
    matched = matched_neurons_of(asked, learn, seed=seed, **options)
    changes = {"plain": nullcontext, **neuron_conditions(neurons, seed=seed, matched=matched)}
    changes = {name: changes[condition] for name, condition in conditions.items()}
    others = {name: change for name, change in changes.items() if conditions[name] != "plain"}
    passes, _ = capture_conditions(list(neurons), images, reducers, others, **options)
    own = {model: plain[model] for model in neurons}
    passes = {name: passes.get(name, own) for name in conditions}
    passes |= {
        name: plain | passes[name] for name, condition in conditions.items() if condition == "moved"
    }
    return TestTimeStudy(plain, passes, changes, not_run)


@dataclass(frozen=True)
class SearchedNeurons:
    """Register neurons of several models, and what their effect is compared with.

    Attributes:
        at: model -> its rule, layer and top_k.
        neurons: model -> its neurons, the most active first; only models with an outlier.
        moved: model -> the first `top_k` of them.
        matched: model -> others that write most nearly as much as those of `moved`.
        not_run: model -> why it cannot be had here.
    """

    at: Mapping[str, SimpleNamespace]
    neurons: Mapping[str, list[RegisterNeuron]]
    moved: Mapping[str, list[RegisterNeuron]]
    matched: Mapping[str, list[MatchedNeuron]]
    not_run: Mapping[str, str]

    def first(self, count: int) -> dict[str, list[RegisterNeuron]]:
        """The first `count` neurons of each model that has as many."""
        return {model: own[:count] for model, own in self.neurons.items() if len(own) >= count}

    def matched_writes(self, model: str) -> float:
        """What the matched neurons write over what the moved ones write; 1: as much."""
        own = self.matched[model]
        return sum(neuron.written for neuron in own) / sum(neuron.wanted for neuron in own)


def searched_neurons(
    models: Sequence[str],
    images: Any,
    by_model: Sequence[str] = (),
    *,
    rule: str,
    layer: int,
    top_layer: int,
    top_k: int,
    most: int = 0,
    sparsity: bool = False,
    seed: int = 0,
    **options: Any,
) -> SearchedNeurons:
    """The register neurons of each model, and as many others of its blocks that write as much.

    Args:
        models, images, by_model, rule, layer, top_layer: as in `register_neurons_of`.
        top_k: neurons that are moved.
        most: neurons to find where these are more.
        sparsity: as in `find_register_neurons`.
        seed: of the matched neurons.
        options: as in `capture`, and `image_size`.

    Raises what `register_neurons_of` and `matched_neurons_of` raise.
    """
    at = settings_of(models, by_model, rule=rule, layer=layer, top_k=top_k)
    search = {"rule": rule, "layer": layer, "by_model": by_model} | options
    find = {"top_layer": top_layer, "top_k": max(top_k, most), "sparsity": sparsity}
    neurons, not_run = register_neurons_of(models, images, **find, **search)
    moved = {model: own[: at[model].top_k] for model, own in neurons.items()}
    matched = matched_neurons_of(moved, images, among="later", seed=seed, **search)
    return SearchedNeurons(at, neurons, moved, matched, not_run)


def _has_outliers(captured: Captured) -> bool:
    return outlier_images(captured["patch_norms"][:, 0]).value > FEW
