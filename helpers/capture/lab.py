"""The laboratory of a notebook: its models, images and machine, and passes under conditions.

No more than one model is in memory.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from helpers.capture.engine import capture
from helpers.capture.reducers import Reducer
from helpers.images import Images, load_images, load_segments, load_train_test
from helpers.interventions import INITS, appended_registers, rolled_content
from helpers.interventions.neurons import Condition
from helpers.models import Backbone, ModelUnavailable, TokenLayout, load_backbone

PIXELS = 2**30  # bytes of pixels that are kept from one condition to the next

Reducers = Sequence[Reducer] | Callable[[str], Sequence[Reducer]]


@dataclass(frozen=True)
class Captured:
    """What `capture` kept of one model, by key, and what is needed to read it once the model is
    gone.
    """

    tensors: dict[str, Tensor]
    layout: TokenLayout
    parameters: int
    depth: int
    source: dict[str, Any]

    @staticmethod
    def of(backbone: Backbone, tensors: dict[str, Tensor]) -> "Captured":
        """What `capture` kept of the model as it is now."""
        b = backbone
        return Captured(tensors, b.layout, b.parameters, b.depth, b.describe())

    def __getitem__(self, key: str) -> Tensor:
        return self.tensors[key]

    def patches(self, key: str) -> Tensor:
        """The patches of what was kept of all tokens."""
        return self.layout.patch_tokens(self[key], dim=-1)

    def kinds(self, key: str, block: int | None = -1) -> tuple[Tensor, Tensor, Tensor]:
        """Patches, trained registers and appended tokens (image, token) of what was kept of all
        tokens in a block; `block` None: of what was kept in one block alone.
        """
        tokens = self[key] if block is None else self[key][:, block]
        of = self.layout.patch_tokens, self.layout.register_tokens, self.layout.appended_tokens
        return tuple(take(tokens, dim=-1) for take in of)

    def parts(self, key: str) -> tuple[Tensor, Tensor]:
        """Patches and trained registers in the last block, as in `kinds`."""
        return self.kinds(key)[:2]

    def carriers(self, key: str, block: int | None = -1) -> tuple[Tensor, Tensor]:
        """As `parts`, with the appended tokens after the trained registers."""
        patches, *others = self.kinds(key, block)
        return patches, torch.cat(others, dim=-1)

    def appended(self, key: str, block: int | None = -1) -> Tensor:
        """The appended tokens alone, as in `kinds`."""
        return self.kinds(key, block)[2]

    @property
    def maps(self) -> dict[str, Tensor]:
        """What was kept of the patches alone: title -> (image, patch row, patch column)."""
        return {key.replace("_", " "): self.layout.to_grid(x) for key, x in self.tensors.items()}


class Passes(dict[Hashable, dict[str, Any]]):
    """Condition -> model -> what was kept, or what was read of it."""

    def each(self, *conditions: Hashable) -> Iterator[tuple]:
        """Each model that was in all these conditions, with what was kept of it in each."""
        for model in self[conditions[0]]:
            if all(model in self[condition] for condition in conditions):
                yield model, *(self[condition][model] for condition in conditions)

    @property
    def by_model(self) -> dict[str, dict[Hashable, Any]]:
        """Model -> condition -> what was kept."""
        models = dict.fromkeys(model for kept in self.values() for model in kept)
        return {
            model: {name: kept[model] for name, kept in self.items() if model in kept}
            for model in models
        }


@dataclass
class Lab:
    """The models, the images and the machine of a notebook, and what its result says of them.

    Attributes:
        models: their names.
        seed: of every choice of images.
        image_size: side in pixels, rounded down to a multiple of a model's patch; 0: its own.
        batch_size, device, dtype: as in `capture`.
        conditions: name -> what changes the forward pass: "plain" nothing, "rolled" the content
            (`rolled_content`), and "zeros", "mean", "normal" append one untrained register that
            starts so (`appended_registers`). A notebook adds its own.
        not_run: model -> why its weights are not here, of those that were asked for.
        sources: model -> `describe()` of it, of those that were captured.
        sets: the images that values rest on.
    """

    models: Sequence[str]
    seed: int = 0
    image_size: int = 0
    batch_size: int = 32
    device: str = "cpu"
    dtype: str = "float32"
    conditions: dict[Hashable, Condition] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    sources: dict[str, dict] = field(default_factory=dict)
    sets: list[Images] = field(default_factory=list)

    def __post_init__(self):
        known: dict[Hashable, Condition] = {"plain": nullcontext, "rolled": rolled_content}
        for init in INITS:
            known[init] = partial(appended_registers, init=init, seed=self.seed)
        self.conditions = known | self.conditions

    def resized(self, side: int) -> "Lab":
        """The same laboratory with images of another size in pixels."""
        return replace(self, image_size=side)

    def images(self, name: str, n: int, seed: int | None = None) -> Images:
        """Load `n` images on which values rest, see `helpers.images.load_images`."""
        return self.use(self.examples(name, n, seed))

    def examples(self, name: str, n: int, seed: int | None = None) -> Images:
        """Load `n` images that are only shown, or of which some are used (`use`)."""
        return load_images(name, n, self.seed if seed is None else seed)

    def train_test(
        self, train: str, test: str, n_train: int, n: int, by: str = ""
    ) -> tuple[Images, Images]:
        """Load images to learn on and to test on, see `helpers.images.load_train_test`."""
        learnt, tested = load_train_test(train, test, n_train, n, self.seed, by or None)
        return self.use(learnt), self.use(tested)

    def segments(
        self, train: str, n_train: int, validation: str, n_validation: int, test: str, n: int
    ) -> list[Images]:
        """Load images whose pixels have classes, to learn on, to choose on and to test on, see
        `helpers.images.load_segments`.
        """
        sets = load_segments((train, validation, test), (n_train, n_validation, n), self.seed)
        return [self.use(images) for images in sets]

    def use(self, images: Images) -> Images:
        """Name images among the sources of the result."""
        self.sets.append(images)
        return images

    def load(
        self, models: Collection[str] | None = None, whole: bool = False
    ) -> Iterator[Backbone]:
        """Each model, or each of `models`, loaded when the one before is done with; `whole`:
        images are squashed and not cropped. Raises ModelUnavailable where none is here.
        """
        names = self.models if models is None else models
        if not self.models:
            raise ModelUnavailable("no model was named; give at least one")
        for name in dict.fromkeys(names):
            if name in self.not_run:
                continue
            try:
                backbone = load_backbone(
                    name, image_size=self.image_size or None, fit=True, whole=whole
                )
            except ModelUnavailable as error:
                self.not_run[name] = str(error)
                continue
            self.sources.setdefault(name, backbone.describe())
            yield backbone
        if names and self.not_run.keys() >= {*names}:
            raise ModelUnavailable("; ".join(self.not_run[name] for name in dict.fromkeys(names)))

    def capture(
        self,
        images: Any,
        reducers: Reducers,
        models: Collection[str] | None = None,
        whole: bool = False,
    ) -> dict[str, Captured]:
        """Model -> what was kept of it as it is; arguments as in `passes`."""
        return self.passes({"": images}, reducers, None, models, whole)[""]

    def passes(
        self,
        images: Any,
        reducers: Reducers | Mapping[Hashable, Reducers],
        conditions: Sequence[Hashable] | Mapping[Hashable, Condition] | None = None,
        models: Collection[str] | None = None,
        whole: bool = False,
        read: Callable[[Captured], Any] = lambda captured: captured,
    ) -> Passes:
        """`capture` for one model after another, under one condition after another.

        Args:
            images: as in `capture`, or condition -> images where these differ.
            reducers: what to keep, or a function of the model's name that says it; or condition ->
                either of these.
            conditions: names in `conditions` of the laboratory, or name -> condition. One that
                returns None for a model leaves it out. Unless given the models are as they are, for
                each set of `images` by its name.
            models, whole: as in `load`.
            read: takes what was kept of a model; its answer takes that place, so that what was kept
                is let go before the next pass.
        """
        if conditions is None:
            conditions = dict.fromkeys(images, nullcontext)
        known = conditions if isinstance(conditions, Mapping) else self.conditions
        passes = Passes({condition: {} for condition in conditions})
        for backbone in self.load(models, whole):
            given = images if isinstance(images, Mapping) else dict.fromkeys(conditions, images)
            sets = _prepared(backbone, {condition: given[condition] for condition in conditions})
            for condition in conditions:
                if (intervention := known[condition](backbone)) is None:
                    continue
                wanted = reducers[condition] if isinstance(reducers, Mapping) else reducers
                wanted = wanted(backbone.name) if callable(wanted) else wanted
                with intervention:
                    tensors = self.capture_one(backbone, sets[condition], wanted)
                    passes[condition][backbone.name] = read(Captured.of(backbone, tensors))
        return passes

    def capture_one(
        self, backbone: Backbone, images: Any, reducers: Sequence[Reducer]
    ) -> dict[str, Tensor]:
        """`capture` of one model on this machine."""
        return capture(backbone, images, reducers, **self.machine)

    @property
    def machine(self) -> dict[str, Any]:
        """The options of `capture`."""
        return {"batch_size": self.batch_size, "device": self.device, "dtype": self.dtype}


def maps_of(
    passes: Mapping[Hashable, Mapping[str, Captured]],
    what: str | Mapping[str, Callable[[Captured], Tensor]],
) -> dict[str, dict[Hashable, Tensor]]:
    """Model -> title of two lines -> (image, patch row, patch column) in each condition.

    Args:
        what: the key of what was kept of the patches, in a row or on the grid; or the first line of
            a title -> what reads such patches from all that was kept.
    """
    if isinstance(what, str):
        what = {what.replace("_", " ").removesuffix("s"): itemgetter(what)}

    def on_grid(c: Captured, x: Tensor) -> Tensor:
        return x if x.ndim > 2 else c.layout.to_grid(x)

    return {
        model: {
            f"{title}\n{name}": on_grid(c, read(c))
            for title, read in what.items()
            for name, c in own.items()
        }
        for model, own in Passes(passes).by_model.items()
    }


def _prepared(backbone: Backbone, shown: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """The images of each condition, those of several made into pixels once, as far as these fit
    into `PIXELS`.
    """
    passes = Counter(map(id, shown.values()))
    prepared, left = {}, PIXELS
    for images in {id(x): x for x in shown.values() if isinstance(x, Images)}.values():
        size = 4 * 3 * math.prod(backbone.image_size) * len(images)  # bytes in float32
        if passes[id(images)] > 1 and size <= left:
            # Pixels are kept from the first condition to the next.
            read = cache(lambda index, images=images: backbone.preprocess(images[index]))
            prepared[id(images)] = replace(images, read=read)
            left -= size
    return {name: prepared.get(id(images), images) for name, images in shown.items()}
