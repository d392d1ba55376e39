"""The models that this project trains itself: twins that differ in nothing but their registers."""

from helpers.training.batches import Batches
from helpers.training.evaluation import evaluate
from helpers.training.jobs import Trained, train_all
from helpers.training.loop import Diverged, train
from helpers.training.recipes import PRESETS
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
    "evaluate",
    "register_count",
    "train",
    "train_all",
    "trained_families",
    "training_curves",
    "training_table",
]
