"""Training of models, from scratch or from a finished one, that differ in registers alone."""

from helpers.training.batches import Batches
from helpers.training.cards import card
from helpers.training.evaluation import evaluate
from helpers.training.jobs import Trained, train_all
from helpers.training.kinds import KINDS
from helpers.training.loop import Diverged, train
from helpers.training.recipes import PRESETS

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
