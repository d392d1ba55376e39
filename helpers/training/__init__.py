"""training."""

from helpers.training.loop import PRESETS, Batches, Diverged, Trained, measure, train, train_all

__all__ = ["Batches", "Diverged", "PRESETS", "Trained", "measure", "train", "train_all"]
