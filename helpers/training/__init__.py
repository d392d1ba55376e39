"""Training of models, from scratch or from a finished one, that differ in registers alone."""

from helpers.training.evaluation import evaluate
from helpers.training.jobs import Trained, card, train_all
from helpers.training.loop import KINDS, Diverged, train
from helpers.training.recipes import PRESETS
from helpers.training.scratch import Batches

__all__ = [
    "Batches",
    "Diverged",
    "KINDS",
    "PRESETS",
    "Trained",
    "card",
    "evaluate",
    "train",
    "train_all",
]
