from contextlib import nullcontext

import torch

from helpers.capture import Feature, PatchNorms, capture_conditions, capture_each
from helpers.images import load_images


def test_conditions_with_images_of_their_own():
    images = load_images("scenes", 3)
    shown = {"as they are": images, "flipped": images.changed("flipped")}
    passes, _ = capture_conditions(
        ["control-content"], shown, [PatchNorms(-1)], dict.fromkeys(shown, nullcontext)
    )
    for condition, own in shown.items():
        alone, _ = capture_each(["control-content"], own, [PatchNorms(-1)])
        assert torch.equal(
            passes[condition]["control-content"]["patch_norms"],
            alone["control-content"]["patch_norms"],
        )


def test_conditions_with_reducers_of_their_own():
    images, conditions = load_images("scenes", 3), dict.fromkeys(("norms", "features"), nullcontext)
    reducers = {"norms": [PatchNorms(-1)], "features": lambda model: [Feature()]}
    passes, _ = capture_conditions(["control-content"], images, reducers, conditions)
    assert {name: [*of_model["control-content"].tensors] for name, of_model in passes.items()} == {
        "norms": ["patch_norms"], "features": ["feature"]
    }  # fmt: skip


def test_what_is_read_takes_the_place_of_what_was_kept():
    images, models = load_images("scenes", 3), ["control-content", "control-clean"]
    kept, _ = capture_each(models, images, [PatchNorms(-1)])
    read, _ = capture_each(
        models, images, [PatchNorms(-1)], read=lambda c: (c.depth, c["patch_norms"].sum())
    )
    assert read == {model: (c.depth, c["patch_norms"].sum()) for model, c in kept.items()}
