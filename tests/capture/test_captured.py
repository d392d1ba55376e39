import torch

from helpers.capture import Captured, ClsAttention, PatchNorms, TokenNorms, capture_conditions, classifiers_of
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
