"""Train Vision Transformers that differ in their registers alone.

From scratch, or from a finished model.

Optimiser, schedule, augmentation, mixing and weight average are timm's, as in its training script
(which is no library, hence the loop here). Every random draw is a function of the seed and of the
step or the position in the data, never of a stream that goes on: a training that was stopped goes
on to the bit, any number of loading workers gives the same batches, and twins see the same images
in the same order with the same augmentations.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
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
from helpers.training.added import AddedRegisters
from helpers.training.recipes import check_same
from helpers.training.scratch import FromScratch
from helpers.training.sinks import SinkTraining
from helpers.training.tasks import Task, seed_all

# Which kind of training a recipe asks for.
KINDS = {Recipe: FromScratch, PostHoc: AddedRegisters, SinkTask: SinkTraining}


class Diverged(ArithmeticError):
    """The loss is not finite."""


def train(
    recipe: Any,
    folder: Path,
    device: str = "cpu",
    workers: int = 0,
    report: Callable[[dict], None] = lambda _: None,
    cache: Path | None = None,
) -> tuple[nn.Module, list[dict[str, Any]], float]:
    """Train one model, or resume its training, and return (model, history, seconds).

    Args:
        recipe: what to train, of one of `KINDS`.
        folder: where the state of the training lies, as of the last checkpoint; made if need be.
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
        Diverged: loss, weights or tokens are not finite; the message names the step and the last
            good checkpoint.
        ValueError: the state in `folder` is damaged or belongs to another recipe, and what loading
            images and models raises.

    Seeds the global generators of torch, NumPy and Python.
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
    """A training under way: what `state.pt` keeps between checkpoints, and what takes a step.

    Attributes:
        start: the step that it begins with, or goes on from.
        history: one dict a checkpoint.
        seconds: wall time up to the last checkpoint, over all parts of an interrupted training.
        clock: when that was.
        losses: of the steps since then.
    """

    def __init__(self, task: Task, path: Path, device: str):
        self.task, self.recipe, self.path, self.device = task, (recipe := task.recipe), path, device
        self.objective = task.objective.to(device)
        self.model = task.model.to(device).train()
        self.optimizer = create_optimizer_v2(
            self.model, task.optimizer, lr=recipe.lr, weight_decay=recipe.weight_decay
        )
        cosine = {
            "t_initial": recipe.steps,
            "lr_min": recipe.lr / 100,
            "warmup_t": recipe.warmup,
            "warmup_prefix": True,
        }
        self.schedule = CosineLRScheduler(self.optimizer, **cosine, t_in_epochs=False)
        self.average = ModelEmaV3(self.model, recipe.ema, use_warmup=True)
        self.history, self.losses = list[dict[str, Any]](), list[float]()
        self.seconds, self.start, self.clock = 0.0, 0, 0.0
        if path.is_file():
            self._go_on()

    def _kept(self) -> dict[str, Any]:
        """By its name in `state.pt`, what has a state."""
        return {
            "model": self.model,
            "average": self.average.module,
            "optimizer": self.optimizer,
            "objective": self.objective,
        }

    def _go_on(self) -> None:
        """Take up the state at `path`.

        Raises ValueError where it is damaged, or belongs to another recipe.
        """
        try:
            state = torch.load(self.path, weights_only=True, map_location=self.device)
            stored = type(self.recipe)(**state["recipe"])
        except Exception:  # what a damaged file raises has no end of kinds
            raise ValueError(
                f"{self.path} is not a whole state of a training; delete it to start anew"
            ) from None
        check_same(self.path, stored, self.recipe)
        for name, one in self._kept().items():
            one.load_state_dict(state[name])
        self.history, self.seconds, self.start = state["history"], state["seconds"], state["step"]

    def measure(self, step: int) -> None:
        """Add a checkpoint's entry to the history.

        Raises Diverged where weights or tokens are not finite.
        """
        weights = (
            value
            for one in (self.model, self.average.module)
            for value in one.state_dict().values()
        )
        if not all(value.isfinite().all() for value in weights):
            raise self._diverged("the weights are not finite", step)
        try:
            entry = self.task.measure(self.average.module)
        except ValueError:  # of `capture`, which refuses NaN and infinity
            raise self._diverged("the tokens are not finite", step) from None
        self.history.append(
            {"step": step, "loss": float(np.mean(self.losses)) if self.losses else None, **entry}
        )
        self.losses = []
        now = time.perf_counter()
        self.seconds, self.clock = self.seconds + now - self.clock, now

    def save(self, step: int) -> None:
        """Write `state.pt`.

        Raises OSError where it cannot be written; the last one is kept then.
        """
        states = {name: one.state_dict() for name, one in self._kept().items()}
        state = {
            "recipe": asdict(self.recipe),
            "step": step,
            **states,
            "history": self.history,
            "seconds": self.seconds,
        }
        torch.save(state, data := BytesIO())  # not to the file: torch hides why it could not write
        with written_whole(self.path) as new:
            new.write_bytes(data.getbuffer())

    def advance(self, step: int, *batch: Tensor) -> None:
        """Take one step on a batch. Raises Diverged where the loss is not finite."""
        batch = [value.to(self.device, non_blocking=True) for value in batch]
        seed_all(self.recipe.seed, 1, step)
        self.schedule.step_update(step)
        low = self.device != "cpu" or not self.task.precise
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=low):
            loss = self.objective(self.model, self.average.module, *batch)
        if not loss.isfinite():
            raise self._diverged(f"the loss is {loss.item()}", step)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.average.update(self.model, step=step)
        self.losses.append(loss.item())

    def _diverged(self, what: str, step: int) -> Diverged:
        good = "there is no checkpoint"
        if self.history:
            good = (
                f"the last good checkpoint is that of step {self.history[-1]['step']}, in "
                f"{self.path}"
            )
        return Diverged(
            f"{what} at step {step}; {good}; train with a lower lr, into another folder"
        )


def _marks(recipe: Any) -> set[int]:
    """The steps before which a checkpoint is made."""
    return {round(recipe.steps * k / (recipe.checkpoints - 1)) for k in range(recipe.checkpoints)}
