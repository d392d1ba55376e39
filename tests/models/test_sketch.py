"""Stubs: small, random, always the same; and what is known of the model in whose place they stand
is true."""

import pytest

from helpers.capture import PatchNorms, capture
from helpers.images import load_images
from helpers.measures.norms import outliers
from helpers.models import load_backbone, stub_name

TINY, CLIP = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", "open_clip:ViT-B-32/laion2b_s34b_b79k"


def test_architecture_is_that_of_the_model():
    """Against the model itself with random weights, and 2 x 1.26 billion multiplications as its
    paper's tables have it."""
    told = load_backbone(f"stub:{TINY}").stands_for
    model = load_backbone(TINY, pretrained=False)
    assert (told.image_size, told.layout) == (model.image_size, model.layout)
    assert (told.depth, told.width, told.widest) == (model.depth, model.width, 768)
    assert told.parameters == model.parameters and model.stands_for is None
    tokens, width = 197, 192
    blocks = 12 * 2 * (12 * width**2 * tokens + 2 * tokens**2 * width)
    assert told.flops == blocks + 2 * 196 * 768 * width + 2 * width * 1000


@pytest.mark.parametrize("name", [TINY, CLIP, "vit_giant_patch14_reg4_dinov2.lvd142m"])
def test_stub_is_small_and_has_outliers(name):
    backbone, again = load_backbone(f"stub:{name}"), load_backbone(f"stub:{name}")
    assert backbone.depth == 4 and max(backbone.layout.grid) <= 13
    assert backbone.weights_hash == again.weights_hash
    norms = capture(backbone, load_images("scenes", 4, 0), [PatchNorms(-1)])["patch_norms"]
    assert norms.shape == (4, backbone.layout.patches) and outliers(norms, "median:2").any()
    assert backbone.name == backbone.describe()["name"] == f"stub:{name}"


def test_size_is_that_which_was_asked():
    name = "stub:vit_small_patch14_dinov2.lvd142m"
    backbone = load_backbone(name, image_size=800, fit=True)
    with pytest.raises(ValueError, match="not divisible"):
        load_backbone(name, image_size=800)
    assert backbone.stands_for.image_size == (798, 798) and backbone.image_size == (182, 182)


def test_names():
    """Models of this project, which are small, have no stub in a dry run."""
    assert stub_name(TINY) == f"stub:{TINY}" and stub_name("control-clean") == "control-clean"
    assert stub_name("") == ""
    with pytest.raises(ValueError, match="unknown model 'stub:vit_tinny'"):
        load_backbone("stub:vit_tinny")


@pytest.mark.parametrize("registers", [0, 4])
def test_what_is_a_difference_to_a_checkpoint_has_a_stub_without_it(registers):
    """Also where the checkpoint cannot be had."""
    name = f"registers-asked-reg{registers}"
    backbone = load_backbone(f"stub:{name}")
    assert backbone.layout.registers == backbone.stands_for.layout.registers == registers
    assert backbone.depth == 4 and backbone.stands_for.depth == 12
    random = load_backbone(name, pretrained=False)
    assert random.parameters == backbone.stands_for.parameters


def test_scenes_are_stubs_of_images():
    """Their labels, columns and pictures are for any notebook, and no two sets share one."""
    names = [f"stub:hf:ILSVRC/imagenet-1k/{split}" for split in ("train", "validation")]
    images, other = (load_images(name, 8, seed=3) for name in names)
    assert images.name == names[0] and len(images + other) == 16 and len(load_images(names[0])) == 3
    assert images.require_labels().tolist() == [0, 1, 2, 0, 1, 2, 0, 1] and not images.class_names
    assert len({*images.columns["patient"]} | {*other.columns["patient"]}) == 16
    assert not images.select([1]).columns and not {*images.contents} & {*other.contents}
    assert images.boxes is not None and images.masks is not None
    assert [*images.ids] == [*images.select(range(8)).ids]
    with pytest.raises(ValueError, match="unknown data set"):
        load_images("stub:nothing", 3)
