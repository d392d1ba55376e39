"""The models that this project trains itself: twins that differ in nothing but their registers."""

from helpers.training.batches import Batches
from helpers.training.evaluation import evaluate
from helpers.training.jobs import Trained, train_all
from helpers.training.loop import Diverged, train
from helpers.training.recipes import PRESETS

__all__ = ["Batches", "Diverged", "PRESETS", "Trained", "evaluate", "train", "train_all"]
