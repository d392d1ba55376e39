"""training."""

from helpers.training.loop import PRESETS, Batches, Diverged, Trained, measure, train, train_all
from helpers.training.records import (
    attention_curves,
    register_count,
    trained_families,
    training_curves,
    training_table,
)

__all__ = [
    "Batches",
    "Diverged",
    "PRESETS",
    "Trained",
    "attention_curves",
    "measure",
    "register_count",
    "train",
    "train_all",
    "trained_families",
    "training_curves",
    "training_table",
]
