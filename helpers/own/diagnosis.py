"""What is found of one model: numbers, maps and pictures."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from helpers.interventions import RegisterNeuron
from helpers.measures.outliers import FEW, Firing
from helpers.measures.stats import Estimate

REMEDY = 0.5  # of the images with outliers: where moving leaves more, it is no remedy


@dataclass(frozen=True)
class FoundSinks:
    """Tokens that get at least half of the attention of at least 90 % of a head's queries
    (arXiv:2606.08105), whatever their norms; up to four tokens of a kind may share one.

    Attributes:
        patches, registers, cls: share of the images with a sink of that kind; None for a kind that
            the model does not have.
        one: of a single token of any kind, as in the paper.
        nop, broadcast, other: of the sinks of a single token, those that write next to nothing,
            those that write the same to all queries, and the rest; nan without any.
        block: the one in which a patch gets most attention.
        received: kind of token -> its share of all attention in each block, mean over heads.
        concentration: "top" (share on 1 % of the tokens), "peak" (largest over median token) and
            "entropy" (nats), of each block, mean over heads.
    """

    patches: Estimate
    registers: Estimate | None
    cls: Estimate | None
    one: Estimate
    nop: Estimate
    broadcast: Estimate
    other: Estimate
    block: int
    received: dict[str, list[Estimate]]
    concentration: dict[str, list[Estimate]]


@dataclass(frozen=True)
class Place:
    """Where outliers stand.

    Attributes:
        corners: share of the outliers in the corner patches, all images.
        positions: the most frequent ones (row-major) in the images searched.
        usual, rolled: share of the outliers of the other images at these positions; the same when
            the content is moved by half of both sides.
        grey: outliers an image on constant grey pictures, where there is no content.
    """

    corners: Estimate
    positions: list[int]
    usual: Estimate
    rolled: Estimate
    grey: Estimate


@dataclass(frozen=True)
class Neuron:
    """A register neuron on images in which it was not searched, and a random one of its block that
    writes most nearly as much.
    """

    neuron: RegisterNeuron
    firing: Firing
    matched: tuple[int, int]
    matched_firing: Firing


@dataclass(frozen=True)
class State:
    """The model in one state, on the images that were not searched.

    Attributes:
        norms, largest: largest patch norm after each block, and after the last.
        images_with_outliers: by the threshold of the unedited model.
        cosine: of the pooled feature with that of the unedited model.
        outlier_attention: [CLS] attention in the last block on the outliers of the unedited model.
        agreement: share of images with the unedited model's answer.
        accuracy: where the labels are the classes.
        register_norm: of the appended token after the last block.
        sinks: share of the images with a sink of patches.
        received: attention of all queries on the outliers of the unedited model, in each block,
            mean over heads.
    """

    norms: list[Estimate]
    largest: Estimate
    images_with_outliers: Estimate
    cosine: Estimate
    outlier_attention: Estimate | None = None
    agreement: Estimate | None = None
    accuracy: Estimate | None = None
    register_norm: Estimate | None = None
    sinks: Estimate | None = None
    received: list[Estimate] | None = None

    @property
    def most_received(self) -> Estimate | None:
        """That of the block where these patches together get most."""
        return max(self.received, key=lambda x: x.value) if self.received else None


@dataclass(frozen=True)
class Answers:
    """How often a classifier is right, the commonest label's share, and the least and the largest
    label beside the number of the head's classes.
    """

    right: Estimate
    commonest: float
    labels: tuple[int, int]
    classes: int

    @property
    def by_chance(self) -> bool:
        """Whether naming the commonest label alone would be right as often."""
        return self.right.value <= min(self.commonest, 0.5)


@dataclass(frozen=True)
class Thumbnails:
    """The images with the largest norms in that order: as the model gets them, norms of the patches
    after the last block, and the attention they get in the block where one gets most.
    """

    index: list[int]
    pictures: UInt8[np.ndarray, "image height width 3"]
    norms: Float[Tensor, "image row column"]
    received: Float[Tensor, "image row column"] | None


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` finds.

    Attributes:
        n, tested: images in all, and those that were not searched.
        outliers: whether more than 5 % of the images have one, by 3 x the median norm.
        rules: rule -> share of the patches, share of the images with one.
        per_image, ratio: outliers an image; its largest norm over the median of all.
        share_map: share of the images with an outlier there.
        norms: largest patch norm after each block, all images.
        onset: first block with an outlier, the median over images with one after the last block.
        channels: (channel, share of the squared norm of the highest token), largest first.
        place: None without outliers in both halves of the images.
        neurons, states: empty without outliers, or where `left_out` says why.
        moved: the fewest of the neurons found that leave outliers in few of the images searched.
        pictures: title -> image or map, a mapping an image.
        left_out: part -> why it could not be measured.
        register_norm: of an image's highest register after the last block.
        classes: of the model's head; 0 where it has none.
        unwritable: why `edit` does not write the model, as the end of a sentence; '' where it does.
    """

    model: dict[str, Any]
    images: dict[str, Any]
    n: int
    tested: int
    outliers: bool
    images_with_outliers: Estimate
    rules: dict[str, tuple[float, Estimate]]
    per_image: Estimate
    ratio: Estimate
    share_map: Float[Tensor, "row column"]
    norms: list[Estimate]
    onset: int | None
    channels: list[tuple[int, float]]
    seed: int = 0
    sinks: FoundSinks | None = None
    by_image: list[dict[str, Any]] = field(default_factory=list)
    place: Place | None = None
    neurons: list[Neuron] = field(default_factory=list)
    moved: list[RegisterNeuron] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)
    pictures: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    register_norm: Estimate | None = None
    answers: Answers | None = None
    classes: int = 0
    unwritable: str = ""
    thumbnails: Thumbnails | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def has_sinks(self) -> bool | None:
        """Whether more than 5 % of the images have a sink of patches.

        None where the attention cannot be read.
        """
        return None if self.sinks is None else self.sinks.patches.value > FEW

    @property
    def cell(self) -> str | None:
        """Outliers, sinks of patches, both or neither; None where the attention cannot be read."""
        if self.has_sinks is None:
            return None
        if self.outliers:
            return "outliers and sinks" if self.has_sinks else "outliers alone"
        return "sinks alone" if self.has_sinks else "neither"

    @property
    def remedy(self) -> list[RegisterNeuron]:
        """The neurons that are moved, where that takes most outliers away; else none.

        Judged on the images that were not searched: of those with an outlier at most half have
        one still.
        """
        if "moved" not in self.states:
            return []
        before, moved = (self.states[x].images_with_outliers.value for x in ("before", "moved"))
        return self.moved if before and moved <= REMEDY * before else []
