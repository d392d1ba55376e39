"""Backbone: one interface to the Vision Transformers of several libraries and their insides."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torchvision.transforms import Normalize

from helpers.models.attention import Sublayer, Update
from helpers.models.family import nameless
from helpers.models.tokens import TokenLayout

See = Callable[[Any], object]  # called with what goes through a point of a model
Change = Callable[[Tensor], Tensor]  # returns what takes the place of a tensor


class LayerNames(NamedTuple):
    """What a library calls the layers of its models, and of a block its first norm and last MLP."""

    embed: str
    blocks: str
    norm: str
    mlp_output: str


@dataclass(eq=False)
class Backbone(ABC):
    """A Vision Transformer in eval mode, without gradients, and where to look inside it.

    Attributes:
        layout: where its tokens stand; an intervention that appends tokens replaces it for as long
            as it lasts.
        image_size, patch_size: (height, width) in pixels.
        transform: PIL RGB image -> normalised pixels (3, height, width).
        pretrained: False for random weights; True for the controls, whose weights are constructed.
        next_image: index of the first image of the next forward pass, for what treats each image in
            its own way; a pass counts it on.
        interventions: name and arguments of each that is active, the outermost first (see
            helpers/interventions/tokens.py); `own_hooks`: the numbers of their hooks.
        source: of a model from a file of weights, which of those in it were read; else "".
    """

    name: str
    model: nn.Module
    layout: TokenLayout
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    transform: Callable[[Image.Image], Tensor]
    pretrained: bool
    next_image: int = 0
    interventions: tuple[tuple[str, dict[str, Any]], ...] = ()
    own_hooks: frozenset[int] = frozenset()
    source: str = ""

    family: ClassVar[str]
    attentions: ClassVar[tuple[type, ...]]  # of which rows can be had
    unordered: ClassVar[tuple[type, ...]] = ()  # blocks that do not begin with their first norm
    names: ClassVar[LayerNames]

    def __post_init__(self) -> None:
        """Dropout and drop path off: in training mode two passes over one image differ."""
        self.model.eval().requires_grad_(False)
        if (channels := next(self.embed.parameters()).shape[1]) != 3:
            raise ValueError(f"'{self.name}' takes images of {channels} channels, not 3")

    # What a family supplies (helpers/models/*_family.py).

    @property
    @abstractmethod
    def final_norm(self) -> nn.Module:
        """The last LayerNorm."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Channels of the residual stream."""

    @property
    @abstractmethod
    def position_embedding(self) -> Float[Tensor, "token width"] | None:
        """What is added to the patches, row-major, and to tokens before them; None for nothing."""

    @abstractmethod
    def patch_grid(self, output: Tensor) -> Float[Tensor, "image row column width"]:
        """The output of `embed` as a grid of patches."""

    @abstractmethod
    def sublayer(self, block: int) -> Sublayer:
        """The layers around the attention of `block`; ValueError where they make no sum."""

    @abstractmethod
    def watch_attention(self, block: int, see: See) -> RemovableHandle:
        """The 'attention' of `watch`."""

    @abstractmethod
    def watch_feature(self, see: See) -> RemovableHandle:
        """The 'feature' of `watch`."""

    @abstractmethod
    def change_embedding(self, change: Change) -> RemovableHandle:
        """Replace the patches (image, row, column, width) before position embeddings are added."""

    @abstractmethod
    def change_output(self, change: Change) -> RemovableHandle:
        """Replace the tokens (image, token, width) that leave the last block, before the norm."""

    def lengthen_prefix(self, count: int) -> None:
        """Make the prefix longer by `count` tokens, where all tokens behind it are rotated."""
        return

    def change_rotation(self, change: Change) -> "RemovableHandle | Handles":
        """Replace sine and cosine ([image, head,] patch, dim) of the patches' rotation, if any."""
        return Handles()

    # What follows from it.

    def __call__(self, pixels: Float[Tensor, "image 3 height width"]) -> Any:
        """What the model returns: class logits where it has a head, else its feature."""
        output = self.model(pixels)
        self.next_image += len(pixels)
        return output

    def preprocess(self, image: Image.Image) -> Float[Tensor, "3 height width"]:
        """`image` as this model's training saw it; at another size resized without a margin."""
        return self.transform(image.convert("RGB"))

    @property
    def normalisation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of pixels in [0, 1]; 0 and 1 if unknown."""
        steps = getattr(self.transform, "transforms", ())
        for step in (step for step in steps if isinstance(step, Normalize)):
            return [float(x) for x in step.mean], [float(x) for x in step.std]
        return [0.0] * 3, [1.0] * 3

    def normalise(self, mean: Sequence[float] = (), std: Sequence[float] = ()) -> None:
        """Preprocess with another mean, standard deviation or both, of each channel in [0, 1]."""
        (step,) = (x for x in self.transform.transforms if isinstance(x, Normalize))
        step.mean, step.std = mean or step.mean, std or step.std

    def as_seen(
        self, image: Image.Image | Float[Tensor, "3 height width"]
    ) -> Float[Tensor, "height width 3"]:
        """A picture, or normalised pixels, as the model gets it: resized and cropped, in [0, 1].

        Stretched to that where they leave it and the preprocessing does not say how they were made.
        """
        pixels = self.preprocess(image) if isinstance(image, Image.Image) else image.float()
        mean, std = (torch.tensor(x)[:, None, None] for x in self.normalisation)
        shown = pixels.cpu() * std + mean
        low, high = shown.aminmax()
        if torch.equal(shown, pixels.cpu()) and (low < 0 or high > 1):
            shown = (shown - low) / (high - low).clamp(min=1e-6)
        return shown.clamp(0, 1).movedim(0, -1)

    @property
    def embed(self) -> nn.Module:
        """The layer whose output is the patch embedding, before the position embedding."""
        return self.model.get_submodule(self.names.embed)

    @property
    def blocks(self) -> nn.ModuleList | nn.Sequential:
        """The blocks, in order; each returns the residual stream (image, token, width)."""
        return self.model.get_submodule(self.names.blocks)

    @property
    def heads(self) -> int:
        """Number of attention heads in a block."""
        return self.blocks[0].attn.num_heads

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        """Number of weights of the vision tower, with its head where it has one."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def hooks(self) -> frozenset[int]:
        """The numbers of all hooks that a forward pass of the model calls."""
        places = ("_forward_hooks", "_forward_pre_hooks")
        modules = self.model.modules()
        return frozenset(x for part in modules for place in places for x in getattr(part, place))

    @cached_property
    def weights_hash(self) -> str:
        """First 16 hex digits of the sha256 over names, shapes and bytes of the state dict."""
        digest = hashlib.sha256()
        for key, value in sorted(self.model.state_dict().items()):
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """What a result's provenance says about the model, without the folder it lies in."""
        keys = ("family", "parameters", "weights_hash", "image_size", "patch_size", "pretrained")
        read = {"source": self.source} if self.source else {}
        return {"name": nameless(self.name)} | {key: getattr(self, key) for key in keys} | read

    def watch(self, point: str, block: int, see: See) -> "RemovableHandle | Handles":
        """Call `see` in every forward pass with what goes through `point` of `block`.

        Nothing is changed. Remove the handle afterwards.

        Points of a block:

        - 'residual' (image, token, width): the stream after the block.
        - 'final' (image, token, width): the same through the model's final norm.
        - 'neurons' (image, token, hidden): the input of the second MLP layer, also if it is gated.
        - 'attention': an Attention.
        - 'update': an Update.
        - 'normed': a pair, 'residual' and what the next LayerNorm makes of it, which is that before
          the next block's attention, or the final one.

        Points of the model, whatever the block:

        - 'pixels' (image, 3, height, width): normalised.
        - 'embedding' (image, row, column, width): patches before the position embedding.
        - 'feature' (image, width): pooled, before the classification head.
        - 'output': what the model returns.
        """
        match point:
            case "pixels":
                return on_input(self.embed, see)
            case "embedding":
                return on_output(self.embed, lambda x: see(self.patch_grid(x)))
            case "residual":
                return on_output(self.blocks[block], see)
            case "final":
                # .forward goes around the hooks of an intervention, which belong to the model's own
                # pass.
                norm = self.final_norm
                return on_output(self.blocks[block], lambda x: see(norm.forward(x.float())))
            case "neurons":
                return on_input(self.neurons(block), see)
            case "attention":
                self.require_attention(block)
                return self.watch_attention(block, see)
            case "update":
                return self.watch_update(block, see)
            case "normed":
                after = block % self.depth + 1
                norm = self.final_norm if after == self.depth else self.norm_before(after)
                return on_output(
                    self.blocks[block], lambda x: see((x.float(), norm.forward(x.float())))
                )
            case "feature":
                return self.watch_feature(see)
            case "output":
                return on_output(self.model, see)
        raise ValueError(f"unknown point '{point}'")

    def require_attention(self, block: int) -> None:
        """Raise ValueError where attention is no softmax of one product of queries and keys."""
        layers = self.blocks[block]
        kind = type(getattr(layers, "attn", None))
        if kind not in self.attentions:
            odd = f"{type(layers).__name__} with {kind.__name__}"
            raise ValueError(
                f"block {block} of '{self.name}' is {odd}, which has no rows known here"
            )

    def norm_before(self, block: int) -> nn.Module:
        """The LayerNorm with which `block` begins. Raises ValueError where it begins with none."""
        layers = self.blocks[block]
        norm = getattr(layers, self.names.norm, None)
        if isinstance(layers, self.unordered) or not isinstance(norm, nn.Module):
            odd = type(layers).__name__
            raise ValueError(f"block {block} of '{self.name}' is {odd}, which begins with no norm")
        return norm

    def watch_update(self, block: int, see: See) -> "Handles":
        """The 'update' of `watch`."""
        layers, seen = self.sublayer(block), {}

        def after(x: Tensor) -> None:
            see(Update(after=x, layers=layers, **seen))
            seen.clear()

        return Handles(
            [
                on_input(self.blocks[block], lambda x: seen.update(before=x)),
                self.watch_attention(block, lambda attention: seen.update(attention=attention)),
                on_input(layers.norm2, after),
            ]
        )

    def change_input(self, change: Change) -> RemovableHandle:
        """Replace the tokens that enter the first block, after positions and CLIP's ln_pre."""
        return replace_input(self.blocks[0], change)

    def hidden(self, block: int) -> int:
        """Number of MLP neurons of `block`. Raises ValueError where it has none."""
        layer = self.neurons(block)
        return next(part.in_features for part in layer.modules() if hasattr(part, "in_features"))

    def change_neurons(self, block: int, change: Change) -> RemovableHandle:
        """Replace the neurons (image, token, hidden) of `block`: its second layer's input."""
        return replace_input(self.neurons(block), change)

    def neurons(self, block: int) -> nn.Module:
        """The second MLP layer of `block`, whose input are its neurons; ValueError without one."""
        if not -self.depth <= block < self.depth:
            raise ValueError(f"no block {block} in '{self.name}', which has {self.depth}")
        layer = getattr(getattr(self.blocks[block], "mlp", None), self.names.mlp_output, None)
        if layer is None or not any(isinstance(part, nn.Linear) for part in layer.modules()):
            odd = type(self.blocks[block]).__name__
            raise ValueError(f"block {block} of '{self.name}' is {odd}, which has no MLP neurons")
        return layer


class Handles(tuple):
    """Several handles that are removed together."""

    def remove(self) -> None:
        """Remove them all."""
        for handle in self:
            handle.remove()

    def __enter__(self) -> "Handles":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def on_output(layer: nn.Module, see: See) -> RemovableHandle:
    """Call `see` with what `layer` returns, and change nothing."""

    def hook(_: nn.Module, __: tuple, output: Any) -> None:
        see(output)

    return layer.register_forward_hook(hook)


def on_input(layer: nn.Module, see: See) -> RemovableHandle:
    """Call `see` with the first input of `layer`, and change nothing."""

    def hook(_: nn.Module, inputs: tuple) -> None:
        see(inputs[0])

    return layer.register_forward_pre_hook(hook)


def replace_input(layer: nn.Module, change: Change) -> RemovableHandle:
    """Replace the first input of `layer` by what `change` makes of it."""
    return layer.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]), *inputs[1:]))
