"""Which patches are dropped, image by image, and what an intervention says of itself."""

import numpy as np
import pytest
import torch

from helpers.capture import PatchNorms, capture
from helpers.interventions import appended_registers, dropped_patches
from helpers.models import load_backbone


@pytest.fixture(scope="module")
def small():
    """A model of 64 patches, and pixels of seven images."""
    return load_backbone("scratch-reg0"), torch.rand(
        7, 3, 64, 64, generator=torch.Generator().manual_seed(0)
    )


def kept_patches(backbone, pixels):
    """(image, patch): what is not zero when block 0 begins."""
    seen = []
    with backbone.change_input(
        lambda x: (seen.append(backbone.layout.patch_tokens(x).abs().sum(-1) > 0), x)[1]
    ):
        capture(backbone, pixels, [PatchNorms()], batch_size=3)
    return torch.cat(seen).numpy()


@pytest.mark.parametrize("seed", [0, 5])
def test_the_kth_image_gets_the_kth_choice_of_the_seed(small, seed):
    """Also where a capture runs again, and so where a batch passes again."""
    backbone, pixels = small
    rng = np.random.default_rng(seed)
    expected = [
        rng.permutation(backbone.layout.patches) < backbone.layout.patches // 4 for _ in pixels
    ]
    arguments = {"seed": seed} if seed else {}
    with dropped_patches(backbone, 0.75, "zero", **arguments):
        for _ in range(2):
            assert (kept_patches(backbone, pixels) == expected).all()


def test_an_intervention_says_what_it_was_given(small):
    backbone, _ = small
    with appended_registers(backbone, 2), dropped_patches(backbone, 0.5):
        assert backbone.interventions == (
            ("appended_registers", {"count": 2, "init": "zeros", "seed": 0}),
            ("dropped_patches", {"rate": 0.5, "mode": "remove", "seed": 0}),
        )
    assert backbone.interventions == ()
