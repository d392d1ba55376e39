import numpy as np
import pytest
import torch

from helpers.measures.blocks import cosines_with_last, over_blocks, settled_depth

ANGLES = [100, 60, 30, 0]  # degrees between a block and the last


def turning(lengths=(1, 2, 3, 4)):
    """(image, block, width): in each image a plane of its own, in which the token turns."""
    rng = np.random.default_rng(0)
    planes = np.linalg.qr(rng.normal(size=(7, 5, 2)))[0].swapaxes(1, 2)  # image, axis, width
    turned = (
        np.stack([np.cos(np.radians(ANGLES)), np.sin(np.radians(ANGLES))], axis=1)
        * np.array(lengths)[:, None]
    )
    return torch.from_numpy(turned @ planes)


def test_cosines_of_a_token_that_turns():
    found = cosines_with_last(turning())
    assert found.numpy() == pytest.approx(np.tile(np.cos(np.radians(ANGLES)), (7, 1)))
    assert found.max() <= 1


def test_what_all_images_share_hides_the_turn_unless_it_is_taken_away():
    tokens = turning()
    tokens = tokens - tokens.mean(0)
    hidden = tokens + 1e4
    assert (cosines_with_last(hidden) > 0.999).all()
    expected = cosines_with_last(tokens)
    assert cosines_with_last(hidden, centred=True).numpy() == pytest.approx(
        expected.numpy(), abs=1e-3
    )


def test_a_block_that_is_the_same_in_all_images_has_no_direction():
    tokens = turning()
    tokens[:, 1] = 5 + 1e-6 * tokens[:, 0]  # but for rounding
    assert cosines_with_last(tokens, centred=True).isnan().all(0).tolist() == [
        False,
        True,
        False,
        False,
    ]
    assert np.isnan(over_blocks(cosines_with_last(tokens, centred=True))[1].value)
    tokens[:, 1] = 5 + 4e-4 * tokens[:, 0]  # more than rounding
    assert not cosines_with_last(tokens, centred=True).isnan().any()


@pytest.mark.parametrize(
    ("cosines", "settled"),
    [
        ([0.9, 0.9, 0.9, 0.9, 1.0], 1),
        ([0.1, 0.9, 0.7, 0.95, 1.0], 4),  # after the last fall
        ([0.1, 0.2, 0.3, 0.8, 1.0], 5),  # 0.8 is not above 0.8
        ([0.9, float("nan"), 0.9, 0.9, 1.0], 3),
    ],
)
def test_settled_depth(cosines, settled):
    assert settled_depth(torch.tensor([cosines]), 0.8).value == pytest.approx(settled / 5)


def test_settled_depth_is_a_mean_over_images():
    cosines = torch.tensor([[0.9, 0.9, 1.0]] * 3 + [[0.0, 0.0, 1.0]] * 3)
    assert settled_depth(cosines, 0.8).value == pytest.approx((1 / 3 + 1) / 2)
    assert settled_depth(cosines[3:].repeat(3, 1), 0.8)[:3] == (1, 1, 1)
