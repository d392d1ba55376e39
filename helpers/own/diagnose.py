"""What outlier tokens one model has, what writes them, and what moving them to an appended token
changes.

The images are split: every other one is searched for register neurons and for the places of the
outliers, and what is said of these was measured on the rest. Norms are L2 norms of the residual
stream after a block, before the final LayerNorm.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torch.nn.functional import interpolate

from helpers.capture import (
    Captured,
    ClsAttention,
    Feature,
    HighestToken,
    NeuronActivation,
    Output,
    PatchNorms,
    PixelSet,
    Reducer,
    Sinks,
    TokenNorms,
    capture,
    find_register_neurons,
    images_of,
    matched_neurons,
)
from helpers.images import Images
from helpers.interventions import (
    RegisterNeuron,
    ablated_neurons,
    test_time_registers,
    unwritable,
)
from helpers.measures.attention import mass, sinks_by_image, with_sink, writes
from helpers.measures.blocks import median_onset, over_blocks, peak_block
from helpers.measures.norms import onset_block, outliers, threshold
from helpers.measures.outliers import (
    FEW,
    PRESENT,
    Firing,
    firing,
    leading_channels,
    outlier_images,
)
from helpers.measures.similarity import cosine
from helpers.measures.stats import Estimate, over_images, share, share_at, usual_positions
from helpers.models import Backbone, backbone_of, known
from helpers.names import plural

RULES = (PRESENT, "mad:10", "percentile:98")
SHOWN = 3  # register neurons that are described, and images that are shown
# Of neurons that may be moved: the smallest that leaves outliers in few images is taken. As many as
# the largest are searched.
COUNTS = (1, 2, 3, 5, 10)
KEPT = 0.5  # of the images with outliers: where moving leaves more, it is no remedy
THUMBNAILS, SIDE = 300, 112  # images that are kept to be shown, and their longer side in pixels
# Of what is installed, with what a diagnosis is computed.
PACKAGES = ("numpy", "open_clip_torch", "pillow", "scipy", "timm", "torch", "torchvision")
CONCENTRATION = ("top", "peak", "entropy")
SINKS = "attention sinks"
UNNAMED = "has no name by which it loads"
LEAST = 4  # images: two to search in and two to test on


@dataclass(frozen=True)
class FoundSinks:
    """To which tokens nearly all queries of a head attend (arXiv:2606.08105), whatever their norms.

    A sink takes at least half of the attention of at least 90 % of all queries. Up to four tokens
    of a kind may share one, which is this project's: what four corners share is no sink of any.

    Attributes:
        patches, registers, cls: share of the images with a sink of that kind in any head; None for
            a kind that the model does not have.
        one: of a single token of any kind, as in the paper.
        nop, broadcast, other: of the sinks of a single token, those that write next to nothing,
            those that write the same to all queries, and the rest; nan without any.
        block: the one in which a patch gets most attention from all queries, mean over heads.
        received: kind of token -> the attention on all of its tokens after each block: share of all
            that queries give, mean over heads.
        concentration: "top" (on the 1 % of the tokens that get most), "peak" (largest over median
            token) and "entropy" (nats), of each block, mean over heads.
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
        positions: the most frequent positions in the images searched, row-major: as many as an
            image has outliers on average, at least as many as there are corners, and at most half
            of all.
        usual: share of the outliers at these positions in the other images; `rolled`, the same when
            the content of each is moved by half of both sides; `grey`, outliers an image on
            constant grey pictures, where there is no content.
    """

    corners: Estimate
    positions: list[int]
    usual: Estimate
    rolled: Estimate
    grey: Estimate


@dataclass(frozen=True)
class Neuron:
    """A register neuron on images in which it was not searched, beside a random one of its block
    that writes most nearly as much.
    """

    neuron: RegisterNeuron
    firing: Firing
    matched: tuple[int, int]
    matched_firing: Firing


@dataclass(frozen=True)
class State:
    """The model in one state, on the images that were not searched.

    Attributes:
        norms: largest patch norm after each block, over images.
        largest: of the last block.
        images_with_outliers: by the threshold of the unedited model.
        cosine: of the pooled feature with that of the unedited model.
        outlier_attention: [CLS] attention in the last block on the patches that are outliers in the
            unedited model; None without [CLS].
        agreement: share of images with the unedited model's answer; None where the model has no
            classes.
        accuracy: where the labels are the classes; else None.
        register_norm: of the appended token after the last block; None where there is none.
        sinks: share of the images with a sink of patches; None where it was not asked for.
        received: attention of all queries on the patches that are outliers in the unedited model,
            their sum after each block, mean over heads; None where `sinks` is.
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
    """What a classifier says, of all images.

    Attributes:
        right: share of the images whose label it names.
        commonest: share of the images that have the commonest label.
        labels: least and largest.
        classes: of the head.
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
    """What is shown of each image, those with the largest norms first.

    Attributes:
        index: which images these are.
        pictures: as the model gets them, smaller.
        norms: of the patches after the last block.
        received: attention that each patch gets from all queries, mean over heads, in the block
            where one gets most; None where the attention cannot be read.
    """

    index: list[int]
    pictures: UInt8[np.ndarray, "image height width 3"]
    norms: Float[Tensor, "image row column"]
    received: Float[Tensor, "image row column"] | None


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` finds; in a notebook it is shown as its page.

    Attributes:
        model, images: `describe()` of both.
        n, tested: images in all, and those that were not searched.
        outliers: whether more than 5 % of the images have one, by 3 x the median norm.
        rules: rule -> share of the patches, share of the images with one.
        per_image: outliers an image.
        ratio: largest norm of an image over the median of all.
        share_map: (row, column) share of the images with an outlier there.
        norms: largest patch norm after each block, all images.
        onset: first block with an outlier, the median over images that have one after the last
            block; None without outliers.
        channels: (channel, share of the squared norm of the highest token), largest first.
        sinks: None where the attention cannot be read.
        by_image: of each image its name, how many outliers it has, its largest norm over the median
            of all, and the most attention that its patches share in a head, see `FoundSinks`.
        place: None without outliers, and where only images that are searched, or only others, have
            some.
        neurons, states: empty without outliers, or where `left_out` says why.
        moved: the neurons that are moved: the fewest of those found that leave outliers in few of
            the images searched.
        pictures: title -> image or map (row, column), a mapping an image.
        left_out: part -> why it could not be measured.
        register_norm: of an image's highest register after the last block; None where the model has
            none.
        answers: None unless labels are given.
        classes: of the model's head; 0 where it has none.
        unwritable: why `edit` does not write the model, as the end of a sentence; '' where it does.
        thumbnails: at most 300.
        made: date, and versions of packages.
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
    made: dict[str, Any] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """The page, in a notebook."""
        from helpers.own.report import framed  # which reads this module

        return framed(self)

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
        return self.moved if before and moved <= KEPT * before else []


def diagnose(
    backbone: str | nn.Module | Backbone,
    images: Any,
    *,
    labelled: bool = False,
    seed: int = 0,
    **options: Any,
) -> Diagnosis:
    """Examine one model.

    Args:
        backbone: a Backbone, or what `load_backbone` takes.
        images: at least 4, as in `capture`; photographs as the model's training saw them.
        labelled: whether the images' labels are the classes of the model's head.
        seed: of matched units and of bootstraps.
        options: batch_size, device, dtype, progress, as in `capture`.

    Raises ValueError for fewer images, labels that are not the head's, and what `capture` raises.
    """
    backbone = backbone_of(backbone)
    images = images_of(backbone, images)
    if len(images) < LEAST:
        raise ValueError(
            f"{plural(len(images), 'image')}; give at least {LEAST}, half of them to search in and "
            "half to test on"
        )
    session = _Session(backbone, images, labelled, seed, options)
    plain, layout = session.pass_over(images, sinks=True), backbone.layout
    norms = plain.patches("token_norms")
    last, onset = norms[:, -1], onset_block(norms)
    limit, present = threshold(last, PRESENT), outlier_images(last)
    mask, found = outliers(last, PRESENT), {}
    if outlying := bool(present.value > FEW):
        halves = {key: x[~session.searched] for key, x in plain.tensors.items()}
        before = replace(plain, tensors=halves)
        found = session.removal(before, mask[~session.searched], limit)
        found["place"] = session.place(mask, limit)
    else:
        found["pictures"] = session.pictures({"": nullcontext}, session.block_of(plain))
    shared = plain.tensors.get("sink_patches")
    shared = None if shared is None else shared.flatten(1).amax(1)
    named = plain["output"].argmax(1) if session.classes else None
    by_image = [
        {
            "image": images.ids[i],
            "outliers": int(mask[i].sum()),
            "largest_over_median": float(last[i].amax() / last.median()),
            "shared_attention": None if shared is None else float(shared[i]),
            "answer": None if named is None else int(named[i]),
        }
        for i in range(len(images))
    ]
    channels = plain.tensors.get("highest_token") if outlying else None
    return Diagnosis(
        model=backbone.describe() | {"depth": backbone.depth, "registers": layout.registers},
        images=images.describe(),
        n=len(images),
        tested=len(session.test),
        outliers=outlying,
        images_with_outliers=present,
        rules={
            rule: (float(outliers(last, rule).float().mean()), outlier_images(last, rule))
            for rule in RULES
        },
        per_image=over_images(mask.sum(1)),
        ratio=over_images(last.amax(1) / last.median()),
        share_map=layout.to_grid(mask.float().mean(0)),
        norms=over_blocks(norms.amax(-1)),
        onset=median_onset(onset[mask.any(1)]) if outlying else None,
        channels=[] if channels is None else leading_channels(channels[mask.any(1)], SHOWN),
        sinks=None if shared is None else session.sinks(plain, mask),
        by_image=by_image,
        left_out=session.left_out,
        register_norm=over_images(plain.parts("token_norms")[1].amax(1))
        if layout.registers
        else None,
        answers=session.answers(named) if labelled else None,
        classes=session.classes,
        unwritable=unwritable(backbone) or ("" if known(backbone.name) else UNNAMED),
        thumbnails=session.thumbnails(plain),
        made={"date": date.today().isoformat(), "python": python_version(), **_versions()},
        **found,
    )


class _Session:
    """One model and its images, and what could not be measured of it."""

    def __init__(
        self,
        backbone: Backbone,
        images: Images,
        labelled: bool,
        seed: int,
        options: Mapping[str, Any],
    ):
        self.backbone, self.images, self.seed, self.options = backbone, images, seed, options
        self.left_out: dict[str, str] = {}
        self.searched = torch.arange(len(images)) % 2 == 0
        self.learn, self.test = images.select(self.searched), images.select(~self.searched)
        self.classes = self._classes()
        if not self.classes:
            self.left_out["answers"] = "the model has no classes; its features are compared alone"
        self.all_labels = self._labels() if labelled else None
        self.labels = self.all_labels[~self.searched] if labelled else None
        self.optional: dict[str, Reducer] = {}
        parts = {
            "[CLS] attention": ClsAttention(-1),
            "channels": HighestToken(-1),
            SINKS: Sinks("all", writes=True),
        }
        for part, reducer in parts.items():
            try:
                capture(backbone, images.select([0]), [reducer], **options)
            except ValueError as error:
                self.left_out[part] = str(error)
            else:
                self.optional[part] = reducer

    def pass_over(self, images: Images, *, sinks: bool = False) -> Captured:
        """One pass in the state in which the model is, and a look at each head with `sinks`."""
        optional = [x for part, x in self.optional.items() if sinks or part != SINKS]
        reducers = [TokenNorms(), Feature(), Output(), *optional]
        return Captured.of(self.backbone, capture(self.backbone, images, reducers, **self.options))

    def _classes(self) -> int:
        """How many classes the model's head has; 0 where there is no head, or one of another kind.

        As many classes as the feature is wide are classes: the head says so, not its shape.
        """
        if isinstance(getattr(self.backbone.model, "head", nn.Identity()), nn.Identity):
            return 0
        output = capture(self.backbone, self.images.select([0]), [Output()], **self.options)
        return output["output"].shape[1] if output["output"].ndim == 2 else 0

    def _labels(self) -> Int64[Tensor, " image"]:
        """The classes of the images, once all are known to be the head's."""
        labels = self.images.require_labels()
        if not self.classes or labels.max() >= self.classes:
            raise ValueError(
                f"labels from {labels.min()} to {labels.max()} are no classes of a head that has "
                f"{self.classes}; leave out --labelled (labelled=True)"
            )
        return torch.from_numpy(labels)

    def answers(self, named: Int64[Tensor, " image"]) -> Answers:
        """How often the classes that the model named are the labels."""
        labels = self.all_labels
        return Answers(
            share(named == labels),
            float(labels.bincount().amax() / len(labels)),
            (int(labels.min()), int(labels.max())),
            self.classes,
        )

    def thumbnails(self, kept: Captured) -> Thumbnails:
        """Of the images with the largest norms."""
        norms, to_grid = kept.patches("token_norms")[:, -1], self.backbone.layout.to_grid
        index = norms.amax(1).argsort(descending=True)[:THUMBNAILS]
        block, received = self.block_of(kept), None
        if block is not None:
            received = to_grid(kept.patches("received")[index, block])
        pixels, pictures = PixelSet(self.backbone, self.images), []
        longest = SIDE / max(self.backbone.image_size)
        size = [max(1, round(side * longest)) for side in self.backbone.image_size]
        for i in index.tolist():
            seen = self.backbone.as_seen(pixels[i]).movedim(-1, 0)[None]
            small = interpolate(seen, size, mode="bilinear", antialias=True)[0].movedim(0, -1)
            pictures.append((255 * small).round().byte().numpy())
        return Thumbnails(index.tolist(), np.stack(pictures), to_grid(norms[index]), received)

    def place(self, mask: Bool[Tensor, "image patch"], limit: float) -> Place | None:
        """Where the outliers stand, and whether they stay there without the content; None where
        only one half of the images has some.
        """
        searched, tested = mask[self.searched], mask[~self.searched]
        if not (searched.any() and tested.any()):
            return None
        corners = self.backbone.layout.corners
        count = max(len(corners), round(mask.sum(1).double().mean().item()))
        positions = usual_positions(searched, min(count, mask.shape[1] // 2))
        rolled, grey = (
            self._mask(self.test.changed(kind), limit) for kind in ("rolled", "constant")
        )
        return Place(
            share_at(mask, corners),
            positions,
            share_at(tested, positions),
            share_at(rolled, positions),
            over_images(grey.sum(1)),
        )

    def removal(
        self, before: Captured, mask: Bool[Tensor, "image patch"], limit: float
    ) -> dict[str, Any]:
        """The neurons, those that are moved, and the states of the model, with its pictures in the
        first two.

        `before` and `mask`, its outliers, are of the images that are not searched.
        """
        removal, states, changes = {}, {}, {"before": nullcontext}
        search = {"rule": f"fixed:{limit}", **self.options}
        try:
            found = find_register_neurons(self.backbone, self.learn, top_k=COUNTS[-1], **search)
        except ValueError as error:  # no MLP neurons, or no outlier where it searches
            self.left_out["register neurons"] = str(error)
        else:
            moved = found[: self._count(found, limit)]
            first = found[: max(SHOWN, len(moved))]
            pairs = matched_neurons(self.backbone, first, self.learn, seed=self.seed, **search)
            pairs = [x[:2] for x in pairs]
            removal = {"neurons": self._neurons(found[:SHOWN], pairs[:SHOWN], mask), "moved": moved}
            changes |= {
                "moved": lambda b: test_time_registers(b, moved),
                "set to zero": lambda b: ablated_neurons(b, moved),
                "matched units moved": lambda b: test_time_registers(b, pairs[: len(moved)]),
                "empty token": lambda b: test_time_registers(b, []),
            }
        for name, change in changes.items():
            with change(self.backbone):
                asked = name == "moved"
                now = before if name == "before" else self.pass_over(self.test, sinks=asked)
                states[name] = self._state(now, before, mask, limit)
        shown = {name: changes[name] for name in ("before", "moved") if name in changes}
        pictures = self.pictures(shown, self.block_of(before))
        return {**removal, "states": states, "pictures": pictures}

    def sinks(self, kept: Captured, mask: Bool[Tensor, "image patch"]) -> FoundSinks:
        """`mask`: the outliers."""
        layout, received = self.backbone.layout, kept["received"]
        kinds = {
            "registers": layout.register_tokens(received, -1) if layout.registers else None,
            "[CLS]": layout.cls_token(received, -1)[..., None] if layout.cls else None,
        }
        parts = {kind: x.sum(-1) for kind, x in kinds.items() if x is not None}
        patches = layout.patch_tokens(received, -1)
        if mask.any():
            parts["outliers"] = (patches * mask[:, None]).sum(-1)
        parts["other patches"] = patches.sum(-1) - parts.get("outliers", 0)
        found = sinks_by_image(*(kept[f"sink_{x}"] for x in ("patches", "registers", "one")))
        written = writes(kept["sink_one"], kept["sink_value"], kept["sink_rank"])
        each = {name: x.flatten(1).nanmean(1) for name, x in written.items()}
        return FoundSinks(
            patches=share(found["sink_images"]),
            registers=share(found["register_sink_images"]) if layout.registers else None,
            cls=share(with_sink(kept["sink_cls"])) if layout.cls else None,
            one=share(found["sink_one_images"]),
            **{name: over_images(x, (0, 1)) for name, x in each.items()},
            block=self.block_of(kept),
            received={kind: over_blocks(x) for kind, x in parts.items()},
            concentration={
                name: over_blocks(kept[f"received_{name}"].mean(-1)) for name in CONCENTRATION
            },
        )

    def block_of(self, kept: Captured) -> int | None:
        """The block in which a patch gets most attention; None where the attention was not read."""
        if "received" not in kept.tensors:
            return None
        patches = self.backbone.layout.patch_tokens(kept["received"], -1)
        return peak_block(patches.amax(-1))

    def pictures(
        self,
        changes: Mapping[str, Callable[[Backbone], AbstractContextManager]],
        block: int | None,
    ) -> list[dict[str, Any]]:
        """Image, patch norms and [CLS] attention of the last block, and the attention that patches
        get from all queries of `block`, of a few images that were not searched, in each state.
        """
        chosen, passes = self.test.select(range(min(SHOWN, len(self.test)))), {}
        for state, change in changes.items():
            with change(self.backbone):
                passes[state] = self.pass_over(chosen, sinks=True)
        seen = PixelSet(self.backbone, chosen)
        rows = [{"image": self.backbone.as_seen(seen[i])} for i in range(len(chosen))]
        shown = {"norm": ("token_norms", -1), "attention": ("cls_attention", -1)}
        shown["received"] = "received", block
        for title, (key, at) in shown.items():
            for state, kept in passes.items():
                maps = kept.patches(key) if key in kept.tensors else ()
                for row, values in zip(rows, maps, strict=False):
                    one = values if values.ndim == 1 else values[at]
                    row[f"{title}\n{state}"] = self.backbone.layout.to_grid(one)
        return rows

    def _mask(self, images: Images, limit: float) -> Bool[Tensor, "image patch"]:
        return (
            capture(self.backbone, images, [PatchNorms(-1)], **self.options)["patch_norms"] > limit
        )

    def _count(self, neurons: list[RegisterNeuron], limit: float) -> int:
        """How many neurons are moved: the fewest that leave outliers in few of the images searched;
        else those that leave them in the fewest, of equal ones the smaller number.
        """
        left = {}
        for count in COUNTS:
            with test_time_registers(self.backbone, neurons[:count]):
                left[count] = int(self._mask(self.learn, limit).any(1).sum())
            if left[count] <= FEW * len(self.learn):
                return count
        return min(left, key=lambda count: (left[count], count))

    def _neurons(
        self,
        found: list[RegisterNeuron],
        pairs: list[tuple[int, int]],
        mask: Bool[Tensor, "image patch"],
    ) -> list[Neuron]:
        units = [*(x[:2] for x in found), *pairs]
        kept = [NeuronActivation(str(i), block, unit) for i, (block, unit) in enumerate(units)]
        fired = capture(self.backbone, self.test, kept, **self.options)
        firings = [firing(fired[str(i)].abs(), mask, self.seed) for i in range(len(units))]
        return [
            Neuron(*row) for row in zip(found, firings, pairs, firings[len(found) :], strict=False)
        ]

    def _state(
        self, now: Captured, before: Captured, mask: Bool[Tensor, "image patch"], limit: float
    ) -> State:
        norms, appended = now.patches("token_norms"), now.appended("token_norms")
        largest, optional, without = norms[:, -1].amax(1), {}, ~mask.any(1)
        if "cls_attention" in now.tensors:
            kept = mass(now.patches("cls_attention"), mask).masked_fill(without, torch.nan)
            optional["outlier_attention"] = over_images(kept, limits=(0, 1), continuous=True)
        if "answers" not in self.left_out:
            answers, others = now["output"].argmax(1), before["output"].argmax(1)
            optional["agreement"] = share(answers == others)
            if self.labels is not None:
                optional["accuracy"] = share(answers == self.labels)
        if appended.shape[1]:
            optional["register_norm"] = over_images(appended.amax(1))
        if "sink_patches" in now.tensors:
            optional["sinks"] = share(with_sink(now["sink_patches"]))
            kept = mass(now.patches("received"), mask[:, None])
            kept = kept.masked_fill(without[:, None], torch.nan)
            optional["received"] = over_blocks(kept)
        return State(
            over_blocks(norms.amax(-1)),
            over_images(largest),
            share(largest > limit),
            over_images(cosine(now["feature"], before["feature"])),
            **optional,
        )


def _versions() -> dict[str, str]:
    """Of the packages that decide the numbers, as far as they are installed."""
    found = {}
    for name in ("registers-reproduced", *PACKAGES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
