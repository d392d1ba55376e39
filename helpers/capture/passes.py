"""Passes of several models over the same images, under one or several conditions, with no more than
one model in memory.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.reducers import Reducer
from helpers.images import Images
from helpers.models import Backbone, ModelUnavailable, TokenLayout, load_backbone

PIXELS = 2**30  # bytes of pixels that are kept from one condition to the next

Condition = Callable[[Backbone], AbstractContextManager | None]  # None: not for this model
Reducers = Sequence[Reducer] | Callable[[str], Sequence[Reducer]]


@dataclass(frozen=True)
class Captured:
    """What `capture` kept of one model, by key, and what is needed to read it once the model is
    gone.
    """

    tensors: dict[str, Tensor]
    layout: TokenLayout
    image_size: tuple[int, int]
    parameters: int
    depth: int
    source: dict[str, Any]

    @staticmethod
    def of(backbone: Backbone, tensors: dict[str, Tensor]) -> "Captured":
        """What `capture` kept of the model as it is now."""
        b = backbone
        return Captured(tensors, b.layout, b.image_size, b.parameters, b.depth, b.describe())

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def patches(self, key: str) -> Tensor:
        """The patches of what was kept of all tokens."""
        return self.layout.patch_tokens(self[key], dim=-1)

    def parts(self, key: str, block: int = -1) -> tuple[Tensor, Tensor]:
        """(image, patch) and (image, trained register) of what was kept of all tokens."""
        tokens = self[key][:, block]
        return self.layout.patch_tokens(tokens, dim=-1), self.layout.register_tokens(tokens, dim=-1)

    def carriers(self, key: str, block: int | None = -1) -> tuple[Tensor, Tensor]:
        """As `parts`, with the appended tokens after the trained registers; `block` None: of what
        was kept in one block alone.
        """
        tokens = self[key] if block is None else self[key][:, block]
        of = self.layout.patch_tokens, self.layout.register_tokens, self.layout.appended_tokens
        patches, *others = (take(tokens, dim=-1) for take in of)
        return patches, torch.cat(others, dim=-1)

    def appended(self, key: str, block: int = -1) -> Tensor:
        """The appended tokens of what was kept of all tokens, in a block."""
        return self.layout.appended_tokens(self[key][:, block], dim=-1)

    @property
    def resolution(self) -> str:
        """For figures, such as '224 x 224 px'."""
        return f"{self.image_size[0]} x {self.image_size[1]} px"


def peak_maps(captured: Mapping[str, Captured]) -> tuple[int, dict[str, Tensor]]:
    """The image with the largest patch norm in the first model, and its map of patch norms in each
    (patch row, patch column), over the median of the model's patches.

    Args:
        captured: title -> what was kept of the same images, with `TokenNorms` of the last block.
    """
    norms = {title: c.parts("token_norms")[0] for title, c in captured.items()}
    image = int(next(iter(norms.values())).amax(1).argmax())
    return image, {
        title: c.layout.to_grid(norms[title][image] / norms[title].median())
        for title, c in captured.items()
    }


def by_model(
    passes: Mapping[Hashable, Mapping[str, Any]],
) -> dict[str, dict[Hashable, Any]]:
    """Model -> condition -> what was kept or read, of passes by condition."""
    models = dict.fromkeys(model for kept in passes.values() for model in kept)
    return {
        model: {name: kept[model] for name, kept in passes.items() if model in kept}
        for model in models
    }


def maps_of(
    passes: Mapping[Hashable, Mapping[str, Captured]], key: str
) -> dict[str, dict[Hashable, Tensor]]:
    """Model -> condition -> (image, patch row, patch column) of what was kept of the patches."""
    return {
        model: {name: c.layout.to_grid(c[key]) for name, c in own.items()}
        for model, own in by_model(passes).items()
    }


def last_maps(passes: Mapping[Hashable, Mapping[str, Captured]]) -> dict[str, dict[str, Tensor]]:
    """Model -> title -> norms and [CLS] attention after the last block (image, patch row, patch
    column), the latter as mean over heads, without the rounding of the forward pass.

    Args:
        passes: as from `capture_conditions`, with `TokenNorms()` and `ClsAttention("all", "all")`.
    """
    maps = {}
    for model, own in by_model(passes).items():
        norms, attention = {}, {}
        for name, c in own.items():
            norms[f"norm\n{name}"] = c.layout.to_grid(c.patches("token_norms")[:, -1])
            mean = c.patches("cls_attention")[:, -1].mean(1)
            attention[f"attention\n{name}"] = c.layout.to_grid(mean.round(decimals=6))
        maps[model] = norms | attention
    return maps


def require_models(names: Sequence[str]) -> None:
    """Raise ModelUnavailable where no model is named."""
    if not names:
        raise ModelUnavailable("no model was named; give at least one")


def backbones(
    names: Sequence[str], not_run: dict[str, str], image_size: int | None = None, **options: Any
) -> Iterator[Backbone]:
    """Each model, loaded when the one before is done with.

    Args:
        not_run: gets model -> reason for those whose weights are not here.
        image_size: side in pixels, rounded down to a multiple of the model's patch; its own size
            where it is 0 or not given.

    Raises ModelUnavailable where none of them is here.
    """
    for name in names:
        try:
            backbone = load_backbone(name, image_size=image_size or None, fit=True, **options)
        except ModelUnavailable as error:
            not_run[name] = str(error)
            continue
        yield backbone
    if names and len(not_run) == len({*names}):
        raise ModelUnavailable("; ".join(not_run.values()))


def capture_conditions(
    names: Sequence[str],
    images: Any,
    reducers: Reducers | Mapping[Hashable, Reducers],
    conditions: Mapping[Hashable, Condition],
    *,
    image_size: int | None = None,
    whole: bool = False,
    read: Callable[[Captured], Any] = lambda captured: captured,
    **options: Any,
) -> tuple[dict[Hashable, dict[str, Any]], dict[str, str]]:
    """`capture` for one model after another, each loaded once, under one condition after another.

    Args:
        images: as in `capture`, or condition -> images where these differ.
        reducers: what to keep, or a function of the model's name that says it; or condition ->
            either of these.
        conditions: name -> what changes the forward pass, such as an intervention; `nullcontext`
            for the model as it is. One that returns None leaves its model out.
        image_size: as in `backbones`.
        whole: as in `load_backbone`.
        read: takes what was kept of a model; its answer takes that place, so that what was kept is
            let go before the next pass.

    Returns:
        condition -> model -> the `Captured`, or what `read` made of it, and model -> why its
        weights are not here.
    """
    passes: dict[Hashable, dict[str, Any]] = {condition: {} for condition in conditions}
    not_run: dict[str, str] = {}
    for backbone in backbones(names, not_run, image_size, whole=whole):
        shown = images if isinstance(images, Mapping) else dict.fromkeys(conditions, images)
        shown = _prepared(backbone, {condition: shown[condition] for condition in conditions})
        for condition, change in conditions.items():
            if (intervention := change(backbone)) is None:
                continue
            kept = reducers[condition] if isinstance(reducers, Mapping) else reducers
            kept = kept(backbone.name) if callable(kept) else kept
            with intervention:
                passes[condition][backbone.name] = read(
                    Captured.of(backbone, capture(backbone, shown[condition], kept, **options))
                )
    return passes, not_run


def _prepared(backbone: Backbone, shown: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """The images of each condition, those of several made into pixels once, as far as these fit
    into `PIXELS`.
    """
    passes = Counter(map(id, shown.values()))
    prepared, left = {}, PIXELS

    def through(images: Any) -> Any:
        read = lru_cache(None)(lambda index: backbone.preprocess(images[index]))
        return replace(images, read=read)

    for images in shown.values():
        size = 4 * 3 * math.prod(backbone.image_size) * len(images)  # bytes in float32
        again = passes[id(images)] > 1 and id(images) not in prepared
        if again and size <= left and isinstance(images, Images):
            prepared[id(images)] = through(images)
            left -= size
    return {name: prepared.get(id(images), images) for name, images in shown.items()}


def capture_each(
    names: Sequence[str],
    images: Any,
    reducers: Reducers,
    *,
    intervention: Condition = nullcontext,
    **options: Any,
) -> tuple[dict[str, Any], dict[str, str]]:
    """`capture_conditions` under one condition: what was kept and why not, by model."""
    require_models(names)
    passes, not_run = capture_conditions(names, images, reducers, {"": intervention}, **options)
    return passes[""], not_run
