from contextlib import nullcontext

import torch

from helpers.capture import PatchNorms, capture_conditions, capture_each
from helpers.images import load_images


def test_conditions_with_images_of_their_own():
    images = load_images("scenes", 3)
    shown = {"as they are": images, "flipped": images.changed("flipped")}
    passes, _ = capture_conditions(["control-content"], shown, [PatchNorms(-1)], dict.fromkeys(shown, nullcontext))
    for condition, own in shown.items():
        alone, _ = capture_each(["control-content"], own, [PatchNorms(-1)])
        assert torch.equal(passes[condition]["control-content"]["patch_norms"], alone["control-content"]["patch_norms"])
