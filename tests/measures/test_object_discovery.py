import numpy as np
import pytest
import torch
from skimage.segmentation import flood

from helpers.images import draw_scene
from helpers.images.scenes import SIZE
from helpers.measures.object_discovery import (
    box_hits,
    component_estimates,
    corloc,
    covered,
    lost_box_sweep,
    lost_boxes_within,
    lost_masks,
    object_auc,
    share_in_boxes,
)
from helpers.measures.similarity import principal_components


def lost_by_hand(features, k, bias):
    """LOST in float64 with NumPy and scikit-image: mask and box of one picture."""
    shape = features.shape[:2]
    patches = features.reshape(shape[0] * shape[1], -1).astype(np.float64)
    gram = patches @ patches.T
    gram += bias * abs(gram).mean()
    degree = ((gram > 0) & ~np.eye(len(gram), dtype=bool)).sum(axis=0)
    order = sorted(range(len(degree)), key=lambda patch: (degree[patch], patch))
    seed = divmod(order[0], shape[1])
    expanded = [patch for patch in order[:k] if gram[order[0], patch] > 0]
    positive = (gram[expanded].sum(axis=0) > 0).reshape(shape)
    positive[seed] = True
    mask = flood(positive, seed, connectivity=1)
    at = np.argwhere(mask)
    box = [*at.min(axis=0)[::-1] / shape[::-1], *(at.max(axis=0) + 1)[::-1] / shape[::-1]]
    return mask, box


def lost_mask(features, k, bias=0.0):
    return next(lost_masks(features, (k,), (bias,)))


def planted(rows, columns, *objects):
    """Features of a background, and of objects (top, left, bottom, right) that resemble one another
    and not the background."""
    features = torch.tensor([1.0, 0.0]).repeat(rows, columns, 1)
    for top, left, bottom, right in objects:
        features[top:bottom, left:right] = torch.tensor([-0.2, 1.0])
    return features


def chain(length):
    """One row: a of a given length, b, c and three of a background; only a and b, b and c, and the
    background are similar."""
    a, b, c, background = [length, 0, 0, 0], [1.0, 1, 0, 0], [-1.0, 3, 0, 0], [0, 0, 0, 1.0]
    return torch.tensor([[a, b, c, background, background, background]])


@pytest.mark.parametrize("bias", [0.0, 0.7, -0.7])
@pytest.mark.parametrize(
    "shape, k", [((6, 5, 3), 1), ((6, 5, 3), 12), ((4, 9, 2), 10), ((5, 5, 8), 25), ((1, 7, 2), 3)]
)
def test_lost_by_hand(shape, k, bias):
    # Small whole numbers of very unlike sizes: float32 is exact, ties and similarities of zero are
    # frequent.
    rng = np.random.default_rng(0)
    features = (rng.integers(-3, 4, (20, *shape)) * rng.integers(1, 6, (20, *shape[:2], 1))).astype(
        np.float32
    )
    boxes = lost_boxes_within(torch.from_numpy(features), k, bias)
    assert boxes.dtype == torch.float32
    for image, box in zip(features, boxes, strict=True):
        mask, expected = lost_by_hand(image, k, bias)
        assert np.array_equal(lost_mask(torch.from_numpy(image), k, bias), mask)
        assert box.numpy() == pytest.approx(expected, abs=1e-6)


def test_lost_finds_a_planted_object():
    features = planted(8, 10, (2, 3, 5, 7))
    mask = lost_mask(features, k=20)
    assert mask.sum() == 12 and mask[2:5, 3:7].all()
    assert lost_boxes_within(features[None], k=20)[0].tolist() == pytest.approx(
        [3 / 10, 2 / 8, 7 / 10, 5 / 8]
    )


def test_the_first_of_equal_patches_is_the_seed_and_corners_do_not_connect():
    # Three objects of the same kind; the second touches the first at a corner, the third lies
    # apart.
    features = planted(8, 8, (1, 1, 3, 3), (3, 3, 5, 5), (6, 0, 8, 2))
    boxes = lost_boxes_within(torch.stack([features, features.flip(0)]), k=12) * 8
    assert boxes.tolist() == [[1, 1, 3, 3], [0, 0, 2, 2]]


def test_the_bias_is_added_to_every_similarity():
    features = planted(6, 6, (1, 2, 4, 5))
    assert lost_mask(features, k=36, bias=10.0).all()
    # Not even the seed resembles itself.
    assert lost_mask(features, k=36, bias=-10.0).nonzero().tolist() == [[0, 0]]


def test_half_precision_is_raised():
    # Products of 300 x 300 do not fit in float16: the similarities of c to a and b would add up to
    # nan.
    features = 300 * chain(1.0)
    assert torch.equal(lost_mask(features.half(), k=3), lost_mask(features, k=3))
    assert lost_boxes_within(features[None].bfloat16(), k=3).dtype == torch.float32


