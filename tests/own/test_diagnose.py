"""What is said of outliers that were planted by a rule: where they stand, from where on, and
whether moving neurons removes them."""

import pytest
import torch
from PIL import Image

from helpers.images import Images
from helpers.models import load_backbone
from helpers.own import advice, diagnose

LEFT, RIGHT = (Image.new("RGB", (224, 224)) for _ in range(2))  # white on one side, else black
LEFT.paste("white", (0, 0, 112, 224))
RIGHT.paste("white", (112, 0, 224, 224))
FIXED = list(range(5, 11))  # of 16 patches


def pictures(sides):
    shown = [{"l": LEFT, "r": RIGHT}[side] for side in sides]
    return Images(sides, [str(i) for i in range(len(shown))], shown.__getitem__)


def left(pixels):
    """Whether a picture is bright on its left."""
    return pixels[..., :32].mean((1, 2, 3)) > pixels[..., 32:].mean((1, 2, 3))


def grey(pixels):
    return pixels.std((2, 3)).amax(1) < 1e-3


def plant(places, factors, backbone=None):
    """A control without outliers in which blocks write some that no neuron moves.

    `places` has, for the pixels of a batch, the patches of each image; `factors` by which these are
    multiplied, by block.
    """
    backbone, last = backbone or load_backbone("control-clean", image_size=64), {}

    def seen(_, inputs):
        last["patches"] = places(inputs[0])

    def write(factor, tokens):
        tokens = tokens.clone()
        for image, patches in enumerate(last["patches"]):
            tokens[image, [1 + patch for patch in patches]] *= factor
        return tokens

    backbone.model.patch_embed.register_forward_pre_hook(seen)
    for block, factor in factors.items():
        backbone.blocks[block].register_forward_hook(lambda *args, by=factor: write(by, args[-1]))
    return backbone


def said(places, sides="lrlrlrlr"):
    found = diagnose(plant(places, {-1: 6}), pictures(sides))
    return found, " ".join(advice(found))


def test_outliers_in_searched_images_alone_give_no_advice():
    found, words = said(lambda x: [[5] * bool(one) for one in left(x)], "lrlrlrlrlr")
    assert found.outliers and found.images_with_outliers.value == 0.5
    assert "None of them is among the 5 images that are tested" in words
    assert "--neurons" not in words and "decides where." not in words and found.remedy == []


@pytest.mark.parametrize(
    "places, sentence",
    [
        (lambda x: [FIXED for _ in x], "Position decides: they stay where they are"),
        (
            lambda x: [FIXED * (not one) for one in grey(x)],
            "Position decides where they stand, but content whether they do: a grey picture has "
            "0.0 of them",
        ),
        # None is left when the content is rolled: no share, and no place that they keep.
        (lambda x: [[5] * bool(one) for one in left(x)], "Content decides: they leave"),
        (lambda x: [[5 + bool(one)] for one in left(x)], "Content decides: they leave"),
    ],
    ids=["fixed", "not on grey", "gone", "moved"],
)
def test_what_decides_where_they_stand(places, sentence):
    found, words = said(places, "llllllll")
    assert sentence in words
    assert len(found.place.positions) == (6 if found.per_image.value == 6 else 4)
    assert found.place.usual.value == 1 and found.place.usual.n == 4


def test_places_are_those_of_images_in_which_they_were_not_searched():
    """Each image has outliers at patches of its own: no place is usual in the others."""
    count = iter(range(10_000))
    found, words = said(lambda x: [[4 + next(count) % 12] for _ in x], "lllll")
    assert found.place.usual.value == 0 and "in no few places: content decides where" in words


def test_as_many_places_as_outliers_are_usual_by_chance():
    """7 of 16 patches, drawn anew for each image."""
    draws = torch.Generator().manual_seed(0)
    found, words = said(lambda x: [torch.randperm(16, generator=draws)[:7].tolist() for _ in x])
    assert 0.4 < found.place.usual.value < 0.6
    assert "in no few places: content decides where" in words


def test_the_first_block_is_that_of_outliers_that_last():
    """Early ones of three images are gone at the end, where the two others have theirs."""
    backbone = plant(lambda x: [[5] * bool(one) for one in left(x)], {1: 6, 3: 1 / 6})
    plant(lambda x: [[5] * (not one) for one in left(x)], {-1: 6}, backbone)
    found = diagnose(backbone, pictures("lrlrl"))
    assert found.images_with_outliers.value == 0.4 and found.onset == backbone.depth - 1
