import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from helpers.measures.placement import counts_at, curves_at, driver, filled, placement, treated
from helpers.measures.stats import NONE, Estimate, over_images

CORNERS = [0, 6, 42, 48]


def planted(images=40, blocks=3, patches=49, at=(3, 5, 7, 11), missing=(), seed=0):
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
    norms = planted(missing=[(1, 3), (1, 5), (9, 11)])
    found = placement(norms, CORNERS, seed=1)
    assert found.limit == pytest.approx(3 * np.median(norms[:, -1])) and sorted(found.usual) == [
        3,
        5,
        7,
        11,
    ]
    assert torch.equal(found.mask, norms[:, -1] > 20) and found.mask.sum() == 157
    values = {name: e.value for name, e in found.estimates.items()}
    assert values == {
        "outlier_images": 1,
        "outliers_per_image": pytest.approx(157 / 40),
        "position_share": 1,
        "position_share_98": 1,
        "corner_share": 0,
        "filled": pytest.approx(157 / 160),
        "corner_filled": 0,
        "onset_block": 1.5,
        "onset_share": 0.5,
    }
    assert found.onset.tolist() == [1, 2] * 20


def test_corners_are_counted_apart_from_the_usual_positions():
    found = placement(planted(at=(0, 6, 20, 21)), CORNERS)
    assert found.estimates["corner_filled"].value == found.estimates["corner_share"].value == 0.5
    assert found.estimates["filled"].value == 1


def test_a_model_without_outliers_has_no_places():
    found = placement(planted(at=()), CORNERS)
    assert found.usual == [] and not found.mask.any() and set(found.onset.tolist()) == {-1}
    assert [*found.estimates] == [
        "outlier_images",
        "outliers_per_image",
        "position_share",
        "position_share_98",
        "corner_share",
    ]
    assert found.estimates["position_share"].n == 0


def test_the_rule_moves_the_limit_and_not_the_onset():
    found = placement(planted(), CORNERS, "fixed:60")
    assert (
        found.limit == 60 and not found.mask.any() and found.estimates["outlier_images"].value == 1
    )
    assert found.onset.tolist() == [1, 2] * 20


def test_filled_counts_pairs_where_a_share_counts_outliers():
    mask = torch.zeros(30, 9, dtype=torch.bool)
    mask[:10, 2:4] = True  # in a third of the images, always there
    mask[0, 8] = True
    counts = counts_at(mask, [2, 3])
    assert {name: (e.value, e.n) for name, e in counts.items()} == {
        "count": (pytest.approx(21 / 30), 30),
        "images": (pytest.approx(1 / 3), 30),
        "share": (pytest.approx(20 / 21), 30),
        "filled": (pytest.approx(1 / 3), 30),
    }
    assert filled(mask, [2]).step == pytest.approx(1 / 30)


def test_filled_agrees_with_a_binomial_where_an_image_has_one_place():
    mask = torch.arange(200)[:, None] < torch.tensor([[150, 0]])
    one = filled(mask, [0])
    reference = binomtest(150, 200).proportion_ci(method="wilson")
    assert one[:3] == pytest.approx((0.75, reference.low, reference.high))


def counted(share, whether, n=50):
    return {
        "share": NONE if share is None else Estimate(share, share, share, n),
        "filled": Estimate(whether, whether, whether, n),
    }


@pytest.mark.parametrize(
    "counts, expected",
    [
        ([(1, 0.98), (0.95, 0.91)], "position"),
        ([(1, 0.98), (1, 0.75)], "position mainly, content has a veto"),
        ([(1, 0.98), (0.5, 0.95)], "not position"),
        ([(1, 0.98), (0.9, 0.95)], "not position"),  # not above the margin
        ([(1, 0.98), (1, 0.9)], "position mainly, content has a veto"),
        (
            [(1, 0.98), (None, 0)],
            "position mainly, content has a veto",
        ),  # no outlier at all in a condition
        ([(None, 0)], "not position"),
    ],
)
def test_what_drives_outliers(counts, expected):
    assert driver({str(i): counted(*pair) for i, pair in enumerate(counts)}, 0.9) == expected


def test_curves_at_the_usual_positions_and_elsewhere():
    norms = planted()
    curves = curves_at(norms, [3, 5, 7, 11])
    rest = [i for i in range(49) if i not in (3, 5, 7, 11)]
    assert [*curves] == ["usual positions", "all others"]
    for estimates, at in zip(curves.values(), ([3, 5, 7, 11], rest), strict=True):
        assert len(estimates) == 3
        for block, estimate in enumerate(estimates):
            assert estimate[:3] == pytest.approx(
                over_images(norms[:, block, at].numpy().mean(1))[:3], rel=1e-5
            )
    assert curves["usual positions"][2].value == 50


def test_treatments_are_paired_with_the_model_as_it_is():
    norms = {
        "plain": torch.tensor([[1.0, 9], [1, 2], [8, 9]]).repeat(20, 1),
        "zeroed": torch.ones(60, 1),
    }
    right = {
        "plain": torch.arange(60) < 45,
        "zeroed": torch.arange(60) % 4 > 0,
    }  # 45 both; lost and gained differ
    found = treated(norms, 5, right)
    assert [*found] == ["max_norm", "images", "accuracy"] + [
        f"{x}_zeroed" for x in ("max_norm", "images", "accuracy", "loss", "mcnemar_p")
    ]
    assert found["max_norm"].value == pytest.approx(20 / 3) and found[
        "images"
    ].value == pytest.approx(2 / 3)
    assert found["max_norm_zeroed"].value == 1 and found["images_zeroed"].value == 0
    assert (
        found["accuracy"].value == found["accuracy_zeroed"].value == 75
        and found["loss_zeroed"].value == 0
    )
    lost, gained = (int((a & ~b).sum()) for a, b in (right.values(), [*right.values()][::-1]))
    assert found["mcnemar_p_zeroed"] == pytest.approx(binomtest(lost, lost + gained).pvalue)
    right["zeroed"] = torch.arange(60) < 30
    lost = treated(norms, 5, right)["loss_zeroed"]
    assert lost.value == 25 and 0 < lost.low < 25 < lost.high and lost.n == 60


def test_without_answers_there_is_no_accuracy():
    norms = {"plain": torch.ones(6, 4), "zeroed": torch.ones(6, 4)}
    assert [*treated(norms, 2)] == ["max_norm", "images", "max_norm_zeroed", "images_zeroed"]