def scene_features(images, shuffled=False):
    """The mean colour of each patch of 16 x 16 pixels without its grey, from the picture's mean:
    objects are the vivid ones."""
    rng = np.random.default_rng(0)
    features = []
    for index in range(images):
        patches = draw_scene(0, index).pixels.reshape(14, 16, 14, 16, 3).mean(axis=(1, 3)) / 255
        chroma = patches - patches.mean(axis=-1, keepdims=True)
        chroma = chroma - chroma.mean(axis=(0, 1))
        features.append(
            rng.permutation(chroma.reshape(196, 3)).reshape(14, 14, 3) if shuffled else chroma
        )
    return torch.from_numpy(np.stack(features))


def test_the_colours_of_a_scene_lead_to_its_object_and_shuffled_colours_do_not():
    truth = [draw_scene(0, index).boxes / SIZE for index in range(30)]
    assert corloc(lost_boxes_within(scene_features(30)), truth).float().mean() >= 0.6
    assert corloc(lost_boxes_within(scene_features(30, shuffled=True)), truth).float().mean() <= 0.1


FLAT = torch.ones(1, 6, 6, 2)
BOXES, BOX = np.array([[0, 0, 0.5, 1]] * 2), np.array([[0, 0, 1.0, 1]])


@pytest.mark.parametrize(
    "refused",
    [
        lambda: lost_boxes_within(FLAT, k=0),
        lambda: lost_mask(FLAT[0], k=37),
        lambda: lost_mask(FLAT[0] * torch.nan, k=36),
        lambda: lost_mask(FLAT[0] * torch.inf, k=36),
        lambda: corloc(BOXES, [BOX]),
        lambda: corloc(BOXES, [BOX, BOX[:0]]),
        lambda: corloc(BOXES, [BOX, 224 * BOX]),
    ],
)
def test_what_has_no_box_is_refused(refused):
    with pytest.raises(ValueError):
        refused()


def test_corloc_takes_any_object_and_its_level_is_inclusive():
    found = np.array([[0, 0, 0.5, 1], [0, 0, 0.5, 1], [0.5, 0.5, 1, 1]], dtype=np.float32)
    truth = [
        np.array([[0, 0, 1, 1]], dtype=np.float32),  # exactly half
        np.array([[0, 0, 1, 0.9]], dtype=np.float32),  # less than half
        np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 0.9]], dtype=np.float32),  # the second of two
    ]
    assert corloc(found, truth).tolist() == [True, False, True]
    right = corloc(torch.from_numpy(found), [torch.from_numpy(boxes) for boxes in truth])
    assert right.dtype == torch.bool and right.tolist() == [True, False, True]
    assert corloc(found[:0], []).shape == (0,)


