"""The models that this project trains, from scratch or on from a finished model: twins that differ in their registers alone."""

from helpers.training.batches import Batches
from helpers.training.evaluation import evaluate
from helpers.training.jobs import Trained, train_all
from helpers.training.kinds import KINDS
from helpers.training.loop import Diverged, train
from helpers.training.recipes import PRESETS

__all__ = ["Batches", "Diverged", "KINDS", "PRESETS", "Trained", "evaluate", "train", "train_all"]
