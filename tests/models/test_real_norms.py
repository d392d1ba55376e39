"""Real weights on real photographs: what the controls do not reach, loading and preprocessing.

The norms lie in real_norms.json. `python tests/models/test_real_norms.py` stores them again.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.capture import PatchNorms, capture
from helpers.images import load_images
from helpers.models import ModelUnavailable, load_backbone

STORED = Path(__file__).with_name("real_norms.json")
MODELS = {  # and the digest of their weights
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": "8452bc0b7259d575",
    "deit_tiny_patch16_224.fb_in1k": "c0e0d0ae17843a15",
}
BLOCKS = (7, -1)  # where the outliers of ViT-Ti begin, and the last
DECILES = np.linspace(0, 100, 11)


def norms(model: str) -> dict[str, list]:
    """Photograph -> for each block the deciles of its patches' norms, with six digits."""
    images = load_images("photographs", 6, seed=0)
    found = capture(load_backbone(model), images, [PatchNorms(blocks=BLOCKS)], progress=False)
    deciles = np.percentile(found["patch_norms"].numpy(), DECILES, axis=-1)
    return {
        id: [[float(f"{x:.6g}") for x in deciles[:, image, block]] for block in range(len(BLOCKS))]
        for image, id in enumerate(images.ids)
    }


@pytest.mark.parametrize("model", MODELS)
def test_norms_of_photographs_are_those_stored(model, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # what the cache has
    try:
        assert load_backbone(model).weights_hash == MODELS[model]
        fresh = norms(model)
    except ModelUnavailable as error:
        pytest.skip(f"not verifiable here: {error}")
    stored = json.loads(STORED.read_text(encoding="utf-8"))[model]
    assert fresh.keys() == stored.keys()
    for id, own in stored.items():
        np.testing.assert_allclose(fresh[id], own, rtol=2e-3, err_msg=id)


if __name__ == "__main__":
    text = json.dumps({model: norms(model) for model in MODELS}, indent=1)
    STORED.write_text(text.replace("\n    ", "").replace("\n   ]", "]") + "\n", encoding="utf-8")
