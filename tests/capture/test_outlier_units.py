import torch

from helpers.capture import (
    FinalTokens,
    NeuronActivation,
    PatchNorms,
    capture,
    find_register_neurons,
    outlier_units,
)
from helpers.images import load_images
from helpers.measures.norms import paired_positions, threshold
from helpers.models import PLANTED_BLOCK, REGISTER_NEURON, load_backbone

MODEL = "control-position"


def test_the_unit_is_the_planted_one_and_the_tokens_are_those_of_outliers():
    images, backbone = load_images("scenes", 6, seed=4), load_backbone(MODEL)
    norms = capture(backbone, images, [PatchNorms(-1)])["patch_norms"]
    limit = threshold(norms, "median:3")
    mask = norms > limit
    mask[0] = False  # what the search leaves out
    found = outlier_units([MODEL], images, {MODEL: mask}, {MODEL: limit}, searched=2, seed=1)[MODEL]
    best = find_register_neurons(backbone, images.select([1, 2]), rule=f"fixed:{limit}", top_k=2)
    assert found.neuron == best[0] and found.neuron[:2] == (PLANTED_BLOCK[MODEL], REGISTER_NEURON)
    for activation, neuron in zip((found.activation, found.second), best, strict=True):
        expected = capture(backbone, images, [NeuronActivation("unit", neuron.block, neuron.unit)])[
            "unit"
        ]
        torch.testing.assert_close(activation, expected)
    tokens = backbone.layout.patch_tokens(
        capture(backbone, images, [FinalTokens()])["final_tokens"]
    )
    for own, positions in zip(
        (found.outlier, found.normal), paired_positions(mask, 4, 1), strict=True
    ):
        expected = torch.stack([tokens[i, p] * (p >= 0)[:, None] for i, p in enumerate(positions)])
        torch.testing.assert_close(own, expected)
