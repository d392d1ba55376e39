import numpy as np
import pytest
import torch

from helpers.measures.outliers import (
    activity_at,
    as_common,
    cosine_with_others,
    largest_channel_share,
    leading_channels,
    onset_depth,
    onset_ratio,
    overlapping,
    relative_norms,
    unit_traits,
)


def planted(images=40, bearing=7, factor=4.0, patches=49, seed=0):
    """Norms near 10, and in the last `bearing` of the images two patches of `factor` times that."""
    norms = np.random.default_rng(seed).uniform(9, 11, (images, patches)).astype(np.float32)
    norms[images - bearing :, 3:5] *= factor
    return norms


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


def test_onset_ratio_is_that_of_the_block_that_reads_the_token_first():
    onsets = [0, 3, 5, None]
    norms, at = starting(onsets)
    parts = torch.from_numpy(np.random.default_rng(1).uniform(1, 2, norms.shape)).float()
    ratio = onset_ratio(norms, parts, torch.tensor([-1 if o is None else o for o in onsets]))
    for image, reader in enumerate(
        [1, 4, 5]
    ):  # nothing reads the last block, which stands for itself
        read = parts[image, reader].numpy()
        assert ratio[image] == pytest.approx(read[at[image]] / np.median(read), rel=1e-6)
    assert ratio[3].isnan()


@pytest.mark.parametrize("rule", ["median:3", "fixed:50"])
def test_onset_depth_counts_from_one(rule):
    norms, _ = starting([0, 2, 5, None])
    assert onset_depth(norms, rule).tolist() == pytest.approx(
        [1 / 6, 3 / 6, 1, np.nan], nan_ok=True
    )


def test_scores_stand_out_by_the_same_rule_or_as_often_as_norms_above_a_fixed_one():
    norms = torch.from_numpy(planted())  # 14 of 40 x 49 are above 30
    scores = torch.arange(norms.numel()).view(norms.shape) + 1.0
    assert as_common(scores, norms, "fixed:30").flatten().nonzero().flatten().tolist() == list(
        range(40 * 49 - 14, 40 * 49)
    )
    assert as_common(scores, norms, "percentile:90").sum() == 4 * 49
    assert not as_common(scores, norms, "median:3").any()


@pytest.mark.parametrize(
    "grid, other", [((4, 4), (9, 9)), ((3, 5), (7, 7)), ((6, 6), (4, 5)), ((4, 4), (4, 4))]
)
def test_overlapping_patches_share_area(grid, other):
    positions = [0, 6, grid[0] * grid[1] - 1]

    def sides(index, shape):
        return [(i / n, (i + 1) / n) for i, n in zip(divmod(index, shape[1]), shape, strict=True)]

    def overlap(one, two):
        return all(
            a < d - 1e-9 and c < b - 1e-9
            for (a, b), (c, d) in zip(sides(one, grid), sides(two, other), strict=True)
        )

    expected = [p for p in range(other[0] * other[1]) if any(overlap(at, p) for at in positions)]
    assert overlapping(positions, grid, other) == expected


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
    assert [i for i, _ in leading_channels(torch.ones(2, 4), 3)] == [0, 1, 2], (
        "of equal ones the first"
    )


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


def test_activity_at_planted_outliers():
    mask = np.zeros((8, 6), dtype=bool)
    mask[:7, 1:3] = True  # the last image has none
    activation = np.where(mask, 6.0, 1.0) + np.arange(8)[:, None]
    second = np.where(mask, 2.0, 9.0)
    activity = activity_at(*map(torch.from_numpy, (activation, second, mask)))
    assert {name: (e.value, e.n) for name, e in activity.items()} == {
        "activation": (9, 7),
        "elsewhere": (pytest.approx(4.5), 8),
        "lead": (4.5, 7),
    }
    assert activity["lead"].low < 4.5 < activity["lead"].high


def test_traits_of_a_unit_are_those_of_its_patches_and_tokens():
    mask = torch.eye(12, dtype=torch.bool)
    activation, second = (
        torch.from_numpy(np.random.default_rng(seed).uniform(1, 2, (12, 12))) for seed in (1, 2)
    )
    outlier, normal = tokens_of_two_kinds(12), tokens_of_two_kinds(12, seed=5)
    normal[..., 3] /= 10
    found = unit_traits(activation, second, mask, outlier, normal, seed=3)
    assert found == {
        **{f"neuron_{name}": e for name, e in activity_at(activation, second, mask, 3).items()},
        "channel_share": largest_channel_share(outlier),
        "cosine_outlier": cosine_with_others(outlier),
        "channel_share_normal": largest_channel_share(normal),
        "cosine_normal": cosine_with_others(normal),
    }
    assert found["channel_share"].value > 0.9 > 0.5 > found["channel_share_normal"].value


def test_what_is_at_its_limit_by_construction_has_no_width():
    one_hot = torch.eye(4).repeat(12, 1, 1)
    assert largest_channel_share(one_hot)[:3] == (1, 1, 1)
    assert cosine_with_others(torch.ones(24, 2, 4))[:3] == pytest.approx((1, 1, 1))
