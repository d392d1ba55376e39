"""Linear probes that segment pictures, in several states of one model after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from helpers.capture.lab import Captured, Lab
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
    segmentation_estimates,
    segmentation_gain,
)
from helpers.measures.stats import Estimate, Estimates

PENALTIES = (0.1, 0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class DenseState:
    """What came of the tested images in one state of a model.

    Attributes:
        probe: the logits of the linear probe that was fitted in this state.
        nearest: the votes of the nearest training patches in this state.
        norms: of the patches of all sets after the last block, before the final LayerNorm.
        outlier: which patches of the tested images are outliers, above three times their median.
    """

    probe: Maps
    nearest: Maps
    norms: Tensor
    outlier: Bool[Tensor, "image row column"]


@dataclass(frozen=True)
class DenseStudy:
    """What came of the tested images at one size.

    Attributes:
        size: side in pixels.
        passes: model -> state -> what was read; the first state is the model as it is.
        counts: model -> state -> "probe", "places" (of the probe, at the patches that are outliers
            in the first state) and "nearest" -> counts.
        groups: of the images, such as drives, where there are some.
        seed: of intervals.
    """

    size: int
    passes: Mapping[str, Mapping[str, DenseState]]
    counts: Mapping[str, Mapping[str, Mapping[str, Counts]]]
    groups: Sequence[str] | None
    seed: int

    @property
    def plain(self) -> dict[str, DenseState]:
        """Model -> its first state."""
        return {model: next(iter(own.values())) for model, own in self.passes.items()}

    @property
    def outlier_images(self) -> dict[str, Estimate]:
        """Model -> share of the images of all sets with an outlier in the first state."""
        return {model: outlier_images(own.norms) for model, own in self.plain.items()}

    def estimates(self, model: str) -> Estimates:
        """`segmentation_estimates` under the size."""
        return segmentation_estimates(self.counts[model], str(self.size), self.groups, self.seed)

    def gain(self, first: str, second: str) -> Estimate:
        """The mean IoU of the second model's probe minus that of the first one's, in points."""
        pair = (next(iter(self.counts[model].values()))["probe"] for model in (first, second))
        return segmentation_gain(*pair, self.groups, self.seed)["gain"]


def dense_study(
    lab: Lab,
    sets: Sequence[Images],
    classes: int,
    states: Mapping[str, str],
    sizes: Sequence[int],
    group: str = "",
    points: int = 28,
    penalties: Sequence[float] = PENALTIES,
    most: int = 10_000,
) -> dict[int, DenseStudy]:
    """Fit a linear probe in each state of each model, and segment the tested images by it, at each
    of the sizes.

    Pictures are shown whole: both sides are resized to those of the model, so that masks fit.

    Args:
        sets: to learn from, to choose the penalty on, and to test on, as from `Lab.segments`.
        classes: their number; any other number of a pixel is void.
        states: what the names of estimates end with -> the condition of the laboratory, the model
            as it is first.
        sizes: sides in pixels.
        group: a column of what images belong to, such as drives, where there is one.
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
        pairs = first, learnt, second, held_out
        probe, _ = fit_segmenter(*pairs, classes, penalties, device=lab.device)
        labels = train.segments_at(layout.grid)
        norms = captured["patch_norms"]
        return DenseState(
            probe(tested).movedim(-1, 1).float(),
            nearest_maps(tested, first, labels, classes, most=most, seed=lab.seed),
            norms,
            layout.to_grid(outliers(norms, PRESENT)[ends[1] :]),
        )

    kept = [FinalTokens(norm=True), PatchNorms(-1)]
    everything = train + validation + images
    conditions = {end: lab.conditions[name] for end, name in states.items()}
    studies = {}
    for size in sizes:
        at_size = lab.resized(size)
        passes = at_size.passes(everything, kept, conditions, whole=True, read=read).by_model
        counts = {model: _counts(own, images) for model, own in passes.items()}
        groups = images.columns.get(group)
        studies[size] = DenseStudy(size, passes, counts, groups, lab.seed)
    return studies


def _counts(states: Mapping[str, DenseState], images: Images) -> dict[str, dict[str, Counts]]:
    """State -> the counts of one model, as in `DenseStudy`."""
    plain, counts = next(iter(states.values())), {}
    for state, seen in states.items():
        probe, places = pixel_counts(seen.probe, images.segments, plain.outlier).swapaxes(0, 1)
        nearest = pixel_counts(seen.nearest, images.segments)[:, 0]
        counts[state] = {"probe": probe, "places": places, "nearest": nearest}
    return counts
