"""What is said of outliers that were planted by a rule: where they stand, from where on, and
whether moving neurons removes them."""

from contextlib import nullcontext

import pytest
import torch
import zoo
from PIL import Image
from timm.models.beit import Beit
from torch.nn.functional import one_hot

from helpers.capture import Captured, ClsAttention, TokenNorms, capture
from helpers.images import Images
from helpers.interventions import test_time_registers as moving  # else pytest would collect it
from helpers.models import CONTROL_DATA, TokenLayout, load_backbone, wrap_timm
from helpers.own import advice, diagnose
from helpers.own.diagnose import _Session

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


# ---- Each number in closed form


def norms_of(backbone, images, block=-1):
    norms = capture(backbone, images, [TokenNorms()], progress=False)["token_norms"]
    return backbone.layout.patch_tokens(norms, dim=-1)[:, block]


@pytest.fixture
def session():
    return _Session(load_backbone("control-clean", image_size=64), pictures("lrlr"), 0, {})


def test_a_norm_at_the_threshold_is_no_outlier(session):
    images = pictures("lr")
    highest = norms_of(session.backbone, images).max().item()
    assert not session._mask(images, highest).any()
    assert session._mask(images, highest - 1e-3).any()


def captured(answers, norms, attention, appended=0):
    """Of three images of 2 x 2 patches in two blocks; feature and output are the answers."""
    tokens = torch.tensor(norms, dtype=torch.float32)
    tensors = {
        "token_norms": torch.stack([torch.full_like(tokens, 999.0), tokens], 1),
        "cls_attention": torch.tensor(attention),
        "output": one_hot(torch.tensor(answers), 3).float(),
        "feature": one_hot(torch.tensor(answers), 3).float() + 1,
    }
    return Captured(tensors, TokenLayout((2, 2), appended=appended), 0, 2, {})


def test_a_state_in_closed_form(session):
    norms = [[0, 1, 2, 3, 9], [0, 9, 3, 2, 1], [0, 1, 2, 3, 4]]
    half = [[0.2] * 5] * 3
    before = captured([0, 1, 2], norms, half)
    mask = before.patches("token_norms")[:, -1] > 8
    moved = [[0, 1, 2, 3, 8, 20, 30], [0, 8.5, 3, 2, 1, 10, 40], [0, 1, 2, 3, 4, 50, 0]]
    now = captured([0, 1, 1], moved, [[0.5, 0.1, 0.0, 0.0, 0.2, 0.1, 0.1]] * 3, appended=2)
    session.has_classes = True
    state = session._state(now, before, mask, 8)
    assert state.images_with_outliers.value == 1 / 3  # one is at the threshold
    assert [x.value for x in state.norms] == [999, pytest.approx(20.5 / 3)]
    assert state.largest.value == pytest.approx(20.5 / 3)
    # Of the two images with an outlier: the last patch of one, the first of the other.
    assert state.outlier_attention[:4:3] == (pytest.approx(0.15), 2)
    assert state.agreement[:4:3] == (pytest.approx(2 / 3), 3)
    assert state.register_norm.value == pytest.approx((30 + 40 + 50) / 3)
    assert state.cosine.value == pytest.approx((1 + 1 + 5 / 6) / 3)
    silent = captured([0, 1, 2] * 3, norms * 3, [[0.0] * 5] * 9)
    session.has_classes = False
    state = session._state(silent, silent, mask.repeat(3, 1), 8)
    assert state.outlier_attention[:3] == (0, 0, 0)  # no [CLS] could look there by chance
    assert state.agreement is None and state.register_norm is None


