"""Stand-ins: small, random, always the same; and what is told of the model in whose place they stand is true."""

import pytest
import torch

from helpers.capture import PatchNorms, capture
from helpers.images import load_images
from helpers.images import stand_ins as image_stand_ins
from helpers.measures.norms import outliers
from helpers.models import load_backbone, stand_ins

TINY, CLIP = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "open_clip:ViT-B-32/laion2b_s34b_b79k"


def test_architecture_is_that_of_the_model():
    """Against the model itself with random weights, and 2 x 1.26 billion multiplications as its paper's tables have it."""
    with stand_ins(4, 13):
        told = load_backbone(TINY).stands_for
    model = load_backbone(TINY, pretrained=False)
    assert (told.image_size, told.layout, told.depth, told.width) == (model.image_size, model.layout, model.depth, model.width)
    assert told.parameters == model.parameters and told.widest == 768 and model.stands_for is None
    tokens, width = 197, 192
    blocks = 12 * 2 * (12 * width**2 * tokens + 2 * tokens**2 * width)
    assert told.flops == blocks + 2 * 196 * 768 * width + 2 * width * 1000


@pytest.mark.parametrize("name", [TINY, CLIP, "vit_giant_patch14_reg4_dinov2.lvd142m"])
def test_stand_in_is_small_and_has_outliers(name):
    with stand_ins(2, 7):
        backbone = load_backbone(name)
        again = load_backbone(name)
    assert backbone.depth == 2 and backbone.layout.grid == (7, 7) and backbone.weights_hash == again.weights_hash
    norms = capture(backbone, load_images("scenes", 4, 0), [PatchNorms(-1)])["patch_norms"]
    assert norms.shape == (4, 49) and outliers(norms, "median:3").any()
    assert backbone.describe()["name"] == f"stand-in for {name}"


def test_size_is_that_which_was_asked():
    with stand_ins(1, 7):
        backbone = load_backbone("vit_small_patch14_dinov2.lvd142m", image_size=800, fit=True)
        with pytest.raises(ValueError, match="not divisible"):
            load_backbone("vit_small_patch14_dinov2.lvd142m", image_size=800)
    assert backbone.stands_for.image_size == (798, 798) and backbone.image_size == (98, 98)


def test_own_models_stay():
    plain = load_backbone("control-clean").weights_hash
    with stand_ins(1, 1):
        backbone = load_backbone("control-clean")
    assert backbone.stands_for is None and backbone.weights_hash == plain


@pytest.mark.parametrize("registers", [0, 4])
def test_what_is_a_difference_to_a_checkpoint_stands_without_it(registers):
    """Also where the checkpoint cannot be had."""
    with stand_ins(2, 7):
        backbone = load_backbone(f"registers-asked-reg{registers}")
    assert backbone.layout.registers == backbone.stands_for.layout.registers == registers
    assert backbone.depth == 2 and backbone.stands_for.depth == 12 and backbone.describe()["name"].startswith("stand-in for")
    random = load_backbone(f"registers-asked-reg{registers}", pretrained=False)
    assert random.parameters == backbone.stands_for.parameters


def test_scenes_stand_in_for_images():
    with image_stand_ins():
        images, other = (load_images(f"hf:ILSVRC/imagenet-1k/{split}", 8, seed=3) for split in ("train", "validation"))
        assert load_images("scenes", 2, seed=3).name == "scenes"
        assert len(load_images("photographs")) == 19
    assert images.name == "stand-in for hf:ILSVRC/imagenet-1k/train" and len(images + other) == 16
    assert images.require_labels().tolist() == [0, 1, 2, 0, 1, 2, 0, 1] and len(images.class_names) == 3
    assert len({*images.columns["patient"]} | {*other.columns["patient"]}) == 16 and not images.select([1]).columns
    assert not {*images.contents} & {*other.contents} and images.boxes is not None and images.masks is not None
    assert torch.equal(*(torch.tensor([*map(hash, x.ids)]) for x in (images, images.select(range(8)))))
