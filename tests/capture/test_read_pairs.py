"""Tokens that are read model by model, and let go."""

from importlib import import_module

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from helpers.capture import capture, paired_tokens
from helpers.images import load_images

HOW = {"rule": "median:3", "random": 2, "seed": 1, "pixels": True}


def test_what_is_read_is_what_would_be_kept():
    images, seen = load_images("scenes", 6, 3), []
    kept, _ = paired_tokens(["control-content"], images, 4, 2, **HOW)
    read, _ = paired_tokens(
        ["control-content"],
        images,
        4,
        2,
        **HOW,
        read=lambda c: seen.append(c) or c.outlier.tokens.sum(),
    )
    own, whole = read["control-content"], kept["control-content"]
    assert own.read == whole.outlier.tokens.sum() and whole.read is None
    assert (own.outlier, own.normal, own.random, own.tensors) == (None, None, None, {})
    assert torch.equal(own.norms, whole.norms) and torch.equal(
        seen[0].random.pixels, whole.random.pixels
    )


def test_tokens_of_a_model_are_let_go_before_the_next_is_captured(monkeypatch):
    tokens, alive = [], []

    def watched(*args, **options):
        kept = capture(*args, **options)
        alive.append([not one.expired() for one in tokens])
        tokens.extend(
            StorageWeakRef(kept[key].untyped_storage())
            for key in kept.keys() & {"tokens", "pixels"}
        )
        return kept

    monkeypatch.setattr(import_module("helpers.capture.chosen_tokens"), "capture", watched)
    paired_tokens(
        ["control-content", "control-clean"],
        load_images("scenes", 6, 3),
        4,
        2,
        **HOW,
        read=lambda c: 0,
    )
    assert alive == [[], [], [False, False], [False, False]]