def test_covered_counts_the_pixels_of_each_patch():
    masks = [draw_scene(3, index).masks for index in range(4)]
    found = covered(masks, (14, 14))
    for mask, patches in zip(masks, found.reshape(4, 14, 14), strict=True):
        seen = mask.any(axis=0)
        for row, column in np.ndindex(14, 14):
            pixels = seen[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            assert patches[row, column] == (2 * pixels.sum() >= pixels.size)
    assert 0.02 < found.float().mean() < 0.5


def test_covered_takes_all_objects_together_and_any_grid():
    mask = np.zeros((2, 8, 12), dtype=bool)
    mask[0, :4, :1], mask[1, :4, 3:4] = True, True  # a quarter of the first patch each
    assert covered([mask, mask[:1]], (2, 3)).tolist() == [[True] + 5 * [False], 6 * [False]]
    finer = [i in (0, 1, 6, 7) for i in range(24)]
    assert covered([torch.from_numpy(mask)], (4, 6)).tolist() == [finer]
    assert covered([np.ones((1, 10, 10), dtype=bool)], (3, 4)).all()  # 10 pixels, 3 rows


FEATURES = torch.randn(3, 5, 4, 6, generator=torch.Generator().manual_seed(0))
TRUTH = [
    torch.tensor([[0.0, 0.0, 0.5, 0.5]]),
    torch.tensor([[0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]]),
]
CORNER, REST, NOTHING = [0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [0.9, 0.0, 1.0, 0.1]


def test_a_sweep_has_every_setting_in_its_place():
    found = lost_box_sweep(FEATURES, [0.0, -0.5, -1.0], [2, 1000])
    assert found.shape == (3, 3, 2, 4)
    for i, bias in enumerate([0.0, -0.5, -1.0]):
        for j, k in enumerate([2, 20]):
            assert torch.equal(found[:, i, j], lost_boxes_within(FEATURES, k, bias))


def test_planted_hits_in_every_set():
    """Right in the first image only, in the second only, in both, in none."""
    found = torch.tensor([[CORNER, NOTHING, CORNER, NOTHING], [NOTHING, REST, REST, NOTHING]])
    expected = [[100, 0, 100, 0], [0, 100, 100, 0]]
    assert box_hits(found, TRUTH).tolist() == expected
    assert box_hits(found.unflatten(1, (2, 2)), TRUTH).tolist() == [
        [[100, 0], [100, 0]],
        [[0, 100], [100, 0]],
    ]
    assert box_hits(found[:, 1], TRUTH).tolist() == [0, 100]


def test_a_planted_share_in_boxes():
    """Patches of 1 to 8 in two rows; a box around the first two of each row, and one around 4 that
    overlaps another."""
    maps = torch.arange(1.0, 9).reshape(1, 2, 4).expand(4, -1, -1)
    first = [0.0, 0.0, 0.5, 1.0]
    fourth = [[0.75, 0.0, 1.0, 0.5], [0.7, 0.1, 1.0, 0.4]]
    truth = [np.float32(x).reshape(-1, 4) for x in ([first], fourth, [first, *fourth], [])]
    found = share_in_boxes(maps, truth)
    assert (
        found[:3].tolist() == pytest.approx([(1 + 2 + 5 + 6) / 36, 4 / 36, 18 / 36])
        and found[3].isnan()
    )


def test_a_patch_belongs_to_the_box_that_holds_its_middle():
    flat, almost = torch.ones(2, 2, 2), np.float32([[0.0, 0.0, 0.24, 1.0]])
    assert share_in_boxes(flat, [almost, almost + np.float32([0, 0, 0.02, 0])]).tolist() == [0, 0.5]


def test_objects_by_scores_without_a_sign():
    """Two images whose objects are the low scores, one where they are the high ones, and one
    without any other patch."""
    inside = torch.tensor([[True, True, False, False]] * 3 + [[True] * 4])
    scores = torch.tensor([[0.0, 1, 2, 3], [0, 2, 1, 3], [3, 2, 1, 0], [0, 1, 2, 3]])
    found = object_auc(scores, inside)
    assert found[:3].tolist() == [1, 0.75, 0] and found[3].isnan()
    assert object_auc(-scores, inside)[:3].tolist() == [1, 0.75, 0]
    assert object_auc(scores, inside, each=True)[:3].tolist() == [1, 0.75, 1]


@pytest.mark.parametrize(("apart", "expected"), [(0.9e-6, 0.5), (1.1e-6, 1.0)])
def test_objects_by_scores_that_are_equal_but_for_rounding(apart, expected):
    scores = -11 * torch.tensor([[1, 1 + apart]], dtype=torch.float64)
    assert object_auc(scores, torch.tensor([[True, False]])).tolist() == [expected]


def test_objects_show_on_the_first_component_once_the_outlier_is_gone():
    """Of 8 patches the first is an outlier at 20 along one axis, and objects lie at 1 along
    another, all else at -1: the outlier has the first component, then the objects have it."""
    outlier = torch.zeros(6, 8, dtype=torch.bool)
    outlier[:, 0] = True
    inside = torch.zeros(6, 8, dtype=torch.bool)
    inside[:, 1:5] = True
    after = torch.zeros(6, 8, 4)
    after[..., 1] = 2.0 * inside - 1
    after[..., 2] = torch.linspace(0, 0.1, 48).view(6, 8)
    after[::2, :, 0] = 0.4
    before = after.clone()
    before[:, 0, 3] = 20
    fits = {}
    for end, x in {"_before": before, "_after": after}.items():
        fits[end] = fits[f"{end}_raw"] = principal_components(x, torch.ones_like(outlier))
        fits[f"{end}_single"] = principal_components(x)
    fits["_left_out"] = principal_components(before, ~outlier)
    fits["_random"] = fits["_before"]
    found = component_estimates(fits, inside, outlier, before.norm(dim=-1))
    for end in ("", "_raw", "_single"):
        assert (found[f"object_auc_after{end}"] == 1).all()
        gain = found[f"object_auc_after{end}"] - found[f"object_auc_before{end}"]
        assert torch.equal(found[f"object_gain{end}"], gain)
        # The outlier is at 7/8 of 20 from the mean, all others are at 1/8.
        assert found[f"outlier_share_before{end}"].value == pytest.approx(7 / 8, abs=0.01)
    assert found["outlier_share_after"].value == pytest.approx(1 / 8, abs=0.01)
    assert found["outlier_share_three_before"].value < found["outlier_share_before"].value
    assert (found["object_auc_left_out"] == 1).all()
    assert found["first_before"] == pytest.approx(43.75 / 44.75, abs=0.01)
    assert found["three_before"] == pytest.approx(1, abs=1e-3)
    assert found["alike_random"] == pytest.approx(1)
    assert found["alike_after"] == pytest.approx(2 / 3, abs=0.01)  # two of three axes
    assert found["norm_correlation_before"].shape == (6,)
    tied = fits["_before"]._replace(own=torch.zeros_like(fits["_before"].own))
    found = component_estimates(fits | {"_before": tied}, inside, outlier, before.norm(dim=-1))
    assert (found["object_gain"] == 0.5).all()  # from chance to all
