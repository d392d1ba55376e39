"""Trainings that stop on the way, and whether what goes on from there is what would have been."""

import pytest
import torch

from helpers.training import train


class Stop(Exception):
    """Raised by a test in the midst of a training."""


def same(model, other):
    """Whether two models are equal to the bit."""
    weights, others = model.state_dict(), other.state_dict()
    return weights.keys() == others.keys() and all(
        torch.equal(weights[key], others[key]) for key in weights
    )


def goes_on(recipe, folder, step):
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
