"""Linear probes that segment pictures, in several states of one model after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from helpers.capture.lab import Captured, Condition, by_model, capture_conditions
from helpers.capture.reducers import FinalTokens, PatchNorms
from helpers.images import Images
from helpers.measures.norms import outliers
from helpers.measures.outliers import PRESENT, outlier_images
from helpers.measures.segmentation import (
    Counts,
    Maps,
    fit_segmenter,
    nearest_maps,
    pixel_counts,
    probe_maps,
)
from helpers.measures.stats import Estimate

PENALTIES = (0.1, 0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class DenseState:
    """What came of the tested images in one state of a model.

    Attributes:
        probe: the logits of the linear probe that was fitted in this state.
        nearest: the votes of the nearest training patches in this state.
        norms: of the patches of all sets after the last block, before the final LayerNorm.
        outlier: which patches of the tested images are outliers, above three times their median.
        penalty: of the probe, chosen on the validation images.
        source: of the model.
    """

    probe: Maps
    nearest: Maps
    norms: Tensor
    outlier: Bool[Tensor, "image row column"]
    penalty: float
    source: dict[str, Any]


@dataclass(frozen=True)
class DenseStudy:
    """What came of the tested images.

    Attributes:
        passes: model -> state -> what was read; the first state is the model as it is.
        counts: model -> state -> "probe", "places" (of the probe, at the patches that are outliers
            in the first state) and "nearest" -> counts, for `segmentation_estimates`.
        outlier_images: model -> share of the images of all sets with an outlier in the first state.
        not_run: model -> why it is not here.
    """

    passes: Mapping[str, Mapping[str, DenseState]]
    counts: Mapping[str, Mapping[str, Mapping[str, Counts]]]
    outlier_images: Mapping[str, Estimate]
    not_run: Mapping[str, str]

    @property
    def plain(self) -> dict[str, DenseState]:
        """Model -> its first state."""
        return {model: next(iter(own.values())) for model, own in self.passes.items()}


def dense_study(
    models: Sequence[str],
    sets: Sequence[Images],
    classes: int,
    states: Mapping[str, Condition],
    *,
    points: int = 28,
    penalties: Sequence[float] = PENALTIES,
    most: int = 10_000,
    seed: int = 0,
    **options: Any,
) -> DenseStudy:
    """Fit a linear probe in each state of each model, and segment the tested images by it.

    Pictures are shown whole: both sides are resized to those of the model, so that masks fit.

    Args:
        sets: to learn from, to choose the penalty on, and to test on, as from `load_segments`.
        classes: their number; any other number of a pixel is void.
        states: as the conditions of `capture_conditions`, the model as it is first.
        points: along each side of a picture, at which the probes learn.
        penalties: of the probes, the strongest first.
        most: training patches among which the nearest are looked for.
    """
    train, validation, images = sets
    ends = np.cumsum([len(own) for own in sets])[:-1].tolist()
    learnt, held_out = (own.segments_at((points, points)) for own in (train, validation))

    def read(captured: Captured) -> DenseState:
        layout = captured.layout
        tokens = layout.to_grid(layout.patch_tokens(captured["final_tokens"]), dim=1)
        first, second, tested = tokens.tensor_split(ends)
        how = {"device": options.get("device")}
        probe, penalty = fit_segmenter(first, learnt, second, held_out, classes, penalties, **how)
        labels = train.segments_at(layout.grid)
        norms = captured["patch_norms"]
        return DenseState(
            probe_maps(probe, tested).float(),
            nearest_maps(tested, first, labels, classes, most=most, seed=seed),
            norms,
            layout.to_grid(outliers(norms, PRESENT)[ends[1] :]),
            penalty,
            captured.source,
        )

    kept = [FinalTokens(norm=True), PatchNorms(-1)]
    everything = train + validation + images
    passes, not_run = capture_conditions(
        models, everything, kept, states, whole=True, read=read, **options
    )
    found, counts = by_model(passes), {}
    for model, own in found.items():
        plain, counts[model] = next(iter(own.values())), {}
        for state, seen in own.items():
            probe, places = pixel_counts(seen.probe, images.segments, plain.outlier).swapaxes(0, 1)
            nearest = pixel_counts(seen.nearest, images.segments)[:, 0]
            counts[model][state] = {"probe": probe, "places": places, "nearest": nearest}
    shares = {model: outlier_images(next(iter(own.values())).norms) for model, own in found.items()}
    return DenseStudy(found, counts, shares, not_run)
