import numpy as np
import pytest
import torch
from by_hand import BOTH, counts, values

from helpers.measures.attention import iou
from helpers.measures.norms import threshold
from helpers.measures.outliers import (
    across_sets,
    after_rolling,
    as_common,
    at_and_elsewhere,
    cosine_with_others,
    counts_at,
    emergence,
    filled,
    firing,
    largest_channel_share,
    leading_channels,
    limited_ratio,
    moved_estimates,
    onset_depth,
    outlier_images,
    outlier_shares,
    overlapping,
    placement,
    relative_norms,
    under_rule,
)
from helpers.measures.stats import auc_over_images, over_images, share
from helpers.models import TokenLayout


def planted(images=40, bearing=7, factor=4.0, patches=49, seed=0):
    """Norms near 10, and in the last `bearing` of the images two patches of `factor` times that."""
    norms = np.random.default_rng(seed).uniform(9, 11, (images, patches)).astype(np.float32)
    norms[images - bearing :, 3:5] *= factor
    return norms


@BOTH
@pytest.mark.parametrize("bearing", [0, 7, 40])
def test_outlier_images_are_those_that_bear_planted_ones(bearing, convert):
    assert outlier_images(convert(planted(bearing=bearing))) == share(np.arange(40) < bearing)


@pytest.mark.parametrize(("factor", "share"), [(2.95, 0.0), (3.05, 1.0)])
def test_an_outlier_is_a_patch_above_three_medians(factor, share):
    norms = torch.ones(10, 49)
    norms[:, 5] = factor
    assert outlier_images(norms).value == share


@BOTH
@pytest.mark.parametrize("rule, tokens", [("median:3", 14), ("fixed:1e9", 0)])
def test_outlier_shares(convert, rule, tokens):
    """Two planted patches of 49 in 7 of 40 images; a rule changes which patches count, not which
    images have outliers."""
    found = values(outlier_shares(convert(planted()), rule))
    assert found == {"outlier_images": 7 / 40, "outlier_tokens": pytest.approx(tokens / 40 / 49)}


def test_data_sets_that_lose_less_norm_and_more_answers():
    norms, by_set = torch.full((12, 2, 9), 10.0), {}
    for name, left, wrong in (("a", 0.25, 0), ("b", 0.5, 6), ("c", 0.1, 3)):
        right = torch.ones(12, dtype=torch.bool), torch.arange(12) >= wrong
        pair = norms, left * norms
        by_set[name] = moved_estimates(pair, right, np.repeat([0, 1, 1], 4))
    found = across_sets(by_set)
    assert found["norm_reduction_min"].value == 50 and by_set["a"]["majority"] == 200 / 3
    assert found["accuracy_spread"].value == 50 and found["spread_p"] < 0.05


def test_norms_that_differ_by_rounding_are_equal():
    norms = torch.tensor([[50.0, 50.00001, 100.0], [49.99999, 25.0, 50.01]])
    assert relative_norms(norms).flatten().tolist() == pytest.approx([1, 1, 2, 1, 0.5, 1.0002])
    assert len(relative_norms(norms).unique()) == 4


def starting(onsets, blocks=6, patches=25, seed=0):
    """(image, block, patch): in each image one patch ten times the others from its onset block on;
    none where that is None."""
    norms = np.random.default_rng(seed).uniform(9, 11, (len(onsets), blocks, patches))
    at = np.arange(len(onsets)) % patches
    for image, onset in enumerate(onsets):
        if onset is not None:
            norms[image, onset:, at[image]] *= 10
    return torch.from_numpy(norms).float(), at


@pytest.mark.parametrize("rule", ["median:3", "fixed:50"])
def test_onset_depth_counts_from_one(rule):
    norms, _ = starting([0, 2, 5, None])
    assert onset_depth(norms, rule).tolist() == pytest.approx(
        [1 / 6, 3 / 6, 1, np.nan], nan_ok=True
    )