def test_what_is_counted():
    """Two patches of three images of seven, one of which is searched."""
    images = pictures("lrrrlll")
    backbone = plant(lambda x: [[5, 6] * (not one) for one in left(x)], {-1: 6})
    found, norms = diagnose(backbone, images), norms_of(backbone, images)
    assert found.rules["median:3"] == (pytest.approx(6 / 112), found.images_with_outliers)
    assert found.images_with_outliers.value == 3 / 7 and found.outliers_per_image.value == 6 / 7
    largest = norms.amax(1) / norms.median()
    assert found.largest_over_median.value == pytest.approx(largest.mean().item())
    assert [one["image"] for one in found.by_image] == images.ids
    assert [one["outliers"] for one in found.by_image] == [0, 2, 2, 2, 0, 0, 0]
    each = [one["largest_over_median"] for one in found.by_image]
    assert each == pytest.approx(largest.tolist())
    assert all(0 <= one["shared_attention"] <= 1 + 1e-5 for one in found.by_image)
    assert found.norms[-1].value == pytest.approx(norms.amax(1).mean().item())
    shares = torch.zeros(4, 4)
    shares[1, 1:3] = 3 / 7
    torch.testing.assert_close(found.share_map, shares)
    before = found.states["before"]  # of the images in places 1, 3 and 5
    assert before.largest.value == pytest.approx(norms[1::2].amax(1).mean().item())
    assert before.images_with_outliers[:4:3] == (2 / 3, 3) and before.cosine.value == pytest.approx(
        1
    )
    assert found.place.grey.value == 2 and found.place.usual.value == 1
    shown = found.pictures[0]
    torch.testing.assert_close(shown["norm"]["before"].flatten(), norms[1])
    attention = capture(backbone, images.select([1]), [ClsAttention(-1)])["cls_attention"]
    of_patches = backbone.layout.patch_tokens(attention.squeeze(), dim=-1)
    torch.testing.assert_close(shown["attention"]["before"].flatten(), of_patches)
    assert len(found.pictures) == 3 == len(found.neurons)
    assert shown["image"].shape == (64, 64, 3) and shown["image"][:, :24].amax() == 0


def test_the_channels_are_those_of_images_with_outliers():
    backbone = load_backbone("control-clean", image_size=64)
    with_one = []

    def write(_, inputs, tokens):
        tokens = tokens.clone()
        tokens[:, 6, 7] += 500 * with_one[-1]
        return tokens

    backbone.model.patch_embed.register_forward_pre_hook(
        lambda _, inputs: with_one.append(left(inputs[0]))
    )
    backbone.blocks[-1].register_forward_hook(write)
    channel, share = diagnose(backbone, pictures("llrr")).channels[0]
    assert channel == 7 and share > 0.95


@pytest.mark.parametrize("outlying, n, found", [(1, 20, False), (2, 20, True), (1, 19, True)])
def test_more_than_one_image_of_twenty_makes_a_model_with_outliers(outlying, n, found):
    backbone = plant(lambda x: [[5] * bool(one) for one in left(x)], {-1: 6})
    diagnosis = diagnose(backbone, pictures("l" * outlying + "r" * (n - outlying)))
    assert diagnosis.outliers == found == bool(diagnosis.states) == (diagnosis.onset is not None)
    assert len(diagnosis.pictures) == 3


# ---- What is said


def said(places, sides="lrlrlrlr"):
    found = diagnose(plant(places, {-1: 6}), pictures(sides))
    return found, " ".join(advice(found))


@pytest.mark.parametrize("sides", ["lrlrlrlr", "rlrlrlrl"])
def test_outliers_in_one_half_alone_give_no_advice(sides):
    found, words = said(lambda x: [[5] * bool(one) for one in left(x)], sides)
    assert found.outliers and found.images_with_outliers.value == 0.5
    assert words.endswith("what writes them stays open. Give more images, in another order.")
    assert found.place is None and found.remedy == []


