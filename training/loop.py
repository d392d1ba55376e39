"""The training loop, with timm's optimiser, schedule and weight average, as in its training script.

Every random draw is a function of the seed and of the step or the position in the data: a training
that was stopped resumes to the bit, any number of loading workers gives the same batches, and twins
see the same images in the same order with the same augmentations.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader

from helpers.files import written_whole
from helpers.models import PostHoc, Recipe, SinkTask
from training.added import AddedRegisters
from training.recipes import check_same
from training.scratch import FromScratch
from training.sinks import SinkTraining
from training.tasks import Task, seed_all

KINDS: dict[type, type[Task]] = {
    Recipe: FromScratch,
    PostHoc: AddedRegisters,
    SinkTask: SinkTraining,
}


class Diverged(ArithmeticError):
    """Loss, weights or tokens are not finite."""


def train(
    recipe: Any,
    folder: Path,
    device: str = "cpu",
    workers: int = 0,
    report: Callable[[dict], None] = lambda _: None,
    cache: Path | None = None,
) -> tuple[nn.Module, list[dict[str, Any]], float]:
    """Train one model, or resume its training, and return (model, history, seconds).

    Seeds the global generators of torch, NumPy and Python.

    Args:
        recipe: of one of `KINDS`.
        folder: holds `state.pt`, the last checkpoint.
        device: 'cpu' (float32, equal to the bit on one machine with as many threads) or 'cuda'
            (bfloat16 autocast).
        workers: processes that load and augment images; the batches do not depend on them.
        report: called with the entry of each checkpoint.
        cache: folder of what several trainings need, `.cache` beside `folder` unless given.

    Returns:
        The averaged weights as a model on the CPU; one dict a checkpoint (what its kind measures,
        plus `step` and `loss`, the mean training loss since the last one); wall time over all parts
        of an interrupted training.

    Raises:
        Diverged: loss, weights or tokens are not finite; the last good checkpoint is kept.
        ValueError: the state in `folder` belongs to another recipe.
    """
    task = KINDS[type(recipe)](recipe, device, cache or folder.parent / ".cache")
    training = _Training(task, folder / "state.pt", device)
    start, marks = training.start, _marks(recipe)
    loader = DataLoader(
        task.items(start),
        batch_size=recipe.batch_size,
        num_workers=workers,
        pin_memory=device != "cpu",
    )
    training.clock = time.perf_counter()
    batches = iter(loader)
    for step in range(start, recipe.steps + 1):
        if step in marks and (step > start or not training.history):
            training.measure(step)
            training.save(step)
            report(training.history[-1])
        if step < recipe.steps:
            training.advance(step, *next(batches))
    return task.finished(training.average.module.cpu()), training.history, training.seconds


class _Training:
    """A training under way, with what `state.pt` keeps between checkpoints.

    Attributes:
        start: the step that it begins with, or resumes from.
        history: one dict a checkpoint.
        seconds: wall time up to the last checkpoint, over all parts of an interrupted training.
        clock: when that was.
        losses: of the steps since then.
    """

    def __init__(self, task: Task, path: Path, device: str):
        self.task, self.recipe, self.path, self.device = task, task.recipe, path, device
        self.model = task.model.to(device).train()
        self.optimizer = create_optimizer_v2(
            self.model, task.optimizer, lr=self.recipe.lr, weight_decay=self.recipe.weight_decay
        )
        self.schedule = CosineLRScheduler(
            self.optimizer,
            t_initial=self.recipe.steps,
            lr_min=self.recipe.lr / 100,
            warmup_t=self.recipe.warmup,
            warmup_prefix=True,
            t_in_epochs=False,
        )
        self.average = ModelEmaV3(self.model, self.recipe.ema, use_warmup=True)
        self.parts = {  # what has a state, by its name in `state.pt`
            "model": self.model,
            "average": self.average.module,
            "optimizer": self.optimizer,
        }
        self.history, self.losses = list[dict[str, Any]](), list[float]()
        self.seconds, self.start, self.clock = 0.0, 0, 0.0
        if path.is_file():
            self._resume()

    def _resume(self) -> None:
        """Load the state at `path`. Raises ValueError where it belongs to another recipe."""
        state = torch.load(self.path, weights_only=True, map_location=self.device)
        check_same(self.path, state["recipe"], self.recipe)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.history, self.seconds, self.start = state["history"], state["seconds"], state["step"]

    def measure(self, step: int) -> None:
        """Add a checkpoint's entry to the history."""
        for model in (self.model, self.average.module):
            if not all(value.isfinite().all() for value in model.state_dict().values()):
                raise Diverged(f"the weights are not finite at step {step}")
        try:
            entry = self.task.measure(self.average.module)
        except ValueError as error:  # of `capture`, which refuses NaN and infinity
            raise Diverged(f"the tokens are not finite at step {step}") from error
        loss = float(np.mean(self.losses)) if self.losses else None
        self.history.append({"step": step, "loss": loss, **entry})
        self.losses = []
        now = time.perf_counter()
        self.seconds, self.clock = self.seconds + now - self.clock, now

    def save(self, step: int) -> None:
        """Write `state.pt`."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"recipe": asdict(self.recipe), "step": step}
        state |= {"history": self.history, "seconds": self.seconds}
        with written_whole(self.path) as new:
            torch.save(state, new)

    def advance(self, step: int, *batch: Tensor) -> None:
        """Take one step on a batch."""
        batch = [value.to(self.device, non_blocking=True) for value in batch]
        seed_all(self.recipe.seed, 1, step)
        self.schedule.step_update(step)
        low = self.device != "cpu" or not self.task.precise
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=low):
            loss = self.task.objective(self.model, self.average.module, *batch)
        if not loss.isfinite():
            raise Diverged(f"the loss is {loss.item()} at step {step}; train with a lower lr")
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(self.model, step=step)
        self.losses.append(loss.item())


def _marks(recipe: Any) -> set[int]:
    """The steps before which a checkpoint is made."""
    return {round(recipe.steps * k / (recipe.checkpoints - 1)) for k in range(recipe.checkpoints)}
