"""Training on a task that asks for an attention sink, and what is followed along it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from helpers.capture import AttentionReceived, Output, Sinks, TokenNorms, capture
from helpers.images import Images, answers, draw_pictures, load_images, read_pictures
from helpers.images.triggers import PATCH, SIDE
from helpers.measures.attention import EVENT, with_sink
from helpers.models import SinkTask, sinks, trained, wrap_timm
from training import scratch
from training.evaluation import border_sinks, in_picture, measured_norms
from training.recipes import DATA_SEED
from training.tasks import Items, Task

# In the history -> as the reducer has it.
SINKS = {"sink": "patches", "register_sink": "registers", "cls_sink": "cls", "sink_one": "one"}
TRAINING = 1  # where the series of a training begin; those of the data sets begin with 0


class SinkTraining(Task):
    """A small model that has a reason for a sink, beside its twins."""

    prefix = sinks.SHIPPED
    twins = (0, 1, 4)
    save = staticmethod(trained.save)

    def __init__(self, recipe: SinkTask, device: str, cache: Path):
        super().__init__(recipe, device, cache)
        self.optimizer, self.model = recipe.optimizer, sinks.build(recipe)
        self.layout = self._wrapped(self.model).layout
        self.model.requires_grad_(True)
        self.test = tested(recipe)
        pixels = np.stack([np.asarray(picture) for picture in self.test])
        colours, trigger = read_pictures(pixels)
        self.colours, self.idle = torch.from_numpy(colours), torch.from_numpy(~trigger.any(1))
        self.answers = torch.from_numpy(answers(recipe.task, pixels))
        self.inside = in_picture(self.layout, recipe.border)
        if recipe.border:
            self.test = scratch.Frame(recipe, self.test, PATCH).around(self.test, SIDE)

    @staticmethod
    def _wrapped(model: nn.Module):
        return wrap_timm("the model in training", model, trained.DATA, pretrained=True)

    def items(self, start: int) -> Dataset:
        return SinkPictures(self.recipe, start)

    def objective(self, model: nn.Module, average: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The mean squared error of the answers at the patches of the picture."""
        return F.mse_loss(self._answered(model(x)).float(), y)

    def _answered(self, outputs: Tensor) -> Float[Tensor, "image patch 3"]:
        return self.layout.patch_tokens(outputs)[:, self.inside]

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """Errors, norms (see `measured_norms`) and, with softmax attention, sinks.

        `error`: mean squared, of the answers; `error_alone`: of the best linear answer from the
        patch's own colour; `error_constant`: of the mean answer.
        `sink_images`, `register_sink_images`, `cls_sink_images`, `sink_one_images`: share of images
        with a sink (`helpers.capture.Sinks`, queries of the patches) in any head, of patches, of
        registers, of [CLS], and of one token of any kind. `border_sink` and `register_sink`: see
        `evaluate`; `idle_border_sink` and `idle_register_sink`: in pictures without a trigger.
        `idle_border_one`: there, on the patch of the border that gets most in the picture.
        `sink_blocks`: of patches, for each block. `sink_value`: mean `value_ratio` over all sinks
        of one token, None without any.
        `register_attention`: of the patches to all registers, for each block.
        """
        backbone = self._wrapped(model)
        soft, layout = self.recipe.attention == "softmax", backbone.layout
        border = self.recipe.border
        reducers = [TokenNorms(), Output(), *[Sinks(queries="patches")] * soft]
        reducers += [AttentionReceived("all", "all")] * bool(border)
        kept = capture(backbone, self.test, reducers, batch_size=64, progress=False)
        entry = {
            "error": F.mse_loss(self._answered(kept["output"]), self.answers).item(),
            "error_alone": linear_error(self.colours.flatten(0, 1), self.answers.flatten(0, 1)),
            "error_constant": self.answers.var((0, 1), correction=0).mean().item(),
        } | measured_norms(kept["token_norms"], layout, border)
        if border:
            attention = kept["attention_received"]
            entry |= border_sinks(attention, layout, border)
        if border and self.idle.any():
            idle = border_sinks(attention[self.idle], layout, border)
            entry |= {f"idle_{name}": share for name, share in idle.items()}
            largest = layout.patch_tokens(attention, -1)[self.idle][..., ~self.inside].amax(-1)
            entry["idle_border_one"] = largest.mean(0).max().item()  # in the head that gives most
        if not soft:
            return entry
        for name, kind in SINKS.items():
            entry[f"{name}_images"] = _share(with_sink(kept[f"sink_{kind}"]))
        single, received = kept["sink_one"] >= EVENT, kept["received"]
        to_registers = layout.register_tokens(received, dim=-1).sum(-1)
        return entry | {
            "sink_blocks": [_share(with_sink(block)) for block in kept["sink_patches"].unbind(1)],
            "sink_value": kept["sink_value"][single].mean().item() if single.any() else None,
            "register_attention": to_registers.mean(0).tolist(),
        }


class SinkPictures(Items):
    """The pictures of a training, none of them twice, as the model sees them, and their answers."""

    def __init__(self, recipe: SinkTask, start: int = 0):
        super().__init__(recipe, start)
        self.frame = scratch.Frame(recipe, tested(recipe), PATCH)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """A batch at once, which is drawn faster."""
        places = [self.first + item for item in items]
        pixels = draw_pictures(self.recipe.task, (TRAINING, self.recipe.seed), places)
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1
        x = [self.frame(picture, scratch.TRAINING, i) for picture, i in zip(x, places, strict=True)]
        return list(zip(x, torch.from_numpy(answers(self.recipe.task, pixels)), strict=True))


def tested(recipe: SinkTask) -> Images:
    """The pictures that a training is measured on."""
    return load_images(recipe.task, recipe.n_test, DATA_SEED)


def linear_error(x: Float[Tensor, "row input"], y: Float[Tensor, "row output"]) -> float:
    """The mean squared error of the best linear function of `x`, with a constant."""
    x, y = (values.double() - values.double().mean(0) for values in (x, y))
    return F.mse_loss(x @ torch.linalg.lstsq(x, y).solution, y).item()


def _share(images: Tensor) -> float:
    """The share that is true."""
    return images.float().mean().item()
