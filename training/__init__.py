"""Training of models, from scratch or from a finished one, that differ in registers alone."""

from training.evaluation import evaluate
from training.jobs import card, train_all
from training.loop import KINDS, Diverged, train
from training.recipes import PRESETS

__all__ = ["KINDS", "PRESETS", "Diverged", "card", "evaluate", "train", "train_all"]
