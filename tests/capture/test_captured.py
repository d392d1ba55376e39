from contextlib import nullcontext

import torch

from helpers.capture import Captured, ClsAttention, PatchNorms, TokenNorms, capture_conditions, capture_each, classifiers_of
from helpers.images import load_images
from helpers.interventions import appended_registers


def test_patches_of_what_was_kept_of_all_tokens():
    images = load_images("scenes", 3)
    reducers = [TokenNorms(), PatchNorms(), ClsAttention("all", "all")]
    conditions = {"registers": lambda backbone: appended_registers(backbone, 2)}
    passes, _ = capture_conditions(["control-registers"], images, reducers, conditions)
    captured = passes["registers"]["control-registers"]
    assert isinstance(captured, Captured) and captured["token_norms"].shape[-1] > captured["patch_norms"].shape[-1]
    assert torch.equal(captured.patches("token_norms"), captured["patch_norms"])
    assert captured.patches("cls_attention").shape[-1] == captured.layout.patches


def test_no_model_needs_no_classifier():
    assert not classifiers_of("probe", [], load_images("scenes", 2)).probes


def test_conditions_with_images_of_their_own():
    images = load_images("scenes", 3)
    shown = {"as they are": images, "flipped": images.changed("flipped")}
    passes, _ = capture_conditions(["control-content"], shown, [PatchNorms(-1)], dict.fromkeys(shown, nullcontext))
    for condition, own in shown.items():
        alone, _ = capture_each(["control-content"], own, [PatchNorms(-1)])
        assert torch.equal(passes[condition]["control-content"]["patch_norms"], alone["control-content"]["patch_norms"])