def test_scores_stand_out_by_the_same_rule_or_as_often_as_norms_above_a_fixed_one():
    norms = torch.from_numpy(planted())  # 14 of 40 x 49 are above 30
    scores = torch.arange(norms.numel()).view(norms.shape) + 1.0
    assert torch.equal(as_common(scores, norms, "fixed:30"), scores > 40 * 49 - 14)
    assert as_common(scores, norms, "percentile:90").sum() == 4 * 49
    assert not as_common(scores, norms, "median:3").any()


@pytest.mark.parametrize(
    "grid, other", [((4, 4), (9, 9)), ((3, 5), (7, 7)), ((6, 6), (4, 5)), ((4, 4), (4, 4))]
)
def test_overlapping_patches_share_area(grid, other):
    positions, shape = [0, 6, grid[0] * grid[1] - 1], np.lcm(grid, other)
    marked = np.isin(np.arange(grid[0] * grid[1]), positions).reshape(grid)
    fine = np.kron(marked, np.ones(shape // grid))  # cells that no side of a patch crosses
    blocks = fine.reshape(other[0], shape[0] // other[0], other[1], -1)
    expected = np.flatnonzero(blocks.any(axis=(1, 3)))
    assert overlapping(positions, grid, other) == expected.tolist()


def tokens_of_two_kinds(images=10, width=32, seed=0):
    """Each image has a vector of its own with a planted channel, then a vector of zeros that does
    not count."""
    own = np.random.default_rng(seed).normal(size=(images, 1, width))
    own[..., 3] = 30
    return torch.from_numpy(np.concatenate([own, np.zeros_like(own)], axis=1))


def test_largest_channel_share():
    tokens = tokens_of_two_kinds()
    tokens[4] = 0
    expected = [900 / float((x[0] ** 2).sum()) for i, x in enumerate(tokens) if i != 4]
    measured = largest_channel_share(tokens)
    assert measured.value == pytest.approx(np.mean(expected)) and measured.n == 9
    assert 0.9 < measured.low < measured.value < measured.high <= 1


def test_leading_channels():
    tokens = torch.tensor([[3.0, 0, 4, 0], [0, 0, 2, 0], [0, 0, 0, 0]])
    assert leading_channels(tokens, 2) == [
        (2, pytest.approx((16 / 25 + 1) / 2)),
        (0, pytest.approx(9 / 50)),
    ]
    equal = leading_channels(torch.ones(2, 4), 3)
    assert [channel for channel, _ in equal] == [0, 1, 2]


def test_cosine_with_the_mean_token_of_other_images():
    tokens = tokens_of_two_kinds()
    mean = tokens[:5, 0].mean(0)
    expected = [float(x @ mean / (x.norm() * mean.norm())) for x in tokens[5:, 0]]
    measured = cosine_with_others(tokens)
    assert (
        measured.value == pytest.approx(np.mean(expected))
        and measured.n == 5
        and measured.value > 0.9
    )
    tokens[..., 3] = 0  # what is left is each image's own
    assert abs(cosine_with_others(tokens).value) < 0.5


RNG = np.random.default_rng(0)
RULES = ("percentile:98", "fixed:40", "median:3", "mad:10")


@pytest.fixture(scope="module")
def planted_of_rules():
    """Two outliers of norm 60 in 30 of 40 images of 100 patches, from the fourth of six blocks on:
    most attended, more alike than their neighbours, with short keys and long values."""
    norms = RNG.uniform(8, 12, (40, 6, 100))
    attention, alike, key, value = (RNG.uniform(1, 2, (40, 100)) for _ in range(4))
    at = np.zeros((40, 100), dtype=bool)
    for image in range(30):
        at[image, RNG.choice(100, 2, replace=False)] = True
    norms[:, 3:][np.broadcast_to(at[:, None], (40, 3, 100))] = 60
    attention[at], alike[at] = 9, 1.6
    key[at], value[at] = 0.5, 5
    tensors = [torch.from_numpy(x).float() for x in (norms, attention, alike, key, value)]
    return torch.from_numpy(at), *tensors


@pytest.mark.parametrize("rule", RULES)
def test_planted_outliers_under_every_rule_that_finds_them(planted_of_rules, rule):
    at, norms, attention, alike, key, value = planted_of_rules
    found = under_rule(rule, norms, attention, {"": alike, "_8": -alike}, {"k": key, "v": value})
    extra = norms[:, -1] > threshold(norms[:, -1], rule)
    if rule == "percentile:98":  # 2 % are 80, of which 60 were planted
        assert extra.sum() == 80 and found["outlier_images"].value > 0.75
        assert found["onset_depth"].value < 4 / 6
        return
    assert torch.equal(extra, at)
    above = (alike[at][:, None] > alike[~at]).double().mean().item()
    matched = found["auc_matched"].value
    expected = {"outlier_images": 0.75, "outlier_tokens": 0.015, "iou": 1, "iou_top": 1}
    limit = threshold(norms[:, -1], rule) / norms[:, -1].median().item()
    expected |= {"threshold": limit, "early": 0}
    expected |= {"onset_depth": 4 / 6, "k_auc": 0, "v_auc": 1, "auc": above, "auc_8": 1 - above}
    expected |= {"auc_matched": matched, "auc_matched_8": 1 - matched}
    if rule.startswith("mad"):  # attention varies little, so that more patches stand out
        del expected["iou"], found["iou"]
    assert values(found) == pytest.approx(expected, abs=1e-4)
    assert found["iou_top"].n == found["onset_depth"].n == 30 and 0.3 < matched < 0.9


def test_attention_is_put_to_the_same_rule_or_to_as_many_patches(planted_of_rules):
    """The attention stands out by less than three medians where it is 4 and not 9, but the same
    patches are the most attended."""
    at, norms, attention, alike, key, _ = planted_of_rules
    faint = torch.where(at, 4.0, attention)
    found = under_rule("median:3", norms, faint, {}, {})
    assert found["iou"].value == 0 and found["iou_top"].value == 1
    assert under_rule("median:3", norms, attention, {}, {})["iou"].value == 1
    assert not {"auc", "k_auc"} & found.keys()


def planted_of_activations(images=30, patches=25, at=8.0, elsewhere=0.5, seed=0):
    """A neuron that fires at the outliers, which the last ten images do not have."""
    rng = np.random.default_rng(seed)
    outlier = rng.random((images, patches)) < 0.1
    outlier[:, 0], outlier[-10:] = True, False
    activation = rng.uniform(0.9, 1.1, (images, patches)) * np.where(outlier, at, elsewhere)
    return torch.from_numpy(activation).float(), torch.from_numpy(outlier)


def test_a_planted_neuron_marks_the_outliers():
    found = firing(*planted_of_activations())
    assert [x.value for x in found] == pytest.approx([8, 0.5, 16, 1], rel=0.03)
    assert found.ratio.low < found.ratio.value < found.ratio.high
    assert {x.n for x in found} == {20}  # images with an outlier


def test_sides_against_numpy():
    activation, outlier = planted_of_activations(images=12)
    sides = [np.ma.masked_array(activation, x).mean(1) for x in (~outlier, outlier)]
    expected = np.where(outlier.any(1), sides, np.nan).T
    np.testing.assert_allclose(at_and_elsewhere(activation, outlier), expected, rtol=1e-6)


def test_the_strongest_patches_are_as_many_as_the_outliers():
    activation, outlier = planted_of_activations(at=1.0, elsewhere=1.0)
    chosen = torch.zeros_like(outlier)
    for row, own, count in zip(chosen, activation, outlier.sum(1), strict=True):
        row[own.argsort(descending=True)[:count]] = True
    overlap = over_images(iou(chosen, outlier), (0, 1))
    assert firing(activation, outlier).overlap == overlap and 0 < overlap.value < 1


def test_limited_ratio_is_one_of_means():
    rows = torch.tensor([[1.0, 1.0], [3.0, 0.0], [2.0, 1.0], [2.0, 0.0], [2.0, 0.5]])
    found = limited_ratio(*rows.T, seed=1)
    assert found.value == pytest.approx(4) and found.low < 4 < found.high
    assert found != limited_ratio(*rows.T, seed=2)
    assert limited_ratio(rows[:, 0], torch.zeros(5)).value == pytest.approx(1e6)


def test_outliers_emerge_in_the_block_where_they_were_planted():
    norms = torch.ones(6, 4, 9)
    norms[:5, 2, 3] = 20  # one image has none
    found = emergence(norms, norms / 20)
    assert [*found][:3] == ["onset_block", "max_norm", "early_norm"]
    assert [*found][3:] == ["max_attention", "early_attention", "attention_lag", "lag_of_two"]
    means = [2, 101 / 6, 1, 101 / 120, 1 / 20, 0, 0]
    assert [x.value for x in found.values()] == pytest.approx(means)
    assert found["onset_block"].n == 5


def test_attention_lags_by_the_blocks_between_the_largest_steps():
    norms = torch.ones(6, 5, 9)
    norms[:5, 1:, 3] = 20  # one image has none
    attention = torch.zeros(6, 5, 9)
    attention[:, 2:, 3], attention[:, 3:, 3], attention[:2, 4, 5] = 0.1, 0.3, 0.6
    found = emergence(norms, attention)
    lag, of_two = found["attention_lag"], found["lag_of_two"]
    assert (lag.value, lag.n) == (pytest.approx((2 * 3 + 3 * 2) / 5), 5)
    assert (of_two.value, of_two.n) == (0.6, 5)


LAYOUT = TokenLayout((8, 10))
CORNERS = LAYOUT.corners
PLAIN = 4  # patches of each image


def images(count=60, seed=0):
    """Similarity with the neighbours: high for a few patches of each image, which are plain."""
    rng = np.random.default_rng(seed)
    similarity = torch.from_numpy(rng.random((count, LAYOUT.patches))).float()
    plain = torch.from_numpy(rng.random(similarity.shape).argsort(1).argsort(1) < PLAIN)
    return similarity + plain.float(), plain


def at(positions, like):
    mask = torch.zeros_like(like)
    mask[:, positions] = True
    return mask


def test_outliers_that_content_makes_follow_it():
    similarity, plain = images()
    rolled = LAYOUT.rolled(plain)
    found = after_rolling(plain, rolled, rolled, LAYOUT.rolled(similarity))
    assert list(found) == ["auc_rolled", "rolled_share", "rolled_follow", "rolled_stay"]
    auc, usual, follow, stay = values(found).values()
    assert auc == follow == 1 and max(usual, stay) < 0.12 and counts(found) == {60}


def test_outliers_that_position_makes_stay_although_the_picture_is_plain_there():
    """Corners are plain, as in photographs, and so all outliers are: the association alone would be
    perfect."""
    similarity, _ = images()
    corners = at(CORNERS, similarity.bool())
    similarity = similarity + 2 * corners
    assert auc_over_images(similarity, corners).value == 1
    found = after_rolling(corners, corners, LAYOUT.rolled(corners), LAYOUT.rolled(similarity))
    assert found["auc_rolled"].high < 0.6 and list(values(found).values())[1:] == [1, 0, 1]


def test_a_veto_of_content_is_no_following():
    """Position puts outliers into the corners, and content that is not plain prevents half of them:
    what is left stands there."""
    similarity, _ = images()
    corners, rolled = at(CORNERS, similarity.bool()), LAYOUT.rolled(similarity)
    left = corners & (rolled > rolled.median())
    found = after_rolling(corners, left, LAYOUT.rolled(corners), rolled)
    assert list(values(found).values())[1:] == [1, 0, 1]
    assert found["auc_rolled"].low > 0.6  # by similarity alone it would pass
    assert found["rolled_follow"].n == found["rolled_stay"].n == int(left.any(1).sum()) < 60


def test_shares_are_those_counted_patch_by_patch():
    rng = np.random.default_rng(1)
    before, after = (rng.random((40, LAYOUT.patches)) < share for share in (0.05, 0.03))
    after[:3] = False
    went = np.roll(before.reshape(40, 8, 10), (4, 5), axis=(1, 2)).reshape(before.shape)
    masks = map(torch.from_numpy, (before, after, went, rng.random(before.shape)))
    found = after_rolling(*masks)
    rows = [row for row in range(40) if after[row].any()]
    usual = np.argsort(-before.sum(0), kind="stable")[:4]
    assert round(before.sum(1).mean()) == 4
    assert {name: (x.value, x.n) for name, x in found.items() if name != "auc_rolled"} == {
        "rolled_share": (pytest.approx(after[:, usual].sum() / after.sum()), 40),
        "rolled_follow": (
            pytest.approx(np.mean([went[i, after[i]].mean() for i in rows])),
            len(rows),
        ),
        "rolled_stay": (
            pytest.approx(np.mean([before[i, after[i]].mean() for i in rows])),
            len(rows),
        ),
    }


CORNERS_PLACEMENT = [0, 6, 42, 48]


def planted_of_placement(images=40, blocks=3, patches=49, at=(3, 5, 7, 11), missing=(), seed=0):
    """(image, block, patch) norms near 10; after the last block 50 at four positions, but for the
    pairs `missing`, and after the one before it in images with an even number."""
    norms = np.random.default_rng(seed).uniform(9, 11, (images, blocks, patches)).astype(np.float32)
    for position in at:
        norms[:, -1, position] = 50
        norms[::2, -2, position] = 50
    for image, position in missing:
        norms[image, :, position] = 10
    return torch.from_numpy(norms)


def test_planted_places_are_found_and_counted():
    norms = planted_of_placement(39, 2, missing=[(1, 3), (1, 5), (9, 11)])
    found = placement(norms, CORNERS_PLACEMENT, seed=1)
    assert found.limit == pytest.approx(3 * np.median(norms[:, -1]))
    assert sorted(found.usual) == [3, 5, 7, 11]
    assert torch.equal(found.mask, norms[:, -1] > 20) and found.mask.sum() == 153
    assert values(found.estimates) == pytest.approx({
        "outlier_images": 1, "outliers_per_image": 153 / 39, "position_share": 1,
        "position_share_98": 1, "corner_share": 0, "filled": 153 / 156, "corner_filled": 0,
        "onset_block": 19 / 39, "onset_share": 20 / 39,
    })  # fmt: skip
    assert found.onset.tolist() == [0, 1] * 19 + [0]


def test_a_model_without_outliers_has_no_places():
    found = placement(planted_of_placement(at=()), CORNERS_PLACEMENT)
    assert found.usual == [] and not found.mask.any() and set(found.onset.tolist()) == {-1}
    assert not {"filled", "corner_filled", "onset_block", "onset_share"} & found.estimates.keys()
    assert found.estimates["position_share"].n == found.estimates["corner_share"].n == 0


def test_the_rule_moves_the_limit_and_not_the_onset():
    found = placement(planted_of_placement(), CORNERS_PLACEMENT, "fixed:50")
    assert found.limit == 50 and not found.mask.any()
    assert found.estimates["outlier_images"].value == 1
    assert found.onset.tolist() == [1, 2] * 20


def test_filled_counts_pairs_where_a_share_counts_outliers():
    mask = torch.zeros(30, 9, dtype=torch.bool)
    mask[:10, 2:4] = True  # in a third of the images, always there
    mask[0, 8] = True
    found = counts_at(mask, [2, 3])
    assert counts(found) == {30} and values(found) == pytest.approx(
        {"count": 21 / 30, "images": 1 / 3, "share": 20 / 21, "filled": 1 / 3}
    )
    assert filled(mask, [2]).step == pytest.approx(1 / 30)
