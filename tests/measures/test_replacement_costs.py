"""What takes the place of tokens: small examples by hand, and planted moments."""

import math

import pytest
import torch
from torch.nn import functional as F

from helpers.measures.replaced import (
    Moments,
    as_many,
    borrowed,
    moments,
    noise_like,
    places_of,
    replacement_costs,
    start_block,
)


def test_the_first_block_with_an_outlier_in_more_than_a_twentieth_of_the_images():
    patches = torch.ones(300, 4, 9)
    patches[:, 2] = 10  # a block's own median counts, not that of another
    norms = patches[..., :3].clone()
    assert start_block(norms, patches) == -1
    norms[:15, 1, 0] = 4  # exactly a twentieth
    norms[:16, 2, 1] = 30  # not above three medians
    norms[:16, 3, 2] = 3.5
    assert start_block(norms, patches) == 3
    norms[15, 1, 2] = 3.1
    assert start_block(norms, patches) == 1
    norms[:, 0] = 4
    assert start_block(norms, patches) == 0


def test_places_stand_with_the_highest_first():
    scores = torch.tensor([[1.0, 5, 3, 9], [4, 4, 2, 1], [0, 1, 2, 3]])
    chosen = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    assert places_of(chosen, scores).tolist() == [[1, 2, 0], [0, 1, -1], [-1, -1, -1]]
    assert places_of(chosen & False, scores).shape == (3, 0)
    assert places_of(chosen[:0], scores[:0]).shape == (0, 0)


def test_as_many_others():
    scores = torch.tensor([[1.0, 5, 3, 9], [4, 4, 2, 1], [0, 1, 2, 3]])
    chosen = torch.tensor([[0, 0, 0, 1], [1, 1, 0, 0], [0, 1, 1, 1]]).bool()
    others = ~chosen
    assert as_many(chosen, others, scores).tolist() == [[1, -1], [2, 3], [0, -1]]
    others[0, 1] = others[1, 3] = False
    assert as_many(chosen, others, scores).tolist() == [[2], [2], [0]]


def test_moments_are_those_of_the_tokens_that_are_there():
    tokens = torch.randn(5, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    places = torch.tensor([[7, 3, 1], [2, -1, -1], [-1, -1, -1], [5, 4, -1], [9, 8, 6]])
    there = [tokens[i, :, j] for i in range(5) for j in range(3) if places[i, j] >= 0]
    mean = sum(there) / len(there)
    variance = sum((x - mean) ** 2 for x in there) / len(there)
    found = moments(tokens, places)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.std, variance.sqrt())
    assert moments(tokens, places.clamp(max=-1)).mean.isnan().all()


def test_noise_has_the_moments_and_is_each_images_own():
    given = Moments(torch.tensor([[0.0, 5], [-3, 100]]), torch.tensor([[1.0, 0], [2, 10]]))
    places = torch.zeros(4000, 3, dtype=torch.int64)
    noise = noise_like(given, places, seed=3)
    assert noise.shape == (4000, 2, 3, 2)
    torch.testing.assert_close(noise.mean((0, 2)), given.mean, atol=0.3, rtol=0)
    torch.testing.assert_close(
        noise.transpose(1, 2).flatten(0, 1).std(0), given.std, rtol=0.05, atol=0
    )
    assert torch.equal(noise[:7], noise_like(given, places[:7], seed=3))
    assert not torch.equal(noise[:7], noise_like(given, places[:7], seed=4))
    one, other = noise[0, 0, :, 0], noise[1, 0, :, 0]
    assert len({*one.tolist(), *other.tolist()}) == 6  # a draw of its own for each token


def test_borrowed_are_the_next_images_tokens_at_the_same_place_or_its_highest():
    places = torch.tensor([[4, 7], [-1, -1], [7, 9], [5, -1]])
    tokens = torch.arange(4.0 * 2 * 2).view(4, 2, 2, 1)
    tokens[places.lt(0)[:, None].expand(-1, 2, -1)] = 0
    found = borrowed(tokens, places)
    # The first has no 4 of the third's, so its highest (7), and its 7; the third 5 twice; the last
    # the first one's highest.
    assert torch.equal(found[0], tokens[2][:, [0, 0]])
    assert torch.equal(found[2], tokens[3][:, [0, 0]])
    assert torch.equal(found[3], torch.stack([tokens[0][:, 0], torch.zeros(2, 1)], dim=1))
    assert not found[1].any()
    places[3, 0] = 9
    assert torch.equal(borrowed(tokens, places)[3], found[3])
    places[0] = torch.tensor([9, 7])
    assert torch.equal(borrowed(tokens, places)[0], tokens[2][:, [1, 0]])
    with pytest.raises(ValueError, match="1 images"):
        borrowed(tokens[:2], places[:2])


def test_costs_in_closed_form():
    labels = torch.tensor([0, 1, 0, 1] * 10)
    sure, even = 4 * F.one_hot(labels, 2).float(), torch.zeros(40, 2)
    right = {"as it is": labels >= 0, "zero": labels == 0, "mean_normal": labels >= 0}
    right["absent"] = torch.arange(40) < 30
    scores = {"as it is": sure, "zero": even, "mean_normal": sure, "absent": sure}
    patches = {"as it is": labels == 1, "zero": labels < 0}
    found = replacement_costs(right, scores, patches, labels)
    names = {"accuracy", "patches_accuracy", "loss_zero", "entropy_zero", "patches_zero"}
    names |= {f"{x}_{y}" for x in ("loss", "entropy") for y in ("mean_normal", "absent")}
    assert found.keys() == names | {"absent_minus_random"}
    assert found["absent_minus_random"].value == found["loss_absent"].value == 25
    assert (found["accuracy"].value, found["patches_accuracy"].value) == (100, 50)
    assert (found["loss_zero"].value, found["patches_zero"].value) == (50, 50)
    assert found["loss_mean_normal"].value == found["entropy_mean_normal"].value == 0
    expected = math.log(2) - math.log(1 + math.exp(-4))
    assert found["entropy_zero"].value == pytest.approx(expected, rel=1e-5)
    assert found["loss_zero"].n == 40
