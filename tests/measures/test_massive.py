"""Planted massive activations: two channels of some tokens, in hidden states of ordinary ones."""

import math

import numpy as np
import pytest
import torch

from helpers.claims import load_registry
from helpers.claims.values import verdict_on
from helpers.measures.answers import answer_changes
from helpers.measures.massive import (
    fixed_channels,
    has_massive,
    magnitudes,
    massive,
    onset_of,
    sizes,
    token_angles,
)


def planted():
    """Three images of five tokens and 21 channels of magnitude 1; the third image has none."""
    x = torch.ones(3, 5, 21)
    x[:, :, ::2] *= -1
    x[0, 1, 4], x[0, 1, 7], x[0, 3, 4] = -1200, 1001, 1000
    x[1, 2, 4], x[1, 2, 9] = 101, 100
    return x


def test_the_largest_and_the_median():
    x = planted()
    expected = [[1200, 1001, 1000, 1], [101, 100, 1, 1], [1, 1, 1, 1]]
    assert magnitudes(x).tolist() == expected
    x[2] *= torch.arange(1, 106).reshape(5, 21)  # an odd number of activations: the middle one
    assert magnitudes(x)[2].tolist() == [105, 104, 103, 53]


def test_massive_is_above_100_and_above_the_factor():
    x = planted()
    found = [[0, 1, 4], [0, 1, 7], [0, 3, 4], [1, 2, 4]]
    assert massive(x).nonzero().tolist() == found
    assert massive(x / 20).nonzero().tolist() == []  # not above 100


def test_each_image_has_its_own_median():
    x = planted()
    x[1] *= 15
    assert massive(x)[1].nonzero().tolist() == [[2, 4]]
    x[0] *= 15
    assert massive(x)[0].nonzero().tolist() == [[1, 4], [1, 7], [3, 4]]


KEPT = torch.tensor(
    [  # image, block: the three largest, and the median
        [[101.0, 0, 0, 0.2], [500, 0, 0, 1], [1500, 0, 0, 1]],
        [[99, 0, 0, 0.1], [500, 0, 0, 5], [90, 0, 0, 0.01]],
        [[99, 0, 0, 0.1], [600, 0, 0, 2], [1500, 0, 0, 1.5]],
        [[99, 0, 0, 0.1], [600, 0, 0, 2], [1000, 0, 0, 1]],
    ]
)


def test_which_hidden_states_have_one_and_from_which_block_on():
    letter, variant = ([[int(y) for y in x] for x in has_massive(KEPT, k)] for k in (1000, 100))
    assert letter == [[0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert variant == [[1, 1, 1], [0, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert onset_of(KEPT) == 1
    assert onset_of(KEPT[1:3]) is None  # in half of the images is not in most


COUNTS = torch.tensor([[2.0, 0, 1, 0], [3, 0, 0, 0], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])


def test_fixed_channels_and_what_lies_in_them():
    assert fixed_channels(COUNTS) == [0]
    assert fixed_channels(COUNTS[:4]) == [0, 1]  # half of the images


def test_one_large_channel_makes_a_small_angle():
    """Tokens of independent parts of length 1 beside a channel of 10: by themselves at right
    angles, together at arccos(100 / 101)."""
    tokens = torch.zeros(40, 41)
    tokens[:, 0] = 10
    tokens[torch.arange(40), torch.arange(1, 41)] = 1
    found = token_angles(tokens, [0])
    assert found["angle_between"].value == pytest.approx(math.degrees(math.acos(100 / 101)))
    assert found["angle_between_rest"].value == pytest.approx(90)
    assert found["angle_to_channels"].value == pytest.approx(math.degrees(math.atan(0.1)))
    assert token_angles(-tokens, [0]) == found
    for one in token_angles(tokens + 0.1 * torch.randn(40, 41), [0]).values():
        assert one.low <= one.value <= one.high and one.n == 40


def test_constant_biases_support_the_claim():
    """By the letter, in their channels, zero costs and the mean does not; each alone refutes it."""
    claim = load_registry()["la3-massive-activations"]
    rng = np.random.default_rng(0)
    plain = torch.from_numpy(100.0 * (rng.random(600) < 0.8))
    lost = plain * torch.from_numpy(rng.random(600) < 0.7)
    kept = torch.tensor([2000.0, 0, 0, 1]).expand(600, 1, 4)

    def verdict(kept=kept, fixed=1.0, zeroed=lost, mean=plain):
        right = {"plain": plain, "zeroed": zeroed, "mean": mean}
        fixed = {"fixed_share": torch.full((600,), fixed)}
        return verdict_on(claim, "planted", sizes(kept) | fixed | answer_changes(right))

    assert verdict() == "supported"
    assert verdict(kept=kept / torch.tensor([2.5, 1, 1, 1])) == "refuted"
    assert verdict(fixed=0.0) == verdict(zeroed=plain) == verdict(mean=lost) == "refuted"
    assert verdict(kept=kept / 100) == "not applicable"
