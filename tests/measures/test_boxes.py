import numpy as np
import pytest
import torch

from helpers.measures.object_discovery import (
    box_hits,
    lost_box_sweep,
    lost_boxes,
    lost_boxes_of_share,
    lost_boxes_within,
    share_in_boxes,
    whole_box_hits,
)

FEATURES = torch.randn(3, 5, 4, 6, generator=torch.Generator().manual_seed(0))
TRUTH = [
    torch.tensor([[0.0, 0.0, 0.5, 0.5]]),
    torch.tensor([[0.5, 0.5, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]]),
]
CORNER, REST, NOTHING = [0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0], [0.9, 0.0, 1.0, 0.1]


def area(box):
    return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)


def overlap(a, b):
    both = area([max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])])
    return both / (area(a) + area(b) - both)


def test_a_coarse_grid_gives_all_its_patches():
    assert torch.equal(lost_boxes_within(FEATURES, 1000, -0.5), lost_boxes(FEATURES, 20, -0.5))
    assert torch.equal(lost_boxes_within(FEATURES[:1], 1000), lost_boxes(FEATURES[:1], 20))
    assert torch.equal(lost_boxes_within(FEATURES, 3), lost_boxes(FEATURES, 3))
    assert not torch.equal(lost_boxes_within(FEATURES, 1), lost_boxes_within(FEATURES, 1000))


def test_a_sweep_has_every_setting_in_its_place():
    found = lost_box_sweep(FEATURES, [0.0, -0.5, -1.0], [2, 1000])
    assert found.shape == (3, 3, 2, 4)
    for i, bias in enumerate([0.0, -0.5, -1.0]):
        for j, k in enumerate([2, 20]):
            assert torch.equal(found[:, i, j], lost_boxes(FEATURES, k, bias))


@pytest.mark.parametrize("share, k", [(0.4, 8), (0.12, 2), (0.0, 1), (1.0, 20)])
def test_a_share_of_the_patches(share, k):
    assert torch.equal(lost_boxes_of_share(FEATURES, share), lost_boxes(FEATURES, k))


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


def test_hits_against_areas_by_hand():
    found = torch.rand(2, 40, 4, generator=torch.Generator().manual_seed(2))
    found = torch.cat([found[..., :2] * 0.5, 0.5 + found[..., 2:] * 0.5], dim=-1)
    by_hand = [
        [100.0 * any(overlap(box.tolist(), true.tolist()) >= 0.5 for true in boxes) for box in own]
        for own, boxes in zip(found, TRUTH, strict=True)
    ]
    assert box_hits(found, TRUTH).tolist() == by_hand and 0 < sum(map(sum, by_hand)) < 8000


def test_without_true_boxes_nothing_is_known():
    assert box_hits(torch.rand(3, 2, 4), None).isnan().all() and box_hits(
        torch.rand(3, 2, 4), None
    ).shape == (3, 2)
    assert whole_box_hits(None, 2).isnan().tolist() == [True, True]


def test_the_whole_picture_is_right_where_an_object_fills_half_of_it():
    assert whole_box_hits(TRUTH, 2).tolist() == [0, 100]


def test_an_image_without_objects_is_refused():
    with pytest.raises(ValueError, match="no true box"):
        box_hits(torch.rand(1, 4), [torch.zeros(0, 4)])


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


def test_shares_without_boxes_and_of_other_images():
    assert share_in_boxes(torch.ones(3, 2, 2), None).isnan().all()
    with pytest.raises(ValueError):
        share_in_boxes(torch.ones(3, 2, 2), [np.zeros((1, 4), np.float32)])
