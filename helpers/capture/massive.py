"""Massive activations at zero and at their mean, in one model after another."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from helpers.capture.passes import Captured, capture_conditions, capture_each
from helpers.capture.reducers import Magnitudes, MassiveTokens, Reducer
from helpers.interventions import set_channels, where_given
from helpers.measures.massive import fixed_channels, onset_of


class Massive(NamedTuple):
    """Where a model has massive activations.

    Attributes:
        onset: the first block after which most images have one.
        channels: those that are massive there in at least half of the images.
        means: of the channels, over the tokens that have a massive activation.
        others: as many random other channels.
    """

    onset: int
    channels: list[int]
    means: list[float]
    others: list[int]


@dataclass(frozen=True)
class MassiveStudy:
    """What became of the tested images.

    Attributes:
        found: model -> its massive activations; only of models that have some after a block.
        passes: condition -> model -> what was kept: "plain" with `Magnitudes` and, of models in
            `found`, `MassiveTokens` after the onset; "zeroed" and "mean", the channels of all
            tokens with a massive activation set to that; "others", as many random channels there at
            zero; "centre", the channels of as many central patches at zero.
        not_run: model -> why it is not here.
    """

    found: Mapping[str, Massive]
    passes: Mapping[str, Mapping[str, Captured]]
    not_run: Mapping[str, str]


def massive_study(
    models: Sequence[str],
    learn: Any,
    images: Any,
    reducers: Sequence[Reducer],
    *,
    seed: int = 0,
    **options: Any,
) -> MassiveStudy:
    """Find the massive activations on some images, and change them on others (Sun et al.,
    arXiv:2402.17762).

    Args:
        learn, images: with no image in both.
        reducers: what to keep of the tested images beside the activations.
        seed: of the random channels.
        options: as in `capture_conditions`.
    """
    learnt, not_run = capture_each(models, learn, [Magnitudes()], **options)
    onsets = {model: onset_of(c["magnitudes"]) for model, c in learnt.items()}
    onsets = {model: onset for model, onset in onsets.items() if onset is not None}
    chosen = {model: [MassiveTokens(onset)] for model, onset in onsets.items()}
    tokens = capture_each([*chosen], learn, chosen.get, **options)[0] if chosen else {}
    found = {model: _found(c, onsets[model], seed) for model, c in tokens.items()}
    zero = {model: [0.0] * len(own.channels) for model, own in found.items()}

    def changed(name: str, values: Mapping[str, list[float]], where: str) -> Any:
        def change(backbone: Any, own: Massive) -> Any:
            channels = getattr(own, name)
            return set_channels(backbone, own.onset, channels, values[backbone.name], where)

        return where_given(found, change)

    conditions = {
        "plain": nullcontext,
        "zeroed": changed("channels", zero, "massive"),
        "mean": changed("channels", {m: own.means for m, own in found.items()}, "massive"),
        "others": changed("others", zero, "massive"),
        "centre": changed("channels", zero, "centre"),
    }
    plain = partial(_kept, chosen, [*reducers, Magnitudes()])
    kept = dict.fromkeys(conditions, reducers) | {"plain": plain}
    passes, _ = capture_conditions(models, images, kept, conditions, **options)
    return MassiveStudy(found, passes, not_run)


def _kept(more: Mapping[str, list[Reducer]], reducers: list[Reducer], model: str) -> list[Reducer]:
    return [*reducers, *more.get(model, [])]


def _found(captured: Captured, onset: int, seed: int) -> Massive:
    channels = fixed_channels(captured["massive_counts"])
    mean = captured["massive_sum"].double().sum(0) / captured["massive_tokens"].sum()
    rest = np.setdiff1d(np.arange(len(mean)), channels)
    others = np.random.default_rng(seed).choice(rest, len(channels), replace=False)
    return Massive(onset, channels, mean[channels].tolist(), sorted(others.tolist()))
