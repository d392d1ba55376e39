"""Several appended tokens against a single one, with planted tokens."""

import pytest
import torch

from helpers.measures.registers import LEAST, register_cosines


def test_tokens_are_summed_before_they_are_compared():
    """Two halves of a vector are together what it is, though each of them is orthogonal to the
    other; three tokens of which one differs are not."""
    one = torch.tensor([[[3.0, 4.0]], [[6.0, 8.0]]])
    halves = torch.tensor([[[3.0, 0], [0, 4.0]], [[6.0, 0], [0, 8.0]]])
    other = torch.cat([halves, torch.tensor([[[-7.0, 0]], [[-14.0, 1e-9]]])], dim=1)
    found = register_cosines({"tokens_1": one, "tokens_2": halves, "tokens_3": other})
    assert [*found] == ["register_cosine_2", "register_cosine_3"]
    assert found["register_cosine_2"].tolist() == pytest.approx([1, 1])
    by_hand = (-4 * 3 + 4 * 4) / (5 * 32**0.5)
    assert found["register_cosine_3"].tolist() == pytest.approx([by_hand] * 2) and by_hand < 0.15


def test_images_whose_single_token_is_rounding_are_not_compared():
    """Norms of 10, but for three: above, at and below a thousandth of that."""
    norms = torch.tensor([10.0] * 30 + [0.0105, LEAST * torch.tensor(10.0), 0.009])
    one = torch.stack([norms, torch.zeros(33)], dim=1)[:, None]
    angles = torch.linspace(0.1, 1, 33)
    two = torch.stack([angles.cos(), angles.sin()], dim=1)[:, None].expand(33, 2, 2)
    found = register_cosines({"tokens_1": one, "tokens_2": two})["register_cosine_2"]
    torch.testing.assert_close(found[:31], angles[:31].cos())
    assert found[31:].isnan().all()
    nothing = register_cosines({"tokens_1": torch.zeros(33, 1, 2), "tokens_2": two})
    assert nothing["register_cosine_2"].isnan().all() and register_cosines({}) == {}
