"""What outlier tokens one model has, what writes them, and what shifting them changes.

Every other image is searched for register neurons and places; what is said of these was measured
on the rest. Norms are L2 norms of the residual stream after a block, before the final LayerNorm.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from importlib.metadata import distributions
from platform import python_version
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor, nn

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
from helpers.interventions import RegisterNeuron, ablated_neurons, test_time_registers, unwritable
from helpers.measures.attention import mass, with_sink, writes
from helpers.measures.blocks import median_onset, over_blocks, peak_block
from helpers.measures.norms import onset_block, outliers, threshold
from helpers.measures.outliers import FEW, PRESENT, firing, leading_channels, outlier_images
from helpers.measures.similarity import cosine
from helpers.measures.stats import over_images, share, share_at, usual_positions
from helpers.models import Backbone, backbone_of, known
from helpers.own.diagnosis import Diagnosis, FoundSinks, Neuron, Place, State

RULES = (PRESENT, "mad:10", "percentile:98")
DESCRIBED = 3  # register neurons, and images that are drawn large
# Of neurons that may be moved: the smallest that leaves outliers in few images is taken. As many as
# the largest are searched.
COUNTS = (1, 2, 3, 5, 10)
PACKAGES = ("numpy", "open_clip_torch", "pillow", "scipy", "timm", "torch", "torchvision")
SINKS = "attention sinks"
UNNAMED = "has no name by which it loads"
LEAST = 4  # images: two to search in and two to test on


def diagnose(
    backbone: str | nn.Module | Backbone,
    images: Any,
    *,
    seed: int = 0,
    **options: Any,
) -> Diagnosis:
    """Examine one model, a Backbone or what `load_backbone` takes.

    Args:
        images: at least 4, as in `capture`; photographs as the model's training saw them.
        seed: of matched units and of bootstraps.
        options: batch_size, device, dtype, progress, as in `capture`.
    """
    backbone, images = backbone_of(backbone), images_of(images)
    if len(images) < LEAST:
        raise ValueError(f"{len(images)} images; give at least {LEAST}")
    session = _Session(backbone, images, seed, options)
    plain, layout = session.pass_over(images, sinks=True), backbone.layout
    norms = plain.patches("token_norms")
    last, onset = norms[:, -1], onset_block(norms)
    limit, present, mask = threshold(last, PRESENT), outlier_images(last), outliers(last, PRESENT)
    outlying = bool(present.value > FEW)
    if outlying:
        found = session.removal(plain, mask, limit) | {"place": session.place(mask, limit)}
        if "highest_token" in plain.tensors:
            highest = plain["highest_token"][mask.any(1)]
            found["channels"] = leading_channels(highest, DESCRIBED)
    else:
        found = {"pictures": session.pictures({"": session.half(plain)}, session.block_of(plain))}
    largest = last.amax(1) / last.median()
    by_image = {"image": images.ids, "outliers": mask.sum(1), "largest_over_median": largest}
    by_image |= {"shared_attention": None, "answer": None}
    if session.has_classes:
        by_image["answer"] = plain["output"].argmax(1)
    if "sink_patches" in plain.tensors:
        by_image["shared_attention"] = plain["sink_patches"].flatten(1).amax(1)
        found["sinks"] = session.sinks(plain, mask)
    if layout.registers:
        found["register_norm"] = over_images(plain.parts("token_norms")[1].amax(1))
    return Diagnosis(
        model=backbone.describe()
        | {"depth": backbone.depth, "registers": layout.registers}
        | dict(zip(("mean", "std"), backbone.normalisation, strict=True)),
        images=images.describe(),
        n=len(images),
        tested=len(session.test),
        outliers=outlying,
        images_with_outliers=present,
        rules={
            x: (float(outliers(last, x).float().mean()), outlier_images(last, x)) for x in RULES
        },
        outliers_per_image=over_images(mask.sum(1)),
        largest_over_median=over_images(largest),
        share_map=layout.to_grid(mask.float().mean(0)),
        norms=over_blocks(norms.amax(-1)),
        onset=median_onset(onset[mask.any(1)]) if outlying else None,
        seed=seed,
        by_image=pd.DataFrame(by_image).to_dict("records"),
        left_out=session.left_out,
        unwritable=unwritable(backbone) or ("" if known(backbone.name) else UNNAMED),
        provenance={
            "date": date.today().isoformat(),
            "python": python_version(),
            "device": str(backbone.device),
            "packages": {x.name: x.version for x in distributions() if x.name in PACKAGES},
        },
        **found,
    )


class _Session:
    """One model and its images, and what could not be measured of it."""

    def __init__(
        self,
        backbone: Backbone,
        images: Images,
        seed: int,
        options: Mapping[str, Any],
    ):
        self.backbone, self.images, self.seed, self.options = backbone, images, seed, options
        self.left_out: dict[str, str] = {}
        self.searched = torch.arange(len(images)) % 2 == 0
        self.learn, self.test = images.select(self.searched), images.select(~self.searched)
        self.has_classes = self._has_classes()
        if not self.has_classes:
            self.left_out["answers"] = "the model has no classes; its features are compared alone"
        self.optional: dict[str, Reducer] = {
            "[CLS] attention": ClsAttention(-1),
            "channels": HighestToken(-1),
            SINKS: Sinks("all", writes=True),
        }
        for part, reducer in [*self.optional.items()]:
            try:
                self._capture(images.select([0]), [reducer])
            except ValueError as error:
                self.left_out[part] = str(error)
                del self.optional[part]

    def _capture(self, images: Images, reducers: list[Reducer]) -> dict[str, Tensor]:
        return capture(self.backbone, images, reducers, **self.options)

    def _has_classes(self) -> bool:
        """Whether the model has a head, of one number a class."""
        if isinstance(getattr(self.backbone.model, "head", nn.Identity()), nn.Identity):
            return False
        return self._capture(self.images.select([0]), [Output()])["output"].ndim == 2

    def pass_over(self, images: Images, *, sinks: bool = False) -> Captured:
        """One pass in the state in which the model is, with the attention sinks if asked."""
        optional = [x for part, x in self.optional.items() if sinks or part != SINKS]
        kept = self._capture(images, [TokenNorms(), Feature(), Output(), *optional])
        return Captured.of(self.backbone, kept)

    def half(self, kept: Captured) -> Captured:
        """What was kept of the images that are not searched."""
        return replace(kept, tensors={key: x[~self.searched] for key, x in kept.tensors.items()})

    def place(self, mask: Bool[Tensor, "image patch"], limit: float) -> Place | None:
        """Where the outliers stand, and whether they stay there without the content."""
        searched, tested = mask[self.searched], mask[~self.searched]
        if not (searched.any() and tested.any()):
            return None
        corners = self.backbone.layout.corners
        count = max(len(corners), round(mask.sum(1).double().mean().item()))
        positions = usual_positions(searched, min(count, mask.shape[1] // 2))
        rolled, grey = (self._mask(self.test.changed(x), limit) for x in ("rolled", "constant"))
        at = [share_at(x, positions) for x in (tested, rolled)]
        return Place(share_at(mask, corners), positions, *at, over_images(grey.sum(1)))

    def _mask(self, images: Images, limit: float) -> Bool[Tensor, "image patch"]:
        return self._capture(images, [PatchNorms(-1)])["patch_norms"] > limit

    def removal(
        self, plain: Captured, mask: Bool[Tensor, "image patch"], limit: float
    ) -> dict[str, Any]:
        """The neurons, those that are moved, the states of the model, and pictures of two of them,
        on the images that are not searched.
        """
        before, mask = self.half(plain), mask[~self.searched]
        found, changes = {}, {}
        search = {"rule": f"fixed:{limit}", **self.options}
        try:
            self.backbone.layout.require_free()
            neurons = find_register_neurons(self.backbone, self.learn, top_k=COUNTS[-1], **search)
        except ValueError as error:  # no MLP neurons, no place for a token, or no outlier there
            self.left_out["register neurons"] = str(error)
        else:
            moved = neurons[: self._count(neurons, limit)]
            first = neurons[: max(DESCRIBED, len(moved))]
            matched = matched_neurons(self.backbone, first, self.learn, seed=self.seed, **search)
            pairs = [x[:2] for x in matched]
            found["neurons"] = self._neurons(neurons[:DESCRIBED], pairs[:DESCRIBED], mask)
            found["moved"] = moved
            changes = {
                "moved": lambda b: test_time_registers(b, moved),
                "set to zero": lambda b: ablated_neurons(b, moved),
                "matched units moved": lambda b: test_time_registers(b, pairs[: len(moved)]),
                "empty token": lambda b: test_time_registers(b, []),
            }
        states, drawn = {"before": self._state(before, before, mask, limit)}, {"before": before}
        for name, change in changes.items():
            with change(self.backbone):
                now = self.pass_over(self.test, sinks=name == "moved")
            states[name] = self._state(now, before, mask, limit)
            if name == "moved":
                drawn[name] = now
        pictures = self.pictures(drawn, self.block_of(before))
        return {**found, "states": states, "pictures": pictures}

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
        reducers = [NeuronActivation(str(i), block, unit) for i, (block, unit) in enumerate(units)]
        fired = self._capture(self.test, reducers)
        firings = [firing(fired[str(i)].abs(), mask, self.seed) for i in range(len(units))]
        return [*map(Neuron, found, firings, pairs, firings[len(found) :])]

    def _state(
        self, now: Captured, before: Captured, mask: Bool[Tensor, "image patch"], limit: float
    ) -> State:
        norms, appended = now.patches("token_norms"), now.appended("token_norms")
        largest, optional, without = norms[:, -1].amax(1), {}, ~mask.any(1)
        if "cls_attention" in now.tensors:
            former = mass(now.patches("cls_attention"), mask).masked_fill(without, torch.nan)
            optional["outlier_attention"] = over_images(former, limits=(0, 1), continuous=True)
        if self.has_classes:
            optional["agreement"] = share(now["output"].argmax(1) == before["output"].argmax(1))
        if appended.shape[1]:
            optional["register_norm"] = over_images(appended.amax(1))
        if "sink_patches" in now.tensors:
            optional["sinks"] = share(with_sink(now["sink_patches"]))
            former = mass(now.patches("received"), mask[:, None])
            optional["received"] = over_blocks(former.masked_fill(without[:, None], torch.nan))
        return State(
            over_blocks(norms.amax(-1)),
            over_images(largest),
            share(largest > limit),
            over_images(cosine(now["feature"], before["feature"])),
            **optional,
        )

    def sinks(self, kept: Captured, mask: Bool[Tensor, "image patch"]) -> FoundSinks:
        """The attention sinks, and what the outliers `mask` and other tokens receive."""
        layout, received = self.backbone.layout, kept["received"]
        parts = {}
        if layout.registers:
            parts["registers"] = layout.register_tokens(received, -1).sum(-1)
        if layout.cls:
            parts["[CLS]"] = layout.cls_token(received, -1)
        patches = layout.patch_tokens(received, -1)
        if mask.any():
            parts["outliers"] = (patches * mask[:, None]).sum(-1)
        parts["other patches"] = patches.sum(-1) - parts.get("outliers", 0)
        written = writes(kept["sink_one"], kept["sink_value"], kept["sink_rank"])
        return FoundSinks(
            patches=share(with_sink(kept["sink_patches"])),
            registers=share(with_sink(kept["sink_registers"])) if layout.registers else None,
            cls=share(with_sink(kept["sink_cls"])) if layout.cls else None,
            one=share(with_sink(kept["sink_one"])),
            **{x: over_images(y.flatten(1).nanmean(1), (0, 1)) for x, y in written.items()},
            block=self.block_of(kept),
            received={kind: over_blocks(x) for kind, x in parts.items()},
        )

    def block_of(self, kept: Captured) -> int | None:
        """The block in which a patch gets most attention; None where the attention was not read."""
        return peak_block(kept.patches("received").amax(-1)) if "received" in kept.tensors else None

    def pictures(self, passes: Mapping[str, Captured], block: int | None) -> list[dict[str, Any]]:
        """Of a few images that were not searched the image, and in each state patch norms and [CLS]
        attention of the last block, and the attention that patches get from all in `block`.

        `passes`: state -> what was kept of the images that were not searched.
        """
        pixels, count = PixelSet(self.backbone, self.test), min(DESCRIBED, len(self.test))
        rows = [{"image": self.backbone.as_seen(pixels[i])} for i in range(count)]
        for state, kept in passes.items():
            maps = {"norm": kept.patches("token_norms")[:, -1]}
            if "cls_attention" in kept.tensors:
                maps["attention"] = kept.patches("cls_attention")
            if block is not None:
                maps["received"] = kept.patches("received")[:, block]
            for title, values in maps.items():
                for row, one in zip(rows, values[:count], strict=True):
                    row.setdefault(title, {})[state] = self.backbone.layout.to_grid(one)
        return rows
