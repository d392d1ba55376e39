"""TokenLayout on sequences whose tokens carry their own index."""

import pytest
import torch

from helpers.models import TokenLayout

# cls, distillation, 2 registers, 2x3 patches, 1 appended: indices 0, 1, 2-3, 4-9, 10
FULL = TokenLayout(grid=(2, 3), cls=True, registers=2, distillation=1, appended=1)


def sequence(layout):
    """(2 images, tokens, 1), each token its index, the second image 100 higher."""
    index = torch.arange(layout.tokens, dtype=torch.float32)
    return torch.stack([index, index + 100]).unsqueeze(-1)


def test_counts():
    assert (FULL.patches, FULL.prefix, FULL.tokens) == (6, 4, 11)
    assert TokenLayout((14, 14)).tokens == 197
    assert TokenLayout((16, 16), registers=4).prefix == 5
    assert TokenLayout((14, 14), cls=False).prefix == 0


def test_each_kind_of_token_is_where_it_should_be():
    x = sequence(FULL)
    assert FULL.cls_token(x).flatten().tolist() == [0, 100]
    assert FULL.register_tokens(x)[0].flatten().tolist() == [2, 3]
    assert FULL.patch_tokens(x)[0].flatten().tolist() == [4, 5, 6, 7, 8, 9]
    assert FULL.appended_tokens(x)[1].flatten().tolist() == [110]


def test_any_dimension():
    x = sequence(FULL).squeeze(-1)
    assert torch.equal(FULL.patch_tokens(x, dim=-1), FULL.patch_tokens(x.unsqueeze(-1)).squeeze(-1))
    assert torch.equal(FULL.patch_tokens(x.T, dim=0), FULL.patch_tokens(x, dim=1).T)
    assert FULL.cls_token(x, dim=-1).shape == (2,)


def test_absent_kinds_have_length_zero():
    layout = TokenLayout((2, 2))
    assert layout.register_tokens(sequence(layout)).shape == (2, 0, 1)
    assert layout.appended_tokens(sequence(layout)).shape == (2, 0, 1)


def test_grid_is_row_major_and_views_share_memory():
    x = sequence(FULL)
    grid = FULL.to_grid(FULL.patch_tokens(x).squeeze(-1))
    assert grid[0].tolist() == [[4, 5, 6], [7, 8, 9]]
    FULL.patch_tokens(x)[0, 0] = -1.0
    assert x[0, 4] == -1.0
    assert FULL.to_grid(torch.zeros(2, 6, 5), dim=1).shape == (2, 2, 3, 5)


def test_without_cls_is_refused_not_misread():
    layout = TokenLayout((2, 2), cls=False)
    with pytest.raises(ValueError, match=r"no \[CLS\] token"):
        layout.cls_token(sequence(layout))
    assert layout.patch_tokens(sequence(layout))[0].flatten().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "kind", ["cls_token", "patch_tokens", "register_tokens", "appended_tokens"]
)
def test_a_sequence_of_another_length_is_refused(kind):
    with pytest.raises(ValueError, match="12 tokens in dimension -2.*the layout has 11"):
        getattr(FULL, kind)(torch.zeros(2, 12, 1))


def test_appending_adds_up_and_leaves_the_rest():
    layout = FULL.with_appended(2)
    assert layout.appended == 3 and layout.tokens == 13 and FULL.appended == 1
    assert torch.equal(layout.patch_tokens(sequence(layout)), FULL.patch_tokens(sequence(FULL)))


def test_removed_patches_leave_a_shorter_sequence_and_no_grid():
    layout = FULL.with_kept(4)
    assert (layout.patches, layout.prefix, layout.tokens) == (4, 4, 9) and FULL.patches == 6
    x = sequence(layout)
    assert layout.patch_tokens(x)[0].flatten().tolist() == [4, 5, 6, 7]
    assert layout.appended_tokens(x)[0].flatten().tolist() == [8]
    assert layout.cls_token(x)[0].tolist() == [0]
    assert layout.register_tokens(x)[0].flatten().tolist() == [2, 3]
    with pytest.raises(ValueError, match="4 patches of .2, 3. are left"):
        layout.to_grid(layout.patch_tokens(x), dim=1)
    with pytest.raises(ValueError, match="11 tokens in dimension -2.*the layout has 9"):
        layout.patch_tokens(sequence(FULL))


def test_corners_and_centre_of_the_grid():
    assert FULL.corners == [0, 2, 3, 5] and FULL.centre == [1, 2, 4, 5]
    one, row, column = (TokenLayout(grid) for grid in ((1, 1), (1, 4), (3, 1)))
    assert one.corners == one.centre == [0]
    assert (row.corners, row.centre) == ([0, 3], [1, 2])
    assert (column.corners, column.centre) == ([0, 2], [1, 2])
    layout = TokenLayout((14, 14), registers=4)
    numbers = layout.to_grid(torch.arange(196))
    assert layout.corners == numbers[[0, 0, -1, -1], [0, -1, 0, -1]].tolist()
    assert layout.centre == numbers[6:8, 6:8].flatten().tolist()


def test_rolled_patches_are_those_of_the_rolled_grid():
    layout = TokenLayout((4, 7))
    grid = torch.arange(28).view(4, 7)
    expected = torch.tensor(
        [[grid[(row - 2) % 4, (column - 3) % 7] for column in range(7)] for row in range(4)]
    )
    assert layout.rolled(torch.arange(28)).tolist() == expected.flatten().tolist()
    x = torch.randn(2, 28, 5)
    assert torch.equal(layout.rolled(x, dim=1), layout.rolled(x, dim=-2))
    assert torch.equal(layout.rolled(x, dim=1)[0, :, 3], layout.rolled(x[0, :, 3]))
    even = TokenLayout((14, 14))
    corners = torch.zeros(196).index_fill(0, torch.tensor(even.corners), 1)
    assert even.rolled(corners).nonzero()[:, 0].tolist() == even.centre
    assert torch.equal(even.rolled(even.rolled(corners)), corners)
    with pytest.raises(ValueError, match="which is no grid"):
        layout.with_kept(10).rolled(torch.zeros(10))


def test_patches_from_the_centre():
    assert TokenLayout((3, 3)).from_centre == [4, 1, 3, 5, 7, 0, 2, 6, 8]
    assert TokenLayout((2, 4)).from_centre == [1, 2, 5, 6, 0, 3, 4, 7]
