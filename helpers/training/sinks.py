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

from helpers.capture import Output, Sinks, TokenNorms, capture
from helpers.images import answers, draw_pictures, load_images, read_pictures
from helpers.measures.attention import EVENT, with_sink
from helpers.models import SinkTask, TokenLayout, sinks, trained, wrap_timm
from helpers.training.evaluation import measured_norms
from helpers.training.recipes import DATA_SEED
from helpers.training.tasks import Items, Task

# In the history -> as the reducer has it.
SINKS = {"sink": "patches", "register_sink": "registers", "cls_sink": "cls", "sink_one": "one"}
TRAINING = 1  # where the series of a training begin; those of the data sets begin with 0


class SinkTraining(Task):
    """A small model that has a reason for a sink, beside its matched models."""

    prefix = sinks.SHIPPED
    twins = (0, 1, 4)
    save = staticmethod(trained.save)

    def __init__(self, recipe: SinkTask, device: str, cache: Path):
        super().__init__(recipe, device, cache)
        self.optimizer, self.model = recipe.optimizer, sinks.build(recipe)
        layout = wrap_timm(
            "the model in training", self.model, trained.DATA, pretrained=True
        ).layout
        self.model.requires_grad_(True)
        self.objective = Error(layout)
        self.tested = load_images(recipe.task, recipe.n_test, DATA_SEED)
        pixels = np.stack([np.asarray(picture) for picture in self.tested])
        self.colours, self.wanted = map(
            torch.from_numpy, (read_pictures(pixels)[0], answers(recipe.task, pixels))
        )

    def items(self, start: int) -> Dataset:
        return Drawn(self.recipe, start)

    def measure(self, model: nn.Module) -> dict[str, Any]:
        """On test pictures: `error`, the mean squared error of the answers.

        `error_alone`, that of the best linear answer from the patch's own colour, as without
        attention; `error_constant`, that of the mean answer; what `evaluate` tells of norms.

        With softmax attention also (`helpers.capture.Sinks`, queries of the patches) `sink_images`,
        `register_sink_images`, `cls_sink_images` and `sink_one_images`: share of images with a sink
        in any head, of patches, of registers, of [CLS], and of one token of any kind;
        `sink_blocks`, for each block the share with one of patches; `sink_value`, the mean
        `value_ratio` over all sinks of one token, None without any; `register_attention`, for each
        block the attention of the patches to all registers together, mean over images and heads.
        """
        backbone = wrap_timm("the model in training", model, trained.DATA, pretrained=True)
        soft, layout = self.recipe.attention == "softmax", backbone.layout
        reducers = [TokenNorms(), Output(), *[Sinks(queries="patches")] * soft]
        kept = capture(backbone, self.tested, reducers, batch_size=64, progress=False)
        entry = {
            "error": F.mse_loss(layout.patch_tokens(kept["output"]), self.wanted).item(),
            "error_alone": unexplained(self.colours.flatten(0, 1), self.wanted.flatten(0, 1)),
            "error_constant": self.wanted.var((0, 1), correction=0).mean().item(),
        } | measured_norms(kept["token_norms"], layout)
        if not soft:
            return entry
        for name, kind in SINKS.items():
            entry[f"{name}_images"] = share_of(with_sink(kept[f"sink_{kind}"]))
        single, received = kept["sink_one"] >= EVENT, kept["received"]
        to_registers = layout.register_tokens(received, dim=-1).sum(-1)
        return entry | {
            "sink_blocks": [share_of(with_sink(one)) for one in kept["sink_patches"].unbind(1)],
            "sink_value": kept["sink_value"][single].mean().item() if single.any() else None,
            "register_attention": to_registers.mean(0).tolist(),
        }

    @classmethod
    def stored(cls, path: Path) -> SinkTask:
        return sinks.load(f"{sinks.FILE}{path}")[1]


class Drawn(Items):
    """The pictures of a training in their order, as the model sees them, and their answers.

    None is shown twice.
    """

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([item])[0]

    def __getitems__(self, items: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """A batch at once, which is drawn faster."""
        pixels = draw_pictures(
            self.recipe.task, (TRAINING, self.recipe.seed), [self.first + item for item in items]
        )
        shown = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 127.5 - 1
        return list(zip(shown, torch.from_numpy(answers(self.recipe.task, pixels)), strict=True))


class Error(nn.Module):
    """The mean squared error of the answers at the patches."""

    def __init__(self, layout: TokenLayout):
        super().__init__()
        self.layout = layout

    def forward(
        self,
        model: nn.Module,
        _: nn.Module,
        x: Float[Tensor, "image 3 64 64"],
        wanted: Float[Tensor, "image patch 3"],
    ) -> Tensor:
        return F.mse_loss(self.layout.patch_tokens(model(x)).float(), wanted)


def unexplained(x: Float[Tensor, "row input"], wanted: Float[Tensor, "row output"]) -> float:
    """The mean squared error of the best linear function of `x`, with a constant."""
    x, wanted = (one.double() - one.double().mean(0) for one in (x, wanted))
    return F.mse_loss(x @ torch.linalg.lstsq(x, wanted).solution, wanted).item()


def share_of(images: Tensor) -> float:
    """The share that is true."""
    return images.float().mean().item()