@pytest.mark.parametrize(
    "places, sentence",
    [
        (lambda x: [FIXED for _ in x], "Position decides: they stay where they are"),
        (
            lambda x: [FIXED * (not one) for one in grey(x)],
            "Position decides where they are, but content whether there are any: a grey image has "
            "0 of them",
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
    assert len(found.place.positions) == (6 if found.outliers_per_image.value == 6 else 4)
    assert found.place.usual.value == 1 and found.place.usual.n == 4


def test_places_are_those_of_images_in_which_they_were_not_searched():
    """Each image has outliers at patches of its own: no place is usual in the others."""
    count = iter(range(10_000))
    found, words = said(lambda x: [[4 + next(count) % 12] for _ in x], "lllll")
    assert found.place.usual.value == 0 and "no fixed places: content decides where" in words


def test_as_many_places_are_usual_as_an_image_has_outliers():
    """Eight in six images of eight; of a grid of four patches no more than two."""
    found, _ = said(lambda x: [[*range(4, 12)] * bool(one) for one in left(x)], "llllllrr")
    assert len(found.place.positions) == 6
    small = load_backbone("control-clean", image_size=32)
    found = diagnose(plant(lambda x: [[1] for _ in x], {-1: 6}, small), pictures("llll"))
    assert len(found.place.positions) == 2 and advice(found)


def test_a_model_without_cls_has_no_maps_of_its_attention():
    found = diagnose(zoo.build("pooled"), pictures("lrlr"))
    assert "[CLS] attention" in found.left_out
    assert found.pictures[0].keys() == {"image", "norm", "received"}


def test_a_model_to_which_no_token_can_be_added():
    """BEiT's bias of relative positions has a number for each pair of its own tokens."""
    model = zoo.randomise(Beit(**zoo.SMALL, use_rel_pos_bias=True))
    backbone = wrap_timm("beit", model, CONTROL_DATA, pretrained=False)
    found = diagnose(plant(lambda x: [[5] for _ in x], {-1: 6}, backbone), pictures("lrlr"))
    assert "a bias for each pair" in found.left_out["register neurons"]
    assert found.states.keys() == {"before"} and found.sinks and advice(found)


# ---- Sinks


@pytest.mark.parametrize("count", [1, 4, 5])
def test_a_planted_sink_without_outliers_is_one_that_norms_miss(count):
    """All queries of a head of block 2 attend to the same patches alike."""
    backbone = load_backbone("control-clean", image_size=64)
    heads = backbone.blocks[2].attn.num_heads

    def attend(_, inputs, output):
        parts = output.clone().unflatten(-1, (3, heads, -1))
        parts[:, :, :2, 0] = 0
        parts[:, :, 0, 0, 0] = 50.0
        parts[:, 1 + 3 : 1 + 3 + count, 1, 0, 0] = 50.0
        return parts.flatten(2)

    backbone.blocks[2].attn.qkv.register_forward_hook(attend)
    found = diagnose(backbone, pictures("lrlr"))
    sinks = found.sinks
    assert not found.outliers and sinks.block == 2
    assert found.cell == "sinks alone" and sinks.patches.value == 1  # 4 of 5 patches share 80 %
    assert all(
        x["shared_attention"] == pytest.approx(min(1, 4 / count), abs=1e-4) for x in found.by_image
    )
    planted_head = sinks.received["other patches"][2].value
    assert planted_head >= 1 / heads - 1e-5
    assert "its attention is not" in " ".join(advice(found))


def test_the_attention_on_outliers_is_that_of_the_matrix():
    backbone = plant(lambda x: [FIXED for _ in x], {1: 6})
    images, qkv = pictures("lrlrlr"), []
    attn = backbone.blocks[2].attn
    # All queries would give all to [CLS]: so each token gets a little, no two the same.
    attn.qkv.register_forward_hook(lambda *args: 0.1 * args[-1])
    found = diagnose(backbone, images)
    attn.qkv.register_forward_hook(lambda *args: qkv.append(args[-1]))
    backbone(torch.stack([backbone.preprocess(image) for image in images]))
    q, k, _ = qkv[0].unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4).double()
    matrix = (q @ k.mT * attn.scale).softmax(-1)
    expected = matrix[..., [1 + patch for patch in FIXED]].sum(-1).mean()
    assert found.sinks.received["outliers"][2].value == pytest.approx(expected.item(), rel=1e-5)
    assert 0.01 < expected < 0.4
    # Before and after, on the images that were not searched; the moved model has a token more.
    assert found.moved and found.states["set to zero"].received is None
    for name, units in {"before": None, "moved": found.moved}.items():
        with moving(backbone, units) if units else nullcontext():
            backbone(torch.stack([backbone.preprocess(images[i]) for i in (1, 3, 5)]))
        q, k, _ = qkv[-1].unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4).double()
        assert q.shape[2] == 17 + (name == "moved")
        matrix = (q @ k.mT * attn.scale).softmax(-1)
        expected = matrix[..., [1 + patch for patch in FIXED]].sum(-1).mean()
        state = found.states[name]
        assert state.received[2].value == pytest.approx(expected.item(), rel=1e-5)
        assert state.most_received.value == max(x.value for x in state.received)


def test_the_first_block_is_that_of_outliers_that_last():
    """Early ones of three images are gone at the end, where the two others have theirs."""
    backbone = plant(lambda x: [[5] * bool(one) for one in left(x)], {1: 6, 3: 1 / 6})
    plant(lambda x: [[5] * (not one) for one in left(x)], {-1: 6}, backbone)
    found = diagnose(backbone, pictures("lrlrl"))
    assert found.images_with_outliers.value == 0.4 and found.onset == backbone.depth - 1
