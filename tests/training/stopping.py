"""Whether a training that stops on the way resumes to the bit; its steps in plain PyTorch."""

import math

import pytest
import torch
from torch import nn

from training import train


class Stop(Exception):
    """Raised by a test in the midst of a training."""


def same(model, other):
    """Whether two models are equal to the bit."""
    weights, others = model.state_dict(), other.state_dict()
    return weights.keys() == others.keys() and all(
        torch.equal(weights[key], others[key]) for key in weights
    )


def resumed(recipe, folder, step):
    """Trains `recipe` in one piece, and in two that part at `step`: the same to the bit. Returns
    (model, history, the steps that the second piece reported, the folder of the pieces)."""

    def stop(entry):
        if entry["step"] == step:
            raise Stop

    expected, its_history, _ = train(recipe, folder / "whole")
    with pytest.raises(Stop):
        train(recipe, folder / "parts", report=stop)
    reported = []
    model, history, seconds = train(recipe, folder / "parts", report=reported.append)
    assert same(model, expected) and history == its_history and seconds > 0
    return model, history, [entry["step"] for entry in reported], folder / "parts"


def stepped(recipe, model, optimizer, batches, loss_of):
    """Train `model` by plain PyTorch, and return the losses and the average of its weights."""
    average, losses = {key: value.clone() for key, value in model.state_dict().items()}, []
    for step, batch in enumerate(batches):
        done = (step - recipe.warmup) / recipe.steps
        cosine = 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2
        factor = step / recipe.warmup if step < recipe.warmup else cosine
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr * factor
        loss = loss_of(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        decay = 1 - max(step, 1) ** (-2 / 3)  # timm's warm-up of the average
        for key, value in model.state_dict().items():
            average[key] = decay * average[key] + (1 - decay) * value
        losses.append(loss.item())
    return losses, average
