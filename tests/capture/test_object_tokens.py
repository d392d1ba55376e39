from dataclasses import replace

import pytest
import torch

from helpers.capture import FinalTokens, PatchNorms, capture_each, object_tokens
from helpers.images import load_images
from helpers.measures.registers import object_places
from helpers.models import ModelUnavailable, load_backbone

MODEL, TWIN = "control-content", "control-registers"


@pytest.fixture(scope="module")
def sets():
    images = load_images("scenes", 7, seed=4)
    return images.select(range(4)), images.select(range(4, 7))


def test_tokens_are_those_of_the_places_in_each_set(sets):
    kept, not_run = object_tokens(
        [MODEL, TWIN], *sets, 3, lambda b: [PatchNorms(-1)], seed=2, whole=True, batch_size=2
    )
    assert [*kept] == [MODEL, TWIN] and not not_run
    for images, group in zip(sets, ("learnt", "tested"), strict=True):
        captured, _ = capture_each(
            [MODEL, TWIN], images, [PatchNorms(-1), FinalTokens(norm=True)], whole=True
        )
        for model, own in kept.items():
            c, tokens = captured[model], getattr(own, group)
            grid = c.layout.grid
            assert torch.equal(tokens.positions, object_places(images.masks, [grid], 3, 2)[grid])
            every = c.layout.patch_tokens(c["final_tokens"])
            expected = torch.stack(
                [every[i, p] * (p >= 0)[:, None] for i, p in enumerate(tokens.positions)]
            )
            torch.testing.assert_close(tokens.tokens, expected)
            if group == "tested":
                assert [*own.tensors] == ["patch_norms"]
                torch.testing.assert_close(own["patch_norms"], c["patch_norms"])
                assert (own.layout, own.source, own.depth) == (c.layout, c.source, c.depth)


def test_each_model_is_loaded_once_and_what_is_kept_may_differ(sets, monkeypatch):
    loaded = []

    def load(name, **options):
        loaded.append(name)
        return load_backbone(name, **options)

    monkeypatch.setattr("helpers.capture.passes.load_backbone", load)
    kept, _ = object_tokens(
        [MODEL, TWIN], *sets, 2, lambda b: [PatchNorms(-1)] * (b.layout.registers == 0)
    )
    assert loaded == [MODEL, TWIN] and [[*c.tensors] for c in kept.values()] == [
        ["patch_norms"],
        [],
    ]


def test_without_masks_there_are_no_tokens(sets):
    learnt, tested = (replace(images, masks=None) for images in sets)
    kept, _ = object_tokens([MODEL], learnt, tested, 3, lambda b: [PatchNorms(-1)])
    assert (
        kept[MODEL].learnt is None
        and kept[MODEL].tested is None
        and [*kept[MODEL].tensors] == ["patch_norms"]
    )


def test_models_that_cannot_be_had(sets, monkeypatch, tmp_path):
    with pytest.raises(ModelUnavailable, match="no model was named"):
        object_tokens([], *sets, 3)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    with pytest.raises(ModelUnavailable, match=name):
        object_tokens([name], *sets, 3)
    kept, not_run = object_tokens([MODEL, name], *sets, 3)
    assert [*kept] == [MODEL] and [*not_run] == [name]
