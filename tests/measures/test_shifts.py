"""What moved register neurons change, with planted norms, answers and tokens."""

import pytest
import torch

from helpers.measures.shifts import LEAST, register_cosines, shift_answers, shift_norms
from helpers.measures.stats import over_images


def test_outliers_are_judged_by_the_threshold_of_the_plain_model():
    """Moved, every norm is tripled: what is high then is no outlier by a threshold of its own."""
    plain = torch.ones(4, 10)
    plain[:3, 0] = 9
    moved, zeroed = 2.9 * torch.ones(4, 10), torch.ones(2, 10)
    moved[0, 5], moved[1, 5] = 3.1, 3  # above three times the median of the plain model, and at it
    patches = {"plain": plain, "moved": moved, "zeroed": zeroed}
    none = torch.zeros(4, 0)
    found = shift_norms(patches, {"plain": none, "moved": torch.full((4, 1), 29.0), "zeroed": none})
    assert [*found] == [
        "outlier_images", "outlier_images_moved", "register_ratio_moved", "outlier_images_zeroed",
    ]  # fmt: skip
    assert found["outlier_images"].value == 0.75 and found["outlier_images"].n == 4
    assert found["outlier_images_moved"].value == 0.25
    assert found["outlier_images_zeroed"].value == 0 and found["outlier_images_zeroed"].n == 2
    assert found["register_ratio_moved"].value == pytest.approx(10)


def test_draws_are_one_mean_and_paired_with_the_neurons_at_zero():
    right = {
        "plain": torch.tensor([100.0, 100, 100, 0, 100]),
        "moved": torch.tensor([100.0, 0, 100, 0, 100]),
        "zeroed": torch.tensor([0.0, 100, 0, 0]),
        "random_0": torch.tensor([100.0, 100, 0, 0]),
        "random_1": torch.tensor([100.0, 0, 100, 0]),
    }
    found = shift_answers(right)
    assert not any("random_0" in name for name in found)
    assert found["accuracy_base"].value == 80 and found["accuracy_change_moved"].value == -20
    assert found["accuracy_zeroed"].value == 25 and found["accuracy_change_zeroed"].value == -50
    assert found["accuracy_random"].value == 50 and found["accuracy_change_random"].value == -25
    assert found["random_minus_zeroed"].value == 25 and found["random_minus_zeroed"].n == 4
    assert [*shift_answers({"plain": right["plain"]})] == ["accuracy_base"]


def test_tokens_are_summed_before_they_are_compared():
    """Two halves of a vector are together what it is, though each of them is orthogonal to the
    other; three tokens of which one differs are not."""
    one = torch.tensor([[[3.0, 4.0]], [[6.0, 8.0]]])
    halves = torch.tensor([[[3.0, 0], [0, 4.0]], [[6.0, 0], [0, 8.0]]])
    other = torch.cat([halves, torch.tensor([[[-7.0, 0]], [[-14.0, 1e-9]]])], dim=1)
    found = register_cosines({"tokens_1": one, "tokens_2": halves, "tokens_3": other})
    assert [*found] == ["register_cosine_2", "register_cosine_3"]
    assert found["register_cosine_2"].value == pytest.approx(1)
    by_hand = (-4 * 3 + 4 * 4) / (5 * 32**0.5)
    assert found["register_cosine_3"].value == pytest.approx(by_hand) and by_hand < 0.15


def test_images_whose_single_token_is_rounding_are_not_compared():
    """Norms of 10, but for three: above, at and below a thousandth of that."""
    norms = torch.tensor([10.0] * 30 + [0.015, LEAST * torch.tensor(10.0), 0.009])
    one = torch.stack([norms, torch.zeros(33)], dim=1)[:, None]
    angles = torch.linspace(0.1, 1, 33)
    two = torch.stack([angles.cos(), angles.sin()], dim=1)[:, None].expand(33, 2, 2)
    found = register_cosines({"tokens_1": one, "tokens_2": two})["register_cosine_2"]
    expected = over_images(angles[:31].cos(), (-1, 1), continuous=True)
    assert found.n == 31 and found[:3] == pytest.approx(expected[:3], abs=1e-6)
    same = register_cosines({"tokens_1": one[:30], "tokens_2": one[:30].expand(30, 2, 2)})
    assert same["register_cosine_2"][:3] == (1, 1, 1), "no interval of a proportion"
    nothing = register_cosines({"tokens_1": torch.zeros(33, 1, 2), "tokens_2": two})
    assert nothing["register_cosine_2"].n == 0 and register_cosines({}) == {}
