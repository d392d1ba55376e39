"""What is found of one model: numbers, maps and pictures."""

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from helpers.interventions import RegisterNeuron
from helpers.measures.outliers import FEW, Firing
from helpers.measures.stats import Estimate

REMEDY = 0.5  # of the images with outliers: where shifting leaves more, it is no remedy


@dataclass(frozen=True)
class FoundSinks:
    """Share of the images with a sink of each kind: tokens that get at least half of the attention
    of at least 90 % of a head's queries (arXiv:2606.08105); up to four of a kind may share one.

    `nop`, `broadcast` and `other` are shares of the sinks of one token: they write next to nothing,
    the same to all queries, or neither.
    """

    patches: Estimate
    registers: Estimate | None
    cls: Estimate | None
    one: Estimate  #: a single token of any kind, as in the paper
    nop: Estimate
    broadcast: Estimate
    other: Estimate
    block: int  #: in which a patch gets most attention
    received: dict[str, list[Estimate]]  #: kind of token -> share of all attention, by block


@dataclass(frozen=True)
class Place:
    """Where outliers stand: shares of all outliers, and outliers an image without content."""

    corners: Estimate
    positions: list[int]  #: the most frequent ones (row-major) in the images searched
    usual: Estimate  #: at these positions, in the other images
    rolled: Estimate  #: the same, with the content moved by half of both sides
    grey: Estimate  #: outliers an image on constant grey pictures


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
    """The model in one state beside the unedited one, on the images that were not searched.

    The outliers, in `outlier_attention` and `received`, are those of the unedited model.
    """

    norms: list[Estimate]  #: largest patch norm after each block
    largest: Estimate  #: after the last block
    images_with_outliers: Estimate  #: by the threshold of the unedited model
    cosine: Estimate  #: of the pooled feature with that of the unedited model
    outlier_attention: Estimate | None = None  #: of [CLS] in the last block
    agreement: Estimate | None = None  #: share of the images with the unedited model's answer
    register_norm: Estimate | None = None  #: of the appended token after the last block
    sinks: Estimate | None = None  #: share of the images with a sink of patches
    received: list[Estimate] | None = None  #: attention of all queries, by block

    @property
    def most_received(self) -> Estimate | None:
        """That of the block where these patches together get most."""
        return max(self.received, key=lambda x: x.value) if self.received else None


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` finds; states and neurons only where there are outliers."""

    model: dict[str, Any]
    images: dict[str, Any]
    n: int
    tested: int  #: of the images, those that were not searched
    outliers: bool  #: whether more than 5 % of the images have one, by 3 x the median norm
    images_with_outliers: Estimate
    rules: dict[str, tuple[float, Estimate]]  #: share of the patches, and of the images with one
    outliers_per_image: Estimate
    largest_over_median: Estimate  #: norm of an image's highest patch over the median of all
    share_map: Float[Tensor, "row column"]  #: share of the images with an outlier there
    norms: list[Estimate]  #: largest patch norm after each block
    onset: int | None  #: first block with an outlier, median over images with one at the end
    #: and their shares of the highest token's squared norm
    channels: list[tuple[int, float]] = field(default_factory=list)
    seed: int = 0
    sinks: FoundSinks | None = None
    by_image: list[dict[str, Any]] = field(default_factory=list)
    place: Place | None = None  #: None without outliers in both halves of the images
    neurons: list[Neuron] = field(default_factory=list)
    moved: list[RegisterNeuron] = field(default_factory=list)
    states: dict[str, State] = field(default_factory=dict)
    #: of a few images each the "image", and kind of map -> state -> map
    pictures: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  #: part -> why it was not measured
    register_norm: Estimate | None = None  #: of an image's highest register after the last block
    unwritable: str = ""  #: why `edit` does not write the model, as the end of a sentence
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def has_sinks(self) -> bool | None:
        """Whether more than 5 % of the images have a sink of patches; None if not read."""
        return None if self.sinks is None else self.sinks.patches.value > FEW

    @property
    def cell(self) -> str | None:
        """Outliers, sinks of patches, both or neither; None if attention was not read."""
        if self.has_sinks is None:
            return None
        if self.outliers:
            return "outliers and sinks" if self.has_sinks else "outliers alone"
        return "sinks alone" if self.has_sinks else "neither"

    @property
    def remedy(self) -> list[RegisterNeuron]:
        """The neurons that are moved, if at most half of the images that were not searched and
        have an outlier have one still; else none.
        """
        if "moved" not in self.states:
            return []
        before, moved = (self.states[x].images_with_outliers.value for x in ("before", "moved"))
        return self.moved if before and moved <= REMEDY * before else []
